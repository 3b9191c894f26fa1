//! An accepted connection as a stream of bytes: TCP with or without TLS, or a Unix socket. It can move from one runtime to
//! another. This module knows nothing of HTTP.

use std::io;
use std::net::{IpAddr, TcpStream as StdTcpStream};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Sleep;

use super::admission::Peer;
use crate::tls::{self, Protocol, Tls};

/// Longest time that a peer may accept no bytes while some wait to be sent. It equals the limit for a missing keepalive answer.
///
/// Bytes wait only when the system's send buffer is full. They then occupy the memory of this process.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection that is not bound to a runtime, so that it can go from the acceptor to a worker.
pub(crate) enum Accepted {
    /// TCP, non-blocking.
    Tcp(StdTcpStream),
    /// TCP, non-blocking; the TLS handshake is still to come.
    Tls(StdTcpStream, Arc<Tls>),
    /// Unix domain, non-blocking.
    Unix(StdUnixStream),
}

impl Accepted {
    /// The peer, as [`super::admission`] counts it.
    pub(super) fn peer(&self) -> Peer {
        match self {
            // A connection that the peer has closed has no address. It is counted for 0.0.0.0 until it ends, which is soon.
            Self::Tcp(_) | Self::Tls(..) => {
                self.peer_address().map_or(Peer::V4([0; 4]), Peer::from)
            }
            Self::Unix(_) => Peer::Local,
        }
    }

    /// The address of the peer. `None` on a Unix socket, and when the peer has closed the connection.
    pub(crate) fn peer_address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) | Self::Tls(stream, _) => {
                stream.peer_addr().ok().map(|peer| peer.ip())
            }
            Self::Unix(_) => None,
        }
    }
}

/// A connection that is registered with the current runtime.
pub(crate) struct Socket {
    stream: SocketStream,
    /// How long the peer may accept no bytes.
    time_limit: Duration,
    /// Ends when the peer has accepted nothing for `time_limit`. Created at the first write that has to wait, so most
    /// writes need no timer.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// The transport of a [`Socket`].
enum SocketStream {
    /// TCP.
    Tcp(TcpStream),
    /// TCP, encrypted.
    Tls(Box<tls::ServerTlsStream>),
    /// Unix domain.
    Unix(UnixStream),
}

impl Socket {
    /// Registers a connection with the current runtime and does the TLS handshake where there is one.
    ///
    /// Returns `None` when that fails; the log says why. Dropping the future closes the connection.
    pub(crate) async fn open(accepted: Accepted, protocol: Protocol) -> Option<Self> {
        let opened = match accepted {
            Accepted::Tcp(stream) => TcpStream::from_std(stream).map(SocketStream::Tcp),
            Accepted::Unix(stream) => UnixStream::from_std(stream).map(SocketStream::Unix),
            Accepted::Tls(stream, tls) => match TcpStream::from_std(stream) {
                Ok(stream) => return handshake(&tls, protocol, stream).await,
                Err(error) => Err(error),
            },
        };
        // Registration fails when the system has no room for another watched socket.
        opened
            .inspect_err(|error| tracing::warn!(%error, "cannot serve a connection"))
            .ok()
            .map(Self::new)
    }

    /// Whether this is a Unix socket. Its peer connected to a path, which names no host.
    pub(crate) fn is_unix(&self) -> bool {
        matches!(self.stream, SocketStream::Unix(_))
    }

    fn new(stream: SocketStream) -> Self {
        Self {
            stream,
            time_limit: WRITE_TIMEOUT,
            stalled: None,
        }
    }

    /// Passes on the result of a write. A write that stays pending for longer than `time_limit` becomes the error
    /// `TimedOut`.
    fn in_time<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let time_limit = self.time_limit;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(time_limit)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

async fn handshake(tls: &Tls, protocol: Protocol, stream: TcpStream) -> Option<Socket> {
    let peer = stream.peer_addr().ok();
    let result = tls.accept(protocol, stream).await;
    result
        .inspect_err(|error| tracing::debug!(?peer, %error, "TLS handshake failed"))
        .ok()
        .map(SocketStream::Tls)
        .map(Socket::new)
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.in_time(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(context, shut)
    }
}

impl AsyncRead for SocketStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, into),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for SocketStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn pair() -> (Socket, StdUnixStream) {
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        (
            Socket::open(Accepted::Unix(ours), Protocol::H2)
                .await
                .unwrap(),
            theirs,
        )
    }

    #[tokio::test]
    async fn a_peer_that_accepts_no_bytes_is_cut() {
        let (mut socket, _peer) = pair().await;
        assert_eq!(socket.time_limit, WRITE_TIMEOUT);
        socket.time_limit = Duration::from_millis(50);
        let error = socket.write_all(&vec![0; 16 << 20]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_finished_write_restarts_the_time_limit() {
        let (mut socket, _peer) = pair().await;
        let context = &mut Context::from_waker(std::task::Waker::noop());
        assert!(
            socket.in_time::<usize>(context, Poll::Pending).is_pending()
                && socket.stalled.is_some()
        );
        assert!(socket.in_time(context, Poll::Ready(Ok(1))).is_ready() && socket.stalled.is_none());
    }
}
