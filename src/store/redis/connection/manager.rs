//! Keeps a store connected. One task probes until a connection passes its test, hands it to callers, and notices its loss.
//!
//! The `breaker` decides when to probe and when to stop asking. This module has the clock, the random numbers, the task and
//! the log lines.

mod task;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fred::types::Value;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

use super::breaker::Breaker;
use super::endpoint::{Endpoint, log_out_of_reach};
use super::outage_log::LoggedCauses;
use super::server_info::{ServerInfo, warn_of_another_process};
use super::{CallError, Connection};
use crate::clock::{Clock, SystemClock, monotonic};
use crate::random;
use crate::redis::batcher::call::Call;
use crate::redis::command::{CommandKind, CommandReply, CommandSender, RedisCommand};
use crate::redis::{ConnectionSettings, ProbeCall, RedisStatus};
use crate::{ConnectionHealth, Outage, StoreError};
use task::run;

/// Longest that a probe may take to connect and to load the script, unless one timed out over TLS ([`super::pace`]). Its
/// decision then has the store's own deadline. A probe that is lost in the network ends early enough for another one within
/// the promised second.
pub(in crate::redis) const CONNECT_MAX: Duration = Duration::from_millis(500);

/// Maintains one connection, and sends calls over it. Dropping the manager closes the connection.
pub(in crate::redis) struct ConnectionManager {
    state: Arc<ManagerState>,
    task: AbortHandle,
}

/// What the manager shares with its task. Counts begin at its start.
struct ManagerState {
    settings: ConnectionSettings,
    /// Microseconds since 1970.
    started_us: u64,
    breaker: Mutex<Breaker>,
    connection_state: watch::Sender<ConnectionState>,
    /// Whether a connection was ever up.
    reached: AtomicBool,
    /// Whether `connection_state` is `Down`. A decision reads only this while the store is well.
    down: AtomicBool,
    /// Decisions that Redis did not make, since the start; see [`RedisStatus::undecided`].
    undecided: AtomicU64,
    /// The value of `undecided` when the breaker last opened.
    undecided_before: AtomicU64,
    opened: AtomicU64,
    probes: AtomicU64,
    server_info: ServerInfo,
    replaced: AtomicU64,
    logged: Mutex<LoggedCauses>,
}

/// The connection as callers see it.
enum ConnectionState {
    /// The first probe is not over. Callers wait for it until their deadline.
    Starting,
    Up(Arc<Connection>),
    /// Redis is not asked: the reason for callers, and the outage.
    Down(String, Outage),
}

impl ConnectionState {
    /// The connection for a call, or why there is none; `None` while the first probe is not over.
    fn ready(&self) -> Option<Result<Arc<Connection>, StoreError>> {
        match self {
            Self::Starting => None,
            Self::Up(connection) => Some(Ok(connection.clone())),
            Self::Down(why, _) => Some(Err(StoreError::NotSent(why.clone()))),
        }
    }
}

impl ConnectionManager {
    /// Starts connecting. Must be called within a tokio runtime.
    pub(in crate::redis) fn start(settings: ConnectionSettings) -> Self {
        let state = Arc::new(ManagerState {
            breaker: Mutex::new(Breaker::new(
                monotonic(),
                settings.store_settings.is_clustered(),
            )),
            settings,
            started_us: SystemClock.now_us(),
            connection_state: watch::Sender::new(ConnectionState::Starting),
            reached: AtomicBool::new(false),
            down: AtomicBool::new(false),
            undecided: AtomicU64::new(0),
            undecided_before: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            probes: AtomicU64::new(0),
            server_info: ServerInfo::default(),
            replaced: AtomicU64::new(0),
            logged: Mutex::default(),
        });
        let task = tokio::spawn(run(state.clone())).abort_handle();
        Self { state, task }
    }

    /// The error to answer with at once, because Redis is down; `None` when it is asked.
    pub(in crate::redis) fn refusal(&self) -> Option<StoreError> {
        if self.state.down.load(Ordering::Acquire) {
            self.why_down()
        } else {
            None
        }
    }

