//! How a replica tells Redis that it is alive, and how many Redis says there are: a small script of its own over one sorted
//! set, which lies in one slot of a Cluster.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fred::types::Value;

use super::connection::{Errand, Trouble, Verb};
use super::script::Script;
use super::{Lanes, RedisStore, name};
use crate::store::{REPLICAS_MAX, ReplicaId, StoreError};

/// See `script/replicas.lua`.
pub(super) static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::of(include_str!("script/replicas.lua").to_owned()));

impl RedisStore {
    /// Tells that a replica is alive, for so long from now, or, when that is zero, that it goes; how many are alive. It waits
    /// for no connection and tells the breaker nothing: a late answer is still one here.
    ///
    /// Errors: there is no connection, or no answer came by `until`; Redis may have taken note all the same.
    pub(in crate::store) async fn tell_of(
        &self,
        replica: &ReplicaId,
        lifetime: Duration,
        until: Instant,
    ) -> Result<u64, StoreError> {
        let name = name::replicas(&self.key_prefix);
        let number = |number: u64| Value::from(number.to_string());
        let arguments = vec![
            Value::String(SCRIPT.sha.clone()),
            Value::Integer(1),
            Value::from(name.clone()),
            Value::from(replica.as_str()),
            // A constant of seconds: its milliseconds fit.
            number(u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX)),
            number(REPLICAS_MAX),
        ];
        let errand = Errand { verb: Verb::Announce, arguments, until };
        let reply = match &self.lanes {
            Lanes::One(lane) => lane.keeper.call(errand, false).await.map_err(Trouble::alone)?,
            Lanes::Many(cluster) => Box::pin(cluster.announce(&name, errand)).await?,
        };
        reply.as_u64().ok_or_else(|| StoreError::Nonsense("the number of replicas is no number".to_owned()))
    }
}
