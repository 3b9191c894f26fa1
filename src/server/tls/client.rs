//! TLS of the commands that ask a server: whom they trust, and the certificate that they show.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_native_certs::load_native_certs;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::FILE_BYTES_MAX;
use tollgate_store::small_file;

/// An encrypted connection to a server.
pub(crate) type ClientTlsStream = tokio_rustls::client::TlsStream<TcpStream>;

/// How a command encrypts its connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientSettings {
    /// The authorities to trust, PEM; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// The certificate to show and its private key, both PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must have; `None`: the host of the address.
    pub server_name: Option<String>,
}

impl ClientSettings {
    /// Does a handshake for HTTP/2 with the server of this host. Errors: a sentence that names the flag of a wrong file, or says
    /// why the server is not trusted.
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<ClientTlsStream, String> {
        let name = self.server_name.as_deref().unwrap_or(host);
        let server_name = ServerName::try_from(name.to_owned())
            .map_err(|_| format!("{name:?} is not a host name; name that of the server's certificate by --tls-server-name"))?;
        let connector = TlsConnector::from(Arc::new(self.config()?));
        let shaken = connector.connect(server_name, stream).await;
        shaken.map_err(|error| format!("no TLS connection with {name}: {error}"))
    }

    fn config(&self) -> Result<ClientConfig, String> {
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| format!("TLS cannot be set up: {error}"))?;
        let builder = builder.with_root_certificates(self.roots()?);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((cert_file, key_file)) => {
                let chain = certificates("--tls-cert", cert_file)?;
                let key = PrivateKeyDer::from_pem_slice(&read("--tls-key", key_file)?);
                let key = key.map_err(|_| {
                    "the file of --tls-key has no private key; it is PEM, unencrypted".to_owned()
                })?;
                let config = builder.with_client_auth_cert(chain, key);
                config.map_err(|error| {
                    format!("--tls-cert and --tls-key do not go together: {error}")
                })?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(config)
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        let Some(ca_file) = &self.ca_file else {
            roots.add_parsable_certificates(load_native_certs().certs);
            let none = "this system has no certificates to trust; name those of the server's authority by --tls-ca";
            return if roots.is_empty() {
                Err(none.to_owned())
            } else {
                Ok(roots)
            };
        };
        for certificate in certificates("--tls-ca", ca_file)? {
            roots
                .add(certificate)
                .map_err(|error| format!("the file of --tls-ca cannot be used: {error}"))?;
        }
        Ok(roots)
    }
}

fn certificates(flag: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(flag, file)?).collect();
    let all = all.ok().filter(|all| !all.is_empty());
    all.ok_or_else(|| {
        format!("the file of {flag} has no certificate, or one that is cut off; it is PEM")
    })
}

fn read(flag: &str, file: &Path) -> Result<Vec<u8>, String> {
    let contents = small_file::read(file, FILE_BYTES_MAX);
    contents
        .map(|contents| contents.bytes)
        .map_err(|error| format!("the file of {flag} {error}"))
}
