//! Open holds in few bytes: those of one plan are records, one after the other.
//!
//! ```text
//! end of the lease 8 | instant of the reserve 8 | length of what follows | length of id | id | cost | two numbers of each bucket
//! ```
//! Lengths are in bytes. The first two are little-endian, and the end changes in its place. All others are varints: seven bits a byte, the
//! lowest first. Of a bucket the first number is the time from the reserve on until it would have been full. It wraps, so any clock will
//! do.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::plan::Plan;

/// What an allocator rounds up to.
const ROUNDED_TO: usize = 16;
/// The bit of a varint's byte which tells that another one follows.
const MORE: u8 = 0x80;
const INSTANT_BYTES: usize = size_of::<u64>();
/// Maximum number of bytes of a varint.
const VARINT_BYTES_MAX: usize = 10;
/// Bytes of which records are made, on the stack but for holds of several buckets.
type RecordBytes = SmallVec<[u8; 128]>;

/// A charge with an end, without its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hold {
    /// The plan as it was when the hold was taken. Its limits and its terms are those of the hold.
    pub(super) plan: Arc<Plan>,
    pub(super) cost: u64,
    /// When it was reserved, in microseconds since 1970.
    pub(super) at_us: u64,
    pub(super) expires_us: u64,
    /// What the reserve left in each bucket of the plan, in the order of the limits.
    pub(super) buckets: SmallVec<[ChargedBucket; 1]>,
}

/// A bucket just after a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChargedBucket {
    /// When it would have been full again, in microseconds since 1970.
    pub(super) full_at_us: u64,
    /// What had been given back to it by then.
    pub(super) given_us: u64,
}

/// A hold as it is noted. What every call looks at is read, and the rest when it is asked for.
#[derive(Clone, Copy)]
pub(super) struct NotedHold<'a> {
    pub(super) plan: &'a Arc<Plan>,
    pub(super) expires_us: u64,
    at_us: u64,
    /// Length of the id, id and numbers.
    rest: &'a [u8],
    /// Where its record begins.
    begin: usize,
    /// And where it ends.
    end: usize,
}

/// Holds that were taken under one plan.
#[derive(Debug, Clone)]
pub(super) struct PackedHolds {
    plan: Arc<Plan>,
    records: Vec<u8>,
}

impl Hold {
    /// Until when its id is known if nobody settles it. A hold whose end gives units back stays as long as they may count.
    pub(super) fn known_until_us(&self) -> u64 {
        let remembered_us = self.expires_us + self.plan.holds.remember_us();
        if !self.plan.releases_holds() {
            return remembered_us;
        }
        let windows = self.plan.limits().iter().map(|limit| 2 * limit.window_us());
        let counts_us = self.at_us + windows.max().unwrap_or(0);
        let full_us = self.buckets.iter().map(|bucket| bucket.full_at_us).max();
        remembered_us
            .max(counts_us)
            .max(full_us.unwrap_or_default())
    }
}

impl<'a> NotedHold<'a> {
    pub(super) fn id(&self) -> &'a [u8] {
        self.parts().0
    }

    /// The id, and the numbers.
    fn parts(&self) -> (&'a [u8], &'a [u8]) {
        let mut rest = self.rest;
        let id_bytes = take_length(&mut rest);
        rest.split_at_checked(id_bytes).unwrap_or_default()
    }

    pub(super) fn is_open(&self, now_us: u64) -> bool {
        self.expires_us > now_us
    }

    pub(super) fn takes_slot(&self) -> bool {
        self.plan.concurrency().is_some()
    }

    pub(super) fn cost(&self) -> u64 {
        take_varint(&mut self.parts().1)
    }

    pub(super) fn known_until_us(&self) -> u64 {
        self.to_hold().known_until_us()
    }

    pub(super) fn to_hold(self) -> Hold {
        let (_, mut numbers) = self.parts();
        let cost = take_varint(&mut numbers);
        let at_us = self.at_us;
        let mut buckets = SmallVec::new();
        while !numbers.is_empty() {
            buckets.push(ChargedBucket {
                full_at_us: at_us.wrapping_add(take_varint(&mut numbers)),
                given_us: take_varint(&mut numbers),
            });
        }
        Hold {
            plan: self.plan.clone(),
            cost,
            at_us,
            expires_us: self.expires_us,
            buckets,
        }
    }
}

impl PackedHolds {
    pub(super) fn new(plan: Arc<Plan>) -> Self {
        Self {
            plan,
            records: Vec::new(),
        }
    }

    /// Whether its holds are those of this plan, as it is now.
    pub(super) fn is_of(&self, plan: &Plan) -> bool {
        std::ptr::eq(&*self.plan, plan)
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        self.records.capacity()
    }

    /// The most bytes by which a hold of this id increases [`Self::heap_bytes`].
    pub(super) fn growth_bytes(&self, id: &str) -> usize {
        self.grown(record_bytes_max(id.len(), &self.plan)) - self.records.capacity()
    }

    /// The same where there is none of the plan.
    pub(super) fn new_bytes(id: &str, plan: &Plan) -> usize {
        record_bytes_max(id.len(), plan).next_multiple_of(ROUNDED_TO)
    }

