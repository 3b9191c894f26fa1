//! Tracks how far a connection is with its request and answer, and limits the time for each step.
//!
//! Also sends the answer's body in chunks, so that only a little is copied of an answer that the client does not read.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Error;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio_util::io::InspectReader;

use crate::clock::monotonic;
use crate::server::{Socket, Usage};

/// Longest time from the start of the connection, or from the first byte of a later request, to the end of the request's
/// head. Clients send a head at once.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Longest time from the end of a head to the end of the answer, including the rest of the request. `/metrics` of 10,000
/// plans, 7 MiB, takes this long at 500 KiB a second.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
/// Longest time from an answer to the first byte of the next request. nginx keeps idle connections for a minute by default.
/// The proxy should close them first: otherwise it might send a request into a connection that was just closed.
const IDLE_WITHIN: Duration = Duration::from_secs(65);
/// Bytes of an answer that are passed to hyper at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// The step that a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The head of a request is awaited.
    Head,
    /// The request is received and answered.
    Answer,
    /// The last request was answered, and no byte of another has arrived.
    Idle,
}

impl Step {
    fn time_limit(self) -> Duration {
        match self {
            Self::Head => HEAD_WITHIN,
            Self::Answer => ANSWERED_WITHIN,
            Self::Idle => IDLE_WITHIN,
        }
    }
}

/// The current step of a connection, and since when.
pub(super) struct Progress {
    current: Mutex<Current>,
    usage: Arc<Usage>,
    /// Notified when a new step may end before the timer does. Most do not, so a busy connection rarely sets its timer.
    changed: Notify,
}

#[derive(Clone, Copy)]
struct Current {
    step: Step,
    since: Instant,
    /// When the timer of [`Progress::overdue`] ends.
    timer_at: Instant,
}

impl Current {
    fn due_at(&self) -> Instant {
        self.since + self.step.time_limit()
    }
}

impl Progress {
    /// Starts at the start of a connection. Records in `usage` whether the connection is in use.
    pub(super) fn new(usage: Arc<Usage>) -> Self {
        let now = monotonic();
        let current = Current { step: Step::Head, since: now, timer_at: now };
        Self { current: Mutex::new(current), usage, changed: Notify::new() }
    }

    /// Records that the next step begins now.
    pub(super) fn set_step(&self, step: Step) {
        let now = monotonic();
        let (before, is_earlier) = {
            let mut current = self.lock();
            let before = std::mem::replace(&mut current.step, step);
            current.since = now;
            (before, current.due_at() < current.timer_at)
        };
        match (before == Step::Answer, step == Step::Answer) {
            (false, true) => self.usage.begin(),
            (true, false) => self.usage.end(),
            _ => {}
        }
        if is_earlier {
            self.changed.notify_one();
        }
    }

    /// Records that bytes were read.
    fn record_read(&self) {
        if self.lock().step == Step::Idle {
            self.set_step(Step::Head);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time that is left for the current step, and the step. Records that the timer is set to its end.
    fn set_timer(&self) -> (Duration, Step) {
        let mut current = self.lock();
        current.timer_at = current.due_at();
        (current.timer_at.saturating_duration_since(monotonic()), current.step)
    }

    /// Waits until a step takes too long, and returns that step.
    pub(super) async fn overdue(&self) -> Step {
        loop {
            let (left, step) = self.set_timer();
            if left.is_zero() {
                return step;
            }
            // The loop checks again in both cases: after the time, and after a new step.
            let _ = tokio::time::timeout(left, self.changed.notified()).await;
        }
    }
}

/// The socket, whose reads are reported to [`Progress`]. Writes are passed on.
pub(super) fn tracked(socket: Socket, progress: Arc<Progress>) -> InspectReader<Socket, impl FnMut(&[u8])> {
    InspectReader::new(socket, move |read| {
        // Nothing is read at the end of the stream.
        if !read.is_empty() {
            progress.record_read();
        }
    })
}

/// The body of an answer, which reports its end to [`Progress`].
pub(super) struct TrackedBody {
    body: Body,
    /// The rest of a frame that is larger than a chunk.
    rest: Bytes,
    progress: Arc<Progress>,
}

impl TrackedBody {
    pub(super) fn new(body: Body, progress: Arc<Progress>) -> Self {
        Self { body, rest: Bytes::new(), progress }
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.progress.set_step(Step::Idle);
    }
}

impl HttpBody for TrackedBody {
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
