//! The deny cache: a key that the store denied until T is denied by this replica until T, without a store call.
//!
//! It stays true because a denial only lasts longer by what others do: usage grows by grants, falls by time alone, and a
//! denied request takes nothing. T counts from the time at which the store was *asked*, which is before it decided, so the
//! cache never denies at or after the true release, as long as both clocks run alike. The numbers are those of the denial,
//! aged ([`crate::algorithm::denied_later`]) as if it had been decided when it was asked for: a wait is told at most the
//! way to the store too short, and what was granted to others since is not in it, which [`HOLD_MAX_US`] bounds.
//!
//! It denies too long, at most [`HOLD_MAX_US`], where the store forgets: its data is lost, its clock steps forward.
//!
//! An entry belongs to one plan as it was when the store was asked: it holds the plan's `Arc`, so that an edited plan,
//! which is another `Arc`, never meets it. Where usage falls by something else than time, by a reset or a refund, the key is
//! to be forgotten ([`DenyCache::forget`]): no denial that was asked for until then holds, also one that is noted later.
//!
//! Time is an argument: microseconds of monotonic time, from any beginning. Knows no wire and asks no store.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use crate::algorithm::{Mode, Reading, Verdict, denied_later, tells_one_cost};
use crate::key::{Cost, Key};
use crate::plan::Plan;
use crate::store::Ask;

/// Entries that a cache holds unless told otherwise: as many keys can be denied in one second without a store call each,
/// in about 8 MB with keys of 20 bytes.
pub const DENY_CACHE_DEFAULT: usize = 65_536;
/// Most entries that a cache may be given: above a gigabyte.
pub const DENY_CACHE_MAX: usize = 10_000_000;

/// Longest that one denial is held, in microseconds: a hot key then costs its store one call a second, and a store that
/// lost its data, or whose clock stepped forward, is believed again within that time.
const HOLD_MAX_US: u64 = 1_000_000;
/// Places looked at for one whose denial is over before the cache grows: more than one, so that what is over goes faster
/// than what comes, and the memory follows the denials that hold.
const LOOKS_PER_ENTRY: usize = 4;
/// Most keys that are remembered as forgotten; more at once and every denial until then is. More resets and refunds than
/// that in a second leave no denial to be remembered anyway.
const FORGOTTEN_MAX: usize = 4_096;
/// The places grow by an eighth at a time, so that at most that part of them is empty.
const GROWTH_PART: usize = 8;

/// Denials that hold, by plan and key.
pub(super) struct DenyCache {
    entries_max: usize,
    hasher: RandomState,
    /// When the last denial ends. Read without the lock, so that a cache in which none holds costs nothing else; a
    /// reader that misses a denial just noted asks the store.
    holds_until_us: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    /// Indices of `entries`, by their hash.
    by_name: HashTable<u32>,
    /// Where to look next for an entry that may go.
    hand: usize,
    forgotten: Forgotten,
}

/// Keys whose denials hold no longer, however they come to be noted. Each matters for as long as a denial can be held that
/// was asked for before.
#[derive(Default)]
struct Forgotten {
    /// By [`DenyCache::subject`], when.
    at_us: HashMap<u64, u64>,
    /// From here on none matters.
    until_us: u64,
    /// Denials of every key that were asked for at this time or before are over.
    all_at_us: Option<u64>,
}

struct Entry {
    plan: Arc<Plan>,
    key: Key,
    /// See [`cost_class`].
    cost_class: u64,
    asked_us: u64,
    /// At most [`HOLD_MAX_US`].
    holds_us: u32,
    /// Kept, so that growing computes none anew.
    hash: u32,
    readings: Readings,
}

/// A reading per limit; one alone, as most plans have, needs no allocation.
enum Readings {
    One(Reading),
    Several(Box<[Reading]>),
}

impl DenyCache {
    /// A cache of at most `entries_max` denials, at least 1.
    pub(super) fn new(entries_max: usize) -> Self {
        Self {
            entries_max: entries_max.clamp(1, DENY_CACHE_MAX),
            hasher: RandomState::new(),
            holds_until_us: AtomicU64::new(0),
            table: Mutex::default(),
        }
    }

    /// What the store would answer at `now_us`, if it is known to be a denial.
    pub(super) fn recall(&self, ask: &Ask, now_us: u64) -> Option<Verdict> {
        if now_us >= self.holds_until_us.load(Ordering::Relaxed) || ask.mode != Mode::Charge {
            return None;
        }
        let hash = self.hash(ask);
        let table = self.table();
        let entry = table.find(hash, ask)?;
        if entry.is_over(now_us) || table.forgotten.matters(now_us) && self.is_forgotten(&table.forgotten, entry) {
            return None;
        }
        // Another thread may have noted a denial that it asked for after this one read its time: none has aged then.
        let elapsed_us = now_us.saturating_sub(entry.asked_us);
        denied_later(ask.plan.limits(), entry.readings.as_slice(), ask.cost, elapsed_us)
    }

    /// Notes what the store said to an ask that was sent at `asked_us`, if it was a denial.
    pub(super) fn note(&self, ask: &Ask, verdict: &Verdict, asked_us: u64) {
        if verdict.fits || ask.mode != Mode::Charge {
            return;
        }
        let wait_us = verdict.wait_us(ask.plan.limits(), ask.cost.units());
        let entry = Entry {
            plan: ask.plan.clone(),
            key: ask.key.clone(),
            cost_class: cost_class(&ask.plan, ask.cost),
            asked_us,
            holds_us: wait_us.min(HOLD_MAX_US) as u32,
            hash: self.hash(ask),
            readings: Readings::new(&verdict.readings),
        };
        let until_us = entry.until_us();
        self.table().put(entry, ask, self.entries_max);
        self.holds_until_us.fetch_max(until_us, Ordering::Relaxed);
    }