    /// Adds a hold of this plan.
    pub(super) fn push(&mut self, id: &[u8], hold: &Hold) {
        let mut rest = with_length(id);
        put_varint(hold.cost, &mut rest);
        for bucket in &hold.buckets {
            put_varint(bucket.full_at_us.wrapping_sub(hold.at_us), &mut rest);
            put_varint(bucket.given_us, &mut rest);
        }
        let mut head = RecordBytes::from_slice(&hold.expires_us.to_le_bytes());
        head.extend_from_slice(&hold.at_us.to_le_bytes());
        put_varint(length(&rest), &mut head);
        let grown = self.grown(head.len() + rest.len());
        self.records.reserve_exact(grown - self.records.len());
        self.records.extend_from_slice(&head);
        self.records.extend_from_slice(&rest);
    }

    /// Where the record of this id begins.
    pub(super) fn find(&self, id: &[u8]) -> Option<usize> {
        let named = with_length(id);
        let mut holds = self.iter();
        let found = holds.find(|hold| hold.rest.starts_with(&named))?;
        Some(found.begin)
    }

    /// Bytes of the buffer when it has so many more. A full one grows by an eighth, since a double would leave half of it unused.
    fn grown(&self, more: usize) -> usize {
        let needed = self.records.len() + more;
        if needed <= self.records.capacity() {
            self.records.capacity()
        } else {
            (needed + self.records.len() / 8).next_multiple_of(ROUNDED_TO)
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = NotedHold<'_>> {
        let mut begin = 0;
        std::iter::from_fn(move || {
            let hold = self.hold_at(begin)?;
            begin = hold.end;
            Some(hold)
        })
    }

    /// The hold whose record begins here; `None` behind the last one.
    #[inline]
    pub(super) fn hold_at(&self, begin: usize) -> Option<NotedHold<'_>> {
        let (expires, left) = self.records.get(begin..)?.split_first_chunk()?;
        let (at, mut left) = left.split_first_chunk()?;
        let rest_bytes = take_length(&mut left);
        let rest_at = self.records.len() - left.len();
        Some(NotedHold {
            plan: &self.plan,
            expires_us: u64::from_le_bytes(*expires),
            at_us: u64::from_le_bytes(*at),
            rest: left.get(..rest_bytes)?,
            begin,
            end: rest_at + rest_bytes,
        })
    }

    /// Sets the end of the lease of the hold whose record begins here.
    pub(super) fn set_end(&mut self, begin: usize, expires_us: u64) {
        self.records[begin..][..INSTANT_BYTES].copy_from_slice(&expires_us.to_le_bytes());
    }

    /// Lets no lease end later.
    pub(super) fn end_by(&mut self, last_us: u64) {
        let mut begin = 0;
        while let Some(hold) = self.hold_at(begin) {
            let is_late = hold.expires_us > last_us;
            let end = hold.end;
            if is_late {
                self.set_end(begin, last_us);
            }
            begin = end;
        }
    }

    /// Takes out the hold whose record begins here.
    pub(super) fn remove(&mut self, begin: usize) -> Option<Hold> {
        let hold = self.hold_at(begin)?;
        let end = hold.end;
        let taken = hold.to_hold();
        self.records.drain(begin..end);
        Some(taken)
    }

    /// Takes out those that `is_taken` is true of, and adds them and their ids.
    pub(super) fn take_if(
        &mut self,
        is_taken: impl Fn(&NotedHold<'_>) -> bool,
        taken: &mut Vec<(Box<[u8]>, Hold)>,
    ) {
        let mut begin = 0;
        let mut kept = 0;
        while let Some(hold) = self.hold_at(begin) {
            let end = hold.end;
            if is_taken(&hold) {
                taken.push((hold.id().into(), hold.to_hold()));
            } else {
                if kept < begin {
                    self.records.copy_within(begin..end, kept);
                }
                kept += end - begin;
            }
            begin = end;
        }
        self.records.truncate(kept);
    }
}

/// The most bytes of a record.
fn record_bytes_max(id_bytes: usize, plan: &Plan) -> usize {
    let varints = 3 + 2 * plan.limits().len();
    2 * INSTANT_BYTES + id_bytes + varints * VARINT_BYTES_MAX
}

/// An id as its record has it.
fn with_length(id: &[u8]) -> RecordBytes {
    let mut named = RecordBytes::new();
    put_varint(length(id), &mut named);
    named.extend_from_slice(id);
    named
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn put_varint(mut number: u64, bytes: &mut RecordBytes) {
    loop {
        let [lowest, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return bytes.push(lowest);
        }
        bytes.push(lowest | MORE);
    }
}

/// Takes a number off the front. Where the bytes end within it, returns what they have of it.
#[inline]
fn take_varint(bytes: &mut &[u8]) -> u64 {
    match bytes.split_first() {
        Some((byte, left)) if *byte < MORE => {
            *bytes = left;
            (*byte).into()
        }
        _ => take_long_varint(bytes),
    }
}

fn take_long_varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let Some((byte, left)) = bytes.split_first() else {
            break;
        };
        *bytes = left;
        number |= u64::from(byte & !MORE) << shift;
        if *byte < MORE {
            break;
        }
    }
    number
}

#[inline]
fn take_length(bytes: &mut &[u8]) -> usize {
    usize::try_from(take_varint(bytes)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
