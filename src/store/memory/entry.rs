//! The entry of one key as bytes: links of the timing wheel, the name, and one record per limit fingerprint.
//!
//! ```text
//! links 8 | length of key 2 | length of group 1 | group | key | records | zeros to the end of the slot
//! record: kind 1 | fingerprint 5 | numbers of 8 each, a bucket's quota in 5, an index in 4, or a block's end in 7 and length in 4
//! ```
//! Lengths are in bytes. No kind is 0, so zeros end the records. Numbers are little-endian. A block has the fingerprint of its limit,
//! whose own record may be there, too. The record of holds has the fingerprint of no limit, and is there once.

use super::timing_wheel::LINKS_BYTES;
use tollgate_core::algorithm::{Block, Bucket, Counter, State, Window};
use tollgate_core::plan::{LimitFingerprint, QUOTA_MAX};

const KEY_LENGTH_AT: usize = LINKS_BYTES;
const GROUP_LENGTH_AT: usize = KEY_LENGTH_AT + 2;
const NAME_AT: usize = GROUP_LENGTH_AT + 1;
const FINGERPRINT_BYTES: usize = 5;
const NUMBERS_AT: usize = 1 + FINGERPRINT_BYTES;
const NUMBER_BYTES: usize = 8;
/// Number of bytes of a record that holds an index.
pub(super) const INDEX_RECORD_BYTES: usize = NUMBERS_AT + size_of::<u32>();
const QUOTA_BYTES: usize = 5;
const BUCKET_QUOTA_AT: usize = NUMBERS_AT + 2 * NUMBER_BYTES;
const WINDOW_BYTES: usize = NUMBERS_AT + 2 * NUMBER_BYTES;
const BUCKET_BYTES: usize = BUCKET_QUOTA_AT + QUOTA_BYTES;
// Every quota fits its bytes.
const _: () = assert!(QUOTA_MAX >> (8 * QUOTA_BYTES) == 0);
const THREE_NUMBERS_BYTES: usize = NUMBERS_AT + 3 * NUMBER_BYTES;
/// A block's end in microseconds since 1970, below 2^56, and its length in milliseconds.
const BLOCK_END_BYTES: usize = 7;
const BLOCK_LENGTH_AT: usize = NUMBERS_AT + BLOCK_END_BYTES;
const BLOCK_BYTES: usize = BLOCK_LENGTH_AT + size_of::<u32>();
const RECORD_BYTES_MAX: usize = THREE_NUMBERS_BYTES;

const WINDOW: u8 = 1;
const BUCKET: u8 = 2;
const COUNTER: u8 = 3;
const LOG: u8 = 4;
// Kinds from here on are of no limit's state.
const BLOCK: u8 = 5;
const HOLDS: u8 = 6;

/// The name of an entry: a key within a group of plans that count together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name<'a> {
    pub(super) group: &'a [u8],
    pub(super) key: &'a [u8],
    pub(super) group_bytes: u8,
    pub(super) key_bytes: u16,
}

/// What a record holds: a state, the index of a log or of notes in [`Places`](super::places::Places) of the shard, or a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stored {
    State(State),
    Log(u32),
    Block(Block),
    Holds(u32),
}

/// The state of one limit, and the offset of its record in the entry.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) at: usize,
    /// The fingerprint of the limit.
    pub(super) fingerprint: LimitFingerprint,
    pub(super) stored: Stored,
}

/// A read-only view of an entry's slot.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryView<'a>(pub(super) &'a [u8]);

