//! The states that grow, kept apart from the entries, whose bytes they would not fit: a place for each.

use crate::algorithm::Runs;

/// What an allocator adds to the two allocations of a log: a header and rounding each.
const LOG_OVERHEAD: usize = 2 * 16;
/// Places that a list which grows from nothing starts with.
const PLACES_MIN: usize = 4;
/// Ends the chain of free places.
const NONE: u32 = u32::MAX;

/// The logs of one shard.
pub(super) struct Logs {
    places: Vec<Place>,
    /// The first of a chain of free places.
    free: u32,
    held: usize,
    /// Of all logs, beside their places.
    bytes: usize,
}

enum Place {
    Free {
        next: u32,
    },
    /// `bytes` is on the account for it; the largest log has a few million.
    Held {
        runs: Option<Box<Runs>>,
        bytes: u32,
    },
}

impl Logs {
    pub(super) fn new() -> Self {
        Self { places: Vec::new(), free: NONE, held: 0, bytes: 0 }
    }

    /// Bytes held, those that are out on loan included.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.places.capacity() * size_of::<Place>()
    }

    /// Bytes that [`Self::add`] of so many new logs would add beside [`Runs::heap_bytes`].
    pub(super) fn growth_bytes(&self, logs: usize) -> usize {
        let capacity = self.places.capacity();
        let grown = if self.held + logs <= capacity { capacity } else { (2 * capacity).max(self.held + logs).max(PLACES_MIN) };
        (grown - capacity) * size_of::<Place>() + logs * LOG_OVERHEAD
    }

    /// Takes a log in; its place.
    pub(super) fn add(&mut self, runs: Box<Runs>) -> u32 {
        self.held += 1;
        let index = self.free;
        match self.places.get(index as usize) {
            Some(Place::Free { next }) => {
                self.free = *next;
                self.places[index as usize] = Place::Held { runs: None, bytes: 0 };
                self.give_back(index, runs);
                index
            }
            _ => {
                let index = u32::try_from(self.places.len()).expect("the capacity in bytes bounds the number of logs");
                self.places.push(Place::Held { runs: None, bytes: 0 });
                self.give_back(index, runs);
                index
            }
        }
    }

    /// Lends a log out; its bytes stay on the account.
    pub(super) fn lend(&mut self, index: u32) -> Option<Box<Runs>> {
        match &mut self.places[index as usize] {
            Place::Held { runs, .. } => runs.take(),
            Place::Free { .. } => None,
        }
    }

    /// Takes back a log that was lent out.
    pub(super) fn give_back(&mut self, index: u32, runs: Box<Runs>) {
        let now = runs.heap_bytes() + LOG_OVERHEAD;
        if let Place::Held { runs: place, bytes } = &mut self.places[index as usize] {
            self.bytes = self.bytes - *bytes as usize + now;
            *bytes = u32::try_from(now).expect("a log's quota bounds its bytes");
            *place = Some(runs);
        }
    }

    /// When the log counts nothing any more; 0 while it is lent out.
    pub(super) fn fresh_at_us(&self, index: u32, window_us: u64) -> u64 {
        match &self.places[index as usize] {
            Place::Held { runs: Some(runs), .. } => runs.fresh_at_us(window_us),
            _ => 0,
        }
    }

    pub(super) fn remove(&mut self, index: u32) {
        if let Place::Held { bytes, .. } = std::mem::replace(&mut self.places[index as usize], Place::Free { next: self.free }) {
            self.bytes -= bytes as usize;
            self.free = index;
            self.held -= 1;
        }
        if self.held == 0 {
            *self = Self::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_again_and_all_is_given_back() {
        let mut logs = Logs::new();
        let mut most = 0;
        for round in 0..3 {
            let before = logs.bytes();
            let growth = logs.growth_bytes(1) + Runs::default().heap_bytes();
            let first = logs.add(Box::default());
            assert_eq!(logs.bytes(), before + growth);
            let rest: Vec<u32> = (0..100).map(|_| logs.add(Box::default())).collect();
            assert!(rest.iter().all(|index| *index != first && *index <= 100));
            most = most.max(logs.bytes());
            assert!(round == 0 || most == logs.bytes());
            logs.remove(first);
            for index in rest {
                assert!(logs.lend(index).is_some());
                logs.remove(index);
            }
            assert_eq!(logs.bytes(), 0);
        }
    }
}
