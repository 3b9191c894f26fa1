//! How a server ends: it tells its clients first, answers every call, and ends in time even if a peer does not let go.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio_stream::StreamExt;
use tollgate::grpc::pb;
use tonic::{Code, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::support::haproxy::Haproxy;
use crate::support::http::{Scrape, get};
use crate::support::nginx::Nginx;
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, channel_to, decide, request};

const PLANS: &str = "
store: { deadline: 10s }
plans: { p: { limits: [ { name: day, quota: 1000000000, window: 1d, algorithm: fixed_window } ] } }
";
/// The promise is 10 s; a busy machine may add to it.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

fn deciding() -> HealthCheckRequest {
    HealthCheckRequest {
        service: "tollgate.v1.RateLimitService".to_owned(),
    }
}

async fn next(
    watched: &mut tonic::Streaming<HealthCheckResponse>,
) -> Option<Result<ServingStatus, Status>> {
    let next = tokio::time::timeout(PATIENCE, watched.next())
        .await
        .expect("health says nothing");
    next.map(|next| next.map(|response| response.status()))
}

#[tokio::test]
async fn fault_18_health_says_so_first_and_everything_is_served_meanwhile() {
    let server = Server::start(
        PLANS,
        &[
            "--set",
            "listen.http=127.0.0.1:0",
            "--set",
            "listen.lame_duck=3s",
        ],
    );
    let mut health = HealthClient::new(channel_to(&server.address).await);
    let mut watched = health.watch(deciding()).await.unwrap().into_inner();
    assert_eq!(
        next(&mut watched).await.unwrap().unwrap(),
        ServingStatus::Serving
    );
    assert_eq!(get(&server.http(), "/readyz").status, 200);
    server.signal("TERM");
    assert_eq!(
        next(&mut watched).await.unwrap().unwrap(),
        ServingStatus::NotServing
    );
    let told = Instant::now();
    assert_eq!(
        (
            get(&server.http(), "/readyz").status,
            get(&server.http(), "/healthz").status
        ),
        (503, 200)
    );
    // New connections too.
    assert!(decide(&mut server.client().await, "k", "p").await.allowed);
    let status = health
        .check(deciding())
        .await
        .unwrap()
        .into_inner()
        .status();
    assert!(
        !server.log().contains("stopping: no new calls"),
        "nothing was shown: this machine is too slow"
    );
    assert_eq!(status, ServingStatus::NotServing);
    // A client that watches the health gets an end of its stream, so it does not delay the end of the server.
    assert!(next(&mut watched).await.is_none());
    println!("lame for {:?}", told.elapsed());
    let ((status, log), _) = tokio::task::spawn_blocking(move || server.wait_and_log())
        .await
        .unwrap();
    assert!(
        status.success() && log.contains("stopped: every call was answered"),
        "{log}"
    );
}

#[tokio::test]
async fn fault_18_an_interrupt_does_not_wait_for_probes() {
    let server = Server::start(PLANS, &["--set", "listen.lame_duck=3s"]);
    server.signal("INT");
    let ((status, log), took) = tokio::task::spawn_blocking(move || server.wait_and_log())
        .await
        .unwrap();
    assert!(
        status.success() && log.contains("\"lame_duck\":\"0ns\""),
        "{log}"
    );
    println!("ended {took:?} after SIGINT");
}

