//! One shard of the embedded store: a table of entries by name, the times at which they may be dropped, and byte accounting.

mod blocks;
mod holds;
mod room;
mod sweep;

use std::hash::{BuildHasher, Hasher, RandomState};

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::arena::{ARENA_BYTES_MAX, Arena, Handle, PAGE_BYTES, PAGE_OVERHEAD};
use super::checked_out::{CheckedOut, STATES, StateLocation};
use super::entry::{EntryView, Name, Record, Stored, overwrite};
use super::places::{Logs, NotePlaces};
use super::timing_wheel::TimingWheel;
use crate::{Check, Refund, StoreError};
use tollgate_core::algorithm::holds::Notes;
use tollgate_core::algorithm::{self, GivenBack, Mode, State, Verdict, blocks_at};
use tollgate_core::key::Cost;
use tollgate_core::plan::Limit;

/// New keys and growing logs leave one of this many parts of the capacity free. It is for entries that need further records
/// after their plan was edited. With 32 parts about one entry in twelve can take a second record.
const HEADROOM_DIVISOR: usize = 32;
/// Fewest bytes that they leave free, however small the capacity: pages for two slot sizes that were not used before.
const HEADROOM_MIN: usize = 2 * (PAGE_BYTES + PAGE_OVERHEAD);

/// Holds the entries of the names that hash to this shard, in at most `capacity` bytes.
pub(super) struct Shard {
    capacity: usize,
    hasher: RandomState,
    by_name: HashTable<TableElement>,
    arena: Arena,
    logs: Logs,
    notes: NotePlaces,
    /// Holds each entry once, by the time at which to check whether it is fresh. A charge moves that time later. The wheel is
    /// corrected when the old time comes, not on each charge. Where a step of the clock moved the time earlier, the entry
    /// stays longer than needed.
    wheel: TimingWheel,
    /// A buffer in which entries are composed before they get a slot.
    draft: Vec<u8>,
}

/// An element of the table. The part of its name's hash lets the table grow, and rule out most other names, without reading
/// the entry.
struct TableElement {
    hash: u32,
    handle: Handle,
}

/// One check, the name that it counts under, and its time.
#[derive(Clone, Copy)]
struct NamedCheck<'a> {
    name: Name<'a>,
    check: &'a Check,
    now_us: u64,
}

impl Shard {
    /// An empty shard of at most `capacity` bytes, limited to 32 GiB.
    pub(super) fn new(capacity: usize, hasher: RandomState) -> Self {
        Self {
            capacity: capacity.clamp(HEADROOM_MIN, ARENA_BYTES_MAX),
            hasher,
            by_name: HashTable::new(),
            arena: Arena::default(),
            logs: Logs::new(),
            notes: NotePlaces::new(),
            wheel: TimingWheel::new(),
            draft: Vec::new(),
        }
    }

