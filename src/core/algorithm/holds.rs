//! Holds: charges with an id and an end, and every other call that carries an id.
//!
//! A call first ends what has expired, and then looks for its id. An id that is known answers what it answered, and charges nothing. The
//! module is pure as all of `algorithm`: plan, states, blocks, notes of the key, time and call in, answer out. The notes are those of one
//! key under all plans of one `counts_as`.
//!
//! - A hold is open until it is settled or its lease ends: at `now >= expires` it has expired, whoever looked.
//! - An expired hold stays charged, or gives its units back as by a settle of 0, when a call under its own plan looks. Of several, in the
//!   order of (end, id).
//! - An open hold of a plan with a concurrency limit takes a slot, whatever its cost.
//! - What has happened is charged whole, though limits are passed, up to a bound of each algorithm.

mod answer;
mod call;
mod ended;
mod figures;
mod give_back;
mod lease;
mod notes;
mod packed;

use std::sync::Arc;

use smallvec::SmallVec;

use super::block::decide_beside;
use super::{Block, BlockReading, Mode, State, Verdict, blocks_at, test};
use crate::plan::{Limit, OPEN_MAX, Plan};
pub use call::{
    EndedHolds, HoldCall, HoldEvent, HoldState, HoldVerdict, IfUnknown, KeyView, KnownCall,
    KnownId, NoteFigures, SettleOutcome, Settlement, Slots,
};
use ended::{End, Ended};
use give_back::{Returned, charged_buckets, give_back};
pub use lease::{LeaseCall, LeaseEvent, LeaseVerdict, LostReason, lease};
pub use notes::Notes;
use notes::{HoldPlace, Known};
use packed::{Hold, NotedHold};

/// How long a reserve waits that finds only holds which wait for a call of their own plan, in microseconds.
const FULL_US: u64 = 1_000_000;

/// The id was known, and no hold is open.
const REPEATED: HoldEvent = HoldEvent::Repeated {
    expires_in_us: None,
};
/// It was decided, and nothing is held.
const NOT_HELD: HoldEvent = HoldEvent::Decided {
    expires_in_us: None,
};

/// What is kept of a key: one state and one block for each limit of the plan, and its notes.
pub struct HoldKey<'a> {
    /// States, in the order of the limits.
    pub states: &'a mut [State],
    /// Blocks, in the order of the limits.
    pub blocks: &'a mut [Block],
    /// Holds and ids under all plans of its `counts_as`.
    pub notes: &'a mut Notes,
}

/// Carries out a call at `now_us`. An empty id is none; only a record and a look may have none.
pub fn call(
    plan: &Arc<Plan>,
    key: HoldKey<'_>,
    now_us: u64,
    (id, call): (&str, HoldCall),
) -> HoldVerdict {
    let mut key_call = KeyCall::new(plan, key, now_us);
    if let Some(known) = key_call
        .find(id)
        .filter(|known| !is_same(known, plan, call, key_call.key.notes))
    {
        let known = key_call.key.notes.known_id(&known);
        return HoldVerdict {
            event: HoldEvent::Refused(known),
            view: key_call.peek(1),
            ended: EndedHolds::default(),
        };
    }
    let ended = key_call.end_due();
    let (event, view) = match call {
        HoldCall::Reserve { cost, ttl_us } => key_call.reserve(id, cost, ttl_us),
        HoldCall::Charge { cost } => key_call.charge(id, cost),
        HoldCall::Record { cost } => key_call.record(id, cost),
        HoldCall::Settle { actual, if_unknown } => {
            let settlement = key_call.settle(id, actual, if_unknown);
            (HoldEvent::Settled(settlement), key_call.peek(1))
        }
        HoldCall::Extend { ttl_us } => (key_call.extend(id, ttl_us), key_call.peek(1)),
        HoldCall::Peek { cost } => (HoldEvent::Peeked, key_call.peek(cost)),
    };
    HoldVerdict { event, view, ended }
}

/// Ends what has expired of the holds of this key, as a request without an id has to that would be denied.
pub fn end_holds(plan: &Arc<Plan>, key: HoldKey<'_>, now_us: u64) -> EndedHolds {
    let mut key_call = KeyCall::new(plan, key, now_us);
    key_call.end_due()
}

/// Whether a hold that was taken under this plan gives its units back to another call's.
fn gives_back_to(of_hold: &Plan, plan: &Plan) -> bool {
    of_hold.releases_holds() && of_hold.name == plan.name
}

