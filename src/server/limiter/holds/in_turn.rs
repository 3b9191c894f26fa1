//! Batches of which some requests have an id: each request is a store call of its own, one after another.

use std::sync::Arc;
use std::time::Duration;

use super::{RequestId, needs_no_reserve};
use crate::limiter::joint::TOO_LATE;
use crate::limiter::{CallerDeadline, Limiter, Refusal};
use tollgate_core::decision::{DecidedBy, Decision};
use tollgate_core::plan::Plan;
use tollgate_store::{Check, Store};

/// Time after which a batch with ids asks the store for no further request. Each of its requests is a call of its own.
const TURNS_MAX: Duration = Duration::from_secs(1);

impl<S: Store> Limiter<S> {
    /// Decides checks one after another, of which some have an id. One result each, in the same order. Once calls to a store that failed
    /// took its deadline, policies decide the others without it, so that not each of them waits. After [`TURNS_MAX`] with a store that
    /// answers, the others are refused as [`Refusal::Overloaded`].
    ///
    /// Errors: the caller's deadline passed before all were decided.
    pub async fn decide_in_turn(
        &self,
        checks: Vec<(Check<String>, Option<RequestId>)>,
        caller: Option<CallerDeadline>,
    ) -> Result<Vec<Result<(Decision, Arc<Plan>), Refusal>>, Refusal> {
        let started_at = self.common.clock.monotonic();
        let deadline = self.store_deadline().0;
        let mut decisions = Vec::with_capacity(checks.len());
        let mut took = Duration::ZERO;
        let mut failed_for = Duration::ZERO;
        for (check, id) in checks {
            let left = caller.map(|caller| caller.reduced_by(took));
            let decided = match id {
                _ if failed_for >= deadline => self.decide_by_policy(check),
                _ if took > TURNS_MAX => Err(Refusal::Overloaded),
                Some(id) => self.decide_with_id(check, id, left).await,
                None => self.decide_with_plan(check, left).await,
            };
            if matches!(decided, Err(Refusal::CallerDeadline)) {
                return Err(Refusal::CallerDeadline);
            }
            let now = self.common.clock.monotonic();
            let before = std::mem::replace(&mut took, now.saturating_duration_since(started_at));
            if decided.as_ref().is_ok_and(is_by_policy) {
                failed_for += took.saturating_sub(before);
            }
            decisions.push(decided);
        }
        Ok(decisions)
    }

    /// Decides a charge without the store, by what the plan says for that. That is no failure of the store.
    fn decide_by_policy(&self, check: Check<String>) -> Result<(Decision, Arc<Plan>), Refusal> {
        let (worker_plans, found) = self.find_for_holds(check)?;
        needs_no_reserve(&found.check.plan)?;
        let plans = found.counted_in(&worker_plans);
        let known = self.decide_without_store(plans, &found.check, None);
        let decision = known.unwrap_or_else(|| {
            let snapshot = &worker_plans.snapshot;
            let mut decision = self.answer_without_store(snapshot, &found.check, &TOO_LATE);
            self.count(plans, &found.check, &mut decision, Duration::ZERO);
            decision
        });
        Ok((decision, found.check.plan))
    }
}

fn is_by_policy((decision, _): &(Decision, Arc<Plan>)) -> bool {
    use DecidedBy::{FailClosed, FailOpen, LocalFallback};
    matches!(decision.decided_by, FailOpen | FailClosed | LocalFallback)
}
