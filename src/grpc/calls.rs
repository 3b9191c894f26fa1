//! How many calls a worker holds, and the seat that each has among them from its headers to the end of its answer.
//!
//! A call that waits for a store, or for the rest of its own request, or for a peer that does not read, takes memory. So
//! there is a bound for each kind of call, and what comes beyond it is refused at once, whatever store there is. And the more
//! seats are taken, the fewer of them one connection may have: see [`may_take`]. So connections that hold all they can
//! leave seats to those that hold few. A call whose request is not there yet keeps its seat only until somebody else needs
//! it: the one that has waited longest gives way.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use super::admission::Usage;

/// Most calls for one decision that a worker holds at once. Each takes some 4 KiB, so these take 32 MiB. Twice what may wait
/// for Redis, which answers within `store.deadline`: 8,192 of 25 ms each are 300,000 a second.
const CALLS_MAX: usize = 8192;
/// The same of calls whose request or answer may be large: batches, and the list of plans. 128 batches of a millisecond
/// each, of 100 requests, are 12 million decisions a second.
const LARGE_CALLS_MAX: usize = 128;
/// The same of streams of decisions. Each may take 64 KiB unread, as much under way, and 32 KiB unsent: 160 MiB at worst.
const STREAM_CALLS_MAX: usize = 1024;
/// The same of questions whether this server is well. They share seats with nothing else, lest whoever asks takes this
/// process for dead and restarts it.
const CHECKS_MAX: usize = 1024;
/// The same of all others: who watches health, reads descriptors, or calls what is not there.
const OTHER_CALLS_MAX: usize = 256;
/// Most bytes that large requests and answers may take in all: sixteen of the largest.
const LARGE_BYTES_MAX: usize = 16 << 20;
/// A connection takes no more once it has a part of what is free, one in so many. Its first is always granted.
const SHARE: usize = 2;
/// Most calls that have been read and had no turn yet, give or take one turn of reading: whoever reads on regardless makes
/// memory of whatever all connections send at once.
const FRESH_MAX: usize = 1024;

/// What a call is, by what it may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One decision.
    Decision,
    /// Its request or its answer may be large.
    Large,
    /// Decisions for as long as the client likes.
    Stream,
    /// Whether this server is well.
    Check,
    /// Anything else.
    Other,
}

impl Kind {
    const COUNT: usize = 5;

    fn seats(self) -> usize {
        match self {
            Self::Decision => CALLS_MAX,
            Self::Large => LARGE_CALLS_MAX,
            Self::Stream => STREAM_CALLS_MAX,
            Self::Check => CHECKS_MAX,
            Self::Other => OTHER_CALLS_MAX,
        }
    }
}

/// Whether somebody who holds `mine` may take `wanted` more of what is free. With `n` who take all they can, each ends at
/// one part in `n + SHARE`, and `SHARE` such parts are left for others.
fn may_take(free: usize, mine: usize, wanted: usize) -> bool {
    wanted <= free && (mine == 0 || (mine + wanted) * SHARE <= free)
}

/// What is taken, of a worker or of one of its connections.
#[derive(Default)]
struct Taken {
    seats: [Cell<usize>; Kind::COUNT],
    bytes: Cell<usize>,
}

/// The calls of a worker.
#[derive(Clone)]
pub(super) struct Calls(Rc<Worker>);

struct Worker {
    taken: Taken,
    /// What of it calls hold that wait for their request.
    unfinished: Taken,
    /// Those calls by kind, the oldest first, and some that wait no more.
    waiting: [RefCell<VecDeque<Weak<Unfinished>>>; Kind::COUNT],
    /// Calls that were read and have not had their first turn.
    fresh: Cell<usize>,
    refused: Arc<AtomicU64>,
}

impl Worker {
    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the call of this kind that has waited longest give way; whether there was one.
    fn evict(&self, kind: Kind) -> bool {
        let waiting = &self.waiting[kind as usize];
        loop {
            let Some(oldest) = waiting.borrow_mut().pop_front() else { return false };
            let Some(oldest) = oldest.upgrade() else { continue };
            if let Some(granted) = oldest.release() {
                drop(granted);
                oldest.is_evicted.set(true);
                self.refuse();
                oldest.waker.take().into_iter().for_each(Waker::wake);
                return true;
            }
        }
    }
}