/// tonic's own server would wait for all of these for ever.
#[tokio::test]
async fn fault_18_a_server_ends_in_time_with_connections_and_calls_open() {
    let server = Server::start(
        PLANS,
        &[
            "--set",
            "listen.lame_duck=1s",
            "--set",
            "listen.http=127.0.0.1:0",
        ],
    );
    let silent: Vec<TcpStream> = (0..500)
        .map(|_| TcpStream::connect(&server.address).unwrap())
        .collect();
    let also_silent: Vec<TcpStream> = (0..50)
        .map(|_| TcpStream::connect(server.http()).unwrap())
        .collect();
    let mut client = server.client().await;
    let (asks, asked) = tokio::sync::mpsc::channel::<pb::ShouldAllowStreamRequest>(1);
    let mut answers = client
        .should_allow_stream(tokio_stream::wrappers::ReceiverStream::new(asked))
        .await
        .unwrap()
        .into_inner();
    let ask = |id| pb::ShouldAllowStreamRequest {
        id,
        request: Some(request("k", "p", None)),
    };
    asks.send(ask(1)).await.unwrap();
    assert_eq!(answers.next().await.unwrap().unwrap().id, 1);
    server.signal("TERM");
    server.wait_for_line("stopping: not ready").await;
    // Still answered while it is lame.
    asks.send(ask(2)).await.unwrap();
    let second = answers.next().await.unwrap();
    assert!(
        second.is_ok_and(|answer| answer.id == 2),
        "nothing was shown: this machine is too slow"
    );
    let ended = tokio::time::timeout(PATIENCE, answers.next())
        .await
        .expect("the stream does not end")
        .unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
    let ((status, log), took) = tokio::task::spawn_blocking(move || server.wait_and_log())
        .await
        .unwrap();
    println!("ended {took:?} after its stream did, with 550 silent connections");
    assert!(
        status.success() && log.contains("stopped: every call was answered"),
        "{log}"
    );
    assert!(took < ENDS_WITHIN, "{took:?}");
    drop((silent, also_silent));
}

#[tokio::test]
async fn fault_18_what_cannot_be_answered_is_cut_in_time_and_said() {
    let redis = Redis::start();
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "listen.lame_duck=0s"],
    );
    let mut client = server.client().await;
    // A request that is never sent to its end: no stream that the server could close.
    let mut half = TcpStream::connect(&server.address).unwrap();
    std::io::Write::write_all(&mut half, &crate::support::frames::half_a_call()).unwrap();
    assert!(decide(&mut client, "k", "p").await.allowed);
    server.signal("TERM");
    let started = Instant::now();
    let ((status, log), _) = tokio::task::spawn_blocking(move || server.wait_and_log())
        .await
        .unwrap();
    println!("ended after {:?}", started.elapsed());
    assert!(
        status.success() && log.contains("some connections did not close in time and were cut"),
        "{log}"
    );
    assert!(started.elapsed() < ENDS_WITHIN, "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_go_away_when_they_are_old_and_every_call_that_was_taken_is_answered() {
    let server = Server::start(
        PLANS,
        &[
            "--set",
            "listen.max_connection_age=1s",
            "--set",
            "listen.http=127.0.0.1:0",
        ],
    );
    let mut client = server.client().await;
    let (asks, asked) = tokio::sync::mpsc::channel::<pb::ShouldAllowStreamRequest>(1);
    let asked = tokio_stream::wrappers::ReceiverStream::new(asked);
    let mut answers = client
        .should_allow_stream(asked)
        .await
        .unwrap()
        .into_inner();
    // The stream that is open ends with the connection; a channel makes another without a word.
    let ended = tokio::time::timeout(PATIENCE, answers.next())
        .await
        .expect("it does not grow old")
        .unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
    drop(asks);
    let started = Instant::now();
    let mut answered = 0.0;
    let mut unsent = 0;
    while started.elapsed() < Duration::from_secs(3) {
        match client.should_allow(request("k", "p", None)).await {
            Ok(_) => answered += 1.0,
            // What this client was about to send when it heard the goodbye, it gives up itself, in one of two ways, where
            // others would send it by the next connection.
            Err(status) => {
                unsent += 1;
                let given_up = status.code() == Code::Cancelled
                    || format!("{status:?}").contains("GoAway(b\"\", NO_ERROR, Remote)");
                assert!(given_up && unsent <= 4, "{status:?}, the {unsent}th");
            }
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let taken: f64 = Scrape::of(&server.http()).decisions().values().sum();
    println!("{answered} calls answered, {taken} taken");
    assert_eq!(answered, taken);
}

/// Callers that never retry a failed call, until told to stop: how many calls were answered, and what became of the others.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    callers: Vec<tokio::task::JoinHandle<Vec<Status>>>,
}

/// Calls until told to stop; what failed.
async fn call_on(
    mut client: Client,
    key: String,
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
) -> Vec<Status> {
    let mut failed = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        match client.should_allow(request(&key, "p", None)).await {
            Ok(_) => drop(answered.fetch_add(1, Ordering::SeqCst)),
            Err(status) => failed.push(status),
        }
    }
    failed
}

