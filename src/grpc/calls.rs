//! Limits how many calls a worker holds. Each call has a permit, from its headers to the end of its answer.
//!
//! A call takes memory while it waits for a store, for the rest of its request, or for a peer that does not read. So each
//! kind of call has a limit, and calls beyond it are refused at once, whichever store is used.
//!
//! The more permits are in use, the fewer one connection may have; see [`may_take`]. So connections that use all they can
//! leave permits to those that use few.
//!
//! A call whose request is incomplete keeps its permit only until another call of its kind needs it, and its bytes until any call
//! needs them. The call that has waited longest, or has held bytes longest, is evicted first.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use super::receive::SMALL_BYTES_MAX;
use crate::server::Usage;

/// Most calls for one decision that a worker holds at once. Each takes some 4 KiB, so these take 32 MiB. It is twice what
/// may wait for Redis, which answers within `store.deadline`: 8,192 calls of 25 ms each are 300,000 a second.
const CALLS_MAX: usize = 8192;
/// The same for calls with a large request or answer: batches, and the list of plans. 128 batches of a millisecond each, of
/// 100 requests, are 12 million decisions a second.
const LARGE_CALLS_MAX: usize = 128;
/// The same for streams of decisions. Each may take 64 KiB unread, 64 KiB in progress, and 32 KiB unsent: 160 MiB at worst.
const STREAM_CALLS_MAX: usize = 1024;
/// The same for health checks. They share permits with nothing else. If a probe were refused because of other calls, an
/// orchestrator could take this process for dead and restart it.
const CHECKS_MAX: usize = 1024;
/// The same for health watches: one for each connection that a worker takes, since clients that balance by health hold one on
/// each. A watch takes some 4 KiB.
const WATCHES_MAX: usize = 4096;
/// The same for all other calls: reflection, and unknown methods.
const OTHER_CALLS_MAX: usize = 256;
/// Most bytes of all large requests and answers together: sixteen of the largest.
const LARGE_BYTES_MAX: usize = 16 << 20;
/// Most calls that hold such bytes: smaller requests reserve none.
const HOLDERS_MAX: usize = LARGE_BYTES_MAX / SMALL_BYTES_MAX;
/// A connection gets no more permits once it has 1/`SHARE` of the free ones. Its first is always granted.
const SHARE: usize = 2;
/// Most calls that were read and not yet polled, give or take one turn of reading. Without the limit, all that clients send
/// at once would become calls in memory.
const UNPOLLED_MAX: usize = 1024;

/// Kinds of calls, by the resources that they may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One decision.
    Decision,
    /// A call whose request or answer may be large.
    Large,
    /// A stream of decisions, as long as the client likes.
    Stream,
    /// A health check.
    Check,
    /// A watch of the server's health.
    Watch,
    /// Anything else.
    Other,
}

impl Kind {
    const COUNT: usize = 6;

    fn calls_max(self) -> usize {
        match self {
            Self::Decision => CALLS_MAX,
            Self::Large => LARGE_CALLS_MAX,
            Self::Stream => STREAM_CALLS_MAX,
            Self::Check => CHECKS_MAX,
            Self::Watch => WATCHES_MAX,
            Self::Other => OTHER_CALLS_MAX,
        }
    }
}

/// Whether a connection that holds `mine` may take `wanted` more of what is free. If `n` connections take all they can,
/// each ends at one part in `n + SHARE`. `SHARE` such parts stay free for others.
fn may_take(free: usize, mine: usize, wanted: usize) -> bool {
    wanted <= free && (mine == 0 || (mine + wanted) * SHARE <= free)
}

/// What calls hold, of a worker or of one of its connections.
#[derive(Default)]
struct Occupancy {
    calls: [Cell<usize>; Kind::COUNT],
    bytes: Cell<usize>,
}

/// The limits of a worker. Clones share them.
#[derive(Clone)]
pub(super) struct CallLimits(Rc<WorkerCalls>);

struct WorkerCalls {
    used: Occupancy,
    /// The part of `used` that is held by calls whose request is incomplete.
    unfinished: Occupancy,
    /// Those calls by kind, the oldest first. Contains entries of calls that no longer wait.
    waiting: [RefCell<VecDeque<Weak<Unfinished>>>; Kind::COUNT],
    /// Those of any kind that hold bytes, by when they got them. Contains entries of calls that no longer wait.
    holding_bytes: RefCell<VecDeque<Weak<Unfinished>>>,
    /// Calls that were read and not yet polled.
    unpolled: Cell<usize>,
    refused: Arc<AtomicU64>,
}

