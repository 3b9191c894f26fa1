//! Decisions for which no state was read: by the plan alone, and statuses of limits that were not asked.

use tollgate_core::decision::{DecidedBy, Decision, LimitStatus, Outcome};
use tollgate_core::key::Cost;
use tollgate_core::plan::{Plan, Rule};

/// What a plan decides alone: where it has no limits, or the cost never fits.
#[inline]
pub(super) fn without_state(plan: &Plan, cost: Cost) -> Option<Decision> {
    let by_plan = |outcome| Decision::uncounted(outcome, DecidedBy::Plan, None);
    let decision = match &plan.rule {
        Rule::Unlimited => by_plan(Outcome::Allowed),
        Rule::Blocked => by_plan(Outcome::Denied),
        Rule::Limits(_) => {
            let status = untouched(plan, plan.never_fits(cost)?);
            Decision::uncounted(Outcome::NeverFits, DecidedBy::Plan, Some(status))
        }
    };
    Some(decision.shadowed_if(plan.shadow))
}

/// The status of a limit that was not read: its own numbers, with nothing remaining for such a cost.
pub(super) fn untouched(plan: &Plan, limit: usize) -> LimitStatus {
    let limit = &plan.limits()[limit];
    LimitStatus {
        name: limit.name().clone(),
        limit: limit.quota(),
        window_us: limit.shown_window_us(),
        frees_at_once: false,
        capacity: limit.capacity(),
        remaining: 0,
        retry_after_us: None,
        reset_after_us: 0,
        blocked_for_us: 0,
        begins_block: false,
        first_end_us: 0,
    }
}
