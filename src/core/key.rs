//! The key and the cost of a request, checked when they are made. So later steps need no checks. The module does not know plans,
//! wire formats or stores.

use std::fmt;
use std::num::NonZeroU64;

use xxhash_rust::xxh3::xxh3_128;

/// Longest key, in bytes. A key is sent with every request, and is kept in memory and in Redis while it is live. 512 bytes hold
/// a URL path or a composed identity, and a batch of 1,000 such keys fits one message.
pub const KEY_BYTES_MAX: usize = 512;

/// Longest shard, in bytes.
pub const SHARD_BYTES_MAX: usize = 64;

/// Bytes that are kept of a text that is too long for a key, so that people recognise it.
const BEGINNING_BYTES: usize = 64;
/// The same of a text that is too long for a shard; its hash takes the other 33.
const SHARD_BEGINNING_BYTES: usize = SHARD_BYTES_MAX - 33;

/// Identifies who or what is counted: a user, a token, an address.
///
/// Shape: 1 to 512 bytes of UTF-8, compared byte by byte; case and spaces count. A shard may belong to it, 1 to 64 bytes of UTF-8:
/// the same text with another shard, or without one, is another key. All keys of a shard lie on one node of a Cluster.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The shard, and then the key's own text.
    text: Box<str>,
    /// Length of the shard, 0 for none.
    shard_bytes: u8,
}

impl Key {
    /// Checks a key.
    ///
    /// Errors: [`KeyError::Empty`], [`KeyError::TooLong`].
    #[inline]
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, KeyError> {
        let text = text.into();
        match text.len() {
            0 => Err(KeyError::Empty),
            1..=KEY_BYTES_MAX => Ok(Self::without_shard(text)),
            bytes => Err(KeyError::TooLong { bytes }),
        }
    }

    fn without_shard(text: Box<str>) -> Self {
        Self {
            text,
            shard_bytes: 0,
        }
    }

    /// The same key in a shard. An empty shard is none.
    ///
    /// Errors: [`KeyError::ShardTooLong`].
    #[inline]
    pub fn in_shard(self, shard: &str) -> Result<Self, KeyError> {
        if shard.is_empty() && !self.has_shard() {
            return Ok(self);
        }
        self.moved_to_shard(shard)
    }

    /// The rest of [`Self::in_shard`], for a key that changes. Few do, so it is not inlined.
    #[cold]
    fn moved_to_shard(self, shard: &str) -> Result<Self, KeyError> {
        let bytes = shard.len();
        let shard_bytes = u8::try_from(bytes)
            .ok()
            .filter(|_| bytes <= SHARD_BYTES_MAX)
            .ok_or(KeyError::ShardTooLong { bytes })?;
        Ok(Self {
            text: [shard, self.as_str()].concat().into(),
            shard_bytes,
        })
    }

    /// A key for any text, where an error would let the request pass uncounted. An empty text is counted as `-`. A text above
    /// [`KEY_BYTES_MAX`] is counted as its beginning and a hash of 128 bits, so different texts have different keys.
    pub fn from_any(text: String) -> Self {
        match text.len() {
            0 => Self::without_shard("-".into()),
            1..=KEY_BYTES_MAX => Self::without_shard(text.into()),
            _ => Self::without_shard(shortened(&text, BEGINNING_BYTES).into()),
        }
    }

    /// The same key in a shard of any text, where an error would let the request pass uncounted. An empty text is not a shard. A text
    /// above [`SHARD_BYTES_MAX`] is its beginning and a hash of 128 bits, so different texts are different shards.
    pub fn in_any_shard(self, text: String) -> Self {
        let shard = if text.len() > SHARD_BYTES_MAX {
            shortened(&text, SHARD_BEGINNING_BYTES)
        } else {
            text
        };
        // It is short enough.
        self.clone().in_shard(&shard).unwrap_or(self)
    }

    /// The key's text, as it was given.
    #[inline]
    pub fn as_str(&self) -> &str {
        if self.shard_bytes == 0 {
            return &self.text;
        }
        &self.text[usize::from(self.shard_bytes)..]
    }

    /// Whether the key is in a shard.
    #[inline]
    pub fn has_shard(&self) -> bool {
        self.shard_bytes > 0
    }

    /// The shard, as it was given; empty if there is none.
    #[inline]
    pub fn shard(&self) -> &str {
        &self.text[..usize::from(self.shard_bytes)]
    }
}

/// At most so many bytes of a text's beginning, and its hash in 33 bytes.
fn shortened(text: &str, beginning: usize) -> String {
    let end = (0..=beginning)
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    let hash = xxh3_128(text.as_bytes());
    format!("{}#{hash:032x}", &text[..end])
}

/// A key often is personal data, so `Debug` shows only its length.
impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Key({} bytes)", self.as_str().len())
    }
}

