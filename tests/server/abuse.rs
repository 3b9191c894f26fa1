//! What no client should do: HTTP/2 frame by frame, and floods of connections and calls. The server says goodbye or keeps
//! its memory as it was, and others are served meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_types::StatusExt;

use crate::support::frames::{
    self, ASK, CONTINUATION, DATA, END_HEADERS, END_STREAM, End, HEADERS, PING, RST_STREAM, Raw,
    SETTINGS, SHOULD_ALLOW, frame,
};
use crate::support::http::Scrape;
use crate::support::reflection::services;
use crate::support::server::{Client, PATIENCE, Server, channel_to, decide, request};

const PLANS: &str = "plans: { p: { limits: [ { name: day, quota: 1000000000, window: 1d, algorithm: fixed_window } ] } }\n";
/// What a server that is attacked over one connection may take more: connections and their buffers take some of it.
const GROWTH_MAX_KB: u64 = 48 << 10;
/// The bound that the server promises, whatever its peers do.
const RSS_MAX_KB: u64 = 192 << 10;
/// What an attack that is not stopped waits for.
const QUIET: Duration = Duration::from_secs(2);
const ENHANCE_YOUR_CALM: End = End::GoAway(11);

/// Somebody who asks and asks, each time in time and without a failure.
struct Beside {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    asking: JoinHandle<Duration>,
}

impl Beside {
    async fn start(server: &Server) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let calls = Arc::<AtomicU64>::default();
        let mut client = server.client().await;
        let asking = (stop.clone(), calls.clone());
        let asking = tokio::spawn(async move {
            let mut slowest = Duration::ZERO;
            while !asking.0.load(Ordering::SeqCst) {
                let started = Instant::now();
                assert!(decide(&mut client, "beside", "p").await.allowed);
                slowest = slowest.max(started.elapsed());
                asking.1.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            slowest
        });
        Self {
            stop,
            calls,
            asking,
        }
    }

    /// Waits for a few more answers, so that there were some whatever was done meanwhile.
    async fn stop(self, what: &str) {
        let seen = self.calls.load(Ordering::SeqCst);
        let started = Instant::now();
        while self.calls.load(Ordering::SeqCst) < seen + 10 {
            assert!(
                started.elapsed() < PATIENCE && !self.asking.is_finished(),
                "{what}: others are not served"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.stop.store(true, Ordering::SeqCst);
        println!(
            "{what}: {} calls of another beside it, the slowest {:?}",
            seen + 10,
            self.asking.await.unwrap()
        );
    }
}

/// Attacks over one connection and tells how that ended; all the while others are served, and memory stays as it was.
async fn attack(
    what: &str,
    settings: &'static [(u16, u32)],
    attack: impl FnOnce(&mut Raw) + Send + 'static,
) -> End {
    let server = Server::start(PLANS, &["--set", "workers=1"]);
    let beside = Beside::start(&server).await;
    let address = server.address.clone();
    let before = server.memory_kb("VmRSS");
    let (end, raw) = tokio::task::spawn_blocking(move || {
        let mut raw = Raw::connect(&address, settings);
        raw.0.set_write_timeout(Some(QUIET)).unwrap();
        attack(&mut raw);
        (raw.end(QUIET), raw)
    })
    .await
    .unwrap();
    beside.stop(what).await;
    let grown = server.memory_kb("VmRSS").saturating_sub(before);
    println!("{what}: {end:?}, {grown} KiB more");
    assert!(grown < GROWTH_MAX_KB, "{what}: {grown} KiB more");
    drop(raw);
    end
}

/// Sends this again and again, until the server takes no more of it.
fn flood(raw: &mut Raw, frame: &[u8], times: usize) {
    let thousand = frame.repeat(1_000);
    for _ in 0..times / 1_000 {
        if !raw.send(&thousand) {
            return;
        }
    }
}

#[tokio::test]
async fn fault_24_rapid_resets() {
    let end = attack("rapid resets", &[], |raw| {
        let headers = frames::headers(SHOULD_ALLOW);
        let pair = |call: u32| {
            let stream = 2 * call + 1;
            [
                frame(HEADERS, END_HEADERS, stream, &headers),
                frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
            ]
            .concat()
        };
        let calls: Vec<u32> = (0..100_000).collect();
        for some in calls.chunks(2_000) {
            if !raw.send(
                &some
                    .iter()
                    .flat_map(|call| pair(*call))
                    .collect::<Vec<u8>>(),
            ) {
                return;
            }
        }
    });
    assert_ne!(end.await, End::Open);
}

#[tokio::test]
async fn fault_24_headers_that_go_on_and_on() {
    let end = attack("CONTINUATION", &[], |raw| {
        raw.send(&frame(HEADERS, 0, 1, &frames::headers(SHOULD_ALLOW)));
        let more: Vec<u8> = (0..8)
            .flat_map(|_| frames::literal("x-filler", &"x".repeat(100)))
            .collect();
        flood(raw, &frame(CONTINUATION, 0, 1, &more), 100_000);
    });
    assert_ne!(end.await, End::Open);
}

#[tokio::test]
async fn fault_24_pings_from_a_client_that_does_not_read() {
    attack("PING", &[], |raw| {
        flood(raw, &frame(PING, 0, 0, &[7; 8]), 400_000)
    })
    .await;
}

#[tokio::test]
async fn fault_24_settings_from_a_client_that_does_not_read() {
    attack("SETTINGS", &[], |raw| {
        flood(raw, &frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]), 400_000)
    })
    .await;
}

