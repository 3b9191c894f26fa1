//! Ids that are known and not open. They are found by their hashes once they are many, and the first to end are the first forgotten.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};
use std::sync::Arc;

use super::KnownCall;
use crate::plan::Plan;

/// Ids that are forgotten in one call, beside those of the call itself. More are forgotten than are added.
const FORGOTTEN_A_CALL: usize = 8;
/// Ids that are looked through one by one. More are found by an index.
const UNINDEXED: usize = 64;
/// What an index takes for each id that it has room for: two numbers, a byte, and an eighth.
const INDEX_BYTES: usize = 20;

/// Numbers of ids, by their hashes. Ids have numbers in the order in which they ended.
type IdIndex = HashMap<u64, u64, BuildHasherDefault<DefaultHasher>>;

/// The ids of one key that are not open.
#[derive(Debug, Clone, Default)]
pub(super) struct EndedIds {
    /// In the order in which they ended. One that ended once more has left a gap, without an id.
    ended: VecDeque<Ended>,
    /// Gaps among them.
    gaps: usize,
    /// The number of the first of them.
    first_number: u64,
    /// Empty as long as they are few.
    index: IdIndex,
    /// Greatest `max_ids` of the plans that left a note here.
    max_ids: u32,
    /// Bytes of ids on the heap.
    id_bytes: usize,
}

/// An id that is not open.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) id: Box<[u8]>,
    pub(super) plan: Arc<Plan>,
    pub(super) end: End,
    /// Until when it is known, in microseconds since 1970.
    pub(super) until_us: u64,
}

/// How an id ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// A hold was settled. `held` is `None` where there was none, and its use was charged alone.
    Settled { held: Option<u64>, actual: u64 },
    /// The lease of a hold of this cost ended.
    Expired { held: u64 },
    /// No hold: the cost of a ShouldAllow or Record.
    Charged { call: KnownCall, cost: u64 },
}

fn hash_of(id: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::default();
    hasher.write(id);
    hasher.finish()
}

/// What an allocator takes for an id.
pub(super) fn id_bytes(id: &[u8]) -> usize {
    id.len().next_multiple_of(16)
}

impl EndedIds {
    pub(super) fn is_empty(&self) -> bool {
        self.ended.len() == self.gaps
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.ended.capacity() * size_of::<Ended>()
            + self.index.capacity() * INDEX_BYTES
            + self.id_bytes
    }

    /// The most bytes by which so many ids more increase [`Self::heap_bytes`], without the ids themselves.
    pub(super) fn growth_bytes(&self, more: usize) -> usize {
        let after = self.ended.len() + more;
        let ended = if after < self.ended.capacity() {
            0
        } else {
            (after + after / 4 + 4 - self.ended.capacity()) * size_of::<Ended>()
        };
        let index = if after >= UNINDEXED && after >= self.index.capacity() {
            // Its capacity is seven eighths of a power of two, which doubles.
            3 * after * INDEX_BYTES
        } else {
            0
        };
        ended + index
    }

    /// What is known of this id at `now_us`.
    pub(super) fn find(&self, id: &[u8], now_us: u64) -> Option<&Ended> {
        let found = &self.ended[self.place_of(id)?];
        (found.until_us > now_us).then_some(found)
    }

    /// Ids that are known at `now_us`.
    pub(super) fn known(&self, now_us: u64) -> usize {
        let ended = self.ended.iter();
        ended.filter(|id| id.until_us > now_us).count()
    }

    /// Adds an id in place of what was known of it.
    pub(super) fn remember(&mut self, ended: Ended, now_us: u64) {
        // An expired hold that is settled later is known as settled.
        self.forget(&ended.id);
        self.max_ids = self.max_ids.max(ended.plan.holds.max_ids);
        self.id_bytes += id_bytes(&ended.id);
        let full = self.ended.len() == self.ended.capacity();
        if full {
            // By a quarter, since a double would leave half of the memory unused.
            self.ended.reserve_exact(self.ended.len() / 4 + 1);
        }
        self.ended.push_back(ended);
        self.index_last();
        self.forget_some(now_us);
    }

    /// Leaves a gap in place of an id.
    pub(super) fn forget(&mut self, id: &[u8]) {
        if let Some(place) = self.place_of(id) {
            self.index.remove(&hash_of(id));
            let before = &mut self.ended[place];
            self.id_bytes -= id_bytes(&before.id);
            (before.id, before.until_us) = (Box::default(), 0);
            self.gaps += 1;
        }
    }

    /// Where an id is.
    fn place_of(&self, id: &[u8]) -> Option<usize> {
        if !self.index.is_empty() {
            let number = self.index.get(&hash_of(id))?;
            let place = usize::try_from(number.checked_sub(self.first_number)?).ok()?;
            // Another id may have its hash.
            if self.ended.get(place).is_some_and(|ended| *ended.id == *id) {
                return Some(place);
            }
        }
        self.ended.iter().rposition(|ended| *ended.id == *id)
    }

    /// Adds the last id to the index; all of them, once they are many.
    fn index_last(&mut self) {
        if !self.index.is_empty() {
            let number = (self.first_number..).nth(self.ended.len() - 1);
            let last = self.ended.back().zip(number);
            self.index
                .extend(last.map(|(ended, number)| (hash_of(&ended.id), number)));
        } else if self.ended.len() > UNINDEXED {
            let numbers = (self.first_number..).zip(&self.ended);
            let named = numbers.filter(|(_, ended)| !ended.id.is_empty());
            self.index
                .extend(named.map(|(number, ended)| (hash_of(&ended.id), number)));
        }
    }

    /// Forgets ids at whose end none is known any more, and those that are too many.
    fn forget_some(&mut self, now_us: u64) {
        for _ in 0..FORGOTTEN_A_CALL {
            while self
                .ended
                .front()
                .is_some_and(|oldest| oldest.id.is_empty())
            {
                self.ended.pop_front();
                (self.gaps, self.first_number) = (self.gaps - 1, self.first_number + 1);
            }
            let known = u32::try_from(self.ended.len() - self.gaps).unwrap_or(u32::MAX);
            let goes = |oldest: &Ended| known > self.max_ids || oldest.until_us <= now_us;
            if !self.ended.front().is_some_and(goes) {
                return;
            }
            if let Some(oldest) = self.ended.pop_front() {
                self.first_number += 1;
                self.id_bytes -= id_bytes(&oldest.id);
                self.index.remove(&hash_of(&oldest.id));
            }
        }
    }
}
