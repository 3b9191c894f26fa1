//! One shard of the embedded store: entries by name, when each may go, and an account of every byte.

use std::hash::{BuildHasher, Hasher, RandomState};

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::arena::{ARENA_BYTES_MAX, Arena, Handle, PAGE_BYTES, PAGE_OVERHEAD};
use super::entry::{Entry, Name, Record, Stored, overwrite, record_bytes};
use super::logs::Logs;
use super::queue::Queue;
use crate::algorithm::{self, Mode, State, Verdict};
use crate::plan::Limit;
use crate::store::{Ask, StoreError};

/// Entries looked at for each new one: more than the lists that one entry passes through in the queue, at most seven for
/// the longest debt, so that what has become fresh goes faster than what comes.
const LOOKS_PER_INSERT: usize = 8;
/// How long an entry that is fresh stays where no room is needed: to drop one and make it again for the next call of its key
/// costs more than to hold it so long.
const LINGER_US: u64 = 1_000_000;

/// The part of the capacity that new keys and growing logs leave free, so that an entry that is held can still take up the
/// records of a plan that was edited: one of so many parts, so about one entry in twelve can take up a second record.
const HEADROOM_PART: usize = 32;
/// Least part of a capacity, however small, that they leave free: pages of two sizes that were not needed before.
const HEADROOM_MIN: usize = 2 * (PAGE_BYTES + PAGE_OVERHEAD);

/// States that a decision keeps without an allocation; few plans have more limits.
const STATES: usize = 4;

/// A table this many times larger than what it holds is cut down; it halves at least, so not again before long.
const TABLE_SLACK: usize = 8;
/// A table up to this many entries is not worth cutting down.
const TABLE_KEPT: usize = 64;

/// What became of the entry that was due.
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
    hasher: RandomState,
    by_name: HashTable<Place>,
    arena: Arena,
    logs: Logs,
    /// For each entry, once, when to look whether it is fresh. A charge moves that later, so it is put right when the time
    /// comes, not on each change; where a step of the clock moved it earlier, the entry stays longer than it had to.
    queue: Queue,
    /// Where entries are written before they get a slot.
    draft: Vec<u8>,
}

/// An entry in the table, with enough of its name's hash to let the table grow, and tell most others, without a look at it.
struct Place {
    hash: u32,
    handle: Handle,
}

/// The states of one ask's limits, out of the shard while they are decided on.
struct Loan {
    states: SmallVec<[State; STATES]>,
    origins: SmallVec<[Origin; STATES]>,
    /// Whether the entry has records of other limits.
    others: bool,
}

/// Where a state goes back to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Nothing was kept: it is fresh.
    Nowhere,
    /// A record at this place of the entry.
    Record(usize),
    Log(u32),
}

/// One ask, and when.
#[derive(Clone, Copy)]
struct Call<'a> {
    name: Name<'a>,
    ask: &'a Ask,
    now_us: u64,
}

impl Loan {
    /// Whether every state has a record or a log to go back to.
    fn is_known(&self) -> bool {
        !self.origins.contains(&Origin::Nowhere)
    }

    /// Whether a charge makes no state grow.
    fn is_steady(&self) -> bool {
        self.states.iter().all(|state| state.growth_bytes() == 0)
    }

    /// States that have no record yet, each with its limit's index.
    fn into_new(self) -> impl Iterator<Item = (usize, State)> {
        let states = self.states.into_iter().zip(self.origins).enumerate();
        states.filter(|(_, (_, origin))| *origin == Origin::Nowhere).map(|(index, (state, _))| (index, state))
    }
}

impl Shard {
    /// Of at most `capacity` bytes, and of at most 32 GiB.
    pub(super) fn new(capacity: usize, hasher: RandomState) -> Self {
        Self {
            capacity: capacity.clamp(HEADROOM_MIN, ARENA_BYTES_MAX),
            hasher,
            by_name: HashTable::new(),
            arena: Arena::default(),
            logs: Logs::new(),
            queue: Queue::new(),
            draft: Vec::new(),
        }
    }

