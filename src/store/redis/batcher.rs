//! The batcher: what arrives while a call to Redis is under way goes with the next one.
//!
//! Nothing is ever held back to wait for more: an idle store is asked at once, a busy one with as much as a call may hold, and
//! one that is far away before its last answer is there (`spacing`).
//! What a call is made of is `queue`'s and `call`'s; here is the one task that owns them, and the calls under way. It also
//! answers those whose time is over, by one alarm for all of them: a timer of its own would cost a decision as much as its
//! share of the call.

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

use super::call::{Call, Request};
use super::queue::{Entry, Waiter, Waiting};
use super::spacing::Spacing;
use crate::algorithm::Verdict;
use crate::clock::monotonic;
use crate::store::StoreError;

/// Most requests that wait or are under way; beyond, they are refused at once. A healthy Redis decides these within the
/// default deadline, so whatever is taken in has a chance to be answered.
pub(super) const REQUESTS_WAITING_MAX: usize = 4096;
/// Most calls under way. As many full calls as wait go out whenever one returns: where the round trip is short one at a
/// time keeps up, where it is long up to this many share it.
pub(super) const CALLS_MAX: usize = 4;

/// What takes a call to Redis and brings the reply.
pub(super) trait Carrier: Send + Sync + 'static {
    /// In which order, and with what else, a request is sent.
    type Queue<T: Waiter + Send>: Waiting<T> + Send;
    /// Most calls under way.
    const CALLS: usize = CALLS_MAX;

    /// What a healthy Redis answers within.
    fn deadline(&self) -> Duration;

    /// Waits until it is known whether calls can be carried at all, which it soon is: what comes meanwhile keeps its order,
    /// and is answered at its deadline.
    fn ready(&self) -> impl Future<Output = ()> + Send;

    /// A call as it is carried. Errors: it cannot be, and nothing is sent.
    fn command<T>(&self, call: &Call<T>) -> Result<Vec<Value>, StoreError>;

    /// One script call for so many names, whose last caller waits until `until`; the reply. It ends, in an error when nothing
    /// else comes.
    fn carry(&self, command: Vec<Value>, until: Instant, names: usize) -> impl Future<Output = Result<Value, Uncarried>> + Send;
}

/// Why a call brought no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Uncarried {
    /// What its callers are told.
    Error(StoreError),
    /// Nothing was executed, and each of its names has to be asked for by itself. Only a call for several names ends so.
    Apart,
}

impl From<StoreError> for Uncarried {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

/// What became of one request.
pub(super) type Answer = Result<Verdict, StoreError>;

/// Who waits for one answer. Has its share of [`REQUESTS_WAITING_MAX`] until it has it, or is given up.
struct Caller {
    reply: Reply,
    /// How long it waits in all, for what it is told then.
    deadline: Duration,
}

enum Reply {
    Alone {
        reply: oneshot::Sender<Answer>,
        _room: Room,
    },
    /// The answer's place in a batch.
    Part(Arc<Mutex<Gathering>>, usize),
}

/// The answers of a batch, until all are there.
struct Gathering {
    /// In the order of the batch; `None` until answered.
    answers: Vec<Option<Answer>>,
    missing: usize,
    /// Taken by whoever brings the last one.
    all: Option<oneshot::Sender<Vec<Answer>>>,
    _room: Room,
}

/// So many places of [`REQUESTS_WAITING_MAX`].
struct Room {
    waiting: Arc<AtomicUsize>,
    places: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.places, Ordering::Relaxed);
    }
}

/// Where requests are handed in. The batcher ends when all of these are dropped.
#[derive(Clone)]
pub(super) struct Batcher {
    queue: mpsc::UnboundedSender<Job>,
    /// Requests that wait or are under way: what bounds the queue.
    waiting: Arc<AtomicUsize>,
    /// Whether the last call was answered: tells a queue that is full of callers from one that nobody empties.
    answering: Arc<AtomicBool>,
}

enum Job {
    Alone(Entry<Caller>),
    Batch(VecDeque<Entry<Caller>>),
}

impl Batcher {
    pub(super) fn start(carrier: Arc<impl Carrier>) -> Self {
        let (queue, received) = mpsc::unbounded_channel();
        let answering = Arc::new(AtomicBool::new(false));
        tokio::spawn(forever(carrier, received, answering.clone()));
        Self { queue, waiting: Arc::default(), answering }
    }

