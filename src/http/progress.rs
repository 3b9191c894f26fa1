//! How far a connection's request and answer are, and how long that may take. And the answer's body, cut into pieces, so
//! that little of one that is not read is copied.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Error;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::clock::monotonic;
use crate::grpc::{Socket, Usage};

/// Longest from the start, or from the first byte of a later request, to the end of the request's head. Whoever has
/// something to ask sends it at once.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Longest from the end of a head to the end of the answer, the rest of the request included. `/metrics` of 10,000 plans, 7 MiB,
/// takes this long at 500 KiB a second.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
/// Longest from an answer to the first byte of the next request. A proxy keeps idle connections for a minute (nginx, by
/// default) and should be the one that closes them, lest it sends a request into one that just closed.
pub(super) const IDLE_WITHIN: Duration = Duration::from_secs(65);
/// What is given away at once of an answer.
const CHUNK_BYTES: usize = 64 << 10;

/// What a connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It has a head to say.
    Head,
    /// It is answered.
    Answer,
    /// It was answered, and says nothing.
    Idle,
}

impl Step {
    fn within(self) -> Duration {
        match self {
            Self::Head => HEAD_WITHIN,
            Self::Answer => ANSWERED_WITHIN,
            Self::Idle => IDLE_WITHIN,
        }
    }
}

/// Since when a connection does what it does.
pub(super) struct Progress {
    step: Mutex<(Step, Instant)>,
    usage: Arc<Usage>,
    /// Tells of what may end sooner than what was.
    hurried: Notify,
}

impl Progress {
    /// From the start of a connection, which says by `usage` whether it does something.
    pub(super) fn new(usage: Arc<Usage>) -> Self {
        Self { step: Mutex::new((Step::Head, monotonic())), usage, hurried: Notify::new() }
    }

    pub(super) fn note(&self, step: Step) {
        let now = monotonic();
        let (before, _) = std::mem::replace(&mut *self.step.lock().unwrap_or_else(PoisonError::into_inner), (step, now));
        match (before == Step::Answer, step == Step::Answer) {
            (false, true) => self.usage.begin(),
            (true, false) => self.usage.end(),
            _ => {}
        }
        self.hurried.notify_one();
    }

    /// Notes that some bytes were read.
    fn read(&self) {
        if self.current().0 == Step::Idle {
            self.note(Step::Head);
        }
    }

    fn current(&self) -> (Step, Instant) {
        *self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a step takes too long; which.
    pub(super) async fn overdue(&self) -> Step {
        loop {
            let (step, since) = self.current();
            let left = step.within().saturating_sub(monotonic().saturating_duration_since(since));
            if left.is_zero() {
                return step;
            }
            // Either way, there is another look.
            let _ = tokio::time::timeout(left, self.hurried.notified()).await;
        }
    }
}

/// A socket that notes when something is read.
pub(super) struct Watched {
    socket: Socket,
    progress: Arc<Progress>,
}

impl Watched {
    pub(super) fn new(socket: Socket, progress: Arc<Progress>) -> Self {
        Self { socket, progress }
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(context, into))?;
        if into.filled().len() > before {
            self.progress.read();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
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

/// The body of an answer, which notes its end.
pub(super) struct Sent {
    body: Body,
    /// Of what is larger than a chunk.
    rest: Bytes,
    progress: Arc<Progress>,
}

impl Sent {
    pub(super) fn new(body: Body, progress: Arc<Progress>) -> Self {
        Self { body, rest: Bytes::new(), progress }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.progress.note(Step::Idle);
    }
}

impl HttpBody for Sent {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
        let count = self.rest.len().min(CHUNK_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(count)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
