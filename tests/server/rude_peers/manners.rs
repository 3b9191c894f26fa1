//! What the peers of a round do, made up from a seed, and the frames of it.

use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use prost::Message;
use tollgate::grpc::pb;

use crate::support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, literal,
};
use crate::support::history::Random;
use crate::support::reflection::methods;

pub const DECISION: &str = "/tollgate.v1.RateLimitService/ShouldAllow";
pub const BATCH: &str = "/tollgate.v1.RateLimitService/ShouldAllowBatch";
pub const STREAM: &str = "/tollgate.v1.RateLimitService/ShouldAllowStream";
const LIST: &str = "/tollgate.v1.RateLimitService/ListPlans";
const ENVOY: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";
pub const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// All methods of the contract, and others. Those with large requests or answers stand twice.
static METHODS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let others = [
        BATCH,
        ENVOY,
        ENVOY,
        WATCH,
        REFLECTION,
        "/unknown.Service/Method",
    ];
    [methods(), others.map(str::to_owned).to_vec()].concat()
});

/// What every peer of a round does.
#[derive(Debug, Clone)]
pub struct Manners {
    pub seed: u64,
    pub connections: usize,
    /// Whether they speak HTTP/1.
    pub is_http1: bool,
    pub window: u32,
    pub table: u32,
    pub reads: Reads,
    pub calls: Vec<Call>,
    /// Calls that are made together, and how often: as many may be open as a connection may have, or far too many.
    pub calls_at_once: u32,
    pub bursts: u32,
    pub pause: Duration,
    /// Further frames between the bursts.
    pub extras: Vec<Extra>,
    /// The frames of the first burst, made once for all peers.
    pub first_burst: Arc<OnceLock<Box<[u8]>>>,
}

#[derive(Debug, Clone, Copy)]
pub enum Reads {
    Nothing,
    /// A few bytes at a time.
    Little,
    Everything,
}

#[derive(Debug, Clone, Copy)]
pub enum Extra {
    Ping,
    Settings,
    EmptyData,
    Window(u32),
    Reset,
    Garbage,
}

#[derive(Debug, Clone)]
pub struct Call {
    pub method: &'static str,
    pub head: Head,
    pub message: Arc<[u8]>,
    /// Bytes of a frame of data.
    pub piece: usize,
    /// Whether the request ends.
    pub ends: bool,
}

#[derive(Debug, Clone, Copy)]
pub enum Head {
    Usual,
    /// So many fields of one byte, which refer to one that was sent before.
    Fields(usize),
    /// Fields with so many bytes in all.
    Bytes(usize),
    /// So many frames, the last of which does not end it.
    Unended(usize),
}

impl std::fmt::Display for Manners {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let calls: Vec<String> = self
            .calls
            .iter()
            .map(|call| {
                format!(
                    "{} {:?} {}B by {} ends={}",
                    call.method.rsplit('/').next().unwrap(),
                    call.head,
                    call.message.len(),
                    call.piece,
                    call.ends
                )
            })
            .collect();
        let protocol = if self.is_http1 { "HTTP/1" } else { "HTTP/2" };
        write!(
            to,
            "seed {}: {} x {protocol}, window {}, reads {:?}, {} bursts of {} each {:?}, {:?}, {}",
            self.seed,
            self.connections,
            self.window,
            self.reads,
            self.bursts,
            self.calls_at_once,
            self.pause,
            self.extras,
            calls.join("; ")
        )
    }
}

impl Manners {
    /// `calls` at once by each of `connections` peers, who read nothing and let nothing be sent but `window` bytes a call.
    pub fn silent(connections: usize, window: u32, burst: u32, calls: Vec<Call>) -> Self {
        Self {
            seed: 0,
            connections,
            is_http1: false,
            window,
            table: 4096,
            reads: Reads::Nothing,
            calls,
            calls_at_once: burst,
            bursts: 1,
            pause: Duration::from_millis(100),
            extras: Vec::new(),
            first_burst: Arc::default(),
        }
    }

