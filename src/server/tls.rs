//! TLS of the listeners: certificate and key files, the check of callers' certificates, and the reload of changed files. Its
//! `client` is TLS of the commands that ask a server.
//!
//! Only this module and its submodules use rustls for listeners. Error messages name the setting of a file, never its path or
//! contents. Of the protocols inside TLS it knows only the names.

mod client;
mod clients;
mod names;
mod watch;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use x509_cert::Certificate;
use x509_cert::der::Decode;

pub use client::ClientSettings;
pub(crate) use client::ClientTlsStream;
pub use names::ClientName;
use tollgate_store::clock::{Clock, SystemClock};
use tollgate_store::small_file;
pub use watch::TlsWatch;

/// Largest file in bytes. A bundle of all public root certificates has a fifth of this.
const FILE_BYTES_MAX: usize = 1 << 20;
const US_PER_SECOND: u64 = 1_000_000;

/// A connection whose bytes are encrypted.
pub(crate) type ServerTlsStream = tokio_rustls::server::TlsStream<TcpStream>;

/// The TLS settings of the listeners: their files, and which callers may connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate and its chain, PEM.
    pub cert_file: PathBuf,
    /// Its private key, PEM.
    pub key_file: PathBuf,
    /// The authorities that sign callers' certificates, PEM; `None`: callers need no certificate.
    pub client_ca_file: Option<PathBuf>,
    /// A caller's certificate must have one of these names. Empty: every name is accepted.
    pub client_names: Vec<ClientName>,
}

/// The protocol inside TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/2, which carries gRPC.
    H2,
    /// HTTP/1.1.
    Http1,
}

/// The TLS settings in force. A change applies to handshakes that have not begun; it closes no connection.
#[derive(Debug)]
pub struct Tls {
    settings: TlsSettings,
    pair: Mutex<Arc<Pair>>,
    taken_up: AtomicU64,
    refused: AtomicU64,
    last_refused: AtomicBool,
    failed_handshakes: AtomicU64,
}

/// A certificate and its key, ready for handshakes: one rustls config for each protocol.
#[derive(Debug)]
struct Pair {
    h2: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
    /// When the certificate expires, in seconds since 1970.
    not_after: u64,
}

/// State of TLS for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlsStatus {
    /// When the certificate in force expires, in seconds since 1970.
    pub not_after: u64,
    /// Changed files that were taken up since the start.
    pub taken_up: u64,
    /// Changed files that were rejected because of errors.
    pub refused: u64,
    /// Whether the last change was rejected.
    pub last_refused: bool,
    /// Failed handshakes: callers that use another protocol, do not trust the certificate, or are not accepted.
    pub failed_handshakes: u64,
}

impl Tls {
    /// Reads the files. Errors: a sentence that begins with the wrong setting.
    pub fn load(settings: TlsSettings) -> Result<(Arc<Self>, TlsWatch), String> {
        let files = Files::read(&settings)?;
        let pair = Pair::new(&files, &settings)?;
        if pair.has_expired() {
            tracing::warn!(
                not_after = pair.not_after,
                "the certificate of listen.tls.cert_file has expired: callers will not trust it"
            );
        }
        let tls = Arc::new(Self {
            settings,
            pair: Mutex::new(Arc::new(pair)),
            taken_up: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            last_refused: AtomicBool::new(false),
            failed_handshakes: AtomicU64::new(0),
        });
        Ok((tls.clone(), TlsWatch::new(tls, &Ok(files))))
    }

    /// Does a handshake as the server. Errors: the peer left, uses another protocol, or is not accepted. Dropping the future
    /// closes the connection.
    pub(crate) async fn accept(
        &self,
        protocol: Protocol,
        stream: TcpStream,
    ) -> io::Result<Box<ServerTlsStream>> {
        let pair = self.pair();
        let config = match protocol {
            Protocol::H2 => pair.h2.clone(),
            Protocol::Http1 => pair.http1.clone(),
        };
        let mut handshake = Handshake {
            failed: Some(&self.failed_handshakes),
        };
        let shaken = TlsAcceptor::from(config).accept(stream).await?;
        handshake.failed = None;
        // Boxed, since it is a hundred times the size of a plain socket.
        Ok(Box::new(shaken))
    }