    /// Entries held.
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Bytes held: pages, table, logs and what a shard has when it is empty.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + Queue::HEAP_BYTES + self.arena.bytes() + self.by_name.allocation_size() + self.logs.bytes()
    }

    /// Decides one ask. Nothing has changed when it fails.
    pub(super) fn decide(&mut self, name: Name<'_>, hash: u64, ask: &Ask, now_us: u64) -> Result<Verdict, StoreError> {
        let call = Call { name, ask, now_us };
        let limits = ask.plan.limits();
        let mut found = self.find(name, hash);
        let mut loan = self.lend(found, limits);
        let reserved = if ask.mode == Mode::Charge { self.reserve(call, &mut found, &mut loan) } else { Ok(()) };
        let verdict = reserved.map(|()| algorithm::decide(limits, &mut loan.states, now_us, ask.cost, ask.mode));
        let charged = ask.mode == Mode::Charge && verdict.as_ref().is_ok_and(|verdict| verdict.fits);
        match found {
            None if charged => self.insert(call, hash, loan),
            None => {}
            Some(handle) => {
                self.take_back(handle, &mut loan);
                if charged && (loan.others || !loan.is_known()) {
                    self.amend(handle, call, loan);
                }
            }
        }
        verdict
    }

    /// Drops an entry, live or not; whether there was one.
    pub(super) fn remove(&mut self, name: Name<'_>, hash: u64) -> bool {
        let Some(handle) = self.find(name, hash) else { return false };
        self.queue.remove(&mut self.arena, handle);
        self.forget(handle, &mut None);
        true
    }

    fn find(&self, name: Name<'_>, hash: u64) -> Option<Handle> {
        let hash = short(hash);
        let place = self.by_name.find(spread(hash), |place| place.hash == hash && self.entry(place.handle).is_of(name));
        place.map(|place| place.handle)
    }

    fn entry(&self, handle: Handle) -> Entry<'_> {
        Entry(self.arena.get(handle))
    }

    /// The states of the limits, in their order; a limit that nothing is kept for gets a fresh one.
    fn lend(&mut self, found: Option<Handle>, limits: &[Limit]) -> Loan {
        let mut loan = Loan { states: SmallVec::new(), origins: SmallVec::new(), others: false };
        let mut known = 0;
        for limit in limits {
            let (state, origin) = match found.and_then(|handle| self.entry(handle).record(limit.shape())) {
                None => (State::fresh(limit), Origin::Nowhere),
                Some(record) => {
                    known += 1;
                    self.lend_one(record, limit)
                }
            };
            loan.states.push(state);
            loan.origins.push(origin);
        }
        loan.others = found.is_some_and(|handle| self.entry(handle).records().nth(known).is_some());
        loan
    }

    fn lend_one(&mut self, record: Record, limit: &Limit) -> (State, Origin) {
        match record.stored {
            Stored::State(state) => (state, Origin::Record(record.at)),
            Stored::Log(index) => match self.logs.lend(index) {
                Some(runs) => (State::Runs(runs), Origin::Log(index)),
                // Each shape stands once in a plan, so none is lent twice.
                None => (State::fresh(limit), Origin::Nowhere),
            },
        }
    }

    /// Puts states back to where [`Self::lend`] took them from; the new ones stay in the loan.
    fn take_back(&mut self, handle: Handle, loan: &mut Loan) {
        for (state, origin) in loan.states.iter_mut().zip(&loan.origins) {
            match *origin {
                Origin::Log(index) => {
                    if let State::Runs(runs) = std::mem::take(state) {
                        self.logs.give_back(index, runs);
                    }
                }
                Origin::Record(at) => overwrite(self.arena.get_mut(handle), at, state),
                Origin::Nowhere => {}
            }
        }
    }

    /// Makes room for what charging the ask could add, if it is going to be charged at all: a denial needs none.
    fn reserve(&mut self, call: Call<'_>, found: &mut Option<Handle>, loan: &mut Loan) -> Result<(), StoreError> {
        match found {
            None => self.sweep(call.now_us),
            Some(_) if loan.is_known() && loan.is_steady() => return Ok(()),
            Some(_) => {}
        }
        let usual = self.capacity - (self.capacity / HEADROOM_PART).max(HEADROOM_MIN);
        if self.has_room(call, *found, loan, usual) {
            return Ok(());
        }
        let ask = call.ask;
        if !algorithm::decide(ask.plan.limits(), &mut loan.states, call.now_us, ask.cost, Mode::Peek).fits {
            return Ok(());
        }
        match self.make_room(call, found, loan, usual) {
            // A key that is held is decided all the same: its log gives up precision instead of growing.
            Err(_) if found.is_some() => {
                loan.states.iter_mut().filter(|state| state.growth_bytes() > 0).for_each(State::make_place);
                self.make_room(call, found, loan, self.capacity)
            }
            made => made,
        }
    }

    /// Drops fresh entries, but not `found`, until the charge fits. Errors: [`StoreError::Full`] when none is left to drop.
    fn make_room(&mut self, call: Call<'_>, found: &mut Option<Handle>, loan: &Loan, most: usize) -> Result<(), StoreError> {
        while !self.has_room(call, *found, loan, most) {
            if !self.drop_one_fresh(found, call.now_us) {
                return Err(StoreError::Full);
            }
        }
        Ok(())
    }

    fn has_room(&self, call: Call<'_>, found: Option<Handle>, loan: &Loan, most: usize) -> bool {
        let growth = self.growth(call, found, loan);
        growth == 0 || self.bytes() + growth <= most
    }

    /// Bytes that charging the ask could add.
    fn growth(&self, call: Call<'_>, found: Option<Handle>, loan: &Loan) -> usize {
        let new =
            || loan.states.iter().zip(&loan.origins).filter(|(_, origin)| **origin == Origin::Nowhere).map(|(state, _)| state);
        let new_logs = new().filter(|state| matches!(state, State::Runs(_))).count();
        let runs = loan.states.iter().map(State::growth_bytes).sum::<usize>() + new().map(State::heap_bytes).sum::<usize>();
        let places = if new_logs > 0 { self.logs.growth_bytes(new_logs) } else { 0 };
        let new_bytes: usize = new().map(record_bytes).sum();
        let entry = match found {
            None => self.arena.growth_bytes(call.name.head_bytes() + new_bytes) + self.table_growth_bytes(),
            Some(_) if new_bytes == 0 => 0,
            Some(handle) => self.amended_growth_bytes(handle, self.kept_bytes(handle, call) + new_bytes),
        };
        runs + places + entry
    }

    fn table_growth_bytes(&self) -> usize {
        let table = &self.by_name;
        // Up to seven eighths of it may be taken; where half of those are, it is tidied instead of doubled.
        let crowded = table.len() >= table.num_buckets() / 16 * 7;
        if table.len() == table.capacity() && crowded { table.allocation_size().max(TABLE_KEPT) } else { 0 }
    }

    /// Bytes that an entry takes with `bytes` of contents instead of its own.
    fn amended_growth_bytes(&self, handle: Handle, bytes: usize) -> usize {
        if self.arena.suits(handle, bytes) { 0 } else { self.arena.growth_bytes(bytes) }
    }

    /// Bytes of an entry without the records that a charge drops: those of other limits that have become fresh.
    fn kept_bytes(&self, handle: Handle, call: Call<'_>) -> usize {
        let entry = self.entry(handle);
        let records: usize =
            entry.records().filter(|record| self.is_kept(record, call)).map(|record| record.stored.bytes()).sum();
        entry.head().len() + records
    }

    fn is_kept(&self, record: &Record, call: Call<'_>) -> bool {
        call.ask.plan.limits().iter().any(|limit| limit.shape() == record.shape) || self.record_fresh_at_us(record) > call.now_us
    }

    fn record_fresh_at_us(&self, record: &Record) -> u64 {
        match &record.stored {
            Stored::State(state) => state.fresh_at_us(record.shape.window_us()),
            Stored::Log(index) => self.logs.fresh_at_us(*index, record.shape.window_us()),
        }
    }

    fn fresh_at_us(&self, handle: Handle) -> u64 {
        self.entry(handle).records().map(|record| self.record_fresh_at_us(&record)).max().unwrap_or(0)
    }

    fn insert(&mut self, call: Call<'_>, hash: u64, loan: Loan) {
        let mut draft = std::mem::take(&mut self.draft);
        draft.clear();
        call.name.write_head(&mut draft);
        self.write_records(call, loan.into_new(), &mut draft);
        let handle = self.arena.add(&draft);
        self.draft = draft;
        let fresh_at_us = self.fresh_at_us(handle);
        self.queue.push(&mut self.arena, handle, fresh_at_us, call.now_us);
        let hash = short(hash);
        self.by_name.insert_unique(spread(hash), Place { hash, handle }, |place| spread(place.hash));
    }

    /// After a charge: adds the records that the entry did not have, drops those of other limits that have become fresh.
    fn amend(&mut self, handle: Handle, call: Call<'_>, loan: Loan) {
        let drops = self.entry(handle).records().any(|record| !self.is_kept(&record, call));
        if loan.is_known() && !drops {
            return;
        }
        let mut draft = std::mem::take(&mut self.draft);
        draft.clear();
        let entry = self.entry(handle);
        draft.extend(entry.head());
        let mut dropped = SmallVec::<[u32; STATES]>::new();
        for record in entry.records() {
            match record.stored {
                _ if self.is_kept(&record, call) => draft.extend(entry.record_bytes(&record)),
                Stored::Log(index) => dropped.push(index),
                Stored::State(_) => {}
            }
        }
        dropped.into_iter().for_each(|index| self.logs.remove(index));
        self.write_records(call, loan.into_new(), &mut draft);
        self.rewrite(handle, &draft);
        self.draft = draft;
    }

    fn write_records(&mut self, call: Call<'_>, states: impl Iterator<Item = (usize, State)>, draft: &mut Vec<u8>) {
        for (index, state) in states {
            let stored = match state {
                State::Runs(runs) => Stored::Log(self.logs.add(runs)),
                state => Stored::State(state),
            };
            stored.write(call.ask.plan.limits()[index].shape(), draft);
        }
    }

    /// Gives an entry other contents: where it is, or in a slot of their size. One that shrinks stays when there is no room
    /// for a page of smaller slots; [`Self::reserve`] made room for one that grows.
    fn rewrite(&mut self, handle: Handle, contents: &[u8]) {
        let growth = self.amended_growth_bytes(handle, contents.len());
        let shrinks = contents.len() <= self.arena.get(handle).len();
        if self.arena.suits(handle, contents.len()) || (shrinks && growth > 0 && self.bytes() + growth > self.capacity) {
            self.arena.replace(handle, contents);
            return;
        }
        let to = self.arena.add(contents);
        self.queue.moved(&mut self.arena, to);
        self.repoint(handle, to);
        // The caller has no more use for the handle that it passed, so it need not follow.
        self.give_up(handle, &mut None);
    }

    /// Lets the table follow an entry that was copied.
    fn repoint(&mut self, from: Handle, to: Handle) {
        let hash = short(hash_of(&self.hasher, self.entry(to).name()));
        if let Some(place) = self.by_name.find_mut(spread(hash), |place| place.handle == from) {
            place.handle = to;
        }
    }

    /// Gives a slot up that neither table nor queue know any more. `kept` follows the entry that takes its place.
    fn give_up(&mut self, handle: Handle, kept: &mut Option<Handle>) {
        let Some(moved) = self.arena.remove(handle) else { return };
        self.queue.moved(&mut self.arena, handle);
        self.repoint(moved, handle);
        if *kept == Some(moved) {
            *kept = Some(handle);
        }
    }

    /// Drops a few entries that have been fresh for a while, so that memory shrinks again after a rush and no call pays for
    /// all of it.
    fn sweep(&mut self, now_us: u64) {
        for _ in 0..LOOKS_PER_INSERT {
            if matches!(self.look_at_next(&mut None, now_us, LINGER_US), Look::NoneDue) {
                return;
            }
        }
    }

    /// Drops an entry that is fresh, but not `kept`; false when none is fresh.
    fn drop_one_fresh(&mut self, kept: &mut Option<Handle>, now_us: u64) -> bool {
        loop {
            match self.look_at_next(kept, now_us, 0) {
                Look::Dropped => return true,
                Look::Kept => {}
                Look::NoneDue => return false,
            }
        }
    }

    /// Looks at the entry that may be fresh first, for so long already: drops it, or queues it for when it may be next.
    fn look_at_next(&mut self, kept: &mut Option<Handle>, now_us: u64, ago_us: u64) -> Look {
        let Some(handle) = self.queue.pop(&mut self.arena, now_us, ago_us) else { return Look::NoneDue };
        let fresh_at_us = self.fresh_at_us(handle);
        if fresh_at_us > now_us || Some(handle) == *kept {
            self.queue.push(&mut self.arena, handle, fresh_at_us, now_us);
            return Look::Kept;
        }
        self.forget(handle, kept);
        Look::Dropped
    }

    /// Drops an entry that is in the queue no more.
    fn forget(&mut self, handle: Handle, kept: &mut Option<Handle>) {
        let entry = Entry(self.arena.get(handle));
        let hash = short(hash_of(&self.hasher, entry.name()));
        if let Ok(place) = self.by_name.find_entry(spread(hash), |place| place.handle == handle) {
            place.remove();
        }
        for record in entry.records() {
            if let Stored::Log(index) = record.stored {
                self.logs.remove(index);
            }
        }
        self.give_up(handle, kept);
        let table = &mut self.by_name;
        if table.capacity() > TABLE_KEPT && table.len() < table.capacity() / TABLE_SLACK {
            table.shrink_to(2 * table.len(), |place| spread(place.hash));
        }
    }
}

/// Hashes a name. Keyed by a secret of this process: whoever chooses keys cannot choose where they collide.
pub(super) fn hash_of(hasher: &RandomState, name: Name<'_>) -> u64 {
    let mut state = hasher.build_hasher();
    // With the group's length before it, no two names are one text.
    state.write_u8(name.group_bytes);
    state.write(name.group);
    state.write(name.key);
    state.finish()
}

/// The lowest 32 bits of a hash.
fn short(hash: u64) -> u32 {
    let [b0, b1, b2, b3, ..] = hash.to_le_bytes();
    u32::from_le_bytes([b0, b1, b2, b3])
}

/// A table goes by the lowest bits of a hash and by the highest, of which 32 alone have none.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}