    pub fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let calls = (0..=random.below(2))
            .map(|_| Call::new(&mut random))
            .collect();
        let extras = [
            Extra::Ping,
            Extra::Settings,
            Extra::EmptyData,
            Extra::Window(1),
            Extra::Window(1 << 16),
            Extra::Reset,
            Extra::Garbage,
        ];
        // Garbage ends the connection, so it is rare.
        let extras = if random.below(8) == 0 {
            &extras[..]
        } else {
            &extras[..6]
        };
        Self {
            seed,
            connections: *random.pick(&[1, 8, 24, 32, 64, 96, 96, 100]),
            is_http1: random.below(6) == 0,
            window: *random.pick(&[0, 0, 1, 1, 100, 65_535, (1 << 31) - 1]),
            table: *random.pick(&[0, 4096, 1 << 20]),
            reads: *random.pick(&[Reads::Nothing, Reads::Little, Reads::Everything]),
            calls,
            calls_at_once: *random.pick(&[2, 32, 250, 250, 250]),
            bursts: *random.pick(&[1, 1, 1, 8, u32::MAX]),
            pause: Duration::from_millis(*random.pick(&[1, 20, 200])),
            // Garbage ends the connection, so it is rare.
            extras: (0..random.below(3)).map(|_| *random.pick(extras)).collect(),
            first_burst: Arc::default(),
        }
    }

    /// The frames of a burst, the first of which has number 0. When all bursts were made, the further frames alone.
    pub fn burst(&self, number: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut next = 1 + 2 * self.calls_at_once * number.min(self.bursts);
        if number < self.bursts {
            for index in 0..self.calls_at_once {
                let call = &self.calls[index as usize % self.calls.len()];
                bytes.extend(frames(call, next));
                next += 2;
            }
        }
        let further = self.extras.iter().map(|further| extra(*further, next - 2));
        bytes.extend(further.flatten());
        bytes
    }
}

impl Call {
    /// A batch of so many requests with the longest answers.
    pub fn batch(requests: usize) -> Self {
        let request = pb::ShouldAllowRequest {
            key: "k".to_owned(),
            plan: "p".to_owned(),
            cost: None,
            detailed: true,
            http_headers: true,
            ..Default::default()
        };
        let message = framed(
            pb::ShouldAllowBatchRequest {
                requests: vec![request; requests],
            }
            .encode_to_vec(),
        );
        Self {
            method: BATCH,
            head: Head::Usual,
            message: message.into(),
            piece: 1 << 14,
            ends: true,
        }
    }

    /// A call for all plans.
    pub fn list() -> Self {
        Self {
            method: LIST,
            head: Head::Usual,
            message: framed(Vec::new()).into(),
            piece: 1 << 14,
            ends: true,
        }
    }

    /// A call whose request never comes, with so many header fields.
    pub fn fields(method: &'static str, fields: usize) -> Self {
        Self {
            method,
            head: Head::Fields(fields),
            message: Arc::new([]),
            piece: 1,
            ends: false,
        }
    }

    /// Most calls have one fault at most: one with several is refused for the first.
    fn new(random: &mut Random) -> Self {
        let method = random.pick(&METHODS).as_str();
        let heads = [
            Head::Fields(440),
            Head::Fields(100),
            Head::Bytes(2_500),
            Head::Bytes(14_000),
            Head::Unended(3),
        ];
        let mut call = Self {
            method,
            head: Head::Usual,
            message: message(method, random).into(),
            piece: 1 << 14,
            ends: true,
        };
        for _ in 0..random.below(3) {
            match random.below(4) {
                0 => call.head = *random.pick(&heads),
                1 => call.ends = false,
                2 => call.piece = *random.pick(&[1, 100]),
                _ => call.message = spoiled(&call.message, random).into(),
            }
        }
        call
    }
}

fn request(random: &mut Random) -> pb::ShouldAllowRequest {
    let key_bytes_max = if random.below(4) == 0 { 512 } else { 8 };
    pb::ShouldAllowRequest {
        key: "k".repeat(1 + random.below(key_bytes_max) as usize),
        plan: "p".to_owned(),
        cost: None,
        detailed: random.below(4) > 0,
        http_headers: random.below(4) > 0,
        ..Default::default()
    }
}

fn framed(message: Vec<u8>) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], &message].concat()
}

