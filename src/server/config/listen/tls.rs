//! `listen.tls`: the files of encryption, and which callers are let in.

use std::path::{Path, PathBuf};

use super::names;
use crate::config::tree::{ErrorList, Node, Table, report};
use crate::tls::{ClientName, TlsSettings};

/// Maximum number of names of callers; each handshake compares all of them.
const CLIENT_NAMES_MAX: usize = 1_000;

/// The files are read at the start of serving, not here. A config may be checked on a machine without its keys.
pub(super) fn read(node: Node, errors: &mut ErrorList) -> Option<TlsSettings> {
    let mut table = node.table(errors)?;
    let cert_file = pem_file(&mut table, "cert_file", errors);
    let key_file = pem_file(&mut table, "key_file", errors);
    let client_ca_file = pem_file(&mut table, "client_ca_file", errors);
    check_is_there("listen.tls.cert_file", cert_file.as_deref(), errors);
    check_is_there("listen.tls.key_file", key_file.as_deref(), errors);
    let client_names = table.take("client_names").map_or(Some(Vec::new()), |node| {
        names(node, CLIENT_NAMES_MAX, ClientName::parse, errors)
    });
    if client_ca_file.is_none() && client_names.as_ref().is_some_and(|names| !names.is_empty()) {
        report(
            errors,
            "listen.tls.client_names",
            "is of no use without client_ca_file, who signs what those names are read from",
        );
    }
    table.finish(errors);
    Some(TlsSettings {
        cert_file: cert_file?,
        key_file: key_file?,
        client_ca_file,
        client_names: client_names?,
    })
}

/// Reports a file that is missing. A value that is not a text already has an error.
fn check_is_there(path: &str, file: Option<&Path>, errors: &mut ErrorList) {
    if file.is_none() && !errors.iter().any(|error| error.path == path) {
        report(errors, path, "is missing; name a file in PEM");
    }
}

fn pem_file(table: &mut Table, name: &'static str, errors: &mut ErrorList) -> Option<PathBuf> {
    let node = table.take(name)?;
    let path = node.path.clone();
    let file = node.text(errors)?;
    if file.is_empty() {
        report(errors, &path, "is empty; name a file in PEM");
    }
    Some(PathBuf::from(file))
}