impl WorkerCalls {
    fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Evicts the oldest of `waiting`. Returns whether there was one.
    fn evict(&self, waiting: &RefCell<VecDeque<Weak<Unfinished>>>) -> bool {
        loop {
            let Some(oldest) = waiting.borrow_mut().pop_front() else { return false };
            let Some(oldest) = oldest.upgrade() else { continue };
            if let Some(granted) = oldest.release() {
                drop(granted);
                oldest.is_evicted.set(true);
                self.count_refused();
                oldest.waker.take().into_iter().for_each(Waker::wake);
                return true;
            }
        }
    }
}

impl CallLimits {
    /// Limits without any call. `refused` counts the calls that get no permit.
    pub(super) fn new(refused: Arc<AtomicU64>) -> Self {
        Self(Rc::new(WorkerCalls {
            used: Occupancy::default(),
            unfinished: Occupancy::default(),
            waiting: Default::default(),
            holding_bytes: RefCell::default(),
            unpolled: Cell::default(),
            refused,
        }))
    }

    /// Whether so many calls wait for their first poll that no more should be read.
    pub(super) fn is_backlogged(&self) -> bool {
        self.0.unpolled.get() >= UNPOLLED_MAX
    }

    /// Returns the limits of a new connection.
    pub(super) fn connection(&self, usage: Arc<Usage>) -> Rc<ConnectionCallLimits> {
        Rc::new(ConnectionCallLimits {
            worker: self.0.clone(),
            usage,
            used: Occupancy::default(),
            sending: Cell::new(Sending::Untouched),
        })
    }
}

/// The limits of one connection.
pub(super) struct ConnectionCallLimits {
    worker: Rc<WorkerCalls>,
    used: Occupancy,
    usage: Arc<Usage>,
    /// What the call that is being polled did with its answer.
    sending: Cell<Sending>,
}

/// What happened to an answer during one poll of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// hyper did not ask for it.
    Untouched,
    /// hyper asked for it, and there was nothing to send.
    Idle,
    /// A part of the answer was passed to hyper.
    Part,
    /// A message of a stream was passed to hyper.
    Message,
}

impl ConnectionCallLimits {
    /// Counts a call that was read, until the result is dropped.
    pub(super) fn unpolled(self: &Rc<Self>) -> UnpolledCall {
        self.worker.unpolled.set(self.worker.unpolled.get() + 1);
        UnpolledCall(self.clone())
    }

    /// Returns a permit for a call of this kind, if the limits allow it.
    pub(super) fn permit(self: &Rc<Self>, kind: Kind) -> Option<CallPermit> {
        let (all, mine) = (&self.worker.used.calls[kind as usize], &self.used.calls[kind as usize]);
        let free = kind.calls_max().saturating_sub(all.get());
        let unfinished = self.worker.unfinished.calls[kind as usize].get();
        if !may_take(free + unfinished, mine.get(), 1) || (free == 0 && !self.worker.evict(&self.worker.waiting[kind as usize])) {
            self.worker.count_refused();
            return None;
        }
        all.set(all.get() + 1);
        mine.set(mine.get() + 1);
        Some(CallPermit { calls: self.clone(), kind, is_busy: false })
    }

    /// Reserves `bytes` for a large request, if the limits allow it.
    pub(super) fn reserve(self: &Rc<Self>, bytes: usize) -> Option<ByteReservation> {
        let free = || LARGE_BYTES_MAX.saturating_sub(self.worker.used.bytes.get());
        let is_granted = may_take(free() + self.worker.unfinished.bytes.get(), self.used.bytes.get(), bytes);
        while is_granted && free() < bytes && self.worker.evict(&self.worker.holding_bytes) {}
        if is_granted && free() >= bytes {
            return Some(self.reserve_unchecked(bytes));
        }
        self.worker.count_refused();
        None
    }

