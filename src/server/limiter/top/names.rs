//! Keys in clear, for operators who asked for them: those of the heaviest keys that a bound on bytes has room for.
//!
//! Names for denials and for cost are kept apart, since the two have no common measure. Each of the two may take its half, and what the
//! other leaves free. Where there is no room, a key takes the place of one that weighs less. So a flood of light keys does not crowd
//! out the few that matter, whichever came first. A key that was not counted for a minute is forgotten. A key that finds no room is
//! shown as its hash.

use std::collections::HashMap;

use super::TopBy;
use super::worker::SLOTS;

/// Maximum number of bytes that keys in clear may take in a worker.
const BYTES_MAX: usize = 128 << 10;
/// What a key takes beside its own bytes, in a map that has just grown.
const OVERHEAD: usize = 110;
/// A key takes the place of one that weighs less by this part at least. So keys of about the same weight do not take turns, each of
/// which costs a search of a microsecond or two.
const MARGIN: f32 = 0.2;

/// Keys by the number that they are counted under.
#[derive(Debug, Default)]
pub(super) struct KeyNames {
    /// By denials, and by cost.
    lists: [List; 2],
    /// Slots begun so far.
    slot: u32,
}

#[derive(Debug, Default)]
struct List {
    names: HashMap<u64, NamedKey>,
    bytes: usize,
    /// No name weighs less.
    least: f32,
}

#[derive(Debug)]
struct NamedKey {
    key: Box<str>,
    /// The most that the key is known to have been counted in a slot; half of it in each slot that came after.
    weight: f32,
    /// The slot in which the key was last counted.
    last: u32,
}

impl KeyNames {
    /// Notes a key that is counted. `known` is what it is known to have been counted in this slot.
    pub(super) fn note(&mut self, by: TopBy, hash: u64, key: &str, known: u64) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "weights are compared with a margin"
        )]
        let weight = known as f32;
        if let Some(name) = self.lists[by as usize].names.get_mut(&hash) {
            name.weight = name.weight.max(weight);
            name.last = self.slot;
            return;
        }
        let bytes = key.len() + OVERHEAD;
        if self.make_room(by, bytes, weight) {
            let list = &mut self.lists[by as usize];
            list.bytes += bytes;
            list.least = list.least.min(weight);
            list.names.insert(
                hash,
                NamedKey {
                    key: key.into(),
                    weight,
                    last: self.slot,
                },
            );
        }
    }

    /// Whether there is room for so many bytes more, after names that weigh less were dropped for it.
    fn make_room(&mut self, by: TopBy, bytes: usize, weight: f32) -> bool {
        while self.lists.iter().map(|list| list.bytes).sum::<usize>() + bytes > BYTES_MAX {
            // What the other takes above its half is due to this one.
            let is_due = self.lists[by as usize].bytes + bytes <= BYTES_MAX / 2;
            let (list, below) = if is_due {
                (1 - by as usize, f32::INFINITY)
            } else {
                (by as usize, weight * (1.0 - MARGIN))
            };
            if !self.lists[list].drop_least(below) {
                return false;
            }
        }
        true
    }

    /// Forgets keys that were not counted for a minute.
    pub(super) fn begin_slot(&mut self) {
        self.slot += 1;
        let kept_from = (self.slot + 1).saturating_sub(u32::try_from(SLOTS).unwrap_or(u32::MAX));
        for list in &mut self.lists {
            list.names.retain(|_, name| name.last >= kept_from);
            list.names.values_mut().for_each(|name| name.weight /= 2.0);
            list.bytes = list
                .names
                .values()
                .map(|name| name.key.len() + OVERHEAD)
                .sum();
            list.least = 0.0;
        }
    }

    /// All keys that are kept, some of them twice.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &str)> {
        self.lists
            .iter()
            .flat_map(|list| &list.names)
            .map(|(hash, name)| (*hash, &*name.key))
    }
}

impl List {
    /// Drops the name of the least weight, if that is below this. Returns whether it did.
    fn drop_least(&mut self, below: f32) -> bool {
        if self.least >= below {
            return false;
        }
        let weights = self.names.iter().map(|(hash, name)| (*hash, name.weight));
        let Some((hash, least)) = weights.min_by(|(_, a), (_, b)| a.total_cmp(b)) else {
            return false;
        };
        self.least = least;
        if least >= below {
            return false;
        }
        self.bytes -= self
            .names
            .remove(&hash)
            .map_or(0, |name| name.key.len() + OVERHEAD);
        true
    }
}
