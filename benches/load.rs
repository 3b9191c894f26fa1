//! The load client of the benchmarks: raw HTTP on one thread, so cheap that it leaves the machine to the servers.
//!
//! [`http`] speaks HTTP/1.1. [`caller`] speaks gRPC over bytes in and bytes out and knows no socket. This module drives it in a closed loop, in which each
//! answer is followed by the next request, over any stream of bytes. [`paced`] drives it in an open loop. A latency is that of
//! one call: a unary call, a whole batch, or one message of a stream.

#![allow(dead_code, reason = "each benchmark uses its part of the client")]

mod caller;
mod connection;
mod frame;
mod http;
pub mod paced;
mod requests;
mod tally;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, LocalSet};

pub use caller::Caller;
pub use requests::Requests;
pub use tally::{Expect, Tally};

/// Bytes of one read: the answers to several batches.
const READ_BYTES: usize = 64 << 10;
/// Envoy's domain, in which an entry's name is that of its plan.
pub const ENVOY_DOMAIN: &str = "bench";
/// Keys are taken in steps of this prime, so that those asked for one after another are not neighbours, and a count of
/// keys that is not a multiple of it is gone through whole.
const STRIDE: usize = 7919;
/// Longest time from the last call to the last answer. Calls that are not answered by then are lost.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Which RPC is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `ShouldAllow`, with an HTTP/2 stream for each call.
    Unary,
    /// `ShouldAllowBatch` of so many requests.
    Batch(usize),
    /// `ShouldAllowJoint` of so many requests for different keys.
    Joint(usize),
    /// `ShouldAllowStream`, with one stream for each connection, open for the whole run.
    Stream,
    /// Envoy's `ShouldRateLimit` of one descriptor, with an HTTP/2 stream for each call.
    Envoy,
    /// `GET /v1/check` over HTTP/1.1, one call after another on each connection.
    Http,
}

impl Kind {
    fn path(self) -> &'static str {
        match self {
            Self::Unary => "/tollgate.v1.RateLimitService/ShouldAllow",
            Self::Joint(_) => "/tollgate.v1.RateLimitService/ShouldAllowJoint",
            Self::Batch(_) => "/tollgate.v1.RateLimitService/ShouldAllowBatch",
            Self::Stream => "/tollgate.v1.RateLimitService/ShouldAllowStream",
            Self::Envoy => "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            Self::Http => "/v1/check",
        }
    }
}

/// The calls to make, and how many at once.
#[derive(Debug, Clone)]
pub struct Load {
    /// Each `host:port`. Connections take turns.
    pub addresses: Vec<String>,
    pub kind: Kind,
    pub plan: String,
    /// How many different keys.
    pub keys: usize,
    /// Length of each, in bytes.
    pub key_bytes: usize,
    pub connections: usize,
    /// Calls that a connection has in flight; over HTTP/1.1 it is 1.
    pub in_flight: usize,
    /// The answer that every call should get; any other counts as an error.
    pub expect: Expect,
    /// Calls that a connection makes at most; `None`: until told to stop.
    pub calls_max: Option<u64>,
}

impl Load {
    /// Where the `index`th connection goes.
    pub fn address(&self, index: usize) -> &str {
        &self.addresses[index % self.addresses.len()]
    }
}

/// State that the connections of one load share.
pub struct Shared {
    stopping: Cell<bool>,
    tally: RefCell<Tally>,
}

impl Shared {
    pub fn new(expect: Expect) -> Rc<Self> {
        Rc::new(Self {
            stopping: Cell::new(false),
            tally: RefCell::new(Tally::new(expect)),
        })
    }

    /// Returns the counts since it was last called, and starts again at 0.
    pub fn take(&self) -> Tally {
        let fresh = self.tally.borrow().fresh();
        self.tally.replace(fresh)
    }
}

/// Makes calls in a closed loop while `steer` runs, then waits for the missing answers. Errors: a sentence, when a connection
/// fails or an answer never comes.
pub async fn run<T>(load: &Load, steer: impl AsyncFnOnce(&Shared) -> T) -> Result<T, String> {
    let run = async {
        let (shared, mut connections) = start(load).await?;
        let steered = tokio::select! {
            steered = steer(&shared) => steered,
            ended = connections.join_next() => return Err(why(ended)),
        };
        shared.stopping.set(true);
        tokio::time::timeout(DRAIN_TIMEOUT, all(connections))
            .await
            .map_err(|_| "some calls were never answered")??;
        Ok(steered)
    };
    LocalSet::new().run_until(run).await
}

/// Makes the calls that `calls_max` says and waits for all answers.
pub async fn complete(load: &Load) -> Result<Tally, String> {
    let run = async {
        let (shared, connections) = start(load).await?;
        all(connections).await?;
        Ok(shared.take())
    };
    LocalSet::new().run_until(run).await
}

type Connections = JoinSet<Result<(), String>>;

async fn start(load: &Load) -> Result<(Rc<Shared>, Connections), String> {
    let shared = Shared::new(load.expect);
    let requests = Rc::new(Requests::of(load));
    let mut connections = JoinSet::new();
    for index in 0..load.connections {
        let address = load.address(index);
        let stream = TcpStream::connect(address)
            .await
            .map_err(|error| format!("{address}: {error}"))?;
        stream
            .set_nodelay(true)
            .map_err(|error| error.to_string())?;
        let requests = requests.clone();
        let shared = shared.clone();
        match load.kind {
            Kind::Http => {
                connections.spawn_local(http::drive(stream, load.clone(), index, requests, shared))
            }
            _ => connections.spawn_local(drive(stream, Caller::new(load, index, requests, shared))),
        };
    }
    Ok((shared, connections))
}

async fn all(mut connections: Connections) -> Result<(), String> {
    while let Some(ended) = connections.join_next().await {
        ended.map_err(|error| error.to_string())??;
    }
    Ok(())
}

fn why(ended: Option<Result<Result<(), String>, tokio::task::JoinError>>) -> String {
    match ended {
        Some(Ok(Err(error))) => error,
        Some(Err(error)) => error.to_string(),
        Some(Ok(Ok(()))) | None => "a connection ended before it was told to".to_owned(),
    }
}

/// Makes calls over one connection until all are made, or it is told to stop. Returns when all are answered.
pub async fn drive(
    io: impl AsyncRead + AsyncWrite + Unpin,
    mut caller: Caller,
) -> Result<(), String> {
    let (mut reader, mut writer) = tokio::io::split(io);
    let mut input = vec![0; READ_BYTES];
    loop {
        caller.fill(Instant::now())?;
        if caller.finished() {
            return Ok(());
        }
        let output = caller.output();
        // Reading goes on while the peer does not take what is written, else both could wait for each other.
        tokio::select! {
            biased;
            written = writer.write(output), if !output.is_empty() => {
                let written = written.map_err(|error| format!("cannot write: {error}"))?;
                output.drain(..written);
            }
            read = reader.read(&mut input) => match read {
                Ok(0) => return Err("the server closed the connection".to_owned()),
                Ok(read) => caller.receive(&input[..read], Instant::now())?,
                Err(error) => return Err(format!("cannot read: {error}")),
            },
        }
    }
}