impl Load {
    async fn start(address: &str) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let answered = Arc::<AtomicU64>::default();
        let mut callers = Vec::new();
        for caller in 0..4 {
            let client = Client::new(channel_to(address).await);
            for in_flight in 0..8 {
                let key = format!("{caller} {in_flight}");
                callers.push(tokio::spawn(call_on(
                    client.clone(),
                    key,
                    stop.clone(),
                    answered.clone(),
                )));
            }
        }
        Self {
            stop,
            answered,
            callers,
        }
    }

    /// Waits until so many more were answered.
    async fn wait_for_answers(&self, more: u64) {
        let begun = self.answered.load(Ordering::SeqCst);
        let started = Instant::now();
        while self.answered.load(Ordering::SeqCst) < begun + more {
            assert!(started.elapsed() < PATIENCE, "calls hang");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn stop(self) -> (u64, Vec<Status>) {
        self.stop.store(true, Ordering::SeqCst);
        let mut failed = Vec::new();
        for caller in self.callers {
            failed.extend(caller.await.unwrap());
        }
        (self.answered.load(Ordering::SeqCst), failed)
    }
}

const FLAGS: [&str; 4] = [
    "--set",
    "listen.lame_duck=1s",
    "--set",
    "listen.http=127.0.0.1:",
];

/// A replica whose HTTP keeps its port over restarts.
fn replica(redis: &Redis) -> (Server, String) {
    let http = format!("{}{}", FLAGS[3], crate::support::redis::free_port());
    (
        Server::start(
            PLANS,
            &["--store", &redis.url(), FLAGS[0], FLAGS[1], FLAGS[2], &http],
        ),
        http,
    )
}

/// Stops and starts each replica in turn, under load by way of the proxy that is made of them.
async fn assert_rolling_restart_fails_no_call<P>(
    proxy: impl FnOnce(&[(String, String)]) -> (P, String),
) {
    let redis = Redis::start();
    let mut replicas: Vec<(Server, String)> = (0..3).map(|_| replica(&redis)).collect();
    let addresses: Vec<(String, String)> = replicas
        .iter()
        .map(|(server, _)| (server.address.clone(), server.http()))
        .collect();
    let (_proxy, address) = proxy(&addresses);
    let load = Load::start(&address).await;
    load.wait_for_answers(500).await;
    for _ in 0..3 {
        let (mut old, http) = replicas.remove(0);
        old.signal("TERM");
        let url = redis.url();
        let started = tokio::task::spawn_blocking(move || {
            assert!(old.wait().0.success());
            (
                old.again(&["--store", &url, FLAGS[0], FLAGS[1], FLAGS[2], &http]),
                http,
            )
        });
        replicas.push(started.await.unwrap());
        // Proxies look at it before they send it calls again; and the next goes only when this one serves.
        load.wait_for_answers(500).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let (answered, failed) = load.stop().await;
    println!("{answered} calls answered, {} failed", failed.len());
    assert!(
        failed.is_empty(),
        "{} of {answered} failed: {:?}",
        failed.len(),
        failed[0]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_18_replicas_behind_nginx_are_restarted_in_turn_and_no_call_fails() {
    assert_rolling_restart_fails_no_call(|replicas| {
        let addresses: Vec<&str> = replicas.iter().map(|(grpc, _)| grpc.as_str()).collect();
        let nginx = Nginx::before(&addresses);
        let address = nginx.address.clone();
        (nginx, address)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_18_replicas_behind_haproxy_are_restarted_in_turn_and_no_call_fails() {
    assert_rolling_restart_fails_no_call(|replicas| {
        let haproxy = Haproxy::before(replicas);
        let address = haproxy.address.clone();
        (haproxy, address)
    })
    .await;
}
