//! What is sent to a server, and what sends it: a command, and how long its answer may take.

use std::sync::LazyLock;
use std::time::Instant;

use fred::bytes_utils::Str;
use fred::types::Value;

use super::batcher::call::Call;
use super::connection::CallError;
use super::script::Script;
use super::{StoreSettings, script_codec};
use crate::StoreError;

/// Sends commands to the server that has their keys.
pub(super) trait CommandSender: Send + Sync + 'static {
    /// Waits until it is known whether commands can be sent, which is soon.
    fn ready(&self) -> impl Future<Output = ()> + Send;

    /// Sends one command. The future always ends. Errors: [`CallError::TryAgain`] only if the command may be split, and a redirection
    /// only if it names no keys.
    fn send(
        &self,
        command: RedisCommand,
    ) -> impl Future<Output = Result<CommandReply, CallError>> + Send;
}

/// The reply to a command.
pub(super) struct CommandReply {
    pub(super) value: Value,
    /// Whether another node sent it than the one that was asked first.
    pub(super) was_redirected: bool,
}

/// A command to a server, to be answered by `until`.
#[derive(Clone)]
pub(super) struct RedisCommand {
    pub(super) kind: CommandKind,
    pub(super) arguments: Vec<Value>,
    pub(super) until: Instant,
    /// Whether it is sent in parts where a moving slot keeps its keys apart. Another one is repeated until they are together.
    pub(super) may_be_split: bool,
}

#[derive(Clone, Copy)]
pub(super) enum CommandKind {
    Script,
    /// Calls with an id, and those about holds, by this script.
    Holds(&'static LazyLock<Script>),
    Read,
    Delete,
    /// An exchange of replicas, beside decisions, by this script.
    Exchange(&'static LazyLock<Script>),
    /// The deletion of a subject's counters; see [`super::reset`].
    Forget,
}

impl RedisCommand {
    /// The first key that it names, if it names any.
    pub(super) fn key(&self) -> Option<String> {
        // The number of a script's keys.
        if self.arguments.get(1) == Some(&Value::Integer(0)) {
            return None;
        }
        let index = match self.kind {
            // After the script's hash and the number of keys.
            CommandKind::Script
            | CommandKind::Holds(_)
            | CommandKind::Exchange(_)
            | CommandKind::Forget => 2,
            CommandKind::Read | CommandKind::Delete => 0,
        };
        self.arguments.get(index)?.as_string()
    }
}

impl CommandReply {
    /// What a script replied.
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.value.as_bytes().unwrap_or_default()
    }
}

impl CommandKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Script | Self::Holds(_) | Self::Exchange(_) | Self::Forget => "EVALSHA",
            Self::Read => "GET",
            Self::Delete => "UNLINK",
        }
    }
}

impl StoreSettings {
    /// The command that makes a call, to be answered by `until`. Errors: the call cannot be packed, see
    /// [`script_codec::pack_call`].
    pub(super) fn script_command(
        &self,
        call: &Call,
        until: Instant,
    ) -> Result<RedisCommand, StoreError> {
        let keys = call.keys();
        let (sha, kind, packed) = self.packed(call)?;
        let packed = Value::Bytes(packed.into());
        let clock = self
            .injected
            .iter()
            .map(|clock| Value::from(clock.now_us().to_string()));
        // Redis refuses a number that does not match the keys.
        let keys_len = if call.by_names {
            0
        } else {
            i64::try_from(keys.len()).unwrap_or(i64::MAX)
        };
        let head = [Value::String(sha), Value::Integer(keys_len)];
        let mut arguments = Vec::with_capacity(head.len() + keys.len() + 2);
        arguments.extend(head);
        arguments.extend(keys.into_iter().map(Value::Bytes));
        arguments.insert(if call.by_names { 2 } else { arguments.len() }, packed);
        arguments.extend(clock);
        Ok(RedisCommand {
            kind,
            arguments,
            until,
            // It does not wait until all names are on one node: parts for single names need not wait.
            may_be_split: call.groups.len() > 1,
        })
    }

    /// The script of a call, its kind, and the call packed for it. Errors: it cannot be packed.
    fn packed(&self, call: &Call) -> Result<(Str, CommandKind, Vec<u8>), StoreError> {
        if !call.is_of_holds() {
            let packed = script_codec::pack_call(call)?;
            return Ok((self.script.sha.clone(), CommandKind::Script, packed));
        }
        let script = Script::for_holds(self.injected.is_some());
        let packed = script_codec::holds::pack_call(call)?;
        Ok((script.sha.clone(), CommandKind::Holds(script), packed))
    }
}
