//! One connection to one server, from its handshake to its end: it sends commands and classifies their errors.

pub(super) mod breaker;
pub(super) mod client;
pub(super) mod endpoint;
pub(super) mod manager;
pub(super) mod outage_log;
pub(super) mod pace;
pub(super) mod server_info;
pub(super) mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::Options;
use fred::types::{ClusterHash, CustomCommand, Value};
use tokio::sync::Mutex;
use tokio::time::sleep;

use super::batcher::REQUESTS_WAITING_MAX;
use super::batcher::call::Call;
use super::command::{CommandKind, RedisCommand};
use super::script::Script;
use super::target::{HostAndPort, ServerAddress};
use super::{ConnectionSettings, reset};
use crate::StoreError;
use crate::clock::monotonic;
use crate::random;
use breaker::random_within;
use client::ConnectionTask;
use pace::ConnectFailure;

/// A connection on which nothing was answered for this long is pinged, and again after each such interval.
const PING_EVERY: Duration = Duration::from_secs(1);
/// The time limit of a ping, unless decisions have longer. A Redis that pauses for less must not lose its connections.
const PING_MAX: Duration = Duration::from_millis(500);
/// Longest pause between two tests of one connection: as long as Redis needs for some handshakes.
const PROOF_PAUSE_MAX: Duration = Duration::from_millis(50);

pub(super) struct Connection {
    /// The connection's number in the breaker.
    pub(super) number: u64,
    pub(super) peer: ServerAddress,
    client: Client,
    script: Arc<Script>,
    /// Held while a call loads the script, so that only one does.
    loading: Mutex<()>,
    /// Times that the script was loaded.
    loads: AtomicU64,
    opened: Instant,
    /// Time from `opened` to the last answer, in microseconds.
    answered_us: AtomicU64,
    /// Calls that wait, except exchanges.
    waiting: AtomicU64,
}

/// Counts a call as waiting until it is dropped, also when its caller goes away.
struct WaitingCall<'a>(&'a AtomicU64);

