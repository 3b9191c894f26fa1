//! The list of stores that a config may name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use url::Url;

use crate::clock::SystemClock;
use crate::{
    Check, GivenBack, HoldCheck, JointFailure, LeaseCheck, MemoryStore, MemoryTarget, RedisStore,
    RedisTarget, Refund, SharedStore, Store, StoreDeadline, StoreError, Subject, Verdict,
};
use tollgate_core::algorithm::holds::{HoldVerdict, LeaseVerdict, NoteFigures};
use tollgate_core::key::Key;
use tollgate_core::plan::Plan;

/// Where a config says that the counters are kept, checked before anything connects. With [`ConfiguredStore`] this is the list of
/// all stores: nothing outside this crate tells one from another, but for the settings of Redis.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreTarget {
    /// `memory:`
    Memory(MemoryTarget),
    /// `redis://…` and the related schemes for TLS, Sentinel, Cluster and Unix sockets.
    Redis(Box<RedisTarget>),
}

impl Default for StoreTarget {
    fn default() -> Self {
        Self::Memory(MemoryTarget::default())
    }
}

impl StoreTarget {
    /// Parses a URL. Errors: a sentence that does not repeat the URL, since it may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        match Url::parse(text) {
            Ok(url) if url.scheme() == MemoryTarget::SCHEME => {
                MemoryTarget::from_url(&url).map(Self::Memory)
            }
            // The Redis parser also words the errors of texts that are not URLs; other stores are added to them.
            _ => RedisTarget::parse(text)
                .map(|target| Self::Redis(Box::new(target)))
                .map_err(|error| error.replace("write redis://", "write memory:, redis://")),
        }
    }

    /// The settings that differ.
    pub fn changed_settings(&self, other: &Self) -> Vec<&'static str> {
        match (self, other) {
            (Self::Redis(this), Self::Redis(other)) => this.changed_settings(other),
            _ if self == other => Vec::new(),
            _ => vec!["store.url"],
        }
    }

    /// Whether replicas share the store, which then knows how many they are. Each worker connects to it. Of a store that is not
    /// shared, a process has one.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Redis(_) => true,
        }
    }

    /// The store, for the runtime that this is called in. A call to it may take until `deadline`, if it has to wait at all. Errors: a
    /// sentence for people, of a file that the target names.
    pub fn store(&self, deadline: Duration) -> Result<ConfiguredStore, String> {
        Ok(match self {
            Self::Memory(MemoryTarget { capacity }) => ConfiguredStore::Memory(Arc::new(
                MemoryStore::new(*capacity, Arc::new(SystemClock)),
            )),
            Self::Redis(target) => {
                let target = RedisTarget::clone(target);
                ConfiguredStore::Redis(RedisStore::connect_target(target, deadline)?)
            }
        })
    }
}

/// Without user, password and parameters, so that logs can show it.
impl fmt::Display for StoreTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(target) => write!(out, "{target}"),
            Self::Redis(target) => write!(out, "{target}"),
        }
    }
}

impl fmt::Debug for StoreTarget {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "StoreTarget({self})")
    }
}

/// The store of a [`StoreTarget`]. Clones share their counters.
#[derive(Clone)]
pub enum ConfiguredStore {
    /// `memory:`
    Memory(Arc<MemoryStore>),
    /// `redis://…` and the related schemes for TLS, Sentinel, Cluster and Unix sockets.
    Redis(RedisStore),
}

impl ConfiguredStore {
    /// What it offers to replicas, if they share it.
    pub fn shared(&self) -> Option<Arc<dyn SharedStore>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some(Arc::new(store.clone())),
        }
    }
}

/// Calls the store that is configured, whichever it is.
macro_rules! ask {
    ($configured:ident, $store:ident => $call:expr) => {
        match $configured {
            Self::Memory($store) => {
                let $store = &**$store;
                $call
            }
            Self::Redis($store) => $call,
        }
    };
}

impl Store for ConfiguredStore {
    async fn decide_one(
        &self,
        check: &Check,
        deadline: StoreDeadline,
    ) -> Result<Verdict, StoreError> {
        ask!(self, store => Store::decide_one(store, check, deadline).await)
    }

    async fn decide_batch(
        &self,
        checks: &[Check],
        deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        ask!(self, store => Store::decide_batch(store, checks, deadline).await)
    }

    async fn decide_joint(
        &self,
        checks: &[Check],
        deadline: StoreDeadline,
    ) -> Result<Vec<Verdict>, JointFailure> {
        ask!(self, store => Store::decide_joint(store, checks, deadline).await)
    }

    async fn decide_hold(
        &self,
        check: &HoldCheck,
        deadline: StoreDeadline,
    ) -> Result<HoldVerdict, StoreError> {
        ask!(self, store => Store::decide_hold(store, check, deadline).await)
    }

    async fn decide_leases(
        &self,
        checks: &[LeaseCheck],
        deadline: StoreDeadline,
    ) -> Vec<Result<LeaseVerdict, StoreError>> {
        ask!(self, store => Store::decide_leases(store, checks, deadline).await)
    }

    async fn hold_figures(
        &self,
        key: &Key,
        plan: &Arc<Plan>,
        deadline: StoreDeadline,
    ) -> Result<NoteFigures, StoreError> {
        ask!(self, store => Store::hold_figures(store, key, plan, deadline).await)
    }

    async fn refund_batch(
        &self,
        refunds: &[Refund],
        deadline: StoreDeadline,
    ) -> Vec<Result<GivenBack, StoreError>> {
        ask!(self, store => Store::refund_batch(store, refunds, deadline).await)
    }

    async fn reset(&self, subject: &Subject, deadline: StoreDeadline) -> Result<bool, StoreError> {
        ask!(self, store => Store::reset(store, subject, deadline).await)
    }

    fn is_embedded(&self) -> bool {
        ask!(self, store => Store::is_embedded(store))
    }

    fn names(&self, key: &Key, plan: &Plan) -> Vec<String> {
        ask!(self, store => Store::names(store, key, plan))
    }

    fn hold_names(&self, key: &Key, plan: &Plan) -> Vec<String> {
        ask!(self, store => Store::hold_names(store, key, plan))
    }
}
