//! Opens connections with fred, set up so that they never reconnect, no call on them can hang, and no command is sent twice.
//!
//! fred's own reconnecting is off. It cannot drop a peer that acknowledges bytes but never answers. A forced reconnection
//! waits in the queue of commands, flushes to the silent peer for up to five seconds, and then pauses. So the connection
//! manager drops a connection that ends or goes silent, and opens another one beside it. For the same reason fred is not told
//! of Sentinels or a Cluster: a connection is to one server, and tollgate itself finds out which.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::ClientLike;
use fred::types::config::{
    Config, ConnectionConfig, ReconnectError, Server, ServerConfig, TcpConfig, TlsConfig,
    TlsHostMapping,
};
use fred::types::{Builder, ConnectHandle, RespVersion};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::pace::ConnectFailure;
use super::tls;
use crate::clock::monotonic;
use crate::platform;
use crate::redis::target::{Credentials, Password, RedisTarget, ServerAddress, Topology};
use crate::small_file;

/// Maximum number of concurrent TLS handshakes of this process with one server. A server makes one after another, so more of them
/// do not finish sooner: each only takes longer, and all of them may time out together.
const HANDSHAKES_MAX: usize = 8;
/// Largest password file in bytes. Its first line is the password, and Redis accepts at most a few hundred bytes.
const PASSWORD_FILE_BYTES_MAX: usize = 64 << 10;
/// Longest that sent bytes may stay unacknowledged, where the system can be told.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(1);
/// Errors by which Redis says that this node cannot serve now. The connection is replaced, which finds the right node.
const RECONNECT_ERRORS: [ReconnectError; 4] = [
    ReconnectError::ReadOnly,
    ReconnectError::MasterDown,
    ReconnectError::NoReplicas,
    ReconnectError::Loading,
];

/// The task that runs a connection. Dropping it closes the connection, and calls that wait on it fail.
pub(in crate::redis) struct ConnectionTask {
    task: ConnectHandle,
    /// The deadline of everything that belongs to connecting.
    pub(in crate::redis) up_by: Instant,
}

