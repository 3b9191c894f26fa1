//! The plans as one config had them, and what follows from them. Never changes, but for the shares of them, which follow the
//! number of replicas: another config is another edition.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};

use crate::plan::{Plan, PlanSet};

/// What limiters decide by, until a reload gives them the next.
#[derive(Debug, Default)]
pub struct Edition {
    plans: PlanSet,
    config_hash: String,
    /// Each plan at this replica's share. A decision reads it without a lock, since an outage may send all of them here.
    shares: ArcSwap<PlanSet>,
}

/// How the plans of one edition differ from those of the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Plans whose names are new.
    pub added: usize,
    /// Plans whose names are gone.
    pub removed: usize,
    /// Plans that say something else under their name.
    pub edited: usize,
}

impl Edition {
    /// Plans that so many replicas enforce.
    pub(super) fn new(plans: PlanSet, replicas: u64) -> Self {
        let config_hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(plans.canonical().as_bytes()));
        let shares = ArcSwap::from_pointee(plans.share(replicas));
        Self { plans, config_hash, shares }
    }

    /// The edition of `plans` that follows this one, and what is new in it. A plan that says what it said stays the same
    /// `Arc`, so that what is remembered by it, such as its denials, holds on; an edited one is another, always.
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
        // The same names are there, so this one is.
        if let Ok(with_default) = plans.clone().with_default(default.as_deref()) {
            plans = with_default;
        }
        changes.removed = self.plans.len() - (plans.len() - changes.added);
        (Self::new(plans, replicas), changes)
    }

    /// Cuts the shares anew, for so many replicas. Takes a few milliseconds for thousands of plans.
    pub(super) fn share_among(&self, replicas: u64) {
        self.shares.store(Arc::new(self.plans.share(replicas)));
    }

    /// Whether questions about an unknown plan are decided alike.
    pub(super) fn has_default_of(&self, other: &Self) -> bool {
        let name = |edition: &Self| edition.plans.default_plan().map(|(_, plan)| plan.name.clone());
        name(self) == name(other)
    }

    /// The plans that are enforced.
    pub fn plans(&self) -> &PlanSet {
        &self.plans
    }

    /// A hash of the plans, 16 hexadecimal digits, equal on replicas that enforce the same.
    pub fn config_hash(&self) -> &str {
        &self.config_hash
    }

    pub(super) fn shares(&self) -> Guard<Arc<PlanSet>> {
        self.shares.load()
    }
}
