//! Space-saving (Metwally, Agrawal, El Abbadi 2005): the heaviest keys of a stream, in the memory of a fixed number of keys.
//!
//! A key that has an entry is counted. When there is no room, a new key takes over the entry with the least count, and with it
//! that count, which is then the most that the new key's count may be too high by. Of `k` entries with a total weight of `N`, the
//! least is at most `N / k`. The caller decides when entries are added, so that several sketches can share one bound on memory.
//!
//! Pure: keys are hashes, and nothing here knows what they stand for.

use hashbrown::HashTable;

/// Most entries of a sketch, since places are 16 bits.
pub(super) const ENTRIES_MAX: usize = 1_000;
/// An entry table grows by this part of itself, so that at most a quarter of it is empty.
const GROWTH_PART: usize = 4;

/// Counts of keys.
#[derive(Debug, Default)]
pub(super) struct Sketch {
    /// An entry keeps its place for as long as the sketch lives.
    entries: Vec<Entry>,
    /// Places of entries as a binary heap, the least count first.
    heap: Vec<u16>,
    /// Places of entries by hash.
    index: HashTable<u16>,
}

/// The count of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// The key.
    pub(super) hash: u64,
    /// At least what was counted for the key.
    pub(super) count: u64,
    /// Most that `count` may be too high by.
    pub(super) error: u64,
    /// Index in the heap.
    heap_index: u16,
}

impl Sketch {
    /// Adds to the count of a key that has an entry. Returns the entry's place; `None` if there is no entry.
    pub(super) fn add(&mut self, hash: u64, weight: u64) -> Option<usize> {
        let place = usize::from(*self.index.find(hash, |place| self.entries[usize::from(*place)].hash == hash)?);
        let entry = &mut self.entries[place];
        entry.count = entry.count.saturating_add(weight);
        let heap_index = usize::from(entry.heap_index);
        self.sink(heap_index);
        Some(place)
    }

    /// Adds an entry for a key that has none. The sketch must hold fewer than [`ENTRIES_MAX`]. Returns its place.
    pub(super) fn insert(&mut self, hash: u64, weight: u64) -> usize {
        let place = self.entries.len();
        if place == self.entries.capacity() {
            let more = (place / GROWTH_PART).max(8).min(ENTRIES_MAX.saturating_sub(place).max(1));
            self.entries.reserve_exact(more);
            self.heap.reserve_exact(more);
        }
        self.entries.push(Entry { hash, count: weight, error: 0, heap_index: small(place) });
        self.heap.push(small(place));
        self.rise(place);
        self.index.insert_unique(hash, small(place), |place| self.entries[usize::from(*place)].hash);
        place
    }

    /// Gives the entry with the least count to a key that has none. The sketch must hold one. Returns the entry's place.
    pub(super) fn take_over(&mut self, hash: u64, weight: u64) -> usize {
        let place = usize::from(self.heap[0]);
        let former = self.entries[place].hash;
        if let Ok(name) = self.index.find_entry(former, |other| usize::from(*other) == place) {
            name.remove();
        }
        self.index.insert_unique(hash, small(place), |place| self.entries[usize::from(*place)].hash);
        let entry = &mut self.entries[place];
        *entry = Entry { hash, count: entry.count.saturating_add(weight), error: entry.count, heap_index: 0 };
        self.sink(0);
        place
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The least count, 0 without entries.
    pub(super) fn least(&self) -> u64 {
        self.heap.first().map_or(0, |place| self.entries[usize::from(*place)].count)
    }

    /// All entries, each at its place.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    fn count_at(&self, heap_index: usize) -> u64 {
        self.entries[usize::from(self.heap[heap_index])].count
    }

    /// Moves an entry whose count has grown away from the top of the heap.
    fn sink(&mut self, mut heap_index: usize) {
        loop {
            let left = 2 * heap_index + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let lesser = if right < self.heap.len() && self.count_at(right) < self.count_at(left) { right } else { left };
            if self.count_at(lesser) >= self.count_at(heap_index) {
                return;
            }
            self.swap(heap_index, lesser);
            heap_index = lesser;
        }
    }

    /// Moves a new entry towards the top of the heap.
    fn rise(&mut self, mut heap_index: usize) {
        while heap_index > 0 {
            let parent = (heap_index - 1) / 2;
            if self.count_at(parent) <= self.count_at(heap_index) {
                return;
            }
            self.swap(heap_index, parent);
            heap_index = parent;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.entries[usize::from(self.heap[one])].heap_index = small(one);
        self.entries[usize::from(self.heap[other])].heap_index = small(other);
    }
}

/// A place as it is stored.
fn small(place: usize) -> u16 {
    u16::try_from(place).expect("a sketch has at most ENTRIES_MAX entries")
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
            match sketch.add(*hash, *weight) {
                Some(_) => {}
                None if sketch.len() < k => drop(sketch.insert(*hash, *weight)),
                None => drop(sketch.take_over(*hash, *weight)),
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
            for Entry { hash, count, error, .. } in sketch.entries() {
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
