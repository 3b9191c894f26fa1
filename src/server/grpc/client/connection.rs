//! One connection to a server, over TCP, TLS or a Unix socket. It is opened once and never again.

use std::fmt;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use crate::tls::{ClientSettings, ClientTlsStream};
use crate::transport::Address;

/// A server to ask, and how.
#[derive(Debug, Clone)]
pub struct Target {
    address: Address,
    tls: Option<ClientSettings>,
    timeout: Duration,
}

/// An open connection to a server.
pub struct ClientConnection {
    pub(super) channel: Channel,
    pub(super) address: String,
    pub(super) encrypted: bool,
    pub(super) timeout: Duration,
}

impl Target {
    /// The server at `host:port` or `unix:/path`. The timeout bounds the opening of the connection, and each answer again.
    /// Errors: a sentence about the address.
    pub fn new(
        address: &str,
        tls: Option<ClientSettings>,
        timeout: Duration,
    ) -> Result<Self, String> {
        let parsed: Result<Address, _> = address.parse();
        let address = parsed.map_err(|_| {
            format!("{address:?} is not an address; write host:port, such as 127.0.0.1:50051 or [::1]:50051, or unix:/path/to/socket")
        })?;
        match (&address, &tls) {
            (Address::Unix { .. }, Some(_)) => Err(format!(
                "{address} is a Unix socket, and nothing encrypts it; leave out the flags of TLS"
            )),
            _ => Ok(Self {
                address,
                tls,
                timeout,
            }),
        }
    }

    /// Whether what is sent cannot be read on the way: the connection is encrypted, or does not leave this host.
    pub fn is_private(&self) -> bool {
        self.tls.is_some() || self.address.is_local()
    }

    /// Opens the connection. Errors: a sentence that says what went wrong and what to check.
    pub async fn connect(&self) -> Result<ClientConnection, String> {
        let late = |_| {
            format!(
                "{} does not answer within {}",
                self.address,
                super::seconds(self.timeout)
            )
        };
        let stream = tokio::time::timeout(self.timeout, self.open())
            .await
            .map_err(late)??;
        let connector = Once(Some(stream));
        let channel = self.endpoint()?.connect_with_connector(connector).await;
        let channel = channel
            .map_err(|error| format!("the connection to {} failed: {error}", self.address))?;
        let address = self.address.to_string();
        let encrypted = self.tls.is_some();
        Ok(ClientConnection {
            channel,
            address,
            encrypted,
            timeout: self.timeout,
        })
    }

    fn endpoint(&self) -> Result<Endpoint, String> {
        let endpoint = match &self.address {
            Address::Tcp { at, .. } => Endpoint::from_shared(format!("http://{at}")),
            // A path names no host, so another name stands for it.
            Address::Unix { .. } => Endpoint::from_shared("http://localhost"),
        };
        endpoint.map_err(|_| format!("{} names no host; write host:port", self.address))
    }

    async fn open(&self) -> Result<ClientSocket, String> {
        let absent = |error: io::Error| {
            format!(
                "nothing answers at {} ({error}); is `tollgate serve` running there?",
                self.address
            )
        };
        match (&self.address, &self.tls) {
            (Address::Unix { path, .. }, _) => UnixStream::connect(path)
                .await
                .map(ClientSocket::Unix)
                .map_err(absent),
            (Address::Tcp { at, .. }, None) => {
                connect_tcp(at).await.map(ClientSocket::Tcp).map_err(absent)
            }
            (Address::Tcp { at, .. }, Some(tls)) => {
                let stream = connect_tcp(at).await.map_err(absent)?;
                let host = at.rsplit_once(':').map_or(at.as_str(), |(host, _)| host);
                let host = host.trim_start_matches('[').trim_end_matches(']');
                Box::pin(tls.connect(host, stream))
                    .await
                    .map(|stream| ClientSocket::Tls(Box::new(stream)))
            }
        }
    }
}

/// Without TCP_NODELAY, the body of each call waits for the server to acknowledge its headers, which takes 40 ms.
async fn connect_tcp(at: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(at).await?;
    // A connection on which it cannot be set is slower but still works.
    drop(stream.set_nodelay(true));
    Ok(stream)
}

/// Hands the stream over once. A lost connection ends the command: a call that was sent must not be sent again.
struct Once(Option<ClientSocket>);

impl Service<Uri> for Once {
    type Response = TokioIo<ClientSocket>;
    type Error = io::Error;
    type Future = Ready<io::Result<TokioIo<ClientSocket>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let lost = || io::Error::new(io::ErrorKind::ConnectionReset, "the connection was lost");
        ready(self.0.take().map(TokioIo::new).ok_or_else(lost))
    }
}

enum ClientSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// Boxed, since it is a hundred times the size of a socket.
    Tls(Box<ClientTlsStream>),
}

impl fmt::Debug for ClientSocket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Stream")
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_call_waits_for_an_acknowledgement() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        let target = Target::new(&at, None, Duration::from_secs(60)).unwrap();
        match target.open().await.unwrap() {
            ClientSocket::Tcp(stream) => assert!(stream.nodelay().unwrap()),
            other => panic!("{other:?}"),
        }
    }
}
