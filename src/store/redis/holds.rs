//! Calls with an id, calls about holds, and refunds: by a script of their own, in batches of their own.
//!
//! A request without an id meets holds only under a plan that gives the units of expired holds back, and only where it would be
//! denied. So it is decided as ever first, and once more beside the holds if that denies it. A plan with blocks is asked beside the
//! holds at once, since a denial would begin a block. A refund is here because it is noted for the holds of a bucket.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::batcher::Answer;
use super::batcher::call::{HoldAnswer, ScriptRequest};
use super::script_codec::unknown_form;
use super::{RedirectFollower, RedisNode, RedisStore, Servers, lost_call};
use crate::clock::monotonic;
use crate::{Check, HoldCheck, JointFailure, LeaseCheck, Refund, StoreError, adds_up, has_charges};
use tollgate_core::algorithm::holds::{
    EndedHolds, HoldCall, HoldVerdict, IfUnknown, LeaseVerdict, NoteFigures,
};
use tollgate_core::algorithm::{GivenBack, Mode, Verdict};
use tollgate_core::joint::Sums;
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::{Limit, Plan, QUOTA_MAX};

/// The checks that their verdicts deny, and that holds concern.
fn denied<'a>(checks: &'a [Check], verdicts: &'a [Verdict]) -> impl Iterator<Item = &'a Check> {
    let pairs = checks.iter().zip(verdicts);
    let denied = pairs.filter(|(check, verdict)| !verdict.fits && concern(check));
    denied.map(|(check, _)| check)
}

/// Whether holds may concern a request without an id.
pub(super) fn concern(check: &Check) -> bool {
    check.plan.releases_holds()
}

/// Whether it is decided beside the holds at once.
fn is_beside(check: &Check) -> bool {
    concern(check) && check.plan.has_blocks()
}

/// The error for a reply that has no answer to the request.
pub(super) fn no_answer<T>() -> Result<T, StoreError> {
    Err(unknown_form())
}

impl RedisStore {
    pub(super) async fn ask_for_hold(
        &self,
        check: &HoldCheck,
        deadline: Duration,
    ) -> Result<HoldVerdict, StoreError> {
        let request = |until| ScriptRequest::for_hold(check, &self.key_prefix, until);
        match self.ask(request, deadline).await? {
            HoldAnswer::Hold(verdict) => Ok(*verdict),
            _ => no_answer(),
        }
    }

    /// Each takes a place and a turn of its own, as other calls do: a lease that is renewed late is lost, and one that is refused is asked
    /// for again.
    pub(super) async fn ask_for_leases(
        &self,
        checks: &[LeaseCheck],
        deadline: Duration,
    ) -> Vec<Result<LeaseVerdict, StoreError>> {
        let asked = checks.iter().map(|check| async move {
            let request = |until| ScriptRequest::for_lease(check, &self.key_prefix, until);
            match self.ask(request, deadline).await? {
                HoldAnswer::Lease(verdict) => Ok(verdict),
                _ => no_answer(),
            }
        });
        join_all(asked).await
    }

    pub(super) async fn ask_for_figures(
        &self,
        subject: (&Key, &Arc<Plan>),
        deadline: Duration,
    ) -> Result<NoteFigures, StoreError> {
        let request = |until| ScriptRequest::for_figures(subject, &self.key_prefix, until);
        match self.ask(request, deadline).await? {
            HoldAnswer::Figures(figures) => Ok(figures),
            _ => no_answer(),
        }
    }

    pub(super) async fn give_back(
        &self,
        refunds: &[Refund],
        deadline: Duration,
    ) -> Vec<Result<GivenBack, StoreError>> {
        let until = monotonic() + deadline;
        let request = |refund| ScriptRequest::for_refund(refund, &self.key_prefix, until);
        let requests = refunds.iter().map(request).collect();
        let answers = match &self.servers {
            Servers::One(node) => node.refund_all(requests, deadline, || None).await,
            Servers::Many(cluster) => Box::pin(cluster.refund_all(requests, until, deadline)).await,
        };
        let given_back = refunds.iter().zip(answers).map(async |(refund, answer)| {
            let answer = match answer? {
                // Rare enough that each may go alone.
                HoldAnswer::Later(ended) => self.ask_on(|| request(refund), until, ended).await?,
                answer => answer,
            };
            match answer {
                HoldAnswer::GivenBack(given_back) => Ok(*given_back),
                _ => no_answer(),
            }
        });
        join_all(given_back).await
    }