    /// Entries held.
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Bytes held: pages, table, logs, notes, and the size of an empty shard.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>()
            + TimingWheel::HEAP_BYTES
            + self.arena.bytes()
            + self.by_name.allocation_size()
            + self.logs.bytes()
            + self.notes.bytes()
    }

    /// Decides one check. Errors: [`StoreError::Full`]; the entries are then as before.
    pub(super) fn decide(
        &mut self,
        HashedName { name, hash }: HashedName<'_>,
        check: &Check,
        now_us: u64,
    ) -> Result<Verdict, StoreError> {
        let call = NamedCheck {
            name,
            check,
            now_us,
        };
        let limits = check.plan.limits();
        let mut found = self.find(name, hash);
        let mut checked_out = self.check_out(found, limits);
        let reserved = if check.mode == Mode::Charge {
            self.reserve(call, &mut found, &mut checked_out)
        } else {
            Ok(())
        };
        let has_blocks = check.plan.has_blocks();
        let beside_holds = check.plan.releases_holds().then(|| {
            let tested = (call, check.cost.units());
            self.before_beside_holds(found, tested, &mut checked_out.states)
        });
        let mut verdict = reserved.map(|()| {
            let states = &mut checked_out.states;
            if has_blocks {
                self.decide_with_blocks(found, call, states)
            } else {
                algorithm::decide(limits, states, now_us, check.cost, check.mode)
            }
        });
        if let Some(before) = beside_holds {
            let states = &mut checked_out.states;
            self.after_beside_holds(found, call, (states, before), verdict.as_mut().ok());
        }
        let charged =
            check.mode == Mode::Charge && verdict.as_ref().is_ok_and(|verdict| verdict.fits);
        match found {
            None if charged => self.insert(call, hash, checked_out),
            None => {}
            Some(handle) => {
                self.check_in(handle, &mut checked_out);
                if has_blocks && check.mode == Mode::Charge {
                    verdict = verdict.map(|verdict| self.write_blocks(call, hash, verdict));
                }
                if charged && (checked_out.has_other_records || !checked_out.is_known()) {
                    self.amend(handle, call, checked_out);
                }
            }
        }
        verdict
    }

    /// Tells whether a check fits if it asks for `sum` units, and changes nothing. A sum above a limit's capacity fits never; the
    /// readings are then those for the capacity.
    pub(super) fn test(
        &mut self,
        HashedName { name, hash }: HashedName<'_>,
        check: &Check,
        sum: Cost,
        now_us: u64,
    ) -> Verdict {
        let limits = check.plan.limits();
        let capacity = limits.iter().map(Limit::capacity).min();
        let tested = sum.units().min(capacity.unwrap_or(u64::MAX));
        let found = self.find(name, hash);
        let mut checked_out = self.check_out(found, limits);
        let call = NamedCheck {
            name,
            check,
            now_us,
        };
        let beside_holds = check
            .plan
            .releases_holds()
            .then(|| self.before_beside_holds(found, (call, tested), &mut checked_out.states));
        let states = &checked_out.states;
        let mut verdict = algorithm::test(limits, states, now_us, tested, check.mode);
        verdict.fits &= tested == sum.units();
        if let Some(before) = beside_holds {
            let states = &mut checked_out.states;
            self.after_beside_holds(found, call, (states, before), Some(&mut verdict));
        }
        if check.plan.has_blocks() {
            self.deny_by_blocks(found, check, now_us, &mut verdict);
        }
        if let Some(handle) = found {
            self.check_in(handle, &mut checked_out);
        }
        verdict
    }

    /// Gives units back. What is given back to buckets is noted where there are holds.
    pub(super) fn refund(
        &mut self,
        HashedName { name, hash }: HashedName<'_>,
        refund: &Refund,
        now_us: u64,
    ) -> GivenBack {
        let limits = refund.plan.limits();
        let found = self.find(name, hash);
        let mut checked_out = self.check_out(found, limits);
        let notes = found.and_then(|handle| self.entry(handle).holds());
        let before = notes.map(|notes| (notes, checked_out.states.clone()));
        let states = &mut checked_out.states;
        let mut given_back = algorithm::refund(limits, states, now_us, refund.units);
        if let Some((notes, before)) = before {
            self.note_refund(notes, limits, (&before, states), now_us);
        }
        let told = blocks_at(limits, &self.blocks_of(found, limits), now_us);
        given_back.after.tell_blocks(told);
        if let Some(handle) = found {
            self.check_in(handle, &mut checked_out);
        }
        given_back
    }

    /// Drops an entry, live or not. Returns whether there was one.
    pub(super) fn remove(&mut self, HashedName { name, hash }: HashedName<'_>) -> bool {
        let Some(handle) = self.find(name, hash) else {
            return false;
        };
        self.wheel.remove(&mut self.arena, handle);
        self.forget(handle, &mut None);
        true
    }

    fn find(&self, name: Name<'_>, hash: u64) -> Option<Handle> {
        let hash = short(hash);
        let place = self.by_name.find(spread(hash), |place| {
            place.hash == hash && self.entry(place.handle).is_of(name)
        });
        place.map(|place| place.handle)
    }

    fn entry(&self, handle: Handle) -> EntryView<'_> {
        EntryView(self.arena.get(handle))
    }

    /// Takes out the states of the limits, in their order. A limit without a stored state gets a fresh one.
    fn check_out(&mut self, found: Option<Handle>, limits: &[Limit]) -> CheckedOut {
        let mut checked_out = CheckedOut {
            states: SmallVec::new(),
            locations: SmallVec::new(),
            has_other_records: false,
            new_notes: None,
        };
        let mut known = 0;
        for limit in limits {
            let (state, location) =
                match found.and_then(|handle| self.entry(handle).record(limit.fingerprint())) {
                    None => (State::fresh(limit), StateLocation::New),
                    Some(record) => {
                        known += 1;
                        self.check_out_one(record, limit)
                    }
                };
            checked_out.states.push(state);
            checked_out.locations.push(location);
        }
        checked_out.has_other_records =
            found.is_some_and(|handle| self.entry(handle).offsets().nth(known).is_some());
        checked_out
    }

    fn check_out_one(&mut self, record: Record, limit: &Limit) -> (State, StateLocation) {
        match record.stored {
            Stored::State(state) => (state, StateLocation::Record(record.at)),
            Stored::Log(index) => match self.logs.check_out(index) {
                Some(runs) => (State::Runs(runs), StateLocation::Log(index)),
                // Each fingerprint occurs once in a plan, so no log is taken out twice.
                None => (State::fresh(limit), StateLocation::New),
            },
            // Never reached: `record` passes over blocks and holds.
            Stored::Block(_) | Stored::Holds(_) => (State::fresh(limit), StateLocation::New),
        }
    }

    /// Puts states back where [`Self::check_out`] took them from. New states stay in `checked_out`.
    fn check_in(&mut self, handle: Handle, checked_out: &mut CheckedOut) {
        for (state, location) in checked_out.states.iter_mut().zip(&checked_out.locations) {
            match *location {
                StateLocation::Log(index) => {
                    if let State::Runs(runs) = std::mem::take(state) {
                        self.logs.check_in(index, runs);
                    }
                }
                StateLocation::Record(at) => overwrite(self.arena.get_mut(handle), at, state),
                StateLocation::New => {}
            }
        }
    }

    /// Bytes of an entry that a charge keeps. It drops records of limits outside the plan that have become fresh.
    fn kept_bytes(&self, handle: Handle, call: NamedCheck<'_>) -> usize {
        let entry = self.entry(handle);
        let records: usize = entry
            .records()
            .filter(|record| self.is_kept(record, call))
            .map(|record| record.stored.bytes())
            .sum();
        entry.head().len() + records
    }

    fn is_kept(&self, record: &Record, call: NamedCheck<'_>) -> bool {
        let mut limits = call.check.plan.limits().iter();
        let is_state = matches!(record.stored, Stored::State(_) | Stored::Log(_));
        is_state && limits.any(|limit| limit.fingerprint() == record.fingerprint)
            || self.record_fresh_at_us(record) > call.now_us
    }

    fn record_fresh_at_us(&self, record: &Record) -> u64 {
        match &record.stored {
            Stored::State(state) => state.fresh_at_us(record.fingerprint.window_us()),
            Stored::Log(index) => self
                .logs
                .get(*index)
                .map_or(0, |runs| runs.fresh_at_us(record.fingerprint.window_us())),
            Stored::Block(block) => block.end_us,
            Stored::Holds(index) => self.notes.get(*index).map_or(0, Notes::fresh_at_us),
        }
    }

    fn fresh_at_us(&self, handle: Handle) -> u64 {
        self.entry(handle)
            .records()
            .map(|record| self.record_fresh_at_us(&record))
            .max()
            .unwrap_or(0)
    }

    fn insert(&mut self, call: NamedCheck<'_>, hash: u64, checked_out: CheckedOut) {
        let mut draft = std::mem::take(&mut self.draft);
        draft.clear();
        call.name.write_head(&mut draft);
        self.write_records(call, checked_out, &mut draft);
        let handle = self.arena.add(&draft);
        self.draft = draft;
        let fresh_at_us = self.fresh_at_us(handle);
        self.wheel
            .push(&mut self.arena, handle, fresh_at_us, call.now_us);
        let hash = short(hash);
        self.by_name
            .insert_unique(spread(hash), TableElement { hash, handle }, |place| {
                spread(place.hash)
            });
    }

    /// Updates the records after a charge: adds new ones, and drops those of limits outside the plan that have become fresh, and
    /// blocks that have ended.
    fn amend(&mut self, handle: Handle, call: NamedCheck<'_>, checked_out: CheckedOut) {
        let drops = self
            .entry(handle)
            .records()
            .any(|record| !self.is_kept(&record, call));
        if checked_out.is_known() && !drops {
            return;
        }
        let mut draft = std::mem::take(&mut self.draft);
        draft.clear();
        let entry = self.entry(handle);
        draft.extend(entry.head());
        let mut dropped = SmallVec::<[Stored; STATES]>::new();
        for record in entry.records() {
            if self.is_kept(&record, call) {
                draft.extend(entry.record_bytes(&record));
            } else {
                dropped.push(record.stored);
            }
        }
        dropped
            .into_iter()
            .for_each(|stored| self.drop_stored(&stored));
        self.write_records(call, checked_out, &mut draft);
        self.rewrite(handle, &draft);
        self.draft = draft;
    }

    /// Drops what a record that goes kept apart.
    fn drop_stored(&mut self, stored: &Stored) {
        match *stored {
            Stored::Log(index) => self.logs.remove(index),
            Stored::Holds(index) => self.notes.remove(index),
            Stored::State(_) | Stored::Block(_) => {}
        }
    }

    fn write_records(
        &mut self,
        call: NamedCheck<'_>,
        mut checked_out: CheckedOut,
        draft: &mut Vec<u8>,
    ) {
        if let Some(notes) = checked_out.new_notes.take() {
            Stored::write_holds(self.notes.add(notes), draft);
        }
        for (index, state) in checked_out.into_new() {
            let stored = match state {
                State::Runs(runs) => Stored::Log(self.logs.add(runs)),
                state => Stored::State(state),
            };
            stored.write(call.check.plan.limits()[index].fingerprint(), draft);
        }
    }

    /// Replaces the contents of an entry, in its slot or in one of the new size. An entry that shrinks stays in its slot when
    /// there is no room for a page of smaller slots. [`Self::reserve`] has made room for one that grows.
    fn rewrite(&mut self, handle: Handle, contents: &[u8]) {
        let growth = self.amended_growth_bytes(handle, contents.len());
        let shrinks = contents.len() <= self.arena.get(handle).len();
        if self.arena.suits(handle, contents.len())
            || (shrinks && growth > 0 && self.bytes() + growth > self.capacity)
        {
            self.arena.replace(handle, contents);
            return;
        }
        let to = self.arena.add(contents);
        self.wheel.moved(&mut self.arena, to);
        self.repoint(handle, to);
        // The caller does not use its handle again, so there is none to update.
        self.free_slot(handle, &mut None);
    }

    /// Updates the table after an entry was copied to another slot.
    fn repoint(&mut self, from: Handle, to: Handle) {
        let hash = short(hash_of(&self.hasher, self.entry(to).name()));
        if let Some(place) = self
            .by_name
            .find_mut(spread(hash), |place| place.handle == from)
        {
            place.handle = to;
        }
    }

    /// Frees a slot to which neither the table nor the wheel refers any more. If that moves the entry of `kept`, it updates
    /// `kept`.
    fn free_slot(&mut self, handle: Handle, kept: &mut Option<Handle>) {
        let Some(moved) = self.arena.remove(handle) else {
            return;
        };
        self.wheel.moved(&mut self.arena, handle);
        self.repoint(moved, handle);
        if *kept == Some(moved) {
            *kept = Some(handle);
        }
    }
}

/// A name and its hash.
#[derive(Clone, Copy)]
pub(super) struct HashedName<'a> {
    pub(super) name: Name<'a>,
    pub(super) hash: u64,
}

impl<'a> HashedName<'a> {
    #[inline]
    pub(super) fn new(hasher: &RandomState, name: Name<'a>) -> Self {
        Self {
            name,
            hash: hash_of(hasher, name),
        }
    }
}

/// Hashes a name with a secret of this process, so that clients cannot choose keys that collide.
fn hash_of(hasher: &RandomState, name: Name<'_>) -> u64 {
    let mut state = hasher.build_hasher();
    // The length of the group comes first, so that no two names are hashed as the same bytes.
    state.write_u8(name.group_bytes);
    state.write(name.group);
    state.write(name.key);
    state.finish()
}

/// The lowest 32 bits of a hash, which the table stores.
fn short(hash: u64) -> u32 {
    let [b0, b1, b2, b3, ..] = hash.to_le_bytes();
    u32::from_le_bytes([b0, b1, b2, b3])
}

/// Spreads a 32-bit hash over 64 bits: a table uses the lowest bits and the highest bits of a hash.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}
