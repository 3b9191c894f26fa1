//! Shares the time of a worker among its connections.
//!
//! A runtime runs its tasks in the order in which they were woken. If each of 64 peers always has a millisecond of work, the call of
//! anybody else waits for all of it. So a connection that has used its allowance of time reads no more until it has a turn. Of those
//! that wait, one at a time gets a turn: after every other task that can run, and after a look at the sockets.
//!
//! What was read is finished without a wait, so a turn takes longer than the allowance by what one read brings. Time is measured only
//! while the worker is never idle; otherwise nobody waits for long.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use tokio::sync::Notify;
use tollgate_store::clock::monotonic;

/// Time that a connection may use in each period without a wait, and in each turn, in nanoseconds.
const ALLOWANCE_NS: u64 = 250_000;
/// After so much time every allowance is whole again, in nanoseconds. Whoever needs less than a twentieth of the worker never waits.
const PERIOD_NS: u64 = 5_000_000;
/// Polls after the worker was idle that are not measured, so that a worker with little to do reads no clock.
const UNMEASURED_POLLS: u32 = 16;

/// The turns of a worker's connections. Clones share them.
#[derive(Clone)]
pub(crate) struct WorkerTurns(Arc<SharedTurns>);

/// Used by the thread of the worker alone; atomic only because tasks must be [`Send`].
struct SharedTurns {
    origin: Instant,
    /// Whether there is somebody who gives turns. Without, nobody waits for one.
    is_run: AtomicBool,
    /// Polls since the worker was idle.
    polls: AtomicU32,
    /// Number of the period.
    period: AtomicU64,
    period_began_ns: AtomicU64,
    /// When the poll that runs now began; 0 when none is measured.
    poll_began_ns: AtomicU64,
    /// Connections that wait for a turn, each once.
    waiting: Mutex<VecDeque<Arc<Turn>>>,
    /// Notified when there are some.
    came: Notify,
}

/// What a connection has used of its worker's time.
pub(crate) struct Turn {
    worker: Arc<SharedTurns>,
    /// In the period with this number.
    used_ns: AtomicU64,
    period: AtomicU64,
    is_waiting: AtomicBool,
    /// Its tasks that wait for the turn, each once: no more than it has streams, and its own.
    wakers: Mutex<Vec<Waker>>,
}

/// A poll of a task of the connection. Dropping it ends the measurement.
pub(crate) struct MeasuredPoll<'a>(&'a Turn);

impl Default for WorkerTurns {
    fn default() -> Self {
        Self(Arc::new(SharedTurns {
            origin: monotonic(),
            is_run: AtomicBool::new(false),
            polls: AtomicU32::new(0),
            period: AtomicU64::new(0),
            period_began_ns: AtomicU64::new(0),
            poll_began_ns: AtomicU64::new(0),
            waiting: Mutex::default(),
            came: Notify::new(),
        }))
    }
}

impl WorkerTurns {
    /// Opens the turn of a connection, which must be used on the worker's thread.
    pub(crate) fn open(&self) -> Arc<Turn> {
        Arc::new(Turn {
            worker: self.0.clone(),
            used_ns: AtomicU64::new(0),
            period: AtomicU64::new(0),
            is_waiting: AtomicBool::new(false),
            wakers: Mutex::default(),
        })
    }

    /// Must be called whenever the worker has nothing to do.
    pub(crate) fn idle(&self) {
        self.0.polls.store(0, Ordering::Relaxed);
        self.0.begin_period(0);
    }

    /// Gives turns to those who wait. Must run on the worker for as long as it has connections.
    pub(crate) async fn run(self) {
        self.0.is_run.store(true, Ordering::Relaxed);
        loop {
            self.0.came.notified().await;
            while let Some(turn) = self.next() {
                turn.begin_turn();
                // Continues after all tasks that can run, and those whose sockets have something.
                tokio::task::yield_now().await;
            }
        }
    }

    fn next(&self) -> Option<Arc<Turn>> {
        lock(&self.0.waiting).pop_front()
    }
}

impl SharedTurns {
    /// Time since the start of the worker, at least 1.
    fn now_ns(&self) -> u64 {
        let passed = monotonic().saturating_duration_since(self.origin);
        u64::try_from(passed.as_nanos()).map_or(u64::MAX, |now_ns| now_ns.max(1))
    }

    fn begin_period(&self, now_ns: u64) {
        let period = self.period.load(Ordering::Relaxed);
        self.period.store(period + 1, Ordering::Relaxed);
        self.period_began_ns.store(now_ns, Ordering::Relaxed);
    }
}

