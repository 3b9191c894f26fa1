//! The replay itself: requests in order of time, decided by the plans of each variant.
//!
//! A variant is one config at one spacing of time. Keys are known by a hash of 64 bits: of a million keys, two share a hash in one of
//! 37 million logs. A replay holds about 30 bytes for each key, and 50 more for each variant and limit. Counters that grow come on
//! top; see [`counters`].

mod blocks;
mod bucket_need;
mod counters;
mod overridden;
mod packed;
mod shared;
mod unlimited;
mod variant;
mod worst;

use std::collections::HashMap;
use std::sync::Arc;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

pub use variant::{NEED_UNKNOWN, Variant};
pub use worst::WORST_MAX;

use super::order::Event;
use overridden::FileOverrides;
use shared::SharedCounters;
use tollgate_core::plan::{Plan, PlanSet};

/// Microseconds of an hour.
pub const HOUR_US: u64 = 3_600_000_000;
/// Maximum number of rows by hour, more than a year. Above it, hours are added up to days, of which there are less than 90,000 up
/// to 2200.
const HOURS_MAX: usize = 10_000;
/// Growth of the counters between two sweeps. It takes the counters of some 100,000 keys, so that a sweep is paid by them.
const GARBAGE_BYTES: usize = 8 << 20;

/// Which time of a request counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestSpacing {
    /// The one in the log. For a log of whole seconds, each second is a burst.
    AsStamped,
    /// Requests of a second are spread evenly over it.
    Evenly,
}

/// Requests of one part of the keys, and what became of them.
#[derive(Debug)]
pub struct Replay {
    pub(super) plans: Vec<PlanReplay>,
    /// For each variant, counters of keys that several plans count together.
    shared: Vec<SharedCounters>,
    /// For each variant, the overrides of its config.
    overrides: Vec<Option<FileOverrides>>,
    pub(super) hours: Hours,
    /// Maximum number of keys that are held.
    keys_max: usize,
    keys: usize,
    /// Requests of keys beyond `keys_max`.
    pub(super) beyond: u64,
    /// Heap memory of all counters.
    bytes: usize,
    /// Memory at which counters that count nothing any more are looked for.
    sweep_at: usize,
    bytes_max: usize,
}

/// The keys of one plan.
#[derive(Debug)]
pub(super) struct PlanReplay {
    table: HashTable<u32>,
    hashes: Vec<u64>,
    pub(super) requests: Vec<u32>,
    pub(super) variants: Vec<Variant>,
}

/// One row of the table by hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hour {
    /// When it begins, in microseconds since 1970.
    pub start_us: u64,
    /// Requests in it.
    pub requests: u64,
    /// Of these, requests that each variant denied.
    pub denied: Vec<u64>,
}

/// Requests by hour, or by day.
#[derive(Debug, Clone)]
pub(super) struct Hours {
    pub(super) rows: Vec<Hour>,
    pub(super) step_us: u64,
    variants: usize,
}

/// The counters of a plan's limits take more memory than is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMuchMemory;

impl Replay {
    /// Nothing replayed yet. `plans` has each plan as every variant has it; all have the same number of variants. `bytes_max` bounds the
    /// memory of counters that grow, which are those of `sliding_log` and `sliding_window`.
    pub fn new(
        plans: &[Vec<(Arc<Plan>, RequestSpacing)>],
        keys_max: usize,
        bytes_max: usize,
    ) -> Self {
        let variants = plans.first().map_or(0, Vec::len);
        let groups = groups(plans);
        let variant = |(index, (plan, spacing)): (usize, &(Arc<Plan>, RequestSpacing))| {
            let group = groups
                .get(&(index, &*plan.counts_as))
                .filter(|(_, several)| *several)
                .map(|(first, _)| *first);
            Variant::new(plan.clone(), *spacing, group)
        };
        let of_plan = |of: &Vec<(Arc<Plan>, RequestSpacing)>| {
            PlanReplay::new(of.iter().enumerate().map(variant).collect())
        };
        let shared = (0..variants).map(|_| SharedCounters::default()).collect();
        Self {
            plans: plans.iter().map(of_plan).collect(),
            shared,
            overrides: (0..variants).map(|_| None).collect(),
            hours: Hours::new(variants),
            keys_max,
            keys: 0,
            beyond: 0,
            bytes: 0,
            sweep_at: GARBAGE_BYTES,
            bytes_max,
        }
    }

