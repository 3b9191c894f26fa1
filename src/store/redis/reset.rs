//! A Reset deletes everything that Redis keeps of a subject, including states of past plans and of other replicas' plans.
//!
//! A subject is a key under one `counts_as`. Its packed state and its logs of common windows have names that follow from it
//! (`name.rs`), and so have the logs of plans in force. Other logs are listed in the subject's index (`script/log_index.lua`). A
//! Reset reads the index. Then a script deletes everything in one step, if the index has not changed since. Anything else that
//! lies under the index's name lists nothing, and is deleted.
//!
//! While a slot of a Cluster moves, both nodes may refuse a command with several keys. Then each key is deleted by itself, and
//! the index last, so that every remaining log stays listed.

use std::sync::LazyLock;
use std::time::Instant;

use fred::bytes::Bytes;
use fred::types::Value;
use futures_util::future::try_join_all;

use super::command::{CommandKind, CommandReply, CommandSender, RedisCommand};
use super::connection::CallError;
use super::name;
use super::script::Script;
use crate::{StoreError, Subject};

/// The script that deletes a subject's keys.
pub(super) static SCRIPT: LazyLock<Script> =
    LazyLock::new(|| Script::from_text(include_str!("script/forget.lua").to_owned()));

/// Maximum number of times that an index is read. It changes when a log of an uncommon window begins, or outlives its listed
/// expiry. That hardly happens twice within one round trip.
const READS_MAX: usize = 8;
/// How the error begins with which Redis answers a GET of a key that is not a string.
const OF_ANOTHER_TYPE: &str = "WRONGTYPE";
/// Bytes of a number in an index.
const NUMBER: usize = 7;

/// A Reset of one subject.
pub(super) struct Reset {
    /// The subject's name, see [`name::state_name`]. All names of its keys in Redis begin with it.
    tag: String,
    /// See [`Subject::log_windows_us`].
    log_windows_us: Vec<u64>,
}

impl Reset {
    pub(super) fn for_subject(subject: &Subject, prefix: &str) -> Self {
        let tag = name::state_name(prefix, &subject.counts_as, &subject.key);
        Self {
            tag,
            log_windows_us: subject.log_windows_us.clone(),
        }
    }

    /// A name that shares its slot with all keys of the subject.
    pub(super) fn name(&self) -> &str {
        &self.tag
    }

    /// Deletes all keys of the subject. Returns whether there were any.
    pub(super) async fn execute(
        &self,
        commands: &impl CommandSender,
        until: Instant,
    ) -> Result<bool, StoreError> {
        for _ in 0..READS_MAX {
            let index = self.read_index(commands, until).await?;
            let in_force = self
                .log_windows_us
                .iter()
                .map(|window_us| name::log(&self.tag, *window_us));
            let names: Vec<String> = name::known_of(&self.tag)
                .chain(in_force)
                .chain(self.listed(&index))
                .collect();
            match self.forget(commands, &names, &index, until).await {
                Ok(Some(existed)) => return Ok(existed),
                Ok(None) => {}
                Err(CallError::TryAgain) => {
                    return self.forget_one_by_one(commands, names, &index, until).await;
                }
                Err(error) => return Err(error.into_store_error()),
            }
        }
        Err(StoreError::Refused(format!(
            "new logs of the key began during each of {READS_MAX} attempts to delete them"
        )))
    }

    async fn read_index(
        &self,
        commands: &impl CommandSender,
        until: Instant,
    ) -> Result<Bytes, StoreError> {
        let arguments = vec![Value::String(name::log_index(&self.tag).into())];
        match commands
            .send(RedisCommand {
                kind: CommandKind::Read,
                arguments,
                until,
                may_be_split: false,
            })
            .await
            .map(|reply| reply.value)
            .map_err(CallError::into_store_error)
        {
            Ok(Value::Null) => Ok(Bytes::new()),
            Ok(Value::Bytes(index)) => Ok(index),
            Ok(Value::String(index)) => Ok(index.into_inner()),
            Err(StoreError::Refused(why)) if why.starts_with(OF_ANOTHER_TYPE) => Ok(Bytes::new()),
            Err(error) => Err(error),
            Ok(_) => Err(StoreError::InvalidReply(
                "the reply to GET is not a string".to_owned(),
            )),
        }
    }

    /// Names of the logs that an index lists. An index holds when it was written, then the window and the expiry of each log.
    fn listed(&self, index: &[u8]) -> impl Iterator<Item = String> {
        let logs = index
            .get(NUMBER..)
            .unwrap_or_default()
            .chunks_exact(2 * NUMBER);
        logs.map(|log| {
            let mut window = [0; 8];
            window[..NUMBER].copy_from_slice(&log[..NUMBER]);
            name::log(&self.tag, u64::from_le_bytes(window))
        })
    }

    /// Deletes the keys of these names and the index. Returns whether there were any keys beside the index. Returns `None`, and
    /// deletes nothing, if the index has changed meanwhile.
    async fn forget(
        &self,
        commands: &impl CommandSender,
        names: &[String],
        index: &Bytes,
        until: Instant,
    ) -> Result<Option<bool>, CallError> {
        let keys = std::iter::once(name::log_index(&self.tag)).chain(names.iter().cloned());
        // Redis refuses a number that does not match the keys.
        let count = i64::try_from(1 + names.len()).unwrap_or(i64::MAX);
        let head = [Value::String(SCRIPT.sha.clone()), Value::Integer(count)];
        let keys = keys.map(|name| Value::String(name.into()));
        let arguments = head
            .into_iter()
            .chain(keys)
            .chain([Value::Bytes(index.clone())])
            .collect();
        let reply = commands
            .send(RedisCommand {
                kind: CommandKind::Forget,
                arguments,
                until,
                may_be_split: true,
            })
            .await?;
        match reply.value.as_i64() {
            Some(-1) => Ok(None),
            Some(deleted) => Ok(Some(deleted > 0)),
            None => Err(StoreError::InvalidReply(
                "the reply to a reset is not a number".to_owned(),
            )
            .into()),
        }
    }

    /// Deletes each key by its own command, and the index last. An index that changed meanwhile stays, since it lists a new log.
    async fn forget_one_by_one(
        &self,
        commands: &impl CommandSender,
        names: Vec<String>,
        index: &Bytes,
        until: Instant,
    ) -> Result<bool, StoreError> {
        let delete = |name: String| RedisCommand {
            kind: CommandKind::Delete,
            arguments: vec![Value::String(name.into())],
            until,
            may_be_split: false,
        };
        let replies = try_join_all(names.into_iter().map(|name| commands.send(delete(name))))
            .await
            .map_err(CallError::into_store_error)?;
        self.forget(commands, &[], index, until)
            .await
            .map_err(CallError::into_store_error)?;
        let deleted = |reply: &CommandReply| {
            reply.value.as_u64().ok_or_else(|| {
                StoreError::InvalidReply("the reply to UNLINK is not a number".to_owned())
            })
        };
        replies
            .iter()
            .map(deleted)
            .try_fold(false, |any, count| Ok(any | (count? > 0)))
    }
}
