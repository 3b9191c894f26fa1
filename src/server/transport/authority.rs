//! Blanks the `:authority` of requests that arrive on a Unix socket.
//!
//! A path names no host, so gRPC clients invent an authority: `localhost`, the path, or the path with escaped slashes. The
//! last two are invalid by RFC 3986, and h2 resets every stream with such an authority. We do not use the value. So each
//! byte of it is overwritten as the bytes are read, before h2 sees them.
//!
//! No byte is moved: frames and strings keep their lengths. So no table of remembered headers (HPACK dynamic table) is
//! needed here. The client and h2 then remember different values, but at the same place of their tables.
//!
//! The value takes no more room in h2's table than in the client's, since a string is coded only where that makes it
//! shorter. So h2 forgets no entry that the client still refers to.
//!
//! Source: RFC 9113, sections 4.1 and 6.2; RFC 7541, sections 5 and 6.

/// Types of frames that carry headers.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// Flags of HEADERS.
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const FRAME_HEAD_BYTES: usize = 9;
const PRIORITY_BYTES: u8 = 5;
/// Index of `:authority` in the static table.
const STATIC_INDEX: u32 = 1;
/// The name in plain bytes, and in the Huffman code of RFC 7541, appendix B.
const NAME: &[u8] = b":authority";
const NAME_CODED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// The bit of a string's length byte that says that the string is Huffman-coded.
const CODED: u8 = 0x80;
/// Replaces each byte of the value: a letter, so that the value is a valid host name.
const FILLER: u8 = b'x';
/// Maximum number of bits of an integer that are read; h2 refuses longer integers.
const INTEGER_BITS_MAX: u32 = 21;

/// The reader's position in the frames of one connection.
#[derive(Default)]
pub(super) struct AuthorityBlank {
    head: [u8; FRAME_HEAD_BYTES],
    head_read: usize,
    /// Bytes of this frame's payload that have not arrived.
    left: usize,
    /// Whether the payload contains a part of a header block.
    carries_headers: bool,
    /// Whether the next byte is the payload's first byte, which gives the length of the padding.
    padded: bool,
    /// Bytes of the priority field, before the header block, that have not arrived.
    priority: u8,
    /// Bytes of padding at the payload's end.
    padding: usize,
    block: HeaderBlockPosition,
}

impl AuthorityBlank {
    /// Reads the next bytes of the connection, which come after its preface, and overwrites those of an authority.
    pub(super) fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let count = match self.head_read < FRAME_HEAD_BYTES {
                true => self.read_head(bytes),
                false => self.read_payload(bytes),
            };
            bytes = &mut bytes[count..];
        }
    }

    fn read_head(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(FRAME_HEAD_BYTES - self.head_read);
        self.head[self.head_read..self.head_read + count].copy_from_slice(&bytes[..count]);
        self.head_read += count;
        if self.head_read == FRAME_HEAD_BYTES {
            let [high, middle, low, kind, flags, ..] = self.head;
            self.left = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            self.carries_headers = matches!(kind, HEADERS | CONTINUATION);
            let begins = kind == HEADERS;
            (self.padded, self.padding) = (begins && flags & PADDED != 0, 0);
            self.priority = if begins && flags & PRIORITY != 0 {
                PRIORITY_BYTES
            } else {
                0
            };
            if begins {
                self.block = HeaderBlockPosition::default();
            }
            self.end_frame();
        }
        count
    }

    fn read_payload(&mut self, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.left);
        if self.carries_headers {
            for byte in &mut bytes[..count] {
                self.read_byte(byte);
                self.left -= 1;
            }
        } else {
            self.left -= count;
        }
        self.end_frame();
        count
    }

    fn end_frame(&mut self) {
        if self.left == 0 {
            self.head_read = 0;
        }
    }

    fn read_byte(&mut self, byte: &mut u8) {
        if self.padded {
            (self.padded, self.padding) = (false, usize::from(*byte));
        } else if self.priority > 0 {
            self.priority -= 1;
        } else if self.left > self.padding {
            self.block.pass(byte);
        }
    }
}