    /// The same, with the overrides of each variant's config. Nothing is replayed yet.
    pub fn with_overrides(mut self, configs: &[PlanSet]) -> Self {
        for (variant, config) in configs.iter().enumerate().take(self.overrides.len()) {
            let of_plan = |(index, plan): (usize, &PlanReplay)| {
                (plan.variants[variant].plan.counts_as.clone(), index)
            };
            // Of plans that count together, the first, as in `groups`.
            let groups = self.plans.iter().enumerate().rev().map(of_plan).collect();
            let overrides = FileOverrides::new(config, groups, self.plans.len());
            if let Some(overrides) = &overrides {
                let variants = self
                    .plans
                    .iter_mut()
                    .map(|plan| &mut plan.variants[variant]);
                variants.for_each(|variant| variant.apply_overrides(overrides));
            }
            self.overrides[variant] = overrides;
        }
        self
    }

    /// Decides one request in all variants. Times must not step back. The text of the key is kept only when it is among the worst.
    pub fn record(&mut self, event: &Event, key: &[u8]) -> Result<(), TooMuchMemory> {
        let Some(plan) = self.plans.get_mut(event.plan) else {
            return Ok(());
        };
        let may_add = self.keys < self.keys_max;
        let known = plan.requests.len();
        let Some(index) = plan.index(event.hash, may_add) else {
            self.beyond += 1;
            return Ok(());
        };
        let is_new = plan.requests.len() > known;
        self.keys += usize::from(is_new);
        plan.requests[index] = plan.requests[index].saturating_add(1);
        self.decide(index, is_new, event, key);
        if self.bytes > self.sweep_at {
            self.sweep(event.at_us)
        } else {
            Ok(())
        }
    }

    /// Decides a request of the key with this index in all variants, and counts it in its hour.
    fn decide(&mut self, index: usize, is_new: bool, event: &Event, key: &[u8]) {
        let hour = self.hours.row(event.at_us);
        hour.requests += 1;
        for (((variant, denied), shared), overrides) in self.plans[event.plan]
            .variants
            .iter_mut()
            .zip(&mut hour.denied)
            .zip(&mut self.shared)
            .zip(&mut self.overrides)
        {
            let before = variant.bytes() + shared.bytes();
            let decider = overrides.as_mut().and_then(|overrides| {
                overrides.expire(event.at_us);
                if is_new && let Some(is_own) = overrides.are_for(key, &variant.plan.name) {
                    variant.overridden.insert(index, is_own);
                }
                variant.decider(index, key, overrides)
            });
            *denied += u64::from(variant.denies(index, event, key, (decider, shared)));
            self.bytes = (self.bytes + variant.bytes() + shared.bytes()).saturating_sub(before);
        }
    }

    /// Errors: the counters that still count take too much memory.
    fn sweep(&mut self, now_us: u64) -> Result<(), TooMuchMemory> {
        let variants = self.plans.iter_mut().flat_map(|plan| &mut plan.variants);
        self.bytes = variants.map(|variant| variant.sweep(now_us)).sum();
        self.bytes += self
            .shared
            .iter_mut()
            .map(|shared| shared.sweep(now_us))
            .sum::<usize>();
        self.sweep_at = (2 * self.bytes).min(self.bytes_max) + GARBAGE_BYTES;
        if self.bytes > self.bytes_max {
            Err(TooMuchMemory)
        } else {
            Ok(())
        }
    }
}

