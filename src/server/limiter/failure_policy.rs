//! What a plan answers when the store cannot decide: its [`OnStoreFailure`], for a request alone and for those of a joint decision.

use super::joint::{sums_without_shadow, tested};
use super::store_call::counted;
use super::uncounted::untouched;
use super::{Limiter, PlanSnapshot};
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::{DecidedBy, Decision, Outcome};
use tollgate_core::key::Cost;
use tollgate_core::plan::{Plan, PolicyAnswer};
use tollgate_store::{Check, StoreError};

/// The answer of a policy that counts nothing, or cannot count. `None` if this replica counts in its own memory.
fn uncounted_answer(plan: &Plan, error: &StoreError) -> Option<Decision> {
    match plan.on_store_failure.answer() {
        PolicyAnswer::Always(outcome, by) => {
            Some(Decision::uncounted(outcome, by, None).shadowed_if(plan.shadow))
        }
        // An embedded store that is full has no second memory to count in.
        PolicyAnswer::Counted if *error == StoreError::Full => Some(fail_open()),
        // Open holds are not counted in this replica's memory.
        PolicyAnswer::Counted if plan.limits().is_empty() => Some(fail_open()),
        PolicyAnswer::Counted => None,
    }
}

impl<S> Limiter<S> {
    /// Answers one request.
    pub(super) fn answer_without_store(
        &self,
        snapshot: &PlanSnapshot,
        check: &Check,
        error: &StoreError,
    ) -> Decision {
        uncounted_answer(&check.plan, error).unwrap_or_else(|| self.answer_locally(snapshot, check))
    }

    /// Counts against this replica's share. When the fallback is full of live keys too, it allows a key that it does not know.
    /// A flood of keys must not shut out all other keys.
    fn answer_locally(&self, snapshot: &PlanSnapshot, check: &Check) -> Decision {
        let share = snapshot.share_of(&check.plan);
        if let Some(limit) = share.never_fits(check.cost) {
            return above_share(&share, limit);
        }
        let local = Check {
            plan: share,
            ..check.clone()
        };
        match self.common.fallback.decide(&local) {
            Ok(verdict) => counted(&local, &verdict, DecidedBy::LocalFallback),
            Err(_) => fail_open(),
        }
    }

    /// Answers requests that are decided together. `is_denied` says that the whole is denied whatever policies say.
    pub(super) fn decide_by_policies(
        &self,
        snapshot: &PlanSnapshot,
        checks: &[Check],
        error: &StoreError,
        is_denied: bool,
    ) -> Vec<Decision> {
        let by_policy = |check: &Check| uncounted_answer(&check.plan, error);
        let answers: Vec<Option<Decision>> = checks.iter().map(by_policy).collect();
        let is_closed = is_denied || answers.iter().flatten().any(|answer| !answer.allowed());
        let local = checks.iter().zip(&answers);
        let local = local.filter(|(_, answer)| answer.is_none());
        let local = local.map(|(check, _)| check.clone()).collect();
        let mut local = self.decide_locally(snapshot, local, is_closed).into_iter();
        let answers = answers
            .into_iter()
            .map(|answer| answer.or_else(|| local.next()));
        answers
            .map(|answer| answer.unwrap_or_else(fail_open))
            .collect()
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
        let sums = sums_without_shadow(&checks.iter().collect::<Vec<_>>());
        let never_fits = |(check, sum): (&Check, Cost)| check.plan.never_fits(sum);
        let untested: Vec<_> = checks.iter().zip(sums).map(never_fits).collect();
        let denies =
            |(check, limit): (&Check, &Option<usize>)| limit.is_some() && !check.plan.shadow;
        if is_denied || checks.iter().zip(&untested).any(denies) {
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
            limit.map_or_else(
                || answered.next().unwrap_or_else(fail_open),
                |limit| above_share(&check.plan, limit),
            )
        });
        decided.collect()
    }
}

/// Denies a cost above a limit of this replica's share. It could pass once the store is back, so the outcome is denied, not never
/// fits.
fn above_share(share: &Plan, limit: usize) -> Decision {
    let status = Some(untouched(share, limit));
    Decision::uncounted(Outcome::Denied, DecidedBy::LocalFallback, status).shadowed_if(share.shadow)
}

pub(super) fn fail_open() -> Decision {
    Decision::uncounted(Outcome::Allowed, DecidedBy::FailOpen, None)
}
