//! What is kept of a key's ids: open holds, and ids that are known yet.

use smallvec::SmallVec;

use super::ended::{End, Ended, EndedIds, id_bytes};
use super::packed::{Hold, NotedHold, PackedHolds};
use super::{KnownCall, KnownId};
use crate::plan::{LimitFingerprint, Plan};

/// The holds and ids of one key. The default has none.
#[derive(Debug, Clone, Default)]
pub struct Notes {
    /// Holds that were not ended: open ones, and such whose lease is over and at which no call looked yet. Those of each plan are
    /// together, and no plan is without any.
    holds: SmallVec<[PackedHolds; 1]>,
    /// How many they are.
    count: usize,
    /// Apart, since a key of open holds alone has none.
    past: Option<Box<EndedHistory>>,
    fresh_at_us: u64,
}

/// Ids of holds and calls that have ended, and the units that they gave back.
#[derive(Debug, Clone, Default)]
struct EndedHistory {
    ids: EndedIds,
    /// Microseconds that were ever given back to each bucket, since there are notes.
    given: SmallVec<[(LimitFingerprint, u64); 1]>,
}

/// Where a hold is, until one is taken out: the place of its plan, and where its record begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct HoldPlace {
    of_plan: usize,
    begin: usize,
}

/// Why there is a hold at a place.
const PLACED: &str = "a place is that of a hold until one is taken out";

/// What is known of an id.
pub(super) enum Known<'a> {
    /// An open hold.
    Open(HoldPlace),
    Ended(&'a Plan, End),
}

