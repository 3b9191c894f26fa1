//! `listen`: addresses, encryption, callers' certificates, and how connections end.

mod tls;

use std::path::PathBuf;
use std::time::Duration;

use super::paths_of;
use super::tree::{ErrorList, Node, Table, report};
use crate::http::{HOST_NAMES_MAX, HostName};
use crate::tls::TlsSettings;
use crate::transport::Address;
use tollgate_core::duration;

/// Default address of gRPC: loopback only, since nothing is encrypted by default.
const GRPC_DEFAULT: &str = "127.0.0.1:50051";
/// Proxies check health every second or two by default, and remove a server after at most two failures.
const LAME_DUCK_DEFAULT: Duration = Duration::from_secs(2);
/// Together with 5 s for calls under way and the time that HTTP adds, the stop stays within the promised 10 s.
const LAME_DUCK_MAX: Duration = Duration::from_secs(3);
/// With less, callers would do little but connect.
const AGE_MIN: Duration = Duration::from_secs(1);
const AGE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Maximum number of gRPC addresses; each takes a socket. A host has a few networks, and needs a Unix socket or two.
const ADDRESSES_MAX: usize = 64;
/// Longest address: a name of 253 letters and a port, or a path of 108 bytes.
const ADDRESS_BYTES_MAX: usize = 300;

/// The checked section.
#[derive(Debug)]
pub struct ListenSection {
    /// Addresses of the gRPC services. Default: `127.0.0.1:50051`.
    pub grpc: Vec<Address>,
    /// Address of the check endpoint, health and metrics over HTTP. `None`, written as "": no HTTP. Default: none, because any
    /// fixed port may be taken by the application beside a sidecar, or by a second replica on the host.
    pub http: Option<Address>,
    /// Address of metrics and health alone, over HTTP, so that whoever may scrape cannot ask for decisions. HTTP then has no
    /// metrics. `None`, written as "": HTTP has them, where it is served. Default: none.
    pub metrics: Option<Address>,
    /// Names under which `http` and `metrics` show figures, beside IP addresses and `localhost`; up to 100. Default: none, so that
    /// no site can have its own name resolve to this server and read them.
    pub http_hosts: Vec<HostName>,
    /// Address of the admin service: loopback, or a Unix socket that only its owner can use. `None`, written as "": no admin
    /// service. Default: none.
    pub admin: Option<Address>,
    /// File of the token that admin calls must carry. Required on loopback, optional on a Unix socket. Default: none.
    pub admin_token_file: Option<PathBuf>,
    /// TLS for every TCP address without `plaintext:`. Default: none. Then only loopback addresses are valid, unless
    /// `listen.plaintext` is true.
    pub tls: Option<TlsSettings>,
    /// Time from the stop signal during which everything is served, but health reports not ready, so that load balancers move
    /// away. 0 to 3 s. Default: 2 s.
    pub lame_duck: Duration,
    /// Age at which a gRPC connection is told to close, 1 s to 365 days, plus or minus a tenth. `None`, written as 0s: never.
    /// Default: never.
    pub max_connection_age: Option<Duration>,
}

impl ListenSection {
    /// Paths of the settings that differ.
    pub(super) fn changed_settings(&self, other: &Self) -> Vec<&'static str> {
        let Self {
            grpc,
            http,
            metrics,
            http_hosts,
            admin,
            admin_token_file,
            tls,
            lame_duck,
            max_connection_age,
        } = self;
        paths_of([
            ("listen.grpc", *grpc != other.grpc),
            ("listen.http", *http != other.http),
            ("listen.metrics", *metrics != other.metrics),
            ("listen.http_hosts", *http_hosts != other.http_hosts),
            ("listen.admin", *admin != other.admin),
            (
                "listen.admin_token_file",
                *admin_token_file != other.admin_token_file,
            ),
            ("listen.tls", *tls != other.tls),
            ("listen.lame_duck", *lame_duck != other.lame_duck),
            (
                "listen.max_connection_age",
                *max_connection_age != other.max_connection_age,
            ),
        ])
    }
}

pub(super) fn check(root: &mut Table, errors: &mut ErrorList) -> Option<ListenSection> {
    let Some(node) = root.take("listen") else {
        return defaults();
    };
    let mut listen = node.table(errors)?;
    let fields = ListenFields::read(&mut listen, errors);
    listen.finish(errors);
    fields.check_addresses(errors)?;
    fields.section()
}

/// The fields of the section as they were read: `None` for one with an error.
struct ListenFields {
    grpc: Option<Vec<Option<Address>>>,
    http: Option<Option<Address>>,
    metrics: Option<Option<Address>>,
    http_hosts: Option<Vec<HostName>>,
    tls: Option<Option<TlsSettings>>,
    plaintext: Option<bool>,
    lame_duck: Option<Duration>,
    max_connection_age: Option<Option<Duration>>,
    admin_token_file: Option<Option<PathBuf>>,
    admin: Option<Option<Address>>,
}

