//! One plan at one spacing of time: the counters of its keys, and how high each would have had to go for no denial.
//!
//! The need of a key is the smallest quota at which nothing of it would have been denied. As long as nothing is denied, every
//! request is charged, whatever the quota. So a key's need is the highest count that it reaches when everything is charged. Until
//! its first denial that is its own count. From then on a second count runs beside it, which denies nothing. A `token_bucket` of
//! another quota counts otherwise, so its need is found apart; see [`super::bucket_need`].

use std::collections::HashMap;
use std::sync::Arc;

use super::RequestSpacing;
use super::blocks::Blocks;
use super::bucket_need::{BucketNeed, BucketRule};
use super::counters::{Counters, States};
use super::overridden::{Decider, FileOverrides};
use super::shared::{SharedCounters, SharedKey};
use super::unlimited::{Unlimited, UnlimitedCounter, heap_bytes, largest};
use super::worst::Worst;
use crate::simulate::order::Event;
use tollgate_core::algorithm::{Mode, State, Verdict, decide, decide_with_blocks};
use tollgate_core::key::Cost;
use tollgate_core::plan::{Limit, Plan, Rule};

/// A need above what a limit of this kind can have.
pub const NEED_UNKNOWN: u64 = u64::MAX;

/// The keys of one plan in one variant. Vectors are by key, those of limits by key and limit.
#[derive(Debug)]
pub struct Variant {
    pub(in crate::simulate) plan: Arc<Plan>,
    spacing: RequestSpacing,
    /// The group of plans that count together with this one, if there are others.
    group: Option<usize>,
    /// The index of the plan in its config, if that has overrides.
    plan_index: Option<usize>,
    /// Keys that an override of the config is for, at any time, and whether one is of this plan: then the report of limits leaves the
    /// needs of the key out.
    pub(in crate::simulate) overridden: HashMap<usize, bool>,
    /// Requests that an override decided.
    pub(in crate::simulate) decided_by_overrides: u64,
    /// Each limit with a quota that denies nothing; see `largest`.
    largest: Vec<Limit>,
    /// Of each limit, what it would be at another quota, if it is a `token_bucket`.
    buckets: Vec<Option<BucketRule>>,
    /// What the needs of buckets are found by; `None` while nothing of a key matters, and for other limits.
    bucket_needs: Vec<Option<Box<BucketNeed>>>,
    /// Requests that were denied.
    pub(in crate::simulate) denied: Vec<u32>,
    /// The smallest quota of each limit that would have denied a key nothing, for one key after the other.
    pub(in crate::simulate) needs: Vec<u64>,
    counters: Counters,
    blocks: Blocks,
    /// Counters that deny nothing, of keys that were denied. Where plans count together, they count this plan's requests alone, and
    /// are there from the first request on.
    unlimited: HashMap<usize, Unlimited>,
    /// Denials by limit; several limits may deny one request.
    pub(in crate::simulate) denied_by: Vec<u64>,
    pub(in crate::simulate) worst: Worst,
    /// Heap memory of `unlimited` and `bucket_needs`.
    bytes: usize,
}

impl Variant {
    pub(super) fn new(plan: Arc<Plan>, spacing: RequestSpacing, group: Option<usize>) -> Self {
        Self {
            spacing,
            group,
            plan_index: None,
            overridden: HashMap::new(),
            decided_by_overrides: 0,
            largest: plan.limits().iter().map(largest).collect(),
            buckets: plan.limits().iter().map(BucketRule::for_limit).collect(),
            bucket_needs: Vec::new(),
            denied: Vec::new(),
            needs: Vec::new(),
            counters: Counters::new(plan.limits()),
            blocks: Blocks::default(),
            unlimited: HashMap::new(),
            denied_by: vec![0; plan.limits().len()],
            worst: Worst::default(),
            bytes: 0,
            plan,
        }
    }

    pub(super) fn add_key(&mut self) {
        let limits = self.largest.len();
        self.denied.push(0);
        self.needs.resize(self.needs.len() + limits, 0);
        self.counters.add_key();
        if self.has_buckets() {
            self.bucket_needs
                .resize(self.bucket_needs.len() + limits, None);
        }
    }

    fn has_buckets(&self) -> bool {
        self.buckets.iter().any(Option::is_some)
    }

    /// Decides by these overrides from now on.
    pub(super) fn apply_overrides(&mut self, overrides: &FileOverrides) {
        self.plan_index = overrides.plan_index(&self.plan);
    }

    /// What decides a key that an override is for; `None` for others.
    pub(super) fn decider(
        &self,
        index: usize,
        key: &[u8],
        overrides: &FileOverrides,
    ) -> Option<Decider> {
        let is_for = !self.overridden.is_empty() && self.overridden.contains_key(&index);
        is_for.then(|| overrides.decider(self.plan_index, &self.plan, key))
    }

