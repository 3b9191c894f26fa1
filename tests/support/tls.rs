//! A certificate authority for tests, the certificates that it signs, and clients that trust it.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use super::server::Client;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

/// A certificate and its key, PEM.
pub struct Pair {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut parameters = of("an authority of tests");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(parameters, key),
            pem,
        }
    }

    /// Issues a certificate for these names, which expires at the start of this year. A name with `://` or after `uri:` is a URI.
    /// An IP address is an address. Any other name is a DNS name.
    pub fn issue(&self, names: &[&str], year: i32) -> Pair {
        let key = KeyPair::generate().unwrap();
        // With the authority's own subject, the certificate would be taken for a self-signed one.
        let mut parameters = of("a certificate of tests");
        parameters.not_after = rcgen::date_time_ymd(year, 1, 1);
        let name = |name: &&str| match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if name.starts_with("uri:") => {
                SanType::URI(name["uri:".len()..].try_into().unwrap())
            }
            Err(_) if name.contains("://") => SanType::URI((*name).try_into().unwrap()),
            Err(_) => SanType::DnsName((*name).try_into().unwrap()),
        };
        parameters.subject_alt_names = names.iter().map(name).collect();
        let cert = parameters.signed_by(&key, &self.issuer).unwrap().pem();
        Pair {
            cert,
            key: key.serialize_pem(),
        }
    }

    /// A client that trusts only this authority, and presents this pair if there is one.
    pub fn client(&self, shown: Option<&Pair>) -> TlsClient {
        self.client_of(shown, rustls::ALL_VERSIONS, b"h2")
    }

    pub fn client_of(
        &self,
        shown: Option<&Pair>,
        versions: &[&'static SupportedProtocolVersion],
        alpn: &[u8],
    ) -> TlsClient {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap())
            .unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(versions)
            .unwrap();
        let builder = builder.with_root_certificates(roots);
        let mut config = match shown {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let certificate = CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                builder
                    .with_client_auth_cert(vec![certificate], key)
                    .unwrap()
            }
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        TlsClient(Arc::new(config))
    }
}

fn of(subject: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters
        .distinguished_name
        .push(DnType::CommonName, subject);
    parameters
}

/// A folder with the TLS files of a server, which a test changes.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(
            tempfile::Builder::new()
                .prefix("canary-of-a-path")
                .tempdir()
                .unwrap(),
        )
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn install(&self, pair: &Pair) {
        self.write("cert.pem", &pair.cert);
        self.write("key.pem", &pair.key);
    }

    /// The section of the config, with fields after the pair's.
    pub fn section(&self, more: &str) -> String {
        let text = |path: &Path| path.display().to_string();
        let cert = text(&self.path("cert.pem"));
        let key = text(&self.path("key.pem"));
        format!("tls: {{ cert_file: {cert}, key_file: {key}{more} }}")
    }
}

#[derive(Clone)]
pub struct TlsClient(Arc<ClientConfig>);

impl TlsClient {
    /// Does the TLS handshake. In TLS 1.3, the server's refusal of a client's certificate may come only with the first read.
    pub async fn shake(&self, address: &str) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        TlsConnector::from(self.0.clone())
            .connect(ServerName::try_from("localhost").unwrap(), stream)
            .await
    }

    /// A client over one connection, which does not reconnect.
    pub async fn connect(&self, address: &str) -> Result<Client, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel: Channel = endpoint
            .connect_with_connector(Connector {
                client: self.clone(),
                address: address.to_owned(),
            })
            .await?;
        Ok(Client::new(channel))
    }
}

#[derive(Clone)]
struct Connector {
    client: TlsClient,
    address: String,
}

type Connecting =
    Pin<Box<dyn Future<Output = std::io::Result<TokioIo<TlsStream<TcpStream>>>> + Send>>;

impl tonic::codegen::Service<tonic::codegen::http::Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = std::io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: tonic::codegen::http::Uri) -> Connecting {
        let Self { client, address } = self.clone();
        Box::pin(async move { client.shake(&address).await.map(TokioIo::new) })
    }
}