    /// Decides a request without an id that holds may concern.
    pub(super) async fn decide_beside_holds(&self, check: &Check, deadline: Duration) -> Answer {
        let until = monotonic() + deadline;
        if !is_beside(check) {
            let answer = self.decide_plainly(check, deadline).await;
            if answer.as_ref().is_ok_and(|verdict| !verdict.fits) {
                let left = until.saturating_duration_since(monotonic());
                return self.decide_after_ends(check, left).await;
            }
            return answer;
        }
        self.decide_after_ends(check, deadline).await
    }

    /// The same for a batch: first those that holds do not concern at once, in their order, and then the others.
    pub(super) async fn decide_batch_beside_holds(
        &self,
        checks: &[Check],
        deadline: Duration,
    ) -> Vec<Answer> {
        let until = monotonic() + deadline;
        let plain: Vec<Check> = checks
            .iter()
            .filter(|check| !is_beside(check))
            .cloned()
            .collect();
        let mut decided = self.decide_all_plainly(&plain, deadline).await.into_iter();
        let answers = checks.iter().map(|check| {
            let answer = (!is_beside(check)).then(|| decided.next()).flatten();
            async move {
                match answer {
                    Some(Ok(verdict)) if verdict.fits || !concern(check) => Ok(verdict),
                    Some(Err(error)) => Err(error),
                    _ => {
                        let left = until.saturating_duration_since(monotonic());
                        self.decide_after_ends(check, left).await
                    }
                }
            }
        });
        join_all(answers).await
    }

    /// Decides checks together of which holds concern some: once more where holds that are over may be what denies them. Where a denial
    /// may begin a block, or denies no others, they are ended first. Verdicts that deny tell when the next lease ends.
    pub(super) async fn decide_joint_beside_holds(
        &self,
        checks: &[Check],
        deadline: Duration,
    ) -> Result<Vec<Verdict>, JointFailure> {
        let until = monotonic() + deadline;
        let left = || until.saturating_duration_since(monotonic());
        let concerned = || checks.iter().filter(|check| concern(check));
        let charges = has_charges(checks);
        let are_ended = charges
            && (checks.iter().any(|check| check.plan.has_blocks())
                || concerned().any(|check| check.plan.shadow));
        if are_ended {
            // Also where nothing would be denied now: others may charge between a look and the decision.
            self.end_due(concerned(), deadline).await?;
        }
        let first = self.decide_joint_plainly(checks, until, deadline).await;
        let mut verdicts = first?;
        if denied(checks, &verdicts).next().is_none() {
            return Ok(verdicts);
        }
        // Where one of the following fails, the denial stands.
        let ends = charges && !are_ended;
        if ends
            && self
                .end_due(denied(checks, &verdicts), left())
                .await
                .is_ok()
        {
            let second = self.decide_joint_plainly(checks, until, deadline).await;
            verdicts = second?;
        }
        self.tell_after_ends(checks, &mut verdicts, left()).await;
        Ok(verdicts)
    }

    /// Ends the holds of these checks' plans that are over.
    async fn end_due(
        &self,
        checks: impl Iterator<Item = &Check>,
        deadline: Duration,
    ) -> Result<(), StoreError> {
        let ended = checks.map(|check| async move {
            // Whatever a call about holds does, it ends these first. There is no hold without an id.
            let nothing = HoldCheck {
                key: check.key.clone(),
                plan: check.plan.clone(),
                id: Box::default(),
                call: HoldCall::Settle {
                    actual: None,
                    if_unknown: IfUnknown::Ignore,
                },
            };
            self.ask_for_hold(&nothing, deadline).await
        });
        let ended: Result<Vec<_>, _> = join_all(ended).await.into_iter().collect();
        ended.map(|_| ())
    }

