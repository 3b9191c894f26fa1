//! `envoy.joint`: the descriptors of one request are one joint decision.
//!
//! Units that are given back take no part, and neither does what `unmatched: allow` lets pass.

use std::sync::Arc;

use futures_util::future::join;

use super::{DecidingDomain, DescriptorDecision, DescriptorState, EnvoyRefusal, FoundDescriptor};
use crate::limiter::joint::{PlannedRequest, WaitFor};
use crate::limiter::{Limiter, Refusal};
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::Outcome;
use tollgate_core::joint::REQUESTS_MAX;
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::{Plan, Rule};
use tollgate_store::{Check, Store};

impl<S: Store> Limiter<S> {
    /// Decides descriptors together, and gives units back whatever that decision is.
    pub(super) async fn decide_jointly(
        &self,
        place: DecidingDomain<'_>,
        found: Vec<FoundDescriptor>,
    ) -> Result<Vec<DescriptorDecision>, EnvoyRefusal> {
        let is_decided = |found: &&FoundDescriptor| !found.refunds && found.plan.is_some();
        let together = found.iter().filter(is_decided).count();
        if together > REQUESTS_MAX {
            return Err(EnvoyRefusal::TooManyTogether(together));
        }
        let found = found.into_iter().enumerate();
        let (back, asked): (Vec<_>, Vec<_>) = found.partition(|(_, found)| found.refunds);
        let (back_at, back): (Vec<usize>, Vec<FoundDescriptor>) = back.into_iter().unzip();
        let (asked_at, asked): (Vec<usize>, Vec<FoundDescriptor>) = asked.into_iter().unzip();
        // Both are sent at once, what is given back before the others.
        let (back, asked) = join(
            self.decide_each(place, back),
            self.decide_together(place, asked),
        )
        .await;
        let back = back_at.into_iter().zip(back?);
        let mut decided: Vec<_> = back.chain(asked_at.into_iter().zip(asked?)).collect();
        decided.sort_unstable_by_key(|(index, _)| *index);
        Ok(decided.into_iter().map(|(_, decision)| decision).collect())
    }

    async fn decide_together(
        &self,
        place: DecidingDomain<'_>,
        mut found: Vec<FoundDescriptor>,
    ) -> Result<Vec<DescriptorDecision>, Refusal> {
        let is_denied = !place.unmatched().allowed();
        let takes_part = |found: &&FoundDescriptor| is_denied || found.plan.is_some();
        if found.iter().filter(takes_part).count() <= 1 {
            return self.decide_only_one(place, found).await;
        }
        let mut checks = Vec::with_capacity(found.len());
        let mut indices = Vec::with_capacity(found.len());
        for (index, found) in found.iter_mut().enumerate() {
            let check = match std::mem::replace(&mut found.state, DescriptorState::Unmatched) {
                DescriptorState::Check(check) => check,
                _ if is_denied => denied_check(),
                _ => continue,
            };
            checks.push((found.plan_index, found.found_by, check));
            indices.push(index);
        }
        let is_peek = checks.iter().all(|(.., check)| check.mode == Mode::Peek);
        let parts = PlannedRequest::all(checks);
        let wait_for = WaitFor::Proxy(place.limit);
        let asked = self.decide_parts(place.worker_plans, &parts, wait_for);
        let joint = asked.await?;
        if !is_peek {
            self.count_joint(joint.outcome);
        }
        for (index, decision) in indices.into_iter().zip(joint.decisions) {
            found[index].state = DescriptorState::Decided(decision);
        }
        let decided = found.into_iter().map(|found| self.finish(place, found));
        Ok(decided.collect())
    }

    /// Decides descriptors of which at most one takes part: that one as if it were alone, also by a remembered denial.
    async fn decide_only_one(
        &self,
        place: DecidingDomain<'_>,
        found: Vec<FoundDescriptor>,
    ) -> Result<Vec<DescriptorDecision>, Refusal> {
        let is_charge = |found: &FoundDescriptor| matches!(&found.state, DescriptorState::Check(check) if check.mode == Mode::Charge);
        let charge = found.iter().position(is_charge);
        let decided = self.decide_each(place, found).await?;
        if let Some(charge) = charge {
            self.count_joint(match decided[charge].decision.outcome {
                Outcome::ShadowDenied => Outcome::Allowed,
                outcome => outcome,
            });
        }
        Ok(decided)
    }
}

/// Stands for a descriptor that `unmatched: deny` denies, and the whole with it. No plan of the config counts it.
fn denied_check() -> Check {
    Check {
        key: Key::from_any(String::new()),
        plan: Arc::new(Plan::new("unmatched", Rule::Blocked)),
        cost: Cost::ONE,
        mode: Mode::Charge,
    }
}

#[cfg(test)]
mod tests;
