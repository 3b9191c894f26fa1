//! The batcher: requests that arrive while a call to Redis is in flight go with the next call.
//!
//! Requests are never delayed to wait for more of them. An idle Redis is asked at once, and a busy one with as many requests
//! as a call may hold. A Redis that is far away is asked again before its last answer has come (`spacing`).
//!
//! `queue` and `call` decide which requests form a call. This module has the one task that owns the queue and the calls in
//! flight. The task also answers requests whose deadline has passed, by one timer for all of them. A timer per request would
//! cost as much as its share of the call.

pub(super) mod call;
pub(super) mod queue;
pub(super) mod spacing;

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fred::types::Value;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Sleep;

use crate::algorithm::Verdict;
use crate::clock::monotonic;
use crate::store::StoreError;
use call::{Call, ScriptRequest};
use queue::{PendingQueue, QueuedRequest, Waiter};
use spacing::Spacing;

/// Most requests that wait or are in flight; further ones are refused at once. A healthy Redis decides this many within the
/// default deadline, so every accepted request can be answered.
pub(super) const REQUESTS_WAITING_MAX: usize = 4096;
/// Most calls in flight. Full calls are sent whenever a place is free. Where the round trip is short, one call at a time is
/// enough; where it is long, up to this many overlap.
pub(super) const CALLS_MAX: usize = 4;

/// Sends a script call to Redis and returns the reply.
pub(super) trait ScriptTransport: Send + Sync + 'static {
    /// The queue, which decides in which order requests are sent, and which of them share a call.
    type Queue<T: Waiter + Send>: PendingQueue<T> + Send;
    /// Most calls in flight.
    const CALLS: usize = CALLS_MAX;

    /// The time within which a healthy Redis answers.
    fn deadline(&self) -> Duration;

    /// Waits until it is known whether calls can be sent, which is soon. Requests that arrive meanwhile keep their order, and
    /// are answered at their deadlines.
    fn ready(&self) -> impl Future<Output = ()> + Send;

    /// The arguments that a call is sent with. Errors: the call cannot be encoded, and nothing is sent.
    fn script_arguments<T>(&self, call: &Call<T>) -> Result<Vec<Value>, StoreError>;

    /// Makes one script call for `names` names, whose last caller waits until `until`. Returns the reply. It always ends, with
    /// an error if no reply comes.
    fn call_script(
        &self,
        command: Vec<Value>,
        until: Instant,
        names: usize,
    ) -> impl Future<Output = Result<Value, TransportError>> + Send;
}

/// Why a call has no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TransportError {
    /// All its callers get this error.
    Error(StoreError),
    /// Nothing was executed, and each name must be sent in a call of its own. Occurs only with calls for several names.
    Split,
}

impl From<StoreError> for TransportError {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

/// The result of one request.
pub(super) type Answer = Result<Verdict, StoreError>;

/// The caller of one request. It holds a place of [`REQUESTS_WAITING_MAX`] until it is answered or dropped.
struct Caller {
    reply: Reply,
    /// How long it waits in total, for the error that it gets at its deadline.
    deadline: Duration,
}

/// Where an answer is sent.
enum Reply {
    Single {
        reply: oneshot::Sender<Answer>,
        _permit: QueuePermit,
    },
    /// The batch of the request, and the index of the answer in it.
    InBatch(Arc<Mutex<BatchReply>>, usize),
}

/// Collects the answers of a batch until it is complete.
struct BatchReply {
    /// In the order of the batch; `None` until answered.
    answers: Vec<Option<Answer>>,
    missing: usize,
    /// Taken when the last answer comes.
    all: Option<oneshot::Sender<Vec<Answer>>>,
    _permit: QueuePermit,
}

/// Holds `places` places of [`REQUESTS_WAITING_MAX`], and frees them when dropped.
struct QueuePermit {
    waiting: Arc<AtomicUsize>,
    places: usize,
}

impl Drop for QueuePermit {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.places, Ordering::Relaxed);
    }
}

