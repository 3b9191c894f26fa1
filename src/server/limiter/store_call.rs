//! One call to the store: the checks of requests, and beside each of them that of its plan's candidate.
//!
//! To the store, the check of a candidate is one like any other. So it may be decided in another script call, and fail alone.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use futures_util::future::join;

use super::caller_deadline::{CallerDeadlinePassed, in_time};
use super::{CallerDeadline, Limiter, LimiterCounter};
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::{DecidedBy, Decision, Outcome};
use tollgate_store::{Check, Store, StoreDeadline, StoreError, Verdict};

/// What the store answered to one request.
pub(super) struct StoreAnswer {
    pub(super) verdict: Result<Verdict, StoreError>,
    /// Whether the plan's candidate lets the charge pass; `None` if there is no candidate, or it was not decided.
    pub(super) candidate_allowed: Option<bool>,
}

/// The decision that a verdict means.
#[inline]
pub(super) fn counted(check: &Check, verdict: &Verdict, by: DecidedBy) -> Decision {
    let outcome = if verdict.fits {
        Outcome::Allowed
    } else {
        Outcome::Denied
    };
    let statuses = verdict.statuses(check.plan.limits(), check.cost);
    Decision::counted(outcome, by, statuses).shadowed_if(check.plan.shadow)
}

/// The answers to the checks of one call, in their order.
pub(super) struct StoreAnswers(std::vec::IntoIter<Result<Verdict, StoreError>>);

impl StoreAnswer {
    /// The answer to a request whose plan has no candidate.
    #[inline]
    pub(super) fn alone(verdict: Result<Verdict, StoreError>) -> Self {
        Self {
            verdict,
            candidate_allowed: None,
        }
    }
}

impl StoreAnswers {
    /// The answer to `check`, which is the next one of the call.
    #[inline]
    pub(super) fn take(&mut self, check: &Check) -> StoreAnswer {
        let verdict = self.0.next().unwrap_or_else(no_answer);
        let Some(candidate) = &check.plan.candidate else {
            return StoreAnswer::alone(verdict);
        };
        let candidate_allowed = if is_shown_to_candidate(check) {
            let by_candidate = self.0.next().unwrap_or_else(no_answer);
            by_candidate.ok().map(|verdict| verdict.fits)
        } else {
            // The store is not asked about a cost that never fits.
            (check.mode == Mode::Charge && candidate.never_fits(check.cost).is_some())
                .then_some(false)
        };
        StoreAnswer {
            verdict,
            candidate_allowed,
        }
    }
}

impl<S: Store> Limiter<S> {
    /// Asks the store about all checks together, for at most `limit`.
    ///
    /// Errors: `limit` passed before all were answered.
    pub(super) async fn ask(
        &self,
        checks: &[Check],
        limit: Option<Duration>,
    ) -> Result<StoreAnswers, CallerDeadlinePassed> {
        let sent = with_candidates(checks);
        let deadline = self.store_deadline();
        let asked = async {
            let one = |check| self.store.decide_one(check, deadline);
            match &*sent {
                [check] => vec![one(check).await],
                // They share no state, so their order does not matter. Both are queued before either is answered.
                [check, candidate] if checks.len() == 1 => {
                    let (by_plan, by_candidate) = join(one(check), one(candidate)).await;
                    vec![by_plan, by_candidate]
                }
                checks => self.store.decide_batch(checks, deadline).await,
            }
        };
        let Some(limit) = limit else {
            return Ok(StoreAnswers(asked.await.into_iter()));
        };
        let answers = in_time(limit, asked).await.and_then(|answers| {
            // A store that used up its deadline took longer than the caller had, whichever timer fired first.
            if answers.iter().any(took_its_deadline) {
                return Err(CallerDeadlinePassed);
            }
            Ok(StoreAnswers(answers.into_iter()))
        });
        answers.inspect_err(|CallerDeadlinePassed| {
            self.worker
                .metrics
                .count(LimiterCounter::CallerDeadlines, checks.len());
        })
    }
}

impl<S: Store> Limiter<S> {
    /// The start time of a store call. `None` with an embedded store: it does not wait, and its denials are not remembered.
    /// That saves reading the clock, about 50 ns.
    pub(super) fn call_start(&self) -> Option<Instant> {
        (!self.store.is_embedded()).then(|| self.common.clock.monotonic())
    }

    /// Counts requests as waiting for the store until the returned guard is dropped, also when the caller goes away.
    pub(super) fn count_waiting(
        &self,
        started_at: Option<Instant>,
        requests: usize,
    ) -> Option<impl Drop + '_> {
        started_at.map(|_| self.worker.metrics.waiting(requests))
    }

    /// Records and returns how long a store call took that began at `started_at`.
    pub(super) fn record_call_time(&self, started_at: Option<Instant>) -> Duration {
        let Some(started_at) = started_at else {
            return Duration::ZERO;
        };
        let took = self
            .common
            .clock
            .monotonic()
            .saturating_duration_since(started_at);
        self.worker.metrics.store_took(took);
        took
    }

    /// The deadline of every store call, whatever the caller's deadline is.
    pub(super) fn store_deadline(&self) -> StoreDeadline {
        StoreDeadline(self.common.settings.deadline)
    }

    /// What is left of the caller's time, of a request that began then.
    pub(super) fn left_of(
        &self,
        caller: Option<CallerDeadline>,
        started_at: Instant,
    ) -> Option<CallerDeadline> {
        let now = self.common.clock.monotonic();
        Some(caller?.reduced_by(now.saturating_duration_since(started_at)))
    }

    /// How long a request may wait, if its caller's deadline comes before the store's.
    pub(super) fn caller_limit(&self, caller: Option<CallerDeadline>) -> Option<Duration> {
        caller?.wait_limit(self.store_deadline())
    }
}

/// The checks, each followed by that of its plan's candidate.
fn with_candidates(checks: &[Check]) -> Cow<'_, [Check]> {
    if checks.iter().all(|check| check.plan.candidate.is_none()) {
        return Cow::Borrowed(checks);
    }
    let both = |check: &Check| [Some(check.clone()), candidate_check(check)];
    Cow::Owned(checks.iter().flat_map(both).flatten().collect())
}

/// The same check by the plan's candidate, if it is to be decided by that.
pub(super) fn candidate_check(check: &Check) -> Option<Check> {
    let plan = check.plan.candidate.clone()?;
    is_shown_to_candidate(check).then(|| Check {
        plan,
        ..check.clone()
    })
}

/// Whether the plan's candidate decides this check too: a charge of a cost that fits its capacities. A peek takes nothing, so
/// there is nothing to compare.
fn is_shown_to_candidate(check: &Check) -> bool {
    let candidate = check.plan.candidate.as_deref();
    check.mode == Mode::Charge
        && candidate.is_some_and(|plan| plan.never_fits(check.cost).is_none())
}

fn took_its_deadline(answer: &Result<Verdict, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Deadline(_)))
}

fn no_answer() -> Result<Verdict, StoreError> {
    Err(StoreError::InvalidReply(
        "the reply of the store lacks a decision".to_owned(),
    ))
}
