//! Sends any HTTP/2 frames to a server in this process. It never panics, every connection ends, and other connections are
//! served.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::*;
use crate::fuzz::fuzz;
use crate::limiter::{Limiter, LimiterSettings};
use tollgate_core::plan::{Algorithm, Anchor, Limit, Plan, PlanSet, Rule};
use tollgate_store::clock::SystemClock;
use tollgate_store::{CAPACITY_MIN, MemoryStore};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `ShouldAllow{key: "k", plan: "p"}` with its gRPC prefix.
const ASK: &[u8] = &[0, 0, 0, 0, 6, 0x0a, 1, b'k', 0x12, 1, b'p'];
/// Longer than any answer takes: a connection that is still open then is a failure.
const END_TIMEOUT: Duration = Duration::from_secs(60);
/// Connections between two checks that a well-formed call is answered.
const CHECK_EVERY: u64 = 64;
const PATHS: [&str; 5] = [
    "/tollgate.v1.RateLimitService/ShouldAllow",
    "/tollgate.v1.RateLimitService/ShouldAllowBatch",
    "/tollgate.v1.RateLimitService/ShouldAllowStream",
    "/grpc.health.v1.Health/Watch",
    "/nothing",
];

/// Panics of the server's worker threads, which the runtime would otherwise only print.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// What one connection sends: a kind of piece, a frame's flags, a stream, and bytes.
type Piece = (u8, u8, u8, Vec<u8>);

#[test]
fn fuzz_frames() {
    let address = server();
    let connections = AtomicU64::new(0);
    fuzz!("frames", Vec<Piece>, |pieces: &Vec<Piece>| {
        let sent: Vec<u8> = PREFACE
            .iter()
            .copied()
            .chain(pieces.iter().flat_map(bytes_of))
            .collect();
        exchange(address, &sent);
        let before = connections.fetch_add(1, Ordering::Relaxed);
        if before.is_multiple_of(CHECK_EVERY) {
            assert_served(address);
        }
        assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a worker panicked");
    });
}

/// More than half of the kinds are whole frames of any type. The others are parts of a valid call, so that the server
/// understands more than the first frame, or bytes that are not a frame.
fn bytes_of((kind, flags, stream, bytes): &Piece) -> Vec<u8> {
    let stream = u32::from(*stream);
    match kind % 16 {
        kind @ 0..=9 => frame(kind, *flags, stream, bytes),
        10 | 11 => frame(
            HEADERS,
            END_HEADERS,
            stream | 1,
            &headers(PATHS[usize::from(*flags) % PATHS.len()]),
        ),
        12 => frame(DATA, END_STREAM, stream | 1, ASK),
        13 => frame(DATA, flags & END_STREAM, stream | 1, bytes),
        14 => frame(SETTINGS, 0, 0, &bytes[..bytes.len() - bytes.len() % 6]),
        _ => bytes.clone(),
    }
}

/// Sends the bytes, closes its side and reads until the server closes, too. Returns what the server sent.
fn exchange(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(END_TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(END_TIMEOUT)).unwrap();
    // The server may have closed before all is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut received = Vec::new();
    if let Err(error) = stream.read_to_end(&mut received) {
        assert_ne!(
            error.kind(),
            std::io::ErrorKind::WouldBlock,
            "the server keeps a connection whose peer has closed"
        );
    }
    received
}

fn assert_served(address: &str) {
    let call = [
        frame(SETTINGS, 0, 0, &[]),
        frame(HEADERS, END_HEADERS, 1, &headers(PATHS[0])),
        frame(DATA, END_STREAM, 1, ASK),
    ];
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(END_TIMEOUT)).unwrap();
    stream
        .write_all(&[PREFACE, &call.concat()].concat())
        .unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        stream.read_exact(&mut payload).unwrap();
        if head[3] == DATA {
            // The first field, `allowed`, is true.
            assert_eq!(payload[5..7], [8, 1], "{payload:?}");
            return;
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn headers(path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    let literal = |(name, value): (&str, &str)| {
        [
            &[0, length(name)],
            name.as_bytes(),
            &[length(value)],
            value.as_bytes(),
        ]
        .concat()
    };
    fields.into_iter().flat_map(literal).collect()
}

/// Returns the address of one server for all inputs, which runs until the process ends.
fn server() -> &'static str {
    static ADDRESS: OnceLock<String> = OnceLock::new();
    ADDRESS.get_or_init(|| {
        count_panics();
        let (sender, address) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap())
                    .await
                    .unwrap();
                sender.send(listener.address().to_string()).unwrap();
                let workers = Workers::start(NonZeroUsize::MIN, |_| async { Ok(service()) })
                    .await
                    .unwrap();
                serve(vec![listener], workers, std::future::pending())
                    .await
                    .unwrap();
            });
        });
        address.recv().unwrap()
    })
}

fn count_panics() {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current()
            .name()
            .is_some_and(|name| name.starts_with("worker"))
        {
            PANICS.fetch_add(1, Ordering::SeqCst);
        }
        previous(panic);
    }));
}

/// A service with the plans `p` and `unlimited`.
pub(super) fn service() -> Service<MemoryStore> {
    let limit = Limit::new(
        "limit",
        1_000_000_000,
        Duration::from_secs(60),
        Algorithm::FixedWindow {
            anchor: Anchor::Clock,
        },
    );
    let plans: PlanSet = [
        Plan::new("p", Rule::limits([limit.unwrap()])),
        Plan::new("unlimited", Rule::Unlimited),
    ]
    .into_iter()
    .collect();
    let settings = LimiterSettings {
        deadline: Duration::from_secs(1),
        expected_replicas: 1,
        deny_cache_entries: 0,
    };
    let clock = Arc::new(SystemClock);
    let store = MemoryStore::new(CAPACITY_MIN, Arc::new(SystemClock));
    Service::new(Arc::new(Limiter::new(plans, store, settings, clock)))
}