/// A message of this method with its prefix.
fn message(method: &str, random: &mut Random) -> Vec<u8> {
    match method.rsplit('/').next().unwrap() {
        "ShouldAllow" => framed(request(random).encode_to_vec()),
        "Peek" => framed(
            pb::PeekRequest {
                key: "k".to_owned(),
                plan: "p".to_owned(),
                cost: None,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        "ShouldAllowBatch" => {
            let requests = vec![request(random); *random.pick(&[1, 10, 100, 1_000, 1_000])];
            framed(pb::ShouldAllowBatchRequest { requests }.encode_to_vec())
        }
        "ShouldAllowStream" => {
            let request = Some(request(random));
            let count = *random.pick(&[1, 100, 2_000]);
            (0..count)
                .flat_map(|id| {
                    framed(
                        pb::ShouldAllowStreamRequest {
                            id,
                            request: request.clone(),
                        }
                        .encode_to_vec(),
                    )
                })
                .collect()
        }
        // domain "d", and so many descriptors of one entry, e=v.
        "ShouldRateLimit" => {
            let descriptor = [0x12, 8, 0x0a, 6, 0x0a, 1, b'e', 0x12, 1, b'v'];
            framed(
                [
                    &[0x0a, 1, b'd'][..],
                    &descriptor.repeat(*random.pick(&[1, 70, 1_000])),
                ]
                .concat(),
            )
        }
        // list_services
        "ServerReflectionInfo" => framed(vec![0x3a, 1, b'*']).repeat(*random.pick(&[1, 100])),
        _ => framed(Vec::new()),
    }
}

/// A message that is cut, announces more than comes, or says that it is compressed.
fn spoiled(message: &[u8], random: &mut Random) -> Vec<u8> {
    match random.below(3) {
        0 => message[..random.below(message.len() as u64) as usize].to_vec(),
        1 => [
            &[0, 0, 15, 0xff, 0xff][..],
            &vec![0; random.below(70_000) as usize],
        ]
        .concat(),
        _ => [&[1], &message[1..]].concat(),
    }
}

/// The block of header fields of a call, in frames. Fields that are repeated are put into the table of the connection first.
pub fn head(call: &Call, stream: u32) -> Vec<u8> {
    let usual = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", call.method),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block: Vec<u8> = usual
        .iter()
        .flat_map(|(name, value)| literal(name, value))
        .collect();
    match call.head {
        Head::Usual | Head::Unended(_) => {}
        Head::Fields(count) => {
            // With indexing: it is then the first entry of the dynamic table, 62.
            block.extend([0x40, 1, b'x', 1, b'y']);
            block.extend(vec![0x80 | 62; count]);
        }
        Head::Bytes(count) => block.extend(
            (0..count / 110).flat_map(|index| literal(&format!("x-{index}"), &"v".repeat(100))),
        ),
    }
    let Head::Unended(frames) = call.head else {
        return frame(HEADERS, END_HEADERS, stream, &block);
    };
    let more: Vec<u8> = (0..40)
        .flat_map(|index| literal(&format!("y{index}"), "v"))
        .collect();
    let rest = (0..frames).flat_map(|_| frame(CONTINUATION, 0, stream, &more));
    frame(HEADERS, 0, stream, &block)
        .into_iter()
        .chain(rest)
        .collect()
}

fn frames(call: &Call, stream: u32) -> Vec<u8> {
    let mut bytes = head(call, stream);
    if !matches!(call.head, Head::Unended(_)) {
        let pieces = call
            .message
            .chunks(call.piece.max(call.message.len() / 2_000))
            .enumerate();
        let last = call
            .message
            .len()
            .div_ceil(call.piece.max(call.message.len() / 2_000).max(1))
            .saturating_sub(1);
        for (index, piece) in pieces {
            bytes.extend(frame(
                DATA,
                if call.ends && index == last {
                    END_STREAM
                } else {
                    0
                },
                stream,
                piece,
            ));
        }
    }
    bytes
}

fn extra(extra: Extra, stream: u32) -> Vec<u8> {
    match extra {
        Extra::Ping => frame(PING, 0, 0, &[7; 8]),
        Extra::Settings => frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]),
        Extra::EmptyData => frame(DATA, 0, stream, &[]),
        Extra::Window(bytes) => [0, stream]
            .iter()
            .flat_map(|stream| frame(WINDOW_UPDATE, 0, *stream, &bytes.to_be_bytes()))
            .collect(),
        Extra::Reset => frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]),
        Extra::Garbage => vec![0xff; 20],
    }
}
