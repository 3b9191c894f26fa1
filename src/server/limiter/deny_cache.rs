//! The deny cache: when the store denied a key until T, this replica denies it until T without a store call.
//!
//! A denial stays true, because other requests can only make it last longer. Grants raise usage, only time lowers it, and a
//! denied request takes nothing. One exception: a charge by a plan of the same `counts_as` with a faster `token_bucket` shortens the wait.
//! T is the time at which the store was *asked*, plus the wait. The store decides later than it is asked. So the cache never
//! denies when the store would allow, as long as the clocks of both run at the same rate.
//!
//! The numbers are those of the denial, aged by `denial_at` as if it had been decided when the store was asked. A wait is
//! therefore too short by at most the latency of the request to the store. Units granted to the key since are missing from the numbers;
//! [`HOLD_MAX_US`] bounds this.
//!
//! A block ([`tollgate_core::algorithm::Block`]) denies every cost until its end. The cache does not answer where the
//! denial would begin a block: the store must record it.
//!
//! When the store forgets, because its data is lost or its clock stepped forward, the cache denies too long: at most
//! [`HOLD_MAX_US`].
//!
//! An entry belongs to one plan as it was when the store was asked. It holds the plan's `Arc`; an edited plan is another `Arc`
//! and never matches. A reset or refund lowers usage in another way than time, so the key must then be forgotten
//! ([`DenyCache::forget`]). A denial by a call to the store that began before is then ignored, even if it comes later.
//!
//! Time is an argument: microseconds of monotonic time, from any origin. The module knows no wire format and calls no store.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use tollgate_core::algorithm::{BlockReading, Mode, Reading, Verdict, denial_at, tells_one_cost};
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::Plan;
use tollgate_store::Check;

/// Default number of entries. So many keys can be denied within one second without a store call for each. Takes about 8 MB with
/// keys of 20 bytes.
pub const DENY_CACHE_DEFAULT: usize = 65_536;
/// Maximum number of entries that a cache may have; they take more than a gigabyte.
pub const DENY_CACHE_MAX: usize = 10_000_000;

/// Longest that one denial is held, in microseconds. A hot key then costs its store one call a second. After the store lost its
/// data, or its clock stepped forward, its new answers count within that time.
const HOLD_MAX_US: u64 = 1_000_000;
/// Entries checked for an expired denial before the cache grows. More than one, so that expired entries go faster than new ones
/// come, and memory follows the denials that hold.
const EXAMINED_PER_ENTRY: usize = 4;
/// Maximum number of keys remembered as forgotten. With more, every earlier denial is forgotten. That many resets and refunds in
/// a second leave few denials worth remembering.
const FORGOTTEN_MAX: usize = 4_096;
/// The table grows by an eighth at a time, so that at most an eighth of it is empty.
const GROWTH_DIVISOR: usize = 8;

/// Denials that still hold, by plan and key.
pub(super) struct DenyCache {
    entries_max: usize,
    hasher: RandomState,
    /// When the last denial ends. Read without the lock, so that a cache without denials in force costs nothing more. A reader
    /// that misses a denial just remembered asks the store.
    holds_until_us: AtomicU64,
    table: Mutex<DenialTable>,
}

#[derive(Default)]
struct DenialTable {
    entries: Vec<DenialEntry>,
    /// Indices into `entries`, by hash.
    by_name: HashTable<u32>,
    /// Index of the next entry to check for reuse.
    hand: usize,
    forgotten: Forgotten,
}

/// Keys whose earlier denials no longer hold, even those remembered later. Each is kept for as long as an earlier denial could be
/// held.
#[derive(Default)]
struct Forgotten {
    /// When each key was forgotten, by [`DenyCache::subject`].
    at_us: HashMap<u64, u64>,
    /// After this time no element matters.
    until_us: u64,
    /// Denials of every key that were asked for at or before this time no longer hold.
    all_at_us: Option<u64>,
}

struct DenialEntry {
    plan: Arc<Plan>,
    key: Key,
    /// See [`cost_class`].
    cost_class: u64,
    asked_us: u64,
    /// How long the denial holds; at most [`HOLD_MAX_US`].
    holds_us: u32,
    /// Stored so that growing the table needs no hashing.
    hash: u32,
    readings: Readings,
}

/// What the store told of each limit. Most plans have one limit and most keys no block, which needs no allocation.
enum Readings {
    One(Reading),
    Several(Box<SeveralReadings>),
}

/// One reading per limit, and one block per limit if a block runs.
struct SeveralReadings {
    readings: Box<[Reading]>,
    blocks: Option<Box<[BlockReading]>>,
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

    /// The store's answer at `now_us`, if it is known to be a denial.
    pub(super) fn lookup(&self, check: &Check, now_us: u64) -> Option<Verdict> {
        if now_us >= self.holds_until_us.load(Ordering::Relaxed) || check.mode != Mode::Charge {
            return None;
        }
        let hash = self.hash(check);
        let table = self.table();
        let entry = table.find(hash, check)?;
        if entry.is_over(now_us)
            || table.forgotten.matters(now_us) && self.is_forgotten(&table.forgotten, entry)
        {
            return None;
        }
        // Another thread may have remembered a denial with a start time after `now_us`: then nothing is subtracted.
        let elapsed_us = now_us.saturating_sub(entry.asked_us);
        denial_at(
            check.plan.limits(),
            entry.readings.as_slice(),
            entry.readings.blocks(),
            check.cost,
            elapsed_us,
        )
    }

