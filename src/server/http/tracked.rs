//! A connection whose reads are reported to [`ConnectionProgress`], and which is closed so that the peer sees the last answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::progress::{ConnectionProgress, ConnectionStep};
use crate::transport::Socket;

/// Maximum number of bytes that are dropped of a closed connection: the largest head that a gateway takes, several times.
const LINGER_BYTES_MAX: usize = 4 << 20;
/// Bytes that are dropped at a time.
const DROP_BYTES: usize = 8 << 10;

/// The socket of a connection.
///
/// A request may be refused before all of it was read. A socket that is closed with bytes unread is reset, and the peer may then
/// never see the answer. So writing ends first, and what comes is dropped until the peer closes, within [`LINGER_BYTES_MAX`] and
/// the time limit of [`ConnectionStep::Linger`].
pub(super) struct TrackedSocket {
    socket: Socket,
    progress: Arc<ConnectionProgress>,
    /// Bytes that may still be dropped; `None` until writing has ended.
    droppable: Option<usize>,
}

impl TrackedSocket {
    pub(super) fn new(socket: Socket, progress: Arc<ConnectionProgress>) -> Self {
        Self {
            socket,
            progress,
            droppable: None,
        }
    }
}

impl AsyncRead for TrackedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, into))?;
        // Nothing is read at the end of the stream.
        if into.filled().len() > before {
            self.progress.record_read(&into.filled()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TrackedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
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

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut droppable = match this.droppable {
            Some(droppable) => droppable,
            None => {
                ready!(Pin::new(&mut this.socket).poll_shutdown(context))?;
                if !this.progress.may_have_unread() {
                    return Poll::Ready(Ok(()));
                }
                this.progress.set_step(ConnectionStep::Linger);
                LINGER_BYTES_MAX
            }
        };
        while droppable > 0 {
            let mut dropped = [0; DROP_BYTES];
            let mut dropped = ReadBuf::new(&mut dropped);
            this.droppable = Some(droppable);
            ready!(Pin::new(&mut this.socket).poll_read(context, &mut dropped))?;
            if dropped.filled().is_empty() {
                break;
            }
            droppable = droppable.saturating_sub(dropped.filled().len());
        }
        Poll::Ready(Ok(()))
    }
}

/// The body of a request, whose bytes are reported to [`ConnectionProgress`].
pub(super) struct TrackedRequestBody {
    body: Incoming,
    progress: Arc<ConnectionProgress>,
}

impl TrackedRequestBody {
    pub(super) fn new(body: Incoming, progress: Arc<ConnectionProgress>) -> Self {
        Self { body, progress }
    }
}

impl Body for TrackedRequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.progress.record_body(data);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
