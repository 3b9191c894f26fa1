//! What Redis offers to replicas beside decisions: its health, and the exchanges that they make through it.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fred::types::Value;
use futures_util::future::BoxFuture;

use super::command::{CommandKind, CommandSender, RedisCommand};
use super::connection::CallError;
use super::script::Script;
use super::{RedisStatus, RedisStore, Servers};
use crate::{ConnectionHealth, JointUndos, ReplicaId, SharedStore, StoreError, TopLists};

impl SharedStore for RedisStore {
    fn connected(&self, time_limit: Duration) -> BoxFuture<'_, bool> {
        Box::pin(Self::connected(self, time_limit))
    }

    fn connections(&self) -> Vec<ConnectionHealth> {
        match &self.servers {
            Servers::One(node) => vec![node.manager.health()],
            Servers::Many(cluster) => cluster.connections(),
        }
    }

    fn nodes(&self) -> Vec<(String, RedisStatus)> {
        Self::nodes(self)
    }

    fn joint_undos(&self) -> JointUndos {
        match &self.servers {
            Servers::One(_) => JointUndos::default(),
            Servers::Many(cluster) => cluster.joint_undos(),
        }
    }

    fn announce<'a>(
        &'a self,
        replica: &'a ReplicaId,
        lifetime: Duration,
        until: Instant,
    ) -> BoxFuture<'a, Result<u64, StoreError>> {
        Box::pin(self.announce_replica(replica, lifetime, until))
    }

    fn publish_top<'a>(
        &'a self,
        replica: &'a ReplicaId,
        list: &'a [u8],
        secret: [u8; 16],
        until: Instant,
    ) -> BoxFuture<'a, Result<[u8; 16], StoreError>> {
        Box::pin(self.publish_list(replica, list, secret, until))
    }

    fn read_top<'a>(
        &'a self,
        replica: &'a ReplicaId,
        until: Instant,
    ) -> BoxFuture<'a, Result<TopLists, StoreError>> {
        Box::pin(self.read_lists(replica, until))
    }
}

impl RedisStore {
    /// Makes a call of replicas, beside decisions, to the server that has the first of these keys. It waits for no connection, and
    /// reports nothing to the breaker.
    pub(super) async fn exchange(
        &self,
        script: &'static LazyLock<Script>,
        keys: Vec<Value>,
        arguments: Vec<Value>,
        until: Instant,
    ) -> Result<Value, StoreError> {
        let keys_len = i64::try_from(keys.len()).unwrap_or(i64::MAX);
        let head = [Value::String(script.sha.clone()), Value::Integer(keys_len)];
        let command = RedisCommand {
            kind: CommandKind::Exchange(script),
            arguments: head.into_iter().chain(keys).chain(arguments).collect(),
            until,
            may_be_split: false,
        };
        match &self.servers {
            Servers::One(node) => {
                let reply = node.manager.send(command).await;
                Ok(reply.map_err(CallError::into_store_error)?.value)
            }
            Servers::Many(cluster) => {
                let name = command.key().unwrap_or_default();
                Box::pin(cluster.exchange(&name, command)).await
            }
        }
    }
}
