//! The batcher: what arrives while a call to Redis is under way goes with the next one.
//!
//! No timer: an idle store is asked at once, a busy one with as much as a call may hold. A call takes from every job that
//! waits its share, in turns, so that a large job does not stand before small ones; of one job, asks go in their order. The
//! script decides the asks of a call one after another, so answers equal those of one call each, a key that stands in it
//! several times included.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{SCRIPT_ASKS_MAX, Shared};
use crate::algorithm::Verdict;
use crate::clock::monotonic;
use crate::store::{Ask, StoreError};

/// Most asks that wait or are under way; beyond, jobs are refused at once. A healthy Redis decides these within the
/// default deadline, so whatever is taken in has a chance to be answered.
pub(super) const ASKS_MAX: usize = 4096;
/// Most calls under way. As many full calls as wait go out whenever one returns: where the round trip is short one at a
/// time keeps up, where it is long up to this many share it.
const CALLS_MAX: usize = 4;

/// What became of one ask.
type Answer = Result<Verdict, StoreError>;

/// Asks that came together, and who waits for all their answers.
struct Job {
    asks: VecDeque<Ask>,
    /// When the caller stops waiting; asks that are not sent by then never are.
    until: Instant,
    waiting: Waiting,
}

struct Waiting {
    /// In the order of the asks; `None` until answered.
    answers: Vec<Option<Answer>>,
    missing: usize,
    answer: oneshot::Sender<Vec<Answer>>,
    /// The job's share of [`ASKS_MAX`], given back when it is answered or given up.
    _room: OwnedSemaphorePermit,
}

/// Where jobs are handed in. The batcher ends when all of these are dropped.
#[derive(Clone)]
pub(super) struct Batcher {
    queue: mpsc::UnboundedSender<Job>,
    room: Arc<Semaphore>,
    /// Whether the last call was answered: tells a queue that is full of callers from one that nobody empties.
    answering: Arc<AtomicBool>,
}

impl Batcher {
    pub(super) fn start(shared: Arc<Shared>) -> Self {
        let (queue, received) = mpsc::unbounded_channel();
        let answering = Arc::new(AtomicBool::new(false));
        tokio::spawn(Driver::new(shared, answering.clone()).drive(received));
        Self { queue, room: Arc::new(Semaphore::new(ASKS_MAX)), answering }
    }

    /// Takes a job in. Errors: there is no room for it, or the batcher has ended; nothing is sent then.
    pub(super) fn take(&self, asks: Vec<Ask>, until: Instant) -> Result<oneshot::Receiver<Vec<Answer>>, StoreError> {
        let missing = asks.len();
        // A batch is far below u32::MAX; one that is not has no room either.
        let count = u32::try_from(missing).unwrap_or(u32::MAX);
        let room = self.room.clone().try_acquire_many_owned(count).map_err(|_| self.no_room())?;
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { answers: (0..missing).map(|_| None).collect(), missing, answer, _room: room };
        let ended = |_| StoreError::Unreachable("its batcher has ended".to_owned());
        self.queue.send(Job { asks: asks.into(), until, waiting }).map_err(ended)?;
        Ok(answered)
    }

    fn no_room(&self) -> StoreError {
        if self.answering.load(Ordering::Relaxed) {
            StoreError::Overloaded(ASKS_MAX)
        } else {
            StoreError::Unreachable(format!("{ASKS_MAX} requests wait for it already"))
        }
    }
}

/// The one task that owns the queue and the calls under way.
struct Driver {
    shared: Arc<Shared>,
    answering: Arc<AtomicBool>,
    /// Jobs of which asks are still to be sent, in turns.
    unsent: VecDeque<(u64, VecDeque<Ask>, Instant)>,
    /// Who waits, by job.
    waiting: HashMap<u64, Waiting>,
    last_job: u64,
}

/// Of an ask under way: its job and its place in it.
type Place = (u64, usize);

impl Driver {
    fn new(shared: Arc<Shared>, answering: Arc<AtomicBool>) -> Self {
        Self { shared, answering, unsent: VecDeque::new(), waiting: HashMap::new(), last_job: 0 }
    }

    async fn drive(mut self, mut queue: mpsc::UnboundedReceiver<Job>) {
        let mut calls = FuturesUnordered::new();
        loop {
            while let Ok(job) = queue.try_recv() {
                self.admit(job);
            }
            while calls.is_empty() || (calls.len() < CALLS_MAX && self.asks_unsent() >= SCRIPT_ASKS_MAX) {
                let (places, asks, until) = self.compose();
                let Some(until) = until else { break };
                let shared = self.shared.clone();
                calls.push(async move { (places, shared.decide(&asks, until).await) });
            }
            if calls.is_empty() {
                // An idle store is asked as soon as somebody comes.
                let Some(job) = queue.recv().await else { return };
                self.admit(job);
            } else if let Some((places, answers)) = calls.next().await {
                self.settle(places, answers);
            }
        }
    }

    fn admit(&mut self, job: Job) {
        self.last_job += 1;
        self.unsent.push_back((self.last_job, job.asks, job.until));
        self.waiting.insert(self.last_job, job.waiting);
    }

    /// Asks that wait, counted as far as a full call needs: each job has one at least.
    fn asks_unsent(&self) -> usize {
        self.unsent.iter().take(SCRIPT_ASKS_MAX).map(|job| job.1.len()).sum()
    }

    /// A call's worth of asks, from the waiting jobs in turns; no deadline when nobody waits.
    fn compose(&mut self) -> (Vec<Place>, Vec<Ask>, Option<Instant>) {
        let (mut places, mut asks, mut latest) = (Vec::new(), Vec::new(), None);
        let now = monotonic();
        let share = (SCRIPT_ASKS_MAX / self.unsent.len().max(1)).max(1);
        while asks.len() < SCRIPT_ASKS_MAX {
            let Some((job, mut unsent, until)) = self.unsent.pop_front() else { break };
            let waited_for = self.waiting.get(&job).filter(|waiting| until > now && !waiting.answer.is_closed());
            let Some(waiting) = waited_for else {
                // Whoever is gone, or has no time left, is charged nothing more.
                self.waiting.remove(&job);
                continue;
            };
            let first = waiting.answers.len() - unsent.len();
            let count = share.min(unsent.len()).min(SCRIPT_ASKS_MAX - asks.len());
            places.extend((first..first + count).map(|place| (job, place)));
            asks.extend(unsent.drain(..count));
            latest = latest.max(Some(until));
            if !unsent.is_empty() {
                self.unsent.push_back((job, unsent, until));
            }
        }
        (places, asks, latest)
    }

    /// Hands out the answers of a call; jobs that have all of theirs are done.
    fn settle(&mut self, places: Vec<Place>, answers: Vec<Answer>) {
        self.answering.store(answers.iter().any(Result::is_ok), Ordering::Relaxed);
        for ((job, place), answer) in places.into_iter().zip(answers) {
            let Some(waiting) = self.waiting.get_mut(&job) else { continue };
            waiting.missing -= 1;
            waiting.answers[place] = Some(answer);
            if waiting.missing == 0
                && let Some(done) = self.waiting.remove(&job)
            {
                // A caller that has gone meanwhile wants no answers.
                let _ = done.answer.send(done.answers.into_iter().flatten().collect());
            }
        }
    }
}