impl<'a> EntryView<'a> {
    pub(super) fn name(self) -> Name<'a> {
        let group_end = NAME_AT + usize::from(self.0[GROUP_LENGTH_AT]);
        let group = &self.0[NAME_AT..group_end];
        let key = &self.0[group_end..self.records_at()];
        Name {
            group,
            key,
            group_bytes: self.0[GROUP_LENGTH_AT],
            key_bytes: u16::from_le_bytes(array(self.0, KEY_LENGTH_AT)),
        }
    }

    pub(super) fn is_of(self, name: Name<'_>) -> bool {
        let own = self.name();
        own.key == name.key && own.group == name.group
    }

    pub(super) fn records(self) -> impl Iterator<Item = Record> + use<'a> {
        self.offsets().filter_map(move |at| read(self.0, at))
    }

    /// Offsets of the records. To read them takes longer.
    pub(super) fn offsets(self) -> impl Iterator<Item = usize> + use<'a> {
        let mut next = self.records_at();
        std::iter::from_fn(move || {
            let at = next;
            next += bytes_of_kind(*self.0.get(at)?)?;
            Some(at)
        })
    }

    /// The record of the state with this fingerprint, if the entry has one.
    pub(super) fn record(self, fingerprint: LimitFingerprint) -> Option<Record> {
        let at = self.offset_of(fingerprint, |kind| kind < BLOCK)?;
        read(self.0, at)
    }

    /// The block with this fingerprint, and the offset of its record, if the entry has one.
    pub(super) fn block(self, fingerprint: LimitFingerprint) -> Option<(usize, Block)> {
        let at = self.offset_of(fingerprint, |kind| kind == BLOCK)?;
        match read(self.0, at)?.stored {
            Stored::Block(block) => Some((at, block)),
            Stored::State(_) | Stored::Log(_) | Stored::Holds(_) => None,
        }
    }

    /// The offset of the first record with this fingerprint of such a kind.
    fn offset_of(
        self,
        fingerprint: LimitFingerprint,
        is_kind: impl Fn(u8) -> bool,
    ) -> Option<usize> {
        let wanted = fingerprint.to_fixed_bytes();
        self.offsets()
            .find(|at| self.0[at + 1..at + NUMBERS_AT] == wanted && is_kind(self.0[*at]))
    }

    /// The index of the notes of its holds, if the entry has some.
    pub(super) fn holds(self) -> Option<u32> {
        self.records().find_map(|record| match record.stored {
            Stored::Holds(index) => Some(index),
            Stored::State(_) | Stored::Log(_) | Stored::Block(_) => None,
        })
    }

    /// The bytes before the records.
    pub(super) fn head(self) -> &'a [u8] {
        &self.0[..self.records_at()]
    }

    /// The bytes of a record.
    pub(super) fn record_bytes(self, record: &Record) -> &'a [u8] {
        &self.0[record.at..record.at + record.stored.bytes()]
    }

    fn records_at(self) -> usize {
        NAME_AT
            + usize::from(self.0[GROUP_LENGTH_AT])
            + usize::from(u16::from_le_bytes(array(self.0, KEY_LENGTH_AT)))
    }
}

impl<'a> Name<'a> {
    /// Returns `None` when a length does not fit its field. `check_name` and `Key` allow at most 64 and 512 bytes.
    pub(super) fn new(group: &'a [u8], key: &'a [u8]) -> Option<Self> {
        Some(Self {
            group,
            key,
            group_bytes: u8::try_from(group.len()).ok()?,
            key_bytes: u16::try_from(key.len()).ok()?,
        })
    }

    /// Number of bytes before the records in an entry of this name.
    pub(super) fn head_bytes(self) -> usize {
        NAME_AT + self.group.len() + self.key.len()
    }

    /// Writes the start of an entry, with empty links.
    pub(super) fn write_head(self, out: &mut Vec<u8>) {
        out.resize(LINKS_BYTES, 0);
        out.extend(self.key_bytes.to_le_bytes());
        out.push(self.group_bytes);
        out.extend(self.group);
        out.extend(self.key);
    }
}

impl Stored {
    /// Number of bytes of its record.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::State(state) => record_bytes(state),
            Self::Log(_) | Self::Holds(_) => INDEX_RECORD_BYTES,
            Self::Block(_) => BLOCK_BYTES,
        }
    }

    /// Appends the index of notes to an entry as a record.
    pub(super) fn write_holds(index: u32, out: &mut Vec<u8>) {
        let none = LimitFingerprint::from_fixed_bytes([0; FINGERPRINT_BYTES]);
        Self::Holds(index).write(none, out);
    }

    /// Appends it to an entry as a record.
    pub(super) fn write(&self, fingerprint: LimitFingerprint, out: &mut Vec<u8>) {
        let mut record = [0; RECORD_BYTES_MAX];
        record[1..NUMBERS_AT].copy_from_slice(&fingerprint.to_fixed_bytes());
        match self {
            Self::State(state) => overwrite(&mut record, 0, state),
            Self::Log(index) | Self::Holds(index) => {
                record[0] = if let Self::Log(_) = self { LOG } else { HOLDS };
                record[NUMBERS_AT..INDEX_RECORD_BYTES].copy_from_slice(&index.to_le_bytes());
            }
            Self::Block(block) => overwrite_block(&mut record, 0, *block),
        }
        out.extend(&record[..self.bytes()]);
    }
}

