//! What is kept of a key's ids: open holds, and ids that are known yet.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;

use super::{KnownCall, KnownId};
use crate::plan::{LimitFingerprint, Plan};

/// Ids that are forgotten in one call, beside those of the call itself. More are forgotten than are added.
const FORGOTTEN_A_CALL: usize = 8;
/// Ids that are looked through one by one. More are found by an index.
const UNINDEXED: usize = 64;
/// What an index takes for each id that it has room for: two numbers, a byte, and an eighth.
const INDEX_BYTES: usize = 20;

/// Numbers of ids, by their hashes. Ids have numbers in the order in which they ended.
type IdIndex = HashMap<u64, u64, BuildHasherDefault<DefaultHasher>>;

/// The holds and ids of one key. The default has none.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    /// Holds that were not ended: open ones, and such whose lease is over and at which no call looked yet.
    pub(super) holds: Vec<Hold>,
    /// Ids that are not open, in the order in which they ended. One that ended once more has left a gap, without an id.
    ended: VecDeque<Ended>,
    /// Gaps among them.
    gaps: usize,
    /// The number of the first of them.
    first_number: u64,
    /// Empty as long as they are few.
    index: IdIndex,
    /// Microseconds that were ever given back to each bucket, since there are notes.
    given: SmallVec<[(LimitFingerprint, u64); 1]>,
    /// Greatest `max_ids` of the plans that left a note here.
    max_ids: u32,
    /// Bytes of ids and of buckets on the heap.
    heap_bytes: usize,
    fresh_at_us: u64,
}

/// A charge with an end.
#[derive(Debug, Clone)]
pub(super) struct Hold {
    pub(super) id: Box<str>,
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

/// An id that is not open.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) id: Box<str>,
    pub(super) plan: Arc<Plan>,
    pub(super) end: End,
    /// Until when it is known, in microseconds since 1970.
    pub(super) until_us: u64,
}

/// How an id ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// A hold was settled. `held` is `None` where there was none, and its use was charged alone.
    Settled { held: Option<u64>, actual: u64 },
    /// The lease of a hold of this cost ended.
    Expired { held: u64 },
    /// No hold: the cost of a ShouldAllow or Record.
    Charged { call: KnownCall, cost: u64 },
}

/// What is known of an id.
pub(super) enum Known<'a> {
    /// An open hold, by its place among the holds.
    Open(usize),
    Ended(&'a Plan, End),
}

impl Hold {
    pub(super) fn is_open(&self, now_us: u64) -> bool {
        self.expires_us > now_us
    }

    pub(super) fn takes_slot(&self) -> bool {
        self.plan.concurrency().is_some()
    }

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

    fn heap_bytes(&self) -> usize {
        let spilled = if self.buckets.spilled() {
            self.buckets.capacity() * size_of::<ChargedBucket>()
        } else {
            0
        };
        id_bytes(&self.id) + spilled
    }
}

fn hash_of(id: &str) -> u64 {
    let mut hasher = DefaultHasher::default();
    id.hash(&mut hasher);
    hasher.finish()
}

/// What an allocator takes for an id.
fn id_bytes(id: &str) -> usize {
    id.len().next_multiple_of(16)
}

