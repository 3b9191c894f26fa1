//! Descriptors with `is_negative_hits`: they give units back. They are never denied, and the others are decided without them.

use std::time::Duration;

use super::DecidingDomain;
use crate::limiter::caller_deadline::in_time;
use crate::limiter::{Limiter, LimiterCounter, Refusal, fail_open};
use tollgate_core::decision::{DecidedBy, Decision, Outcome};
use tollgate_core::key::Cost;
use tollgate_store::{GivenBack, Refund, Store, StoreError};

impl<S: Store> Limiter<S> {
    /// Makes refunds. Returns what the proxy is told of each, in their order. Errors: too much waits for the store, and then it has made
    /// none, but for a Redis Cluster, where that holds for each node.
    pub(super) async fn refund_all(
        &self,
        place: DecidingDomain<'_>,
        refunds: &[Refund],
    ) -> Result<Vec<Decision>, Refusal> {
        if refunds.is_empty() {
            return Ok(Vec::new());
        }
        let started_at = self.call_start();
        let waiting = self.count_waiting(started_at, refunds.len());
        let given_back = Box::pin(self.give_back_in(place.limit, refunds)).await;
        self.record_call_time(started_at);
        drop(waiting);
        for refund in refunds {
            self.forget_denials(&refund.plan.counts_as, &refund.key);
        }
        let Some(given_back) = given_back else {
            let metrics = &self.worker.metrics;
            metrics.count(LimiterCounter::CallerDeadlines, refunds.len());
            // They take nothing, so there is nothing to enforce.
            return Ok(vec![fail_open(); refunds.len()]);
        };
        let answered = refunds.iter().zip(given_back);
        let decided = answered.map(|(refund, answer)| self.refunded(refund, answer));
        decided.collect()
    }

    /// What the proxy is told of one refund.
    fn refunded(
        &self,
        refund: &Refund,
        answer: Result<GivenBack, StoreError>,
    ) -> Result<Decision, Refusal> {
        match answer {
            Ok(GivenBack { after, .. }) => {
                self.common.failures.decided(&*self.common.clock);
                let statuses = after.statuses(refund.plan.limits(), Cost::ONE);
                Ok(Decision::counted(
                    Outcome::Allowed,
                    DecidedBy::Store,
                    statuses,
                ))
            }
            Err(error) => {
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
        refunds: &[Refund],
    ) -> Option<Vec<Result<GivenBack, StoreError>>> {
        let asked = self.give_back(refunds, self.store_deadline());
        let Some(limit) = limit else {
            return Some(asked.await);
        };
        let answers = in_time(limit, asked).await.ok()?;
        // A store that used up its deadline took longer than the proxy had, whichever timer fired first.
        let is_late = |answer| matches!(answer, &Err(StoreError::Deadline(_)));
        (!answers.iter().any(is_late)).then_some(answers)
    }
}