    /// Decides a request of the key with this index. Whether it is denied.
    pub(super) fn denies(
        &mut self,
        index: usize,
        event: &Event,
        key: &[u8],
        (decider, shared): (Option<Decider>, &mut SharedCounters),
    ) -> bool {
        let now_us = match self.spacing {
            RequestSpacing::AsStamped => event.at_us,
            RequestSpacing::Evenly => event.even_us,
        };
        let group = decider.as_ref().map(|decider| decider.group);
        let shared_key = group.or(self.group).map(|group| (group, event.hash));
        let overridden = decider.filter(|decider| decider.is_overridden);
        self.decided_by_overrides += u64::from(overridden.is_some());
        let rule = overridden
            .as_ref()
            .map_or(&self.plan, |decider| &decider.plan);
        let denied = match (&rule.rule, &overridden, shared_key) {
            (Rule::Unlimited, ..) => false,
            (Rule::Blocked, ..) => true,
            (Rule::Limits(_), Some(Decider { plan, .. }), Some(key)) => {
                overridden_denies(plan, key, shared, (now_us, event.cost))
            }
            (Rule::Limits(_), ..) => self.decide(index, (shared_key, shared), now_us, event.cost),
        };
        if denied {
            self.denied[index] = self.denied[index].saturating_add(1);
            self.worst.record(index, key, &self.denied);
        }
        denied
    }

    fn decide(
        &mut self,
        index: usize,
        (shared_key, shared): (Option<SharedKey>, &mut SharedCounters),
        now_us: u64,
        units: u64,
    ) -> bool {
        let Ok(cost) = Cost::new(units) else {
            return false;
        };
        if self.has_buckets() {
            self.add_to_buckets(index, now_us, units);
        }
        match shared_key {
            Some(key) => self.shared_denies(index, (key, shared), now_us, cost),
            None => self.own_denies(index, now_us, cost),
        }
    }

    /// Decides by the key's own counters. Whether the request is denied.
    fn own_denies(&mut self, index: usize, now_us: u64, cost: Cost) -> bool {
        let plan = self.plan.clone();
        let mut states: States = self.counters.take(index, plan.limits());
        let blocks = ((0, index as u64), &mut self.blocks);
        let verdict = verdict(&plan, &mut states, blocks, now_us, cost);
        let denies = self.count_denials(verdict.as_ref(), cost);
        match verdict {
            Some(verdict) if !denies && !self.unlimited.contains_key(&index) => {
                self.raise_needs(index, &verdict);
            }
            _ => self.charge_unlimited(index, &states, now_us, cost),
        }
        self.counters.put(index, states);
        denies
    }

    /// Decides by the counters of a group of plans. Whether the request is denied.
    fn shared_denies(
        &mut self,
        index: usize,
        (key, shared): (SharedKey, &mut SharedCounters),
        now_us: u64,
        cost: Cost,
    ) -> bool {
        let plan = self.plan.clone();
        let limits = plan.limits();
        let mut states: States = shared.take(key, limits);
        let blocks = (key, &mut shared.blocks);
        let verdict = verdict(&plan, &mut states, blocks, now_us, cost);
        let denies = self.count_denials(verdict.as_ref(), cost);
        let fresh: States = limits.iter().map(State::fresh).collect();
        self.charge_unlimited(index, &fresh, now_us, cost);
        shared.put(key, limits, states);
        denies
    }

    /// Counts a denied request for each limit that denies it. Whether it is denied.
    fn count_denials(&mut self, verdict: Option<&Verdict>, cost: Cost) -> bool {
        if verdict.is_some_and(|verdict| verdict.fits) {
            return false;
        }
        let limits = self.plan.limits().iter().enumerate();
        for ((place, limit), denied_by) in limits.zip(&mut self.denied_by) {
            let denies = match verdict {
                Some(verdict) => {
                    verdict.readings[place].wait_us(limit, cost.units()) > 0
                        || verdict.block(place).left_us > 0
                }
                None => cost.units() > limit.capacity(),
            };
            *denied_by += u64::from(denies);
        }
        true
    }

    /// Raises the needs of a key to what its limits have counted. Those of buckets are found apart.
    fn raise_needs(&mut self, index: usize, verdict: &Verdict) {
        let limits = self.plan.limits();
        let used = verdict
            .readings
            .iter()
            .zip(limits)
            .map(|(reading, limit)| limit.capacity() - reading.remaining(limit));
        let needs = self.needs[index * limits.len()..]
            .iter_mut()
            .zip(used)
            .zip(&self.buckets);
        needs
            .filter(|(_, bucket)| bucket.is_none())
            .for_each(|((need, used), _)| *need = (*need).max(used));
    }

