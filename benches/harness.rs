//! The harness: it starts servers, puts a load on them, and measures the cost of a decision.

mod cluster;
mod process;
mod redis;
mod serve;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cluster::Cluster;

use crate::load::{self, Expect, Kind, Load, Shared};
pub use process::{ECHO, Memory, Process, WORKERS};
pub use redis::Redis;
pub use serve::serve_echo;

/// Time under load before the measurement. By then, connections are open, allocators have grown, and the script is loaded.
pub const WARM_UP: Duration = Duration::from_secs(1);
/// Requests in one call of a batch, and of the calls that touch every key before the run.
pub const BATCH: usize = 100;
/// Room for a million keys, eight limits each, in the embedded store.
const MEMORY_STORE: &str = "memory:?capacity=2GiB";
/// Length of a usual key: a number, a short UUID, an address.
pub const KEY_BYTES: usize = 20;

/// Envoy's domain, and plans that every run may ask by. Quotas are so large that nothing is denied, but for `denied`, where all is; that of a
/// bucket makes a unit every 4 us.
const PLANS: &str = "envoy:
  domains: { bench: { rules: [ { descriptor: [token_bucket], plan: token_bucket } ] } }
plans:
  token_bucket: { limits: [ { quota: 900000000, window: 1h, algorithm: token_bucket } ] }
  fixed_window: { limits: [ { quota: 1000000000, window: 1h, algorithm: fixed_window } ] }
  first_request: { limits: [ { quota: 1000000000, window: 1h, algorithm: fixed_window, anchor: first_request } ] }
  sliding_window: { limits: [ { quota: 1000000000, window: 1h } ] }
  sliding_counter: { limits: [ { quota: 1000000, window: 1h, algorithm: sliding_counter } ] }
  sliding_log: { limits: [ { quota: 1000, window: 1s, algorithm: sliding_log } ] }
  two_limits: { limits: [ { quota: 1000000000, window: 1h, algorithm: fixed_window }, { quota: 1000000000, window: 1d } ] }
  idle_block: { limits: [ { quota: 900000000, window: 1h, algorithm: token_bucket, block: 1m } ] }
  calendar: { limits: [ { quota: 1000000000, window: month, zone: Europe/Berlin } ] }
  with_candidate: { limits: [ { quota: 900000000, window: 1h, algorithm: token_bucket } ], candidate: token_bucket }
  unlimited: { unlimited: true }
  denied: { limits: [ { quota: 1, window: 1d, algorithm: token_bucket } ] }
";

/// The server under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// The same RPCs without a decision; see [`crate::echo`].
    Echo,
    /// tollgate on its embedded store.
    Memory,
    /// tollgate on Redis.
    Redis,
    /// tollgate on a Redis Cluster of so many masters.
    Cluster(usize),
}

/// The kind of calls, and how many at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub kind: Kind,
    pub connections: usize,
    /// Calls in flight on each.
    pub in_flight: usize,
}

/// One thing to measure.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub server: Server,
    /// How many servers share the store and the connections.
    pub replicas: usize,
    pub shape: Shape,
    pub keys: usize,
    pub key_bytes: usize,
    pub plan: String,
    pub expect: Expect,
}

/// The measured cost of a scenario.
#[derive(Debug, Clone)]
pub struct Row {
    pub name: String,
    pub shape: Shape,
    pub server: Server,
    /// CPU microseconds per decision.
    pub server_us: f64,
    pub redis_us: f64,
    pub per_second: f64,
    /// Of a call: p50, p99, p99.9, in microseconds.
    pub latency_us: [f64; 3],
    pub script_calls: f64,
    /// Share of the decisions that the deny cache took, 0 to 1.
    pub by_deny_cache: f64,
    /// Of the first server alone.
    pub memory: Memory,
    pub errors: u64,
    /// Describes the first error.
    pub complaint: Option<String>,
}