impl<'a> WaitingCall<'a> {
    fn new(count: &'a AtomicU64) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a call has no reply.
#[derive(Debug)]
pub(super) enum CallError {
    /// The error for the store's callers.
    Error(StoreError),
    /// Nothing was executed: another node of the Cluster has these keys.
    Moved(HostAndPort),
    /// Nothing was executed: the slot is being moved, and another node has these keys already.
    Ask(HostAndPort),
    /// Nothing was executed: the slot is being moved, and the keys are not all on one node.
    TryAgain,
}

impl Connection {
    /// Connects and loads the script, so that no decision has to wait for that. `time_limit` begins when the connection has a
    /// handshake permit.
    pub(super) async fn open(
        settings: &ConnectionSettings,
        peer: ServerAddress,
        number: u64,
        time_limit: Duration,
    ) -> Result<(Self, ConnectionTask), (StoreError, ConnectFailure)> {
        let target = &settings.store_settings.target;
        let failed = |error: Error| {
            (
                store_error(&error, time_limit),
                client::failure(target, &error),
            )
        };
        let (client, task) = client::connect(target, &peer, time_limit)
            .await
            .map_err(failed)?;
        let script = settings.store_settings.script.clone();
        let connection = Self {
            number,
            peer,
            client,
            script,
            loading: Mutex::default(),
            loads: AtomicU64::new(0),
            opened: monotonic(),
            answered_us: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        };
        connection
            .load_script(0, task.up_by)
            .await
            .map_err(failed)?;
        Ok((connection, task))
    }

    /// As [`Self::prove`]. Over TLS, a test that was late is repeated until it is in time, for at most `time_limit`. A server
    /// that is busy with handshakes answers late, and a new connection would cost it one more handshake.
    pub(super) async fn prove_with_retries(
        &self,
        settings: &ConnectionSettings,
        time_limit: Duration,
    ) -> Result<(), (StoreError, ConnectFailure)> {
        let until = monotonic() + time_limit;
        let encrypted = settings.store_settings.target.tls.is_some();
        loop {
            match self.prove(settings).await {
                Ok(()) => return Ok(()),
                Err(StoreError::Deadline(_)) if encrypted && monotonic() < until => {
                    sleep(random_within(PROOF_PAUSE_MAX, random::bits())).await;
                }
                Err(error @ StoreError::Deadline(_)) if encrypted => {
                    return Err((error, ConnectFailure::HandshakeTimedOut));
                }
                Err(error) => return Err((error, ConnectFailure::Cheap)),
            }
        }
    }

    /// Tests the connection with a decision on a key of its own, within the store's deadline. A Redis that is read-only, loading
    /// or too slow would answer a PING but no decision. A Cluster node also passes if it answers with a redirection.
    async fn prove(&self, settings: &ConnectionSettings) -> Result<(), StoreError> {
        let until = monotonic() + settings.store_settings.deadline;
        let probe_call = settings.probe_call().clone();
        let call = Call::probe_call(probe_call.name, until);
        let command = settings.store_settings.script_command(&call, until)?;
        let reply = match self.call(command, probe_call.asking).await {
            Err(CallError::Error(error)) => return Err(error),
            Err(error) if settings.store_settings.is_clustered() => {
                tracing::debug!(?error, peer = %self.peer, "the node answered the probe with a redirection");
                return Ok(());
            }
            Err(error) => return Err(error.into_store_error()),
            Ok(reply) => reply,
        };
        call.answers(reply.as_bytes().unwrap_or_default())
            .into_iter()
            .try_for_each(|answer| answer.map(drop))
    }

    /// The fred client, for commands that are not of a [`CommandKind`].
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Makes one call and returns its reply. `asking` sends ASKING first, for a node that was named by an ASK redirection. The
    /// batcher never drops this future: fred may send a command again on reconnect when its future was dropped.
    pub(super) async fn call(
        &self,
        command: RedisCommand,
        asking: bool,
    ) -> Result<Value, CallError> {
        let RedisCommand {
            kind,
            arguments,
            until,
            ..
        } = command;
        let is_exchange = matches!(kind, CommandKind::Exchange(_));
        let _waiting = (!is_exchange).then(|| WaitingCall::new(&self.waiting));
        let deadline = until.saturating_duration_since(monotonic());
        loop {
            let loads = self.loads.load(Ordering::Acquire);
            let answer = match asking {
                true => {
                    self.send_asking(kind.name(), arguments.clone(), until)
                        .await
                }
                false => self.send(kind.name(), arguments.clone(), until).await,
            };
            let failed = match answer {
                // Nothing was executed, so sending again charges once. The loop ends, since each round takes time.
                Err(error) if error.details().starts_with("NOSCRIPT") => match kind {
                    CommandKind::Exchange(script) | CommandKind::Holds(script) => {
                        self.load(script, until).await
                    }
                    CommandKind::Forget => self.load(&reset::SCRIPT, until).await,
                    CommandKind::Script | CommandKind::Read | CommandKind::Delete => {
                        self.load_script(loads, until).await
                    }
                },
                Err(error) => Err(error),
                Ok(reply) => return Ok(reply),
            };
            failed.map_err(|error| self.call_error(&error, deadline))?;
        }
    }

    /// Sends a command that must be answered by `until`. The time-out is given to fred: a time-out around its future would leave
    /// the command queued, to be sent after a reconnect. The command is sent with `custom`, because fred 10.1 has the scripting
    /// commands only on the plain client, where they silently ignore these options.
    async fn send(
        &self,
        name: &'static str,
        arguments: Vec<Value>,
        until: Instant,
    ) -> Result<Value, Error> {
        let client = self.client.with_options(&options(until)?);
        self.answered(client.custom(custom_command(name), arguments).await)
    }

    /// Notes when the server answered, if it did; an error of its own is an answer, too.
    fn answered(&self, answer: Result<Value, Error>) -> Result<Value, Error> {
        let is_none = |error: &Error| {
            matches!(
                store_error(error, Duration::ZERO),
                StoreError::Deadline(_) | StoreError::Unreachable(_)
            )
        };
        if !answer.as_ref().is_err_and(is_none) {
            let answered = monotonic().saturating_duration_since(self.opened);
            let answered_us = u64::try_from(answered.as_micros()).unwrap_or(u64::MAX);
            self.answered_us.store(answered_us, Ordering::Relaxed);
        }
        answer
    }

    /// As [`Self::send`], after ASKING. That applies only to the next command on the connection, so both are written together.
    async fn send_asking(
        &self,
        name: &'static str,
        arguments: Vec<Value>,
        until: Instant,
    ) -> Result<Value, Error> {
        let pipeline = self.client.pipeline();
        let queue = pipeline.with_options(&options(until)?);
        queue
            .custom::<Value, Value>(custom_command("ASKING"), Vec::new())
            .await?;
        queue
            .custom::<Value, Value>(custom_command(name), arguments)
            .await?;
        self.answered(pipeline.last().await)
    }

    /// Waits until a ping fails, and returns the error. It is sent when nothing has been answered for [`PING_EVERY`]. A device on the
    /// way may have dropped the connection, which shows only when something is sent. A ping should find this before a decision does.
    /// A call that waits is told by its own deadline, which the breaker counts. Exchanges are not counted, so it is pinged beside them.
    pub(super) async fn lost_while_quiet(&self, deadline: Duration) -> StoreError {
        loop {
            let answered = Duration::from_micros(self.answered_us.load(Ordering::Relaxed));
            let due = self.opened + answered + PING_EVERY;
            if monotonic() < due {
                tokio::time::sleep_until(due.into()).await;
                continue;
            }
            if self.waiting.load(Ordering::Relaxed) > 0 {
                sleep(PING_EVERY).await;
                continue;
            }
            let time_limit = deadline.max(PING_MAX);
            let pong = self
                .send("PING", Vec::new(), monotonic() + time_limit)
                .await;
            // Any other error is an answer, so the connection is alive.
            if let Err(error @ (StoreError::Deadline(_) | StoreError::Unreachable(_))) =
                pong.map_err(|error| store_error(&error, time_limit))
            {
                return error;
            }
        }
    }

    /// The server's reply to INFO.
    pub(super) async fn info(&self, until: Instant) -> Result<String, Error> {
        self.send("INFO", Vec::new(), until).await?.convert()
    }

    /// Loads the script, unless another call has since `loads` was `seen`. The lock is held across the call, so that one of many
    /// callers loads it and the others wait. The call has a deadline, and its future is never dropped.
    async fn load_script(&self, seen: u64, until: Instant) -> Result<(), Error> {
        let _loading = self.loading.lock().await;
        if self.loads.load(Ordering::Acquire) == seen {
            self.load(&self.script, until).await?;
            self.loads.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }

    async fn load(&self, script: &Script, until: Instant) -> Result<(), Error> {
        let load = vec![
            Value::from_static_str("LOAD"),
            Value::String(script.text.clone()),
        ];
        self.send("SCRIPT", load, until).await.map(drop)
    }

    fn call_error(&self, error: &Error, deadline: Duration) -> CallError {
        let elsewhere = || self.address_in(error.details());
        match error.details().split(' ').next() {
            Some("MOVED") => elsewhere().map_or_else(
                || CallError::Error(store_error(error, deadline)),
                CallError::Moved,
            ),
            Some("ASK") => elsewhere().map_or_else(
                || CallError::Error(store_error(error, deadline)),
                CallError::Ask,
            ),
            Some("TRYAGAIN") => CallError::TryAgain,
            _ => CallError::Error(store_error(error, deadline)),
        }
    }

    /// The address in `MOVED 3999 host:port`. A node that does not know its own name leaves the host out.
    fn address_in(&self, redirection: &str) -> Option<HostAndPort> {
        let (host, port) = redirection.split(' ').nth(2)?.rsplit_once(':')?;
        let host = match (host, &self.peer) {
            ("" | "?", ServerAddress::Tcp(here)) => here.host.as_str(),
            (host, _) => host,
        };
        Some(HostAndPort {
            host: host.to_owned(),
            port: port.parse().ok()?,
        })
    }
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

impl CallError {
    /// The error for a store whose one server should have all keys.
    pub(super) fn into_store_error(self) -> StoreError {
        match self {
            Self::Error(error) => error,
            Self::Moved(_) | Self::Ask(_) | Self::TryAgain => StoreError::Refused(
                "it is one node of a Cluster; write redis-cluster:// in store.url".to_owned(),
            ),
        }
    }
}

fn custom_command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::FirstKey, false)
}

pub(super) fn options(until: Instant) -> Result<Options, Error> {
    let left = until.saturating_duration_since(monotonic());
    if left.is_zero() {
        return Err(Error::new(ErrorKind::Timeout, "no time left"));
    }
    Ok(Options {
        timeout: Some(left),
        max_attempts: Some(1),
        ..Options::default()
    })
}

/// What the error says, for people. fred formats errors of the system as `Os { code: 111, kind: ConnectionRefused, message: "…" }`, and
/// those of libraries as `Custom { kind: Uncategorized, error: "…" }`. Of these, the message; other text is returned as it is.
pub(super) fn wording(error: &Error) -> &str {
    message_in(error.details())
}

fn message_in(details: &str) -> &str {
    let of_system = || details.strip_prefix("Os {")?.split_once("message: ");
    let of_library = || details.strip_prefix("Custom {")?.split_once("error: ");
    let message = of_system()
        .or_else(of_library)
        .and_then(|(_, message)| message.strip_suffix(" }"));
    let Some(message) = message else {
        return details;
    };
    message
        .strip_prefix('"')
        .and_then(|quoted| quoted.strip_suffix('"'))
        .unwrap_or(message)
}

pub(super) fn store_error(error: &Error, deadline: Duration) -> StoreError {
    let details = || wording(error).to_owned();
    match error.kind() {
        ErrorKind::Timeout => StoreError::Deadline(deadline),
        ErrorKind::IO
        | ErrorKind::Canceled
        | ErrorKind::Routing
        | ErrorKind::Cluster
        | ErrorKind::Sentinel
        | ErrorKind::Tls => StoreError::Unreachable(details()),
        // The error of a command whose connection was dropped.
        ErrorKind::Unknown if error.details() == "channel closed" => {
            StoreError::Unreachable(details())
        }
        ErrorKind::Protocol | ErrorKind::Parse => StoreError::InvalidReply(details()),
        ErrorKind::Backpressure => StoreError::Overloaded(REQUESTS_WAITING_MAX),
        _ => StoreError::Refused(details()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_error_is_reported_by_its_message() {
        let refused = std::io::Error::from_raw_os_error(111);
        let unknown = std::io::Error::other(
            "failed to lookup address information: Name or service not known",
        );
        let no_text = std::io::Error::other(std::fmt::Error);
        assert_eq!(message_in(&format!("{refused:?}")), "Connection refused");
        assert_eq!(
            message_in(&format!("{unknown:?}")),
            "failed to lookup address information: Name or service not known"
        );
        assert_eq!(message_in(&format!("{no_text:?}")), "Error");
        for other in [
            "WRONGPASS invalid username-password pair",
            "",
            "Os { code: 1",
            "Custom { kind: Other }",
            "message: \"x\"",
        ] {
            assert_eq!(message_in(other), other);
        }
    }
}
