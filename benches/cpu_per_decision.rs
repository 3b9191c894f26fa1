//! CPU per decision: server and Redis, beside a bare tonic echo of the same message in the same run.
//!
//!     cargo bench --bench cpu_per_decision
//!
//! CPU time (utime + stime of the processes, divided by decisions) is what to compare: it is steady on a shared machine,
//! and requests per second are not. The load is a closed loop of 48 calls in flight over 8 connections on this machine.
//! Takes about a minute; needs redis-server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a benchmark that cannot run ends by saying so")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate::grpc::pb;
use tollgate::grpc::pb::rate_limit_service_client::RateLimitServiceClient;
use tollgate::grpc::pb::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

const CONNECTIONS: usize = 8;
const STREAMS: usize = 6;
const WARM_UP: Duration = Duration::from_secs(1);
const MEASURED: Duration = Duration::from_secs(5);
/// The role of this program as the echo server.
const ECHO: &str = "TOLLGATE_BENCH_ECHO";
/// Kernel ticks per second, of which `/proc` counts CPU time; 100 on every Linux that Rust supports.
const TICKS: f64 = 100.0;

const PLANS: &str = "plans:
  fixed_window: { limits: [ { quota: 1000000000, window: 1h, algorithm: fixed_window } ] }
  sliding_log: { limits: [ { quota: 1000, window: 1s, algorithm: sliding_log } ] }
  sliding_window: { limits: [ { quota: 1000000000, window: 1h } ] }
  sliding_counter: { limits: [ { quota: 1000000, window: 1h, algorithm: sliding_counter } ] }
  token_bucket: { limits: [ { quota: 1000000, window: 1s, algorithm: token_bucket } ] }
  two_limits: { limits: [ { quota: 1000000000, window: 1h, algorithm: fixed_window }, { quota: 1000000000, window: 1d } ] }
  denied: { limits: [ { quota: 1, window: 1d, algorithm: token_bucket } ] }
";

/// What a server costs.
struct Row {
    name: String,
    server_us: f64,
    redis_us: f64,
    per_second: f64,
    errors: u64,
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if let Ok(address) = std::env::var(ECHO) {
        runtime.block_on(echo(&address));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let redis_port = free_port();
    let redis = Running(
        Command::new("redis-server")
            .args(["--port", &redis_port.to_string(), "--save", "", "--dir", directory.path().to_str().unwrap()])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is needed: apt-get install redis-server"),
    );
    let config = directory.path().join("tollgate.yaml");
    std::fs::write(&config, PLANS).unwrap();
    let redis_url = format!("redis://127.0.0.1:{redis_port}");
    let mut rows = vec![runtime.block_on(measure("bare tonic echo", "echo", start_echo(), None))];
    for (store, url) in [("memory", "memory:"), ("redis", redis_url.as_str())] {
        let plans = ["fixed_window", "sliding_log", "sliding_window", "sliding_counter", "token_bucket", "two_limits", "denied"];
        for plan in plans {
            let redis = (store == "redis").then_some(&redis);
            let server = start_tollgate(config.to_str().unwrap(), url);
            rows.push(runtime.block_on(measure(&format!("{store} {plan}"), plan, server, redis)));
        }
    }
    let echo_us = rows[0].server_us;
    println!(
        "{:<24} {:>10} {:>10} {:>10} {:>8} {:>10} {:>7}",
        "us of CPU a decision", "server", "redis", "sum", "x echo", "per second", "errors"
    );
    for Row { name, server_us, redis_us, per_second, errors } in rows {
        let sum = server_us + redis_us;
        println!(
            "{name:<24} {server_us:>10.1} {redis_us:>10.1} {sum:>10.1} {:>8.2} {per_second:>10.0} {errors:>7}",
            sum / echo_us
        );
    }
}

/// A process that ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// CPU time so far. Source: proc(5), fields 14 and 15 of `/proc/PID/stat`.
    fn cpu(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / TICKS
    }
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start_echo() -> (Running, String) {
    let address = format!("127.0.0.1:{}", free_port());
    let child = Command::new(std::env::current_exe().unwrap()).env(ECHO, &address).spawn().unwrap();
    (Running(child), address)
}

fn start_tollgate(config: &str, store: &str) -> (Running, String) {
    let address = format!("127.0.0.1:{}", free_port());
    let arguments = ["--config", config, "--listen", &address, "--store", store];
    let child = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).stdout(Stdio::null()).spawn().unwrap();
    (Running(child), address)
}

