//! The secret that the replicas share, by which keys are known and shown.
//!
//! A key is counted under a fast hash with a seed from the secret, so that callers cannot choose keys that collide. It is shown as
//! SipHash-2-4 of that, so that a reader who does not know the secret cannot try out which key it is. [`KeyHash`] is the one form in
//! which a hash of a key leaves the process.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use tollgate_core::key::Key;
use tollgate_store::random;

/// A key as people see it where its text is not shown: 16 hexadecimal digits, equal for the same key under every plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHash(u64);

impl fmt::Display for KeyHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// A secret of 128 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Secret {
    keys: (u64, u64),
    seed: u64,
}

impl Secret {
    /// A new secret.
    pub(super) fn random() -> Self {
        Self::from_bytes(random::bytes())
    }

    fn new(first: u64, second: u64) -> Self {
        let mut secret = Self {
            keys: (first, second),
            seed: 0,
        };
        secret.seed = secret.shown(0);
        secret
    }

    /// The secret of these bytes.
    pub(super) fn from_bytes(bytes: [u8; 16]) -> Self {
        let (first, second) = bytes.split_at(8);
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        Self::new(number(first), number(second))
    }

    /// The bytes that replicas share it by.
    pub(super) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.keys.0.to_be_bytes());
        bytes[8..].copy_from_slice(&self.keys.1.to_be_bytes());
        bytes
    }

    /// A number that tells whether another replica has the same secret, and reveals nothing of it.
    pub(super) fn check(&self) -> u64 {
        self.shown(1)
    }

    /// The number that a key is counted under. It also depends on the shard and on the plan, so that the same text under two plans, or
    /// in two shards, is two keys.
    #[inline]
    pub(super) fn hash(&self, key: &Key, plan: u64) -> u64 {
        let number = xxh3_64_with_seed(key.as_str().as_bytes(), self.seed);
        if !key.has_shard() {
            return number ^ plan;
        }
        number.wrapping_add(xxh3_64_with_seed(key.shard().as_bytes(), !self.seed)) ^ plan
    }

    /// What a key is shown as, by the number that it is counted under.
    pub(super) fn shown_as(&self, hash: u64, plan: u64) -> KeyHash {
        KeyHash(self.shown(hash ^ plan))
    }

    /// What a key is shown as.
    pub(super) fn key_hash(&self, key: &Key) -> KeyHash {
        self.shown_as(self.hash(key, 0), 0)
    }

    fn shown(&self, number: u64) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.keys.0, self.keys.1);
        hasher.write(&number.to_le_bytes());
        hasher.finish()
    }
}

/// It cannot get into a log or a message by accident.
impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `Explain` and the log show it, which know no plan.
    #[test]
    fn a_key_is_shown_as_one_under_all_plans() {
        let secret = Secret::new(1, 2);
        let key = Key::new("alice").unwrap();
        for key in [key.clone(), key.clone().in_shard("acme").unwrap()] {
            let shown = secret.key_hash(&key);
            for plan in [0, 1, 1 << 40, u64::MAX, 0x9E37_79B9_7F4A_7C15] {
                let counted = secret.hash(&key, plan);
                assert_eq!(secret.shown_as(counted, plan).0, shown.0, "{plan}");
            }
        }
    }
}
