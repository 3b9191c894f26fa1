//! How many calls a worker holds, and the seat that each has among them from its headers to the end of its answer.
//!
//! A call that waits for a store, or for the rest of its own request, or for a peer that does not read, takes memory. So
//! there is a bound, and what comes beyond it is refused at once, whatever store there is. A single connection cannot take
//! more than a small part of it, as its streams are bounded too.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most calls that a worker holds at once, a stream being one. Each takes some 4 KiB, so these take 32 MiB. Twice what
/// may wait for Redis, which answers within `store.deadline`: 8,192 of 25 ms each are 300,000 a second.
const CALLS_MAX: usize = 8192;
/// Health must be told while all seats are taken, lest whoever asks takes this process for dead and restarts it.
const RESERVED: usize = 1024;
/// Most calls that have been read and had no turn yet, give or take one turn of reading: whoever reads on regardless makes
/// memory of whatever all connections send at once.
const FRESH_MAX: usize = 1024;

/// The calls of a worker.
#[derive(Clone)]
pub(super) struct Calls {
    open: Rc<Cell<usize>>,
    /// Calls that were read and have not had their first turn.
    fresh: Rc<Cell<usize>>,
    refused: Arc<AtomicU64>,
}

/// A call before its first turn, refused or not.
pub(super) struct Fresh(Rc<Cell<usize>>);

impl Drop for Fresh {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A call's seat, given back when dropped.
pub(super) struct CallSeat(Rc<Cell<usize>>);

impl Calls {
    /// None yet; `refused` counts those that find no seat.
    pub(super) fn new(refused: Arc<AtomicU64>) -> Self {
        Self { open: Rc::default(), fresh: Rc::default(), refused }
    }

    /// Notes a call that was read.
    pub(super) fn fresh(&self) -> Fresh {
        self.fresh.set(self.fresh.get() + 1);
        Fresh(self.fresh.clone())
    }

    /// Whether so many were read that no more should be until these had their turn.
    pub(super) fn are_enough(&self) -> bool {
        self.fresh.get() >= FRESH_MAX
    }

    /// A seat for a call that decides, if there is one.
    pub(super) fn seat(&self) -> Option<CallSeat> {
        self.seat_below(CALLS_MAX)
    }

    /// A seat for a call about this server's health, if there is one.
    pub(super) fn reserved_seat(&self) -> Option<CallSeat> {
        self.seat_below(CALLS_MAX + RESERVED)
    }

    fn seat_below(&self, bound: usize) -> Option<CallSeat> {
        let open = self.open.get();
        if open >= bound {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.open.set(open + 1);
        Some(CallSeat(self.open.clone()))
    }
}

impl Drop for CallSeat {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_all_seats_only_health_is_told_until_one_is_given_back() {
        let calls = Calls::new(Arc::default());
        let taken: Vec<CallSeat> = std::iter::from_fn(|| calls.seat()).collect();
        assert_eq!(taken.len(), CALLS_MAX);
        let told: Vec<CallSeat> = std::iter::from_fn(|| calls.reserved_seat()).collect();
        assert_eq!((told.len(), calls.refused.load(Ordering::Relaxed)), (RESERVED, 2));
        drop(told);
        assert!(calls.seat().is_none());
        drop(taken);
        assert!(calls.seat().is_some());
        assert_eq!(calls.open.get(), 0);
    }
}
