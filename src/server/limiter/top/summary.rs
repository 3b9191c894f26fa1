//! Adds up what slots, workers and replicas counted, and cuts the sum to the heaviest keys.
//!
//! A list has an estimate for each key of a plan, and one number for the plan, `too_high`. The true count of a key lies between
//! its estimate and its estimate plus `too_high`. A key without an entry has the estimate 0.
//!
//! Lists are added by adding estimates and `too_high`. A list is cut to fewer than `k` keys in two steps: the `k`-th greatest
//! estimate is subtracted from all estimates, and added to `too_high`. Each cut removes `k` times what it adds. So `too_high` is at
//! most `N / k` for a total of `N`, however often lists are added and cut (Agarwal et al. 2012, "Mergeable summaries").
//!
//! Pure.

use std::collections::HashMap;

use super::slot::{CountedKey, SealedSlot};

/// Keys by plan, of denials or of cost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Summary {
    /// What was counted for all plans.
    pub(super) total: u64,
    /// Maximum that may have been counted for a key of a plan without an entry.
    pub(super) unlisted: u64,
    /// The lists of plans, by the plan's id.
    pub(super) plans: HashMap<u64, PlanSummary>,
}

/// The keys of one plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PlanSummary {
    /// What was counted for all keys of the plan, at least.
    pub(super) total: u64,
    /// Maximum that may have been counted for a key without an entry, and by which others may be shown too high.
    pub(super) too_high: u64,
    /// What each key was counted, by its hash.
    pub(super) keys: HashMap<u64, Estimate>,
}

/// See [`CountedKey`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Estimate {
    pub(super) estimate: u64,
    pub(super) at_least: u64,
}

/// A key of the whole, with its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Heavy {
    pub(super) plan: u64,
    pub(super) hash: u64,
    /// At least what was counted.
    pub(super) count: u64,
    /// Maximum by which `count` may be too high.
    pub(super) error: u64,
}

impl Summary {
    /// Adds what a slot counted.
    pub(super) fn add_slot(&mut self, slot: &SealedSlot) {
        let mut other = Self {
            total: slot.total,
            unlisted: slot.shared_too_high,
            plans: HashMap::new(),
        };
        for own in &slot.own {
            let keys = own
                .keys
                .iter()
                .map(|key| (key.hash, Estimate::from_counted(key)))
                .collect();
            other.plans.insert(
                own.id,
                PlanSummary {
                    total: own.total,
                    too_high: own.too_high,
                    keys,
                },
            );
        }
        let has_own: Vec<u64> = slot.own.iter().map(|own| own.id).collect();
        for (id, key) in &slot.shared {
            let plan = other.plans.entry(*id).or_default();
            if !has_own.contains(id) {
                plan.too_high = slot.shared_too_high;
                plan.total = plan.total.saturating_add(key.at_least);
            }
            plan.keys.insert(key.hash, Estimate::from_counted(key));
        }
        self.add(other);
    }

    /// Adds another list.
    pub(super) fn add(&mut self, other: Self) {
        for (id, plan) in &mut self.plans {
            if !other.plans.contains_key(id) {
                plan.too_high = plan.too_high.saturating_add(other.unlisted);
            }
        }
        for (id, theirs) in other.plans {
            let unlisted = self.unlisted;
            let ours = self.plans.entry(id).or_insert_with(|| PlanSummary {
                too_high: unlisted,
                ..PlanSummary::default()
            });
            ours.add(theirs);
        }
        self.total = self.total.saturating_add(other.total);
        self.unlisted = self.unlisted.saturating_add(other.unlisted);
    }

    /// Cuts the list of each plan to fewer than `k` keys, and all lists together to fewer than `all`, which is at least `k`.
    pub(super) fn cut(&mut self, k: usize, all: usize) {
        self.plans.values_mut().for_each(|plan| plan.cut(k));
        let estimates = self
            .plans
            .values()
            .flat_map(|plan| plan.keys.values().map(|key| key.estimate))
            .collect();
        let taken_off = nth_greatest(estimates, all);
        if taken_off > 0 {
            self.plans
                .values_mut()
                .for_each(|plan| plan.take_off(taken_off));
            self.unlisted = self.unlisted.saturating_add(taken_off);
        }
    }

    /// The heaviest keys of a plan, or of all plans, the heaviest first. Returns also the most that any other key may have been
    /// counted.
    pub(super) fn heaviest(&self, plan: Option<u64>, limit: usize) -> (Vec<Heavy>, u64) {
        let chosen = self
            .plans
            .iter()
            .filter(|(id, _)| plan.is_none_or(|plan| plan == **id));
        let mut rest = match plan {
            Some(plan) => self
                .plans
                .get(&plan)
                .map_or(self.unlisted, |plan| plan.too_high),
            None => self
                .plans
                .values()
                .map(|plan| plan.too_high)
                .fold(self.unlisted, u64::max),
        };
        let heavy = |id: u64, hash: u64, too_high: u64, key: &Estimate| {
            let count = key.estimate.saturating_add(too_high);
            Heavy {
                plan: id,
                hash,
                count,
                error: count.saturating_sub(key.at_least).min(too_high),
            }
        };
        let mut keys: Vec<Heavy> = chosen
            .flat_map(|(id, list)| {
                list.keys
                    .iter()
                    .map(move |(hash, key)| heavy(*id, *hash, list.too_high, key))
            })
            .collect();
        // Of equal counts the one that is known better comes first; the hash makes the order the same everywhere.
        keys.sort_unstable_by(|a, b| {
            b.count
                .cmp(&a.count)
                .then(a.error.cmp(&b.error))
                .then(a.hash.cmp(&b.hash))
        });
        if let Some(next) = keys.get(limit) {
            rest = rest.max(next.count);
        }
        keys.truncate(limit);
        (keys, rest)
    }
}

impl PlanSummary {
    fn add(&mut self, other: Self) {
        self.total = self.total.saturating_add(other.total);
        self.too_high = self.too_high.saturating_add(other.too_high);
        if self.keys.is_empty() {
            self.keys = other.keys;
            return;
        }
        for (hash, key) in other.keys {
            let ours = self.keys.entry(hash).or_default();
            ours.estimate = ours.estimate.saturating_add(key.estimate);
            ours.at_least = ours.at_least.saturating_add(key.at_least);
        }
    }

    fn cut(&mut self, k: usize) {
        if self.keys.len() >= k {
            let taken_off = nth_greatest(self.keys.values().map(|key| key.estimate).collect(), k);
            self.take_off(taken_off);
        }
    }

    fn take_off(&mut self, taken_off: u64) {
        self.too_high = self.too_high.saturating_add(taken_off);
        self.keys.retain(|_, key| {
            key.estimate = key.estimate.saturating_sub(taken_off);
            key.estimate > 0
        });
    }
}

impl Estimate {
    fn from_counted(key: &CountedKey) -> Self {
        Self {
            estimate: key.estimate,
            at_least: key.at_least,
        }
    }
}

/// The `n`-th greatest of these numbers, from 1; 0 if there are fewer.
fn nth_greatest(mut numbers: Vec<u64>, n: usize) -> u64 {
    if n == 0 || numbers.len() < n {
        return 0;
    }
    let (_, nth, _) = numbers.select_nth_unstable_by(n - 1, |a, b| b.cmp(a));
    *nth
}

#[cfg(test)]
mod tests;