    /// Records that a call waits for its request. It keeps its grants until the request is complete or the call is evicted.
    pub(super) fn wait(self: &Rc<Self>, permit: CallPermit, reservation: Option<ByteReservation>) -> Rc<Unfinished> {
        let kind = permit.kind;
        let unfinished = Rc::new(Unfinished {
            calls: self.clone(),
            kind,
            bytes: Cell::new(0),
            granted: Cell::new(Some((permit, None))),
            is_evicted: Cell::new(false),
            waker: Cell::new(None),
        });
        let count = &self.worker.unfinished.calls[kind as usize];
        count.set(count.get() + 1);
        reservation.into_iter().for_each(|reservation| unfinished.add(reservation));
        enlist(&self.worker.waiting[kind as usize], &unfinished, kind.calls_max());
        unfinished
    }

    /// Reserves `bytes` for a large answer without a check, since the bytes exist already. Later requests get less.
    pub(super) fn reserve_unchecked(self: &Rc<Self>, bytes: usize) -> ByteReservation {
        for used in [&self.worker.used.bytes, &self.used.bytes] {
            used.set(used.get() + bytes);
        }
        ByteReservation { calls: self.clone(), bytes }
    }

    /// Records what happened to the answer of the call that is being polled.
    pub(super) fn note(&self, sending: Sending) {
        self.sending.set(sending);
    }

    /// Returns what was recorded since the last call of this function.
    pub(super) fn take_noted(&self) -> Sending {
        self.sending.replace(Sending::Untouched)
    }
}

/// What a call holds.
pub(super) type CallGrants = (CallPermit, Option<ByteReservation>);