impl Turn {
    /// Measures a poll of one of the connection's tasks, until the result is dropped.
    pub(crate) fn measure(&self) -> MeasuredPoll<'_> {
        let polls = self.worker.polls.load(Ordering::Relaxed);
        if polls < UNMEASURED_POLLS {
            self.worker.polls.store(polls + 1, Ordering::Relaxed);
        } else if self.worker.is_run.load(Ordering::Relaxed) {
            self.begin_poll(self.worker.now_ns());
        }
        MeasuredPoll(self)
    }

    fn begin_poll(&self, now_ns: u64) {
        if now_ns.saturating_sub(self.worker.period_began_ns.load(Ordering::Relaxed)) >= PERIOD_NS {
            self.worker.begin_period(now_ns);
        }
        let period = self.worker.period.load(Ordering::Relaxed);
        if self.period.load(Ordering::Relaxed) != period {
            self.period.store(period, Ordering::Relaxed);
            self.used_ns.store(0, Ordering::Relaxed);
        }
        self.worker.poll_began_ns.store(now_ns, Ordering::Relaxed);
    }

    fn end_poll(&self, now_ns: u64) {
        let began_ns = self.worker.poll_began_ns.swap(0, Ordering::Relaxed);
        let used_ns = self.used_ns.load(Ordering::Relaxed) + now_ns.saturating_sub(began_ns);
        self.used_ns.store(used_ns, Ordering::Relaxed);
    }

    /// Ready when the connection may read more. Otherwise it waits for its turn, and the task is woken then.
    pub(crate) fn poll_ready(self: &Arc<Self>, context: &Context<'_>) -> Poll<()> {
        if !self.is_waiting.load(Ordering::Relaxed) {
            if !self.is_used_up() {
                return Poll::Ready(());
            }
            self.is_waiting.store(true, Ordering::Relaxed);
            lock(&self.worker.waiting).push_back(self.clone());
            self.worker.came.notify_one();
        }
        let mut wakers = lock(&self.wakers);
        if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn is_used_up(&self) -> bool {
        let began_ns = self.worker.poll_began_ns.load(Ordering::Relaxed);
        began_ns > 0
            && self.used_ns.load(Ordering::Relaxed) + self.worker.now_ns().saturating_sub(began_ns)
                >= ALLOWANCE_NS
    }

    fn begin_turn(&self) {
        self.used_ns.store(0, Ordering::Relaxed);
        self.is_waiting.store(false, Ordering::Relaxed);
        let wakers = std::mem::take(&mut *lock(&self.wakers));
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for MeasuredPoll<'_> {
    fn drop(&mut self) {
        if self.0.worker.poll_began_ns.load(Ordering::Relaxed) > 0 {
            self.0.end_poll(self.0.worker.now_ns());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that holds the lock can panic midway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::poll_fn;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;

    /// Longer than the allowance.
    const WORK: Duration = Duration::from_nanos(2 * ALLOWANCE_NS);

    /// The task of a connection that has so many pieces of work to read.
    async fn read(turn: Arc<Turn>, name: usize, mut pieces: usize, log: Rc<RefCell<Vec<usize>>>) {
        poll_fn(|context| {
            let _measured = turn.measure();
            while pieces > 0 {
                std::task::ready!(turn.poll_ready(context));
                std::thread::sleep(WORK);
                log.borrow_mut().push(name);
                pieces -= 1;
            }
            Poll::Ready(())
        })
        .await;
    }

    #[test]
    fn peers_with_much_work_take_turns_and_one_with_little_passes_them() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let log = Rc::<RefCell<Vec<usize>>>::default();
        let begin = |turns: &WorkerTurns, name: usize, pieces: usize| {
            tokio::task::spawn_local(read(turns.open(), name, pieces, log.clone()))
        };
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let turns = WorkerTurns::default();
            tokio::task::spawn_local(turns.clone().run());
            tokio::task::yield_now().await;
            // From here on the worker is never idle.
            for _ in 0..UNMEASURED_POLLS {
                drop(turns.open().measure());
            }
            let mut tasks: Vec<_> = (0..3).map(|name| begin(&turns, name, 20)).collect();
            tokio::task::yield_now().await;
            // Somebody else, who comes while the others wait.
            tasks.push(begin(&turns, 9, 1));
            for task in tasks {
                task.await.unwrap();
            }
        });
        let log = log.borrow();
        let of = |name: usize| log.iter().filter(|other| **other == name).count();
        assert_eq!([0, 1, 2, 9].map(of), [20, 20, 20, 1], "{log:?}");
        let passed = log.iter().position(|name| *name == 9).unwrap();
        assert!(passed <= 3 + 2, "{passed}: {log:?}");
        // They take turns: in any six that follow each other, each has one at least.
        let alone = &log[10..50];
        let each = |pieces: &[usize]| (0..3).all(|name| pieces.contains(&name));
        assert!(alone.windows(6).all(each), "{log:?}");
    }

    #[test]
    fn without_anybody_who_gives_turns_nobody_waits() {
        let turn = WorkerTurns::default().open();
        let context = &Context::from_waker(Waker::noop());
        for _ in 0..2 * UNMEASURED_POLLS {
            let _measured = turn.measure();
            std::thread::sleep(WORK / 10);
            assert!(turn.poll_ready(context).is_ready());
        }
    }
}
