//! Joint decisions: several requests that all pass and are charged, or of which none is charged.
//!
//! What one request alone would be told, [`super`] knows. Here are the ways in which that depends on the others.

mod refusal;

use std::sync::Arc;
use std::time::Duration;

use super::caller_deadline::{CallerDeadlinePassed, in_time, within_deadline};
use super::holds::needs_no_reserve;
use super::store_call::candidate_check;
use super::uncounted::without_state;
use super::{CallerDeadline, CountedPlan, Found, FoundBy, Limiter, LimiterCounter};
use super::{PlanSnapshot, Refusal, WorkerPlans};
pub use refusal::JointRefusal;
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::{DecidedBy, Decision, Outcome};
use tollgate_core::joint::{JointDecision, Sums};
use tollgate_core::key::Cost;
use tollgate_core::plan::Plan;
use tollgate_store::{
    Check, JointFailure, Store, StoreDeadline, StoreError, Verdict, adds_up, all_fit, has_charges,
};

/// A stand-in for the answer of a store that is too late for the caller. Policies treat it as any store that fails.
pub(super) const TOO_LATE: StoreError = StoreError::Deadline(Duration::ZERO);

/// A request with its plan, and what is known of it without the store.
pub(super) struct PlannedRequest {
    /// The index of the plan that counts it, if one of the config does.
    plan_index: Option<usize>,
    found_by: FoundBy,
    check: Check,
    known: Option<Decision>,
}

/// How long a joint decision waits for the store.
#[derive(Clone, Copy)]
pub(super) enum WaitFor {
    /// Until this deadline of a caller, if it is the shorter one. The request is refused then.
    Caller(Option<CallerDeadline>),
    /// For so long at most, where a proxy must have an answer. Policies decide then, and the store is not blamed.
    Proxy(Option<Duration>),
}

impl<S: Store> Limiter<S> {
    /// Decides checks together: all are charged, or none. There are 1 to [`tollgate_core::joint::REQUESTS_MAX`] of them, charges and
    /// peeks; a peek among charges may deny the whole, and takes nothing. Returns also the plans that decided, in the order of the checks.
    /// One check is decided as by [`Self::decide`].
    ///
    /// Remembered denials are not used: the answer has the numbers of every request.
    pub async fn decide_joint(
        &self,
        checks: Vec<Check<String>>,
        caller: Option<CallerDeadline>,
    ) -> Result<(JointDecision, Vec<Arc<Plan>>), JointRefusal> {
        let is_peek = checks.iter().all(|check| check.mode == Mode::Peek);
        let (joint, plans) = match <[Check<String>; 1]>::try_from(checks) {
            Ok([check]) => {
                let (decision, plan) = self.decide_with_plan(check, caller).await?;
                (JointDecision::new(vec![decision]), vec![plan])
            }
            Err(checks) => {
                let worker_plans = self.worker.worker_plans();
                let parts = self.parts(&worker_plans, checks)?;
                let wait_for = WaitFor::Caller(caller);
                let decisions = self.decide_parts(&worker_plans, &parts, wait_for).await?;
                let plans = parts.into_iter().map(|part| part.check.plan);
                (decisions, plans.collect())
            }
        };
        if !is_peek {
            self.count_joint(joint.outcome);
        }
        Ok((joint, plans))
    }

    /// Counts a joint decision by its outcome: allowed, denied or never fits.
    pub(super) fn count_joint(&self, outcome: Outcome) {
        self.worker.metrics.count_joint(outcome);
    }

