//! Rude peers made up at random: what they say, how much of it, how they split it, what they read, and how many they are. Whatever
//! they do, the server keeps within the memory that the documents promise, serves others, and forgets them when they are silent.
//!
//! A round is one kind of rudeness, by 1 to 100 connections at once. Its seed is printed. `TOLLGATE_RUDE_SEED` runs one round again,
//! and `TOLLGATE_RUDE_MINUTES` says how long [`more`] goes on.

mod manners;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use self::manners::{BATCH, Call, DECISION, Head, Manners, REFLECTION, Reads, STREAM, WATCH};
use crate::support::frames::Raw;
use crate::support::history::Random;
use crate::support::server::{PATIENCE, Server, channel_to, decide, memory_kb};

/// What a worker with at most 100 connections takes, in KiB, whatever they do: see docs/failures.md, "Floods".
const RSS_MAX_KB: u64 = 96 << 10;
/// What may be left of it when the peers have been silent for 15 s: their connections are open, with what h2 keeps for streams.
const LEFT_MAX_KB: u64 = 64 << 10;
/// What it takes at most when it is idle and has few plans.
const IDLE_MAX_KB: u64 = 20 << 10;
/// Plans of most rounds, and most that a list of 10,000 takes while it is made, in KiB.
const PLANS: usize = 200;
const LIST_MAX_KB: u64 = 20 << 10;
const SILENT_FOR: Duration = Duration::from_secs(15);
/// How long the peers of a round are active.
const ROUND: Duration = Duration::from_secs(3);
/// The rounds in all tests. They are among those that took most before there was one account.
const SEEDS: [u64; 12] = [7, 0, 1, 2, 3, 1010, 1040, 1065, 1107, 4, 5, 6];
/// Longest that another caller may wait on a machine that is busy with other tests. The benchmarks measure the real figure.
const SLOWEST_MAX: Duration = Duration::from_secs(5);

const INITIAL_WINDOW_SIZE: u16 = 4;
const HEADER_TABLE_SIZE: u16 = 1;

/// So many plans with the longest answers: eight limits with the longest names.
fn config(plans: usize) -> String {
    let name = |limit: usize| format!("{limit}{}", "n".repeat(60));
    let limit = |index: usize| {
        format!(
            "{{ name: {}, quota: 1000000000, window: {}s, algorithm: fixed_window }}",
            name(index),
            index + 1
        )
    };
    let limits: Vec<String> = (0..8).map(limit).collect();
    let plans: Vec<String> = (0..plans)
        .map(|plan| format!("  p{plan}: {{ limits: [ {} ] }}\n", limits.join(", ")))
        .collect();
    let envoy = "envoy: { domains: { d: { rules: [ { descriptor: [ \"e\" ], plan: p0 } ] } } }\n";
    format!(
        "plans:\n  p: {{ limits: [ {} ] }}\n{}{envoy}",
        limits.join(", "),
        plans.concat()
    )
}

/// One peer. It is rude until `until`, and holds its last connection, silent, until `stop`.
fn peer(manners: &Manners, addresses: &(String, String), until: Instant, stop: &AtomicBool) {
    // Peers have machines of their own. Here a hundred of them would take the processor from the server and from the other caller.
    #[cfg(target_os = "linux")]
    rustix::process::nice(19).unwrap();
    let mut last = None;
    while Instant::now() < until {
        // A connection is refused while the server closes others.
        last = if manners.is_http1 {
            http1(manners, &addresses.1, until)
        } else {
            http2(manners, &addresses.0, until)
        };
        std::thread::sleep(Duration::from_millis(5));
    }
    while last.is_some() && !stop.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends as much as the server takes, and reads as the manners say. False once the connection has ended.
fn exchange(stream: &mut TcpStream, mut bytes: &[u8], reads: Reads, until: Instant) -> bool {
    let mut buffer = vec![
        0;
        if matches!(reads, Reads::Little) {
            7
        } else {
            1 << 16
        }
    ];
    loop {
        let read = if matches!(reads, Reads::Nothing) {
            Err(ErrorKind::WouldBlock.into())
        } else {
            stream.read(&mut buffer)
        };
        match read {
            Ok(0) => return false,
            Err(error) if error.kind() != ErrorKind::WouldBlock => return false,
            Ok(_) | Err(_) => {}
        }
        if bytes.is_empty() || Instant::now() >= until {
            return true;
        }
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(1))
            }
            Err(_) => return false,
        }
    }
}

