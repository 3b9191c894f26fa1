//! One shard of the embedded store: entries by name, and a queue of when each may go.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use smallvec::SmallVec;

use crate::algorithm::{self, Mode, State, Verdict};
use crate::plan::{Limit, Shape};
use crate::store::{Ask, StoreError};

/// Bytes that an entry costs beside its name, further records and runs: itself, its places in table and queue, and what
/// an allocator rounds up.
const ENTRY_BYTES: usize = size_of::<Entry>() + size_of::<Reverse<(u64, u32)>>() + 3 * size_of::<u32>() + 16;

const RECORD_BYTES: usize = size_of::<Record>();

/// Entries looked at for each new one: more than one, so that what has become fresh goes faster than what comes.
const LOOKS_PER_INSERT: usize = 4;

/// What became of the entry at the head of the queue.
enum Look {
    Dropped,
    /// It still counts.
    Kept,
    /// No entry may be fresh yet.
    NoneDue,
}

/// Entries of some of the names.
pub(super) struct Shard {
    capacity: usize,
    bytes: usize,
    hasher: RandomState,
    by_name: HashTable<u32>,
    entries: Vec<Option<Entry>>,
    vacant: Vec<u32>,
    /// For each entry, once, when to look whether it is fresh. A charge moves that later, so it is put right when the time
    /// comes, not on each change; where a step of the clock moved it earlier, the entry stays longer than it had to.
    queue: BinaryHeap<Reverse<(u64, u32)>>,
}

struct Entry {
    name: Box<str>,
    /// Bytes that the shard has on its account for this entry.
    accounted: usize,
    /// A state per shape that was charged and may still count.
    records: Records,
}

type Records = SmallVec<[Record; 1]>;

/// What is remembered of the entry's key for one shape of limit.
struct Record {
    shape: Shape,
    window_us: u64,
    state: State,
}

impl Shard {
    pub(super) fn new(capacity: usize, hasher: RandomState) -> Self {
        Self {
            capacity,
            bytes: 0,
            hasher,
            by_name: HashTable::new(),
            entries: Vec::new(),
            vacant: Vec::new(),
            queue: BinaryHeap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Decides one ask. Nothing has changed when it fails.
    pub(super) fn decide(&mut self, name: &str, hash: u64, ask: &Ask, now_us: u64) -> Result<Verdict, StoreError> {
        let found = self.find(name, hash);
        let mut states = self.take_states(found, ask.plan.limits());
        if ask.mode == Mode::Charge
            && let Err(error) = self.reserve(name.len(), found, (ask, now_us), &mut states)
        {
            self.give_states(found, ask.plan.limits(), states);
            return Err(error);
        }
        let verdict = algorithm::decide(ask.plan.limits(), &mut states, now_us, ask.cost, ask.mode);
        let charged = ask.mode == Mode::Charge && verdict.fits;
        match found {
            None if charged => self.insert(name, hash, ask.plan.limits(), states),
            None => {}
            Some(index) => {
                self.give_states(found, ask.plan.limits(), states);
                if charged {
                    self.tidy(index, ask.plan.limits(), now_us);
                }
            }
        }
        Ok(verdict)
    }

    /// Makes room for what charging the ask could add, if it is going to be charged at all: a denial needs none.
    fn reserve(
        &mut self,
        name_bytes: usize,
        found: Option<u32>,
        (ask, now_us): (&Ask, u64),
        states: &mut [State],
    ) -> Result<(), StoreError> {
        if found.is_none() {
            self.sweep(now_us);
        }
        if self.bytes + self.growth(name_bytes, found, ask, states) <= self.capacity {
            return Ok(());
        }
        if !algorithm::decide(ask.plan.limits(), states, now_us, ask.cost, Mode::Peek).fits {
            return Ok(());
        }
        let needed = self.growth(name_bytes, found, ask, states);
        match self.make_room(needed, found, now_us) {
            // A key that is held is decided all the same: its log gives up precision instead of growing.
            Err(_) if found.is_some() => {
                states.iter_mut().filter(|state| state.growth_bytes() > 0).for_each(State::make_place);
                self.make_room(self.growth(name_bytes, found, ask, states), found, now_us)
            }
            made => made,
        }
    }

    /// Bytes that charging the ask could add.
    fn growth(&self, name_bytes: usize, found: Option<u32>, ask: &Ask, states: &[State]) -> usize {
        let limits = ask.plan.limits();
        let known = found.and_then(|index| self.entry(index)).map(|entry| &entry.records);
        let is_known = |limit: &Limit| known.is_some_and(|records| records.iter().any(|record| record.shape == limit.shape()));
        let missing = || limits.iter().zip(states).filter(|(limit, _)| !is_known(limit));
        let runs: usize =
            states.iter().map(State::growth_bytes).sum::<usize>() + missing().map(|(_, state)| state.heap_bytes()).sum::<usize>();
        let (held, spilled) = known.map_or((0, 0), |records| (records.len(), spilled_bytes(records)));
        let records = held + missing().count();
        // More than the one that an entry holds itself go to the heap, which grows by doubling.
        let spill = if records > 1 { records.next_power_of_two() * RECORD_BYTES } else { 0 };
        let entry = if found.is_none() { ENTRY_BYTES + name_bytes } else { 0 };
        entry + runs + spill.saturating_sub(spilled)
    }

    fn find(&self, name: &str, hash: u64) -> Option<u32> {
        self.by_name.find(hash, |&index| self.entry(index).is_some_and(|entry| *entry.name == *name)).copied()
    }

    fn entry(&self, index: u32) -> Option<&Entry> {
        self.entries[index as usize].as_ref()
    }

    /// Moves the key's states out, in the order of `limits`; a limit without one gets a fresh one.
    fn take_states(&mut self, found: Option<u32>, limits: &[Limit]) -> SmallVec<[State; 2]> {
        let mut records = found.and_then(|index| self.entries[index as usize].as_mut()).map(|entry| &mut entry.records);
        let mut take = |limit: &Limit| {
            let record = records.as_mut()?.iter_mut().find(|record| record.shape == limit.shape())?;
            Some(std::mem::take(&mut record.state))
        };
        limits.iter().map(|limit| take(limit).unwrap_or_else(|| State::fresh(limit))).collect()
    }

    /// Moves states back to where [`Self::take_states`] took them from, and keeps what was fresh before and no longer is.
    fn give_states(&mut self, found: Option<u32>, limits: &[Limit], states: SmallVec<[State; 2]>) {
        let Some(entry) = found.and_then(|index| self.entries[index as usize].as_mut()) else { return };
        for (limit, state) in limits.iter().zip(states) {
            match entry.records.iter_mut().find(|record| record.shape == limit.shape()) {
                Some(record) => record.state = state,
                None if state == State::fresh(limit) => {}
                None => entry.records.push(Record { shape: limit.shape(), window_us: limit.window_us(), state }),
            }
        }
    }

    /// After a charge: drops records of other limits that have become fresh, and accounts for what the entry now takes.
    fn tidy(&mut self, index: u32, limits: &[Limit], now_us: u64) {
        let Some(entry) = self.entries[index as usize].as_mut() else { return };
        if entry.records.len() > limits.len() {
            entry.records.retain(|record| record.fresh_at_us() > now_us);
        }
        let bytes = entry.bytes();
        self.bytes = self.bytes - entry.accounted + bytes;
        entry.accounted = bytes;
    }

    fn insert(&mut self, name: &str, hash: u64, limits: &[Limit], states: SmallVec<[State; 2]>) {
        let record = |(limit, state): (&Limit, State)| Record { shape: limit.shape(), window_us: limit.window_us(), state };
        let mut entry = Entry { name: name.into(), accounted: 0, records: limits.iter().zip(states).map(record).collect() };
        entry.accounted = entry.bytes();
        self.bytes += entry.accounted;
        let fresh_at_us = entry.fresh_at_us();
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(None);
            // The capacity in bytes keeps the count far below 2^32.
            (self.entries.len() - 1) as u32
        });
        self.entries[index as usize] = Some(entry);
        self.queue.push(Reverse((fresh_at_us, index)));
        let (entries, hasher) = (&self.entries, &self.hasher);
        let rehash = |&index: &u32| entries[index as usize].as_ref().map_or(0, |entry| hasher.hash_one(&*entry.name));
        self.by_name.insert_unique(hash, index, rehash);
    }

