//! Follows the frames that a peer sends, as far as to know whether a block of header fields has begun and not ended.
//!
//! h2 keeps the fields of such a block, waits for the rest without a time limit, and handles no other frame meanwhile. Source:
//! RFC 9113, sections 4.1, 4.3 and 6.10.

/// Types of frames that carry header fields.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// The flag of the last frame of a block.
const END_HEADERS: u8 = 4;
const FRAME_HEAD_BYTES: usize = 9;

/// The reader's position in the frames of one connection.
#[derive(Default)]
pub(super) struct HeaderBlockWatch {
    head: [u8; FRAME_HEAD_BYTES],
    head_read: usize,
    /// Bytes of this frame's payload that have not arrived.
    left: usize,
    is_open: bool,
}

impl HeaderBlockWatch {
    /// Reads the next bytes of the connection, which come after its preface. Returns whether a block is open after them.
    pub(super) fn pass(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            if self.head_read < FRAME_HEAD_BYTES {
                let count = bytes.len().min(FRAME_HEAD_BYTES - self.head_read);
                self.head[self.head_read..self.head_read + count].copy_from_slice(&bytes[..count]);
                self.head_read += count;
                bytes = &bytes[count..];
                if self.head_read == FRAME_HEAD_BYTES {
                    self.begin_frame();
                }
            } else {
                let count = bytes.len().min(self.left);
                self.left -= count;
                bytes = &bytes[count..];
            }
            if self.head_read == FRAME_HEAD_BYTES && self.left == 0 {
                self.head_read = 0;
                self.is_open &= !self.ends_block();
            }
        }
        self.is_open
    }

    /// The bytes that come next and belong to the open block for certain: the rest of a frame, or of its head. At least 1 while
    /// a block is open.
    pub(super) fn bytes_to_read(&self) -> usize {
        if self.head_read < FRAME_HEAD_BYTES {
            FRAME_HEAD_BYTES - self.head_read
        } else {
            self.left
        }
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, ..] = self.head;
        self.left = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        self.is_open |= matches!(kind, HEADERS | CONTINUATION);
    }

    fn ends_block(&self) -> bool {
        let [_, _, _, kind, flags, ..] = self.head;
        matches!(kind, HEADERS | CONTINUATION) && flags & END_HEADERS != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn a_block_is_open_from_its_first_byte_to_its_last_however_the_bytes_are_split() {
        let frames = [
            (frame(4, 0, &[0; 6]), false),
            (frame(HEADERS, 0, b"abc"), true),
            (frame(CONTINUATION, 0, b""), true),
            (frame(CONTINUATION, END_HEADERS, b"def"), false),
            (frame(0, END_HEADERS, b"data"), false),
            (frame(HEADERS, END_HEADERS, b""), false),
            (frame(HEADERS, END_HEADERS | 1, b"ghi"), false),
        ];
        let mut watch = HeaderBlockWatch::default();
        for (frame, is_open) in &frames {
            assert_eq!(watch.pass(frame), *is_open, "{frame:?}");
        }
        let all: Vec<u8> = frames.iter().flat_map(|(frame, _)| frame.clone()).collect();
        let mut bytewise = HeaderBlockWatch::default();
        let open: Vec<bool> = all.iter().map(|byte| bytewise.pass(&[*byte])).collect();
        let mut at = 0;
        for (frame, is_open) in &frames {
            at += frame.len();
            assert_eq!(open[at - 1], *is_open);
            let carries = matches!(frame[3], HEADERS | CONTINUATION);
            assert!(
                frame.len() == FRAME_HEAD_BYTES || open[at - 2] == carries,
                "{frame:?}"
            );
        }
        for cut in 0..all.len() {
            let mut watch = HeaderBlockWatch::default();
            watch.pass(&all[..cut]);
            assert!(!watch.pass(&all[cut..]) || cut == all.len());
        }
    }
}
