//! Joint decisions of the embedded store: the shards of all requests are locked, in one order, before any is decided.

use std::borrow::Cow;
use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::entry::Name;
use super::shard::{HashedName, Shard};
use super::{MemoryStore, group_of, too_long};
use crate::{Check, Refund, StoreError, adds_up, all_fit, has_charges};
use tollgate_core::algorithm::{BlockReading, Mode, Verdict, begins_block};
use tollgate_core::joint::{REQUESTS_MAX, Sums};
use tollgate_core::key::Cost;
use tollgate_core::plan::Limit;

/// The entries that the requests count in.
struct JointEntries<'a> {
    /// The name of each entry, and the index of its shard.
    names: SmallVec<[(HashedName<'a>, usize); REQUESTS_MAX]>,
    locked: SmallVec<[(usize, MutexGuard<'a, Shard>); REQUESTS_MAX]>,
    now_us: u64,
    /// Blocks that began in this decision: the index of the check, and the limit. They are written at its end, since requests before
    /// them are decided as if they had not begun.
    begun: Vec<(usize, Limit)>,
}

impl MemoryStore {
    /// Decides checks together, without waiting; see [`crate::Store::decide_joint`].
    pub fn decide_joint(&self, checks: &[Check]) -> Result<Vec<Verdict>, StoreError> {
        let groups: Vec<Cow<'_, [u8]>> = checks
            .iter()
            .map(|check| group_of(&check.plan.counts_as, &check.key))
            .collect();
        let mut subjects = self.lock_all(checks, &groups)?;
        let mut tested = subjects.test(checks);
        if has_charges(checks) && all_fit(checks, &tested) {
            let charged = subjects.charge(checks, tested);
            subjects.write_begun();
            return charged;
        }
        subjects.write_begun();
        subjects.tell_begun(checks, &mut tested);
        Ok(tested)
    }

    fn lock_all<'a>(
        &'a self,
        checks: &'a [Check],
        groups: &'a [Cow<'_, [u8]>],
    ) -> Result<JointEntries<'a>, StoreError> {
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
        Ok(JointEntries {
            names,
            locked,
            now_us,
            begun: Vec::new(),
        })
    }
}

impl JointEntries<'_> {
    /// Tests each check with the units of those before it; changes nothing.
    fn test(&mut self, checks: &[Check]) -> Vec<Verdict> {
        let mut sums = Sums::default();
        let mut verdicts = Vec::with_capacity(checks.len());
        for (index, check) in checks.iter().enumerate() {
            let counts_as = &check.plan.counts_as;
            let key = &check.key;
            let sum = sums.tested_cost(counts_as, key, check.cost);
            let mut verdict = self.with_shard(index, |shard, name, now_us| {
                shard.test(name, check, sum, now_us)
            });
            if check.plan.has_blocks() {
                self.begin_blocks(index, check, sum, &mut verdict);
            }
            if (verdict.fits || !check.plan.shadow) && adds_up(check, checks) {
                sums.add(counts_as, key, check.cost);
            }
            verdicts.push(verdict);
        }
        verdicts
    }

    /// Denies a check that blocks deny which began in this decision, and begins those that its own denial begins.
    fn begin_blocks(&mut self, index: usize, check: &Check, sum: Cost, verdict: &mut Verdict) {
        let limits = check.plan.limits();
        let mut told = self.told(index, check, verdict);
        verdict.fits &= told.iter().all(|block| block.left_us == 0);
        let may_begin = check.mode == Mode::Charge && check.plan.never_fits(sum).is_none();
        for (place, limit) in limits.iter().enumerate() {
            let reading = &verdict.readings[place];
            let left_us = told[place].left_us;
            let denies = may_begin && !verdict.fits;
            if denies && begins_block(limit, reading, left_us, sum.units()) {
                told[place] = BlockReading {
                    left_us: limit.block_us(),
                    begins: true,
                };
                self.begun.push((index, limit.clone()));
            }
        }
        verdict.tell_blocks(told);
    }

    /// What a verdict tells of blocks, with those that began in this decision.
    fn told(
        &self,
        index: usize,
        check: &Check,
        verdict: &Verdict,
    ) -> SmallVec<[BlockReading; REQUESTS_MAX]> {
        let begun = |limit: &Limit| {
            let is_of = |(other, begun): &&(usize, Limit)| {
                begun.fingerprint() == limit.fingerprint() && self.is_same(*other, index)
            };
            self.begun.iter().find(is_of)
        };
        let told = check
            .plan
            .limits()
            .iter()
            .enumerate()
            .map(|(place, limit)| {
                let told = verdict.block(place);
                match begun(limit).filter(|_| limit.block_us() > 0 && told.left_us == 0) {
                    Some((_, begun)) => BlockReading {
                        left_us: begun.block_us(),
                        begins: false,
                    },
                    None => told,
                }
            });
        told.collect()
    }

    /// Whether two checks count under one name.
    fn is_same(&self, one: usize, other: usize) -> bool {
        let name = |index: usize| {
            let name = self.names[index].0.name;
            (name.group, name.key)
        };
        name(one) == name(other)
    }

    /// Has the verdicts on a denied whole tell the blocks that began in it: their numbers are those after the decision.
    fn tell_begun(&self, checks: &[Check], verdicts: &mut [Verdict]) {
        for (index, (check, verdict)) in checks.iter().zip(verdicts).enumerate() {
            if !self.begun.is_empty() {
                verdict.tell_blocks(self.told(index, check, verdict));
            }
        }
    }

    /// Writes the blocks that began. One for which there is no room is reported as begun, and is not kept.
    fn write_begun(&mut self) {
        for (index, limit) in std::mem::take(&mut self.begun) {
            let told = BlockReading {
                left_us: limit.block_us(),
                begins: true,
            };
            self.with_shard(index, |shard, name, now_us| {
                shard.write_block(name, &limit, told, now_us)
            });
            self.begun.push((index, limit));
        }
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
                let refund = Refund {
                    key: check.key.clone(),
                    plan: check.plan.clone(),
                    units: check.cost,
                };
                self.with_shard(index, |shard, name, now_us| {
                    shard.refund(name, &refund, now_us)
                });
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
