//! The shared stores of a process, one for each worker, and their combined health.
//!
//! The registry serves metrics and the announcements of this replica. Decisions do not use it. An embedded store is not in it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use super::{
    BreakerState, ConnectionHealth, JointUndos, REPLICA_LIFETIME, RedisStatus, ReplicaId,
    SharedStore, StoreError, StoreState, TopLists,
};
use crate::clock::monotonic;

/// How often [`StoreRegistry::ready`] looks. It delays readiness by no more than that, once.
const READY_CHECK_EVERY: Duration = Duration::from_millis(100);

/// Holds every Redis store of this process.
#[derive(Clone, Default)]
pub struct StoreRegistry {
    stores: Arc<Mutex<Vec<Arc<dyn SharedStore>>>>,
    ready_once_reached: bool,
}

/// Health of all workers' connections to one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeHealth {
    /// Number of connections by the state of their breaker, in the order of [`Self::STATES`].
    pub connections: [u64; 3],
    /// Times that a breaker opened.
    pub opened: u64,
    /// Connection attempts.
    pub probes: u64,
    /// Times that a different Redis process answered than before. It is the maximum over the workers, since each sees a restart.
    pub replaced: u64,
}

impl NodeHealth {
    /// The breaker states that [`Self::connections`] counts, and their names in metrics.
    pub const STATES: [(BreakerState, &str); 3] = [
        (BreakerState::Closed, "closed"),
        (BreakerState::Open, "open"),
        (BreakerState::HalfOpen, "half_open"),
    ];

    fn add(&mut self, status: RedisStatus) {
        for ((state, _), count) in Self::STATES.iter().zip(&mut self.connections) {
            *count += u64::from(*state == status.breaker);
        }
        self.opened += status.opened;
        self.probes += status.probes;
        // Every connection sees the same restart, so the counts are not added.
        self.replaced = self.replaced.max(status.replaced);
    }
}

impl StoreRegistry {
    /// Makes this process ready only once a store was reached. Otherwise it always is.
    pub fn ready_once_reached(self, ready_once_reached: bool) -> Self {
        Self {
            ready_once_reached,
            ..self
        }
    }

    /// Adds a store.
    pub fn add(&self, store: Arc<dyn SharedStore>) {
        self.stores
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(store);
    }

    /// Announces to Redis that this replica is alive, through the first store that can, beginning at index `first`. Returns the
    /// number of live replicas. Errors: the last store's error, when none could within `deadline`; or there is no Redis store.
    pub async fn announce(
        &self,
        replica: &ReplicaId,
        first: usize,
        deadline: Duration,
    ) -> Result<u64, StoreError> {
        self.announce_for(replica, REPLICA_LIFETIME, first, deadline)
            .await
    }

    /// Tells Redis that this replica stops. Errors: as [`Self::announce`]; Redis then drops it when its lifetime ends.
    pub async fn leave(&self, replica: &ReplicaId, deadline: Duration) -> Result<(), StoreError> {
        self.announce_for(replica, Duration::ZERO, 0, deadline)
            .await
            .map(drop)
    }

    /// Announces a replica for a lifetime, which is zero when it stops. Otherwise as [`Self::announce`].
    async fn announce_for(
        &self,
        replica: &ReplicaId,
        lifetime: Duration,
        first: usize,
        deadline: Duration,
    ) -> Result<u64, StoreError> {
        let until = monotonic() + deadline;
        let mut failed = no_store();
        for store in self.in_turn(first) {
            match store.announce(replica, lifetime, until).await {
                Ok(replicas) => return Ok(replicas),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Gives this replica's list of heaviest keys to the others. Returns the secret that all replicas use: `secret`, if there was
    /// none. Stores and errors: as [`Self::announce`].
    pub async fn publish_top(
        &self,
        replica: &ReplicaId,
        list: &[u8],
        secret: [u8; 16],
        deadline: Duration,
    ) -> Result<[u8; 16], StoreError> {
        let until = monotonic() + deadline;
        let mut failed = no_store();
        for store in self.in_turn(0) {
            match store.publish_top(replica, list, secret, until).await {
                Ok(secret) => return Ok(secret),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// The lists that other replicas gave. Stores and errors: as [`Self::announce`].
    pub async fn read_top(
        &self,
        replica: &ReplicaId,
        deadline: Duration,
    ) -> Result<TopLists, StoreError> {
        let until = monotonic() + deadline;
        let mut failed = no_store();
        for store in self.in_turn(0) {
            match store.read_top(replica, until).await {
                Ok(lists) => return Ok(lists),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// The store at this index, of as many as there are in turn. `None`: there is no Redis store.
    pub fn one(&self, index: usize) -> Option<Arc<dyn SharedStore>> {
        self.in_turn(index).into_iter().next()
    }

    /// All stores, beginning at this index.
    fn in_turn(&self, first: usize) -> Vec<Arc<dyn SharedStore>> {
        let mut stores = self.stores();
        let first = first.checked_rem(stores.len()).unwrap_or(0);
        stores.rotate_left(first);
        stores
    }

    /// Whether there is no Redis store, as with an embedded one.
    pub fn is_empty(&self) -> bool {
        self.stores().is_empty()
    }

    /// Waits until every Redis store is connected, for at most `time_limit`.
    pub async fn connected(&self, time_limit: Duration) {
        let stores = self.stores();
        join_all(stores.iter().map(|store| store.connected(time_limit))).await;
    }

    fn stores(&self) -> Vec<Arc<dyn SharedStore>> {
        self.stores
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether Redis decides, over the connections of all stores.
    pub fn state(&self) -> StoreState {
        StoreState::new(&self.connections())
    }

    /// Whether a connection was usable since the start, or none is needed.
    pub fn was_reached(&self) -> bool {
        let connections = self.connections();
        connections.is_empty() || connections.iter().any(|connection| connection.reached)
    }

    /// Whether this process is ready as far as its stores go.
    pub fn is_ready(&self) -> bool {
        !self.ready_once_reached || self.was_reached()
    }

    /// Waits until this process is ready as far as its stores go.
    pub async fn ready(&self) {
        while !self.is_ready() {
            sleep(READY_CHECK_EVERY).await;
        }
    }

    fn connections(&self) -> Vec<ConnectionHealth> {
        self.stores()
            .iter()
            .flat_map(|store| store.connections())
            .collect()
    }

    /// What was undone of joint decisions, over all stores.
    pub fn joint_undos(&self) -> JointUndos {
        let all = self.stores();
        let all = all.iter().map(|store| store.joint_undos());
        all.fold(JointUndos::default(), |sum, one| JointUndos {
            done: sum.done + one.done,
            unknown: sum.unknown + one.unknown,
        })
    }

    /// Health of every Redis server, by its address. Empty for an embedded store.
    pub fn nodes(&self) -> BTreeMap<String, NodeHealth> {
        let mut nodes = BTreeMap::<String, NodeHealth>::new();
        for (node, status) in self.stores().iter().flat_map(|store| store.nodes()) {
            nodes.entry(node).or_default().add(status);
        }
        nodes
    }
}

fn no_store() -> StoreError {
    StoreError::Unreachable("there is no store that replicas share".to_owned())
}