impl Notes {
    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty() && self.ended.len() == self.gaps
    }

    /// When all of it may be forgotten, in microseconds since 1970, or before.
    pub fn fresh_at_us(&self) -> u64 {
        self.fresh_at_us
    }

    /// Bytes that the notes take, including this struct.
    pub fn heap_bytes(&self) -> usize {
        size_of::<Self>()
            + self.holds.capacity() * size_of::<Hold>()
            + self.ended.capacity() * size_of::<Ended>()
            + self.index.capacity() * INDEX_BYTES
            + self.heap_bytes
            + if self.given.spilled() {
                self.given.capacity() * size_of::<(LimitFingerprint, u64)>()
            } else {
                0
            }
    }

    /// The most bytes by which one call with this id may increase [`Self::heap_bytes`].
    pub fn growth_bytes(&self, id: &str, plan: &Plan) -> usize {
        // A list that is full grows by a part of itself.
        let holds = grown(self.holds.len(), self.holds.capacity()) * size_of::<Hold>();
        // Holds that end become ids.
        let after = self.ended.len() + self.holds.len();
        let ended = if after < self.ended.capacity() {
            0
        } else {
            (after / 4 + 4) * size_of::<Ended>()
        };
        let index = if after >= UNINDEXED && after >= self.index.capacity() {
            // Its capacity is seven eighths of a power of two, which doubles.
            3 * after * INDEX_BYTES
        } else {
            0
        };
        let limits = plan.limits().len();
        let of_limits = size_of::<ChargedBucket>() + size_of::<(LimitFingerprint, u64)>();
        let spilled = if limits > 1 { 8 * of_limits } else { 0 };
        holds + ended + index + id_bytes(id) + spilled
    }

    /// What is known of this id at `now_us` by a call under this plan, which ends the plan's holds that have expired.
    pub(super) fn find(&self, id: &str, plan: &Plan, now_us: u64) -> Option<Known<'_>> {
        if let Some(place) = self.holds.iter().position(|hold| *hold.id == *id) {
            let hold = &self.holds[place];
            if hold.is_open(now_us) {
                return Some(Known::Open(place));
            }
            let end = End::Expired { held: hold.cost };
            let until_us = if hold.plan.name == plan.name {
                hold.expires_us + hold.plan.holds.remember_us()
            } else {
                hold.known_until_us()
            };
            return (until_us > now_us).then_some(Known::Ended(&hold.plan, end));
        }
        let found = &self.ended[self.place_of(id)?];
        (found.until_us > now_us).then_some(Known::Ended(&found.plan, found.end))
    }

    /// Why a call with this id is refused: what it is known for.
    pub(super) fn known_id(known: &Known<'_>, holds: &[Hold]) -> KnownId {
        match *known {
            Known::Open(place) => KnownId {
                call: KnownCall::Reserve,
                plan: holds[place].plan.name.clone(),
                cost: Some(holds[place].cost),
            },
            Known::Ended(plan, end) => {
                let (call, cost) = match end {
                    End::Settled { held, .. } => (KnownCall::Reserve, held),
                    End::Expired { held } => (KnownCall::Reserve, Some(held)),
                    End::Charged { call, cost } => (call, Some(cost)),
                };
                KnownId {
                    call,
                    plan: plan.name.clone(),
                    cost,
                }
            }
        }
    }

    /// Notes an open hold.
    pub(super) fn hold(&mut self, hold: Hold) {
        self.heap_bytes += hold.heap_bytes();
        self.fresh_at_us = self.fresh_at_us.max(hold.known_until_us());
        reserve_part(self.holds.len(), self.holds.capacity(), |more| {
            self.holds.reserve_exact(more);
        });
        self.holds.push(hold);
    }

    /// Takes a hold out, by its place.
    pub(super) fn take(&mut self, place: usize) -> Hold {
        let hold = self.holds.swap_remove(place);
        self.heap_bytes -= hold.heap_bytes();
        hold
    }

    /// Prolongs a lease, never shortens it. Returns when it ends.
    pub(super) fn extend(&mut self, place: usize, expires_us: u64) -> u64 {
        let hold = &mut self.holds[place];
        hold.expires_us = hold.expires_us.max(expires_us);
        self.fresh_at_us = self.fresh_at_us.max(hold.known_until_us());
        hold.expires_us
    }

    /// Remembers an id that is not open, in place of what was known of it.
    pub(super) fn remember(&mut self, ended: Ended, now_us: u64) {
        // An expired hold that is settled later is known as settled.
        if let Some(place) = self.place_of(&ended.id) {
            self.index.remove(&hash_of(&ended.id));
            let before = &mut self.ended[place];
            self.heap_bytes -= id_bytes(&before.id);
            (before.id, before.until_us) = (Box::default(), 0);
            self.gaps += 1;
        }
        if ended.until_us <= now_us {
            return;
        }
        self.max_ids = self.max_ids.max(ended.plan.holds.max_ids);
        self.heap_bytes += id_bytes(&ended.id);
        self.fresh_at_us = self.fresh_at_us.max(ended.until_us);
        reserve_part(self.ended.len(), self.ended.capacity(), |more| {
            self.ended.reserve_exact(more);
        });
        self.ended.push_back(ended);
        self.index_last();
        self.forget_some(now_us);
    }

    /// Where an id is among those that are not open.
    fn place_of(&self, id: &str) -> Option<usize> {
        if !self.index.is_empty() {
            let number = self.index.get(&hash_of(id))?;
            let place = usize::try_from(number.checked_sub(self.first_number)?).ok()?;
            // Another id may have its hash.
            if self.ended.get(place).is_some_and(|ended| *ended.id == *id) {
                return Some(place);
            }
        }
        self.ended.iter().rposition(|ended| *ended.id == *id)
    }

    /// Adds the last id to the index; all of them, once they are many.
    fn index_last(&mut self) {
        if !self.index.is_empty() {
            let number = (self.first_number..).nth(self.ended.len() - 1);
            let last = self.ended.back().zip(number);
            self.index
                .extend(last.map(|(ended, number)| (hash_of(&ended.id), number)));
        } else if self.ended.len() > UNINDEXED {
            let numbers = (self.first_number..).zip(&self.ended);
            let named = numbers.filter(|(_, ended)| !ended.id.is_empty());
            self.index
                .extend(named.map(|(number, ended)| (hash_of(&ended.id), number)));
        }
    }

    /// Forgets ids at whose end none is known any more, and those that are too many.
    fn forget_some(&mut self, now_us: u64) {
        for _ in 0..FORGOTTEN_A_CALL {
            while self
                .ended
                .front()
                .is_some_and(|oldest| oldest.id.is_empty())
            {
                self.ended.pop_front();
                (self.gaps, self.first_number) = (self.gaps - 1, self.first_number + 1);
            }
            let known = u32::try_from(self.ended.len() - self.gaps).unwrap_or(u32::MAX);
            let goes = |oldest: &Ended| known > self.max_ids || oldest.until_us <= now_us;
            if !self.ended.front().is_some_and(goes) {
                return;
            }
            if let Some(oldest) = self.ended.pop_front() {
                self.first_number += 1;
                self.heap_bytes -= id_bytes(&oldest.id);
                self.index.remove(&hash_of(&oldest.id));
            }
        }
    }

    /// Takes out the holds that are over and that `ends` is true of, in the order of (end of the lease, id).
    pub(super) fn take_due(&mut self, now_us: u64, ends: impl Fn(&Hold) -> bool) -> Vec<Hold> {
        let is_due = |hold: &mut Hold| !hold.is_open(now_us) && ends(hold);
        let mut due: Vec<Hold> = self.holds.extract_if(.., is_due).collect();
        self.heap_bytes -= due.iter().map(Hold::heap_bytes).sum::<usize>();
        due.sort_unstable_by(|a, b| (a.expires_us, &a.id).cmp(&(b.expires_us, &b.id)));
        due
    }

    /// A lease that ends later than the longest from now was given by a clock that stepped back since. It ends so long from now.
    pub(super) fn clamp(&mut self, now_us: u64) {
        for hold in &mut self.holds {
            let last_us = now_us + hold.plan.holds.max_ttl_us();
            hold.expires_us = hold.expires_us.min(last_us);
        }
    }

    /// What was ever given back to the bucket of this limit.
    pub(super) fn given_us(&self, fingerprint: LimitFingerprint) -> u64 {
        let mut given = self.given.iter();
        let found = given.find(|(of, _)| *of == fingerprint);
        found.map_or(0, |(_, given_us)| *given_us)
    }

    /// Notes that so much was given back to the bucket of this limit.
    pub(super) fn gave(&mut self, fingerprint: LimitFingerprint, us: u64) {
        match self.given.iter_mut().find(|(of, _)| *of == fingerprint) {
            Some((_, given_us)) => *given_us += us,
            None => self.given.push((fingerprint, us)),
        }
    }

    /// Ids that are known at `now_us` and not open.
    pub(super) fn known_ids(&self, now_us: u64) -> usize {
        let mut ended = self.ended.iter();
        let over = self
            .holds
            .iter()
            .filter(|hold| !hold.is_open(now_us) && hold.known_until_us() > now_us);
        ended.by_ref().filter(|id| id.until_us > now_us).count() + over.count()
    }
}

/// Places by which a full list grows: a quarter, since a double would leave half of the memory unused.
fn grown(len: usize, capacity: usize) -> usize {
    if len < capacity { 0 } else { len / 4 + 1 }
}

fn reserve_part(len: usize, capacity: usize, reserve: impl FnOnce(usize)) {
    match grown(len, capacity) {
        0 => {}
        more => reserve(more),
    }
}
