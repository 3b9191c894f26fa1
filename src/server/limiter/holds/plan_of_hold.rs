//! The plan of a hold whose key is led to another plan now.

use std::sync::Arc;

use super::counts;
use crate::limiter::{Found, FoundBy, WorkerPlans};
use tollgate_core::algorithm::holds::{HoldCall, KnownCall, KnownId};
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
    /// The plan to ask by about an id that is known under another one than was asked. `None`: that is a mistake of the caller.
    pub(super) fn known_under(
        &mut self,
        worker_plans: &WorkerPlans,
        (known, call): (&KnownId, &HoldCall),
    ) -> Option<Arc<Plan>> {
        if self.moves_to(worker_plans, (&known.plan, call)) {
            return Some(self.check.plan.clone());
        }
        self.stand_in(worker_plans, (known, call))
    }

    /// This plan by the name of a hold's, which is gone, has no limits any more, or counts elsewhere. It settles or prolongs the hold as
    /// that plan would with limits that were edited.
    fn stand_in(
        &self,
        worker_plans: &WorkerPlans,
        (known, call): (&KnownId, &HoldCall),
    ) -> Option<Arc<Plan>> {
        let present = &self.check.plan;
        let of_hold = worker_plans.snapshot.plans().find(&known.plan);
        let is_gone =
            !of_hold.is_ok_and(|(_, plan)| plan.counts_as == present.counts_as && counts(plan));
        let is_needed = is_gone && ends_or_prolongs(call) && known.call == KnownCall::Reserve;
        is_needed.then(|| {
            Arc::new(Plan {
                name: known.plan.clone(),
                ..Plan::clone(present)
            })
        })
    }

    /// Makes this plan the one that was found, where an id is known under it, and an override led to the other, or the call ends or
    /// prolongs a hold. Returns whether it is one of the same count, which may decide this call.
    fn moves_to(&mut self, worker_plans: &WorkerPlans, (plan, call): (&str, &HoldCall)) -> bool {
        let Ok((index, plan)) = worker_plans.snapshot.plans().find(plan) else {
            return false;
        };
        let plan = worker_plans.plan_of_hold(&self.check.key, plan);
        let present = &self.check.plan;
        let may_decide = plan.concurrency().is_some() == present.concurrency().is_some()
            && plan.never_fits(self.check.cost).is_none();
        let moves = plan.name != present.name
            && plan.counts_as == present.counts_as
            && counts(&plan)
            && (ends_or_prolongs(call) || self.found_by.overridden.is_some() && may_decide);
        if moves {
            (self.plan_index, self.check.plan) = (index, plan);
            // The request may have named it.
            (self.found_by.is_other, self.found_by.overridden) = (true, None);
        }
        moves
    }
}

fn ends_or_prolongs(call: &HoldCall) -> bool {
    matches!(call, HoldCall::Settle { .. } | HoldCall::Extend { .. })
}