/// The reader's position in a header block.
#[derive(Default, Clone, Copy)]
enum HeaderBlockPosition {
    /// Before a field or a table size update.
    #[default]
    Field,
    /// Within the rest of an index or size that no string follows.
    Index,
    /// Within the rest of the index of a name. A value follows.
    NameIndex(Integer),
    /// Before the length of a name.
    NameLength,
    NameLengthRest(Integer, &'static [u8]),
    Name {
        left: u32,
        /// The bytes still to come if the name is `:authority`; `None` when it is another name.
        expected: Option<&'static [u8]>,
    },
    /// Before the length of a value; whether it is an authority.
    ValueLength(bool),
    ValueLengthRest(Integer, bool),
    Value {
        left: u32,
        is_authority: bool,
    },
    /// The block is invalid. h2 will close the connection.
    Invalid,
}

impl HeaderBlockPosition {
    fn pass(&mut self, byte: &mut u8) {
        *self = match *self {
            Self::Field => Self::field(*byte),
            Self::Index => {
                if *byte & 0x80 == 0 {
                    Self::Field
                } else {
                    Self::Index
                }
            }
            Self::NameIndex(integer) => integer.then(*byte, Self::NameIndex, Self::after_index),
            Self::NameLength => {
                let name = if *byte & CODED == 0 { NAME } else { NAME_CODED };
                Integer::begin(*byte, 7).map_or_else(
                    |rest| Self::NameLengthRest(rest, name),
                    |left| Self::name(left, name),
                )
            }
            Self::NameLengthRest(integer, name) => integer.then(
                *byte,
                |rest| Self::NameLengthRest(rest, name),
                |left| Self::name(left, name),
            ),
            Self::Name { left, expected } => {
                let rest = expected.and_then(|name| name.strip_prefix(&[*byte]));
                if left > 1 {
                    Self::Name {
                        left: left - 1,
                        expected: rest,
                    }
                } else {
                    Self::ValueLength(rest.is_some())
                }
            }
            Self::ValueLength(is_authority) => {
                let length = Integer::begin(*byte, 7);
                if is_authority {
                    *byte &= !CODED;
                }
                length.map_or_else(
                    |rest| Self::ValueLengthRest(rest, is_authority),
                    |left| Self::value(left, is_authority),
                )
            }
            Self::ValueLengthRest(integer, is_authority) => integer.then(
                *byte,
                |rest| Self::ValueLengthRest(rest, is_authority),
                |left| Self::value(left, is_authority),
            ),
            Self::Value { left, is_authority } => {
                if is_authority {
                    *byte = FILLER;
                }
                Self::value(left - 1, is_authority)
            }
            Self::Invalid => Self::Invalid,
        }
    }

    /// Reads the first byte of a field.
    fn field(byte: u8) -> Self {
        let (prefix, has_value) = match byte.leading_zeros() {
            0 => (7, false),
            1 => (6, true),
            2 => (5, false),
            _ => (4, true),
        };
        match (Integer::begin(byte, prefix), has_value) {
            (Ok(_), false) => Self::Field,
            (Err(_), false) => Self::Index,
            (Ok(index), true) => Self::after_index(index),
            (Err(rest), true) => Self::NameIndex(rest),
        }
    }

    fn after_index(index: u32) -> Self {
        if index == 0 {
            Self::NameLength
        } else {
            Self::ValueLength(index == STATIC_INDEX)
        }
    }

    fn name(left: u32, name: &'static [u8]) -> Self {
        // An empty name ends at once; h2 refuses it.
        let expected = (left as usize == name.len()).then_some(name);
        if left == 0 {
            Self::ValueLength(false)
        } else {
            Self::Name { left, expected }
        }
    }

    fn value(left: u32, is_authority: bool) -> Self {
        if left == 0 {
            Self::Field
        } else {
            Self::Value { left, is_authority }
        }
    }
}

/// An integer whose last bytes have not arrived.
#[derive(Clone, Copy)]
struct Integer {
    value: u32,
    shift: u32,
}

impl Integer {
    /// Reads the first byte, whose lowest `prefix` bits count. Returns the integer, or the state of a longer one.
    fn begin(byte: u8, prefix: u32) -> Result<u32, Self> {
        let mask = (1 << prefix) - 1;
        let value = u32::from(byte) & mask;
        if value < mask {
            Ok(value)
        } else {
            Err(Self { value, shift: 0 })
        }
    }

    /// Reads one more byte. Calls `more` if the integer goes on, `done` if it is complete.
    fn then(
        self,
        byte: u8,
        more: impl FnOnce(Self) -> HeaderBlockPosition,
        done: impl FnOnce(u32) -> HeaderBlockPosition,
    ) -> HeaderBlockPosition {
        if self.shift >= INTEGER_BITS_MAX {
            return HeaderBlockPosition::Invalid;
        }
        let value = self.value + (u32::from(byte & 0x7f) << self.shift);
        if byte & 0x80 == 0 {
            done(value)
        } else {
            more(Self {
                value,
                shift: self.shift + 7,
            })
        }
    }
}

#[cfg(test)]
mod tests;
