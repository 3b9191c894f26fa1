//! Joint decisions: several requests that all pass and are charged, or of which none is charged.
//!
//! What one request alone would be told, [`super`] knows. Here are the ways in which that depends on the others.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::admin::within;
use super::caller_deadline::in_time;
use super::store_call::candidate_check;
use super::uncounted::{fail_closed, fail_open, shadowed, untouched, without_state};
use super::{CallerDeadline, CountedPlan, Counter, Found, FoundBy, Limiter};
use super::{PlanSnapshot, Refusal, WorkerPlans};
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::{DecidedBy, Decision, Outcome};
use tollgate_core::joint::{JointDecision, Sums};
use tollgate_core::key::Cost;
use tollgate_core::plan::{OnStoreFailure, Plan, UnknownPlan};
use tollgate_store::{Check, JointFailure, Store, StoreDeadline, StoreError, Verdict, all_fit};

/// Why a joint decision was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JointRefusal {
    /// The request that is at fault, if it is one.
    pub request: Option<usize>,
    /// What is wrong with it, or with the whole.
    pub refusal: Refusal,
}

impl fmt::Display for JointRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.sentence(|index| format!("requests[{index}]")))
    }
}

impl JointRefusal {
    /// What is wrong, and what would be right, where requests have these names.
    pub fn sentence(&self, name: impl Fn(usize) -> String) -> String {
        let (
            Some(index),
            Refusal::UnknownPlan(UnknownPlan {
                name: plan,
                nearest,
            }),
        ) = (self.request, &self.refusal)
        else {
            return self.refusal.to_string();
        };
        let right = match nearest {
            Some(nearest) => format!("did you mean {nearest:?}?"),
            None => "`tollgate plans` lists all plans".to_owned(),
        };
        format!(
            "{}.plan is {plan:?}, which is no plan; {right}",
            name(index)
        )
    }
}

impl From<Refusal> for JointRefusal {
    fn from(refusal: Refusal) -> Self {
        Self {
            request: None,
            refusal,
        }
    }
}

/// A request with its plan, and what is known of it without the store.
struct Part {
    plan_index: usize,
    found_by: FoundBy,
    check: Check,
    known: Option<Decision>,
}

impl<S: Store> Limiter<S> {
    /// Decides checks together: all are charged, or none. There are 1 to [`tollgate_core::joint::REQUESTS_MAX`] of them, all charges or
    /// all peeks. Returns also the plans that decided, in the order of the checks. One check is decided as by [`Self::decide`].
    ///
    /// Remembered denials are not used: the answer has the numbers of every request.
    pub async fn decide_joint(
        &self,
        checks: Vec<Check<String>>,
        caller: Option<CallerDeadline>,
    ) -> Result<(JointDecision, Vec<Arc<Plan>>), JointRefusal> {
        let is_peek = checks.iter().any(|check| check.mode == Mode::Peek);
        let (joint, plans) = match <[Check<String>; 1]>::try_from(checks) {
            Ok([check]) => {
                let (decision, plan) = self.decide_with_plan(check, caller).await?;
                (JointDecision::new(vec![decision]), vec![plan])
            }
            Err(checks) => {
                let worker_plans = self.worker.worker_plans();
                let parts = self.parts(&worker_plans, checks)?;
                let decisions = self.decide_parts(&worker_plans, &parts, caller).await?;
                let plans = parts.into_iter().map(|part| part.check.plan);
                (decisions, plans.collect())
            }
        };
        if !is_peek {
            self.worker.metrics.decided_jointly(joint.outcome);
        }
        Ok((joint, plans))
    }

    /// Finds the plan of each check, and decides what needs no store.
    fn parts(
        &self,
        worker_plans: &WorkerPlans,
        checks: Vec<Check<String>>,
    ) -> Result<Vec<Part>, JointRefusal> {
        let find = |(index, check)| {
            let found = self.find_plan(worker_plans, check);
            found.map_err(|unknown| JointRefusal {
                request: Some(index),
                refusal: worker_plans.snapshot.plans().suggest(unknown).into(),
            })
        };
        let found = checks.into_iter().enumerate().map(find);
        let found = found.collect::<Result<Vec<_>, _>>()?;
        let sums = sums_without_shadow(found.iter().map(|found| &found.check));
        let part = |(found, cost): (Found, Cost)| {
            let check = found.check;
            let known = without_state(&check.plan, cost, check.mode);
            Part {
                plan_index: found.plan_index,
                found_by: found.found_by,
                check,
                known,
            }
        };
        Ok(found.into_iter().zip(sums).map(part).collect())
    }