    /// Takes a request into the needs of the key's buckets, whatever is decided on it.
    fn add_to_buckets(&mut self, index: usize, now_us: u64, units: u64) {
        let first = index * self.buckets.len();
        let places = self.bucket_needs[first..]
            .iter_mut()
            .zip(&mut self.needs[first..]);
        for ((place, need), rule) in places.zip(&self.buckets) {
            let Some(rule) = rule else { continue };
            let bucket = place.get_or_insert_default();
            let before = bucket.heap_bytes();
            *need = bucket.add(*rule, now_us, units, *need);
            self.bytes = (self.bytes + bucket.heap_bytes()).saturating_sub(before);
        }
    }

    /// Drops what no later request can need of buckets. Returns the heap memory of the rest.
    fn sweep_buckets(&mut self, now_us: u64) -> usize {
        let rules = self.buckets.iter().cycle();
        let mut bytes = 0;
        for ((place, need), rule) in self.bucket_needs.iter_mut().zip(&self.needs).zip(rules) {
            let matters = |bucket: &BucketNeed| {
                rule.is_some_and(|rule| bucket.matters_at(rule, now_us, *need))
            };
            *place = place.take().filter(|bucket| matters(bucket));
            bytes += place.as_ref().map_or(0, |bucket| bucket.heap_bytes());
        }
        bytes
    }

    /// Charges a request to the counters that deny nothing. They begin as a copy of `states`, which a denial did not change.
    fn charge_unlimited(&mut self, index: usize, states: &States, now_us: u64, cost: Cost) {
        let unlimited = self.unlimited.entry(index).or_insert_with(|| {
            let counters = states.iter().zip(&self.largest);
            let unlimited: Unlimited = counters.map(UnlimitedCounter::new).collect();
            self.bytes += heap_bytes(&unlimited);
            unlimited
        });
        let before = heap_bytes(unlimited);
        let needs = &mut self.needs[index * self.largest.len()..];
        let counted = self
            .largest
            .iter()
            .zip(unlimited.iter_mut())
            .zip(needs)
            .zip(&self.buckets);
        for (((limit, counter), need), _) in counted.filter(|(_, bucket)| bucket.is_none()) {
            let used = (*need != NEED_UNKNOWN)
                .then(|| counter.charge(limit, now_us, cost))
                .flatten();
            *need = (*need).max(used.unwrap_or(NEED_UNKNOWN));
            if *need == NEED_UNKNOWN {
                *counter = UnlimitedCounter::State(State::default());
            }
        }
        self.bytes = (self.bytes + heap_bytes(unlimited)).saturating_sub(before);
    }

    /// Drops the counters that count nothing any more. Returns the heap memory of the others.
    pub(super) fn sweep(&mut self, now_us: u64) -> usize {
        self.counters.sweep(now_us, self.plan.limits());
        self.blocks.sweep(now_us);
        let counters = &self.counters;
        let limits = self.plan.limits();
        let are_fresh = |unlimited: &Unlimited| {
            unlimited
                .iter()
                .zip(limits)
                .all(|(counter, limit)| counter.fresh_at_us(limit.window_us()) <= now_us)
        };
        self.unlimited
            .retain(|index, unlimited| !(counters.are_fresh(*index) && are_fresh(unlimited)));
        self.bytes =
            self.unlimited.values().map(heap_bytes).sum::<usize>() + self.sweep_buckets(now_us);
        self.bytes()
    }

    /// Heap memory of all counters.
    pub(super) fn bytes(&self) -> usize {
        self.counters.bytes() + self.blocks.bytes() + self.bytes
    }
}

/// Decides a request by the plan of an override, whose limits are not those of the report. Whether it is denied.
fn overridden_denies(
    plan: &Plan,
    key: SharedKey,
    shared: &mut SharedCounters,
    (now_us, units): (u64, u64),
) -> bool {
    let Ok(cost) = Cost::new(units) else {
        return false;
    };
    let limits = plan.limits();
    let mut states: States = shared.take(key, limits);
    let blocks = (key, &mut shared.blocks);
    let verdict = verdict(plan, &mut states, blocks, now_us, cost);
    shared.put(key, limits, states);
    !verdict.is_some_and(|verdict| verdict.fits)
}

/// Charges a request where it fits, beside the blocks of this key. `None` if a limit can never fit it.
fn verdict(
    plan: &Plan,
    states: &mut States,
    (key, blocks): (SharedKey, &mut Blocks),
    now_us: u64,
    cost: Cost,
) -> Option<Verdict> {
    if plan.never_fits(cost).is_some() {
        return None;
    }
    let limits = plan.limits();
    if !plan.has_blocks() {
        return Some(decide(limits, states, now_us, cost, Mode::Charge));
    }
    let mut running = blocks.take(key, limits);
    let beside = (&mut states[..], &mut running[..]);
    let verdict = decide_with_blocks(limits, beside, now_us, cost, Mode::Charge);
    blocks.put(key, limits, &running);
    Some(verdict)
}