/// For each variant and `counts_as`, the first plan that has it, and whether there are more.
fn groups(plans: &[Vec<(Arc<Plan>, RequestSpacing)>]) -> HashMap<(usize, &str), (usize, bool)> {
    let mut groups = HashMap::new();
    for (index, of) in plans.iter().enumerate() {
        for (variant, (plan, _)) in of.iter().enumerate() {
            let known = groups
                .entry((variant, &*plan.counts_as))
                .and_modify(|(_, several)| *several = true);
            known.or_insert((index, false));
        }
    }
    groups
}

/// For each plan, a number that it shares with all plans whose requests for a key may count together in some variant, be it by an
/// override. `configs` has the plans of each variant's config with their overrides; without any, it may be empty.
pub fn components(plans: &[Vec<(Arc<Plan>, RequestSpacing)>], configs: &[PlanSet]) -> Vec<usize> {
    let mut components: Vec<usize> = (0..plans.len()).collect();
    // The first plan that is counted so in a variant.
    let mut firsts: HashMap<(usize, Arc<str>), usize> = HashMap::new();
    let targets: Vec<_> = configs.iter().map(overridden::targets).collect();
    for (index, of) in plans.iter().enumerate() {
        for (variant, (plan, _)) in of.iter().enumerate() {
            let targets = targets.get(variant).into_iter().flatten();
            let others = targets.filter(|(name, _)| *name == plan.name);
            let others = others.map(|(_, other)| other.counts_as.clone());
            for counts_as in std::iter::once(plan.counts_as.clone()).chain(others) {
                let first = *firsts.entry((variant, counts_as)).or_insert(index);
                join(&mut components, index, first);
            }
        }
    }
    components
}

/// Gives the component of one plan, and all that have it, the number of another plan's.
fn join(components: &mut [usize], plan: usize, other: usize) {
    let from = components[plan];
    let to = components[other];
    components
        .iter_mut()
        .filter(|component| **component == from)
        .for_each(|component| *component = to);
}

impl PlanReplay {
    fn new(variants: Vec<Variant>) -> Self {
        Self {
            table: HashTable::new(),
            hashes: Vec::new(),
            requests: Vec::new(),
            variants,
        }
    }

    /// The index of a key; a new one when there is none yet and one may be added.
    fn index(&mut self, hash: u64, may_add: bool) -> Option<usize> {
        let hashes = &self.hashes;
        let is_same = |index: &u32| hashes[*index as usize] == hash;
        let hash_of = |index: &u32| hashes[*index as usize];
        if !may_add {
            return self.table.find(hash, is_same).map(|index| *index as usize);
        }
        match self.table.entry(hash, is_same, hash_of) {
            Entry::Occupied(known) => Some(*known.get() as usize),
            Entry::Vacant(place) => {
                let index = u32::try_from(self.requests.len()).ok()?;
                place.insert(index);
                self.hashes.push(hash);
                self.requests.push(0);
                self.variants.iter_mut().for_each(Variant::add_key);
                Some(index as usize)
            }
        }
    }
}

impl Hours {
    fn new(variants: usize) -> Self {
        Self {
            rows: Vec::new(),
            step_us: HOUR_US,
            variants,
        }
    }

    /// The row of a time, which is the last one or a new one.
    fn row(&mut self, at_us: u64) -> &mut Hour {
        let start_us = at_us - at_us % self.step_us;
        if self.rows.last().is_none_or(|last| last.start_us < start_us) {
            if self.rows.len() >= HOURS_MAX && self.step_us == HOUR_US {
                self.merge_into_days();
                return self.row(at_us);
            }
            self.rows.push(Hour {
                start_us,
                requests: 0,
                denied: vec![0; self.variants],
            });
        }
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }

    /// Adds hours up to days.
    pub(super) fn merge_into_days(&mut self) {
        self.step_us = 24 * HOUR_US;
        let rows = std::mem::take(&mut self.rows);
        rows.iter().for_each(|row| self.row(row.start_us).add(row));
    }
}

impl Hour {
    /// Adds the counts of another row.
    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.denied
            .iter_mut()
            .zip(&other.denied)
            .for_each(|(sum, denied)| *sum += denied);
    }
}
