//! The plan of a hold whose key is led to another plan now.

use std::sync::Arc;

use super::counts;
use crate::limiter::{Found, FoundBy, WorkerPlans};
use tollgate_core::algorithm::holds::HoldCall;
use tollgate_core::key::Key;
use tollgate_core::plan::Plan;

impl WorkerPlans {
    /// The plan that decided a reserve, as it is now for this key. Where it counts elsewhere now, or is gone: as it was, since its hold
    /// is where it was.
    pub(in crate::limiter) fn plan_of_hold(&self, key: &Key, held_by: &Arc<Plan>) -> Arc<Plan> {
        let is_it = |plan: &&Arc<Plan>| {
            plan.name == held_by.name && plan.counts_as == held_by.counts_as && counts(plan)
        };
        let now = self.snapshot.plans().find(&held_by.name).ok();
        let for_key = now.map(|now| self.decides(now, key, &mut FoundBy::default()).1);
        let now = for_key
            .filter(is_it)
            .or(now.map(|(_, plan)| plan).filter(is_it));
        now.unwrap_or(held_by).clone()
    }
}

impl Found {
    /// Makes this plan the one that was found, where an id is known under it, and an override led to the other, or the call ends or
    /// prolongs a hold. Returns whether it is one of the same count, which may decide this call.
    pub(super) fn moves_to(
        &mut self,
        worker_plans: &WorkerPlans,
        (plan, call): (&str, &HoldCall),
    ) -> bool {
        let Ok((index, plan)) = worker_plans.snapshot.plans().find(plan) else {
            return false;
        };
        let plan = worker_plans.plan_of_hold(&self.check.key, plan);
        let present = &self.check.plan;
        let is_of_hold = matches!(call, HoldCall::Settle { .. } | HoldCall::Extend { .. });
        let may_decide = plan.concurrency().is_some() == present.concurrency().is_some()
            && plan.never_fits(self.check.cost).is_none();
        let moves = plan.name != present.name
            && plan.counts_as == present.counts_as
            && counts(&plan)
            && (is_of_hold || self.found_by.overridden.is_some() && may_decide);
        if moves {
            (self.plan_index, self.check.plan) = (index, plan);
            // The request may have named it.
            (self.found_by.is_other, self.found_by.overridden) = (true, None);
        }
        moves
    }
}
