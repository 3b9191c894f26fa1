//! Keys in clear, for operators who asked for them: as many as a bound on bytes allows.
//!
//! While half of the bytes are free, a key is kept when it is counted; after that, when it is counted again. So a flood of new keys
//! does not crowd out those that matter. A key that was not counted for a minute is forgotten. A key that finds no room is shown
//! as its hash.

use std::collections::HashMap;

use super::worker::SLOTS;

/// Most bytes that keys in clear may take in a worker.
const BYTES_MAX: usize = 128 << 10;
/// What a key takes beside its own bytes, in a map that has just grown.
const OVERHEAD: usize = 110;

/// Keys by the number that they are counted under.
#[derive(Debug, Default)]
pub(super) struct Names {
    names: HashMap<u64, Name>,
    bytes: usize,
    /// Slots begun so far.
    slot: u32,
}

#[derive(Debug)]
struct Name {
    key: Box<str>,
    /// The slot in which the key was last counted.
    last: u32,
}

impl Names {
    /// Notes a key that is counted; `again` if it has been counted before in its slot.
    pub(super) fn note(&mut self, hash: u64, key: &str, again: bool) {
        if let Some(name) = self.names.get_mut(&hash) {
            name.last = self.slot;
            return;
        }
        let bytes = self.bytes + key.len() + OVERHEAD;
        if bytes <= if again { BYTES_MAX } else { BYTES_MAX / 2 } {
            self.bytes = bytes;
            self.names.insert(hash, Name { key: key.into(), last: self.slot });
        }
    }

    /// Forgets keys that were not counted for a minute.
    pub(super) fn begin_slot(&mut self) {
        self.slot += 1;
        let kept_from = (self.slot + 1).saturating_sub(u32::try_from(SLOTS).unwrap_or(u32::MAX));
        self.names.retain(|_, name| name.last >= kept_from);
        self.bytes = self.names.values().map(|name| name.key.len() + OVERHEAD).sum();
    }

    /// All keys that are kept.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &str)> {
        self.names.iter().map(|(hash, name)| (*hash, &*name.key))
    }
}
