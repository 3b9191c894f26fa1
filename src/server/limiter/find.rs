//! Which plan decides a request: that of the name, or the default plan, or what an override puts in its place for a key.

use std::sync::Arc;

use super::Limiter;
use super::metrics::{LimiterCounter, WorkerPlans};
use tollgate_core::decision::Decision;
use tollgate_core::key::Key;
use tollgate_core::plan::{OverrideSource, Plan, PlanOverride, UnknownPlan};
use tollgate_store::Check;

/// The plans of a worker, and which of them counts a decision.
#[derive(Clone, Copy)]
pub(super) struct CountedPlan<'a> {
    pub(super) worker_plans: &'a WorkerPlans,
    /// Its index. `None`: the plan is none of the config.
    pub(super) index: Option<usize>,
    pub(super) found_by: FoundBy,
}

/// How the plan that decides a request was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FoundBy {
    /// Whether it is another one than the request names.
    pub(super) is_other: bool,
    /// Who set the override that took part, if one did.
    pub(super) overridden: Option<OverrideSource>,
}

/// A check with the plan that decides it.
pub(super) struct Found {
    pub(super) check: Check,
    pub(super) plan_index: usize,
    pub(super) found_by: FoundBy,
}

impl WorkerPlans {
    /// The override that holds for this key in place of the plan at this index.
    pub(super) fn override_of(&self, plan_index: usize, key: &Key) -> Option<Arc<PlanOverride>> {
        let applied = self.overrides.find(plan_index, key.as_str());
        applied.map(|applied| applied.entry.clone())
    }

    /// The plan that decides requests for this key in place of the plan at this index, and its index. Notes in `found_by` if it is
    /// another one, or has other numbers.
    #[inline]
    pub(super) fn decides<'a>(
        &'a self,
        (plan_index, plan): (usize, &'a Arc<Plan>),
        key: &Key,
        found_by: &mut FoundBy,
    ) -> (usize, &'a Arc<Plan>) {
        let Some(applied) = self.overrides.find(plan_index, key.as_str()) else {
            return (plan_index, plan);
        };
        found_by.is_other |= applied.plan_index != plan_index;
        found_by.overridden = Some(applied.entry.source);
        (applied.plan_index, &applied.plan)
    }
}

impl<S> Limiter<S> {
    /// Replaces the name of a check's plan by the plan that decides: that of the name, or the default plan if the name is unknown, or
    /// what an override puts in its place for this key.
    pub(super) fn find_plan(
        &self,
        worker_plans: &WorkerPlans,
        check: Check<String>,
    ) -> Result<Found, UnknownPlan> {
        let plans = worker_plans.snapshot.plans();
        let mut found_by = FoundBy::default();
        let asked = plans.find(&check.plan).or_else(|unknown| {
            found_by.is_other = true;
            let default = plans.default_plan();
            let by_default = usize::from(default.is_some());
            self.worker.metrics.count(LimiterCounter::UnknownPlans, 1);
            self.worker
                .metrics
                .count(LimiterCounter::ByDefaultPlan, by_default);
            self.common
                .unknown_plans
                .log(plans, &unknown, self.common.clock.monotonic());
            default.ok_or(unknown)
        })?;
        let (plan_index, plan) = worker_plans.decides(asked, &check.key, &mut found_by);
        let check = Check {
            key: check.key,
            plan: plan.clone(),
            cost: check.cost,
            mode: check.mode,
        };
        Ok(Found {
            check,
            plan_index,
            found_by,
        })
    }

    /// The same for a request that does not come with hundreds of others: the name nearest to an unknown one is looked for.
    #[inline]
    pub(super) fn find_or_suggest(
        &self,
        worker_plans: &WorkerPlans,
        check: Check<String>,
    ) -> Result<Found, UnknownPlan> {
        let found = self.find_plan(worker_plans, check);
        found.map_err(|unknown| worker_plans.snapshot.plans().suggest(unknown))
    }

    /// Counts how many limits decide requests that name a plan and a key, by the plans that are in force now.
    pub fn limit_counter(&self) -> impl Fn(&str, &str) -> usize + use<S> {
        let worker_plans = self.worker.worker_plans();
        move |plan, key| {
            let asked = worker_plans.snapshot.plans().find_or_default(plan);
            asked.map_or(0, |(plan_index, plan)| {
                let applied = worker_plans.overrides.find(plan_index, key);
                let plan = applied.map_or(plan, |applied| &applied.plan);
                plan.limits().len()
            })
        }
    }
}

impl Found {
    pub(super) fn counted_in<'a>(&self, worker_plans: &'a WorkerPlans) -> CountedPlan<'a> {
        CountedPlan {
            worker_plans,
            index: Some(self.plan_index),
            found_by: self.found_by,
        }
    }
}

/// Notes which plan decided where it is not the one that the request names, or has other numbers.
#[cold]
pub(super) fn note(found_by: FoundBy, plan: &Plan, decision: &mut Decision) {
    decision.other_plan = found_by.is_other.then(|| plan.name.clone());
    decision.overridden = found_by.overridden.is_some();
}
