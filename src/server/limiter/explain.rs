//! Explains a key to operators: its standing in every limit of a plan, when its units come back, and how its next request of
//! cost 1 would be decided. It charges nothing and writes nothing.

mod sentences;

use std::sync::Arc;

use smallvec::SmallVec;

use super::admin::AdminError;
use super::caller_deadline::CallerDeadline;
use super::caller_deadline::in_caller_time;
use super::{FoundBy, KeyHash, Limiter, PlanSnapshot, counted, note};
use tollgate_core::algorithm::holds::{HoldCall, NoteFigures};
use tollgate_core::algorithm::{Mode, RELEASES_MAX, Reading, Release, release_costs, releases};
use tollgate_core::decision::{DecidedBy, Decision, LimitStatus};
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::{Limit, Plan, PlanOverride, Rule};
use tollgate_store::{Check, HoldCheck, Store, StoreDeadline, StoreError, Verdict};

/// Where a key stands in a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// What the key is shown as elsewhere.
    pub key_hash: KeyHash,
    /// The plan that decides.
    pub plan: Arc<Plan>,
    /// The override that took part.
    pub applied_override: Option<Arc<PlanOverride>>,
    /// How the next request of cost 1 would be decided.
    pub next: Decision,
    /// One for each limit of the plan. Empty where no state was read.
    pub limits: Vec<LimitExplanation>,
    /// Names of the keys in Redis that hold the state; empty with an embedded store.
    pub redis_names: Vec<String>,
    /// Workers of this process that remember a denial of cost 1.
    pub workers_denying: usize,
    /// Why the store did not decide, if it did not.
    pub store_error: Option<StoreError>,
    /// The standing in the plan's candidate, if there is one and the store answered.
    pub candidate: Option<CandidateExplanation>,
    /// Open holds and known ids of the key; `None` where the store keeps none.
    pub holds: Option<NoteFigures>,
}

/// Where a key stands in the candidate of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CandidateExplanation {
    /// The candidate.
    pub plan: Arc<Plan>,
    /// Whether it would let the next request of cost 1 pass.
    pub allowed: bool,
    /// One for each limit of it.
    pub limits: Vec<LimitExplanation>,
    /// Names of the keys in Redis that hold the state; empty with an embedded store.
    pub redis_names: Vec<String>,
}

/// Where a key stands in one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitExplanation {
    /// The standing, for a request of cost 1.
    pub status: LimitStatus,
    /// Units in use; see [`Reading::used`].
    pub used: u64,
    /// When units come back.
    pub releases: SmallVec<[Release; RELEASES_MAX]>,
}

impl<S: Store> Limiter<S> {
    /// Explains a key. A plan of an unknown name is explained by the default plan, if there is one. A store that does not
    /// answer is not an error: the policy that would then answer is explained.
    ///
    /// Errors: an unknown plan, an overloaded store, or a caller whose deadline passed.
    pub async fn explain(
        &self,
        key: Key,
        plan: &str,
        caller: Option<CallerDeadline>,
    ) -> Result<Explanation, AdminError> {
        let worker_plans = self.worker.worker_plans();
        let snapshot = &worker_plans.snapshot;
        let mut found_by = FoundBy::default();
        let asked = find(snapshot, plan, &mut found_by)?;
        let applied_override = worker_plans.override_of(asked.0, &key);
        let plan = worker_plans.decides(asked, &key, &mut found_by).1.clone();
        let check = Check {
            key,
            plan: plan.clone(),
            cost: Cost::ONE,
            mode: Mode::Peek,
        };
        let redis_names = self.store.names(&check.key, &plan);
        let by_plan = |mut next| {
            note(found_by, &plan, &mut next);
            Explanation {
                key_hash: self.key_hash(&check.key),
                plan: plan.clone(),
                applied_override: applied_override.clone(),
                next,
                limits: Vec::new(),
                redis_names: redis_names.clone(),
                workers_denying: self.workers_denying(&check),
                store_error: None,
                candidate: None,
                holds: None,
            }
        };
        if let Some(next) = self.known(&check, None) {
            return Ok(by_plan(next));
        }
        let read = self.explain_read(&check, self.admin_deadline());
        match in_caller_time(caller, read).await? {
            Ok((next, limits, candidate, figures)) => {
                let names = self.names_of_holds(&check, &figures);
                let mut explained = Explanation {
                    limits,
                    candidate,
                    holds: Some(figures),
                    ..by_plan(next)
                };
                explained.redis_names.extend(names);
                Ok(explained)
            }
            Err(error @ StoreError::Overloaded(_)) => Err(error.into()),
            Err(error) => {
                let next = self.answer_without_store(snapshot, &check, &error);
                let limits = next.limits().iter().map(unread).collect();
                Ok(Explanation {
                    limits,
                    store_error: Some(error),
                    ..by_plan(next)
                })
            }
        }
    }

