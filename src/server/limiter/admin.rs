//! Operations for operators: reset a key, and refund units.
//!
//! They are not decisions, so no plan's policy answers for a failing store: its error is returned. Denials of the key that this
//! process remembers are dropped before the answer. So a caller that has the answer meets no denial from before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::caller_deadline::{CallerDeadline, CallerDeadlinePassed, within_deadline};
use super::{FoundBy, Limiter, PlanSnapshot};
use tollgate_core::algorithm::Algorithm;
use tollgate_core::decision::LimitStatus;
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::envoy::LimitOverride;
use tollgate_core::plan::{Limit, Plan, QUOTA_MAX, Rule, UnknownPlan};
use tollgate_store::{GivenBack, Refund, Store, StoreDeadline, StoreError, Subject};

/// Longest that one of these waits for the store, unless decisions may wait longer. No request waits behind it. After a call
/// without an answer it is unknown whether the call was carried out, so waiting longer is better.
const DEADLINE: Duration = Duration::from_secs(1);

/// Why an operation was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// The plan is not in the config. The caller must correct the name.
    #[error(transparent)]
    UnknownPlan(#[from] UnknownPlan),
    /// The plan is unlimited or blocked.
    #[error("plan {0:?} has no limits, so nothing is counted by it")]
    NothingCounted(Arc<str>),
    /// The store failed; after [`StoreError::Deadline`] it may still have done the operation.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The caller's deadline passed before the store answered; the operation may still be done.
    #[error("the caller's deadline passed before the store answered")]
    CallerDeadline,
}

impl From<CallerDeadlinePassed> for AdminError {
    fn from(_: CallerDeadlinePassed) -> Self {
        Self::CallerDeadline
    }
}

/// The result of a refund.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refunded {
    /// For each limit of the plan: the key's standing after the refund, and the units that this limit gave back.
    pub limits: Vec<(LimitStatus, u64)>,
}

impl Refunded {
    /// Units given back by the limit that gave the most.
    pub fn units(&self) -> u64 {
        self.limits
            .iter()
            .map(|(_, units)| *units)
            .max()
            .unwrap_or(0)
    }
}

impl<S: Store> Limiter<S> {
    /// Gives units that a key has used back to every limit of the plan that decides for it, the newest first. It gives back `cost`
    /// units, or as many as are counted. Units that this process counted while the store could not decide stay. It is unknown which of the two
    /// counted a unit, and giving it back in both would give it back twice.
    pub async fn refund(
        &self,
        key: Key,
        plan: &str,
        cost: Cost,
        caller: Option<CallerDeadline>,
    ) -> Result<Refunded, AdminError> {
        let worker_plans = self.worker.worker_plans();
        let asked = plan_of_name(&worker_plans.snapshot, plan)?;
        let (_, plan) = worker_plans.decides(asked, &key, &mut FoundBy::default());
        let plan = counting(plan)?.clone();
        // No limit counts more than this.
        let cost = Cost::new(cost.units().min(QUOTA_MAX)).unwrap_or(cost);
        let refund = Refund {
            key,
            plan,
            units: cost,
        };
        let deadline = self.admin_deadline();
        let given_back = self.give_back(std::slice::from_ref(&refund), deadline);
        let given_back = within_deadline(caller, deadline, given_back).await;
        self.forget_denials(&refund.plan.counts_as, &refund.key);
        let given_back = given_back?.swap_remove(0)?;
        let statuses = given_back.after.statuses(refund.plan.limits(), Cost::ONE);
        let limits = statuses.into_iter().zip(given_back.units()).collect();
        Ok(Refunded { limits })
    }

    /// Makes refunds under their plans, and under the candidates of these, which share no state with them: only a comparison suffers
    /// where that fails. Returns one result for each. The caller then drops the remembered denials of the keys.
    pub(super) async fn give_back(
        &self,
        refunds: &[Refund],
        deadline: StoreDeadline,
    ) -> Vec<Result<GivenBack, StoreError>> {
        let by_candidates = refunds.iter().filter_map(|refund| {
            let plan = refund.plan.candidate.clone()?;
            Some(Refund {
                plan,
                ..refund.clone()
            })
        });
        let sent: Vec<Refund> = refunds.iter().cloned().chain(by_candidates).collect();
        let mut answers = self.store.refund_batch(&sent, deadline).await;
        answers.truncate(refunds.len());
        answers
    }