impl Calls {
    /// None yet; `refused` counts those that find no seat.
    pub(super) fn new(refused: Arc<AtomicU64>) -> Self {
        Self(Rc::new(Worker {
            taken: Taken::default(),
            unfinished: Taken::default(),
            waiting: Default::default(),
            fresh: Cell::default(),
            refused,
        }))
    }

    /// Whether so many were read that no more should be until these had their turn.
    pub(super) fn are_enough(&self) -> bool {
        self.0.fresh.get() >= FRESH_MAX
    }

    /// For one more connection.
    pub(super) fn connection(&self, usage: Arc<Usage>) -> Rc<ConnectionCalls> {
        Rc::new(ConnectionCalls {
            worker: self.0.clone(),
            usage,
            taken: Taken::default(),
            sending: Cell::new(Sending::Untouched),
        })
    }
}

/// The calls of one connection.
pub(super) struct ConnectionCalls {
    worker: Rc<Worker>,
    taken: Taken,
    usage: Arc<Usage>,
    /// Of the call whose task has its turn.
    sending: Cell<Sending>,
}

/// What became of an answer in one turn of its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    /// It was not looked at.
    Untouched,
    /// There was nothing to send.
    Idle,
    /// A part of it was given away to be sent.
    Part,
    /// A message was given away to be sent, one of any number.
    Message,
}

impl ConnectionCalls {
    /// Notes a call that was read.
    pub(super) fn fresh(self: &Rc<Self>) -> Fresh {
        self.worker.fresh.set(self.worker.fresh.get() + 1);
        Fresh(self.clone())
    }

    /// A seat for a call of this kind, if there is one.
    pub(super) fn seat(self: &Rc<Self>, kind: Kind) -> Option<CallSeat> {
        let (all, mine) = (&self.worker.taken.seats[kind as usize], &self.taken.seats[kind as usize]);
        let free = kind.seats().saturating_sub(all.get());
        let unfinished = self.worker.unfinished.seats[kind as usize].get();
        if !may_take(free + unfinished, mine.get(), 1) || (free == 0 && !self.worker.evict(kind)) {
            self.worker.refuse();
            return None;
        }
        all.set(all.get() + 1);
        mine.set(mine.get() + 1);
        Some(CallSeat { calls: self.clone(), kind, is_busy: false })
    }

    /// Room for so many bytes of a large request, if there is some.
    pub(super) fn room(self: &Rc<Self>, bytes: usize) -> Option<Room> {
        let free = || LARGE_BYTES_MAX.saturating_sub(self.worker.taken.bytes.get());
        let is_granted = may_take(free() + self.worker.unfinished.bytes.get(), self.taken.bytes.get(), bytes);
        while is_granted && free() < bytes && self.worker.evict(Kind::Large) {}
        if is_granted && free() >= bytes {
            return Some(self.room_anyhow(bytes));
        }
        self.worker.refuse();
        None
    }

    /// Notes that a call waits for its request, and keeps what was granted to it until it is there, or somebody needs it more.
    pub(super) fn wait(self: &Rc<Self>, seat: CallSeat, room: Option<Room>) -> Rc<Unfinished> {
        let kind = seat.kind;
        let unfinished = Rc::new(Unfinished {
            calls: self.clone(),
            kind,
            bytes: Cell::new(0),
            granted: Cell::new(Some((seat, None))),
            is_evicted: Cell::new(false),
            waker: Cell::new(None),
        });
        let seats = &self.worker.unfinished.seats[kind as usize];
        seats.set(seats.get() + 1);
        room.into_iter().for_each(|room| unfinished.add(room));
        let mut waiting = self.worker.waiting[kind as usize].borrow_mut();
        if waiting.len() >= 2 * kind.seats() {
            waiting.retain(|unfinished| unfinished.strong_count() > 0);
        }
        waiting.push_back(Rc::downgrade(&unfinished));
        unfinished
    }

    /// Room for so many bytes of a large answer, which are there already: requests that come later pay for it.
    pub(super) fn room_anyhow(self: &Rc<Self>, bytes: usize) -> Room {
        for taken in [&self.worker.taken.bytes, &self.taken.bytes] {
            taken.set(taken.get() + bytes);
        }
        Room { calls: self.clone(), bytes }
    }

    /// Notes what became of the answer of the call that has its turn.
    pub(super) fn note(&self, sending: Sending) {
        self.sending.set(sending);
    }

    /// What was noted since this was asked last.
    pub(super) fn noted(&self) -> Sending {
        self.sending.replace(Sending::Untouched)
    }
}

