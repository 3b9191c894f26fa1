//! The stores of a process, one a worker where they are Redis, and how they are doing together. For metrics, and
//! for what a process tells Redis of itself: no decision looks here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;

use super::{BreakerState, ConfiguredStore, REPLICA_LIFETIME, ReplicaId, Status, StoreError};
use crate::clock::monotonic;

/// Every store that was made.
#[derive(Clone, Default)]
pub struct Roster(Arc<Mutex<Vec<Arc<ConfiguredStore>>>>);

/// How the connections of all workers to one server are doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeHealth {
    /// Connections whose breaker is closed, open, and half-open.
    pub connections: [u64; 3],
    /// Times that a breaker opened.
    pub opened: u64,
    /// Connections tried.
    pub probes: u64,
    /// Times that another process answered than before, as the connection that saw the most of them has it.
    pub replaced: u64,
}

impl NodeHealth {
    /// What [`Self::connections`] counts, in its order.
    pub const STATES: [(BreakerState, &str); 3] =
        [(BreakerState::Closed, "closed"), (BreakerState::Open, "open"), (BreakerState::HalfOpen, "half_open")];

    fn add(&mut self, status: Status) {
        for ((state, _), count) in Self::STATES.iter().zip(&mut self.connections) {
            *count += u64::from(*state == status.breaker);
        }
        self.opened += status.opened;
        self.probes += status.probes;
        // Each connection sees a restart for itself.
        self.replaced = self.replaced.max(status.replaced);
    }
}

impl Roster {
    /// Enters a store.
    pub fn enter(&self, store: Arc<ConfiguredStore>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(store);
    }

    /// Tells Redis that this replica is alive, through the first store that can, beginning at place `first`; how many replicas
    /// are. Errors: the last store's, when none could within `deadline`, or that there is none.
    pub async fn announce(&self, replica: &ReplicaId, first: usize, deadline: Duration) -> Result<u64, StoreError> {
        self.tell((replica, REPLICA_LIFETIME), first, deadline).await
    }

    /// Tells Redis that this replica goes. Errors: as [`Self::announce`]; then Redis forgets it at the end of its lifetime.
    pub async fn leave(&self, replica: &ReplicaId, deadline: Duration) -> Result<(), StoreError> {
        self.tell((replica, Duration::ZERO), 0, deadline).await.map(drop)
    }

    async fn tell(&self, sign: (&ReplicaId, Duration), first: usize, deadline: Duration) -> Result<u64, StoreError> {
        let (stores, until) = (self.stores(), monotonic() + deadline);
        let mut failed = StoreError::Unreachable("there is no store that several share".to_owned());
        for place in 0..stores.len() {
            if let ConfiguredStore::Redis(store) = &*stores[first.wrapping_add(place) % stores.len()] {
                match store.tell_of(sign.0, sign.1, until).await {
                    Ok(replicas) => return Ok(replicas),
                    Err(error) => failed = error,
                }
            }
        }
        Err(failed)
    }

    /// Waits until all that are Redis are connected to, but no longer than `patience`.
    pub async fn connected(&self, patience: Duration) {
        let stores = self.stores();
        let connected = stores.iter().map(|store| async move {
            if let ConfiguredStore::Redis(store) = &**store {
                store.connected(patience).await;
            }
        });
        join_all(connected).await;
    }

    fn stores(&self) -> Vec<Arc<ConfiguredStore>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Every server, by its address; none for an embedded store.
    pub fn nodes(&self) -> BTreeMap<String, NodeHealth> {
        let stores = self.stores();
        let mut nodes = BTreeMap::<String, NodeHealth>::new();
        for store in stores.iter() {
            if let ConfiguredStore::Redis(store) = &**store {
                store.nodes().into_iter().for_each(|(node, status)| nodes.entry(node).or_default().add(status));
            }
        }
        nodes
    }
}
