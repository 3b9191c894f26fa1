//! A connection by fred, set so that it lives once, no call on it can hang, and none is sent twice.
//!
//! fred's own reconnecting is off. It cannot be told to let go of a peer that acknowledges and never answers: a forced
//! reconnection waits in the line of commands, flushes to the silent peer for up to five seconds, and then pauses. So a
//! connection that ends or goes silent is thrown away whole, by its `keeper`, and another is made beside it.

use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::{Config, ConnectionConfig, ReconnectError, TcpConfig};
use fred::types::{Builder, ConnectHandle};

/// Longest that each of fred's own steps of connecting may take; the keeper bounds all of them together.
const STEP_TIMEOUT: Duration = super::keeper::CONNECT_MAX;
/// Longest that sent bytes may stay unacknowledged. A host that vanishes without a word would else be waited for until the
/// kernel gives up, about a quarter of an hour.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(1);
/// Redis's words for "not this node, not now": the connection is made anew, which finds the right one.
const RECONNECT_ERRORS: [ReconnectError; 4] =
    [ReconnectError::ReadOnly, ReconnectError::MasterDown, ReconnectError::NoReplicas, ReconnectError::Loading];

/// The task that drives a connection. Dropped, it takes the connection with it, and whatever still waits on it fails.
pub(super) struct Wire(ConnectHandle);

impl Wire {
    /// Waits until the connection has ended; why.
    pub(super) async fn ended(&mut self) -> Error {
        match (&mut self.0).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) => Error::new(ErrorKind::IO, "the connection was closed"),
            Err(join) => Error::new(ErrorKind::IO, format!("the connection's task ended: {join}")),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Checks `url` and keeps it for connections to come.
pub(super) fn config(url: &str) -> Result<Config, Error> {
    Ok(Config { fail_fast: true, ..Config::from_url(url)? })
}

/// Makes one connection and waits until it is up. A caller that goes away takes it along.
pub(super) async fn connect(config: &Config) -> Result<(Client, Wire), Error> {
    let client = Builder::from_config(config.clone()).with_connection_config(bound).build()?;
    let mut wire = Wire(client.connect());
    tokio::select! {
        // A failure ends the wire; this alone may miss it when it comes very early.
        up = client.wait_for_connect() => up?,
        error = wire.ended() => return Err(error),
    }
    Ok((client, wire))
}

fn bound(connection: &mut ConnectionConfig) {
    connection.connection_timeout = STEP_TIMEOUT;
    connection.internal_command_timeout = STEP_TIMEOUT;
    // A command that was written may have been executed: writing it again could charge twice.
    connection.max_command_attempts = 1;
    connection.reconnect_on_auth_error = true;
    connection.reconnect_errors = RECONNECT_ERRORS.to_vec();
    connection.tcp = TcpConfig { nodelay: Some(true), user_timeout: Some(UNACKNOWLEDGED_MAX), ..TcpConfig::default() };
}
