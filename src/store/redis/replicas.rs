//! Announces a replica to Redis and gets back the number of live replicas, by a small script over one sorted set. In a
//! Cluster the set is in one slot.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fred::types::Value;

use super::script::Script;
use super::{RedisStore, name};
use crate::{REPLICAS_MAX, ReplicaId, StoreError};

/// See `script/replicas.lua`.
static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::from_text(include_str!("script/replicas.lua").to_owned()));

impl RedisStore {
    /// Registers a replica for `lifetime` from now, or removes it when that is zero. Returns the number of live replicas. It
    /// waits for no connection. It reports nothing to the breaker, since a late answer is still useful here.
    ///
    /// Errors: there is no connection, or no answer came by `until`. Redis may have registered the replica all the same.
    pub(super) async fn announce_replica(
        &self,
        replica: &ReplicaId,
        lifetime: Duration,
        until: Instant,
    ) -> Result<u64, StoreError> {
        let keys = vec![Value::from(name::replicas(&self.key_prefix))];
        let number = |number: u64| Value::from(number.to_string());
        let arguments = vec![
            Value::from(replica.as_str()),
            // A constant of a few seconds, so its milliseconds fit.
            number(u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX)),
            number(REPLICAS_MAX),
        ];
        let reply = self.exchange(&SCRIPT, keys, arguments, until).await?;
        reply.as_u64().ok_or_else(|| {
            StoreError::InvalidReply("the reply to an announcement is not a number".to_owned())
        })
    }
}