    /// Finds the plan of each check, and decides what needs no store.
    fn parts(
        &self,
        worker_plans: &WorkerPlans,
        checks: Vec<Check<String>>,
    ) -> Result<Vec<PlannedRequest>, JointRefusal> {
        let find = |(index, check)| {
            let found = self.find_or_suggest(worker_plans, check);
            found.map_err(|unknown| JointRefusal {
                request: Some(index),
                refusal: unknown.into(),
            })
        };
        let found = checks.into_iter().enumerate().map(find);
        let counted = |found: Found| (Some(found.plan_index), found.found_by, found.check);
        let found: Vec<_> = found
            .map(|found| found.map(counted))
            .collect::<Result<_, _>>()?;
        for (index, (_, _, check)) in found.iter().enumerate() {
            needs_no_reserve(&check.plan).map_err(|refusal| JointRefusal {
                request: Some(index),
                refusal,
            })?;
        }
        Ok(PlannedRequest::all(found))
    }

    /// Decides parts together, and counts them. There is at least one.
    pub(super) async fn decide_parts(
        &self,
        worker_plans: &WorkerPlans,
        parts: &[PlannedRequest],
        wait_for: WaitFor,
    ) -> Result<JointDecision, Refusal> {
        let checks: Vec<Check> = parts
            .iter()
            .filter(|part| part.known.is_none())
            .map(|part| part.check.clone())
            .collect();
        let is_denied =
            |part: &PlannedRequest| part.known.as_ref().is_some_and(|known| !known.allowed());
        if checks.is_empty() || parts.iter().any(is_denied) {
            let mut joint = decided_by_plans(parts);
            self.count_parts(worker_plans, parts, &mut joint, Duration::ZERO);
            return Ok(joint);
        }
        let started_at = self.call_start();
        let waiting = self.count_waiting(started_at, checks.len());
        let answer = self.ask_jointly(&checks, wait_for).await;
        let took = self.record_call_time(started_at);
        drop(waiting);
        let snapshot = &worker_plans.snapshot;
        let decided = match answer {
            Ok(Ok(verdicts)) => {
                self.common.failures.decided(&*self.common.clock);
                tested(&checks, &verdicts, DecidedBy::Store)
            }
            Ok(Err(failure)) => {
                self.decide_after_failure(snapshot, &checks, failure)
                    .await?
            }
            Err(CallerDeadlinePassed) => match wait_for {
                WaitFor::Caller(_) => return Err(Refusal::CallerDeadline),
                WaitFor::Proxy(_) => self.decide_by_policies(snapshot, &checks, &TOO_LATE, false),
            },
        };
        let mut decided = decided.into_iter();
        let decisions = parts.iter().filter_map(|part| {
            let known = part.known.clone();
            known.or_else(|| decided.next())
        });
        let mut joint = JointDecision::new(decisions.collect());
        let left = StoreDeadline(self.common.settings.deadline.saturating_sub(took));
        let candidates = self.ask_candidates(parts, &mut joint, left);
        // A candidate's answer that is too late for the caller is not counted. The decision is told all the same.
        let _ = match wait_for {
            WaitFor::Caller(caller) => {
                let caller = caller.map(|caller| caller.reduced_by(took));
                within_deadline(caller, left, candidates).await
            }
            WaitFor::Proxy(limit) => {
                in_time(
                    limit.map_or(left.0, |limit| limit.saturating_sub(took)),
                    candidates,
                )
                .await
            }
        };
        self.count_parts(worker_plans, parts, &mut joint, took);
        Ok(joint)
    }

    /// Asks the store about checks together. Errors: it was too late for the caller.
    async fn ask_jointly(
        &self,
        checks: &[Check],
        wait_for: WaitFor,
    ) -> Result<Result<Vec<Verdict>, JointFailure>, CallerDeadlinePassed> {
        let asked = self.store.decide_joint(checks, self.store_deadline());
        let limit = match wait_for {
            WaitFor::Caller(caller) => self.caller_limit(caller),
            WaitFor::Proxy(limit) => limit,
        };
        let Some(limit) = limit else {
            return Ok(asked.await);
        };
        match in_time(limit, asked).await {
            // A store that used up its deadline took longer than the caller had, whichever timer fired first.
            Ok(Err(JointFailure {
                error: StoreError::Deadline(_),
                ..
            }))
            | Err(CallerDeadlinePassed) => {
                let deadlines = LimiterCounter::CallerDeadlines;
                self.worker.metrics.count(deadlines, checks.len());
                Err(CallerDeadlinePassed)
            }
            Ok(answer) => Ok(answer),
        }
    }