fn http2(manners: &Manners, address: &str, until: Instant) -> Option<TcpStream> {
    let settings = [
        (INITIAL_WINDOW_SIZE, manners.window),
        (HEADER_TABLE_SIZE, manners.table),
    ];
    let Raw(mut stream) = Raw::connect(address, &settings);
    stream.set_nonblocking(true).unwrap();
    let mut number = 0;
    while Instant::now() < until {
        // A burst may have 100 MiB. If each peer made its own, the caller beside would wait for the memory of its own process.
        let bytes = match number {
            0 => manners.first_burst.get_or_init(|| manners.burst(0).into()),
            _ => &manners.burst(number).into(),
        };
        number += 1;
        if !exchange(&mut stream, bytes, manners.reads, until) {
            return None;
        }
        std::thread::sleep(manners.pause);
    }
    Some(stream)
}

fn http1(manners: &Manners, address: &str, until: Instant) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_nonblocking(true).unwrap();
    let mut random = Random(manners.seed);
    while Instant::now() < until {
        let path = *random.pick(&[
            "/metrics",
            "/status",
            "/status/data",
            "/v1/check?key=k&plan=p",
            "/healthz",
            "/openapi.json",
            "/none",
        ]);
        let fields = match manners.calls[0].head {
            Head::Usual => String::new(),
            Head::Fields(count) => "x: y\r\n".repeat(count.min(90)),
            Head::Bytes(count) => format!("cookie: {}\r\n", "c".repeat(count)),
            Head::Unended(_) => "cookie: ".to_owned(),
        };
        let end = if manners.calls[0].ends { "\r\n" } else { "" };
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{fields}{end}");
        if !exchange(
            &mut stream,
            request.repeat(manners.calls_at_once as usize).as_bytes(),
            manners.reads,
            until,
        ) {
            return None;
        }
        std::thread::sleep(manners.pause);
    }
    Some(stream)
}

/// A server, and somebody who asks it, and asks for its health, in time and without a failure, whatever its peers do.
struct Besieged {
    server: Server,
    stop: Arc<AtomicBool>,
    /// While peers are rude.
    rude: Arc<AtomicBool>,
    peak: JoinHandle<u64>,
    asking: tokio::task::JoinHandle<Vec<Duration>>,
}

