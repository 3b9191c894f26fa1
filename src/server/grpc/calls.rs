//! Limits how many calls a worker holds. Each call has a permit, from its headers to the end of its answer.
//!
//! A call takes memory while it waits for a store, for the rest of its request, or for a peer that does not read. So each
//! kind of call has a limit, and calls beyond it are refused at once, whichever store is used. What calls take is counted in the
//! account of their connection; see [`crate::transport::account`].
//!
//! The more permits are in use, the fewer one connection may have; see [`may_take`]. So connections that use all they can
//! leave permits to those that use few.
//!
//! A call whose request is incomplete keeps its permit only until another call of its kind needs it, and its bytes until any call
//! needs them. The call that has waited longest, or has held bytes longest, is evicted first. One of a connection that is light beside
//! the one that needs room is spared.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use super::receive::SMALL_BYTES_MAX;
use crate::transport::Usage;
use crate::transport::account::{Account, Charge, KEPT_MAX, WorkerAccount, may_take};
use crate::transport::turns::WorkerTurns;

/// Maximum number of calls for one decision that a worker holds at once. It is twice what may wait for Redis, which answers
/// within `store.deadline`: 8,192 calls of 25 ms each are 300,000 a second.
const CALLS_MAX: usize = 8192;
/// The same for calls with a large request or answer: batches, and the list of plans. 128 batches of a millisecond each, of
/// 100 requests, are 12 million decisions a second.
const LARGE_CALLS_MAX: usize = 128;
/// The same for streams of decisions.
const STREAM_CALLS_MAX: usize = 1024;
/// The same for health checks. They share permits with nothing else. If a probe were refused because of other calls, an
/// orchestrator could take this process for dead and restart it.
const CHECKS_MAX: usize = 1024;
/// The same for health watches: one for each connection that a worker takes, since clients that balance by health hold one on
/// each.
const WATCHES_MAX: usize = 4096;
/// The same for all other calls: reflection, and unknown methods.
const OTHER_CALLS_MAX: usize = 256;
/// What a call takes beside its messages, in bytes: its task, its few header fields, and what HTTP/2 keeps of it.
const CALL_BYTES: usize = 4 << 10;
/// The same for a stream of decisions, with 64 requests in progress and their answers.
const STREAM_CALL_BYTES: usize = 24 << 10;
/// Maximum number of calls that hold reserved bytes: smaller requests reserve none.
const HOLDERS_MAX: usize = KEPT_MAX / SMALL_BYTES_MAX;
/// Maximum number of calls that were read and not yet polled, give or take one turn of reading. Without the limit, all that
/// clients send at once would become calls in memory.
const UNPOLLED_MAX: usize = 1024;
/// Maximum number of calls that are spared because their connections are light beside the one that needs room. If more wait for
/// their requests, these are hardly the calls of somebody who is about to send the rest.
const SPARED_MAX: usize = 64;

/// Kinds of calls, by the resources that they may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
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

impl CallKind {
    const COUNT: usize = 6;
    /// Those that need room in the account. Health has its permits, and room, in any case.
    const NEED_ROOM: [Self; 4] = [Self::Decision, Self::Large, Self::Stream, Self::Other];

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

    /// What such a call takes beside its messages, in bytes.
    fn bytes(self) -> usize {
        match self {
            Self::Stream => STREAM_CALL_BYTES,
            Self::Decision | Self::Large | Self::Check | Self::Watch | Self::Other => CALL_BYTES,
        }
    }
}

/// What calls hold, of a worker or of one of its connections.
#[derive(Default)]
struct Occupancy {
    calls: [Cell<usize>; CallKind::COUNT],
    /// Reserved bytes, where they are counted here at all.
    bytes: Cell<usize>,
}

/// The limits of a worker. Clones share them.
#[derive(Clone)]
pub(super) struct CallLimits(Rc<WorkerCalls>);