    /// Drops fresh entries, but not `keep`, until `bytes` more fit. Errors: [`StoreError::Full`] when none is left to drop.
    fn make_room(&mut self, bytes: usize, keep: Option<u32>, now_us: u64) -> Result<(), StoreError> {
        while self.bytes + bytes > self.capacity {
            if !self.drop_one_fresh(keep, now_us) {
                return Err(StoreError::Full);
            }
        }
        Ok(())
    }

    /// Drops a few fresh entries, so that memory shrinks again after a rush and no call pays for all of it.
    fn sweep(&mut self, now_us: u64) {
        for _ in 0..LOOKS_PER_INSERT {
            self.look_at_next(None, now_us);
        }
    }

    /// Drops the entry that has been fresh for longest; false when none is fresh.
    fn drop_one_fresh(&mut self, keep: Option<u32>, now_us: u64) -> bool {
        loop {
            match self.look_at_next(keep, now_us) {
                Look::Dropped => return true,
                Look::Kept => {}
                Look::NoneDue => return false,
            }
        }
    }

    /// Looks at the entry that may be fresh first: drops it, or queues it for when it may be next.
    fn look_at_next(&mut self, keep: Option<u32>, now_us: u64) -> Look {
        let Some(&Reverse((not_before_us, index))) = self.queue.peek() else { return Look::NoneDue };
        if not_before_us > now_us {
            return Look::NoneDue;
        }
        self.queue.pop();
        let fresh_at_us = self.entry(index).map_or(0, Entry::fresh_at_us);
        if fresh_at_us > now_us || Some(index) == keep {
            self.queue.push(Reverse((fresh_at_us.max(now_us + 1), index)));
            return Look::Kept;
        }
        if let Some(entry) = self.entries[index as usize].take() {
            self.forget(index, &entry);
        }
        Look::Dropped
    }

    fn forget(&mut self, index: u32, entry: &Entry) {
        self.bytes -= entry.accounted;
        self.vacant.push(index);
        let hash = self.hasher.hash_one(&*entry.name);
        if let Ok(place) = self.by_name.find_entry(hash, |&other| other == index) {
            place.remove();
        }
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        let heap: usize = self.records.iter().map(|record| record.state.heap_bytes()).sum();
        ENTRY_BYTES + self.name.len() + spilled_bytes(&self.records) + heap
    }

    fn fresh_at_us(&self) -> u64 {
        self.records.iter().map(Record::fresh_at_us).max().unwrap_or(0)
    }
}

impl Record {
    fn fresh_at_us(&self) -> u64 {
        self.state.fresh_at_us(self.window_us)
    }
}

fn spilled_bytes(records: &Records) -> usize {
    if records.spilled() { records.capacity() * RECORD_BYTES } else { 0 }
}
