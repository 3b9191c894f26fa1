//! A Reset: all that Redis keeps of a subject is deleted, whichever replica's plans, past ones included, it was counted by.
//!
//! The subject's packed state and its logs of common windows have known names; other logs are listed in the subject's index
//! (`script/general/log_index.lua`). The index is read, and then the script deletes everything in one step, if the index is
//! still the one that was read. While a slot of a Cluster moves, a command of several keys may find none of its nodes in
//! charge; then each key is deleted alone, and the index last, so that a log is never left without being listed.

use std::future::Future;
use std::sync::LazyLock;
use std::time::Instant;

use fred::bytes::Bytes;
use fred::types::Value;
use futures_util::future::try_join_all;

use super::connection::{Errand, Trouble, Verb};
use super::name;
use super::script::Script;
use crate::store::{StoreError, Subject};

/// See `script/forget.lua`.
pub(super) static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::of(include_str!("script/forget.lua").to_owned()));

/// Most times that an index is read. It changes when a log of an uncommon window begins, or outlives what was written of it, so
/// hardly twice within one round trip.
const READS_MAX: usize = 8;
/// Bytes of a number in an index.
const NUMBER: usize = 7;

/// Sends commands to where a subject's keys are.
pub(super) trait Commands: Sync {
    /// One command. Errors: no redirection to another node, where those are followed.
    fn send(&self, errand: Errand) -> impl Future<Output = Result<Value, Trouble>> + Send;
}

/// A Reset of one subject.
pub(super) struct Reset {
    /// The subject's name.
    tag: String,
}

impl Reset {
    pub(super) fn of(subject: &Subject, prefix: &str) -> Self {
        Self { tag: name::hash_tag(prefix, &subject.counts_as, subject.key.as_str()) }
    }

    /// A name that shares its slot with all keys of the subject.
    pub(super) fn name(&self) -> &str {
        &self.tag
    }

    /// Deletes all that is kept; whether there was anything.
    pub(super) async fn carry_out(&self, commands: &impl Commands, until: Instant) -> Result<bool, StoreError> {
        for _ in 0..READS_MAX {
            let index = self.read_index(commands, until).await?;
            let names: Vec<String> = name::known_of(&self.tag).chain(self.listed(&index)).collect();
            match self.forget(commands, &names, &index, until).await {
                Ok(Some(existed)) => return Ok(existed),
                Ok(None) => {}
                Err(Trouble::TryAgain) => return self.forget_one_by_one(commands, names, &index, until).await,
                Err(trouble) => return Err(trouble.alone()),
            }
        }
        Err(StoreError::Refused(format!("new logs of the key began between {READS_MAX} attempts to delete them")))
    }

    async fn read_index(&self, commands: &impl Commands, until: Instant) -> Result<Bytes, StoreError> {
        let arguments = vec![Value::String(name::log_index(&self.tag).into())];
        match commands.send(Errand { verb: Verb::Read, arguments, until }).await.map_err(Trouble::alone)? {
            Value::Null => Ok(Bytes::new()),
            Value::Bytes(index) => Ok(index),
            Value::String(index) => Ok(index.into_inner()),
            _ => Err(StoreError::Nonsense("GET is answered by no text".to_owned())),
        }
    }

    /// Names of the logs that an index lists: after when it was written, each log's window and when it expires.
    fn listed(&self, index: &[u8]) -> impl Iterator<Item = String> {
        let logs = index.get(NUMBER..).unwrap_or_default().chunks_exact(2 * NUMBER);
        logs.map(|log| {
            let mut window = [0; 8];
            window[..NUMBER].copy_from_slice(&log[..NUMBER]);
            name::log(&self.tag, u64::from_le_bytes(window))
        })
    }

    /// Deletes what there is under these names, and the index; whether there was anything but the index. `None`, and nothing is
    /// deleted, when the index is another one by now.
    async fn forget(
        &self,
        commands: &impl Commands,
        names: &[String],
        index: &Bytes,
        until: Instant,
    ) -> Result<Option<bool>, Trouble> {
        let keys = std::iter::once(name::log_index(&self.tag)).chain(names.iter().cloned());
        // Redis refuses a number that is not that of the keys.
        let count = i64::try_from(1 + names.len()).unwrap_or(i64::MAX);
        let head = [Value::String(SCRIPT.sha.clone()), Value::Integer(count)];
        let keys = keys.map(|name| Value::String(name.into()));
        let arguments = head.into_iter().chain(keys).chain([Value::Bytes(index.clone())]).collect();
        let reply = commands.send(Errand { verb: Verb::Forget, arguments, until }).await?;
        match reply.as_i64() {
            Some(-1) => Ok(None),
            Some(deleted) => Ok(Some(deleted > 0)),
            None => Err(StoreError::Nonsense("a reset is answered by no number".to_owned()).into()),
        }
    }

    /// The index goes last, and stays when it changed meanwhile: it lists a log that began after this.
    async fn forget_one_by_one(
        &self,
        commands: &impl Commands,
        names: Vec<String>,
        index: &Bytes,
        until: Instant,
    ) -> Result<bool, StoreError> {
        let delete = |name: String| Errand { verb: Verb::Delete, arguments: vec![Value::String(name.into())], until };
        let replies = try_join_all(names.into_iter().map(|name| commands.send(delete(name)))).await.map_err(Trouble::alone)?;
        if !index.is_empty() {
            self.forget(commands, &[], index, until).await.map_err(Trouble::alone)?;
        }
        let deleted =
            |reply: &Value| reply.as_u64().ok_or_else(|| StoreError::Nonsense("DEL is answered by no number".to_owned()));
        replies.iter().map(deleted).try_fold(false, |any, count| Ok(any | (count? > 0)))
    }
}
