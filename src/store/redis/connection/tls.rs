//! The TLS settings of connections to Redis, with rustls. Files are read for each connection, so that they may be rotated.

use std::path::Path;
use std::sync::Arc;

use fred::rustls::pki_types::pem::{Error as PemError, PemObject};
use fred::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use fred::rustls::{ClientConfig, RootCertStore, crypto};
use fred::rustls_native_certs::load_native_certs;
use fred::types::config::TlsConnector;

use crate::redis::target::RedisTls;
use crate::small_file;

/// Largest file in bytes. A bundle of all public root certificates has a fifth of this.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Builds fred's TLS connector from the files. Errors: a sentence that names the setting and the remedy.
pub(in crate::redis) fn connector(tls: &RedisTls) -> Result<TlsConnector, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let builder = builder.with_root_certificates(roots(tls.ca_file.as_deref())?);
    let Some((cert_file, key_file)) = &tls.identity else {
        return Ok(builder.with_no_client_auth().into());
    };
    let chain = certificates("store.tls.cert_file", cert_file)?;
    let key = read("store.tls.key_file", key_file, "a private key as PEM")?;
    let key = PrivateKeyDer::from_pem_slice(&key)
        .map_err(|error| garbled("store.tls.key_file", &error, "a private key as PEM"))?;
    let config = builder.with_client_auth_cert(chain, key).map_err(|error| {
        format!("store.tls.cert_file and store.tls.key_file do not go together ({error}); give a certificate and its own key")
    })?;
    Ok(config.into())
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let Some(ca_file) = ca_file else {
        let found = load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why = found
                .errors
                .first()
                .map_or_else(String::new, |error| format!(" ({error})"));
            return Err(format!(
                "this system has no certificates to trust{why}; name those of Redis's authority in store.tls.ca_file"
            ));
        }
        return Ok(roots);
    };
    for certificate in certificates("store.tls.ca_file", ca_file)? {
        roots.add(certificate).map_err(|error| {
            format!("store.tls.ca_file holds what is not an authority's certificate ({error})")
        })?;
    }
    Ok(roots)
}

fn certificates(setting: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wanted = "certificates as PEM";
    let bytes = read(setting, file, wanted)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let certificates = certificates.map_err(|error| garbled(setting, &error, wanted))?;
    if certificates.is_empty() {
        return Err(garbled(setting, &PemError::NoItemsFound, wanted));
    }
    Ok(certificates)
}

fn read(setting: &str, file: &Path, wanted: &str) -> Result<Vec<u8>, String> {
    let contents = small_file::read(file, FILE_BYTES_MAX);
    contents
        .map(|contents| contents.bytes)
        .map_err(|error| unusable(setting, &format!("it {error}"), wanted))
}

fn garbled(setting: &str, error: &PemError, wanted: &str) -> String {
    let why = if matches!(error, PemError::NoItemsFound) {
        "there is none in it"
    } else {
        "it is garbled"
    };
    unusable(setting, why, wanted)
}

/// The error for a file that cannot be used. It repeats neither the contents of the file, which may be a key, nor its path.
fn unusable(setting: &str, why: &str, wanted: &str) -> String {
    format!("{setting} cannot be used: {why}; it must be {wanted} that this process may read")
}
