//! The key and the cost of a request, checked when they are made. So later steps need no checks. The module does not know plans,
//! wire formats or stores.

use std::fmt;
use std::num::NonZeroU64;

use xxhash_rust::xxh3::xxh3_128;

/// Longest key, in bytes. A key is sent with every request, and is kept in memory and in Redis while it is live. 512 bytes hold
/// a URL path or a composed identity, and a batch of 1,000 such keys fits one message.
pub const KEY_BYTES_MAX: usize = 512;

/// Bytes that are kept of a text that is too long for a key, so that people recognise it.
const BEGINNING_BYTES: usize = 64;

/// Identifies who or what is counted: a user, a token, an address.
///
/// Shape: 1 to 512 bytes of UTF-8, compared byte by byte; case and spaces count.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Box<str>);

impl Key {
    /// Checks a key.
    ///
    /// Errors: [`KeyError::Empty`], [`KeyError::TooLong`].
    pub fn new(text: impl Into<Box<str>>) -> Result<Self, KeyError> {
        let text = text.into();
        match text.len() {
            0 => Err(KeyError::Empty),
            1..=KEY_BYTES_MAX => Ok(Self(text)),
            bytes => Err(KeyError::TooLong { bytes }),
        }
    }

    /// A key for any text, where an error would let the request pass uncounted. An empty text is counted as `-`. A text above
    /// [`KEY_BYTES_MAX`] is counted as its beginning and a hash of 128 bits, so different texts have different keys.
    pub fn from_any(text: String) -> Self {
        match text.len() {
            0 => Self("-".into()),
            1..=KEY_BYTES_MAX => Self(text.into()),
            _ => {
                let end = (0..=BEGINNING_BYTES)
                    .rev()
                    .find(|end| text.is_char_boundary(*end))
                    .unwrap_or(0);
                Self(format!("{}#{:032x}", &text[..end], xxh3_128(text.as_bytes())).into())
            }
        }
    }

    /// The key's text, as it was given.
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A key often is personal data, so `Debug` shows only its length.
impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Key({} bytes)", self.0.len())
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
        let (one, other) = (
            Key::from_any("é".repeat(257)),
            Key::from_any("é".repeat(258)),
        );
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
