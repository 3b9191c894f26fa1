//! A connection by fred, set so that it lives once, no call on it can hang, and none is sent twice.
//!
//! fred's own reconnecting is off. It cannot be told to let go of a peer that acknowledges and never answers: a forced
//! reconnection waits in the line of commands, flushes to the silent peer for up to five seconds, and then pauses. So a
//! connection that ends or goes silent is thrown away whole, by its `keeper`, and another is made beside it. For the same
//! reason fred knows of no Sentinels and no Cluster: a connection leads to one server, and who that is is found out here.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::{Config, ConnectionConfig, ReconnectError, Server, ServerConfig, TcpConfig, TlsConfig, TlsHostMapping};
use fred::types::{Builder, ConnectHandle, RespVersion};

use super::target::{Credentials, Password, Peer, RedisTarget, Topology};
use super::tls;

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

/// Makes one connection to a server that keeps counters and waits until it is up. A caller that goes away takes it along.
pub(super) async fn connect(target: &Arc<RedisTarget>, peer: &Peer) -> Result<(Client, Wire), Error> {
    let (target, peer) = (target.clone(), peer.clone());
    let config = read(move || Ok(Config { database: target.database, ..config(&target, &peer, &target.credentials)? })).await?;
    open(config).await
}

/// The same to a Sentinel, which tells what happens over the connection that it is asked on.
pub(super) async fn connect_to_sentinel(target: &Arc<RedisTarget>, peer: &Peer) -> Result<(Client, Wire), Error> {
    let (target, peer) = (target.clone(), peer.clone());
    let config = read(move || match &target.topology {
        Topology::Sentinel(sentinels) => {
            Ok(Config { version: RespVersion::RESP3, ..config(&target, &peer, &sentinels.credentials)? })
        }
        _ => Err("there are no Sentinels".to_owned()),
    });
    open(config.await?).await
}

/// Reads every file that connections are made with, to tell at the start which of them cannot be.
pub(super) fn check_files(target: &RedisTarget) -> Result<(), String> {
    password(&target.credentials)?;
    target.tls.as_ref().map_or(Ok(()), |tls| tls::connector(tls).map(drop))
}

/// Reads files on a thread that may wait for them.
async fn read(make: impl FnOnce() -> Result<Config, String> + Send + 'static) -> Result<Config, Error> {
    let made = tokio::task::spawn_blocking(make).await.unwrap_or_else(|join| Err(join.to_string()));
    made.map_err(|error| Error::new(ErrorKind::IO, error))
}

fn config(target: &RedisTarget, peer: &Peer, credentials: &Credentials) -> Result<Config, String> {
    let tls = target.tls.as_ref();
    let server = match peer {
        Peer::Unix(path) => ServerConfig::Unix { path: path.clone() },
        Peer::Tcp(address) => {
            let mut server = Server::new(address.host.as_str(), address.port);
            server.tls_server_name = tls.and_then(|tls| tls.server_name.as_deref()).map(Into::into);
            ServerConfig::Centralized { server }
        }
    };
    let tls = tls.map(|tls| Ok::<_, String>(TlsConfig { connector: tls::connector(tls)?, hostnames: TlsHostMapping::None }));
    let (username, password) = (credentials.username.clone(), password(credentials)?);
    Ok(Config { server, username, password, tls: tls.transpose()?, fail_fast: true, ..Config::default() })
}

fn password(credentials: &Credentials) -> Result<Option<String>, String> {
    match &credentials.password {
        None => Ok(None),
        Some(Password::Given(password)) => Ok(Some(password.clone())),
        Some(Password::File(file)) => first_line(file).map(Some),
    }
}

/// Without its line end, which editors add.
fn first_line(file: &Path) -> Result<String, String> {
    let unusable = |why: &str| format!("store.password_file cannot be used: {why}; its first line is the password");
    let text = std::fs::read_to_string(file).map_err(|error| unusable(&error.to_string()))?;
    let line = text.lines().next().filter(|line| !line.is_empty());
    line.map(str::to_owned).ok_or_else(|| unusable("it is empty"))
}

async fn open(config: Config) -> Result<(Client, Wire), Error> {
    let client = Builder::from_config(config).with_connection_config(bound).build()?;
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
