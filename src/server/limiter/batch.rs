//! Requests that are decided in their order, in one call to the store.

use std::sync::Arc;

use super::{CallerDeadline, Limiter, Refusal};
use tollgate_core::decision::Decision;
use tollgate_core::plan::Plan;
use tollgate_store::{Check, Store};

impl<S: Store> Limiter<S> {
    /// Decides checks in their order, with one answer each in the same order. The store gets its own deadline, and after that
    /// each request is answered by its plan's policy.
    ///
    /// Errors: [`Refusal`] per request, without a suggested name for an unknown plan. [`Refusal::CallerDeadline`] for all of
    /// them together, when a shorter deadline of the caller passed before all were answered.
    pub async fn decide_batch(
        &self,
        checks: Vec<Check<String>>,
        caller: Option<CallerDeadline>,
    ) -> Result<Vec<Result<Decision, Refusal>>, Refusal> {
        let decided = self.decide_batch_with_plans(checks, caller).await?;
        let without_plan = |decided: Result<_, _>| decided.map(|(decision, _)| decision);
        Ok(decided.into_iter().map(without_plan).collect())
    }

    /// Like [`Self::decide_batch`], and also returns the plan of each decision.
    pub async fn decide_batch_with_plans(
        &self,
        requests: Vec<Check<String>>,
        caller: Option<CallerDeadline>,
    ) -> Result<Vec<Result<(Decision, Arc<Plan>), Refusal>>, Refusal> {
        let worker_plans = self.worker.worker_plans();
        let started_at = self.call_start();
        let count = requests.len();
        // For each request what counts it, with its check apart, for the store; or `None`, and apart what is known without the store.
        let mut asked = Vec::with_capacity(count);
        let mut checks = Vec::with_capacity(count);
        let mut known = Vec::new();
        for request in requests {
            let decided = match self.find_plan(&worker_plans, request) {
                Err(unknown) => Err(unknown.into()),
                Ok(found) if found.check.plan.concurrency().is_some() => {
                    Err(Refusal::NeedsReserve(found.check.plan.name.clone()))
                }
                Ok(found) => {
                    let plans = found.counted_in(&worker_plans);
                    // A denial that holds stays true, whatever the requests before this one are granted.
                    match self.decide_without_store(plans, &found.check, started_at) {
                        Some(decision) => Ok((decision, found.check.plan)),
                        None => {
                            asked.push(Some(plans));
                            checks.push(found.check);
                            continue;
                        }
                    }
                }
            };
            asked.push(None);
            known.push(decided);
        }
        if checks.is_empty() {
            return Ok(known);
        }
        let waiting = self.count_waiting(started_at, checks.len());
        let mut answers = Box::pin(self.ask(&checks, self.caller_limit(caller))).await?;
        let at = (started_at, self.record_call_time(started_at));
        drop(waiting);
        let mut known = known.into_iter();
        let mut checks = checks.into_iter();
        let mut decisions = Vec::with_capacity(count);
        for plans in asked {
            let asked = plans.and_then(|plans| Some((plans, checks.next()?)));
            let Some((plans, check)) = asked else {
                decisions.extend(known.next());
                continue;
            };
            let answer = answers.take(&check);
            let decided = self.decide_by_answer(plans, &check, &answer, at);
            decisions.push(decided.map(|decision| (decision, check.plan)));
        }
        Ok(decisions)
    }
}