/// Submits requests to the batcher's task. The task ends when all clones of this are dropped.
#[derive(Clone)]
pub(super) struct Batcher {
    queue: mpsc::UnboundedSender<Job>,
    /// Number of requests that wait or are in flight. It bounds the queue.
    waiting: Arc<AtomicUsize>,
    /// Whether the last call was answered. When the queue is full, this tells an overload from a Redis that does not answer.
    answering: Arc<AtomicBool>,
}

/// What a caller submits to the task.
enum Job {
    Single(QueuedRequest<Caller>),
    Batch(VecDeque<QueuedRequest<Caller>>),
}

impl Batcher {
    pub(super) fn start(transport: Arc<impl ScriptTransport>) -> Self {
        let (queue, received) = mpsc::unbounded_channel();
        let answering = Arc::new(AtomicBool::new(false));
        tokio::spawn(run(transport, received, answering.clone()));
        Self { queue, waiting: Arc::default(), answering }
    }

    /// Submits a request, which is answered within `deadline`. Errors: the queue is full, or the batcher has ended. Nothing is
    /// sent then.
    pub(super) fn take(&self, request: ScriptRequest, deadline: Duration) -> Result<oneshot::Receiver<Answer>, StoreError> {
        let (reply, answered) = oneshot::channel();
        let _permit = self.reserve(1)?;
        let until = monotonic() + deadline;
        let waiter = Caller { reply: Reply::Single { reply, _permit }, deadline };
        self.send(Job::Single(QueuedRequest { request, until, waiter }))?;
        Ok(answered)
    }

    /// Submits several requests, all or none, which are decided in their order. Errors: see [`Self::take`].
    pub(super) fn take_batch(
        &self,
        requests: Vec<ScriptRequest>,
        deadline: Duration,
    ) -> Result<oneshot::Receiver<Vec<Answer>>, StoreError> {
        let count = requests.len();
        let (all, answered) = oneshot::channel();
        let _permit = self.reserve(count)?;
        let answers = (0..count).map(|_| None).collect();
        let batch_reply = Arc::new(Mutex::new(BatchReply { answers, missing: count, all: Some(all), _permit }));
        let until = monotonic() + deadline;
        let entry = |(place, request)| {
            let waiter = Caller { reply: Reply::InBatch(batch_reply.clone(), place), deadline };
            QueuedRequest { request, until, waiter }
        };
        self.send(Job::Batch(requests.into_iter().enumerate().map(entry).collect()))?;
        Ok(answered)
    }

    fn reserve(&self, places: usize) -> Result<QueuePermit, StoreError> {
        let permit = QueuePermit { waiting: self.waiting.clone(), places };
        if self.waiting.fetch_add(places, Ordering::Relaxed) + places <= REQUESTS_WAITING_MAX {
            return Ok(permit);
        }
        Err(if self.answering.load(Ordering::Relaxed) {
            StoreError::Overloaded(REQUESTS_WAITING_MAX)
        } else {
            StoreError::Unreachable(format!("{REQUESTS_WAITING_MAX} requests wait for it already"))
        })
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        self.queue.send(job).map_err(|_| StoreError::Unreachable("its batcher has ended".to_owned()))
    }
}

/// Runs [`drive`], again after a panic. A panic drops the senders of the callers that it affects, which answers them. Requests
/// that were not received yet are still in the channel.
async fn run(transport: Arc<impl ScriptTransport>, mut received: mpsc::UnboundedReceiver<Job>, answering: Arc<AtomicBool>) {
    while AssertUnwindSafe(drive(&transport, &mut received, &answering)).catch_unwind().await.is_err() {
        tracing::error!("the task that calls the store panicked; its calls are answered by policy, and it goes on");
    }
}

