//! Space-saving (Metwally, Agrawal, El Abbadi 2005): the heaviest keys of a stream, in the memory of a fixed number of keys.
//!
//! A key that has an entry is counted there. When there is no room, a new key replaces the key with the least count, and goes on
//! from that count. So its count is too high by at most the count that it took over. Of `k` entries with a total of `N`, the
//! least count is at most `N / k`. The caller decides when entries are added, so that several sketches share one bound on memory.
//!
//! Counting a key is a look-up and an addition. A heap finds the entry with the least count. It is built when it is first needed.
//! Counts only grow, so a count that the heap remembers may be too low and is never too high. It is corrected when it comes up.
//!
//! Pure: keys are hashes, and nothing here knows what they stand for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashTable;

/// Maximum number of entries of a sketch, since indices are 16 bits.
pub(super) const ENTRIES_MAX: usize = 1_000;
/// An entry table grows by this part of itself, so that at most a quarter of it is empty.
const GROWTH_DIVISOR: usize = 4;

/// Counts of keys.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    /// An entry keeps its index for as long as the sketch lives.
    entries: Vec<SketchEntry>,
    /// Indices of entries by hash.
    by_hash: HashTable<u16>,
    /// Empty, or all indices, each with a count that its entry has or had, the least first.
    heap: BinaryHeap<Reverse<(u64, u16)>>,
}

/// The count of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SketchEntry {
    /// The key.
    pub(super) hash: u64,
    /// At least what was counted for the key.
    pub(super) count: u64,
    /// Maximum by which `count` may be too high.
    pub(super) error: u64,
}

impl Sketch {
    /// Adds to the count of a key that has an entry. Returns what is known to have been counted for it; `None` without an entry.
    pub(super) fn add(&mut self, hash: u64, weight: u64) -> Option<u64> {
        let index = self
            .by_hash
            .find(hash, |index| self.entries[usize::from(*index)].hash == hash)?;
        let entry = &mut self.entries[usize::from(*index)];
        entry.count = entry.count.saturating_add(weight);
        Some(entry.count - entry.error)
    }

    /// Adds an entry for a key that has none. The sketch must hold fewer than [`ENTRIES_MAX`], and none was taken over.
    pub(super) fn insert(&mut self, hash: u64, weight: u64) {
        let index = self.entries.len();
        if index == self.entries.capacity() {
            self.entries.reserve_exact(
                (index / GROWTH_DIVISOR)
                    .max(8)
                    .min(ENTRIES_MAX.saturating_sub(index).max(1)),
            );
        }
        self.entries.push(SketchEntry {
            hash,
            count: weight,
            error: 0,
        });
        self.by_hash
            .insert_unique(hash, stored_index(index), |index| {
                self.entries[usize::from(*index)].hash
            });
    }

    /// Gives the entry with the least count to a key that has none. The sketch must hold one. Returns the entry's index.
    pub(super) fn take_over(&mut self, hash: u64, weight: u64) -> usize {
        let index = self.least_index();
        let former = self.entries[usize::from(index)];
        if let Ok(name) = self
            .by_hash
            .find_entry(former.hash, |other| *other == index)
        {
            name.remove();
        }
        self.by_hash
            .insert_unique(hash, index, |index| self.entries[usize::from(*index)].hash);
        let count = former.count.saturating_add(weight);
        self.entries[usize::from(index)] = SketchEntry {
            hash,
            count,
            error: former.count,
        };
        usize::from(index)
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The least count, 0 without entries.
    pub(super) fn least(&self) -> u64 {
        self.entries
            .iter()
            .map(|entry| entry.count)
            .min()
            .unwrap_or(0)
    }

    /// All entries, each at its index.
    pub(super) fn entries(&self) -> &[SketchEntry] {
        &self.entries
    }

    /// The index of the entry with the least count.
    fn least_index(&mut self) -> u16 {
        if self.heap.is_empty() {
            let indices = self
                .entries
                .iter()
                .enumerate()
                .map(|(index, entry)| Reverse((entry.count, stored_index(index))));
            self.heap = indices.collect::<Vec<_>>().into();
        }
        loop {
            let mut least = self
                .heap
                .peek_mut()
                .expect("a sketch that is taken from has entries");
            let Reverse((known, index)) = *least;
            let count = self.entries[usize::from(index)].count;
            if known == count {
                return index;
            }
            *least = Reverse((count, index));
        }
    }
}

/// An index in the type that the heap stores.
fn stored_index(index: usize) -> u16 {
    u16::try_from(index).expect("a sketch has at most ENTRIES_MAX entries")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// A sketch of at most `k` entries after this stream.
    fn sketch_of(stream: &[(u64, u64)], k: usize) -> Sketch {
        let mut sketch = Sketch::default();
        for (hash, weight) in stream {
            if sketch.add(*hash, *weight).is_some() {
                continue;
            }
            if sketch.len() < k {
                sketch.insert(*hash, *weight);
            } else {
                sketch.take_over(*hash, *weight);
            }
        }
        sketch
    }

    proptest! {
        #[test]
        fn counts_are_as_exact_as_promised(
            stream in prop::collection::vec((0u64..60, 1u64..20), 1..600),
            k in 1usize..40,
        ) {
            let sketch = sketch_of(&stream, k);
            let mut truth = HashMap::<u64, u64>::new();
            stream.iter().for_each(|(hash, weight)| *truth.entry(*hash).or_default() += weight);
            let total: u64 = truth.values().sum();
            prop_assert_eq!(sketch.entries().iter().map(|entry| entry.count).sum::<u64>(), total);
            prop_assert!(sketch.len() < k || sketch.least() * k as u64 <= total);
            for SketchEntry { hash, count, error, .. } in sketch.entries() {
                let real = truth[hash];
                prop_assert!(count - error <= real && real <= *count && *error <= total / k as u64);
            }
            let listed: Vec<u64> = sketch.entries().iter().map(|entry| entry.hash).collect();
            for (hash, real) in &truth {
                prop_assert!(listed.contains(hash) || *real <= sketch.least(), "{} of {}", hash, real);
            }
            let least = sketch.entries().iter().map(|entry| entry.count).min();
            prop_assert_eq!(least, Some(sketch.least()));
        }
    }
}