    /// Takes a request in, which is answered within `deadline`. Errors: there is no room for it, or the batcher has ended; nothing is sent then.
    pub(super) fn take(&self, request: Request, deadline: Duration) -> Result<oneshot::Receiver<Answer>, StoreError> {
        let (reply, answered) = oneshot::channel();
        let _room = self.reserve(1)?;
        let until = monotonic() + deadline;
        let waiter = Caller { reply: Reply::Alone { reply, _room }, deadline };
        self.send(Job::Alone(Entry { request, until, waiter }))?;
        Ok(answered)
    }

    /// Takes several in, all or none, to be decided in their order. Errors: see [`Self::take`].
    pub(super) fn take_batch(
        &self,
        requests: Vec<Request>,
        deadline: Duration,
    ) -> Result<oneshot::Receiver<Vec<Answer>>, StoreError> {
        let count = requests.len();
        let (all, answered) = oneshot::channel();
        let _room = self.reserve(count)?;
        let answers = (0..count).map(|_| None).collect();
        let gathering = Arc::new(Mutex::new(Gathering { answers, missing: count, all: Some(all), _room }));
        let until = monotonic() + deadline;
        let entry = |(place, request)| {
            let waiter = Caller { reply: Reply::Part(gathering.clone(), place), deadline };
            Entry { request, until, waiter }
        };
        self.send(Job::Batch(requests.into_iter().enumerate().map(entry).collect()))?;
        Ok(answered)
    }

