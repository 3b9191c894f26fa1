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

use crate::transport::Usage;
use tollgate_store::clock::monotonic;

/// Longest time from the start of the connection, or from the first byte of a later request, to the end of the request's
/// head. Clients send a head at once.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time from the end of a head to the end of the answer, including the rest of the request. `/metrics` of 10,000
/// plans, 7 MiB, takes this long at 500 KiB a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest time from an answer to the first byte of the next request. nginx keeps idle connections for a minute by default.
/// The proxy should close them first: otherwise it might send a request into a connection that was just closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(65);
/// Longest time that a closed connection is still read; see [`super::tracked::TrackedSocket`]. A client that sends a head or a body
/// that nobody wants sends 1 MiB of it in this time at 200 KiB a second.
const LINGER_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are passed to hyper at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// The step that a connection is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionStep {
    /// The head of a request is awaited.
    Head,
    /// The request is received and answered.
    Answer,
    /// The last request was answered, and no byte of another has arrived.
    Idle,
    /// Nothing more is answered. What the peer still sends is dropped.
    Linger,
}

impl ConnectionStep {
    fn time_limit(self) -> Duration {
        match self {
            Self::Head => HEAD_TIMEOUT,
            Self::Answer => ANSWER_TIMEOUT,
            Self::Idle => IDLE_TIMEOUT,
            Self::Linger => LINGER_TIMEOUT,
        }
    }
}

/// The current step of a connection, and since when.
pub(super) struct ConnectionProgress {
    current: Mutex<Current>,
    usage: Arc<Usage>,
    /// Notified when a new step may end before the timer does. Most do not, so a busy connection rarely sets its timer.
    changed: Notify,
}

#[derive(Clone, Copy)]
struct Current {
    step: ConnectionStep,
    since: Instant,
    /// When the timer of [`ConnectionProgress::overdue`] ends.
    timer_at: Instant,
    /// The last bytes that were read, and those of the current request's body.
    read: Tail,
    body: Tail,
    /// Whether the current request has a body.
    has_body: bool,
}

/// The last bytes of something, four at most, and which of them there are.
#[derive(Clone, Copy, Default)]
struct Tail {
    bytes: u32,
    mask: u32,
}

impl Tail {
    /// How a head ends: with an empty line, whose CR may be missing.
    const HEAD_ENDS: [Self; 2] = [
        Self {
            bytes: 0x0A_0D_0A,
            mask: 0xFF_FF_FF,
        },
        Self {
            bytes: 0x0A_0A,
            mask: 0xFF_FF,
        },
    ];

    fn add(&mut self, bytes: &[u8]) {
        for byte in &bytes[bytes.len().saturating_sub(4)..] {
            self.bytes = self.bytes << 8 | u32::from(*byte);
            self.mask = self.mask << 8 | 0xFF;
        }
    }

    fn ends_with(self, end: Self) -> bool {
        end.mask > 0 && (self.bytes ^ end.bytes) & end.mask == 0
    }
}

impl Current {
    fn due_at(&self) -> Instant {
        self.since + self.step.time_limit()
    }
}

impl ConnectionProgress {
    /// Starts at the start of a connection. Records in `usage` whether the connection is in use.
    pub(super) fn new(usage: Arc<Usage>) -> Self {
        let now = monotonic();
        let read = Tail::default();
        let body = Tail::default();
        let current = Current {
            step: ConnectionStep::Head,
            since: now,
            timer_at: now,
            read,
            body,
            has_body: false,
        };
        Self {
            current: Mutex::new(current),
            usage,
            changed: Notify::new(),
        }
    }

    /// Records that the next step begins now.
    pub(super) fn set_step(&self, step: ConnectionStep) {
        let now = monotonic();
        let (before, is_earlier) = {
            let mut current = self.lock();
            let before = std::mem::replace(&mut current.step, step);
            current.since = now;
            (before, current.due_at() < current.timer_at)
        };
        match (
            before == ConnectionStep::Answer,
            step == ConnectionStep::Answer,
        ) {
            (false, true) => self.usage.begin(),
            (true, false) => self.usage.end(),
            _ => {}
        }
        if is_earlier {
            self.changed.notify_one();
        }
    }

    /// Records that a request is answered from now on.
    pub(super) fn begin_answer(&self, has_body: bool) {
        {
            let mut current = self.lock();
            (current.body, current.has_body) = (Tail::default(), has_body);
        }
        self.set_step(ConnectionStep::Answer);
    }

    /// Records that the answer is made. When the last bytes that were read end neither a head nor this request's body, they
    /// begin another request.
    fn end_answer(&self) {
        let current = *self.lock();
        let ends = Tail::HEAD_ENDS
            .into_iter()
            .chain([current.body])
            .any(|end| current.read.ends_with(end));
        self.set_step(if ends {
            ConnectionStep::Idle
        } else {
            ConnectionStep::Head
        });
    }

    /// Records that these bytes were read.
    pub(super) fn record_read(&self, bytes: &[u8]) {
        let step = {
            let mut current = self.lock();
            current.read.add(bytes);
            current.step
        };
        if step == ConnectionStep::Idle {
            self.set_step(ConnectionStep::Head);
        }
    }

    /// Records that these bytes are of the body of the current request.
    pub(super) fn record_body(&self, bytes: &[u8]) {
        self.lock().body.add(bytes);
    }

    /// Whether there may be bytes of the peer that nobody has read: of a head that was refused, or of a body.
    pub(super) fn may_have_unread(&self) -> bool {
        let current = self.lock();
        current.has_body || current.step == ConnectionStep::Head
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time that is left for the current step, and the step. Records that the timer is set to its end.
    fn set_timer(&self) -> (Duration, ConnectionStep) {
        let mut current = self.lock();
        current.timer_at = current.due_at();
        (
            current.timer_at.saturating_duration_since(monotonic()),
            current.step,
        )
    }

    /// Waits until a step takes too long, and returns that step.
    pub(super) async fn overdue(&self) -> ConnectionStep {
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

/// The body of an answer, which reports its end to [`ConnectionProgress`].
pub(super) struct TrackedBody {
    body: Body,
    /// The rest of a frame that is larger than a chunk.
    rest: Bytes,
    progress: Arc<ConnectionProgress>,
}

impl TrackedBody {
    pub(super) fn new(body: Body, progress: Arc<ConnectionProgress>) -> Self {
        Self {
            body,
            rest: Bytes::new(),
            progress,
        }
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.progress.end_answer();
    }
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
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
        let inner = self.body.size_hint();
        let rest = self.rest.len() as u64;
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