    /// Forgets the usage of a key under all plans that share this plan's `counts_as`, or that of the plan which an override puts in
    /// its place, under their candidates, and under limits that
    /// Envoy brought along in their place. That covers the store, the local fallback and the denials that this process remembers.
    /// Returns whether the store held anything. Other processes may remember a denial for up to a second.
    pub async fn reset(
        &self,
        key: Key,
        plan: &str,
        caller: Option<CallerDeadline>,
    ) -> Result<bool, AdminError> {
        let worker_plans = self.worker.worker_plans();
        let asked = plan_of_name(&worker_plans.snapshot, plan)?;
        let (_, plan) = worker_plans.decides(asked, &key, &mut FoundBy::default());
        let counted = [asked.1, plan]
            .into_iter()
            .filter(|plan| counting(plan).is_ok());
        let groups: BTreeSet<Arc<str>> = counted.map(|plan| plan.counts_as.clone()).collect();
        if groups.is_empty() {
            return Err(AdminError::NothingCounted(asked.1.name.clone()));
        }
        let deadline = self.admin_deadline();
        let started = self.common.clock.monotonic();
        let mut existed = false;
        let subjects = groups
            .iter()
            .flat_map(|group| subjects_of(&worker_plans.snapshot, group, &key));
        for subject in subjects.collect::<Vec<_>>() {
            let caller = self.left_of(caller, started);
            let reset =
                within_deadline(caller, deadline, self.store.reset(&subject, deadline)).await;
            if let Some(counts_as) = groups.get(&subject.counts_as) {
                // Denials of others are not remembered.
                self.forget_denials(counts_as, &key);
            }
            existed |= reset??;
            self.common.fallback.forget(&subject.counts_as, &key);
        }
        Ok(existed)
    }

    pub(super) fn admin_deadline(&self) -> StoreDeadline {
        StoreDeadline(self.common.settings.deadline.max(DEADLINE))
    }
}

impl<S> Limiter<S> {
    /// Drops the denials of a key in every limiter of this process. Each is locked only as long as it takes to store one
    /// number.
    pub(super) fn forget_denials(&self, counts_as: &str, key: &Key) {
        let workers = self.common.registry().workers();
        // Store calls that begin after this time meet a store that has done the operation.
        let now_us = self.monotonic_us(self.common.clock.monotonic());
        let caches = workers.iter().filter_map(|worker| worker.denials.as_ref());
        caches.for_each(|denials| denials.forget(counts_as, key, now_us));
    }
}

/// The subjects that a reset of a key covers, one for each group: of the plans, of their candidates, and, where Envoy is served, of
/// limits in their place.
fn subjects_of(snapshot: &PlanSnapshot, counts_as: &Arc<str>, key: &Key) -> Vec<Subject> {
    let live = snapshot
        .plans()
        .iter()
        .filter(|plan| plan.counts_as == *counts_as);
    let mut log_windows: BTreeMap<Arc<str>, Vec<u64>> = BTreeMap::new();
    for plan in live.flat_map(|plan| [plan].into_iter().chain(&plan.candidate)) {
        let logs = plan
            .limits()
            .iter()
            .filter(|limit| limit.algorithm() == Algorithm::SlidingLog);
        log_windows
            .entry(plan.counts_as.clone())
            .or_default()
            .extend(logs.map(Limit::window_us));
    }
    if !snapshot.plans().envoy().is_empty() {
        log_windows
            .extend(LimitOverride::groups_beside(counts_as).map(|group| (group, Vec::new())));
    }
    let subject = |(counts_as, log_windows_us)| Subject {
        key: key.clone(),
        counts_as,
        log_windows_us,
    };
    log_windows.into_iter().map(subject).collect()
}

/// The plan of this name and its index.
fn plan_of_name<'a>(
    snapshot: &'a PlanSnapshot,
    plan: &str,
) -> Result<(usize, &'a Arc<Plan>), AdminError> {
    let found = snapshot.plans().find(plan);
    Ok(found.map_err(|unknown| snapshot.plans().suggest(unknown))?)
}

/// The plan, if it counts anything.
fn counting(plan: &Arc<Plan>) -> Result<&Arc<Plan>, AdminError> {
    match plan.rule {
        Rule::Limits(_) => Ok(plan),
        Rule::Unlimited | Rule::Blocked => Err(AdminError::NothingCounted(plan.name.clone())),
    }
}

#[cfg(test)]
mod tests;