/// What was granted to a call.
pub(super) type Granted = (CallSeat, Option<Room>);

/// A call that waits for its request, with what was granted to it.
pub(super) struct Unfinished {
    calls: Rc<ConnectionCalls>,
    kind: Kind,
    /// Of its room.
    bytes: Cell<usize>,
    /// `None` once it is released.
    granted: Cell<Option<Granted>>,
    is_evicted: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Unfinished {
    /// Grants room as well; it is given back at once when the call had to give way meanwhile.
    pub(super) fn add(&self, room: Room) {
        if let Some((seat, _)) = self.granted.take() {
            let bytes = &self.calls.worker.unfinished.bytes;
            bytes.set(bytes.get() + room.bytes);
            self.bytes.set(room.bytes);
            self.granted.set(Some((seat, Some(room))));
        }
    }

    /// What was granted; `None` when the call had to give way.
    pub(super) fn release(&self) -> Option<Granted> {
        let granted = self.granted.take()?;
        let unfinished = &self.calls.worker.unfinished;
        let seats = &unfinished.seats[self.kind as usize];
        seats.set(seats.get() - 1);
        unfinished.bytes.set(unfinished.bytes.get() - self.bytes.take());
        Some(granted)
    }

    /// Whether the call had to give way; whoever asks is woken when it has to.
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

/// A call before its first turn, refused or not.
pub(super) struct Fresh(Rc<ConnectionCalls>);

impl Drop for Fresh {
    fn drop(&mut self) {
        self.0.worker.fresh.set(self.0.worker.fresh.get() - 1);
    }
}

impl CallSeat {
    /// Whether its answer takes so much that the seat is kept until that is sent. A small one takes no more than its stream.
    pub(super) fn outlasts_answer(&self) -> bool {
        !matches!(self.kind, Kind::Decision | Kind::Check)
    }
}

/// A call's seat, given back when dropped.
pub(super) struct CallSeat {
    calls: Rc<ConnectionCalls>,
    kind: Kind,
    /// Whether there is more to do than to wait for the request.
    is_busy: bool,
}

impl CallSeat {
    /// Notes that the request is there.
    pub(super) fn begin(&mut self) {
        self.is_busy = true;
        self.calls.usage.begin();
    }
}

impl Drop for CallSeat {
    fn drop(&mut self) {
        if self.is_busy {
            self.calls.usage.end();
        }
        for taken in [&self.calls.worker.taken, &self.calls.taken] {
            let seats = &taken.seats[self.kind as usize];
            seats.set(seats.get() - 1);
        }
    }
}

/// Room for bytes, given back when dropped.
pub(super) struct Room {
    calls: Rc<ConnectionCalls>,
    bytes: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        for taken in [&self.calls.worker.taken.bytes, &self.calls.taken.bytes] {
            taken.set(taken.get() - self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; Kind::COUNT] = [Kind::Decision, Kind::Large, Kind::Stream, Kind::Check, Kind::Other];

    fn all_of(connection: &Rc<ConnectionCalls>, kind: Kind) -> Vec<CallSeat> {
        std::iter::from_fn(|| connection.seat(kind)).collect()
    }

    #[test]
    fn no_number_of_connections_takes_the_last_seat_from_one_that_holds_none() {
        for kind in KINDS {
            for hogs in [1, 2, 7, 32, 100] {
                let calls = Calls::new(Arc::default());
                let hogs: Vec<_> = (0..hogs).map(|_| calls.connection(Arc::default())).collect();
                let mut taken = Vec::new();
                // Each in turn, again and again, until nobody gets more.
                while let before = taken.len()
                    && {
                        taken.extend(hogs.iter().filter_map(|hog| hog.seat(kind)));
                        taken.len() > before
                    }
                {}
                assert!(taken.len() <= kind.seats());
                let newcomer = calls.connection(Arc::default());
                let left = all_of(&newcomer, kind);
                assert!(!left.is_empty(), "{kind:?}: {} of {} are taken", taken.len(), kind.seats());
                // And one that is alone may have as many streams as a connection may open, of the kinds that are many.
                assert!(hogs.len() > 1 || taken.len() >= kind.seats().min(512) / 4, "{kind:?}: {}", taken.len());
                drop((left, taken));
                assert!(calls.0.taken.seats.iter().all(|seats| seats.get() == 0));
            }
        }
    }

    #[test]
    fn no_kind_takes_seats_of_another_and_what_finds_none_is_counted() {
        let calls = Calls::new(Arc::default());
        let connections: Vec<_> = (0..10_000).map(|_| calls.connection(Arc::default())).collect();
        let taken: Vec<_> = connections.iter().filter_map(|connection| connection.seat(Kind::Decision)).collect();
        assert_eq!(taken.len(), CALLS_MAX);
        assert_eq!(calls.0.refused.load(Ordering::Relaxed), 10_000 - CALLS_MAX as u64);
        assert!(KINDS[1..].iter().all(|kind| connections[0].seat(*kind).is_some()));
    }

    #[test]
    fn calls_that_wait_for_their_request_give_way_to_others_the_oldest_first() {
        for kind in [Kind::Decision, Kind::Large, Kind::Check] {
            let calls = Calls::new(Arc::default());
            let hogs: Vec<_> = (0..500).map(|_| calls.connection(Arc::default())).collect();
            // One after another takes all it can.
            let unfinished: Vec<_> =
                hogs.iter().flat_map(|hog| (0..256).filter_map(|_| Some(hog.wait(hog.seat(kind)?, None)))).collect();
            assert!(unfinished.len() >= kind.seats(), "{kind:?}: {}", unfinished.len());
            let newcomer = calls.connection(Arc::default());
            let seats: Vec<_> = (0..kind.seats() / 3).filter_map(|_| newcomer.seat(kind)).collect();
            assert_eq!(seats.len(), kind.seats() / 3, "{kind:?}");
            let left = unfinished.iter().position(|call| !call.is_evicted.get()).unwrap();
            assert!(unfinished[left..].iter().all(|call| !call.is_evicted.get()) && left >= seats.len());
            drop((seats, unfinished));
            for taken in [&calls.0.taken, &calls.0.unfinished] {
                assert!(taken.seats.iter().all(|seats| seats.get() == 0));
            }
        }
    }

    #[test]
    fn room_of_messages_that_are_not_whole_is_given_to_others() {
        let calls = Calls::new(Arc::default());
        let hogs: Vec<_> = (0..100).map(|_| calls.connection(Arc::default())).collect();
        let begin = |hog: &Rc<ConnectionCalls>| Some(hog.wait(hog.seat(Kind::Large)?, Some(hog.room(1 << 20)?)));
        let unfinished: Vec<_> = hogs.iter().filter_map(begin).collect();
        assert_eq!(unfinished.iter().filter(|call| !call.is_evicted.get()).count(), LARGE_BYTES_MAX >> 20);
        let newcomer = calls.connection(Arc::default());
        let whole: Vec<_> = (0..4).filter_map(|_| newcomer.room(1 << 20)).collect();
        assert_eq!(whole.len(), 4);
        drop((whole, unfinished));
        assert_eq!((calls.0.taken.bytes.get(), calls.0.unfinished.bytes.get()), (0, 0));
    }

    #[test]
    fn calls_that_came_and_went_are_forgotten() {
        let calls = Calls::new(Arc::default());
        let connection = calls.connection(Arc::default());
        for _ in 0..10 * LARGE_CALLS_MAX {
            drop(connection.wait(connection.seat(Kind::Large).unwrap(), None));
        }
        assert!(calls.0.waiting[Kind::Large as usize].borrow().len() <= 2 * LARGE_CALLS_MAX);
    }

    #[test]
    fn large_requests_share_bytes_and_answers_are_paid_for_by_those_that_come_later() {
        let calls = Calls::new(Arc::default());
        let (one, other) = (calls.connection(Arc::default()), calls.connection(Arc::default()));
        assert!(one.room(LARGE_BYTES_MAX + 1).is_none());
        let rooms: Vec<_> = std::iter::from_fn(|| one.room(1 << 20)).collect();
        assert_eq!(rooms.len(), 5);
        assert!(other.room(LARGE_BYTES_MAX / 2).is_some());
        let answer = other.room_anyhow(2 * LARGE_BYTES_MAX);
        assert!(calls.connection(Arc::default()).room(1).is_none());
        drop(answer);
        assert!(calls.connection(Arc::default()).room(LARGE_BYTES_MAX - (5 << 20)).is_some());
        drop(rooms);
        assert_eq!((calls.0.taken.bytes.get(), one.taken.bytes.get(), other.taken.bytes.get()), (0, 0, 0));
    }
}
