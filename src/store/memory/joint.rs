//! Joint decisions of the embedded store: the shards of all requests are locked, in one order, before any is decided.

use std::borrow::Cow;
use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::entry::Name;
use super::shard::{HashedName, Shard};
use super::{MemoryStore, group_of, too_long};
use crate::{Check, StoreError, adds_up, all_fit, has_charges};
use tollgate_core::algorithm::{Mode, Verdict};
use tollgate_core::joint::{REQUESTS_MAX, Sums};

/// The entries that the requests count in.
struct Subjects<'a> {
    /// The name of each entry, and the index of its shard.
    names: SmallVec<[(HashedName<'a>, usize); REQUESTS_MAX]>,
    locked: SmallVec<[(usize, MutexGuard<'a, Shard>); REQUESTS_MAX]>,
    now_us: u64,
}

impl MemoryStore {
    /// Decides checks together, without waiting; see [`crate::Store::decide_joint`].
    pub fn decide_joint(&self, checks: &[Check]) -> Result<Vec<Verdict>, StoreError> {
        let groups: Vec<Cow<'_, [u8]>> = checks
            .iter()
            .map(|check| group_of(&check.plan.counts_as, &check.key))
            .collect();
        let mut subjects = self.lock_all(checks, &groups)?;
        let tested = subjects.test(checks);
        if !has_charges(checks) || !all_fit(checks, &tested) {
            return Ok(tested);
        }
        subjects.charge(checks, tested)
    }

    fn lock_all<'a>(
        &'a self,
        checks: &'a [Check],
        groups: &'a [Cow<'_, [u8]>],
    ) -> Result<Subjects<'a>, StoreError> {
        let now_us = self.clock.now_us();
        let mut names = SmallVec::new();
        for (check, group) in checks.iter().zip(groups) {
            let name = Name::new(group, check.key.as_str().as_bytes()).ok_or_else(too_long)?;
            let name = HashedName::new(&self.hasher, name);
            names.push((name, Self::shard_index(name)));
        }
        // In one order, so that no two calls wait for each other.
        let mut indices: SmallVec<[usize; REQUESTS_MAX]> =
            names.iter().map(|(_, shard)| *shard).collect();
        indices.sort_unstable();
        indices.dedup();
        let locked = indices
            .into_iter()
            .map(|index| (index, super::lock(&self.shards[index])))
            .collect();
        Ok(Subjects {
            names,
            locked,
            now_us,
        })
    }
}

impl Subjects<'_> {
    /// Tests each check with the units of those before it; changes nothing.
    fn test(&mut self, checks: &[Check]) -> Vec<Verdict> {
        let (mut sums, mut verdicts) = (Sums::default(), Vec::with_capacity(checks.len()));
        for (index, check) in checks.iter().enumerate() {
            let (counts_as, key) = (&check.plan.counts_as, &check.key);
            let sum = sums.with(counts_as, key, check.cost);
            let verdict = self.with_shard(index, |shard, name, now_us| {
                shard.test(name, check, sum, now_us)
            });
            if (verdict.fits || !check.plan.shadow) && adds_up(check, checks) {
                sums.add(counts_as, key, check.cost);
            }
            verdicts.push(verdict);
        }
        verdicts
    }

    /// Charges the checks that fit. Where one cannot be charged, those before it are given back, at the same instant.
    fn charge(
        &mut self,
        checks: &[Check],
        tested: Vec<Verdict>,
    ) -> Result<Vec<Verdict>, StoreError> {
        let mut verdicts = tested.clone();
        for index in 0..checks.len() {
            let check = &checks[index];
            if !tested[index].fits || check.mode == Mode::Peek {
                // In shadow mode, or a peek: told what it would have been told alone, after those before it.
                let verdict = self.with_shard(index, |shard, name, now_us| {
                    shard.test(name, check, check.cost, now_us)
                });
                verdicts[index].readings = verdict.readings;
                continue;
            }
            let charged = self.decide(index, check);
            match charged {
                Ok(verdict) if verdict.fits => verdicts[index] = verdict,
                not_charged => {
                    self.give_back(&checks[..index], &tested);
                    // Two plans of other rates on one subject: a debt that one converted may be a microsecond more to the next.
                    let mut verdicts = tested;
                    verdicts[index] = not_charged?;
                    return Ok(verdicts);
                }
            }
        }
        Ok(verdicts)
    }

    fn give_back(&mut self, charged: &[Check], tested: &[Verdict]) {
        for (index, check) in charged.iter().enumerate().rev() {
            if tested[index].fits && check.mode == Mode::Charge {
                let refund = Check {
                    mode: Mode::Refund,
                    ..check.clone()
                };
                // A refund needs no room, so it does not fail.
                let _ = self.decide(index, &refund);
            }
        }
    }

    fn decide(&mut self, index: usize, check: &Check) -> Result<Verdict, StoreError> {
        self.with_shard(index, |shard, name, now_us| {
            shard.decide(name, check, now_us)
        })
    }

    fn with_shard<T>(
        &mut self,
        index: usize,
        ask: impl FnOnce(&mut Shard, HashedName<'_>, u64) -> T,
    ) -> T {
        let (name, shard) = self.names[index];
        let place = self
            .locked
            .iter()
            .position(|(index, _)| *index == shard)
            .expect("the shard of each name is locked");
        ask(&mut self.locked[place].1, name, self.now_us)
    }
}
