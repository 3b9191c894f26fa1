//! HTTP/2 frames written one by one, for tests of clients that break the rules. Source: RFC 9113 and, for headers, RFC 7541.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::server::PATIENCE;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header field as a literal without indexing.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| {
        u8::try_from(text.len())
            .ok()
            .filter(|length| *length < 127)
            .unwrap()
    };
    [
        &[0, length(name)],
        name.as_bytes(),
        &[length(value)],
        value.as_bytes(),
    ]
    .concat()
}

/// The headers of a call of this method.
pub fn headers(path: &str) -> Vec<u8> {
    headers_with(
        path,
        &[
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
        ],
    )
}

/// The headers of a call of this method, with further ones.
pub fn headers_with(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let fields = [(":method", "POST"), (":scheme", "http"), (":path", path)];
    let last = [("te", "trailers")];
    fields
        .iter()
        .chain(more)
        .chain(&last)
        .flat_map(|(name, value)| literal(name, value))
        .collect()
}

pub const SHOULD_ALLOW: &str = "/tollgate.v1.RateLimitService/ShouldAllow";

/// The message of `ShouldAllow{key: "k", plan: "p"}`, as it is framed by gRPC.
pub const ASK: &[u8] = &[0, 0, 0, 0, 6, 0x0a, 1, b'k', 0x12, 1, b'p'];

/// The first bytes of a client: the preface and empty settings.
pub fn opening() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// A connection with a call whose request does not end.
pub fn half_a_call() -> Vec<u8> {
    let call = frame(HEADERS, END_HEADERS, 1, &headers(SHOULD_ALLOW));
    [opening(), call, frame(DATA, 0, 1, &ASK[..7])].concat()
}

/// A connection on which the preface and settings were sent.
pub struct Raw<S = TcpStream>(pub S);

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With a GOAWAY of this error code.
    GoAway(u32),
    /// Closed without GOAWAY, or reset.
    Closed,
    /// Still open at the end of the wait.
    Open,
}

impl Raw {
    pub fn connect(address: &str, settings: &[(u16, u32)]) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        stream
            .write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &payload)].concat())
            .unwrap();
        Self(stream)
    }

    /// Reads until the connection ends, or nothing comes any more for `wait`.
    pub fn end(&mut self, wait: std::time::Duration) -> End {
        self.0.set_read_timeout(Some(wait)).unwrap();
        let mut end = None;
        while let Some((kind, _, _, payload)) = self.next() {
            if kind == GOAWAY {
                end = Some(End::GoAway(u32::from_be_bytes([
                    payload[4], payload[5], payload[6], payload[7],
                ])));
            }
        }
        end.unwrap_or_else(|| match self.0.read(&mut [0]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => End::Open,
            _ => End::Closed,
        })
    }
}

impl Raw<UnixStream> {
    pub fn connect_unix(path: &Path) -> Self {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&opening()).unwrap();
        Self(stream)
    }
}

impl<S: Read + Write> Raw<S> {
    /// Sends as many of the bytes as the peer takes. Returns whether it took all.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    /// The next frame: kind, flags, stream, payload; `None` at the end, or when none comes.
    pub fn next(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        self.0.read_exact(&mut payload).ok()?;
        Some((
            head[3],
            head[4],
            u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]),
            payload,
        ))
    }
}
