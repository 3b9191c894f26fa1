//! The task that connects, proves the connection, and watches it until the breaker opens.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use tokio::time::timeout;

use super::{CONNECT_MAX, ConnectionState, ManagerState};
use crate::clock::monotonic;
use crate::redis::connection::client::ConnectionTask;
use crate::redis::connection::endpoint::sentence_on;
use crate::redis::connection::pace::ConnectFailure;
use crate::redis::connection::{Connection, wording};
use crate::redis::target::ServerAddress;
use crate::{StoreError, StoreState, random};

impl ManagerState {
    /// Connects to the present server and tests the connection with a decision. Stores the server in `tried`.
    async fn probe(
        &self,
        number: u64,
        tried: &mut Option<ServerAddress>,
    ) -> Result<(Connection, ConnectionTask), (StoreError, ConnectFailure)> {
        self.probes.fetch_add(1, Ordering::Relaxed);
        let endpoint = &self.settings.endpoint;
        let time_limit = self.breaker().time_limit();
        let unnamed = |_| (endpoint.why_unnamed(), ConnectFailure::Cheap);
        let peer = tried.insert(
            timeout(CONNECT_MAX, endpoint.peer())
                .await
                .map_err(unnamed)?,
        );
        let proven = async {
            let (connection, task) =
                Connection::open(&self.settings, peer.clone(), number, time_limit).await?;
            connection
                .prove_with_retries(&self.settings, time_limit)
                .await?;
            Ok((connection, task))
        };
        tokio::select! {
            proven = proven => proven,
            () = endpoint.peer_changed(peer) => Err((master_changed(), ConnectFailure::Cheap)),
            never = self.give_up_starting() => match never {},
        }
    }

    /// Stops callers from waiting for the first probe after [`CONNECT_MAX`]. The probe itself may wait longer for its TLS
    /// handshake.
    async fn give_up_starting(&self) -> Infallible {
        tokio::time::sleep(CONNECT_MAX).await;
        self.set_down_if_starting(&StoreError::Deadline(CONNECT_MAX));
        std::future::pending().await
    }

    /// Changes the state from `Starting` to `Down`. Does nothing in other states.
    fn set_down_if_starting(&self, error: &StoreError) {
        let starting = self.connection_state.borrow().ready().is_none();
        if starting {
            self.set_down(error);
            self.log_cause(error);
        }
    }

    /// Waits until a probe is due. When the Sentinels name another server than `tried`, it does not wait out the pause that
    /// the failures of `tried` earned.
    async fn wait_until_due(&self, tried: Option<&ServerAddress>) {
        let due = || self.breaker().probe_at().unwrap_or_else(monotonic).into();
        let changed = tried.map(|peer| self.settings.endpoint.peer_changed(peer));
        tokio::select! {
            () = tokio::time::sleep_until(due()) => return,
            Some(()) = OptionFuture::from(changed) => {}
        }
        self.breaker().probe_soon(monotonic(), random::bits());
        tokio::time::sleep_until(due()).await;
    }

    /// Probes when the breaker says so, until a connection passes. That connection is then the one in use.
    async fn reconnect(&self) -> (Arc<Connection>, ConnectionTask) {
        let mut tried = None;
        loop {
            self.wait_until_due(tried.as_ref()).await;
            let Some(number) = self.breaker().begin_probe(monotonic()) else {
                continue;
            };
            match self.probe(number, &mut tried).await {
                Ok((connection, task)) => {
                    let connection = Arc::new(connection);
                    self.on_closed(connection.clone());
                    return (connection, task);
                }
                Err((error, failure)) => {
                    self.breaker()
                        .probe_failed(failure, monotonic(), random::bits());
                    tracing::debug!(%error, "the store did not pass a probe");
                    self.set_down(&error);
                    self.log_cause(&error);
                }
            }
        }
    }

    /// Puts the connection of a passed probe into use, and logs the outage that it ends.
    fn on_closed(&self, connection: Arc<Connection>) {
        let server = connection.peer.to_string();
        let sentence = sentence_on(&server, &StoreState::Deciding);
        let mut breaker = self.breaker();
        let out = breaker.probe_passed(monotonic()).unwrap_or_default();
        self.reached.store(true, Ordering::Relaxed);
        self.connection_state
            .send_replace(ConnectionState::Up(connection));
        self.down.store(false, Ordering::Release);
        drop(breaker);
        let before = self.undecided_before.load(Ordering::Relaxed);
        let undecided = self.undecided.load(Ordering::Relaxed) - before;
        // These are reported now. The next outage counts its own.
        self.undecided_before
            .store(before + undecided, Ordering::Relaxed);
        tracing::info!(
            server,
            out_ms = u64::try_from(out.as_millis()).unwrap_or(u64::MAX),
            undecided,
            "store connected: {sentence}"
        );
    }

    /// Reads the server's INFO once, and counts if it is another process than before.
    async fn check_server(&self, connection: &Connection) -> Infallible {
        if self.server_info.check(connection).await {
            self.replaced.fetch_add(1, Ordering::Relaxed);
        }
        std::future::pending().await
    }

    /// Waits until the breaker opens: the connection ends, calls on it go unanswered, or its server is no longer the master.
    async fn watch(&self, connection: &Connection, task: &mut ConnectionTask) {
        let mut connection_state = self.connection_state.subscribe();
        let error = tokio::select! {
            error = task.ended() => StoreError::Unreachable(wording(&error).to_owned()),
            error = connection.lost_while_quiet(self.settings.store_settings.deadline) => error,
            () = self.settings.endpoint.peer_changed(&connection.peer) => master_changed(),
            _ = connection_state.wait_for(|connection_state| matches!(connection_state, ConnectionState::Down(..))) => return,
            never = self.check_server(connection) => match never {},
        };
        let mut breaker = self.breaker();
        if breaker.lost(connection.number, monotonic(), random::bits()) {
            self.on_opened(&error);
        }
    }
}

fn master_changed() -> StoreError {
    StoreError::Unreachable("the Sentinels named a different master".to_owned())
}

/// Keeps the store connected for ever, also after a panic.
pub(super) async fn run(state: Arc<ManagerState>) {
    loop {
        if AssertUnwindSafe(connect_and_watch(&state))
            .catch_unwind()
            .await
            .is_err()
        {
            tracing::error!("the task that keeps the store connected panicked; it goes on");
            // The panic has dropped the connection or the probe.
            state.breaker().start_over(monotonic(), random::bits());
            state.set_down(&StoreError::Unreachable(
                "the task that keeps it connected panicked".to_owned(),
            ));
        }
    }
}

/// Connects, and returns when the breaker opens again.
async fn connect_and_watch(state: &ManagerState) {
    let (connection, mut task) = state.reconnect().await;
    state.watch(&connection, &mut task).await;
}