/// The loop of the task that owns the queue and the calls in flight. Returns when all [`Batcher`]s are dropped.
async fn drive<C: ScriptTransport>(transport: &Arc<C>, received: &mut mpsc::UnboundedReceiver<Job>, answering: &AtomicBool) {
    let mut ready = pin!(transport.ready());
    let mut replies = FuturesUnordered::new();
    let mut driver = Driver::new(transport.clone());
    loop {
        while let Ok(job) = received.try_recv() {
            driver.admit(job);
        }
        while let Some(call) = driver.next_call() {
            replies.push(driver.start(call, None));
        }
        tokio::select! {
            biased;
            () = &mut ready, if !driver.ready => driver.ready = true,
            Some((place, reply)) = replies.next() => {
                answering.store(reply.is_ok(), Ordering::Relaxed);
                let whole = Arc::new(());
                for part in driver.settle(place, reply) {
                    replies.push(driver.start(part, Some(whole.clone())));
                }
            }
            job = received.recv() => match job {
                Some(job) => driver.admit(job),
                None => return,
            },
            () = &mut driver.alarm, if driver.armed => driver.expire(),
        }
    }
}

/// The state of the batcher's task.
struct Driver<C: ScriptTransport> {
    transport: Arc<C>,
    /// Whether calls can be made yet.
    ready: bool,
    queue: C::Queue<Caller>,
    /// Calls in flight, by place; a place is `None` when its call has returned. The first [`ScriptTransport::CALLS`] places are
    /// for whole calls, further ones for parts of calls.
    calls: Vec<Option<InFlight>>,
    /// Free places for whole calls.
    free: Vec<usize>,
    spacing: Spacing,
    alarm: Pin<Box<Sleep>>,
    /// Whether the alarm is set. It is never later than the earliest deadline of all waiting requests.
    armed: bool,
}

/// A call that was sent and has not returned.
struct InFlight {
    call: Call<Caller>,
    sent: Instant,
    /// Shared by all parts of a split call, to recognise the last one that returns. `None` for a whole call.
    whole: Option<Arc<()>>,
}

impl<C: ScriptTransport> Driver<C> {
    fn new(transport: Arc<C>) -> Self {
        let (alarm, spacing) = (Box::pin(tokio::time::sleep(Duration::ZERO)), Spacing::new(transport.deadline()));
        let (calls, free) = ((0..C::CALLS).map(|_| None).collect(), (0..C::CALLS).collect());
        Self { transport, ready: false, queue: C::Queue::default(), calls, free, spacing, alarm, armed: false }
    }

    fn admit(&mut self, job: Job) {
        let until = match job {
            Job::Single(entry) => {
                let until = entry.until;
                self.queue.push(entry);
                until
            }
            Job::Batch(entries) => {
                // All requests of a batch have the same deadline.
                let Some(until) = entries.front().map(|entry| entry.until) else { return };
                self.queue.push_batch(entries);
                until
            }
        };
        // A time that has passed needs no alarm: the loop composes calls next.
        let due = self.spacing.due().filter(|due| *due > monotonic());
        self.wake_by(due.map_or(until, |due| due.min(until)));
    }

    /// Sets the alarm to `at`, unless it is set to an earlier time.
    fn wake_by(&mut self, at: Instant) {
        if !self.armed || at < self.alarm.deadline().into_std() {
            self.arm(at);
        }
    }

    fn arm(&mut self, until: Instant) {
        self.alarm.as_mut().reset(until.into());
        self.armed = true;
    }

    /// The next call, if there is one to send and a free place for it.
    fn next_call(&mut self) -> Option<Call<Caller>> {
        if !self.ready || self.free.is_empty() {
            return None;
        }
        let due = || self.spacing.due().is_some_and(|due| due <= monotonic());
        if !self.queue.is_ready(self.free.len() == C::CALLS || due()) {
            return None;
        }
        if self.armed && self.alarm.deadline().into_std() <= monotonic() {
            // Requests whose deadline has passed must not be charged.
            self.expire();
        }
        let mut call = self.queue.compose();
        call.latest()?;
        call.arrange();
        Some(call)
    }