impl Besieged {
    async fn start(plans: usize) -> Self {
        let server = Server::start(
            &config(plans),
            &["--set", "workers=1", "--set", "listen.http=127.0.0.1:0"],
        );
        let stop = Arc::<AtomicBool>::default();
        let pid = server.child.id();
        let stopped = stop.clone();
        let peak = std::thread::spawn(move || {
            let mut peak = 0;
            while !stopped.load(Ordering::SeqCst) {
                peak = peak.max(memory_kb(pid, "VmRSS"));
                std::thread::sleep(Duration::from_millis(10));
            }
            peak
        });
        let mut client = server.client().await;
        let mut health = HealthClient::new(channel_to(&server.address).await);
        let stopped = stop.clone();
        let rude = Arc::<AtomicBool>::default();
        let measured = rude.clone();
        let asking = tokio::spawn(async move {
            let mut waits = Vec::new();
            while !stopped.load(Ordering::SeqCst) {
                let started = Instant::now();
                assert!(decide(&mut client, "beside", "p").await.allowed);
                health.check(HealthCheckRequest::default()).await.unwrap();
                if measured.load(Ordering::SeqCst) {
                    waits.push(started.elapsed() / 2);
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            waits
        });
        Self {
            server,
            stop,
            rude,
            peak,
            asking,
        }
    }

    /// Runs a round. Returns the peers, who are silent and hold their connections until they are told to stop.
    async fn suffer(&self, manners: Manners) -> (Arc<AtomicBool>, Vec<JoinHandle<()>>) {
        let stop = Arc::<AtomicBool>::default();
        let until = Instant::now() + ROUND;
        let addresses = (self.server.address.clone(), self.server.http());
        let peers = (0..manners.connections).map(|_| {
            let manners = manners.clone();
            let addresses = addresses.clone();
            let stop = stop.clone();
            std::thread::spawn(move || peer(&manners, &addresses, until, &stop))
        });
        self.rude.store(true, Ordering::SeqCst);
        let peers = peers.collect();
        tokio::time::sleep(ROUND + Duration::from_millis(200)).await;
        self.rude.store(false, Ordering::SeqCst);
        assert!(
            !self.asking.is_finished(),
            "{manners}: another caller was not served"
        );
        (stop, peers)
    }

    /// Ends the server. Returns the most that it took, in KiB, and the waits of the other caller while peers were rude, the longest last.
    async fn end(mut self, what: &str) -> (u64, Vec<Duration>) {
        self.stop.store(true, Ordering::SeqCst);
        let mut waits = tokio::time::timeout(PATIENCE, self.asking)
            .await
            .expect(what)
            .expect(what);
        waits.sort();
        self.server.signal("TERM");
        let (status, took) = self.server.wait();
        assert!(
            status.success() && took < Duration::from_secs(10),
            "{what}: {status} after {took:?}"
        );
        (self.peak.join().unwrap(), waits)
    }
}

/// One round on a server of its own. With `silence`, its peers are silent for a while, and must be forgotten.
async fn round(manners: Manners, silence: bool) {
    round_with(PLANS, manners, silence).await;
}

/// Peers of one round at a time are rude. While they are silent, those of another may be.
static RUDE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn round_with(plans: usize, manners: Manners, silence: bool) {
    let rude = RUDE.lock().await;
    println!("{manners}");
    let what = manners.to_string();
    let besieged = Besieged::start(plans).await;
    let idle = besieged.server.memory_kb("VmRSS");
    let (stop, peers) = besieged.suffer(manners).await;
    drop(rude);
    let left = if silence {
        tokio::time::sleep(SILENT_FOR).await;
        besieged.server.memory_kb("VmRSS")
    } else {
        0
    };
    stop.store(true, Ordering::SeqCst);
    let joined = tokio::task::spawn_blocking(move || {
        peers.into_iter().for_each(|peer| peer.join().unwrap())
    });
    joined.await.unwrap();
    let (peak, waits) = besieged.end(&what).await;
    assert!(
        !waits.is_empty(),
        "{what}: no call beside the peers was answered"
    );
    let at = |part: usize| waits[(waits.len() * part / 100).min(waits.len() - 1)];
    println!(
        "  {idle} KiB idle, {peak} at most, {left} after silence; {} calls beside, p50 {:?}, p99 {:?}",
        waits.len(),
        at(50),
        at(99)
    );
    // What the plans themselves take, and the list of them.
    let of_plans = idle.saturating_sub(IDLE_MAX_KB) + if plans > PLANS { LIST_MAX_KB } else { 0 };
    assert!(peak <= RSS_MAX_KB + of_plans, "{what}: {peak} KiB");
    assert!(
        left <= LEFT_MAX_KB + of_plans,
        "{what}: {left} KiB are left"
    );
    assert!(
        waits.last().is_some_and(|slowest| *slowest < SLOWEST_MAX),
        "{what}: {:?}",
        waits.last()
    );
}

fn seed() -> Option<u64> {
    std::env::var("TOLLGATE_RUDE_SEED")
        .ok()
        .map(|seed| seed.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_23_rude_peers_cost_others_nothing() {
    let others = async {
        for seed in &SEEDS[1..] {
            round(Manners::new(*seed), false).await;
        }
    };
    tokio::join!(round(Manners::new(SEEDS[0]), true), others);
}

/// What once took 457, 316 and 593 MiB: answers just below a chunk of HTTP/2, answers much larger than their requests, and heads whose
/// fields take a byte each on the wire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_23_many_small_things_are_one_sum() {
    let small = Manners::silent(96, 1, 256, vec![Call::batch(6)]);
    let larger = Manners::silent(24, 0, 256, vec![Call::batch(1_000)]);
    let unfinished = [DECISION, BATCH, STREAM, WATCH, REFLECTION];
    let unfinished = unfinished.map(|method| Call::fields(method, 440));
    let unfinished = Manners::silent(82, 0, 250, unfinished.into());
    tokio::join!(
        round(small, true),
        round(larger, true),
        round(unfinished, true)
    );
}

/// A list of so many plans has 7 MiB. When each answer was made anew, it took 250 MiB, and others waited for many seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_23_a_list_of_9_999_plans_is_made_once() {
    round_with(
        9_999,
        Manners::silent(96, 0, 250, vec![Call::list()]),
        false,
    )
    .await;
}

/// Rounds by hand: minutes or hours of them, each with a new seed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes as long as one likes; see CONTRIBUTING.md"]
async fn more() {
    let minutes =
        std::env::var("TOLLGATE_RUDE_MINUTES").map_or(10, |minutes| minutes.parse().unwrap());
    let started = Instant::now();
    let first = seed().unwrap_or(1_000);
    for seed in first.. {
        round(Manners::new(seed), seed % 10 == 0).await;
        if started.elapsed() > Duration::from_secs(60 * minutes) {
            return;
        }
    }
}
