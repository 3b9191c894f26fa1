//! What one peer can hold, of memory and of seats, and for how long: calls whose request does not end, answers that are not
//! read. Others are answered meanwhile.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::support::frames::{
    self, ASK, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, Raw, SETTINGS, SHOULD_ALLOW,
    WINDOW_UPDATE, frame,
};
use crate::support::http::{Scrape, get};
use crate::support::server::{PATIENCE, Server, channel_to, decide};

const PLANS: &str = "plans: { p: { limits: [ { name: day, quota: 1000000000, window: 1d, algorithm: fixed_window } ] } }\n";
const BATCH: &str = "/tollgate.v1.RateLimitService/ShouldAllowBatch";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const CHECK: &str = "/grpc.health.v1.Health/Check";
const MIB: usize = 1 << 20;
/// What the server may have, whatever unfinished messages there are.
const RSS_MAX_KB: u64 = 64 << 10;

fn start() -> Server {
    Server::start(
        PLANS,
        &["--set", "workers=1", "--set", "listen.http=127.0.0.1:0"],
    )
}

/// A connection that sends as much as it is let.
struct Pushing {
    raw: Raw,
    window: i64,
    /// Of streams that were not answered, and what was sent on each.
    streams: BTreeMap<u32, (i64, usize)>,
    /// Most bytes that were sent on streams that were not answered.
    held: usize,
}

impl Pushing {
    /// Begins messages of a mebibyte each.
    fn begin(address: &str, streams: u32) -> Self {
        let mut raw = Raw::connect(address, &[]);
        let headers = frames::headers(BATCH);
        let mut pushed = BTreeMap::new();
        let announced = [&[0], &u32::try_from(MIB).unwrap().to_be_bytes()[..]].concat();
        for call in 0..streams {
            let stream = 2 * call + 1;
            assert!(
                raw.send(
                    &[
                        frame(HEADERS, END_HEADERS, stream, &headers),
                        frame(DATA, 0, stream, &announced)
                    ]
                    .concat()
                )
            );
            // What every server grants at least.
            pushed.insert(stream, (65_535 - 5, 5));
        }
        Self {
            raw,
            window: 65_535 - 5 * i64::from(streams),
            streams: pushed,
            held: 0,
        }
    }

    /// Sends until so many bytes of each message are there, or its call was answered.
    fn push(&mut self, bytes: usize) {
        const PIECE: i64 = 16 << 10;
        while self.streams.values().any(|(_, sent)| *sent < bytes) {
            let sendable = self
                .streams
                .iter()
                .find(|(_, (window, sent))| *sent < bytes && *window >= PIECE);
            match sendable
                .map(|(stream, _)| *stream)
                .filter(|_| self.window >= PIECE)
            {
                Some(stream) => {
                    assert!(self.raw.send(&frame(DATA, 0, stream, &[0; PIECE as usize])));
                    self.window -= PIECE;
                    let (window, sent) = self.streams.get_mut(&stream).unwrap();
                    (*window, *sent) = (*window - PIECE, *sent + PIECE as usize);
                    self.held = self
                        .held
                        .max(self.streams.values().map(|(_, sent)| sent).sum());
                }
                None => self.hear(),
            }
        }
    }