    /// Sends a call, or a part of a split one, and keeps it until it returns. The call must not be empty.
    fn start(
        &mut self,
        call: Call<Caller>,
        whole: Option<Arc<()>>,
    ) -> impl Future<Output = (usize, Result<Value, TransportError>)> + use<C> {
        let now = monotonic();
        let (transport, command) = (self.transport.clone(), self.transport.script_arguments(&call));
        let (until, names) = (call.latest().unwrap_or(now), call.groups.len());
        self.spacing.sent(now);
        let free = if whole.is_none() { self.free.pop() } else { None };
        let place = free.unwrap_or_else(|| {
            self.calls.push(None);
            self.calls.len() - 1
        });
        self.calls[place] = Some(InFlight { call, sent: now, whole });
        async move {
            let reply = match command {
                Ok(command) => transport.call_script(command, until, names).await,
                Err(error) => Err(error.into()),
            };
            (place, reply)
        }
    }

    /// Answers the callers of a call that returned. Returns the parts to send instead, if the call must be split.
    fn settle(&mut self, place: usize, reply: Result<Value, TransportError>) -> Vec<Call<Caller>> {
        let Some(InFlight { call, sent, whole }) = self.calls[place].take() else { return Vec::new() };
        if reply.is_ok() {
            self.spacing.answered(sent, monotonic());
        }
        self.give_back(place);
        let reply = match &reply {
            Ok(reply) => Ok(reply.as_bytes().unwrap_or_default()),
            Err(TransportError::Error(error)) => Err(error),
            Err(TransportError::Split) => return call.split(),
        };
        // A split call has returned when its last part has.
        if whole.is_none_or(|whole| Arc::into_inner(whole).is_some()) {
            self.queue.returned(&call);
        }
        call.answers(reply).for_each(|(caller, answer)| caller.reply.give(answer));
        Vec::new()
    }

    fn give_back(&mut self, place: usize) {
        if place < C::CALLS {
            self.free.push(place);
        }
        while self.calls.len() > C::CALLS && self.calls.last().is_some_and(Option::is_none) {
            self.calls.pop();
        }
    }

    /// Answers the requests whose deadline has passed. Sets the alarm to the next deadline, or to when waiting requests may be
    /// sent if that is earlier.
    fn expire(&mut self) {
        let now = monotonic();
        let calls = self.calls.iter_mut().flatten().flat_map(|in_flight| in_flight.call.expire(now));
        let expired: Vec<Caller> = calls.chain(self.queue.expire(now)).collect();
        expired.into_iter().for_each(|caller| caller.reply.give(Err(StoreError::Deadline(caller.deadline))));
        self.armed = false;
        let (calls, waiting) = (self.calls.iter().flatten(), self.queue.earliest());
        let deadlines = calls.filter_map(|in_flight| in_flight.call.earliest()).chain(waiting);
        // If that time has passed, no place is free, and the next reply wakes the task.
        let due = self.spacing.due().filter(|due| waiting.is_some() && *due > now);
        if let Some(next) = deadlines.chain(due).min() {
            self.arm(next);
        }
    }
}

impl Waiter for Caller {
    fn is_gone(&self) -> bool {
        match &self.reply {
            Reply::Single { reply, .. } => reply.is_closed(),
            Reply::InBatch(batch_reply, _) => lock(batch_reply).all.as_ref().is_none_or(oneshot::Sender::is_closed),
        }
    }
}

impl Reply {
    /// Sends the answer. It is dropped if the caller has gone.
    fn give(self, answer: Answer) {
        match self {
            Self::Single { reply, .. } => drop(reply.send(answer)),
            Self::InBatch(batch_reply, place) => lock(&batch_reply).give(place, answer),
        }
    }
}

impl BatchReply {
    fn give(&mut self, place: usize, answer: Answer) {
        self.answers[place] = Some(answer);
        self.missing -= 1;
        if self.missing == 0
            && let Some(all) = self.all.take()
        {
            drop(all.send(std::mem::take(&mut self.answers).into_iter().flatten().collect()));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No code panics while holding one of these locks. If it did, the contents would still be consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
