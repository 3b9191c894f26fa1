//! The logs of a shard: the states of limits of `sliding_log` and `sliding_window`. They grow, so they are kept apart from the
//! entries, which hold the index of each of their logs.

use tollgate_core::algorithm::Runs;

/// Bytes that an allocator adds to the two allocations of a log: a header and rounding for each.
const LOG_OVERHEAD: usize = 2 * 16;
/// Capacity of a vector after its first growth.
const PLACES_MIN: usize = 4;
/// In place of the index of a free place: there is none.
const NONE: u32 = u32::MAX;

/// The logs of one shard.
pub(super) struct Logs {
    places: Vec<Place>,
    /// Index of the first free place. Each free place has the index of the next one.
    free: u32,
    /// Number of logs, including those that are checked out.
    held: usize,
    /// Bytes of all logs, without their places.
    bytes: usize,
}

enum Place {
    Free {
        next: u32,
    },
    /// `bytes` are accounted for the log; the largest log has a few million. `runs` is `None` while it is checked out.
    Held {
        runs: Option<Box<Runs>>,
        bytes: u32,
    },
}

impl Logs {
    pub(super) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: NONE,
            held: 0,
            bytes: 0,
        }
    }

    /// Bytes held, including logs that are checked out.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.places.capacity() * size_of::<Place>()
    }

    /// Bytes that adding this many logs would take, beside their [`Runs::heap_bytes`].
    pub(super) fn growth_bytes(&self, logs: usize) -> usize {
        let capacity = self.places.capacity();
        let grown = if self.held + logs <= capacity {
            capacity
        } else {
            (2 * capacity).max(self.held + logs).max(PLACES_MIN)
        };
        (grown - capacity) * size_of::<Place>() + logs * LOG_OVERHEAD
    }

    /// Adds a log. Returns its index.
    pub(super) fn add(&mut self, runs: Box<Runs>) -> u32 {
        self.held += 1;
        let index = self.free;
        match self.places.get(index as usize) {
            Some(Place::Free { next }) => {
                self.free = *next;
                self.places[index as usize] = Place::Held {
                    runs: None,
                    bytes: 0,
                };
                self.check_in(index, runs);
                index
            }
            _ => {
                let index = u32::try_from(self.places.len())
                    .expect("the capacity in bytes bounds the number of logs");
                self.places.push(Place::Held {
                    runs: None,
                    bytes: 0,
                });
                self.check_in(index, runs);
                index
            }
        }
    }

    /// Takes a log out to decide on it. Its bytes stay accounted for.
    pub(super) fn check_out(&mut self, index: u32) -> Option<Box<Runs>> {
        match &mut self.places[index as usize] {
            Place::Held { runs, .. } => runs.take(),
            Place::Free { .. } => None,
        }
    }

    /// Puts back a log that was checked out, and accounts for its new size.
    pub(super) fn check_in(&mut self, index: u32, runs: Box<Runs>) {
        let now = runs.heap_bytes() + LOG_OVERHEAD;
        if let Place::Held { runs: place, bytes } = &mut self.places[index as usize] {
            self.bytes = self.bytes - *bytes as usize + now;
            *bytes = u32::try_from(now).expect("a log's quota bounds its bytes");
            *place = Some(runs);
        }
    }

    /// When the log will be empty, in microseconds; 0 while it is checked out.
    pub(super) fn fresh_at_us(&self, index: u32, window_us: u64) -> u64 {
        match &self.places[index as usize] {
            Place::Held {
                runs: Some(runs), ..
            } => runs.fresh_at_us(window_us),
            _ => 0,
        }
    }

    pub(super) fn remove(&mut self, index: u32) {
        if let Place::Held { bytes, .. } = std::mem::replace(
            &mut self.places[index as usize],
            Place::Free { next: self.free },
        ) {
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
    fn freed_places_are_used_again_and_all_bytes_are_given_back() {
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
                assert!(logs.check_out(index).is_some());
                logs.remove(index);
            }
            assert_eq!(logs.bytes(), 0);
        }
    }
}
