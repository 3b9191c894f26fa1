//! The plans of one config, and the shares derived from them. A snapshot never changes, except that its shares follow the
//! number of replicas. Another config makes another snapshot.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use crate::plan::{Plan, PlanSet};

/// The plans that limiters decide by, until a reload replaces them.
#[derive(Debug, Default)]
pub struct PlanSnapshot {
    plans: PlanSet,
    config_hash: String,
    /// Each plan at this replica's share. A decision reads it without a lock, since during an outage every decision may need
    /// it.
    shares: ArcSwap<PlanSet>,
}

/// How the plans of one snapshot differ from those of the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Plans whose names are new.
    pub added: usize,
    /// Plans whose names are gone.
    pub removed: usize,
    /// Plans with a changed definition under the same name.
    pub edited: usize,
}

impl PlanSnapshot {
    /// A snapshot of plans that this many replicas share.
    pub(super) fn new(plans: PlanSet, replicas: u64) -> Self {
        let config_hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(plans.canonical().as_bytes()));
        let shares = ArcSwap::from_pointee(plans.share(replicas));
        Self { plans, config_hash, shares }
    }

    /// The snapshot of `plans` that follows this one, and its changes. An unchanged plan stays the same `Arc`, so that state
    /// kept for it, such as its denials, stays valid. An edited plan is always another `Arc`.
    pub(super) fn next(&self, plans: PlanSet, replicas: u64) -> (Self, Changes) {
        let mut changes = Changes::default();
        let kept_or_new = |plan: &Arc<Plan>| match self.plans.find_if_any(&plan.name).map(|(_, before)| before) {
            Some(before) if before == plan => before.clone(),
            Some(_) => {
                changes.edited += 1;
                plan.clone()
            }
            None => {
                changes.added += 1;
                plan.clone()
            }
        };
        let default = plans.default_plan().map(|(_, plan)| plan.name.clone());
        let mut plans: PlanSet = plans.iter().map(kept_or_new).collect();
        // The names are the same, so the default plan is among them.
        if let Ok(with_default) = plans.clone().with_default(default.as_deref()) {
            plans = with_default;
        }
        changes.removed = self.plans.len() - (plans.len() - changes.added);
        (Self::new(plans, replicas), changes)
    }

    /// Recomputes the shares for this many replicas. Takes a few milliseconds for thousands of plans.
    pub(super) fn share_among(&self, replicas: u64) {
        self.shares.store(Arc::new(self.plans.share(replicas)));
    }

    /// Whether both decide requests for unknown plans by a default plan of the same name.
    pub(super) fn has_default_of(&self, other: &Self) -> bool {
        let name = |snapshot: &Self| snapshot.plans.default_plan().map(|(_, plan)| plan.name.clone());
        name(self) == name(other)
    }

    /// The plans that are enforced.
    pub fn plans(&self) -> &PlanSet {
        &self.plans
    }

    /// A hash of the plans as 16 hexadecimal digits, equal on replicas that enforce the same plans.
    pub fn config_hash(&self) -> &str {
        &self.config_hash
    }

    pub(super) fn shares(&self) -> Guard<Arc<PlanSet>> {
        self.shares.load()
    }
}
