//! [`RedisStore`] as a store: which way each call takes.

use std::sync::Arc;

use super::batcher::Answer;
use super::reset::Reset;
use super::{RedisStore, Servers, holds, name};
use crate::clock::monotonic;
use crate::{
    Check, HoldCheck, JointFailure, LeaseCheck, Refund, Store, StoreDeadline, StoreError, Subject,
};
use tollgate_core::algorithm::holds::{HoldVerdict, LeaseVerdict, NoteFigures};
use tollgate_core::algorithm::{GivenBack, Verdict};
use tollgate_core::key::Key;
use tollgate_core::plan::Plan;

impl Store for RedisStore {
    async fn decide_one(&self, check: &Check, StoreDeadline(deadline): StoreDeadline) -> Answer {
        if check.plan.limits().is_empty() {
            // The plan limits only open holds. A check opens none, so it passes.
            return Ok(Verdict::passing_no_limit());
        }
        if holds::concern(check) {
            return Box::pin(self.decide_beside_holds(check, deadline)).await;
        }
        self.decide_plainly(check, deadline).await
    }

    async fn decide_batch(
        &self,
        checks: &[Check],
        StoreDeadline(deadline): StoreDeadline,
    ) -> Vec<Answer> {
        if checks.iter().any(holds::concern) {
            return Box::pin(self.decide_batch_beside_holds(checks, deadline)).await;
        }
        self.decide_all_plainly(checks, deadline).await
    }

    async fn decide_joint(
        &self,
        checks: &[Check],
        StoreDeadline(deadline): StoreDeadline,
    ) -> Result<Vec<Verdict>, JointFailure> {
        if checks.iter().any(holds::concern) {
            return Box::pin(self.decide_joint_beside_holds(checks, deadline)).await;
        }
        let until = monotonic() + deadline;
        self.decide_joint_plainly(checks, until, deadline).await
    }

    async fn decide_hold(
        &self,
        check: &HoldCheck,
        StoreDeadline(deadline): StoreDeadline,
    ) -> Result<HoldVerdict, StoreError> {
        self.ask_for_hold(check, deadline).await
    }

    async fn decide_leases(
        &self,
        checks: &[LeaseCheck],
        StoreDeadline(deadline): StoreDeadline,
    ) -> Vec<Result<LeaseVerdict, StoreError>> {
        self.ask_for_leases(checks, deadline).await
    }

    async fn hold_figures(
        &self,
        key: &Key,
        plan: &Arc<Plan>,
        StoreDeadline(deadline): StoreDeadline,
    ) -> Result<NoteFigures, StoreError> {
        self.ask_for_figures((key, plan), deadline).await
    }

    async fn refund_batch(
        &self,
        refunds: &[Refund],
        StoreDeadline(deadline): StoreDeadline,
    ) -> Vec<Result<GivenBack, StoreError>> {
        self.give_back(refunds, deadline).await
    }

    /// Does not use the batcher: requests that were not answered yet may be decided before or after the reset.
    async fn reset(
        &self,
        subject: &Subject,
        StoreDeadline(deadline): StoreDeadline,
    ) -> Result<bool, StoreError> {
        match &self.servers {
            Servers::One(node) => {
                let until = monotonic() + deadline;
                node.manager.usable(until, deadline).await?;
                Reset::for_subject(subject, &self.key_prefix)
                    .execute(&*node.manager, until)
                    .await
            }
            Servers::Many(cluster) => {
                Box::pin(cluster.reset(&Reset::for_subject(subject, &self.key_prefix), deadline))
                    .await
            }
        }
    }

    fn names(&self, key: &Key, plan: &Plan) -> Vec<String> {
        name::all_of(&self.key_prefix, key, plan)
    }

    fn hold_names(&self, key: &Key, plan: &Plan) -> Vec<String> {
        let tag = name::state_name(&self.key_prefix, &plan.counts_as, key);
        vec![name::holds(&tag), name::ids(&tag)]
    }
}