    /// Stores the answer to a store call that began at `asked_us`, if it is a denial.
    pub(super) fn remember(&self, check: &Check, verdict: &Verdict, asked_us: u64) {
        if verdict.fits || check.mode != Mode::Charge {
            return;
        }
        let wait_us = verdict.wait_us(check.plan.limits(), check.cost.units());
        let entry = DenialEntry {
            plan: check.plan.clone(),
            key: check.key.clone(),
            cost_class: cost_class(&check.plan, check.cost),
            asked_us,
            holds_us: wait_us.min(HOLD_MAX_US) as u32,
            hash: self.hash(check),
            readings: Readings::new(verdict),
        };
        let until_us = entry.until_us();
        self.table().put(entry, check, self.entries_max);
        self.holds_until_us.fetch_max(until_us, Ordering::Relaxed);
    }

    /// Forgets the denials of a key under all plans with this `counts_as`. A denial that was asked for before, and would be
    /// remembered after, is not kept.
    pub(super) fn forget(&self, counts_as: &str, key: &Key, now_us: u64) {
        let subject = self.subject(counts_as, key);
        self.table().forgotten.put(subject, now_us);
    }

    /// Entries in use, including expired ones that were not replaced yet.
    pub(super) fn entries(&self) -> usize {
        self.table().entries.len()
    }

    /// Keyed by a secret of this process, so that callers cannot choose keys that collide.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "32 bits are enough for ten million entries"
    )]
    fn hash(&self, check: &Check) -> u32 {
        let name = (
            Arc::as_ptr(&check.plan),
            &check.key,
            cost_class(&check.plan, check.cost),
        );
        self.hasher.hash_one(name) as u32
    }

    /// Two subjects that collide forget each other's denials, which costs one store call.
    fn subject(&self, counts_as: &str, key: &Key) -> u64 {
        self.hasher.hash_one((counts_as, key))
    }

    fn is_forgotten(&self, forgotten: &Forgotten, entry: &DenialEntry) -> bool {
        let at_us = forgotten
            .at_us
            .get(&self.subject(&entry.plan.counts_as, &entry.key))
            .copied();
        at_us
            .max(forgotten.all_at_us)
            .is_some_and(|at_us| entry.asked_us <= at_us)
    }

    fn table(&self) -> MutexGuard<'_, DenialTable> {
        // After a panic, at worst an entry is not found, and the store is asked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Costs of one class share an entry: one class for all costs, or one per cost where a reading is valid for one cost only.
fn cost_class(plan: &Plan, cost: Cost) -> u64 {
    if plan.limits().iter().any(tells_one_cost) {
        cost.units()
    } else {
        0
    }
}

impl DenialTable {
    fn find(&self, hash: u32, check: &Check) -> Option<&DenialEntry> {
        let index = self.by_name.find(spread(hash), |index| {
            self.entries[*index as usize].is_of(check)
        })?;
        self.entries.get(*index as usize)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "indices are below DENY_CACHE_MAX"
    )]
    fn put(&mut self, entry: DenialEntry, check: &Check, entries_max: usize) {
        let hash = spread(entry.hash);
        let known = self
            .by_name
            .find(hash, |index| self.entries[*index as usize].is_of(check))
            .copied();
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
        self.by_name.insert_unique(hash, index as u32, |index| {
            spread(self.entries[*index as usize].hash)
        });
    }

    /// An entry to replace: an expired one, or any entry of a full cache, since a cache may forget.
    fn place_to_reuse(&mut self, now_us: u64, entries_max: usize) -> Option<usize> {
        for _ in 0..EXAMINED_PER_ENTRY.min(self.entries.len()) {
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
        if let Ok(name) = self
            .by_name
            .find_entry(hash, |other| *other as usize == index)
        {
            name.remove();
        }
    }

    fn append(&mut self, entry: DenialEntry, entries_max: usize) -> usize {
        let length = self.entries.len();
        if length == self.entries.capacity() {
            let more = (length / GROWTH_DIVISOR)
                .max(GROWTH_DIVISOR)
                .min(entries_max - length);
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
        // Concurrent calls may arrive here in any order.
        let at_us = self.at_us.entry(subject).or_default();
        *at_us = now_us.max(*at_us);
        self.until_us = self.until_us.max(now_us + HOLD_MAX_US);
    }
}

/// The hash table uses the lowest bits and the seven highest ones. Both halves get all 32 bits.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl DenialEntry {
    fn is_of(&self, check: &Check) -> bool {
        Arc::ptr_eq(&self.plan, &check.plan)
            && self.key == check.key
            && self.cost_class == cost_class(&check.plan, check.cost)
    }

    fn until_us(&self) -> u64 {
        self.asked_us + u64::from(self.holds_us)
    }

    fn is_over(&self, now_us: u64) -> bool {
        now_us >= self.until_us()
    }
}

impl Readings {
    fn new(verdict: &Verdict) -> Self {
        match (&verdict.readings[..], &verdict.blocks) {
            ([one], None) => Self::One(*one),
            (several, blocks) => Self::Several(Box::new(SeveralReadings {
                readings: several.into(),
                blocks: blocks.clone(),
            })),
        }
    }

    fn as_slice(&self) -> &[Reading] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Several(several) => &several.readings,
        }
    }

    fn blocks(&self) -> Option<&[BlockReading]> {
        match self {
            Self::One(_) => None,
            Self::Several(several) => several.blocks.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests;