    async fn decide_parts(
        &self,
        worker_plans: &WorkerPlans,
        parts: &[Part],
        caller: Option<CallerDeadline>,
    ) -> Result<JointDecision, Refusal> {
        let checks: Vec<Check> = parts
            .iter()
            .filter(|part| part.known.is_none())
            .map(|part| part.check.clone())
            .collect();
        let is_denied = |part: &Part| part.known.as_ref().is_some_and(|known| !known.allowed());
        if checks.is_empty() || parts.iter().any(is_denied) {
            let by_plan = || Decision::uncounted(Outcome::Allowed, DecidedBy::Plan, None);
            let decisions = parts
                .iter()
                .map(|part| part.known.clone().unwrap_or_else(by_plan));
            let mut joint = JointDecision::new(decisions.collect());
            self.count_parts(worker_plans, parts, &mut joint, Duration::ZERO);
            return Ok(joint);
        }
        let started_at = self.call_start();
        let waiting = self.count_waiting(started_at, checks.len());
        let asked = self.store.decide_joint(&checks, self.store_deadline());
        let answer = match self.caller_limit(caller) {
            None => asked.await,
            Some(limit) => match in_time(limit, asked).await {
                // A store that used up its deadline took longer than the caller had, whichever timer fired first.
                Ok(Err(JointFailure {
                    error: StoreError::Deadline(_),
                    ..
                }))
                | Err(_) => {
                    self.worker
                        .metrics
                        .count(Counter::CallerDeadlines, checks.len());
                    return Err(Refusal::CallerDeadline);
                }
                Ok(answer) => answer,
            },
        };
        let took = self.record_call_time(started_at);
        drop(waiting);
        let decided = match answer {
            Ok(verdicts) => tested(&checks, &verdicts, DecidedBy::Store),
            Err(failure) => {
                let snapshot = &worker_plans.snapshot;
                self.decide_after_failure(snapshot, &checks, failure)
                    .await?
            }
        };
        let mut decided = decided.into_iter();
        let decisions = parts.iter().filter_map(|part| {
            let known = part.known.clone();
            known.or_else(|| decided.next())
        });
        let mut joint = JointDecision::new(decisions.collect());
        let left = StoreDeadline(self.common.settings.deadline.saturating_sub(took));
        // Too late for the caller, a candidate's answer is only not counted.
        let _ = within(caller, left, self.ask_candidates(parts, &mut joint, left)).await;
        self.count_parts(worker_plans, parts, &mut joint, took);
        Ok(joint)
    }