impl ListenFields {
    fn read(listen: &mut Table, errors: &mut ErrorList) -> Self {
        Self {
            grpc: grpc_addresses(listen, errors),
            http: address_or_off(listen, "http", errors),
            metrics: address_or_off(listen, "metrics", errors),
            http_hosts: listen.read_or("http_hosts", Vec::new(), hosts, errors),
            tls: listen.read("tls", tls::read, errors),
            plaintext: listen.read_or("plaintext", false, Node::boolean, errors),
            lame_duck: listen.read_or("lame_duck", LAME_DUCK_DEFAULT, lame_duck, errors),
            max_connection_age: listen.read_or("max_connection_age", None, age, errors),
            admin_token_file: listen.read_or("admin_token_file", None, path_or_none, errors),
            admin: address_or_off(listen, "admin", errors),
        }
    }

    /// Checks the addresses together. What is wrong is left out here, so that all the rest is still judged. Returns `None`
    /// where `plaintext` has an error.
    fn check_addresses(&self, errors: &mut ErrorList) -> Option<()> {
        let callers = listed(
            self.grpc.as_deref().unwrap_or_default(),
            &[("http", &self.http), ("metrics", &self.metrics)],
        );
        let admins = listed(&[], &[("admin", &self.admin)]);
        if let Some((_, address @ Address::Tcp { .. })) = admins.first() {
            let has_token = self.admin_token_file.as_ref().is_none_or(Option::is_some);
            check_admin(address, has_token, errors);
        }
        refuse_shared(&[callers.clone(), admins].concat(), errors);
        // TLS with an error is meant to encrypt too.
        let encrypted = !matches!(self.tls, Some(None));
        check_encryption(&callers, self.plaintext?, encrypted, errors);
        Some(())
    }

    fn section(self) -> Option<ListenSection> {
        Some(ListenSection {
            grpc: self.grpc?.into_iter().collect::<Option<_>>()?,
            http: self.http?,
            metrics: self.metrics?,
            http_hosts: self.http_hosts?,
            admin: self.admin?,
            admin_token_file: self.admin_token_file?,
            tls: self.tls?,
            lame_duck: self.lame_duck?,
            max_connection_age: self.max_connection_age?,
        })
    }
}

/// The addresses of gRPC; one with an error is `None`.
fn grpc_addresses(listen: &mut Table, errors: &mut ErrorList) -> Option<Vec<Option<Address>>> {
    let Some(grpc) = listen.take("grpc") else {
        return defaults().map(|section| section.grpc.into_iter().map(Some).collect());
    };
    let too_long =
        |count| format!("has {count} addresses; at most {ADDRESSES_MAX} are listened at");
    let nodes = grpc.list(ADDRESSES_MAX, too_long, errors)?;
    addresses(nodes, errors)
}

/// The section when it is missing.
fn defaults() -> Option<ListenSection> {
    Some(ListenSection {
        grpc: vec![GRPC_DEFAULT.parse().ok()?],
        http: None,
        metrics: None,
        http_hosts: Vec::new(),
        admin: None,
        admin_token_file: None,
        tls: None,
        lame_duck: LAME_DUCK_DEFAULT,
        max_connection_age: None,
    })
}

