//! The batcher: what arrives while a call to Redis is under way goes with the next one.
//!
//! No timer: an idle store is asked at once, a busy one with as much as a call may hold. The script decides the requests of
//! a call one after another in the order they came, so answers equal those of one call each, a key that stands in it
//! several times included.

use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{SCRIPT_ASKS_MAX, Shared};
use crate::algorithm::Verdict;
use crate::clock::monotonic;
use crate::store::{Ask, StoreError};

/// Most requests that wait or are under way; beyond, jobs are refused at once. A healthy Redis takes these in a tenth of
/// a second, and they hold a few megabytes.
pub(super) const ASKS_MAX: usize = 16_384;
/// Most calls under way. One keeps calls full where the round trip is short; where it is long, a call that is full goes
/// out beside others.
const CALLS_MAX: usize = 4;

/// Answers of one job, in the order of its asks.
pub(super) type Answers = Vec<Result<Verdict, StoreError>>;

/// Asks that travel together, and who waits for the answers.
struct Job {
    asks: Vec<Ask>,
    /// When the caller stops waiting; a job that is not sent by then never is.
    until: Instant,
    answer: oneshot::Sender<Answers>,
    /// Its share of [`ASKS_MAX`], given back when it is answered.
    room: OwnedSemaphorePermit,
}

/// Where jobs are handed in. The batcher ends when all of these are dropped.
#[derive(Clone)]
pub(super) struct Batcher {
    queue: mpsc::UnboundedSender<Job>,
    room: Arc<Semaphore>,
}

impl Batcher {
    pub(super) fn start(shared: Arc<Shared>) -> Self {
        let (queue, received) = mpsc::unbounded_channel();
        tokio::spawn(drive(shared, received));
        Self { queue, room: Arc::new(Semaphore::new(ASKS_MAX)) }
    }

    /// Takes a job in. Errors: there is no room for it, or the batcher has ended; nothing is sent then.
    pub(super) fn take(&self, asks: Vec<Ask>, until: Instant) -> Result<oneshot::Receiver<Answers>, StoreError> {
        // A batch is far below u32::MAX; one that is not has no room either.
        let count = u32::try_from(asks.len()).unwrap_or(u32::MAX);
        let room = self.room.clone().try_acquire_many_owned(count).map_err(|_| StoreError::Overloaded(ASKS_MAX))?;
        let (answer, answered) = oneshot::channel();
        let ended = || StoreError::Unreachable("its batcher has ended".to_owned());
        self.queue.send(Job { asks, until, answer, room }).map_err(|_| ended())?;
        Ok(answered)
    }
}

async fn drive(shared: Arc<Shared>, mut queue: mpsc::UnboundedReceiver<Job>) {
    let mut calls = FuturesUnordered::new();
    loop {
        // An idle store is asked as soon as somebody comes.
        if calls.is_empty() {
            let Some(jobs) = next_jobs(&mut queue).await else { return };
            calls.push(call(&shared, jobs));
        }
        // A busy one only by full calls; what fills none yet goes when a call returns.
        while calls.len() < CALLS_MAX && queue.len() >= SCRIPT_ASKS_MAX {
            let Some(jobs) = next_jobs(&mut queue).await else { return };
            calls.push(call(&shared, jobs));
        }
        calls.next().await;
    }
}

/// Up to a call's worth of what waits; `None` when nobody is left to come.
async fn next_jobs(queue: &mut mpsc::UnboundedReceiver<Job>) -> Option<Vec<Job>> {
    let mut jobs = Vec::with_capacity(SCRIPT_ASKS_MAX);
    (queue.recv_many(&mut jobs, SCRIPT_ASKS_MAX).await > 0).then_some(jobs)
}

/// One call, or, for jobs of many asks, several on the way at once; then hands out the answers.
async fn call(shared: &Shared, mut jobs: Vec<Job>) {
    let now = monotonic();
    // Whoever is gone, or has no time left, is charged nothing.
    jobs.retain(|job| job.until > now && !job.answer.is_closed());
    let Some(until) = jobs.iter().map(|job| job.until).max() else { return };
    let (mut asks, mut waiting) = (Vec::with_capacity(jobs.len()), Vec::with_capacity(jobs.len()));
    for job in jobs {
        waiting.push((job.asks.len(), job.answer, job.room));
        asks.extend(job.asks);
    }
    let mut answers = shared.decide(&asks, until).await.into_iter();
    for (count, waiting, _room) in waiting {
        // A caller that has gone meanwhile wants no answer.
        let _ = waiting.send(answers.by_ref().take(count).collect());
    }
}