    /// The present state.
    pub fn status(&self) -> TlsStatus {
        TlsStatus {
            not_after: self.pair().not_after,
            taken_up: self.taken_up.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            last_refused: self.last_refused.load(Ordering::Relaxed),
            failed_handshakes: self.failed_handshakes.load(Ordering::Relaxed),
        }
    }

    fn pair(&self) -> Arc<Pair> {
        // The pair is replaced as a whole, so a panic cannot leave a part of it.
        self.pair
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Uses these files from now on, or keeps the old ones on an error. Returns when the new certificate expires.
    fn apply(&self, files: Result<Files, String>) -> Result<u64, String> {
        let pair = files
            .and_then(|files| Pair::new(&files, &self.settings))
            .and_then(|pair| match pair.has_expired() {
                true => Err("listen.tls.cert_file has expired".to_owned()),
                false => Ok(pair),
            });
        self.last_refused.store(pair.is_err(), Ordering::Relaxed);
        let count = if pair.is_ok() {
            &self.taken_up
        } else {
            &self.refused
        };
        count.fetch_add(1, Ordering::Relaxed);
        let pair = Arc::new(pair?);
        let not_after = pair.not_after;
        *self.pair.lock().unwrap_or_else(PoisonError::into_inner) = pair;
        Ok(not_after)
    }
}

/// A handshake under way. Dropping it counts it as failed, unless it has succeeded; a caller's timeout drops it too.
struct Handshake<'a> {
    failed: Option<&'a AtomicU64>,
}

impl Drop for Handshake<'_> {
    fn drop(&mut self) {
        if let Some(failed) = self.failed {
            failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The contents of the files.
#[derive(Hash)]
struct Files {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Files {
    fn read(settings: &TlsSettings) -> Result<Self, String> {
        let client_ca = settings
            .client_ca_file
            .as_deref()
            .map(|path| read(path, "client_ca_file"));
        Ok(Self {
            cert: read(&settings.cert_file, "cert_file")?,
            key: read(&settings.key_file, "key_file")?,
            client_ca: client_ca.transpose()?,
        })
    }
}

fn read(path: &Path, setting: &str) -> Result<Vec<u8>, String> {
    let contents = small_file::read(path, FILE_BYTES_MAX)
        .map_err(|error| format!("listen.tls.{setting} {error}"))?;
    Ok(contents.bytes)
}

impl Pair {
    fn new(files: &Files, settings: &TlsSettings) -> Result<Self, String> {
        let chain = certificates(&files.cert, "cert_file")?;
        let key = PrivateKeyDer::from_pem_slice(&files.key);
        let key = key.map_err(|_| {
            "listen.tls.key_file has no private key; it is PEM, unencrypted".to_owned()
        })?;
        let not_after = not_after(&chain[0])?;
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| format!("listen.tls cannot be set up: {error}"))?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(bytes) => {
                let roots = certificates(bytes, "client_ca_file")?;
                builder.with_client_cert_verifier(clients::verifier(
                    roots,
                    &settings.client_names,
                    provider,
                )?)
            }
        };
        let mut h2 = builder
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    "listen.tls.key_file is not the key of cert_file's certificate".to_owned()
                }
                error => format!("listen.tls.cert_file or key_file cannot be used: {error}"),
            })?;
        // A resumed session would not show the caller's certificate again.
        if files.client_ca.is_some() {
            h2.session_storage = Arc::new(NoServerSessionStorage {});
        }
        let mut http1 = h2.clone();
        (h2.alpn_protocols, http1.alpn_protocols) =
            (vec![b"h2".to_vec()], vec![b"http/1.1".to_vec()]);
        Ok(Self {
            h2: Arc::new(h2),
            http1: Arc::new(http1),
            not_after,
        })
    }

    fn has_expired(&self) -> bool {
        self.not_after < SystemClock.now_us() / US_PER_SECOND
    }
}

/// Parses certificates in PEM; an empty list is an error.
fn certificates(pem: &[u8], setting: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.ok().filter(|all| !all.is_empty());
    all.ok_or_else(|| {
        format!("listen.tls.{setting} has no certificate, or one that is cut off; it is PEM")
    })
}

fn not_after(certificate: &CertificateDer<'_>) -> Result<u64, String> {
    let parsed = Certificate::from_der(certificate)
        .map_err(|_| "listen.tls.cert_file has a certificate that cannot be read")?;
    Ok(parsed
        .tbs_certificate()
        .validity()
        .not_after
        .to_unix_duration()
        .as_secs())
}

#[cfg(test)]
mod tests;