/// Whether an id is known for this very call, plan and cost.
fn is_same(known: &Known<'_>, plan: &Plan, call: HoldCall, notes: &Notes) -> bool {
    let known = notes.known_id(known);
    let is_of = |of: KnownCall, cost: Option<u64>| {
        known.call == of && (cost.is_none() || known.cost.is_none() || known.cost == cost)
    };
    let is_same = match call {
        HoldCall::Reserve { cost, .. } => is_of(KnownCall::Reserve, Some(cost)),
        HoldCall::Charge { cost } => is_of(KnownCall::ShouldAllow, Some(cost)),
        HoldCall::Record { cost } => is_of(KnownCall::Record, Some(cost)),
        HoldCall::Settle { .. } | HoldCall::Extend { .. } => is_of(KnownCall::Reserve, None),
        HoldCall::Peek { .. } => true,
    };
    is_same && *known.plan == *plan.name
}

/// One call at one key.
struct KeyCall<'a> {
    plan: &'a Arc<Plan>,
    limits: &'a [Limit],
    key: HoldKey<'a>,
    now_us: u64,
    /// The limits, by their indices, of which this call began a block.
    begun: SmallVec<[usize; 1]>,
}

impl<'a> KeyCall<'a> {
    /// A call at `now_us`. Holds and ids that a clock which stepped back has left in the future are clamped.
    fn new(plan: &'a Arc<Plan>, key: HoldKey<'a>, now_us: u64) -> Self {
        key.notes.clamp(now_us);
        Self {
            plan,
            limits: plan.limits(),
            key,
            now_us,
            begun: SmallVec::new(),
        }
    }