    fn reserve(&self, places: usize) -> Result<Room, StoreError> {
        let room = Room { waiting: self.waiting.clone(), places };
        if self.waiting.fetch_add(places, Ordering::Relaxed) + places <= REQUESTS_WAITING_MAX {
            return Ok(room);
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

/// Drives the queue, anew if that should panic. What the panic took with it is answered: its callers' senders are dropped;
/// what was not yet received is still in the channel.
async fn forever(carrier: Arc<impl Carrier>, mut received: mpsc::UnboundedReceiver<Job>, answering: Arc<AtomicBool>) {
    while AssertUnwindSafe(drive(&carrier, &mut received, &answering)).catch_unwind().await.is_err() {
        tracing::error!("the task that calls the store panicked; its calls are answered by policy, and it goes on");
    }
}

/// The one task that owns the queue and the calls under way; it returns when nobody is left to ask.
async fn drive<C: Carrier>(carrier: &Arc<C>, received: &mut mpsc::UnboundedReceiver<Job>, answering: &AtomicBool) {
    let mut ready = pin!(carrier.ready());
    let mut replies = FuturesUnordered::new();
    let mut driver = Driver::new(carrier.clone());
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

/// What the one task owns.
struct Driver<C: Carrier> {
    carrier: Arc<C>,
    /// Whether calls can be made yet.
    ready: bool,
    queue: C::Queue<Caller>,
    /// Calls under way, by their place; a place is free when its call has returned. Behind the places that whole calls have
    /// come those of parts.
    calls: Vec<Option<UnderWay>>,
    /// Of whole calls.
    free: Vec<usize>,
    spacing: Spacing,
    alarm: Pin<Box<Sleep>>,
    /// Whether the alarm is to be heard. It is never later than the first deadline of all who wait.
    armed: bool,
}

struct UnderWay {
    call: Call<Caller>,
    sent: Instant,
    /// Of a part of a call: all parts hold it, so that the last one is known.
    whole: Option<Arc<()>>,
}

impl<C: Carrier> Driver<C> {
    fn new(carrier: Arc<C>) -> Self {
        let (alarm, spacing) = (Box::pin(tokio::time::sleep(Duration::ZERO)), Spacing::new(carrier.deadline()));
        let (calls, free) = ((0..C::CALLS).map(|_| None).collect(), (0..C::CALLS).collect());
        Self { carrier, ready: false, queue: C::Queue::default(), calls, free, spacing, alarm, armed: false }
    }

    fn admit(&mut self, job: Job) {
        let until = match job {
            Job::Alone(entry) => {
                let until = entry.until;
                self.queue.push(entry);
                until
            }
            Job::Batch(entries) => {
                // All of a batch wait equally long.
                let Some(until) = entries.front().map(|entry| entry.until) else { return };
                self.queue.push_batch(entries);
                until
            }
        };
        // One that is past is acted on as soon as all that came is admitted.
        let due = self.spacing.due().filter(|due| *due > monotonic());
        self.wake_by(due.map_or(until, |due| due.min(until)));
    }

    /// Sets the alarm, unless it rings before.
    fn wake_by(&mut self, at: Instant) {
        if !self.armed || at < self.alarm.deadline().into_std() {
            self.arm(at);
        }
    }

    fn arm(&mut self, until: Instant) {
        self.alarm.as_mut().reset(until.into());
        self.armed = true;
    }

    /// The next call, if there is one worth it, and a place for it.
    fn next_call(&mut self) -> Option<Call<Caller>> {
        if !self.ready || self.free.is_empty() {
            return None;
        }
        let due = || self.spacing.due().is_some_and(|due| due <= monotonic());
        if !self.queue.is_ready(self.free.len() == C::CALLS || due()) {
            return None;
        }
        if self.armed && self.alarm.deadline().into_std() <= monotonic() {
            // Whoever has no time left is charged nothing more.
            self.expire();
        }
        let mut call = self.queue.compose();
        call.latest()?;
        call.arrange();
        Some(call)
    }

    /// Sends a call that is not empty, whole or a part of one, and keeps it until it returns.
    fn start(
        &mut self,
        call: Call<Caller>,
        whole: Option<Arc<()>>,
    ) -> impl Future<Output = (usize, Result<Value, Uncarried>)> + use<C> {
        let now = monotonic();
        let (carrier, command) = (self.carrier.clone(), self.carrier.command(&call));
        let (until, names) = (call.latest().unwrap_or(now), call.groups.len());
        self.spacing.sent(now);
        let free = if whole.is_none() { self.free.pop() } else { None };
        let place = free.unwrap_or_else(|| {
            self.calls.push(None);
            self.calls.len() - 1
        });
        self.calls[place] = Some(UnderWay { call, sent: now, whole });
        async move {
            let reply = match command {
                Ok(command) => carrier.carry(command, until, names).await,
                Err(error) => Err(error.into()),
            };
            (place, reply)
        }
    }

    /// Answers the callers of a call that returned; what has to be sent of it in parts instead.
    fn settle(&mut self, place: usize, reply: Result<Value, Uncarried>) -> Vec<Call<Caller>> {
        let Some(UnderWay { call, sent, whole }) = self.calls[place].take() else { return Vec::new() };
        if reply.is_ok() {
            self.spacing.answered(sent, monotonic());
        }
        self.give_back(place);
        let reply = match &reply {
            Ok(reply) => Ok(reply.as_bytes().unwrap_or_default()),
            Err(Uncarried::Error(error)) => Err(error),
            Err(Uncarried::Apart) => return call.split(),
        };
        // A call has returned when the last of its parts has.
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

    /// Answers those whose time is over, and sets the alarm for the next, or for when those who wait may be sent.
    fn expire(&mut self) {
        let now = monotonic();
        let calls = self.calls.iter_mut().flatten().flat_map(|under_way| under_way.call.expire(now));
        let expired: Vec<Caller> = calls.chain(self.queue.expire(now)).collect();
        expired.into_iter().for_each(|caller| caller.reply.give(Err(StoreError::Deadline(caller.deadline))));
        self.armed = false;
        let (calls, waiting) = (self.calls.iter().flatten(), self.queue.earliest());
        let deadlines = calls.filter_map(|under_way| under_way.call.earliest()).chain(waiting);
        // One that is past has been acted on: with no place free, the next answer is what they wait for.
        let due = self.spacing.due().filter(|due| waiting.is_some() && *due > now);
        if let Some(next) = deadlines.chain(due).min() {
            self.arm(next);
        }
    }
}

impl Waiter for Caller {
    fn is_gone(&self) -> bool {
        match &self.reply {
            Reply::Alone { reply, .. } => reply.is_closed(),
            Reply::Part(gathering, _) => lock(gathering).all.as_ref().is_none_or(oneshot::Sender::is_closed),
        }
    }
}

impl Reply {
    /// Whoever has gone meanwhile wants no answer.
    fn give(self, answer: Answer) {
        match self {
            Self::Alone { reply, .. } => drop(reply.send(answer)),
            Self::Part(gathering, place) => lock(&gathering).give(place, answer),
        }
    }
}

impl Gathering {
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
    // Nothing panics while one of these is held; if it did, what is in it is whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