struct WorkerCalls {
    used: Occupancy,
    /// The part of `used` that is held by calls whose request is incomplete.
    unfinished: Occupancy,
    account: WorkerAccount,
    /// Those calls by kind, the oldest first. Contains entries of calls that no longer wait.
    waiting: [RefCell<VecDeque<Weak<Unfinished>>>; CallKind::COUNT],
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

    /// Evicts the oldest of `waiting`, but spares those of connections that are light beside the one that asks, unless they are many.
    /// Returns whether there was one.
    fn evict(&self, waiting: &RefCell<VecDeque<Weak<Unfinished>>>, asking: &Account) -> bool {
        let Some(evicted) = next_to_evict(&mut waiting.borrow_mut(), asking) else {
            return false;
        };
        drop(evicted.release());
        evicted.is_evicted.set(true);
        self.count_refused();
        evicted.waker.take().into_iter().for_each(Waker::wake);
        true
    }
}

/// Removes the next call to evict from the list, and those before it that no longer wait.
fn next_to_evict(
    waiting: &mut VecDeque<Weak<Unfinished>>,
    asking: &Account,
) -> Option<Rc<Unfinished>> {
    let mut spared = 0;
    while spared < SPARED_MAX {
        match waiting.get(spared)?.upgrade() {
            Some(call) if call.is_waiting() => {
                if !call.calls.account.is_light_beside(asking) {
                    waiting.remove(spared);
                    return Some(call);
                }
                spared += 1;
            }
            _ => drop(waiting.remove(spared)),
        }
    }
    waiting.pop_front()?.upgrade()
}