/// A call that waits for its request, and what it holds.
pub(super) struct Unfinished {
    calls: Rc<ConnectionCallLimits>,
    kind: Kind,
    /// Bytes of its reservation.
    bytes: Cell<usize>,
    /// `None` once it is released.
    granted: Cell<Option<CallGrants>>,
    is_evicted: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Unfinished {
    /// Adds a reservation, the only one. If the call was evicted meanwhile, the reservation is dropped.
    pub(super) fn add(self: &Rc<Self>, reservation: ByteReservation) {
        if let Some((permit, _)) = self.granted.take() {
            let bytes = &self.calls.worker.unfinished.bytes;
            bytes.set(bytes.get() + reservation.bytes);
            self.bytes.set(reservation.bytes);
            self.granted.set(Some((permit, Some(reservation))));
            enlist(&self.calls.worker.holding_bytes, self, HOLDERS_MAX);
        }
    }

    /// Takes what the call holds; `None` when it was evicted.
    pub(super) fn release(&self) -> Option<CallGrants> {
        let granted = self.granted.take()?;
        let unfinished = &self.calls.worker.unfinished;
        let count = &unfinished.calls[self.kind as usize];
        count.set(count.get() - 1);
        unfinished.bytes.set(unfinished.bytes.get() - self.bytes.take());
        Some(granted)
    }

    /// Whether the call was evicted. `waker` is woken when that happens later.
    pub(super) fn is_evicted(&self, waker: &Waker) -> bool {
        self.waker.set(Some(waker.clone()));
        self.is_evicted.get()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        drop(self.release());
    }
}

/// Appends a call to a list, and drops entries of calls that are gone: the oldest ones, and all once there are twice as many
/// entries as calls can be.
fn enlist(list: &RefCell<VecDeque<Weak<Unfinished>>>, unfinished: &Rc<Unfinished>, calls_max: usize) {
    let mut list = list.borrow_mut();
    while list.front().is_some_and(|oldest| oldest.strong_count() == 0) {
        list.pop_front();
    }
    if list.len() >= 2 * calls_max {
        list.retain(|unfinished| unfinished.strong_count() > 0);
    }
    list.push_back(Rc::downgrade(unfinished));
}

/// A call before its first poll, refused or not.
pub(super) struct UnpolledCall(Rc<ConnectionCallLimits>);

impl Drop for UnpolledCall {
    fn drop(&mut self) {
        self.0.worker.unpolled.set(self.0.worker.unpolled.get() - 1);
    }
}

impl CallPermit {
    /// Whether the permit is kept until the answer is sent, because the answer may be large. A small answer takes no more
    /// than its stream.
    pub(super) fn outlasts_answer(&self) -> bool {
        !matches!(self.kind, Kind::Decision | Kind::Check)
    }
}

/// A call's permit. Dropping it gives it back.
pub(super) struct CallPermit {
    calls: Rc<ConnectionCallLimits>,
    kind: Kind,
    /// Whether the request is complete, so that the call counts as use of its connection.
    is_busy: bool,
}

impl CallPermit {
    /// Records that the request is complete.
    pub(super) fn begin(&mut self) {
        self.is_busy = true;
        self.calls.usage.begin();
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        if self.is_busy {
            self.calls.usage.end();
        }
        for used in [&self.calls.worker.used, &self.calls.used] {
            let count = &used.calls[self.kind as usize];
            count.set(count.get() - 1);
        }
    }
}

/// Reserved bytes. Dropping it gives them back.
pub(super) struct ByteReservation {
    calls: Rc<ConnectionCallLimits>,
    bytes: usize,
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        for used in [&self.calls.worker.used.bytes, &self.calls.used.bytes] {
            used.set(used.get() - self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; Kind::COUNT] = [Kind::Decision, Kind::Large, Kind::Stream, Kind::Check, Kind::Watch, Kind::Other];

    fn all_of(connection: &Rc<ConnectionCallLimits>, kind: Kind) -> Vec<CallPermit> {
        std::iter::from_fn(|| connection.permit(kind)).collect()
    }

    #[test]
    fn connections_that_take_all_they_can_leave_permits_for_one_that_holds_none() {
        for kind in KINDS {
            for hogs in [1, 2, 7, 32, 100] {
                let calls = CallLimits::new(Arc::default());
                let hogs: Vec<_> = (0..hogs).map(|_| calls.connection(Arc::default())).collect();
                let mut taken = Vec::new();
                // Each takes one in turn, until none gets more.
                while let before = taken.len()
                    && {
                        taken.extend(hogs.iter().filter_map(|hog| hog.permit(kind)));
                        taken.len() > before
                    }
                {}
                assert!(taken.len() <= kind.calls_max());
                let newcomer = calls.connection(Arc::default());
                let left = all_of(&newcomer, kind);
                assert!(!left.is_empty(), "{kind:?}: {} of {} are taken", taken.len(), kind.calls_max());
                // A connection that is alone may have as many streams as a connection may open, of the kinds with a high
                // limit.
                assert!(hogs.len() > 1 || taken.len() >= kind.calls_max().min(512) / 4, "{kind:?}: {}", taken.len());
                drop((left, taken));
                assert!(calls.0.used.calls.iter().all(|calls| calls.get() == 0));
            }
        }
    }

    #[test]
    fn each_kind_has_permits_of_its_own_and_refused_calls_are_counted() {
        let calls = CallLimits::new(Arc::default());
        let connections: Vec<_> = (0..10_000).map(|_| calls.connection(Arc::default())).collect();
        let taken: Vec<_> = connections.iter().filter_map(|connection| connection.permit(Kind::Decision)).collect();
        assert_eq!(taken.len(), CALLS_MAX);
        assert_eq!(calls.0.refused.load(Ordering::Relaxed), 10_000 - CALLS_MAX as u64);
        assert!(KINDS[1..].iter().all(|kind| connections[0].permit(*kind).is_some()));
    }

    #[test]
    fn calls_that_wait_for_their_request_are_evicted_the_oldest_first() {
        for kind in [Kind::Decision, Kind::Large, Kind::Check, Kind::Watch] {
            let calls = CallLimits::new(Arc::default());
            let hogs: Vec<_> = (0..500).map(|_| calls.connection(Arc::default())).collect();
            // Each connection takes all it can.
            let unfinished: Vec<_> =
                hogs.iter().flat_map(|hog| (0..256).filter_map(|_| Some(hog.wait(hog.permit(kind)?, None)))).collect();
            assert!(unfinished.len() >= kind.calls_max(), "{kind:?}: {}", unfinished.len());
            let newcomer = calls.connection(Arc::default());
            let permits: Vec<_> = (0..kind.calls_max() / 3).filter_map(|_| newcomer.permit(kind)).collect();
            assert_eq!(permits.len(), kind.calls_max() / 3, "{kind:?}");
            let left = unfinished.iter().position(|call| !call.is_evicted.get()).unwrap();
            assert!(unfinished[left..].iter().all(|call| !call.is_evicted.get()) && left >= permits.len());
            drop((permits, unfinished));
            for used in [&calls.0.used, &calls.0.unfinished] {
                assert!(used.calls.iter().all(|calls| calls.get() == 0));
            }
        }
    }

    #[test]
    fn bytes_of_incomplete_messages_are_given_to_other_calls() {
        let calls = CallLimits::new(Arc::default());
        let hogs: Vec<_> = (0..100).map(|_| calls.connection(Arc::default())).collect();
        let begin = |hog: &Rc<ConnectionCallLimits>| Some(hog.wait(hog.permit(Kind::Large)?, Some(hog.reserve(1 << 20)?)));
        let unfinished: Vec<_> = hogs.iter().filter_map(begin).collect();
        assert_eq!(unfinished.iter().filter(|call| !call.is_evicted.get()).count(), LARGE_BYTES_MAX >> 20);
        let newcomer = calls.connection(Arc::default());
        let whole: Vec<_> = (0..4).filter_map(|_| newcomer.reserve(1 << 20)).collect();
        assert_eq!(whole.len(), 4);
        drop((whole, unfinished));
        assert_eq!((calls.0.used.bytes.get(), calls.0.unfinished.bytes.get()), (0, 0));
    }

    #[test]
    fn bytes_are_taken_from_calls_of_any_kind_and_only_from_calls_that_hold_some() {
        let calls = CallLimits::new(Arc::default());
        let hogs = [calls.connection(Arc::default()), calls.connection(Arc::default())];
        let early = hogs[0].wait(hogs[0].permit(Kind::Large).unwrap(), None);
        let begin = |hog: &Rc<ConnectionCallLimits>| hog.wait(hog.permit(Kind::Decision).unwrap(), hog.reserve(1 << 20));
        let unfinished: Vec<_> = (0..8).flat_map(|_| hogs.iter().map(begin)).collect();
        assert_eq!(calls.0.used.bytes.get(), LARGE_BYTES_MAX);
        let evicted = || unfinished.iter().filter(|call| call.is_evicted.get()).count();
        let (newcomer, before) = (calls.connection(Arc::default()), evicted());
        let taken = newcomer.reserve(4 << 10);
        assert!(taken.is_some() && evicted() == before + 1 && !early.is_evicted.get());
        // A call gets the bytes for its message from others, although none of its kind has waited longer.
        early.add(hogs[0].reserve(4 << 10).unwrap());
        assert!(!early.is_evicted.get());
        drop((taken, early, unfinished));
        assert_eq!((calls.0.used.bytes.get(), calls.0.unfinished.bytes.get()), (0, 0));
    }

    #[test]
    fn calls_that_came_and_went_are_forgotten() {
        let calls = CallLimits::new(Arc::default());
        let connection = calls.connection(Arc::default());
        let begin = || connection.wait(connection.permit(Kind::Large).unwrap(), connection.reserve(4 << 10));
        let listed = || [&calls.0.waiting[Kind::Large as usize], &calls.0.holding_bytes].map(|list| list.borrow().len());
        // One that stays is the oldest in both lists, so those behind it are forgotten only when a list is long.
        let stays = begin();
        for _ in 0..2 * HOLDERS_MAX + LARGE_CALLS_MAX {
            drop(begin());
        }
        assert!(listed()[0] <= 2 * LARGE_CALLS_MAX && listed()[1] <= 2 * HOLDERS_MAX);
        assert!(!stays.is_evicted.get());
        drop(stays);
        drop(begin());
        assert_eq!(listed(), [1, 1]);
    }

    #[test]
    fn large_requests_share_bytes_and_large_answers_leave_less_to_later_requests() {
        let calls = CallLimits::new(Arc::default());
        let (one, other) = (calls.connection(Arc::default()), calls.connection(Arc::default()));
        assert!(one.reserve(LARGE_BYTES_MAX + 1).is_none());
        let reservations: Vec<_> = std::iter::from_fn(|| one.reserve(1 << 20)).collect();
        assert_eq!(reservations.len(), 5);
        assert!(other.reserve(LARGE_BYTES_MAX / 2).is_some());
        let answer = other.reserve_unchecked(2 * LARGE_BYTES_MAX);
        assert!(calls.connection(Arc::default()).reserve(1).is_none());
        drop(answer);
        assert!(calls.connection(Arc::default()).reserve(LARGE_BYTES_MAX - (5 << 20)).is_some());
        drop(reservations);
        assert_eq!((calls.0.used.bytes.get(), one.used.bytes.get(), other.used.bytes.get()), (0, 0, 0));
    }
}
