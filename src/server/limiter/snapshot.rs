//! The plans of one config, and the shares derived from them. A snapshot never changes, except that its shares follow the
//! number of replicas. Another config makes another snapshot.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::OnceCell;
use tokio::task::JoinError;

use tollgate_core::plan::{Plan, PlanSet};

/// The plans that limiters decide by, until a reload replaces them.
#[derive(Debug, Default)]
pub struct PlanSnapshot {
    plans: PlanSet,
    config_hash: String,
    /// See [`Self::plan_id`].
    plan_ids: Box<[u64]>,
    /// See [`Self::encoded`].
    encoded: ArcSwap<Encoded>,
    /// Each plan at this replica's share. A decision reads it without a lock, since during an outage every decision may need
    /// it.
    shares: ArcSwap<Shares>,
}

/// The encoded snapshot, with one version of the overrides.
#[derive(Debug, Default)]
struct Encoded {
    overrides_version: u64,
    bytes: OnceCell<Arc<[u8]>>,
}

/// The plans as one of several replicas enforces them alone.
#[derive(Debug, Default)]
struct Shares {
    plans: PlanSet,
    replicas: u64,
}

impl Shares {
    fn new(plans: &PlanSet, replicas: u64) -> Self {
        Self {
            plans: plans.share(replicas),
            replicas,
        }
    }
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
        let config_hash = format!(
            "{:016x}",
            xxhash_rust::xxh3::xxh3_64(plans.canonical().as_bytes())
        );
        let shares = ArcSwap::from_pointee(Shares::new(&plans, replicas));
        let plan_ids = plans
            .iter()
            .map(|plan| xxhash_rust::xxh3::xxh3_64(plan.name.as_bytes()))
            .collect();
        Self {
            plans,
            config_hash,
            plan_ids,
            encoded: ArcSwap::default(),
            shares,
        }
    }

    /// The snapshot of `plans` that follows this one, and its changes. An unchanged plan stays the same `Arc`, so that state
    /// kept for it, such as its denials, stays valid. An edited plan is always another `Arc`.
    pub(super) fn next(&self, plans: PlanSet, replicas: u64) -> (Self, Changes) {
        let mut changes = Changes::default();
        let kept_or_new =
            |plan: &Arc<Plan>| match self.plans.find_if_any(&plan.name).map(|(_, before)| before) {
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
        let envoy = plans.envoy().clone();
        let overrides = plans.overrides().clone();
        let default = plans.default_plan().map(|(_, plan)| plan.name.clone());
        let mut plans: PlanSet = plans.iter().map(kept_or_new).collect();
        // The names are the same, so the default plan is among them.
        if let Ok(with_default) = plans.clone().with_default(default.as_deref()) {
            plans = with_default;
        }
        let plans = plans.with_envoy(envoy).with_overrides(overrides);
        changes.removed = self.plans.len() - (plans.len() - changes.added);
        (Self::new(plans, replicas), changes)
    }

    /// Recomputes the shares for this many replicas. Takes a few milliseconds for thousands of plans.
    pub(super) fn share_among(&self, replicas: u64) {
        self.shares
            .store(Arc::new(Shares::new(&self.plans, replicas)));
    }

    /// What finds plans and differs, by its name in the config: the default plan by its name, the rules for descriptors, and overrides.
    pub fn changed_beside_plans(&self, other: &Self) -> Vec<&'static str> {
        let plans = &self.plans;
        let others = &other.plans;
        let name = |plans: &PlanSet| plans.default_plan().map(|(_, plan)| plan.name.clone());
        let differing = [
            ("default_plan", name(plans) != name(others)),
            ("overrides", plans.overrides() != others.overrides()),
            ("envoy", plans.envoy() != others.envoy()),
        ];
        let differing = differing.into_iter().filter(|(_, differs)| *differs);
        differing.map(|(path, _)| path).collect()
    }

    /// The plans that are enforced.
    pub fn plans(&self) -> &PlanSet {
        &self.plans
    }

    /// A hash of the plans as 16 hexadecimal digits, equal on replicas that enforce the same plans.
    pub fn config_hash(&self) -> &str {
        &self.config_hash
    }

    /// The snapshot, with this version of the overrides, as `encode` encodes it: once, on a thread of its own, for all who ask. Thousands
    /// of plans take megabytes and many milliseconds. Every caller must pass the same function. Errors: it panicked.
    pub(crate) async fn encoded(
        self: Arc<Self>,
        overrides_version: u64,
        encode: fn(&Self, u64) -> Vec<u8>,
    ) -> Result<Arc<[u8]>, JoinError> {
        let make = || {
            let snapshot = self.clone();
            tokio::task::spawn_blocking(move || encode(&snapshot, overrides_version).into())
        };
        let mut encoded = self.encoded.load_full();
        if encoded.overrides_version != overrides_version {
            encoded = Arc::new(Encoded {
                overrides_version,
                bytes: OnceCell::new(),
            });
            self.encoded.store(encoded.clone());
        }
        encoded.bytes.get_or_try_init(make).await.cloned()
    }

    /// A number for the plan at this index, the same in all replicas and after a reload.
    pub(super) fn plan_id(&self, plan: usize) -> u64 {
        self.plan_ids[plan]
    }

    /// The names of all plans by their ids.
    pub(super) fn plan_names(&self) -> HashMap<u64, Arc<str>> {
        self.plan_ids
            .iter()
            .copied()
            .zip(self.plans.iter().map(|plan| plan.name.clone()))
            .collect()
    }

    /// This replica's share of a plan. A plan that is none of this snapshot, as one that a caller brings along, is divided here.
    pub(super) fn share_of(&self, plan: &Arc<Plan>) -> Arc<Plan> {
        let shares = self.shares.load();
        let known = self
            .plans
            .find_if_any(&plan.name)
            .filter(|(_, known)| Arc::ptr_eq(known, plan));
        let share = known.and_then(|_| shares.plans.find_if_any(&plan.name));
        share.map_or_else(
            || Arc::new(plan.share(shares.replicas)),
            |(_, share)| share.clone(),
        )
    }
}