/// The addresses that are set and sound, each with its path.
fn listed<'a>(
    grpc: &'a [Option<Address>],
    others: &[(&str, &'a Option<Option<Address>>)],
) -> Vec<(String, &'a Address)> {
    let grpc = grpc
        .iter()
        .enumerate()
        .filter_map(|(index, address)| Some((format!("listen.grpc[{index}]"), address.as_ref()?)));
    let others = others.iter().filter_map(|(name, address)| {
        Some((format!("listen.{name}"), address.as_ref()?.as_ref()?))
    });
    grpc.chain(others).collect()
}

/// Refuses an address at which something before it listens already.
fn refuse_shared(listed: &[(String, &Address)], errors: &mut ErrorList) {
    for (index, (path, address)) in listed.iter().enumerate() {
        if let Some((before, _)) = listed[..index]
            .iter()
            .find(|(_, before)| before.excludes(address))
        {
            report(
                errors,
                path,
                format!(
                    "is {address}, where {before} listens already; give each an address of its own"
                ),
            );
        }
    }
}

/// Refuses plaintext that is allowed beside TLS, and addresses that need either.
fn check_encryption(
    callers: &[(String, &Address)],
    plaintext: bool,
    encrypted: bool,
    errors: &mut ErrorList,
) {
    if plaintext && encrypted {
        let sentence = "is true, and listen.tls is set; remove one, or write plaintext: before single addresses";
        report(errors, "listen.plaintext", sentence);
    }
    if plaintext {
        return;
    }
    for (path, address) in callers {
        refuse_plaintext(path, address, encrypted, errors);
    }
}

/// Refuses an address that other hosts can reach without encryption, unless the config allows plaintext.
fn refuse_plaintext(path: &str, address: &Address, encrypted: bool, errors: &mut ErrorList) {
    let meant = encrypted
        || matches!(
            address,
            Address::Tcp {
                plaintext: true,
                ..
            }
        );
    if !meant && !address.is_local() {
        let sentence = format!(
            "is {address}, which other hosts can reach, and nothing encrypts it; set listen.tls, or, where the network is \
             trusted, listen.plaintext: true (--plaintext), or write plaintext:{address} for this one alone"
        );
        report(errors, path, sentence);
    }
}

/// Checks a TCP address of admin. The token is sent unencrypted, and every process on this host can connect.
fn check_admin(address: &Address, has_token: bool, errors: &mut ErrorList) {
    if !address.is_local() {
        let right = "admin listens on loopback, such as 127.0.0.1:50052, or at unix:/path, since nothing is encrypted";
        report(errors, "listen.admin", format!("is {address}; {right}"));
    }
    if !has_token {
        let right = "every process of this host can connect; name listen.admin_token_file, or listen at unix:/path";
        report(
            errors,
            "listen.admin",
            format!("is {address}, where {right}"),
        );
    }
}

fn path_or_none(node: Node, errors: &mut ErrorList) -> Option<Option<PathBuf>> {
    let path = node.text(errors)?;
    Some((!path.is_empty()).then(|| path.into()))
}

/// The address in a field; none if it is missing or empty.
fn address_or_off(
    listen: &mut Table,
    field: &'static str,
    errors: &mut ErrorList,
) -> Option<Option<Address>> {
    let Some(node) = listen.take(field) else {
        return Some(None);
    };
    let path = node.path.clone();
    match node.text(errors)?.as_str() {
        "" => Some(None),
        text => address(text, &path, errors).map(Some),
    }
}

fn address(text: &str, path: &str, errors: &mut ErrorList) -> Option<Address> {
    if text.len() > ADDRESS_BYTES_MAX {
        report(
            errors,
            path,
            format!(
                "has {} bytes; an address has at most {ADDRESS_BYTES_MAX}",
                text.len()
            ),
        );
        return None;
    }
    text.parse()
        .map_err(|error| report(errors, path, format!("is wrong: {error}")))
        .ok()
}

/// The addresses; one with an error is `None`.
fn addresses(nodes: Vec<Node>, errors: &mut ErrorList) -> Option<Vec<Option<Address>>> {
    if nodes.is_empty() {
        report(
            errors,
            "listen.grpc",
            "is empty; name at least one address, such as 127.0.0.1:50051",
        );
        return None;
    }
    let one = |node: Node| {
        let path = node.path.clone();
        node.text(errors)
            .and_then(|text| address(&text, &path, errors))
    };
    Some(nodes.into_iter().map(one).collect())
}

/// Names of hosts under which figures are shown.
fn hosts(node: Node, errors: &mut ErrorList) -> Option<Vec<HostName>> {
    names(node, HOST_NAMES_MAX, HostName::parse, errors)
}

/// A list of at most `max` names, each read by `parse`, whose errors tell how to write one.
fn names<T>(
    node: Node,
    max: usize,
    parse: fn(&str) -> Result<T, &'static str>,
    errors: &mut ErrorList,
) -> Option<Vec<T>> {
    let too_long = |count| format!("has {count} names; at most {max} are compared");
    let mut names = Vec::new();
    for node in node.list(max, too_long, errors)? {
        let path = node.path.clone();
        let Some(name) = node.text(errors) else {
            continue;
        };
        match parse(&name) {
            Ok(name) => names.push(name),
            Err(right) => report(errors, &path, format!("is wrong; {right}")),
        }
    }
    Some(names)
}

fn lame_duck(node: Node, errors: &mut ErrorList) -> Option<Duration> {
    let path = node.path.clone();
    let pause = node.duration(errors)?;
    if pause > LAME_DUCK_MAX {
        report(
            errors,
            &path,
            format!("is {}; it is 0s to 3s", duration::Shown(pause)),
        );
    }
    Some(pause)
}

/// `None` for 0.
fn age(node: Node, errors: &mut ErrorList) -> Option<Option<Duration>> {
    let path = node.path.clone();
    let age = node.duration(errors)?;
    if !age.is_zero() && !(AGE_MIN..=AGE_MAX).contains(&age) {
        report(
            errors,
            &path,
            format!("is {}; it is 0s (off), or 1s to 365d", duration::Shown(age)),
        );
    }
    Some(Some(age).filter(|age| !age.is_zero()))
}
