//! Descriptors with `is_negative_hits`: they give units back. They are never denied, and the others are decided without them.

use std::time::Duration;

use futures_util::future::try_join_all;

use super::DecidingDomain;
use crate::limiter::caller_deadline::in_time;
use crate::limiter::{Limiter, LimiterCounter, Refusal, fail_open};
use tollgate_core::decision::{DecidedBy, Decision, Outcome};
use tollgate_core::key::Cost;
use tollgate_store::{GivenBack, Refund, Store, StoreError};

impl<S: Store> Limiter<S> {
    /// Makes refunds, each at the place of its descriptor. Returns what the proxy is told. Errors: too much waits for the store.
    pub(super) async fn refund_all(
        &self,
        place: DecidingDomain<'_>,
        refunds: &[(usize, Refund)],
    ) -> Result<Vec<(usize, Decision)>, Refusal> {
        if refunds.is_empty() {
            return Ok(Vec::new());
        }
        let started_at = self.call_start();
        let waiting = self.count_waiting(started_at, refunds.len());
        let each = refunds.iter().map(async |(index, refund)| {
            let decision = self.refund_descriptor(place.limit, refund).await?;
            Ok((*index, decision))
        });
        let decided = Box::pin(try_join_all(each)).await;
        self.record_call_time(started_at);
        drop(waiting);
        decided
    }

    async fn refund_descriptor(
        &self,
        limit: Option<Duration>,
        refund: &Refund,
    ) -> Result<Decision, Refusal> {
        let limits = refund.plan.limits();
        if limits.is_empty() {
            return Ok(Decision::uncounted(Outcome::Allowed, DecidedBy::Plan, None));
        }
        let given_back = self.give_back_in(limit, refund).await;
        self.forget_denials(&refund.plan.counts_as, &refund.key);
        match given_back {
            Some(Ok(GivenBack { after, .. })) => {
                self.common.failures.decided(&*self.common.clock);
                let statuses = after.statuses(limits, Cost::ONE);
                Ok(Decision::counted(
                    Outcome::Allowed,
                    DecidedBy::Store,
                    statuses,
                ))
            }
            // It takes nothing, so there is nothing to enforce.
            None => {
                self.worker
                    .metrics
                    .count(LimiterCounter::CallerDeadlines, 1);
                Ok(fail_open())
            }
            Some(Err(error)) => {
                self.count_failure(Some((&refund.key, &refund.plan)), &error);
                match error {
                    StoreError::Overloaded(_) => Err(Refusal::Overloaded),
                    _ => Ok(fail_open()),
                }
            }
        }
    }

    /// Gives units back, in the time that the proxy has. `None`: that time has passed first.
    async fn give_back_in(
        &self,
        limit: Option<Duration>,
        refund: &Refund,
    ) -> Option<Result<GivenBack, StoreError>> {
        let asked = self.give_back(refund, self.store_deadline());
        let Some(limit) = limit else {
            return Some(asked.await);
        };
        let answer = in_time(limit, asked).await.ok();
        // A store that used up its deadline took longer than the proxy had, whichever timer fired first.
        answer.filter(|answer| !matches!(answer, Err(StoreError::Deadline(_))))
    }
}