impl CallLimits {
    /// Limits without any call. `refused` counts the calls that get no permit.
    pub(super) fn new(refused: Arc<AtomicU64>, turns: WorkerTurns) -> Self {
        Self(Rc::new(WorkerCalls {
            used: Occupancy::default(),
            unfinished: Occupancy::default(),
            account: WorkerAccount::new(turns),
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
        let account = self.0.account.open();
        Rc::new(ConnectionCallLimits {
            worker: self.0.clone(),
            usage,
            used: Occupancy::default(),
            account,
        })
    }
}

/// The limits of one connection.
pub(super) struct ConnectionCallLimits {
    worker: Rc<WorkerCalls>,
    used: Occupancy,
    usage: Arc<Usage>,
    account: Arc<Account>,
}

impl ConnectionCallLimits {
    /// Counts what is kept for the connection.
    pub(super) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Counts a call that was read, until the result is dropped.
    pub(super) fn unpolled(self: &Rc<Self>) -> UnpolledCall {
        self.worker.unpolled.set(self.worker.unpolled.get() + 1);
        UnpolledCall(self.clone())
    }

    /// Returns a permit for a call of this kind, if the limits allow it.
    pub(super) fn permit(self: &Rc<Self>, kind: CallKind) -> Option<CallPermit> {
        let (all, mine) = (
            &self.worker.used.calls[kind as usize],
            &self.used.calls[kind as usize],
        );
        let free = kind.calls_max().saturating_sub(all.get());
        let unfinished = self.worker.unfinished.calls[kind as usize].get();
        let may_have =
            mine.get() == 0 && free + unfinished > 0 || may_take(free + unfinished, mine.get(), 1);
        let must_evict = free == 0
            || CallKind::NEED_ROOM.contains(&kind) && !self.account.has_room_for_call(kind.bytes());
        let evict = || {
            self.worker
                .evict(&self.worker.waiting[kind as usize], &self.account)
        };
        if !may_have || (must_evict && !evict()) {
            self.worker.count_refused();
            return None;
        }
        all.set(all.get() + 1);
        mine.set(mine.get() + 1);
        self.account.keep(kind.bytes());
        Some(CallPermit {
            calls: self.clone(),
            kind,
            is_busy: false,
        })
    }

    /// Waits until there is room for a large request, and counts it. Requests that are incomplete make room, those first that
    /// have held bytes longest.
    pub(super) fn poll_reserve(&self, bytes: usize, context: &Context<'_>) -> Poll<Charge> {
        let (worker, unfinished) = (&self.worker, &self.worker.unfinished);
        let taken = |kind: CallKind| unfinished.calls[kind as usize].get() * kind.bytes();
        let evictable =
            unfinished.bytes.get() + CallKind::NEED_ROOM.into_iter().map(taken).sum::<usize>();
        let evict = || {
            worker.evict(&worker.holding_bytes, &self.account)
                || CallKind::NEED_ROOM
                    .iter()
                    .any(|kind| worker.evict(&worker.waiting[*kind as usize], &self.account))
        };
        self.account.poll_reserve(bytes, evictable, evict, context)
    }

    /// Records that a call waits for its request. It keeps its grants until the request is complete or the call is evicted.
    pub(super) fn wait(
        self: &Rc<Self>,
        permit: CallPermit,
        reservation: Option<Charge>,
    ) -> Rc<Unfinished> {
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
        reservation
            .into_iter()
            .for_each(|reservation| unfinished.add(reservation));
        enlist(
            &self.worker.waiting[kind as usize],
            &unfinished,
            kind.calls_max(),
        );
        unfinished
    }
}

/// What a call holds.
pub(super) type CallGrants = (CallPermit, Option<Charge>);

/// A call that waits for its request, and what it holds.
pub(super) struct Unfinished {
    calls: Rc<ConnectionCallLimits>,
    kind: CallKind,
    /// Bytes of its reservation.
    bytes: Cell<usize>,
    /// `None` once it is released.
    granted: Cell<Option<CallGrants>>,
    is_evicted: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Unfinished {
    /// Adds a reservation, the only one. If the call was evicted meanwhile, the reservation is dropped.
    pub(super) fn add(self: &Rc<Self>, reservation: Charge) {
        if let Some((permit, _)) = self.granted.take() {
            let bytes = &self.calls.worker.unfinished.bytes;
            bytes.set(bytes.get() + reservation.bytes());
            self.bytes.set(reservation.bytes());
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
        unfinished
            .bytes
            .set(unfinished.bytes.get() - self.bytes.take());
        Some(granted)
    }

    fn is_waiting(&self) -> bool {
        let granted = self.granted.take();
        let is_waiting = granted.is_some();
        self.granted.set(granted);
        is_waiting
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
fn enlist(
    list: &RefCell<VecDeque<Weak<Unfinished>>>,
    unfinished: &Rc<Unfinished>,
    calls_max: usize,
) {
    let mut list = list.borrow_mut();
    while list
        .front()
        .is_some_and(|oldest| oldest.strong_count() == 0)
    {
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

/// A call's permit. Dropping it gives it back.
pub(super) struct CallPermit {
    calls: Rc<ConnectionCallLimits>,
    kind: CallKind,
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
        self.calls.account.release(self.kind.bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::account::UNRESERVED_BYTES;

    const KINDS: [CallKind; CallKind::COUNT] = [
        CallKind::Decision,
        CallKind::Large,
        CallKind::Stream,
        CallKind::Check,
        CallKind::Watch,
        CallKind::Other,
    ];

    fn reserve(connection: &Rc<ConnectionCallLimits>, bytes: usize) -> Option<Charge> {
        match connection.poll_reserve(bytes, &Context::from_waker(Waker::noop())) {
            Poll::Ready(charge) => Some(charge),
            Poll::Pending => None,
        }
    }

    fn all_of(connection: &Rc<ConnectionCallLimits>, kind: CallKind) -> Vec<CallPermit> {
        std::iter::from_fn(|| connection.permit(kind)).collect()
    }

    #[test]
    fn connections_that_take_all_they_can_leave_permits_for_one_that_holds_none() {
        for kind in KINDS {
            for hogs in [1, 2, 7, 32, 100] {
                let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
                let hogs: Vec<_> = (0..hogs)
                    .map(|_| calls.connection(Arc::default()))
                    .collect();
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
                assert!(
                    !left.is_empty(),
                    "{kind:?}: {} of {} are taken",
                    taken.len(),
                    kind.calls_max()
                );
                // A connection that is alone may have as many streams as a connection may open, of the kinds with a high
                // limit.
                assert!(
                    hogs.len() > 1 || taken.len() >= kind.calls_max().min(512) / 4,
                    "{kind:?}: {}",
                    taken.len()
                );
                drop((left, taken));
                assert!(
                    calls.0.used.calls.iter().all(|calls| calls.get() == 0)
                        && calls.0.account.kept() == 0
                );
            }
        }
    }

    #[test]
    fn each_kind_has_permits_of_its_own_and_refused_calls_are_counted() {
        let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
        let connections: Vec<_> = (0..10_000)
            .map(|_| calls.connection(Arc::default()))
            .collect();
        let taken: Vec<_> = connections
            .iter()
            .filter_map(|connection| connection.permit(CallKind::Decision))
            .collect();
        assert_eq!(taken.len(), CALLS_MAX);
        assert_eq!(
            calls.0.refused.load(Ordering::Relaxed),
            10_000 - CALLS_MAX as u64
        );
        assert!(
            KINDS[1..]
                .iter()
                .all(|kind| connections[0].permit(*kind).is_some())
        );
    }

    #[test]
    fn calls_that_wait_for_their_request_are_evicted_the_oldest_first() {
        for kind in [
            CallKind::Decision,
            CallKind::Large,
            CallKind::Check,
            CallKind::Watch,
        ] {
            let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
            let hogs: Vec<_> = (0..500).map(|_| calls.connection(Arc::default())).collect();
            // Each connection takes all it can.
            let unfinished: Vec<_> = hogs
                .iter()
                .flat_map(|hog| (0..256).filter_map(|_| Some(hog.wait(hog.permit(kind)?, None))))
                .collect();
            assert!(
                unfinished.len() >= kind.calls_max(),
                "{kind:?}: {}",
                unfinished.len()
            );
            let newcomer = calls.connection(Arc::default());
            let permits: Vec<_> = (0..kind.calls_max() / 3)
                .filter_map(|_| newcomer.permit(kind))
                .collect();
            assert_eq!(permits.len(), kind.calls_max() / 3, "{kind:?}");
            let evicted = unfinished.iter().filter(|call| call.is_evicted.get());
            assert!(evicted.count() >= permits.len(), "{kind:?}");
            // Of each connection, the oldest go.
            for of_one in unfinished.chunk_by(|a, b| Rc::ptr_eq(&a.calls, &b.calls)) {
                assert!(of_one.is_sorted_by_key(|call| !call.is_evicted.get()));
            }
            drop((permits, unfinished));
            for used in [&calls.0.used, &calls.0.unfinished] {
                assert!(used.calls.iter().all(|calls| calls.get() == 0));
            }
        }
    }

    #[test]
    fn a_call_of_a_light_connection_is_not_evicted_for_a_heavy_one() {
        let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
        let (polite, hog) = (
            calls.connection(Arc::default()),
            calls.connection(Arc::default()),
        );
        let waiting = polite.wait(polite.permit(CallKind::Decision).unwrap(), None);
        let answers = hog.account().charge(KEPT_MAX - CALL_BYTES);
        assert!(hog.permit(CallKind::Decision).is_none() && !waiting.is_evicted.get());
        drop(answers);
        let own = hog.wait(hog.permit(CallKind::Decision).unwrap(), None);
        let mut _answers = hog.account().charge(hog.account().free());
        let _permit = hog.permit(CallKind::Decision).unwrap();
        assert!(own.is_evicted.get() && !waiting.is_evicted.get());
        // If many wait, the oldest goes all the same.
        let many: Vec<_> = (1..SPARED_MAX)
            .map(|_| calls.connection(Arc::default()))
            .map(|light| light.wait(light.permit(CallKind::Decision).unwrap(), None))
            .collect();
        assert!(hog.permit(CallKind::Decision).is_some());
        assert!(waiting.is_evicted.get() && !many[0].is_evicted.get());
    }

    #[test]
    fn bytes_of_incomplete_messages_are_given_to_other_calls() {
        let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
        let hogs: Vec<_> = (0..100).map(|_| calls.connection(Arc::default())).collect();
        let begin = |hog: &Rc<ConnectionCallLimits>| {
            Some(hog.wait(hog.permit(CallKind::Large)?, Some(reserve(hog, 1 << 20)?)))
        };
        let unfinished: Vec<_> = hogs.iter().filter_map(begin).collect();
        // What their permits take leaves room for one less.
        assert_eq!(
            unfinished
                .iter()
                .filter(|call| !call.is_evicted.get())
                .count(),
            ((KEPT_MAX - UNRESERVED_BYTES) >> 20) - 1
        );
        let newcomer = calls.connection(Arc::default());
        let whole: Vec<_> = (0..4).filter_map(|_| reserve(&newcomer, 1 << 20)).collect();
        assert_eq!(whole.len(), 4);
        drop((whole, unfinished));
        assert_eq!(
            (calls.0.account.kept(), calls.0.unfinished.bytes.get()),
            (0, 0)
        );
    }

    #[test]
    fn bytes_are_taken_from_calls_of_any_kind_and_only_from_calls_that_hold_some() {
        let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
        let hogs = [
            calls.connection(Arc::default()),
            calls.connection(Arc::default()),
        ];
        let early = hogs[0].wait(hogs[0].permit(CallKind::Large).unwrap(), None);
        let begin = |hog: &Rc<ConnectionCallLimits>| {
            hog.wait(
                hog.permit(CallKind::Decision).unwrap(),
                reserve(hog, 1 << 20),
            )
        };
        let unfinished: Vec<_> = (0..32).flat_map(|_| hogs.iter().map(begin)).collect();
        let filler = hogs[0]
            .account()
            .charge(hogs[0].account().free() - UNRESERVED_BYTES);
        let evicted = || {
            unfinished
                .iter()
                .filter(|call| call.is_evicted.get())
                .count()
        };
        let (newcomer, before) = (calls.connection(Arc::default()), evicted());
        let taken = reserve(&newcomer, 1 << 20);
        assert!(taken.is_some() && evicted() == before + 1 && !early.is_evicted.get());
        // A call gets the bytes for its message from others, although none of its kind has waited longer.
        early.add(hogs[0].account().charge(4 << 10));
        assert!(!early.is_evicted.get());
        drop((taken, early, unfinished, filler));
        assert_eq!(
            (calls.0.account.kept(), calls.0.unfinished.bytes.get()),
            (0, 0)
        );
    }

    #[test]
    fn a_connection_that_keeps_little_gets_a_permit_though_others_keep_all_there_may_be() {
        let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
        let (hog, newcomer) = (
            calls.connection(Arc::default()),
            calls.connection(Arc::default()),
        );
        let all = hog.account().charge(hog.account().free());
        assert!(hog.permit(CallKind::Decision).is_none());
        let permits: Vec<_> = (0..8)
            .filter_map(|_| newcomer.permit(CallKind::Decision))
            .collect();
        assert_eq!(permits.len(), 8);
        drop((all, permits));
        assert_eq!(calls.0.account.kept(), 0);
    }

    #[test]
    fn calls_that_came_and_went_are_forgotten() {
        let calls = CallLimits::new(Arc::default(), WorkerTurns::default());
        let connection = calls.connection(Arc::default());
        let begin = || {
            connection.wait(
                connection.permit(CallKind::Large).unwrap(),
                reserve(&connection, 4 << 10),
            )
        };
        let listed = || {
            [
                &calls.0.waiting[CallKind::Large as usize],
                &calls.0.holding_bytes,
            ]
            .map(|list| list.borrow().len())
        };
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
}