/// State that all scenarios share: Redis, the config, and the settings of the measurement.
pub struct Harness {
    pub redis: Redis,
    /// Each is started when a scenario needs it.
    clusters: Vec<Cluster>,
    config: PathBuf,
    pub measured: Duration,
    workers: NonZeroUsize,
    directory: tempfile::TempDir,
}

impl Shape {
    pub const fn new(kind: Kind, connections: usize, in_flight: usize) -> Self {
        Self {
            kind,
            connections,
            in_flight,
        }
    }

    /// Such as `unary 8x6`: calls of that kind over 8 connections, 6 in flight on each.
    pub fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Unary => "unary".to_owned(),
            Kind::Batch(size) => format!("batch of {size}"),
            Kind::Joint(size) => format!("joint of {size}"),
            Kind::Stream => "stream".to_owned(),
            Kind::Envoy => "ShouldRateLimit".to_owned(),
            Kind::Http => "/v1/check".to_owned(),
        };
        format!("{kind} {}x{}", self.connections, self.in_flight)
    }
}

impl Scenario {
    /// Usual keys under a plan: all denied under `denied`, else all allowed.
    pub fn new(server: Server, shape: Shape, keys: usize, plan: &str) -> Self {
        let expect = if plan == "denied" {
            Expect::Denied
        } else {
            Expect::Allowed
        };
        Self {
            server,
            replicas: 1,
            shape,
            keys,
            key_bytes: KEY_BYTES,
            plan: plan.to_owned(),
            expect,
        }
    }

    pub fn name(&self) -> String {
        let server = match self.server {
            Server::Echo => return format!("echo, {}", self.shape.name()),
            Server::Memory => "memory".to_owned(),
            Server::Redis => "redis".to_owned(),
            Server::Cluster(masters) => format!("cluster of {masters}"),
        };
        let server = if self.replicas == 1 {
            server
        } else {
            format!("{server}, {} replicas", self.replicas)
        };
        let keys = if self.keys == 1 {
            "one key".to_owned()
        } else {
            format!("{} keys", thousands(self.keys))
        };
        format!("{server}, {}, {keys}, {}", self.shape.name(), self.plan)
    }

    pub fn load(&self, servers: &[Process]) -> Load {
        let kind = self.shape.kind;
        let address = |server: &Process| {
            if kind == Kind::Http {
                server.http.clone()
            } else {
                server.address.clone()
            }
        };
        Load {
            addresses: servers.iter().map(address).collect(),
            kind,
            plan: self.plan.clone(),
            keys: self.keys,
            key_bytes: self.key_bytes,
            connections: self.shape.connections,
            in_flight: self.shape.in_flight,
            // An echo allows everything.
            expect: if self.server == Server::Echo {
                Expect::Allowed
            } else {
                self.expect
            },
            calls_max: None,
        }
    }
}

impl Row {
    pub fn sum_us(&self) -> f64 {
        self.server_us + self.redis_us
    }
}

impl Harness {
    /// A harness whose measurements last as long as `measured` each, of servers with so many workers.
    pub fn new(measured: Duration, workers: NonZeroUsize) -> Self {
        let directory = tempfile::tempdir().expect("there is room for a temporary folder");
        let redis = Redis::start(directory.path());
        let config = directory.path().join("tollgate.yaml");
        let harness = Self {
            redis,
            clusters: Vec::new(),
            config,
            measured,
            workers,
            directory,
        };
        harness.configure("");
        harness
    }

    /// Adds plans (lines of YAML) to the usual ones, for servers started from now on.
    pub fn configure(&self, plans: &str) {
        std::fs::write(&self.config, format!("{PLANS}{plans}"))
            .expect("there is room for a config file");
    }