async fn measure(name: &str, plan: &str, (server, address): (Running, String), redis: Option<&Running>) -> Row {
    let stop = Arc::new(AtomicBool::new(false));
    let counting = Arc::new(AtomicBool::new(false));
    let mut callers = Vec::new();
    for connection in 0..CONNECTIONS {
        let channel = connect(&address).await;
        for stream in 0..STREAMS {
            let caller = connection * STREAMS + stream;
            callers.push(tokio::spawn(call(channel.clone(), caller, plan.to_owned(), counting.clone(), stop.clone())));
        }
    }
    tokio::time::sleep(WARM_UP).await;
    let cpu = || (server.cpu(), redis.map_or(0.0, Running::cpu));
    let (before, started) = (cpu(), Instant::now());
    counting.store(true, Ordering::Relaxed);
    tokio::time::sleep(MEASURED).await;
    counting.store(false, Ordering::Relaxed);
    let (after, took) = (cpu(), started.elapsed());
    stop.store(true, Ordering::Relaxed);
    let (mut decisions, mut errors) = (0, 0);
    for caller in callers {
        let (more, failed) = caller.await.unwrap();
        decisions += more;
        errors += failed;
    }
    let us = |after: f64, before: f64| (after - before) * 1e6 / decisions as f64;
    Row {
        name: name.to_owned(),
        server_us: us(after.0, before.0),
        redis_us: us(after.1, before.1),
        per_second: decisions as f64 / took.as_secs_f64(),
        errors,
    }
}

async fn connect(address: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let started = Instant::now();
    loop {
        match endpoint.connect().await {
            Ok(channel) => return channel,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(10), "{address}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn call(channel: Channel, caller: usize, plan: String, counting: Arc<AtomicBool>, stop: Arc<AtomicBool>) -> (u64, u64) {
    let mut client = RateLimitServiceClient::new(channel);
    let (mut decisions, mut errors, mut turn) = (0, 0, caller);
    while !stop.load(Ordering::Relaxed) {
        turn += 7;
        let key = format!("key-{:016}", turn % 1000);
        let request = pb::ShouldAllowRequest { key, plan: plan.clone(), cost: None, detailed: false };
        let failed = client.should_allow(request).await.is_err();
        if counting.load(Ordering::Relaxed) {
            decisions += 1;
            errors += u64::from(failed);
        }
    }
    (decisions, errors)
}

/// Answers every call with the same message: what the wire alone costs.
struct Echo;

#[tonic::async_trait]
impl RateLimitService for Echo {
    async fn should_allow(&self, _: Request<pb::ShouldAllowRequest>) -> Result<Response<pb::ShouldAllowResponse>, Status> {
        Ok(Response::new(pb::ShouldAllowResponse {
            allowed: true,
            outcome: 1,
            limit_name: "sliding_window/1h".to_owned(),
            limit: 1_000_000,
            remaining: 999_999,
            retry_after: None,
            reset_after: Some(prost_types::Duration { seconds: 1, nanos: 1 }),
            decided_by: 1,
            limits: Vec::new(),
        }))
    }

    async fn should_allow_batch(
        &self,
        _: Request<pb::ShouldAllowBatchRequest>,
    ) -> Result<Response<pb::ShouldAllowBatchResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }

    type ShouldAllowStreamStream = tokio_stream::Empty<Result<pb::ShouldAllowStreamResponse, Status>>;

    async fn should_allow_stream(
        &self,
        _: Request<Streaming<pb::ShouldAllowStreamRequest>>,
    ) -> Result<Response<Self::ShouldAllowStreamStream>, Status> {
        Err(Status::unimplemented("an echo"))
    }

    async fn peek(&self, _: Request<pb::PeekRequest>) -> Result<Response<pb::PeekResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }

    async fn list_plans(&self, _: Request<pb::ListPlansRequest>) -> Result<Response<pb::ListPlansResponse>, Status> {
        Err(Status::unimplemented("an echo"))
    }
}

async fn echo(address: &str) {
    let served = Server::builder().add_service(RateLimitServiceServer::new(Echo)).serve(address.parse().unwrap());
    served.await.unwrap();
}
