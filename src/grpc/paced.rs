//! A connection that is read no faster than the calls of its worker are looked at.
//!
//! HTTP/2 is read before its calls have their turn, from every connection that has something to say. So that a crowd which
//! speaks at once does not turn into as many calls in memory, reading pauses while too many have had no turn.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The connection.
pub(super) struct Paced<S, F> {
    socket: S,
    busy: F,
}

impl<S, F> Paced<S, F> {
    /// Is not read while `busy` says so.
    pub(super) fn new(socket: S, busy: F) -> Self {
        Self { socket, busy }
    }
}

impl<S: AsyncRead + Unpin, F: Fn() -> bool + Unpin> AsyncRead for Paced<S, F> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if (self.busy)() {
            // Behind those that wait for their turn.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.socket).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin, F: Unpin> AsyncWrite for Paced<S, F> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