    /// Sets in each verdict that denies when the next lease ends whose units come back. Peeks, which end no holds, are told what they
    /// would be after that.
    async fn tell_after_ends(
        &self,
        checks: &[Check],
        verdicts: &mut [Verdict],
        deadline: Duration,
    ) {
        let mut sums = Sums::default();
        let charges = has_charges(checks);
        let asked = checks.iter().zip(verdicts).map(|(check, verdict)| {
            let counts_as = &check.plan.counts_as;
            let key = &check.key;
            let sum = sums.tested_cost(counts_as, key, check.cost);
            if (verdict.fits || !check.plan.shadow) && adds_up(check, checks) {
                sums.add(counts_as, key, check.cost);
            }
            // No limit lets more pass.
            let capacity = check.plan.limits().iter().map(Limit::capacity).min();
            let tested = sum.units().min(capacity.unwrap_or(QUOTA_MAX));
            let peek = Check {
                cost: Cost::new(tested).unwrap_or(check.cost),
                mode: Mode::Peek,
                ..check.clone()
            };
            async move {
                if verdict.fits || !concern(check) {
                    return;
                }
                let Ok(alone) = self.decide_after_ends(&peek, deadline).await else {
                    return;
                };
                verdict.release_in_us = alone.release_in_us;
                if !charges {
                    *verdict = alone;
                    verdict.fits &= tested == sum.units();
                }
            }
        });
        let asked: Vec<_> = asked.collect();
        join_all(asked).await;
    }

    /// Decides it once the holds of its plan that are over have ended.
    async fn decide_after_ends(&self, check: &Check, deadline: Duration) -> Answer {
        let request = |until| ScriptRequest::beside_holds(check, &self.key_prefix, until);
        match self.ask(request, deadline).await? {
            HoldAnswer::Verdict(verdict) => Ok(verdict),
            _ => no_answer(),
        }
    }

    async fn ask(
        &self,
        request: impl Fn(Instant) -> ScriptRequest,
        deadline: Duration,
    ) -> Result<HoldAnswer, StoreError> {
        let until = monotonic() + deadline;
        let request = || request(until);
        self.ask_on(request, until, EndedHolds::default()).await
    }

    /// Asks it, again and again where the script leaves it to the next call. So many holds had ended for it before.
    async fn ask_on(
        &self,
        request: impl Fn() -> ScriptRequest,
        until: Instant,
        mut ended: EndedHolds,
    ) -> Result<HoldAnswer, StoreError> {
        loop {
            let left = until.saturating_duration_since(monotonic());
            let answer = match &self.servers {
                Servers::One(node) => node.ask(request(), left).await?,
                Servers::Many(cluster) => {
                    Box::pin(cluster.ask_beside_holds(request(), left)).await?
                }
            };
            match answer {
                HoldAnswer::Later(more) => ended += more,
                answer => return Ok(answer.with_ended(ended)),
            }
        }
    }
}

impl RedisNode {
    /// Asks a request with an id, or about holds.
    pub(super) async fn ask(
        &self,
        request: ScriptRequest,
        deadline: Duration,
    ) -> Result<HoldAnswer, StoreError> {
        let asked = async {
            self.manager.refusal().map_or(Ok(()), Err)?;
            let answered = self.holds.take_hold(request, deadline)?;
            answered.await.unwrap_or_else(|_| Err(lost_call()))
        };
        self.count_undecided(1, asked.await)
    }

    /// Makes refunds. Those with a longer deadline than decisions go without the batcher, one by one: decisions must not wait for them.
    pub(super) async fn refund_all(
        &self,
        requests: Vec<ScriptRequest>,
        deadline: Duration,
        follower: impl Fn() -> Option<RedirectFollower>,
    ) -> Vec<Result<HoldAnswer, StoreError>> {
        if deadline <= self.manager.deadline() {
            return self.refund_batched(requests, deadline).await;
        }
        let refunded = requests.into_iter().map(async |request| {
            let called = self.call_unbatched(request, deadline, follower());
            let (call, reply) = called.await?;
            let answers = call.hold_answers(reply.as_bytes().unwrap_or_default());
            answers.into_iter().next().unwrap_or_else(no_answer)
        });
        Box::pin(join_all(refunded)).await
    }

    /// Makes refunds, unless not all have a place in the queue.
    async fn refund_batched(
        &self,
        requests: Vec<ScriptRequest>,
        deadline: Duration,
    ) -> Vec<Result<HoldAnswer, StoreError>> {
        let count = requests.len();
        let refusal = self.manager.refusal().map_or(Ok(()), Err);
        match refusal.and_then(|()| self.holds.take_holds(requests, deadline)) {
            Ok(answered) => {
                let answers = join_all(answered).await.into_iter();
                let answers = answers.map(|answer| answer.unwrap_or_else(|_| Err(lost_call())));
                let counted = answers.map(|answer| self.count_undecided(1, answer));
                counted.collect()
            }
            Err(error) => vec![self.count_undecided(count, Err(error)); count],
        }
    }
}
