//! What operators ask for: a key forgotten, units given back.
//!
//! No decision, so no policy answers it: what the store did not do is an error, and nothing is pretended. A denial that this
//! process remembers of the key is dropped before the answer, so that whoever was answered sees what was done.

use std::sync::Arc;
use std::time::Duration;

use super::caller_deadline::{CallerDeadline, CallerGone, in_time};
use super::{Edition, Limiter};
use crate::algorithm::Mode;
use crate::decision::LimitStatus;
use crate::key::{Cost, Key};
use crate::plan::{Plan, QUOTA_MAX, Rule, UnknownPlan};
use crate::store::{Ask, Store, StoreDeadline, StoreError, Subject};

/// Longest that one of these waits for the store, unless decisions are given longer: nobody's request waits behind it, and
/// whether a call that went unanswered was carried out is not known.
const DEADLINE: Duration = Duration::from_secs(1);

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// The plan is not in the config: the caller's mistake.
    #[error(transparent)]
    UnknownPlan(#[from] UnknownPlan),
    /// The plan is unlimited or blocked.
    #[error("plan {0:?} has no limits, so nothing is counted by it")]
    NothingCounted(Arc<str>),
    /// The store did not do it; after [`StoreError::Deadline`] nobody knows.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The caller's deadline passed before the store answered; it may still be done.
    #[error("the caller's deadline passed before the store answered")]
    CallerDeadline,
}

impl From<CallerGone> for AdminError {
    fn from(_: CallerGone) -> Self {
        Self::CallerDeadline
    }
}

/// What a refund came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refunded {
    /// Where the key stands now in each limit of the plan, and units that this limit gave back.
    pub limits: Vec<(LimitStatus, u64)>,
}

impl Refunded {
    /// Units given back by the limit that gave the most.
    pub fn units(&self) -> u64 {
        self.limits.iter().map(|(_, units)| *units).max().unwrap_or(0)
    }
}

impl<S: Store> Limiter<S> {
    /// Gives back to every limit of a plan what a key has used, the newest units first, `cost` of them or as many as there
    /// are. What this process counted while the store could not decide stays: nobody knows which of the two had counted it,
    /// and to give it back in both would be to give it twice.
    pub async fn refund(&self, key: Key, plan: &str, cost: Cost, caller: Option<CallerDeadline>) -> Result<Refunded, AdminError> {
        let edition = self.edition();
        let plan = counted(&edition, plan)?.clone();
        // No limit counts more.
        let cost = Cost::new(cost.units().min(QUOTA_MAX)).unwrap_or(cost);
        let ask = Ask { key, plan, cost, mode: Mode::Refund };
        let deadline = self.admin_deadline();
        let verdict = before(caller, deadline, self.store.decide_one(&ask, deadline)).await;
        self.forget_denials(&ask.plan.counts_as, &ask.key);
        let (verdict, limits) = (verdict??, ask.plan.limits());
        let limits = verdict.statuses(limits, Cost::ONE).into_iter().zip(verdict.refunded(limits)).collect();
        Ok(Refunded { limits })
    }

    /// Forgets what a key has used by all plans that count as this one does, in the store, in what was counted while the
    /// store could not decide, and among the denials that this process remembers; whether the store had kept anything. Other
    /// processes may remember a denial for a second.
    pub async fn reset(&self, key: Key, plan: &str, caller: Option<CallerDeadline>) -> Result<bool, AdminError> {
        let edition = self.edition();
        let counts_as = counted(&edition, plan)?.counts_as.clone();
        let subject = Subject { counts_as, key };
        let deadline = self.admin_deadline();
        let existed = before(caller, deadline, self.store.reset(&subject, deadline)).await;
        self.forget_denials(&subject.counts_as, &subject.key);
        let existed = existed??;
        self.common.fallback.forget(&subject.counts_as, &subject.key);
        Ok(existed)
    }

    fn admin_deadline(&self) -> StoreDeadline {
        StoreDeadline(self.common.settings.deadline.max(DEADLINE))
    }

    /// Of every limiter of this process. Each is held up for as long as it takes to note a number.
    fn forget_denials(&self, counts_as: &str, key: &Key) {
        let desks = self.common.books().desks();
        // What is asked for from here on is answered by a store that has done it.
        let now_us = self.monotonic_us(self.common.clock.monotonic());
        let caches = desks.iter().filter_map(|desk| desk.denials.as_ref());
        caches.for_each(|denials| denials.forget(counts_as, key, now_us));
    }
}

/// The store's answer, unless the caller's deadline comes first.
async fn before<T>(
    caller: Option<CallerDeadline>,
    store: StoreDeadline,
    answer: impl Future<Output = T>,
) -> Result<T, CallerGone> {
    match caller.and_then(|caller| caller.before(store)) {
        None => Ok(answer.await),
        Some(limit) => in_time(limit, answer).await,
    }
}

/// A plan that counts.
fn counted<'a>(edition: &'a Edition, plan: &str) -> Result<&'a Arc<Plan>, AdminError> {
    let plan = edition.plans().get(plan).map_err(|unknown| edition.plans().suggest(unknown))?;
    match plan.rule {
        Rule::Limits(_) => Ok(plan),
        Rule::Unlimited | Rule::Blocked => Err(AdminError::NothingCounted(plan.name.clone())),
    }
}

#[cfg(test)]
mod tests;