    fn hear(&mut self) {
        let (kind, _, stream, payload) = self.raw.next().expect("the connection stays open");
        match kind {
            WINDOW_UPDATE => {
                let more = i64::from(u32::from_be_bytes(payload.try_into().unwrap()));
                match self.streams.get_mut(&stream) {
                    Some((window, _)) => *window += more,
                    None if stream == 0 => self.window += more,
                    None => {}
                }
            }
            HEADERS | RST_STREAM => drop(self.streams.remove(&stream)),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_are_announced_and_never_finished_take_64_mib_at_most() {
    let server = start();
    let address = server.address.clone();
    let before = server.memory_kb("VmRSS");
    let pushing = tokio::task::spawn_blocking(move || {
        let mut all: Vec<Pushing> = (0..4).map(|_| Pushing::begin(&address, 256)).collect();
        all.iter_mut().for_each(|pushing| pushing.push(256 << 10));
        all
    });
    let held = pushing
        .await
        .unwrap()
        .iter()
        .map(|pushing| pushing.held)
        .sum::<usize>();
    let rss = server.memory_kb("VmHWM");
    println!("{held} bytes of messages were held; {before} KiB before, {rss} KiB at most");
    assert!(
        held > 2 * MIB && rss < RSS_MAX_KB,
        "{held} bytes, {rss} KiB"
    );
    let mut client = server.client().await;
    assert!(decide(&mut client, "k", "p").await.allowed);
}

/// Connections that each have `calls` calls of this method, each of which gets so far.
fn besiege(
    address: &str,
    connections: usize,
    path: &str,
    settings: &[(u16, u32)],
    part: Option<&[u8]>,
) -> Vec<Raw> {
    let headers = frames::headers(path);
    let call = |call: u32| {
        let stream = 2 * call + 1;
        let message = match part {
            Some(bytes) if bytes == ASK => frame(DATA, END_STREAM, stream, bytes),
            Some(bytes) => frame(DATA, 0, stream, bytes),
            None => Vec::new(),
        };
        [frame(HEADERS, END_HEADERS, stream, &headers), message].concat()
    };
    let calls: Vec<u8> = (0..256).flat_map(call).collect();
    let besieger = |_| {
        let mut raw = Raw::connect(address, settings);
        assert!(raw.send(&calls));
        raw
    };
    (0..connections).map(besieger).collect()
}

/// Waits until each call of this connection was ended by a frame of this kind, or refused before; how long that took. A connection
/// that takes nothing is closed, and all its calls with it.
fn ended(raw: &mut Raw, ends_by: u8, since: Instant) -> Duration {
    let mut open: std::collections::BTreeSet<u32> = (0..256).map(|call| 2 * call + 1).collect();
    while !open.is_empty() {
        let Some((kind, flags, stream, _)) = raw.next() else {
            assert_eq!(ends_by, RST_STREAM, "the connection stays open");
            break;
        };
        match kind {
            SETTINGS if flags == 0 => assert!(raw.send(&frame(SETTINGS, 1, 0, &[]))),
            RST_STREAM => drop(open.remove(&stream)),
            HEADERS if kind == ends_by || flags & END_STREAM != 0 => drop(open.remove(&stream)),
            _ => {}
        }
        assert!(
            since.elapsed() < PATIENCE,
            "{} calls do not end",
            open.len()
        );
    }
    since.elapsed()
}

/// Asks for a while beside what goes on; each question must be answered well.
async fn assert_all_is_well(server: &Server) {
    let mut client = server.client().await;
    let mut health = HealthClient::new(channel_to(&server.address).await);
    for _ in 0..200 {
        assert!(decide(&mut client, "k", "p").await.allowed);
        assert!(health.check(HealthCheckRequest::default()).await.is_ok());
    }
}

async fn refused(server: &Server) -> f64 {
    // What was sent may not be read yet.
    let started = Instant::now();
    loop {
        let refused = Scrape::of(&server.http()).value("tollgate_refused_calls_total");
        if refused > 0.0 {
            return refused;
        }
        assert!(started.elapsed() < PATIENCE, "nothing is refused");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_whose_request_does_not_end_leave_seats_to_others_and_end_in_time() {
    let server = start();
    let address = server.address.clone();
    let since = Instant::now();
    let besiegers = tokio::task::spawn_blocking(move || {
        // More than a worker may hold, so that some are refused.
        let half = besiege(&address, 200, SHOULD_ALLOW, &[], Some(&ASK[..7]));
        // Those are for health only, and these are not for probes.
        let bare = besiege(&address, 4, CHECK, &[], None);
        let watching = besiege(&address, 4, WATCH, &[], Some(&[0; 5]));
        (half, bare, watching)
    });
    let (mut half, mut bare, mut watching) = besiegers.await.unwrap();
    println!("{} calls are refused", refused(&server).await);
    assert_all_is_well(&server).await;
    let took = tokio::task::spawn_blocking(move || {
        [&mut half, &mut bare, &mut watching].map(|besiegers| {
            besiegers
                .iter_mut()
                .map(|raw| ended(raw, HEADERS, since))
                .max()
                .unwrap()
        })
    });
    println!("the calls ended after {:?}", took.await.unwrap());
    assert_all_is_well(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_not_read_leave_seats_to_others_and_are_dropped_in_time() {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let server = start();
    let address = server.address.clone();
    let since = Instant::now();
    let besiegers = tokio::task::spawn_blocking(move || {
        besiege(
            &address,
            40,
            SHOULD_ALLOW,
            &[(INITIAL_WINDOW_SIZE, 0)],
            Some(ASK),
        )
    });
    let mut besiegers = besiegers.await.unwrap();
    assert_all_is_well(&server).await;
    assert!(
        server.memory_kb("VmRSS") < RSS_MAX_KB,
        "{} KiB",
        server.memory_kb("VmRSS")
    );
    let took = tokio::task::spawn_blocking(move || {
        besiegers
            .iter_mut()
            .map(|raw| ended(raw, RST_STREAM, since))
            .max()
            .unwrap()
    });
    println!("the calls ended after {:?}", took.await.unwrap());
    assert_all_is_well(&server).await;
}

/// What comes until the end, which must be within a time that only a busy machine needs.
fn read_to_the_end(stream: &mut TcpStream) -> (String, Duration) {
    let begun = Instant::now();
    let mut text = Vec::new();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A reset is an end, too.
    let _ = stream.read_to_end(&mut text);
    (String::from_utf8_lossy(&text).into_owned(), begun.elapsed())
}

/// The bound is 5 s.
const SILENCE_MAX: Duration = Duration::from_secs(30);

#[test]
fn a_silent_http_connection_is_closed_within_seconds() {
    let server = start();
    let http = server.http();
    let asked = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    let half = "GET /healthz HTTP/1.1\r\nHost";
    for said in ["", half] {
        let mut stream = TcpStream::connect(&http).unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        let (_, took) = read_to_the_end(&mut stream);
        assert!(took < SILENCE_MAX, "{said:?}: {took:?}");
    }
    // One that was answered may be silent for longer, but not within the next head.
    let mut stream = TcpStream::connect(&http).unwrap();
    stream.write_all(asked.as_bytes()).unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    std::thread::sleep(Duration::from_secs(6));
    stream.write_all(asked.as_bytes()).unwrap();
    let mut answers = [0; 200];
    assert!(
        stream.read(&mut answers).unwrap() > 0,
        "an idle connection was closed"
    );
    stream.write_all(half.as_bytes()).unwrap();
    let (_, took) = read_to_the_end(&mut stream);
    assert!(took < SILENCE_MAX, "{took:?}");
}

/// Repeats this until it holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "{what} does not succeed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a new connection gets the answer that the server is ready. A refused connection is closed without one.
fn is_ready(address: &str) -> bool {
    let mut stream = TcpStream::connect(address).unwrap();
    let _ = stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    read_to_the_end(&mut stream).0.starts_with("HTTP/1.1 200")
}

async fn is_serving(address: &str) -> bool {
    let Ok(channel) = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect()
        .await
    else {
        return false;
    };
    HealthClient::new(channel)
        .check(HealthCheckRequest::default())
        .await
        .is_ok()
}

#[test]
fn as_many_idle_connections_as_may_be_keep_no_probe_out() {
    let server = start();
    let half = |address: &str, said: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        // It may have been told to leave already.
        let _ = stream.write_all(said);
        stream
    };
    let http: Vec<TcpStream> = (0..1_100)
        .map(|_| half(&server.http(), b"GET / HTTP/1.1\r\nHost"))
        .collect();
    let grpc: Vec<TcpStream> = (0..4_200).map(|_| half(&server.address, b"")).collect();
    // While the server is still closing idle connections for the crowd's last ones, it may refuse a newcomer.
    until("a probe by HTTP", || is_ready(&server.http()));
    for _ in 0..20 {
        assert_eq!(get(&server.http(), "/readyz").status, 200);
        assert_eq!(get(&server.http(), "/metrics").status, 200);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    until("a probe by gRPC", || {
        runtime.block_on(is_serving(&server.address))
    });
    for _ in 0..20 {
        assert!(runtime.block_on(is_serving(&server.address)));
    }
    drop((http, grpc));
}

#[test]
fn unread_metrics_are_bounded_in_number_and_dropped_in_time() {
    let mut plans = "plans:\n".to_owned();
    for plan in 0..10_000 {
        plans.push_str(&format!(
            "  p{plan:05}: {{ limits: [ {{ quota: 5, window: 1m }} ] }}\n"
        ));
    }
    let server = Server::start(
        &plans,
        &["--set", "workers=1", "--set", "listen.http=127.0.0.1:0"],
    );
    let http = server.http();
    let length = get(&http, "/metrics").body.len() as u64;
    let before = server.memory_kb("VmRSS");
    let begin = |_| {
        let mut stream = TcpStream::connect(&http).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        stream
    };
    let mut unread: Vec<TcpStream> = (0..40).map(begin).collect();
    // So that all of them are answered as far as they will be.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(get(&http, "/readyz").status, 200);
    assert!(get(&http, "/metrics").body.len() as u64 >= length / 2);
    let grown = server.memory_kb("VmRSS").saturating_sub(before);
    println!("{} KiB each, {grown} KiB more for 40 of them", length >> 10);
    assert!(grown < 8 * (length >> 10), "{grown} KiB more");
    let (text, took) = read_to_the_end(&mut {
        std::thread::sleep(Duration::from_secs(20));
        unread.remove(0)
    });
    assert!(
        (text.len() as u64) < length && took < SILENCE_MAX,
        "{} bytes, {took:?}",
        text.len()
    );
}