    /// The names in Redis that hold the open holds and known ids of a key, if it has some.
    fn names_of_holds(&self, check: &Check, figures: &NoteFigures) -> Vec<String> {
        if figures.open + figures.known_ids == 0 {
            return Vec::new();
        }
        self.store.hold_names(&check.key, &check.plan)
    }

    /// What the store tells: the next decision, the limits, the candidate, and the open holds and known ids.
    async fn explain_read(
        &self,
        check: &Check,
        deadline: StoreDeadline,
    ) -> Result<
        (
            Decision,
            Vec<LimitExplanation>,
            Option<CandidateExplanation>,
            NoteFigures,
        ),
        StoreError,
    > {
        let Check { key, plan, .. } = check;
        let verdict = self.store.decide_one(check, deadline).await?;
        let figures = self.store.hold_figures(key, plan, deadline).await?;
        let limits = self.explain_limits(check, &verdict, deadline).await;
        if plan.concurrency().is_some() {
            let slots = self.explain_slots(check, (limits, &figures), deadline);
            let (next, limits) = slots.await?;
            return Ok((next, limits, None, figures));
        }
        let candidate = self.explain_candidate(check, deadline).await;
        let next = counted(check, &verdict, DecidedBy::Store);
        Ok((next, limits, candidate, figures))
    }

    /// How a reserve of cost 1 would be decided, and the limits of the plan: those of units, and in its place the one of open holds.
    async fn explain_slots(
        &self,
        check: &Check,
        (mut limits, figures): (Vec<LimitExplanation>, &NoteFigures),
        deadline: StoreDeadline,
    ) -> Result<(Decision, Vec<LimitExplanation>), StoreError> {
        let peek = HoldCheck {
            key: check.key.clone(),
            plan: check.plan.clone(),
            id: Box::default(),
            call: HoldCall::Peek { cost: 1 },
        };
        let view = self.store.decide_hold(&peek, deadline).await?.view;
        let next = view.decision(&check.plan, Cost::ONE);
        let next = next.shadowed_if(check.plan.shadow);
        let ends = figures.slot_ends_us.iter().copied();
        let release = |(units, after_us)| Release { units, after_us };
        let of_slots = next.limits().iter().position(|row| row.is_of_slots());
        if let (Some(place), Some(slots)) = (of_slots, view.slots) {
            let explained = LimitExplanation {
                status: next.limits()[place].clone(),
                used: slots.open.into(),
                releases: (1..).zip(ends).map(release).collect(),
            };
            limits.insert(place.min(limits.len()), explained);
        }
        Ok((next, limits))
    }

    /// Asks the plan's candidate as a plan of its own, since the store shows it no peek by the live plan.
    async fn explain_candidate(
        &self,
        check: &Check,
        deadline: StoreDeadline,
    ) -> Option<CandidateExplanation> {
        let plan = check.plan.candidate.clone()?;
        let check = Check {
            plan,
            ..check.clone()
        };
        let verdict = self.store.decide_one(&check, deadline).await.ok()?;
        let limits = self.explain_limits(&check, &verdict, deadline).await;
        let redis_names = self.store.names(&check.key, &check.plan);
        Some(CandidateExplanation {
            plan: check.plan,
            allowed: verdict.fits,
            limits,
            redis_names,
        })
    }

    /// Explains the limits of a verdict, in their order.
    async fn explain_limits(
        &self,
        check: &Check,
        verdict: &Verdict,
        deadline: StoreDeadline,
    ) -> Vec<LimitExplanation> {
        let limits = check.plan.limits();
        let waits = self.waits(check, verdict, deadline).await;
        let statuses = verdict.statuses(limits, check.cost).into_iter();
        let explained = statuses.zip(limits).zip(&verdict.readings).enumerate().map(
            |(limit_index, ((status, limit), reading))| {
                // Nothing passes before the end of a block, not even what is free.
                let blocked_us = verdict.block(limit_index).left_us;
                let free = reading.remaining(limit).min(limit.capacity());
                let blocked = (blocked_us > 0 && free > 0).then_some((free, blocked_us));
                let own = waits
                    .iter()
                    .filter(|(of, ..)| *of == limit_index)
                    .map(|(_, cost, wait_us)| (*cost, (*wait_us).max(blocked_us)));
                LimitExplanation {
                    status,
                    used: reading.used(limit),
                    releases: releases(blocked.into_iter().chain(own)),
                }
            },
        );
        explained.collect()
    }

