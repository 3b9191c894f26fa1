//! How many calls a worker holds, and the seat that each has among them from its headers to the end of its answer.
//!
//! A call that waits for a store, or for the rest of its own request, or for a peer that does not read, takes memory. So
//! there is a bound for each kind of call, and what comes beyond it is refused at once, whatever store there is. And the more
//! seats are taken, the fewer of them one connection may have: see [`may_take`]. So connections that hold all they can
//! leave seats to those that hold few.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
    /// Calls that were read and have not had their first turn.
    fresh: Cell<usize>,
    refused: Arc<AtomicU64>,
}

impl Calls {
    /// None yet; `refused` counts those that find no seat.
    pub(super) fn new(refused: Arc<AtomicU64>) -> Self {
        Self(Rc::new(Worker { taken: Taken::default(), fresh: Cell::default(), refused }))
    }

    /// Whether so many were read that no more should be until these had their turn.
    pub(super) fn are_enough(&self) -> bool {
        self.0.fresh.get() >= FRESH_MAX
    }

    /// For one more connection.
    pub(super) fn connection(&self) -> Rc<ConnectionCalls> {
        Rc::new(ConnectionCalls { worker: self.0.clone(), taken: Taken::default(), sending: Cell::new(Sending::Untouched) })
    }
}

/// The calls of one connection.
pub(super) struct ConnectionCalls {
    worker: Rc<Worker>,
    taken: Taken,
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
        if !may_take(kind.seats().saturating_sub(all.get()), mine.get(), 1) {
            self.worker.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        all.set(all.get() + 1);
        mine.set(mine.get() + 1);
        Some(CallSeat { calls: self.clone(), kind })
    }

    /// Room for so many bytes of a large request, if there is some.
    pub(super) fn room(self: &Rc<Self>, bytes: usize) -> Option<Room> {
        let free = LARGE_BYTES_MAX.saturating_sub(self.worker.taken.bytes.get());
        if may_take(free, self.taken.bytes.get(), bytes) {
            return Some(self.room_anyhow(bytes));
        }
        self.worker.refused.fetch_add(1, Ordering::Relaxed);
        None
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

/// A call before its first turn, refused or not.
pub(super) struct Fresh(Rc<ConnectionCalls>);

impl Drop for Fresh {
    fn drop(&mut self) {
        self.0.worker.fresh.set(self.0.worker.fresh.get() - 1);
    }
}

/// A call's seat, given back when dropped.
pub(super) struct CallSeat {
    calls: Rc<ConnectionCalls>,
    kind: Kind,
}

impl Drop for CallSeat {
    fn drop(&mut self) {
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
                let hogs: Vec<_> = (0..hogs).map(|_| calls.connection()).collect();
                let mut taken = Vec::new();
                // Each in turn, again and again, until nobody gets more.
                while let before = taken.len()
                    && {
                        taken.extend(hogs.iter().filter_map(|hog| hog.seat(kind)));
                        taken.len() > before
                    }
                {}
                assert!(taken.len() <= kind.seats());
                let newcomer = calls.connection();
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
        let connections: Vec<_> = (0..10_000).map(|_| calls.connection()).collect();
        let taken: Vec<_> = connections.iter().filter_map(|connection| connection.seat(Kind::Decision)).collect();
        assert_eq!(taken.len(), CALLS_MAX);
        assert_eq!(calls.0.refused.load(Ordering::Relaxed), 10_000 - CALLS_MAX as u64);
        assert!(KINDS[1..].iter().all(|kind| connections[0].seat(*kind).is_some()));
    }

    #[test]
    fn large_requests_share_bytes_and_answers_are_paid_for_by_those_that_come_later() {
        let calls = Calls::new(Arc::default());
        let (one, other) = (calls.connection(), calls.connection());
        assert!(one.room(LARGE_BYTES_MAX + 1).is_none());
        let rooms: Vec<_> = std::iter::from_fn(|| one.room(1 << 20)).collect();
        assert_eq!(rooms.len(), 5);
        assert!(other.room(LARGE_BYTES_MAX / 2).is_some());
        let answer = other.room_anyhow(2 * LARGE_BYTES_MAX);
        assert!(calls.connection().room(1).is_none());
        drop(answer);
        assert!(calls.connection().room(LARGE_BYTES_MAX - (5 << 20)).is_some());
        drop(rooms);
        assert_eq!((calls.0.taken.bytes.get(), one.taken.bytes.get(), other.taken.bytes.get()), (0, 0, 0));
    }
}