impl ConnectionTask {
    /// Waits until the connection has ended. Returns the reason.
    pub(in crate::redis) async fn ended(&mut self) -> Error {
        match (&mut self.task).await {
            Ok(Err(error)) => error,
            Ok(Ok(())) => Error::new(ErrorKind::IO, "the connection was closed"),
            Err(join) => Error::new(
                ErrorKind::IO,
                format!("the connection's task ended: {join}"),
            ),
        }
    }
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Opens one connection to a server that keeps counters, and waits until it is up, for at most `time_limit`. With TLS it first
/// waits for a handshake permit, for which no time is counted. Dropping the future drops the connection. Errors:
/// [`ErrorKind::Timeout`] when it is not up in time.
pub(in crate::redis) async fn connect(
    target: &Arc<RedisTarget>,
    peer: &ServerAddress,
    time_limit: Duration,
) -> Result<(Client, ConnectionTask), Error> {
    let target = target.clone();
    let to = peer.clone();
    let make = move || {
        Ok(Config {
            database: target.database,
            ..config(&target, &to, &target.credentials)?
        })
    };
    open(read(make, time_limit).await?, peer, time_limit).await
}

/// As [`connect`], to a Sentinel. It uses RESP3, which delivers events on the same connection as replies.
pub(in crate::redis) async fn connect_to_sentinel(
    target: &Arc<RedisTarget>,
    peer: &ServerAddress,
    time_limit: Duration,
) -> Result<(Client, ConnectionTask), Error> {
    let target = target.clone();
    let to = peer.clone();
    let make = move || match &target.topology {
        Topology::Sentinel(sentinels) => Ok(Config {
            version: RespVersion::RESP3,
            ..config(&target, &to, &sentinels.credentials)?
        }),
        _ => Err("there are no Sentinels".to_owned()),
    };
    open(read(make, time_limit).await?, peer, time_limit).await
}

/// Reads every file that connections need, so that unusable files are reported at the start.
pub(in crate::redis) fn check_files(target: &RedisTarget) -> Result<(), String> {
    password(&target.credentials)?;
    target
        .tls
        .as_ref()
        .map_or(Ok(()), |tls| tls::connector(tls).map(drop))
}

/// Makes the settings of a connection on a blocking thread, since it reads files. Stops waiting after `time_limit`.
async fn read(
    make: impl FnOnce() -> Result<Config, String> + Send + 'static,
    time_limit: Duration,
) -> Result<Config, Error> {
    let made = timeout(time_limit, tokio::task::spawn_blocking(make)).await;
    let made = made.map_err(|_| {
        Error::new(
            ErrorKind::IO,
            format!("the files that store.* names cannot be read within {time_limit:?}"),
        )
    })?;
    made.unwrap_or_else(|join| Err(join.to_string()))
        .map_err(|error| Error::new(ErrorKind::IO, error))
}

fn config(
    target: &RedisTarget,
    peer: &ServerAddress,
    credentials: &Credentials,
) -> Result<Config, String> {
    let tls = target.tls.as_ref();
    let server = match peer {
        ServerAddress::Unix(path) => ServerConfig::Unix { path: path.clone() },
        ServerAddress::Tcp(address) => {
            let mut server = Server::new(address.host.as_str(), address.port);
            server.tls_server_name = tls
                .and_then(|tls| tls.server_name.as_deref())
                .map(Into::into);
            ServerConfig::Centralized { server }
        }
    };
    let tls = tls.map(|tls| {
        Ok::<_, String>(TlsConfig {
            connector: tls::connector(tls)?,
            hostnames: TlsHostMapping::None,
        })
    });
    let username = credentials.username.clone();
    let password = password(credentials)?;
    Ok(Config {
        server,
        username,
        password,
        tls: tls.transpose()?,
        fail_fast: true,
        ..Config::default()
    })
}

fn password(credentials: &Credentials) -> Result<Option<String>, String> {
    match &credentials.password {
        None => Ok(None),
        Some(Password::Given(password)) => Ok(Some(password.clone())),
        Some(Password::File(file)) => first_line(file).map(Some),
    }
}

/// The first line of a file, without its line end, which editors add.
fn first_line(file: &Path) -> Result<String, String> {
    let unusable = |why: &str| {
        format!("store.password_file cannot be used: {why}; its first line is the password")
    };
    let contents = small_file::read(file, PASSWORD_FILE_BYTES_MAX)
        .map_err(|error| unusable(&format!("it {error}")))?;
    let text = String::from_utf8(contents.bytes).map_err(|_| unusable("it is not UTF-8"))?;
    let line = text.lines().next().filter(|line| !line.is_empty());
    line.map(str::to_owned)
        .ok_or_else(|| unusable("it is empty"))
}

/// The kind of a failed attempt to connect, which decides when to try again.
pub(in crate::redis) fn failure(target: &RedisTarget, error: &Error) -> ConnectFailure {
    match (&target.tls, error.kind()) {
        (Some(_), ErrorKind::Timeout) => ConnectFailure::HandshakeTimedOut,
        _ => ConnectFailure::Cheap,
    }
}

async fn open(
    config: Config,
    peer: &ServerAddress,
    time_limit: Duration,
) -> Result<(Client, ConnectionTask), Error> {
    let permits = config.tls.is_some().then(|| handshake_permits(peer));
    // The semaphore is never closed. Every holder returns its permit within its time limit.
    let _permit = match &permits {
        Some(permits) => permits.acquire().await.ok(),
        None => None,
    };
    let client = Builder::from_config(config)
        .with_connection_config(|connection| set_limits(connection, time_limit))
        .build()?;
    let mut task = ConnectionTask {
        task: client.connect(),
        up_by: monotonic() + time_limit,
    };
    let up = async {
        tokio::select! {
            // This may miss a failure that comes very early. Such a failure ends the connection's task; see the next branch.
            up = client.wait_for_connect() => up,
            error = task.ended() => Err(error),
        }
    };
    timeout(time_limit, up)
        .await
        .unwrap_or_else(|_| Err(timed_out(peer, time_limit)))?;
    Ok((client, task))
}

fn timed_out(peer: &ServerAddress, time_limit: Duration) -> Error {
    Error::new(
        ErrorKind::Timeout,
        format!("no connection to {peer} within {time_limit:?}"),
    )
}

/// The permits for TLS handshakes with this server, shared by all workers of the process.
fn handshake_permits(peer: &ServerAddress) -> Arc<Semaphore> {
    // One semaphore per server, so that a silent server does not delay connections to others. Unused ones are dropped.
    static PERMITS: Mutex<Vec<(ServerAddress, Weak<Semaphore>)>> = Mutex::new(Vec::new());
    // No code panics while holding this lock.
    let mut all = PERMITS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, permits)| permits.strong_count() > 0);
    if let Some(permits) = all
        .iter()
        .find(|(other, _)| other == peer)
        .and_then(|(_, permits)| permits.upgrade())
    {
        return permits;
    }
    let permits = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    all.push((peer.clone(), Arc::downgrade(&permits)));
    permits
}

fn set_limits(connection: &mut ConnectionConfig, time_limit: Duration) {
    // These bound each of fred's own steps. The caller bounds all of them together.
    connection.connection_timeout = time_limit;
    connection.internal_command_timeout = time_limit;
    // A command that was written may have been executed, and writing it again could charge twice.
    connection.max_command_attempts = 1;
    connection.reconnect_on_auth_error = true;
    connection.reconnect_errors = RECONNECT_ERRORS.to_vec();
    connection.tcp = TcpConfig {
        nodelay: Some(true),
        ..TcpConfig::default()
    };
    platform::limit_unacknowledged(&mut connection.tcp, UNACKNOWLEDGED_MAX);
}