    #[cold]
    fn why_down(&self) -> Option<StoreError> {
        self.state
            .connection_state
            .borrow()
            .ready()
            .and_then(Result::err)
    }

    /// Counts decisions that Redis did not make.
    pub(in crate::redis) fn add_undecided(&self, decisions: usize) {
        self.state
            .undecided
            .fetch_add(decisions as u64, Ordering::Relaxed);
    }

    /// Waits until a connection is up.
    pub(in crate::redis) async fn connected(&self) {
        // The sender lives as long as `self`.
        let _ = self
            .state
            .connection_state
            .subscribe()
            .wait_for(|connection_state| matches!(connection_state, ConnectionState::Up(_)))
            .await;
    }

    /// The connection in use, if there is one.
    pub(in crate::redis) fn connection(&self) -> Option<Arc<Connection>> {
        self.state.connection_state.borrow().ready()?.ok()
    }

    /// Waits until Redis is down, see [`ConnectionState::Down`].
    pub(in crate::redis) async fn wait_until_down(&self) {
        let _ = self
            .state
            .connection_state
            .subscribe()
            .wait_for(|connection_state| matches!(connection_state, ConnectionState::Down(..)))
            .await;
    }

    /// See [`crate::redis::StoreSettings::script_command`].
    pub(in crate::redis) fn script_command(
        &self,
        call: &Call,
        until: Instant,
    ) -> Result<RedisCommand, StoreError> {
        self.state
            .settings
            .store_settings
            .script_command(call, until)
    }

    /// The time within which a healthy Redis answers.
    pub(in crate::redis) fn deadline(&self) -> Duration {
        self.state.settings.store_settings.deadline
    }

    /// Waits until `until` for the first probe to be over. Errors: Redis is down, or [`StoreError::Deadline`] with `deadline`.
    pub(in crate::redis) async fn usable(
        &self,
        until: Instant,
        deadline: Duration,
    ) -> Result<(), StoreError> {
        self.refusal().map_or(Ok(()), Err)?;
        timeout_at(until.into(), self.ready())
            .await
            .map_err(|_| StoreError::Deadline(deadline))
    }

    /// Makes one call on the connection in use; `asking` as in [`Connection::call`]. The call of a decision has the store's whole
    /// deadline, even if its callers have less time left. They stop waiting at their own deadlines, and a caller's short deadline
    /// must not count as a failure of Redis.
    pub(in crate::redis) async fn call(
        &self,
        mut command: RedisCommand,
        asking: bool,
    ) -> Result<Value, CallError> {
        let connection = self
            .state
            .connection_state
            .borrow()
            .ready()
            .unwrap_or_else(|| Err(untried()))?;
        let sent = monotonic();
        if matches!(command.kind, CommandKind::Script | CommandKind::Holds(_)) {
            command.until = command.until.max(sent + self.deadline());
        }
        let kind = command.kind;
        let result = connection.call(command, asking).await;
        // These may take longer than a decision, so the breaker does not count them.
        if matches!(kind, CommandKind::Exchange(_)) {
            return result;
        }
        let mut breaker = self.state.breaker();
        match &result {
            Err(CallError::Error(
                error @ (StoreError::Deadline(_) | StoreError::Unreachable(_)),
            )) => {
                if breaker.unanswered(connection.number, sent, monotonic(), random::bits()) {
                    self.state.on_opened(error);
                }
            }
            // Any answer counts as success, whatever it says.
            _ => breaker.answered(connection.number),
        }
        result
    }

    /// Replaces the probe call of later connections by `other`, unless `accepts` is true for the present one.
    pub(in crate::redis) fn set_probe_call_unless(
        &self,
        accepts: impl FnOnce(&ProbeCall) -> bool,
        other: impl FnOnce() -> ProbeCall,
    ) {
        let accepted = accepts(&self.state.settings.probe_call());
        if !accepted {
            let other = other();
            *self.state.settings.probe_call() = other;
        }
    }

