//! HTTP/2 frames (RFC 9113) and header blocks (RFC 7541), as far as a gRPC client needs them.

/// What a client sends first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's head.
const HEAD: usize = 9;
/// Largest payload that every peer takes.
pub(super) const PAYLOAD_MAX: usize = 16_384;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

/// One frame of the server's.
pub(super) struct Frame<'a> {
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// 0: of the connection itself.
    pub(super) stream: u32,
    pub(super) payload: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Takes the first frame off `input`; `None` when it is not whole yet.
    pub(super) fn take(input: &mut &'a [u8]) -> Option<Self> {
        let (head, rest) = input.split_first_chunk::<HEAD>()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (payload, rest) = rest.split_at_checked(length)?;
        *input = rest;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7FFF_FFFF;
        Some(Self {
            kind: head[3],
            flags: head[4],
            stream,
            payload,
        })
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The payload of a DATA frame without padding; `None` when the padding is longer than the frame.
    pub(super) fn data(&self) -> Option<&'a [u8]> {
        if !self.has(PADDED) {
            return Some(self.payload);
        }
        let (padding, rest) = self.payload.split_first()?;
        rest.get(..rest.len().checked_sub(usize::from(*padding))?)
    }

    /// The number at `offset` of the payload.
    pub(super) fn number(&self, offset: usize) -> Option<u32> {
        self.payload
            .get(offset..)?
            .first_chunk()
            .map(|bytes| u32::from_be_bytes(*bytes))
    }

    /// The pairs of a SETTINGS frame.
    pub(super) fn settings(&self) -> impl Iterator<Item = (u16, u32)> {
        let (settings, _) = self.payload.as_chunks::<6>();
        settings.iter().map(|[a, b, c, d, e, f]| {
            (
                u16::from_be_bytes([*a, *b]),
                u32::from_be_bytes([*c, *d, *e, *f]),
            )
        })
    }
}

/// Writes one frame.
pub(super) fn write(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    // No payload of ours is above PAYLOAD_MAX, which fits three bytes.
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Writes a message as DATA frames, the last of which ends the stream if `end` says so.
pub(super) fn write_data(out: &mut Vec<u8>, stream: u32, message: &[u8], end: bool) {
    let mut chunks = message.chunks(PAYLOAD_MAX).peekable();
    while let Some(chunk) = chunks.next() {
        let flags = if end && chunks.peek().is_none() {
            END_STREAM
        } else {
            0
        };
        write(out, DATA, flags, stream, chunk);
    }
}

/// Writes HEADERS in one frame.
pub(super) fn write_headers(out: &mut Vec<u8>, stream: u32, block: &[u8]) {
    write(out, HEADERS, END_HEADERS, stream, block);
}

/// The header block of a connection's first request: the method's path and what every gRPC client sends, entered into the
/// dynamic table.
pub(super) fn first_block(authority: &str, path: &str) -> Vec<u8> {
    // Indices of the static table: RFC 7541, appendix A.
    let mut block = vec![indexed(3), indexed(6)];
    literal(&mut block, Some(4), "", path);
    literal(&mut block, Some(1), "", authority);
    literal(&mut block, None, "te", "trailers");
    literal(&mut block, Some(31), "", "application/grpc");
    literal(&mut block, Some(58), "", "tollgate-bench");
    block
}

/// The header block of every later request: all indexed. The dynamic table begins at 62 with what was entered last.
pub(super) fn later_block() -> Vec<u8> {
    [3, 6, 66, 65, 64, 63, 62].map(indexed).to_vec()
}

const fn indexed(index: u8) -> u8 {
    0x80 | index
}

/// A field that enters the dynamic table. Names and values here are below 127 bytes, so that a length is one byte.
fn literal(block: &mut Vec<u8>, name: Option<u8>, new_name: &str, value: &str) {
    block.push(0x40 | name.unwrap_or(0));
    let texts = name
        .is_none()
        .then_some(new_name)
        .into_iter()
        .chain([value]);
    for text in texts {
        assert!(
            text.len() < 127,
            "{text:?} needs a longer length than is written here"
        );
        block.push(text.len() as u8);
        block.extend_from_slice(text.as_bytes());
    }
}
