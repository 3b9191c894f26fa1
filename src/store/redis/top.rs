//! Exchanges lists of heaviest keys with other replicas, by a small script over names in one slot of a Cluster.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fred::types::Value;

use super::script::Script;
use super::{RedisStore, name};
use crate::{ReplicaId, StoreError, TopLists};

/// See `script/top.lua`.
static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::from_text(include_str!("script/top.lua").to_owned()));

/// How long a list counts after it was published. Four may be lost.
const LIFETIME: Duration = Duration::from_secs(5);
/// How long a secret stays when no replica publishes.
const SECRET_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of replicas whose lists are kept. A directory entry takes 48 bytes.
const REPLICAS_MAX: u64 = 1_000;
/// Maximum number of bytes of lists that are read at once. Redis and the connection are busy with them for a millisecond or two.
const READ_BYTES_MAX: u64 = 2 << 20;

impl RedisStore {
    /// Publishes the list of a replica. Returns the secret that all replicas use: `secret`, if there was none.
    ///
    /// Errors: as for [`Self::announce_replica`].
    pub(super) async fn publish_list(
        &self,
        replica: &ReplicaId,
        list: &[u8],
        secret: [u8; 16],
        until: Instant,
    ) -> Result<[u8; 16], StoreError> {
        let secret = Value::Bytes(secret.to_vec().into());
        let list = Value::Bytes(list.to_vec().into());
        let arguments = [number(REPLICAS_MAX), secret, millis(SECRET_LIFETIME), list];
        let reply = self
            .exchange_top("publish", replica, arguments, until)
            .await?;
        let unreadable =
            || StoreError::InvalidReply("the reply to a list is not a secret".to_owned());
        reply
            .as_bytes()
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(unreadable)
    }

    /// The lists of the other replicas. Errors: as for [`Self::announce_replica`].
    pub(super) async fn read_lists(
        &self,
        replica: &ReplicaId,
        until: Instant,
    ) -> Result<TopLists, StoreError> {
        let reply = self
            .exchange_top("read", replica, [number(READ_BYTES_MAX)], until)
            .await?;
        let unreadable = || {
            StoreError::InvalidReply(
                "the reply to a question for lists has an unknown form".to_owned(),
            )
        };
        let Value::Array(values) = reply else {
            return Err(unreadable());
        };
        let (replicas, lists) = values.split_first().ok_or_else(unreadable)?;
        let replicas = replicas.as_u64().ok_or_else(unreadable)?;
        let lists = lists
            .iter()
            .map(|list| list.as_bytes().map(<[u8]>::to_vec).ok_or_else(unreadable))
            .collect::<Result<_, _>>()?;
        Ok(TopLists { replicas, lists })
    }

    async fn exchange_top<const N: usize>(
        &self,
        what: &str,
        replica: &ReplicaId,
        rest: [Value; N],
        until: Instant,
    ) -> Result<Value, StoreError> {
        let keys = vec![Value::from(name::top(&self.key_prefix))];
        let subject = [
            Value::from(what),
            Value::from(replica.as_str()),
            millis(LIFETIME),
        ];
        let arguments = subject.into_iter().chain(rest).collect();
        self.exchange(&SCRIPT, keys, arguments, until).await
    }
}

fn number(number: u64) -> Value {
    Value::from(number.to_string())
}

fn millis(duration: Duration) -> Value {
    // A constant of a day at most, so its milliseconds fit.
    number(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