/// Why a text is not a [`Key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key is missing or empty. Send the subject to count.
    #[error("key is empty: send the subject to count, 1 to {KEY_BYTES_MAX} bytes")]
    Empty,
    /// The key is longer than [`KEY_BYTES_MAX`]. Send a hash of it instead.
    #[error(
        "key has {bytes} bytes: at most {KEY_BYTES_MAX} are accepted; send a hash of a longer one"
    )]
    TooLong {
        /// Length of the key that was sent, in bytes.
        bytes: usize,
    },
    /// The shard is longer than [`SHARD_BYTES_MAX`]. Send a hash of it instead.
    #[error(
        "shard has {bytes} bytes: at most {SHARD_BYTES_MAX} are accepted; send a hash of a longer one"
    )]
    ShardTooLong {
        /// Length of the shard that was sent, in bytes.
        bytes: usize,
    },
}

/// Units that a request asks for.
///
/// Range: 1 to `u64::MAX`; default 1. A cost above a plan's capacity is not an error; its outcome is "never fits".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost(NonZeroU64);

impl Cost {
    /// One unit, the default.
    pub const ONE: Self = Self(NonZeroU64::MIN);

    /// Checks a cost. Errors: [`CostError`] on 0.
    #[inline]
    pub fn new(units: u64) -> Result<Self, CostError> {
        NonZeroU64::new(units).map(Self).ok_or(CostError)
    }

    /// The cost in units, at least 1.
    #[inline]
    pub fn units(self) -> u64 {
        self.0.get()
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}

/// The cost is 0, which would always be allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cost is 0: leave it out for 1, or call Peek to ask without charging")]
pub struct CostError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_1_to_512_bytes() {
        assert_eq!(Key::new(""), Err(KeyError::Empty));
        assert!(Key::new("k").is_ok());
        assert!(Key::new("k".repeat(512)).is_ok());
        assert_eq!(
            Key::new("k".repeat(513)),
            Err(KeyError::TooLong { bytes: 513 })
        );
    }

    #[test]
    fn any_text_is_a_key_and_long_ones_keep_their_beginning() {
        assert_eq!(Key::from_any(String::new()).as_str(), "-");
        for text in ["a".to_owned(), "k".repeat(512)] {
            assert_eq!(Key::from_any(text.clone()).as_str(), text);
        }
        let one = Key::from_any("é".repeat(257));
        let other = Key::from_any("é".repeat(258));
        assert!(
            one.as_str().starts_with(&"é".repeat(32))
                && one.as_str().len() == 64 + 33
                && one != other,
            "{}",
            one.as_str()
        );
        assert_eq!(
            Key::from_any(format!("a{}", "é".repeat(300)))
                .as_str()
                .chars()
                .position(|letter| letter == '#'),
            Some(32)
        );
    }

    #[test]
    fn a_shard_is_part_of_a_key() {
        let key = |shard: &str, text: &str| Key::new(text).unwrap().in_shard(shard);
        assert_eq!(key("", "k"), Ok(Key::new("k").unwrap()));
        let sharded = key("acme", "u1").unwrap();
        assert_eq!((sharded.as_str(), sharded.shard()), ("u1", "acme"));
        // What is where the shard ends is another key.
        assert_ne!(sharded, key("acm", "eu1").unwrap());
        assert_ne!(sharded, Key::new("acmeu1").unwrap());
        assert_eq!(sharded.in_shard(""), Ok(Key::new("u1").unwrap()));
        assert!(key(&"é".repeat(32), "k").is_ok());
        let bytes = 65;
        assert_eq!(
            key(&"s".repeat(bytes), "k"),
            Err(KeyError::ShardTooLong { bytes })
        );
    }

    #[test]
    fn any_text_is_a_shard_and_long_ones_keep_their_beginning() {
        let in_any = |text: &str| Key::new("k").unwrap().in_any_shard(text.to_owned());
        assert_eq!(in_any(""), Key::new("k").unwrap());
        let longest = "{s}".repeat(21) + "!";
        assert_eq!((in_any(&longest).shard(), longest.len()), (&*longest, 64));
        let one = in_any(&"é".repeat(33));
        let other = in_any(&"é".repeat(34));
        assert!(
            one.shard().starts_with(&"é".repeat(15)) && one.shard().len() == 30 + 33,
            "{}",
            one.shard()
        );
        assert!(one != other && one.as_str() == "k");
    }

    #[test]
    fn a_key_is_not_shown_by_debug() {
        let key = Key::new("alice@example.com").unwrap();
        assert_eq!(format!("{key:?}"), "Key(17 bytes)");
    }

    #[test]
    fn a_cost_is_at_least_1() {
        assert_eq!(Cost::new(0), Err(CostError));
        assert_eq!(Cost::new(1), Ok(Cost::ONE));
        assert_eq!(Cost::new(u64::MAX).unwrap().units(), u64::MAX);
    }
}