    /// Counts that this server is another Redis process than the one that had its keys before.
    pub(in crate::redis) fn count_as_heir(&self) {
        self.state.replaced.fetch_add(1, Ordering::Relaxed);
        warn_of_another_process(&self.label());
    }

    pub(in crate::redis) fn status(&self) -> RedisStatus {
        RedisStatus {
            breaker: self.state.breaker().state(),
            opened: self.state.opened.load(Ordering::Relaxed),
            probes: self.state.probes.load(Ordering::Relaxed),
            undecided: self.state.undecided.load(Ordering::Relaxed),
            replaced: self.state.replaced.load(Ordering::Relaxed),
            reached: self.state.reached.load(Ordering::Relaxed),
        }
    }

    pub(in crate::redis) fn health(&self) -> ConnectionHealth {
        self.state.health()
    }

    /// The server's name in metrics. It does not depend on whether the server is up.
    pub(in crate::redis) fn label(&self) -> String {
        match &self.state.settings.endpoint {
            Endpoint::Fixed(peer) => peer.to_string(),
            Endpoint::Named(_) => "master".to_owned(),
        }
    }
}

impl Drop for ConnectionManager {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CommandSender for ConnectionManager {
    /// Waits until the first probe is over. A probe always ends.
    async fn ready(&self) {
        // The sender lives as long as `self`.
        let _ = self
            .state
            .connection_state
            .subscribe()
            .wait_for(|connection_state| connection_state.ready().is_some())
            .await;
    }

    async fn send(&self, command: RedisCommand) -> Result<CommandReply, CallError> {
        let sent = self.call(command, false).await;
        // It should have all keys, so a redirection is an error.
        let value = sent.map_err(CallError::into_store_error)?;
        Ok(CommandReply {
            value,
            was_redirected: false,
        })
    }
}

impl ManagerState {
    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        // Each step of the breaker is complete, so a panic between two steps leaves it valid.
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells callers that the breaker has opened. The breaker is locked meanwhile, as in [`Self::on_closed`], so that its state
    /// and the state that callers see change together.
    fn on_opened(&self, error: &StoreError) {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.undecided_before
            .store(self.undecided.load(Ordering::Relaxed), Ordering::Relaxed);
        self.set_down(error);
        self.logged().clear();
        self.log_cause(error);
    }

    fn logged(&self) -> MutexGuard<'_, LoggedCauses> {
        // No code panics while holding this lock.
        self.logged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs why the store is out of reach, unless a cause of that kind was logged in this outage.
    fn log_cause(&self, error: &StoreError) {
        let cause = match error {
            StoreError::Unreachable(why)
            | StoreError::NotSent(why)
            | StoreError::Refused(why)
            | StoreError::InvalidReply(why) => why,
            error => &error.to_string(),
        };
        if self.logged().add(cause) {
            log_out_of_reach(&self.settings.endpoint, error, self.health());
        }
    }

    /// An outage that lasts keeps its begin, and takes up the last error.
    fn set_down(&self, error: &StoreError) {
        self.connection_state.send_modify(|connection_state| {
            let since_us = match connection_state {
                ConnectionState::Starting => self.started_us,
                ConnectionState::Up(_) => SystemClock.now_us(),
                ConnectionState::Down(_, outage) => outage.since_us,
            };
            let refusal = format!("not asked until it answers a probe: {error}");
            *connection_state = ConnectionState::Down(refusal, Outage::new(since_us, error));
        });
        self.down.store(true, Ordering::Release);
    }

    fn health(&self) -> ConnectionHealth {
        let outage = match &*self.connection_state.borrow() {
            ConnectionState::Starting => Some(Outage::new(self.started_us, &untried())),
            ConnectionState::Up(_) => None,
            ConnectionState::Down(_, outage) => Some(outage.clone()),
        };
        ConnectionHealth {
            reached: self.reached.load(Ordering::Relaxed),
            outage,
        }
    }
}

fn untried() -> StoreError {
    StoreError::Unreachable("the first connection is not up yet".to_owned())
}