    /// Forgets what denials a key has among the plans that count as this, those included that were asked for by now and are
    /// not noted yet.
    pub(super) fn forget(&self, counts_as: &str, key: &Key, now_us: u64) {
        let subject = self.subject(counts_as, key);
        self.table().forgotten.put(subject, now_us);
    }

    /// Denials held, those that are over and whose place nobody took yet included.
    pub(super) fn entries(&self) -> usize {
        self.table().entries.len()
    }

    /// Keyed by this process's own secret, so that nobody can choose keys that meet.
    fn hash(&self, ask: &Ask) -> u32 {
        let name = (Arc::as_ptr(&ask.plan), &ask.key, cost_class(&ask.plan, ask.cost));
        // Half of the bits are enough for ten million entries, and they fit where the entry has room.
        self.hasher.hash_one(name) as u32
    }

    /// Two that are alike forget each other's denials, which costs their store a call.
    fn subject(&self, counts_as: &str, key: &Key) -> u64 {
        self.hasher.hash_one((counts_as, key))
    }

    fn is_forgotten(&self, forgotten: &Forgotten, entry: &Entry) -> bool {
        let at_us = forgotten.at_us.get(&self.subject(&entry.plan.counts_as, &entry.key)).copied();
        at_us.max(forgotten.all_at_us).is_some_and(|at_us| entry.asked_us <= at_us)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // What a panic could leave behind is an entry that is not found: the store is asked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What costs share an entry: all, or, where a reading tells of one cost alone, each has its own.
fn cost_class(plan: &Plan, cost: Cost) -> u64 {
    if plan.limits().iter().any(tells_one_cost) { cost.units() } else { 0 }
}

impl Table {
    fn find(&self, hash: u32, ask: &Ask) -> Option<&Entry> {
        let index = self.by_name.find(spread(hash), |index| self.entries[*index as usize].is_of(ask))?;
        self.entries.get(*index as usize)
    }

    fn put(&mut self, entry: Entry, ask: &Ask, entries_max: usize) {
        let hash = spread(entry.hash);
        let known = self.by_name.find(hash, |index| self.entries[*index as usize].is_of(ask)).copied();
        if let Some(index) = known {
            self.entries[index as usize] = entry;
            return;
        }
        let index = match self.place_to_reuse(entry.asked_us, entries_max) {
            Some(index) => {
                self.drop_name(index);
                self.entries[index] = entry;
                index
            }
            None => self.append(entry, entries_max),
        };
        // An index is below DENY_CACHE_MAX.
        self.by_name.insert_unique(hash, index as u32, |index| spread(self.entries[*index as usize].hash));
    }

    /// A place whose denial is over, or, in a full cache, any: a cache may forget.
    fn place_to_reuse(&mut self, now_us: u64, entries_max: usize) -> Option<usize> {
        for _ in 0..LOOKS_PER_ENTRY.min(self.entries.len()) {
            let index = self.step();
            if self.entries[index].is_over(now_us) {
                return Some(index);
            }
        }
        (self.entries.len() >= entries_max).then(|| self.step())
    }

    fn step(&mut self) -> usize {
        let index = self.hand;
        self.hand = (index + 1) % self.entries.len();
        index
    }

    fn drop_name(&mut self, index: usize) {
        let hash = spread(self.entries[index].hash);
        if let Ok(name) = self.by_name.find_entry(hash, |other| *other as usize == index) {
            name.remove();
        }
    }

    fn append(&mut self, entry: Entry, entries_max: usize) -> usize {
        let length = self.entries.len();
        if length == self.entries.capacity() {
            let more = (length / GROWTH_PART).max(GROWTH_PART).min(entries_max - length);
            self.entries.reserve_exact(more);
        }
        self.entries.push(entry);
        length
    }
}

impl Forgotten {
    fn matters(&self, now_us: u64) -> bool {
        now_us < self.until_us
    }

    fn put(&mut self, subject: u64, now_us: u64) {
        if self.at_us.len() >= FORGOTTEN_MAX {
            self.at_us.retain(|_, at_us| now_us < *at_us + HOLD_MAX_US);
        }
        if self.at_us.len() >= FORGOTTEN_MAX {
            self.at_us.clear();
            self.all_at_us = Some(now_us).max(self.all_at_us);
        }
        // Calls that come at once may come here in any order.
        let at_us = self.at_us.entry(subject).or_default();
        *at_us = now_us.max(*at_us);
        self.until_us = self.until_us.max(now_us + HOLD_MAX_US);
    }
}

/// The table goes by the lowest bits and by the seven highest; both halves get all that there are.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl Entry {
    fn is_of(&self, ask: &Ask) -> bool {
        Arc::ptr_eq(&self.plan, &ask.plan) && self.key == ask.key && self.cost_class == cost_class(&ask.plan, ask.cost)
    }

    fn until_us(&self) -> u64 {
        self.asked_us + u64::from(self.holds_us)
    }

    fn is_over(&self, now_us: u64) -> bool {
        now_us >= self.until_us()
    }
}

impl Readings {
    fn new(readings: &[Reading]) -> Self {
        match readings {
            [one] => Self::One(*one),
            several => Self::Several(several.into()),
        }
    }

    fn as_slice(&self) -> &[Reading] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => several,
        }
    }
}

#[cfg(test)]
mod tests;