/// Overwrites the state in the record at offset `at`. The record must be of the same limit.
pub(super) fn overwrite(slot: &mut [u8], at: usize, state: &State) {
    let mut put = |kind: u8, numbers: &[u64]| {
        slot[at] = kind;
        for (number, place) in numbers
            .iter()
            .zip(slot[at + NUMBERS_AT..].chunks_exact_mut(NUMBER_BYTES))
        {
            place.copy_from_slice(&number.to_le_bytes());
        }
    };
    match state {
        State::Window(window) => put(WINDOW, &[window.start_us, window.count]),
        State::Bucket(bucket) => {
            put(BUCKET, &[bucket.tat_us, bucket.at_us]);
            let quota = bucket.quota.min(QUOTA_MAX).to_le_bytes();
            slot[at + BUCKET_QUOTA_AT..at + BUCKET_BYTES].copy_from_slice(&quota[..QUOTA_BYTES]);
        }
        State::Counter(counter) => put(
            COUNTER,
            &[counter.start_us, counter.current, counter.previous],
        ),
        // The record holds only the index of a log, which does not change.
        State::Runs(_) => {}
    }
}

/// Number of bytes of a record of this kind; `None` where no record follows.
#[inline(always)]
fn bytes_of_kind(kind: u8) -> Option<usize> {
    Some(match kind {
        WINDOW => WINDOW_BYTES,
        BUCKET => BUCKET_BYTES,
        COUNTER => THREE_NUMBERS_BYTES,
        LOG | HOLDS => INDEX_RECORD_BYTES,
        BLOCK => BLOCK_BYTES,
        _ => return None,
    })
}

/// Overwrites the block in the record at offset `at`, or writes one into room for it.
pub(super) fn overwrite_block(slot: &mut [u8], at: usize, block: Block) {
    slot[at] = BLOCK;
    let end = block.end_us.to_le_bytes();
    slot[at + NUMBERS_AT..at + BLOCK_LENGTH_AT].copy_from_slice(&end[..BLOCK_END_BYTES]);
    // A limit's block has 31 days at most, which fit.
    let length_ms = u32::try_from(block.length_us / 1_000).unwrap_or(u32::MAX);
    slot[at + BLOCK_LENGTH_AT..at + BLOCK_BYTES].copy_from_slice(&length_ms.to_le_bytes());
}

/// Number of bytes of the record of this state.
pub(super) fn record_bytes(state: &State) -> usize {
    match state {
        State::Window(_) => WINDOW_BYTES,
        State::Bucket(_) => BUCKET_BYTES,
        State::Counter(_) => THREE_NUMBERS_BYTES,
        State::Runs(_) => INDEX_RECORD_BYTES,
    }
}

fn read(slot: &[u8], at: usize) -> Option<Record> {
    let number =
        |index: usize| u64::from_le_bytes(array(slot, at + NUMBERS_AT + index * NUMBER_BYTES));
    let stored = match *slot.get(at)? {
        WINDOW => Stored::State(State::Window(Window {
            start_us: number(0),
            count: number(1),
        })),
        BUCKET => {
            let [b0, b1, b2, b3, b4]: [u8; QUOTA_BYTES] = array(slot, at + BUCKET_QUOTA_AT);
            let quota = u64::from_le_bytes([b0, b1, b2, b3, b4, 0, 0, 0]);
            Stored::State(State::Bucket(Bucket {
                tat_us: number(0),
                at_us: number(1),
                quota,
            }))
        }
        COUNTER => Stored::State(State::Counter(Counter {
            start_us: number(0),
            current: number(1),
            previous: number(2),
        })),
        LOG => Stored::Log(u32::from_le_bytes(array(slot, at + NUMBERS_AT))),
        HOLDS => Stored::Holds(u32::from_le_bytes(array(slot, at + NUMBERS_AT))),
        BLOCK => {
            let [b0, b1, b2, b3, b4, b5, b6]: [u8; BLOCK_END_BYTES] = array(slot, at + NUMBERS_AT);
            let length_ms = u32::from_le_bytes(array(slot, at + BLOCK_LENGTH_AT));
            Stored::Block(Block {
                end_us: u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, 0]),
                length_us: u64::from(length_ms) * 1_000,
            })
        }
        // Zero follows the last record. No other kind is ever written.
        _ => return None,
    };
    Some(Record {
        at,
        fingerprint: LimitFingerprint::from_fixed_bytes(array(slot, at + 1)),
        stored,
    })
}

fn array<const N: usize>(slot: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&slot[at..at + N]);
    bytes
}

#[cfg(test)]
mod tests;
