//! What a store offers that replicas share, beside decisions: they count each other through it, and exchange their lists of the
//! heaviest keys. A new shared store implements this and [`super::Store`]; nothing else asks which store it is.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use super::{ConnectionHealth, JointUndos, OverrideStore, RedisStatus, ReplicaId, StoreError};

/// Lists of heaviest keys that other replicas published.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopLists {
    /// The other replicas that published a list.
    pub replicas: u64,
    /// Their lists, or as many as may be read at once.
    pub lists: Vec<Vec<u8>>,
}

/// A store that replicas share.
///
/// The three exchanges wait for no connection, and report nothing to a breaker: a late answer is still useful here. Errors: there
/// is no connection, or no answer came by `until`. What was sent may have taken effect all the same.
pub trait SharedStore: OverrideStore {
    /// Waits until a connection is up, to each node, for at most `time_limit`. Returns whether it is.
    fn connected(&self, time_limit: Duration) -> BoxFuture<'_, bool>;

    /// The state of each connection now. A store whose nodes are not known yet counts as one connection.
    fn connections(&self) -> Vec<ConnectionHealth>;

    /// Health of each node now, with its address.
    fn nodes(&self) -> Vec<(String, RedisStatus)>;

    /// Counts of what was undone of joint decisions; none where one call decides each.
    fn joint_undos(&self) -> JointUndos {
        JointUndos::default()
    }

    /// Registers a replica for `lifetime` from now, or removes it when that is zero. Returns the number of live replicas.
    fn announce<'a>(
        &'a self,
        replica: &'a ReplicaId,
        lifetime: Duration,
        until: Instant,
    ) -> BoxFuture<'a, Result<u64, StoreError>>;

    /// Publishes the list of a replica. Returns the secret that all replicas use: `secret`, if there was none.
    fn publish_top<'a>(
        &'a self,
        replica: &'a ReplicaId,
        list: &'a [u8],
        secret: [u8; 16],
        until: Instant,
    ) -> BoxFuture<'a, Result<[u8; 16], StoreError>>;

    /// The lists of the other replicas.
    fn read_top<'a>(
        &'a self,
        replica: &'a ReplicaId,
        until: Instant,
    ) -> BoxFuture<'a, Result<TopLists, StoreError>>;
}