    fn find(&self, id: &str) -> Option<Known<'_>> {
        if id.is_empty() {
            return None;
        }
        self.key.notes.find(id, self.plan, self.now_us)
    }

    fn end_due(&mut self) -> EndedHolds {
        let mut ended = EndedHolds::default();
        let now_us = self.now_us;
        let plan = self.plan;
        let may_end = |hold: &NotedHold<'_>| {
            !hold.plan.releases_holds()
                || gives_back_to(hold.plan, plan)
                || hold.known_until_us() <= now_us
        };
        for (id, hold) in self.key.notes.take_due(now_us, may_end) {
            ended.expired += 1;
            if gives_back_to(&hold.plan, plan) {
                let returned = self.give_back(&hold, hold.cost);
                let units = returned.iter().max().copied().unwrap_or(0);
                ended.released += u64::from(units > 0);
                ended.units += units;
            }
            let until_us = hold.expires_us + hold.plan.holds.remember_us();
            let end = End::Expired { held: hold.cost };
            self.remember(id, hold.plan, (end, until_us));
        }
        ended
    }

    fn reserve(&mut self, id: &str, cost: u64, ttl_us: u64) -> (HoldEvent, KeyView) {
        if let Some(known) = self.find(id) {
            let place = match known {
                Known::Open(place) => Some(place),
                Known::Ended(..) => None,
            };
            let hold = place.map(|place| self.key.notes.hold_at(place));
            let expires_in_us = hold.map(|hold| hold.expires_us - self.now_us);
            return (HoldEvent::Repeated { expires_in_us }, self.present());
        }
        let slots = self.slots();
        let has_slot = slots.is_none_or(|slots| slots.wait_us == 0);
        let full_for_us = self.full_for_us();
        let verdict = self.decide(cost, has_slot && full_for_us.is_none());
        if verdict.fits {
            let expires_us = self.now_us + ttl_us;
            let buckets = charged_buckets(self.limits, self.key.states, self.key.notes).collect();
            let hold = Hold {
                plan: self.plan.clone(),
                cost,
                at_us: self.now_us,
                expires_us,
                buckets,
            };
            self.key.notes.hold(id, &hold);
            let expires_in_us = Some(ttl_us);
            return (HoldEvent::Decided { expires_in_us }, self.allowed(verdict));
        }
        (NOT_HELD, self.denied(verdict, cost, full_for_us))
    }

    fn charge(&mut self, id: &str, cost: u64) -> (HoldEvent, KeyView) {
        if self.find(id).is_some() {
            return (REPEATED, self.present());
        }
        let verdict = self.decide(cost, true);
        if !verdict.fits {
            return (NOT_HELD, self.denied(verdict, cost, None));
        }
        self.remember_charge(id, KnownCall::ShouldAllow, cost);
        (NOT_HELD, self.allowed(verdict))
    }

    fn record(&mut self, id: &str, cost: u64) -> (HoldEvent, KeyView) {
        if self.find(id).is_some() {
            return (REPEATED, self.peek(1));
        }
        self.charge_beyond(cost);
        if !id.is_empty() {
            self.remember_charge(id, KnownCall::Record, cost);
        }
        (HoldEvent::Recorded, self.peek(1))
    }

    fn settle(&mut self, id: &str, actual: Option<u64>, if_unknown: IfUnknown) -> Settlement {
        let found = self.find(id).map(|known| match known {
            Known::Open(place) => Ok(place),
            Known::Ended(plan, end) => Err((plan.releases_holds(), end)),
        });
        match found {
            Some(Ok(place)) => self.settle_open((id, place), actual),
            Some(Err((_, End::Settled { held, actual }))) => {
                self.settlement(SettleOutcome::Repeated, (held.unwrap_or(0), actual), 0)
            }
            Some(Err((releases, End::Expired { held }))) => {
                self.settle_expired(id, (held, releases), actual, if_unknown)
            }
            // A charge by ShouldAllow or Record was refused before.
            None | Some(Err((_, End::Charged { .. }))) => {
                self.settle_unknown(id, actual, if_unknown)
            }
        }
    }

    fn settle_open(&mut self, (id, place): (&str, HoldPlace), actual: Option<u64>) -> Settlement {
        let hold = self.key.notes.take(place);
        let held = hold.cost;
        let actual = actual.unwrap_or(held);
        let returned = self.give_back(&hold, held.saturating_sub(actual));
        let excess = self.charge_beyond(actual.saturating_sub(held));
        let until_us = self.now_us + hold.plan.holds.remember_us();
        let end = End::Settled {
            held: Some(held),
            actual,
        };
        self.remember(id.as_bytes().into(), hold.plan, (end, until_us));
        Settlement {
            returned,
            ..self.settlement(SettleOutcome::Settled, (held, actual), excess)
        }
    }

    fn settle_expired(
        &mut self,
        id: &str,
        (held, releases): (u64, bool),
        actual: Option<u64>,
        if_unknown: IfUnknown,
    ) -> Settlement {
        let charged = if releases { 0 } else { held };
        if if_unknown == IfUnknown::Ignore {
            return self.settlement(SettleOutcome::Expired, (held, charged), 0);
        }
        let actual = actual.unwrap_or(held).max(charged);
        let excess = self.charge_beyond(actual - charged);
        self.remember_settled(id, Some(held), actual);
        self.settlement(SettleOutcome::Expired, (held, actual), excess)
    }

    fn settle_unknown(
        &mut self,
        id: &str,
        actual: Option<u64>,
        if_unknown: IfUnknown,
    ) -> Settlement {
        // Under a plan in shadow mode, nobody knows whether the reserve would have been denied.
        if if_unknown == IfUnknown::Ignore || self.plan.shadow {
            return self.settlement(SettleOutcome::Unknown, (0, 0), 0);
        }
        let actual = actual.unwrap_or(0);
        let excess = self.charge_beyond(actual);
        self.remember_settled(id, None, actual);
        self.settlement(SettleOutcome::Unknown, (0, actual), excess)
    }

    fn settlement(
        &self,
        outcome: SettleOutcome,
        (held, actual): (u64, u64),
        excess: u64,
    ) -> Settlement {
        Settlement {
            outcome,
            held,
            actual,
            returned: self.limits.iter().map(|_| 0).collect(),
            excess,
        }
    }

    fn extend(&mut self, id: &str, ttl_us: u64) -> HoldEvent {
        let now_us = self.now_us;
        let mut expires_in_us = None;
        let state = match self.find(id) {
            Some(Known::Open(place)) => {
                let expires_us = self.key.notes.extend(place, now_us + ttl_us);
                expires_in_us = Some(expires_us - now_us);
                HoldState::Open
            }
            Some(Known::Ended(_, End::Expired { .. })) => HoldState::Expired,
            Some(Known::Ended(_, End::Settled { .. })) => HoldState::Settled,
            None | Some(Known::Ended(_, End::Charged { .. })) => HoldState::Unknown,
        };
        HoldEvent::Extended {
            state,
            expires_in_us,
        }
    }

    fn decide(&mut self, cost: u64, others_fit: bool) -> Verdict {
        let key = (&mut *self.key.states, &mut *self.key.blocks);
        decide_beside(
            self.limits,
            key,
            self.now_us,
            (cost, Mode::Charge),
            others_fit,
        )
    }

    /// The standing of a request of this cost that was denied. That too many holds are open is told where nothing else denies.
    fn denied(&self, mut verdict: Verdict, cost: u64, full_for_us: Option<u64>) -> KeyView {
        let slots = self.slots();
        let release = self.key.notes.first_release_us(self.plan, self.now_us);
        verdict.release_in_us = release.unwrap_or(0);
        KeyView::told(self.limits, cost, verdict, (slots, full_for_us))
    }

    /// Where the key stands, for a call that is allowed.
    fn present(&self) -> KeyView {
        let mut verdict = test(self.limits, self.key.states, self.now_us, 0, Mode::Peek);
        verdict.fits = true;
        verdict.tell_blocks(self.blocks());
        self.allowed(verdict)
    }

    fn allowed(&self, verdict: Verdict) -> KeyView {
        KeyView::told(self.limits, 0, verdict, (self.slots(), None))
    }

    /// What a request of this cost would meet: a ShouldAllow or, under a concurrency limit, a reserve.
    fn peek(&self, cost: u64) -> KeyView {
        let mut verdict = test(self.limits, self.key.states, self.now_us, cost, Mode::Peek);
        let blocks = self.blocks();
        let slots = self.slots();
        let full_for_us = slots.and_then(|_| self.full_for_us());
        verdict.fits &= blocks.iter().all(|block| block.left_us == 0)
            && slots.is_none_or(|slots| slots.wait_us == 0)
            && full_for_us.is_none();
        verdict.tell_blocks(blocks);
        if verdict.fits {
            return self.allowed(verdict);
        }
        self.denied(verdict, cost, full_for_us)
    }

    fn blocks(&self) -> SmallVec<[BlockReading; 2]> {
        let mut told = blocks_at(self.limits, self.key.blocks, self.now_us);
        for index in &self.begun {
            told[*index].begins = true;
        }
        told
    }

    fn slots(&self) -> Option<Slots> {
        let quota = usize::try_from(self.plan.concurrency()?.quota()).unwrap_or(usize::MAX);
        let holds = self.key.notes.holds();
        let taken = holds.filter(|hold| hold.takes_slot() && hold.is_open(self.now_us));
        let mut ends: Vec<u64> = taken.map(|hold| hold.expires_us - self.now_us).collect();
        ends.sort_unstable();
        Some(Slots {
            open: u32::try_from(ends.len()).unwrap_or(u32::MAX),
            // With the end of that many leases, fewer than the quota are open.
            wait_us: ends.len().checked_sub(quota).map_or(0, |over| ends[over]),
            first_end_us: ends.first().copied().unwrap_or(0),
            last_end_us: ends.last().copied().unwrap_or(0),
        })
    }

    /// The time until a hold ends, where too many are open of this plan, or there are too many of all plans that count as this one.
    fn full_for_us(&self) -> Option<u64> {
        let notes = &self.key.notes;
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        if count(notes.count()) < self.plan.holds.max_open {
            return None;
        }
        let open = || notes.holds().filter(|hold| hold.is_open(self.now_us));
        let own = || open().filter(|hold| hold.plan.name == self.plan.name);
        let first_end_us = |hold: NotedHold<'_>| hold.expires_us - self.now_us;
        if count(own().count()) >= self.plan.holds.max_open {
            return own().map(first_end_us).min();
        }
        // Those of other plans that give back stay until a call of their plan.
        let is_full = count(notes.count()) >= OPEN_MAX;
        is_full.then(|| open().map(first_end_us).min().unwrap_or(FULL_US))
    }

    fn give_back(&mut self, hold: &Hold, units: u64) -> Returned {
        let key = (&mut *self.key.states, &mut *self.key.notes);
        give_back(self.limits, key, hold, self.now_us, units)
    }

    /// Charges what has happened to every rate limit. A limit that is left without a unit blocks the key, if it has a block. Returns
    /// the units, 0 if there is no rate limit.
    fn charge_beyond(&mut self, units: u64) -> u64 {
        if units == 0 || self.limits.is_empty() {
            return 0;
        }
        for (index, limit) in self.limits.iter().enumerate() {
            let state = &mut self.key.states[index];
            state.clamp(limit, self.now_us);
            state.charge_beyond(limit, self.now_us, units);
            let is_used_up = state.read(limit, self.now_us, 0).remaining(limit) == 0;
            let block = &mut self.key.blocks[index];
            if limit.block_us() > 0 && is_used_up && block.left_us(self.now_us) == 0 {
                *block = Block::begun(limit, self.now_us);
                self.begun.push(index);
            }
        }
        units
    }

    fn remember(&mut self, id: Box<[u8]>, plan: Arc<Plan>, (end, until_us): (End, u64)) {
        let ended = Ended {
            id,
            plan,
            end,
            until_us,
        };
        self.key.notes.remember(ended, self.now_us);
    }

    fn remember_now(&mut self, id: &str, end: End) {
        let until_us = self.now_us + self.plan.holds.remember_us();
        self.remember(id.as_bytes().into(), self.plan.clone(), (end, until_us));
    }

    fn remember_settled(&mut self, id: &str, held: Option<u64>, actual: u64) {
        self.remember_now(id, End::Settled { held, actual });
    }

    fn remember_charge(&mut self, id: &str, call: KnownCall, cost: u64) {
        self.remember_now(id, End::Charged { call, cost });
    }
}
