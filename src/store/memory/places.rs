//! What grows, and so is kept apart from the entries of a shard, which hold an index of it: logs, which are the states of limits of
//! `sliding_log` and `sliding_window`, and notes of holds.

use tollgate_core::algorithm::Runs;
use tollgate_core::algorithm::holds::Notes;

/// Logs, by their index.
pub(super) type Logs = Places<Runs>;
/// Notes of holds, by their index.
pub(super) type NotePlaces = Places<Notes>;

/// What tells how much memory it uses.
pub(super) trait Measured {
    /// Bytes of heap memory, including the value itself.
    fn heap_bytes(&self) -> usize;
}

impl Measured for Runs {
    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}

impl Measured for Notes {
    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}

/// Bytes that an allocator adds to the two allocations of a value: a header and rounding for each.
const OVERHEAD: usize = 2 * 16;
/// Capacity of a vector after its first growth.
const PLACES_MIN: usize = 4;
/// In place of the index of a free place: there is none.
const NONE: u32 = u32::MAX;

/// The values of one kind of one shard.
pub(super) struct Places<T> {
    places: Vec<Place<T>>,
    /// Index of the first free place. Each free place has the index of the next one.
    free: u32,
    /// Number of values, including those that are checked out.
    held: usize,
    /// Bytes of all values, without their places.
    bytes: usize,
}

enum Place<T> {
    Free {
        next: u32,
    },
    /// `bytes` are accounted for the value; the largest has a few million. It is `None` while it is checked out.
    Held {
        value: Option<Box<T>>,
        bytes: u32,
    },
}

impl<T: Measured> Places<T> {
    pub(super) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: NONE,
            held: 0,
            bytes: 0,
        }
    }

    /// Bytes held, including values that are checked out.
    pub(super) fn bytes(&self) -> usize {
        self.bytes + self.places.capacity() * size_of::<Place<T>>()
    }

    /// Bytes that adding so many values would take, beside their own.
    pub(super) fn growth_bytes(&self, values: usize) -> usize {
        let capacity = self.places.capacity();
        let grown = if self.held + values <= capacity {
            capacity
        } else {
            (2 * capacity).max(self.held + values).max(PLACES_MIN)
        };
        (grown - capacity) * size_of::<Place<T>>() + values * OVERHEAD
    }

    /// Adds a value. Returns its index.
    pub(super) fn add(&mut self, value: Box<T>) -> u32 {
        self.held += 1;
        let index = self.free;
        match self.places.get(index as usize) {
            Some(Place::Free { next }) => {
                self.free = *next;
                self.places[index as usize] = Place::Held {
                    value: None,
                    bytes: 0,
                };
                self.check_in(index, value);
                index
            }
            _ => {
                let index = u32::try_from(self.places.len())
                    .expect("the capacity in bytes bounds the number of values");
                self.places.push(Place::Held {
                    value: None,
                    bytes: 0,
                });
                self.check_in(index, value);
                index
            }
        }
    }

    /// Takes a value out to decide on it. Its bytes stay accounted for.
    pub(super) fn check_out(&mut self, index: u32) -> Option<Box<T>> {
        match &mut self.places[index as usize] {
            Place::Held { value, .. } => value.take(),
            Place::Free { .. } => None,
        }
    }

    /// Puts back a value that was checked out, and accounts for its new size.
    pub(super) fn check_in(&mut self, index: u32, value: Box<T>) {
        let now = value.heap_bytes() + OVERHEAD;
        if let Place::Held {
            value: place,
            bytes,
        } = &mut self.places[index as usize]
        {
            self.bytes = self.bytes - *bytes as usize + now;
            *bytes = u32::try_from(now).expect("a quota, or the number of ids, bounds its bytes");
            *place = Some(value);
        }
    }

    /// The value at this index; `None` while it is checked out.
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        match &self.places[index as usize] {
            Place::Held { value, .. } => value.as_deref(),
            Place::Free { .. } => None,
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