    /// Asks the candidates of the plans that decided, within what is left of the store's time. One whose request could pass, but for
    /// another one, is not asked: its subject was not charged, and neither is what is counted for the candidate.
    async fn ask_candidates(
        &self,
        parts: &[PlannedRequest],
        joint: &mut JointDecision,
        deadline: StoreDeadline,
    ) {
        let asked = parts.iter().zip(&mut joint.decisions).filter_map(|pair| {
            let (part, decision) = pair;
            let is_by_store = decision.decided_by == DecidedBy::Store;
            let is_own = decision.outcome != Outcome::OtherDenied;
            let candidate = candidate_check(&part.check).filter(|_| is_by_store && is_own)?;
            Some((decision, candidate))
        });
        let (decisions, checks): (Vec<_>, Vec<_>) = asked.unzip();
        if checks.is_empty() {
            return;
        }
        let answers = self.store.decide_batch(&checks, deadline).await;
        for (decision, answer) in decisions.into_iter().zip(answers) {
            decision.candidate_allowed = answer.ok().map(|verdict| verdict.fits);
        }
    }

    fn count_parts(
        &self,
        worker_plans: &WorkerPlans,
        parts: &[PlannedRequest],
        joint: &mut JointDecision,
        took: Duration,
    ) {
        for (part, decision) in parts.iter().zip(&mut joint.decisions) {
            let plans = CountedPlan {
                worker_plans,
                index: part.plan_index,
                found_by: part.found_by,
            };
            self.count(plans, &part.check, decision, took);
        }
    }

    /// Answers the checks that the store did not decide by their plans' policies. Still all are counted, or none.
    async fn decide_after_failure(
        &self,
        snapshot: &PlanSnapshot,
        checks: &[Check],
        failure: JointFailure,
    ) -> Result<Vec<Decision>, Refusal> {
        let JointFailure {
            error,
            mut answered,
            charged,
        } = failure;
        answered.resize(checks.len(), None);
        let pairs = || checks.iter().cloned().zip(&answered);
        let (told, mut verdicts): (Vec<Check>, Vec<Verdict>) = pairs()
            .filter_map(|(check, verdict)| Some((check, verdict.clone()?)))
            .unzip();
        let open = pairs().filter(|(_, verdict)| verdict.is_none());
        let open: Vec<Check> = open.map(|(check, _)| check).collect();
        let is_denied = !all_fit(&told, &verdicts);
        let by_policy = self.decide_without_answer(snapshot, &open, &error, is_denied);
        let passes = by_policy
            .as_ref()
            .is_ok_and(|decisions| decisions.iter().all(Decision::allowed));
        if let Some(charged) = charged {
            if passes {
                charged.keep();
            } else {
                let undone: Vec<_> = charged.undo().await.into_iter().flatten().collect();
                // None, if the store's task is lost.
                if undone.len() == verdicts.len() {
                    verdicts = undone;
                }
            }
        }
        let mut by_policy = by_policy?.into_iter();
        let mut by_store = tested(&told, &verdicts, DecidedBy::Store).into_iter();
        let next = |verdict: &Option<Verdict>| match verdict {
            Some(_) => by_store.next(),
            None => by_policy.next(),
        };
        Ok(answered.iter().filter_map(next).collect())
    }

    /// Answers each check by its plan's policy. `is_denied` says that the whole is denied whatever they say.
    fn decide_without_answer(
        &self,
        snapshot: &PlanSnapshot,
        checks: &[Check],
        error: &StoreError,
        is_denied: bool,
    ) -> Result<Vec<Decision>, Refusal> {
        // It is not known which of several the store refused.
        let subject = match checks {
            [only] => Some((&only.key, &*only.plan)),
            _ => None,
        };
        checks
            .iter()
            .for_each(|_| self.count_failure(subject, error));
        if !is_denied && matches!(error, StoreError::Overloaded(_)) {
            return Err(Refusal::Overloaded);
        }
        Ok(self.decide_by_policies(snapshot, checks, error, is_denied))
    }
}