    /// Asks the candidates of the plans that decided, within what is left of the store's time. One whose request could pass, but for another one, is not asked: its subject was
    /// not charged, and neither is what is counted for the candidate.
    async fn ask_candidates(
        &self,
        parts: &[Part],
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
        parts: &[Part],
        joint: &mut JointDecision,
        took: Duration,
    ) {
        for (part, decision) in parts.iter().zip(&mut joint.decisions) {
            let plans = CountedPlan {
                worker_plans,
                index: Some(part.plan_index),
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
        self.common
            .failures
            .log(error, self.common.clock.monotonic());
        checks
            .iter()
            .for_each(|_| self.worker.metrics.failed(error));
        if !is_denied && matches!(error, StoreError::Overloaded(_)) {
            return Err(Refusal::Overloaded);
        }
        let is_local = |check: &Check| {
            // An embedded store that is full has no second memory to count in.
            check.plan.on_store_failure == OnStoreFailure::Local && *error != StoreError::Full
        };
        let by_policy = |check: &Check| match check.plan.on_store_failure {
            OnStoreFailure::Deny => fail_closed(&check.plan),
            OnStoreFailure::Allow | OnStoreFailure::Local => fail_open(),
        };
        let is_closed = is_denied
            || checks
                .iter()
                .any(|check| !is_local(check) && !by_policy(check).allowed());
        let local: Vec<Check> = checks
            .iter()
            .filter(|check| is_local(check))
            .cloned()
            .collect();
        let mut local = self.decide_locally(snapshot, local, is_closed).into_iter();
        let decisions = checks.iter().map(|check| {
            let counted = if is_local(check) { local.next() } else { None };
            counted.unwrap_or_else(|| by_policy(check))
        });
        Ok(decisions.collect())
    }

    /// Counts against this replica's share. Where the whole is denied anyway, nothing is charged.
    fn decide_locally(
        &self,
        snapshot: &PlanSnapshot,
        checks: Vec<Check>,
        is_denied: bool,
    ) -> Vec<Decision> {
        let shares = checks.into_iter().map(|check| Check {
            plan: snapshot.share_of(&check.plan),
            ..check
        });
        let mut checks: Vec<Check> = shares.collect();
        // A cost above a share could pass once the store is back. Until then it denies the whole.
        let sums = sums_without_shadow(checks.iter());
        let above_share = |(check, sum): (&Check, Cost)| check.plan.never_fits(sum);
        let untested: Vec<_> = checks.iter().zip(sums).map(above_share).collect();
        let above =
            |(check, limit): (&Check, &Option<usize>)| limit.is_some() && !check.plan.shadow;
        if is_denied || checks.iter().zip(&untested).any(above) {
            checks.iter_mut().for_each(|check| check.mode = Mode::Peek);
        }
        let asked: Vec<Check> = checks
            .iter()
            .zip(&untested)
            .filter(|(_, limit)| limit.is_none())
            .map(|(check, _)| check.clone())
            .collect();
        let verdicts = self.common.fallback.decide_joint(&asked);
        let mut answered = match verdicts {
            Ok(verdicts) => tested(&asked, &verdicts, DecidedBy::LocalFallback),
            // It is full of live keys. A flood of keys must not shut out all other keys.
            Err(_) => vec![fail_open(); asked.len()],
        }
        .into_iter();
        let decided = checks.iter().zip(untested).map(|(check, limit)| {
            let Some(limit) = limit else {
                return answered.next().unwrap_or_else(fail_open);
            };
            let status = Some(untouched(&check.plan, limit));
            let denied = Decision::uncounted(Outcome::Denied, DecidedBy::LocalFallback, status);
            shadowed(&check.plan, denied)
        });
        decided.collect()
    }
}

/// The decisions by verdicts on checks that were decided together.
fn tested(checks: &[Check], verdicts: &[Verdict], by: DecidedBy) -> Vec<Decision> {
    let are_charges = checks.iter().all(|check| check.mode == Mode::Charge);
    let (mut sums, are_charged) = (Sums::default(), are_charges && all_fit(checks, verdicts));
    let mut decisions = Vec::with_capacity(checks.len());
    for (check, verdict) in checks.iter().zip(verdicts) {
        let (plan, key) = (&check.plan, &check.key);
        let sum = sums.with(&plan.counts_as, key, check.cost);
        if verdict.fits || !plan.shadow {
            sums.add(&plan.counts_as, key, check.cost);
        }
        // Where the others were charged, it was told as if it had been asked after them.
        let cost = if are_charged { check.cost } else { sum };
        let outcome = match plan.never_fits(cost) {
            _ if verdict.fits => Outcome::Allowed,
            Some(_) => Outcome::NeverFits,
            None => Outcome::Denied,
        };
        let mut statuses = verdict.statuses(plan.limits(), cost);
        if outcome == Outcome::NeverFits {
            // No wait helps.
            statuses
                .iter_mut()
                .for_each(|status| status.retry_after_us = None);
        }
        decisions.push(shadowed(plan, Decision::counted(outcome, by, statuses)));
    }
    decisions
}

/// What each check is tested with, apart from what plans in shadow mode add: that depends on whether they fit, which only the store
/// knows.
fn sums_without_shadow<'a>(checks: impl Iterator<Item = &'a Check>) -> Vec<Cost> {
    let (mut sums, mut tested) = (Sums::default(), Vec::new());
    for check in checks {
        let (counts_as, key) = (&check.plan.counts_as, &check.key);
        tested.push(sums.with(counts_as, key, check.cost));
        if !check.plan.shadow {
            sums.add(counts_as, key, check.cost);
        }
    }
    tested
}