impl Notes {
    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.count == 0 && self.past.as_ref().is_none_or(|past| past.ids.is_empty())
    }

    /// When all of it may be forgotten, in microseconds since 1970, or before.
    pub fn fresh_at_us(&self) -> u64 {
        self.fresh_at_us
    }

    /// Bytes that the notes take, including this struct.
    pub fn heap_bytes(&self) -> usize {
        let holds = self.holds.iter().map(PackedHolds::heap_bytes);
        let past = self.past.as_ref().map_or(0, |past| past.heap_bytes());
        size_of::<Self>() + spilled_bytes(&self.holds) + holds.sum::<usize>() + past
    }

    /// The most bytes by which one call with this id may increase [`Self::heap_bytes`].
    pub fn growth_bytes(&self, id: &str, plan: &Plan) -> usize {
        let hold = match self.holds.iter().find(|holds| holds.is_of(plan)) {
            Some(holds) => holds.growth_bytes(id),
            None if self.holds.is_empty() => PackedHolds::new_bytes(id, plan),
            // A list that is full doubles.
            None => {
                let places = 2 * (self.holds.len() + 1);
                PackedHolds::new_bytes(id, plan) + places * size_of::<PackedHolds>()
            }
        };
        // Holds that end become ids. No id is longer than its record was.
        let ids: usize = self.holds.iter().map(PackedHolds::heap_bytes).sum();
        let past = match &self.past {
            Some(past) => past.ids.growth_bytes(self.count),
            None => size_of::<EndedHistory>() + EndedIds::default().growth_bytes(self.count),
        };
        let spilled = if plan.limits().len() > 1 { 8 } else { 0 };
        let given = spilled * size_of::<(LimitFingerprint, u64)>();
        hold + ids + past + id_bytes(id.as_bytes()) + given
    }

    /// All holds that were not ended, those of each plan together.
    pub(super) fn holds(&self) -> impl Iterator<Item = NotedHold<'_>> {
        self.holds.iter().flat_map(PackedHolds::iter)
    }

    /// How many holds were not ended.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The hold of this place.
    pub(super) fn hold_at(&self, place: HoldPlace) -> NotedHold<'_> {
        let hold = self.holds[place.of_plan].hold_at(place.begin);
        hold.expect(PLACED)
    }

    fn place_of(&self, id: &[u8]) -> Option<HoldPlace> {
        let mut plans = self.holds.iter().enumerate();
        plans.find_map(|(of_plan, holds)| {
            let begin = holds.find(id)?;
            Some(HoldPlace { of_plan, begin })
        })
    }

    /// What is known of this id at `now_us` by a call under this plan, which ends the plan's holds that have expired.
    pub(super) fn find(&self, id: &str, plan: &Plan, now_us: u64) -> Option<Known<'_>> {
        if let Some(place) = self.place_of(id.as_bytes()) {
            let hold = self.hold_at(place);
            if hold.is_open(now_us) {
                return Some(Known::Open(place));
            }
            let end = End::Expired { held: hold.cost() };
            let until_us = if hold.plan.name == plan.name {
                hold.expires_us + hold.plan.holds.remember_us()
            } else {
                hold.known_until_us()
            };
            return (until_us > now_us).then_some(Known::Ended(hold.plan, end));
        }
        let found = self.past.as_ref()?.ids.find(id.as_bytes(), now_us)?;
        Some(Known::Ended(&found.plan, found.end))
    }

    /// Why a call with this id is refused: what it is known for.
    pub(super) fn known_id(&self, known: &Known<'_>) -> KnownId {
        match *known {
            Known::Open(place) => {
                let hold = self.hold_at(place);
                KnownId {
                    call: KnownCall::Reserve,
                    plan: hold.plan.name.clone(),
                    cost: Some(hold.cost()),
                }
            }
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
    pub(super) fn hold(&mut self, id: &str, hold: &Hold) {
        self.fresh_at_us = self.fresh_at_us.max(hold.known_until_us());
        self.count += 1;
        let mut plans = self.holds.iter_mut();
        if let Some(holds) = plans.find(|holds| holds.is_of(&hold.plan)) {
            return holds.push(id.as_bytes(), hold);
        }
        let mut holds = PackedHolds::new(hold.plan.clone());
        holds.push(id.as_bytes(), hold);
        self.holds.push(holds);
    }

    /// Takes a hold out.
    pub(super) fn take(&mut self, place: HoldPlace) -> Hold {
        let holds = &mut self.holds[place.of_plan];
        let hold = holds.remove(place.begin);
        if holds.is_empty() {
            self.holds.remove(place.of_plan);
        }
        self.count -= 1;
        hold.expect(PLACED)
    }

    /// Prolongs a lease, never shortens it. Returns when it ends.
    pub(super) fn extend(&mut self, place: HoldPlace, expires_us: u64) -> u64 {
        let expires_us = self.hold_at(place).expires_us.max(expires_us);
        self.set_end(place, expires_us);
        let known_until_us = self.hold_at(place).known_until_us();
        self.fresh_at_us = self.fresh_at_us.max(known_until_us);
        expires_us
    }

    /// Sets the end of a lease.
    pub(super) fn set_end(&mut self, place: HoldPlace, expires_us: u64) {
        self.holds[place.of_plan].set_end(place.begin, expires_us);
    }

    /// Remembers an id that is not open, in place of what was known of it.
    pub(super) fn remember(&mut self, ended: Ended, now_us: u64) {
        if ended.until_us > now_us {
            self.fresh_at_us = self.fresh_at_us.max(ended.until_us);
            let past = self.past.get_or_insert_default();
            past.ids.remember(ended, now_us);
        } else if let Some(past) = &mut self.past {
            past.ids.forget(&ended.id);
        }
    }

    /// Takes out the holds that are over and that `ends` is true of, in the order of (end of the lease, id). Each has its id with it.
    pub(super) fn take_due(
        &mut self,
        now_us: u64,
        ends: impl Fn(&NotedHold<'_>) -> bool,
    ) -> Vec<(Box<[u8]>, Hold)> {
        let is_due = |hold: &NotedHold<'_>| !hold.is_open(now_us) && ends(hold);
        let mut due = Vec::new();
        for holds in &mut self.holds {
            holds.take_if(is_due, &mut due);
        }
        self.holds.retain(|holds| !holds.is_empty());
        self.count -= due.len();
        due.sort_unstable_by(|(id, hold), (other_id, other)| {
            (hold.expires_us, id).cmp(&(other.expires_us, other_id))
        });
        due
    }

    /// A lease that ends later than the longest from now was given by a clock that stepped back since. It ends so long from now.
    pub(super) fn clamp(&mut self, now_us: u64) {
        for holds in &mut self.holds {
            let last_us = now_us + holds.plan().holds.max_ttl_us();
            holds.end_by(last_us);
        }
    }

    /// What was ever given back to the bucket of this limit.
    pub(super) fn given_us(&self, fingerprint: LimitFingerprint) -> u64 {
        let mut given = self.past.iter().flat_map(|past| &past.given);
        let found = given.find(|(of, _)| *of == fingerprint);
        found.map_or(0, |(_, given_us)| *given_us)
    }

    /// Notes that so much was given back to the bucket of this limit.
    pub(super) fn gave(&mut self, fingerprint: LimitFingerprint, us: u64) {
        let given = &mut self.past.get_or_insert_default().given;
        match given.iter_mut().find(|(of, _)| *of == fingerprint) {
            Some((_, given_us)) => *given_us += us,
            None => given.push((fingerprint, us)),
        }
    }

    /// Ids that are known at `now_us` and not open.
    pub(super) fn known_ids(&self, now_us: u64) -> usize {
        let over = self
            .holds()
            .filter(|hold| !hold.is_open(now_us) && hold.known_until_us() > now_us);
        let past = self.past.as_ref();
        past.map_or(0, |past| past.ids.known(now_us)) + over.count()
    }
}

impl EndedHistory {
    /// Bytes that it takes, including this struct.
    fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.ids.heap_bytes() + spilled_bytes(&self.given)
    }
}

/// Bytes on the heap of a list that has room for one without.
fn spilled_bytes<T>(list: &SmallVec<[T; 1]>) -> usize {
    if list.spilled() {
        list.capacity() * size_of::<T>()
    } else {
        0
    }
}
