//! A connection by fred, set so that it lives once, no call on it can hang, and none is sent twice.
//!
//! fred's own reconnecting is off. It cannot be told to let go of a peer that acknowledges and never answers: a forced
//! reconnection waits in the line of commands, flushes to the silent peer for up to five seconds, and then pauses. So a
//! connection that ends or goes silent is thrown away whole, by its `keeper`, and another is made beside it. For the same
//! reason fred knows of no Sentinels and no Cluster: a connection leads to one server, and who that is is found out here.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::{Config, ConnectionConfig, ReconnectError, Server, ServerConfig, TcpConfig, TlsConfig, TlsHostMapping};
use fred::types::{Builder, ConnectHandle, RespVersion};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::pace::Failure;
use super::target::{Credentials, Password, Peer, RedisTarget, Topology};
use super::tls;
use crate::clock::monotonic;
use crate::small_file;

/// Most TLS handshakes of this process with one server that are under way at once. A server makes one after another, so more
/// of them are not over sooner: each only takes longer, and all of them may time out together.
const HANDSHAKES_MAX: usize = 8;
/// Largest file whose first line is a password; Redis takes none that is longer than a line of a few hundred bytes.
const PASSWORD_FILE_BYTES_MAX: usize = 64 << 10;
/// Longest that sent bytes may stay unacknowledged. A host that vanishes without a word would else be waited for until the
/// kernel gives up, about a quarter of an hour.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(1);
/// Redis's words for "not this node, not now": the connection is made anew, which finds the right one.
const RECONNECT_ERRORS: [ReconnectError; 4] =
    [ReconnectError::ReadOnly, ReconnectError::MasterDown, ReconnectError::NoReplicas, ReconnectError::Loading];

/// The task that drives a connection. Dropped, it takes the connection with it, and whatever still waits on it fails.
pub(super) struct Wire {
    task: ConnectHandle,
    /// When all that belongs to connecting is to be over.
    pub(super) up_by: Instant,
}

impl Wire {
    /// Waits until the connection has ended; why.
    pub(super) async fn ended(&mut self) -> Error {
        match (&mut self.task).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) => Error::new(ErrorKind::IO, "the connection was closed"),
            Err(join) => Error::new(ErrorKind::IO, format!("the connection's task ended: {join}")),
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Makes one connection to a server that keeps counters and waits until it is up, for `patience` from when its turn comes. A
/// caller that goes away takes it along. Errors: [`ErrorKind::Timeout`], when it is not up by then.
pub(super) async fn connect(target: &Arc<RedisTarget>, peer: &Peer, patience: Duration) -> Result<(Client, Wire), Error> {
    let (target, to) = (target.clone(), peer.clone());
    let make = move || Ok(Config { database: target.database, ..config(&target, &to, &target.credentials)? });
    open(read(make, patience).await?, peer, patience).await
}

/// The same to a Sentinel, which tells what happens over the connection that it is asked on.
pub(super) async fn connect_to_sentinel(
    target: &Arc<RedisTarget>,
    peer: &Peer,
    patience: Duration,
) -> Result<(Client, Wire), Error> {
    let (target, to) = (target.clone(), peer.clone());
    let make = move || match &target.topology {
        Topology::Sentinel(sentinels) => {
            Ok(Config { version: RespVersion::RESP3, ..config(&target, &to, &sentinels.credentials)? })
        }
        _ => Err("there are no Sentinels".to_owned()),
    };
    open(read(make, patience).await?, peer, patience).await
}

/// Reads every file that connections are made with, to tell at the start which of them cannot be.
pub(super) fn check_files(target: &RedisTarget) -> Result<(), String> {
    password(&target.credentials)?;
    target.tls.as_ref().map_or(Ok(()), |tls| tls::connector(tls).map(drop))
}

/// Reads files on a thread that may wait for them, which nobody does for longer than `patience`.
async fn read(make: impl FnOnce() -> Result<Config, String> + Send + 'static, patience: Duration) -> Result<Config, Error> {
    let made = timeout(patience, tokio::task::spawn_blocking(make)).await;
    let made =
        made.map_err(|_| Error::new(ErrorKind::IO, format!("the files that store.* names cannot be read within {patience:?}")))?;
    made.unwrap_or_else(|join| Err(join.to_string())).map_err(|error| Error::new(ErrorKind::IO, error))
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
    let contents = small_file::read(file, PASSWORD_FILE_BYTES_MAX).map_err(|error| unusable(&format!("it {error}")))?;
    let text = String::from_utf8(contents.bytes).map_err(|_| unusable("it is not UTF-8"))?;
    let line = text.lines().next().filter(|line| !line.is_empty());
    line.map(str::to_owned).ok_or_else(|| unusable("it is empty"))
}

/// What a failed attempt to connect to this target tells of when to try again.
pub(super) fn failure(target: &RedisTarget, error: &Error) -> Failure {
    match (&target.tls, error.kind()) {
        (Some(_), ErrorKind::Timeout) => Failure::HandshakeTimedOut,
        _ => Failure::Cheap,
    }
}

async fn open(config: Config, peer: &Peer, patience: Duration) -> Result<(Client, Wire), Error> {
    let turn = config.tls.is_some().then(|| turns(peer));
    // The semaphore is never closed. Whoever holds a place gives it back within its patience.
    let _turn = match &turn {
        Some(turns) => turns.acquire().await.ok(),
        None => None,
    };
    let client = Builder::from_config(config).with_connection_config(|connection| bound(connection, patience)).build()?;
    let mut wire = Wire { task: client.connect(), up_by: monotonic() + patience };
    let up = async {
        tokio::select! {
            // A failure ends the wire; this alone may miss it when it comes very early.
            up = client.wait_for_connect() => up,
            error = wire.ended() => Err(error),
        }
    };
    timeout(patience, up).await.unwrap_or_else(|_| Err(silent(peer, patience)))?;
    Ok((client, wire))
}

fn silent(peer: &Peer, patience: Duration) -> Error {
    Error::new(ErrorKind::Timeout, format!("no connection to {peer} within {patience:?}"))
}

/// Whose turn it is to make a TLS handshake with this server, among all workers of the process.
fn turns(peer: &Peer) -> Arc<Semaphore> {
    // By server, so that one that keeps silent holds up nobody who connects to another. Those that are not in use are dropped.
    static TURNS: Mutex<Vec<(Peer, Weak<Semaphore>)>> = Mutex::new(Vec::new());
    // Nothing panics while it is held.
    let mut all = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, turns)| turns.strong_count() > 0);
    if let Some(turns) = all.iter().find(|(other, _)| other == peer).and_then(|(_, turns)| turns.upgrade()) {
        return turns;
    }
    let turns = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    all.push((peer.clone(), Arc::downgrade(&turns)));
    turns
}

fn bound(connection: &mut ConnectionConfig, patience: Duration) {
    // Each of fred's own steps; all of them together are bounded by the caller.
    connection.connection_timeout = patience;
    connection.internal_command_timeout = patience;
    // A command that was written may have been executed: writing it again could charge twice.
    connection.max_command_attempts = 1;
    connection.reconnect_on_auth_error = true;
    connection.reconnect_errors = RECONNECT_ERRORS.to_vec();
    connection.tcp = TcpConfig { nodelay: Some(true), user_timeout: Some(UNACKNOWLEDGED_MAX), ..TcpConfig::default() };
}