    /// Starts a server on an empty store.
    pub fn start(&mut self, server: Server) -> Process {
        match server {
            Server::Echo => Process::echo(self.workers),
            Server::Memory => Process::tollgate(&self.config, MEMORY_STORE, self.workers),
            Server::Redis => {
                self.redis.flush();
                Process::tollgate(&self.config, &self.redis.url(), self.workers)
            }
            Server::Cluster(masters) => {
                let url = self.cluster(masters).url();
                self.cluster(masters).flush();
                Process::tollgate(&self.config, &url, self.workers)
            }
        }
    }

    /// The Cluster of so many masters.
    fn cluster(&mut self, masters: usize) -> &mut Cluster {
        let known = self
            .clusters
            .iter()
            .position(|cluster| cluster.masters() == masters);
        let index = known.unwrap_or_else(|| {
            self.clusters
                .push(Cluster::start(self.directory.path(), masters));
            self.clusters.len() - 1
        });
        &mut self.clusters[index]
    }

    /// Asks once for every key of a scenario, so that none is new in the run, and a key with a quota of 1 has used it.
    pub async fn touch(&self, scenario: &Scenario, servers: &[Process]) -> Result<(), String> {
        let connections = 1;
        let calls = scenario.keys.div_ceil(BATCH) as u64;
        let load = Load {
            addresses: vec![servers[0].address.clone()],
            kind: Kind::Batch(BATCH),
            connections,
            in_flight: 1,
            expect: Expect::Decision,
            calls_max: Some(calls),
            ..scenario.load(servers)
        };
        match load::complete(&load).await?.complaint {
            None => Ok(()),
            Some(complaint) => Err(format!("while the keys were touched: {complaint}")),
        }
    }

    /// Measures a scenario on servers of its own.
    pub async fn measure(&mut self, scenario: &Scenario) -> Result<Row, String> {
        let servers: Vec<Process> = (0..scenario.replicas)
            .map(|_| self.start(scenario.server))
            .collect();
        self.touch(scenario, &servers).await?;
        let load = scenario.load(&servers);
        load::run(&load, async |shared| {
            self.count(scenario, &servers, shared).await
        })
        .await
    }

    /// Script calls so far of the Redis that a server is on, and its CPU time in microseconds. Zero for others: an idle Redis ticks,
    /// which is not a server's cost.
    fn of_store(&mut self, server: Server) -> (u64, f64) {
        match server {
            Server::Echo | Server::Memory => (0, 0.0),
            Server::Redis => (self.redis.script_calls(), self.redis.process.cpu_us()),
            Server::Cluster(masters) => (
                self.cluster(masters).script_calls(),
                self.cluster(masters).cpu_us(),
            ),
        }
    }

    async fn count(&mut self, scenario: &Scenario, servers: &[Process], shared: &Shared) -> Row {
        tokio::time::sleep(WARM_UP).await;
        // Errors of the warm-up are errors too.
        let early = shared.take();
        let (scripts, redis_us) = self.of_store(scenario.server);
        let of_servers = || servers.iter().map(Process::cpu_us).sum::<f64>();
        let server_us = of_servers();
        let began = Instant::now();
        tokio::time::sleep(self.measured).await;
        let tally = shared.take();
        let server_us = of_servers() - server_us;
        let took = began.elapsed();
        let (scripts_then, redis_us_then) = self.of_store(scenario.server);
        let scripts = scripts_then - scripts;
        let redis_us = redis_us_then - redis_us;
        let decisions = tally.decisions as f64;
        Row {
            name: scenario.name(),
            shape: scenario.shape,
            server: scenario.server,
            server_us: server_us / decisions,
            redis_us: redis_us / decisions,
            per_second: decisions / took.as_secs_f64(),
            latency_us: [0.5, 0.99, 0.999].map(|quantile| tally.latency_us(quantile)),
            script_calls: scripts as f64 / decisions,
            by_deny_cache: tally.by_deny_cache as f64 / decisions,
            memory: servers[0].memory(),
            errors: early.errors + tally.errors,
            complaint: early.complaint.or(tally.complaint),
        }
    }
}

/// A number with a comma between its thousands.
pub fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