    /// Waits until costs fit again: the index of the limit, the cost, and the wait in microseconds. Reads logs again, once for each
    /// cost. Where the store does not answer that, its points are missing.
    async fn waits(
        &self,
        check: &Check,
        verdict: &Verdict,
        deadline: StoreDeadline,
    ) -> Vec<(usize, u64, u64)> {
        let limits = check.plan.limits();
        let points: Vec<(usize, u64)> = limits
            .iter()
            .zip(&verdict.readings)
            .enumerate()
            .flat_map(|(limit_index, (limit, reading))| {
                release_costs(limit, reading)
                    .into_iter()
                    .map(move |cost| (limit_index, cost))
            })
            .collect();
        let is_log = |limit_index: usize| {
            matches!(verdict.readings.get(limit_index), Some(Reading::Log { .. }))
        };
        let of_logs = points
            .iter()
            .filter(|(limit_index, _)| is_log(*limit_index));
        let peeks: Vec<Check> = of_logs
            .filter_map(|(limit_index, cost)| peek_at(check, *limit_index, *cost))
            .collect();
        let answers = if peeks.is_empty() {
            Vec::new()
        } else {
            self.store.decide_batch(&peeks, deadline).await
        };
        let mut answers = answers.into_iter();
        points
            .into_iter()
            .filter_map(|(limit_index, cost)| {
                let limit = limits.get(limit_index)?;
                let first = *verdict.readings.get(limit_index)?;
                let reading = if is_log(limit_index) {
                    answers.next()?.ok()?.readings.first().copied()?
                } else {
                    first
                };
                // An embedded store reads its clock for each. What has passed since the first reading is added, so that all
                // points are told from one instant.
                let passed_us = first
                    .fresh_in_us(limit)
                    .saturating_sub(reading.fresh_in_us(limit));
                Some((limit_index, cost, reading.wait_us(limit, cost) + passed_us))
            })
            .collect()
    }

    /// Workers of this process that would deny this check from memory.
    fn workers_denying(&self, check: &Check) -> usize {
        let charge = Check {
            mode: Mode::Charge,
            ..check.clone()
        };
        let now_us = self.monotonic_us(self.common.clock.monotonic());
        let workers = self.common.registry().workers();
        let denies = |cache: &super::DenyCache| cache.lookup(&charge, now_us).is_some();
        workers
            .iter()
            .filter(|worker| worker.denials.as_ref().is_some_and(denies))
            .count()
    }
}

/// The plan of this name, or else the default plan.
fn find<'a>(
    snapshot: &'a PlanSnapshot,
    name: &str,
    found_by: &mut FoundBy,
) -> Result<(usize, &'a Arc<Plan>), AdminError> {
    let plans = snapshot.plans();
    let found = plans.find(name).or_else(|unknown| {
        found_by.is_other = true;
        plans.default_plan().ok_or(unknown)
    });
    Ok(found.map_err(|unknown| plans.suggest(unknown))?)
}

/// Asks for one cost of one limit. The state of a limit is found by the limit alone, so the plan needs no other.
fn peek_at(check: &Check, limit: usize, cost: u64) -> Option<Check> {
    let limit: Limit = check.plan.limits().get(limit)?.clone();
    let plan = Arc::new(Plan {
        rule: Rule::limits([limit]),
        ..Plan::clone(&check.plan)
    });
    Some(Check {
        plan,
        cost: Cost::new(cost).ok()?,
        ..check.clone()
    })
}

/// The standing in a limit of the local fallback, whose readings are not kept.
fn unread(status: &LimitStatus) -> LimitExplanation {
    let used = status.capacity.saturating_sub(status.remaining);
    LimitExplanation {
        status: status.clone(),
        used,
        releases: SmallVec::new(),
    }
}

#[cfg(test)]
mod tests;