/// The decision by what is known without the store. Parts of which nothing is known could pass.
fn decided_by_plans(parts: &[PlannedRequest]) -> JointDecision {
    let by_plan = || Decision::uncounted(Outcome::Allowed, DecidedBy::Plan, None);
    let known = |part: &PlannedRequest| part.known.clone().unwrap_or_else(by_plan);
    JointDecision::new(parts.iter().map(known).collect())
}

/// A check, with what counts it: the index of a plan of the config, if it is one, and how that was found.
pub(super) type CountedCheck = (Option<usize>, FoundBy, Check);

impl PlannedRequest {
    /// The parts of a joint decision. Decides what needs no store.
    pub(super) fn all(found: Vec<CountedCheck>) -> Vec<Self> {
        let checks: Vec<&Check> = found.iter().map(|(.., check)| check).collect();
        let known: Vec<Option<Decision>> = sums_without_shadow(&checks)
            .into_iter()
            .zip(&checks)
            .map(|(cost, check)| without_state(&check.plan, cost))
            .collect();
        let part = |((plan_index, found_by, check), known)| Self {
            plan_index,
            found_by,
            check,
            known,
        };
        found.into_iter().zip(known).map(part).collect()
    }
}

/// The decisions by verdicts on checks that were decided together.
pub(super) fn tested(checks: &[Check], verdicts: &[Verdict], by: DecidedBy) -> Vec<Decision> {
    let are_charged = has_charges(checks) && all_fit(checks, verdicts);
    let mut sums = Sums::default();
    let mut decisions = Vec::with_capacity(checks.len());
    for (check, verdict) in checks.iter().zip(verdicts) {
        let plan = &check.plan;
        let key = &check.key;
        let sum = sums.tested_cost(&plan.counts_as, key, check.cost);
        if (verdict.fits || !plan.shadow) && adds_up(check, checks) {
            sums.add(&plan.counts_as, key, check.cost);
        }
        // Where the others were charged, it was told as if it had been asked after them.
        let cost = if are_charged { check.cost } else { sum };
        let outcome = match plan.never_fits(cost) {
            _ if verdict.fits => Outcome::Allowed,
            Some(_) => Outcome::NeverFits,
            None => Outcome::Denied,
        };
        let never_fits = outcome == Outcome::NeverFits;
        // A wait is known only for a cost that fits.
        let cost = if never_fits { Cost::ONE } else { cost };
        let mut statuses = verdict.statuses(plan.limits(), cost);
        if never_fits {
            statuses
                .iter_mut()
                .for_each(|status| status.retry_after_us = None);
        }
        decisions.push(Decision::counted(outcome, by, statuses).shadowed_if(plan.shadow));
    }
    decisions
}

/// What each check is tested with, apart from what plans in shadow mode add: that depends on whether they fit, which only the store
/// knows.
pub(super) fn sums_without_shadow(checks: &[&Check]) -> Vec<Cost> {
    let mut sums = Sums::default();
    let mut tested = Vec::new();
    // As the store sees them, which is asked only where something is counted.
    let counts = |check: &Check| !check.plan.limits().is_empty();
    let charges = checks
        .iter()
        .any(|check| check.mode == Mode::Charge && counts(check));
    for check in checks {
        let counts_as = &check.plan.counts_as;
        let key = &check.key;
        tested.push(sums.tested_cost(counts_as, key, check.cost));
        if counts(check) && !check.plan.shadow && (check.mode == Mode::Charge || !charges) {
            sums.add(counts_as, key, check.cost);
        }
    }
    tested
}
