//! The connection: fred, set so that no call can hang and none is sent twice.

use std::time::Duration;

use fred::clients::Client;
use fred::error::Error;
use fred::interfaces::{ClientLike, EventInterface};
use fred::types::Builder;
use fred::types::config::{Config, ConnectionConfig, ReconnectError, ReconnectPolicy, TcpConfig};
use tokio::sync::broadcast::error::RecvError;

/// Longest that a connection may take to come up; its router task is blocked meanwhile.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest that sent bytes may stay unacknowledged. A host that vanishes without a word would else be waited for until the
/// kernel gives up, about a quarter of an hour.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(1);
/// Between attempts to connect, with as much jitter again: many replicas do not return at one instant.
const RECONNECT_DELAY_MS: u32 = 100;
/// Redis's words for "not this node, not now": the connection is made anew, which finds the right one.
const RECONNECT_ERRORS: [ReconnectError; 4] =
    [ReconnectError::ReadOnly, ReconnectError::MasterDown, ReconnectError::NoReplicas, ReconnectError::Loading];

/// A client that connects in the background and never gives up.
pub(super) fn connect(url: &str) -> Result<Client, Error> {
    let config = Config { fail_fast: false, ..Config::from_url(url)? };
    let mut policy = ReconnectPolicy::new_constant(0, RECONNECT_DELAY_MS);
    policy.set_jitter(RECONNECT_DELAY_MS);
    let client = Builder::from_config(config).with_connection_config(bound).set_policy(policy).build()?;
    tokio::spawn(report(client.clone()));
    client.connect();
    Ok(client)
}

fn bound(connection: &mut ConnectionConfig) {
    connection.connection_timeout = CONNECT_TIMEOUT;
    connection.internal_command_timeout = CONNECT_TIMEOUT;
    // A command that was written may have been executed: writing it again could charge twice.
    connection.max_command_attempts = 1;
    connection.reconnect_on_auth_error = true;
    connection.reconnect_errors = RECONNECT_ERRORS.to_vec();
    connection.tcp = TcpConfig { nodelay: Some(true), user_timeout: Some(UNACKNOWLEDGED_MAX), ..TcpConfig::default() };
}

/// Logs each change between connected and not, once.
async fn report(client: Client) {
    let (mut connected, mut failed) = (client.reconnect_rx(), client.error_rx());
    let mut up = None;
    loop {
        tokio::select! {
            event = connected.recv() => match event {
                Ok(server) if up != Some(true) => {
                    up = Some(true);
                    tracing::info!(%server, "store connected");
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            event = failed.recv() => match event {
                Ok((error, _)) if up != Some(false) => {
                    up = Some(false);
                    tracing::warn!(%error, "store out of reach; answering by each plan's on_store_failure until it is back");
                }
                Ok(_) | Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
        }
    }
}