#[tokio::test]
async fn fault_24_data_without_data() {
    let end = attack("empty DATA", &[], |raw| {
        raw.send(&frame(
            HEADERS,
            END_HEADERS,
            1,
            &frames::headers(SHOULD_ALLOW),
        ));
        flood(raw, &frame(DATA, 0, 1, &[]), 400_000);
    });
    assert_eq!(end.await, ENHANCE_YOUR_CALM);
}

#[tokio::test]
async fn fault_24_answers_that_may_not_be_sent() {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    attack("zero window", &[(INITIAL_WINDOW_SIZE, 0)], |raw| {
        let headers = frames::headers(SHOULD_ALLOW);
        for call in 0..20_000 {
            let stream = 2 * call + 1;
            let call = [
                frame(HEADERS, END_HEADERS, stream, &headers),
                frame(DATA, END_STREAM, stream, ASK),
            ]
            .concat();
            if !raw.send(&call) {
                return;
            }
        }
    })
    .await;
}

/// Connections that each hold `calls` calls whose requests do not end, and read nothing.
fn besiege(address: &str, connections: usize, calls: u32) -> Vec<Raw> {
    let headers = frames::headers(SHOULD_ALLOW);
    let half = |call: u32| {
        let stream = 2 * call + 1;
        [
            frame(HEADERS, END_HEADERS, stream, &headers),
            frame(DATA, 0, stream, &ASK[..7]),
        ]
        .concat()
    };
    let calls: Vec<u8> = (0..calls).flat_map(half).collect();
    let mut besiegers = Vec::new();
    for _ in 0..connections {
        let mut raw = Raw::connect(address, &[]);
        raw.0.set_write_timeout(Some(QUIET)).unwrap();
        // It need not take all of it.
        raw.send(&calls);
        besiegers.push(raw);
    }
    besiegers
}

/// Waits until the server has dealt with all that was sent to it: its count of refused calls stands still. That count.
async fn refused_in_the_end(server: &Server) -> f64 {
    let started = Instant::now();
    let mut refused = 0.0;
    let mut unchanged = 0;
    while unchanged < 10 {
        assert!(
            started.elapsed() < PATIENCE,
            "{refused} are refused, and no end of it"
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = Scrape::of(&server.http()).value("tollgate_refused_calls_total");
        unchanged = if now > 0.0 && now == refused {
            unchanged + 1
        } else {
            0
        };
        refused = now;
    }
    refused
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_23_a_flood_of_connections_and_calls_is_bounded_and_refused() {
    let server = Server::start(
        PLANS,
        &["--set", "workers=1", "--set", "listen.http=127.0.0.1:0"],
    );
    let mut early = server.client().await;
    // Before there is a crowd, so that it may have many streams.
    let channel = channel_to(&server.address).await;
    assert!(!services(channel.clone()).await.is_empty());
    let mut reflection = ServerReflectionClient::new(channel);
    assert!(decide(&mut early, "k", "p").await.allowed);
    let address = server.address.clone();
    let before = server.memory_kb("VmRSS");
    let besiegers = tokio::task::spawn_blocking(move || besiege(&address, 500, 256))
        .await
        .unwrap();
    let refused = refused_in_the_end(&server).await;
    let rss = server.memory_kb("VmRSS");
    println!(
        "{} connections of 256 calls each: {refused} refused, {} MiB, {} before",
        besiegers.len(),
        rss >> 10,
        before >> 10
    );
    assert!(rss < RSS_MAX_KB, "{rss} KiB");
    // Their requests have not arrived, so any other call may take their permits.
    let mut latecomer = Client::new(channel_to(&server.address).await);
    for client in [&mut early, &mut latecomer] {
        assert!(decide(client, "k", "p").await.allowed);
    }
    let mut health = HealthClient::new(channel_to(&server.address).await);
    assert!(health.check(HealthCheckRequest::default()).await.is_ok());
    // Who takes more than a share itself is refused, at once, and told when to come again.
    let mut open = Vec::new();
    let mut refused = None;
    while refused.is_none() {
        match reflection
            .server_reflection_info(tokio_stream::pending())
            .await
        {
            Ok(answers) => open.push(answers),
            Err(status) => refused = Some(status),
        }
    }
    let status = refused.unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(
        status
            .get_details_retry_info()
            .unwrap()
            .retry_delay
            .is_some()
    );
    println!("refused after {} others", open.len());
    drop(besiegers);
    // And when they are gone, all is as before.
    let started = Instant::now();
    while latecomer
        .should_allow(request("k", "p", None))
        .await
        .is_err()
    {
        assert!(started.elapsed() < PATIENCE, "permits are not given back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn fault_23_a_connection_that_ignores_its_refusal_is_closed() {
    let server = Server::start(
        PLANS,
        &["--set", "workers=1", "--set", "listen.http=127.0.0.1:0"],
    );
    let address = server.address.clone();
    let other = server.address.clone();
    let besiegers = tokio::task::spawn_blocking(move || besiege(&address, 300, 256))
        .await
        .unwrap();
    refused_in_the_end(&server).await;
    let deaf = tokio::task::spawn_blocking(move || {
        let mut raw = Raw::connect(&other, &[]);
        let headers = frames::headers(SHOULD_ALLOW);
        raw.0.set_write_timeout(Some(PATIENCE)).unwrap();
        // As many as fill what the system keeps for a peer that does not read, and some.
        for call in 0..1_000_000_u32 {
            let stream = 2 * call + 1;
            if !raw.send(
                &[
                    frame(HEADERS, END_HEADERS, stream, &headers),
                    frame(DATA, END_STREAM, stream, ASK),
                ]
                .concat(),
            ) {
                return call;
            }
        }
        panic!("it may go on for ever");
    });
    println!("cut off after {} calls", deaf.await.unwrap());
    drop(besiegers);
}
