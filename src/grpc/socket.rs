//! An accepted connection as a stream of bytes, TCP, encrypted or not, or Unix, and its way from one runtime to another.
//! Knows no HTTP.

use std::io;
use std::net::TcpStream as StdTcpStream;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::tls::{self, Protocol, Tls};

/// A connection that belongs to no runtime: how it travels from the acceptor to a worker.
pub(crate) enum Accepted {
    /// TCP, not blocking.
    Tcp(StdTcpStream),
    /// TCP, not blocking, whose peer is to shake hands first.
    Tls(StdTcpStream, Arc<Tls>),
    /// Unix domain, not blocking.
    Unix(StdUnixStream),
}

/// A connection of the current runtime.
pub(crate) enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// TCP, encrypted.
    Tls(Box<tls::Stream>),
    /// Unix domain.
    Unix(UnixStream),
}

impl Socket {
    /// Makes a connection the current runtime's own, and shakes hands where that is asked for; `None` when nothing comes
    /// of it, which the log tells. Dropping the future closes the connection.
    pub(crate) async fn open(accepted: Accepted, protocol: Protocol) -> Option<Self> {
        let opened = match accepted {
            Accepted::Tcp(stream) => TcpStream::from_std(stream).map(Self::Tcp),
            Accepted::Unix(stream) => UnixStream::from_std(stream).map(Self::Unix),
            Accepted::Tls(stream, tls) => match TcpStream::from_std(stream) {
                Ok(stream) => return shake(&tls, protocol, stream).await,
                Err(error) => Err(error),
            },
        };
        // The system has no room to watch it.
        opened.inspect_err(|error| tracing::warn!(%error, "cannot serve a connection")).ok()
    }
}

async fn shake(tls: &Tls, protocol: Protocol, stream: TcpStream) -> Option<Socket> {
    let peer = stream.peer_addr().ok();
    let shaken = tls.accept(protocol, stream).await;
    shaken.inspect_err(|error| tracing::debug!(?peer, %error, "TLS handshake failed")).ok().map(Socket::Tls)
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, into),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
