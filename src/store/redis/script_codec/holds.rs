//! Packs a call of the script for ids and holds, and parses its reply. `script/holds.lua` describes both layouts.

use smallvec::SmallVec;
use xxhash_rust::xxh3::Xxh3;

use super::{
    NUMBER, byte, pack_limits, pack_number, parse_answer, parse_number, parse_readings, short,
};
use super::{PLANS_END, misfit, parse_refusal};
use crate::StoreError;
use crate::redis::batcher::call::{Call, CallPlan, Group, HoldAnswer, HoldAsk, ScriptRequest};
use tollgate_core::algorithm::holds::{
    EndedHolds, HoldCall, HoldEvent, HoldState, HoldVerdict, IfUnknown, KeyView, KnownCall,
    KnownId, LeaseCall, LeaseEvent, LeaseVerdict, LostReason, NoteFigures, SettleOutcome,
    Settlement, Slots,
};
use tollgate_core::algorithm::{Algorithm, GivenBack, Mode, RELEASES_MAX};
use tollgate_core::plan::{Limit, Plan};

/// Bytes of a length of time in the terms of a plan, of a day at most, and of two windows.
const TIME: usize = 5;
const WINDOWS: usize = 6;
/// Bytes of `max_ids`.
const IDS: usize = 3;
/// The cost of an id that was settled and never reserved.
const NO_COST: u64 = (1 << 53) - 1;
/// The index of the limits of a plan that has none.
const NO_LIMITS: u8 = u8::MAX;

/// Packs a call into the script's one argument. Errors: as for [`super::pack_call`].
pub(in crate::redis) fn pack_call(call: &Call) -> Result<Vec<u8>, StoreError> {
    let mut packed = Vec::with_capacity(128 * call.plans.len() + 64 * call.groups.len());
    packed.extend([0; PLANS_END]);
    let limited = || call.plans.iter().filter(|plan| !plan.order.is_empty());
    packed.push(byte(limited().count(), "plans")?);
    limited().try_for_each(|plan| pack_limits(&mut packed, plan, call.store_time_us))?;
    let plans_end =
        u32::try_from(packed.len()).map_err(|_| misfit(packed.len(), "bytes of plans"))?;
    packed[..PLANS_END].copy_from_slice(&plans_end.to_le_bytes());
    let states = call.groups.iter().filter(|group| group.has_packed).count();
    packed.extend([
        byte(call.groups.len(), "names")?,
        byte(states + call.groups.len(), "packed states")?,
        byte(call.plans.len(), "plans")?,
    ]);
    let mut before = 0;
    for plan in &call.plans {
        let index = if plan.order.is_empty() {
            NO_LIMITS
        } else {
            before += 1;
            byte(before - 1, "plans")?
        };
        pack_terms(&mut packed, plan, index)?;
    }
    let mut groups = call.groups.iter();
    groups.try_for_each(|group| pack_group(&mut packed, group))?;
    Ok(packed)
}

fn pack_terms(
    packed: &mut Vec<u8>,
    CallPlan { plan, .. }: &CallPlan,
    index: u8,
) -> Result<(), StoreError> {
    let limits = plan.limits();
    let buckets = limits.iter().filter(|limit| is_bucket(limit)).count();
    packed.push(byte(plan.name.len(), "bytes of a name")?);
    packed.extend_from_slice(plan.name.as_bytes());
    packed.extend(likeness(plan).to_le_bytes());
    packed.push(u8::from(plan.releases_holds()) + 2 * u8::from(plan.concurrency().is_some()));
    packed.push(byte(buckets, "buckets")?);
    let windows = limits.iter().map(|limit| 2 * limit.window_us());
    pack_number::<TIME>(packed, plan.holds.remember_us())?;
    pack_number::<TIME>(packed, plan.holds.max_ttl_us())?;
    pack_number::<WINDOWS>(packed, windows.max().unwrap_or(0))?;
    pack_number::<IDS>(packed, plan.holds.max_ids.into())?;
    let slots = plan.concurrency().map_or(0, |slots| slots.quota());
    for count in [plan.holds.max_open, slots] {
        pack_number::<2>(packed, count.into())?;
    }
    packed.extend([u8::from(plan.shadow), index]);
    Ok(())
}

/// What is equal while a hold may give units back: the fingerprints of the limits, and of buckets the time of a unit.
fn likeness(plan: &Plan) -> u64 {
    let mut hasher = Xxh3::new();
    for limit in plan.limits() {
        let unit_us = if is_bucket(limit) {
            limit.emission_us()
        } else {
            0
        };
        hasher.update(&limit.fingerprint().bytes());
        hasher.update(&unit_us.to_le_bytes());
    }
    hasher.digest()
}

fn is_bucket(limit: &Limit) -> bool {
    matches!(limit.algorithm(), Algorithm::TokenBucket { .. })
}

fn pack_group(packed: &mut Vec<u8>, group: &Group) -> Result<(), StoreError> {
    packed.extend(short(group.requests.len(), "requests for a name")?);
    packed.push(u8::from(group.has_packed));
    packed.push(byte(group.log_name_count(), "logs of a name")?);
    for request in &group.requests {
        let Some(hold) = &request.hold else { continue };
        let (call, number, lease) = numbers(hold.ask, request.cost);
        packed.extend([byte(request.plan_index, "plans")?, call]);
        pack_number::<NUMBER>(packed, number)?;
        pack_number::<NUMBER>(packed, lease)?;
        packed.push(byte(hold.id.len(), "bytes of an id")?);
        packed.extend_from_slice(hold.id.as_bytes());
    }
    Ok(())
}

/// The number of a call, its units, and its lease or flag; see `script/holds/calls.lua`.
fn numbers(ask: HoldAsk, cost: u64) -> (u8, u64, u64) {
    let call = match ask {
        HoldAsk::Call(call) => call,
        HoldAsk::Beside(Mode::Peek) => return (8, cost, 0),
        HoldAsk::Beside(Mode::Charge) => return (7, cost, 0),
        HoldAsk::Refund => return (9, cost, 0),
        HoldAsk::Figures => return (10, 0, 0),
        HoldAsk::Lease(call) => return lease_numbers(call),
    };
    match call {
        HoldCall::Reserve { cost, ttl_us } => (0, cost, ttl_us),
        HoldCall::Charge { cost } => (1, cost, 0),
        HoldCall::Record { cost } => (2, cost, 0),
        HoldCall::Settle { actual, if_unknown } => {
            let call = if actual.is_some() { 3 } else { 4 };
            let ignores = if_unknown == IfUnknown::Ignore;
            (call, actual.unwrap_or(0), u64::from(ignores))
        }
        HoldCall::Extend { ttl_us } => (5, 0, ttl_us),
        HoldCall::Peek { cost } => (6, cost, 0),
    }
}

fn lease_numbers(call: LeaseCall) -> (u8, u64, u64) {
    match call {
        LeaseCall::Take { ttl_us, is_new } => (11, u64::from(is_new), ttl_us),
        LeaseCall::Renew {
            expires_us,
            until_us,
        } => (12, expires_us, until_us),
        LeaseCall::End {
            expires_us,
            until_us,
        } => (13, expires_us, until_us),
    }
}

/// Parses the answers to a call's requests, in the order of [`Call::requests`]; `None` when the reply has another form.
pub(in crate::redis) fn parse_reply(
    reply: &[u8],
    call: &Call,
) -> Option<Vec<Result<HoldAnswer, StoreError>>> {
    let mut rest = reply;
    let mut answers = Vec::with_capacity(call.len());
    for request in call.requests() {
        answers.push(parse_one(
            &mut rest,
            request,
            &call.plans[request.plan_index],
        )?);
    }
    rest.is_empty().then_some(answers)
}

fn parse_one(
    rest: &mut &[u8],
    request: &ScriptRequest,
    plan: &CallPlan,
) -> Option<Result<HoldAnswer, StoreError>> {
    let letter = *rest.split_off_first()?;
    match letter {
        b'E' => return parse_refusal(rest).map(Err),
        b'F' => return parse_figures(rest).map(|figures| Ok(HoldAnswer::Figures(figures))),
        b'L' => {
            let mut verdict = parse_answer(rest, plan)?.ok()?;
            verdict.release_in_us = parse_number(rest)?;
            return Some(Ok(HoldAnswer::Verdict(verdict)));
        }
        b'G' => {
            let after = parse_answer(rest, plan)?.ok()?;
            let before = parse_readings(rest, plan)?;
            let given_back = GivenBack { before, after };
            return Some(Ok(HoldAnswer::GivenBack(Box::new(given_back))));
        }
        _ => {}
    }
    let ended = EndedHolds {
        expired: parse_count(rest)?,
        released: parse_count(rest)?,
        units: parse_number(rest)?,
    };
    if letter == b'B' {
        return Some(Ok(HoldAnswer::Later(ended)));
    }
    if letter == b'Y' {
        let event = parse_lease(rest)?;
        return Some(Ok(HoldAnswer::Lease(LeaseVerdict { event, ended })));
    }
    let event = parse_event(rest, letter, plan)?;
    let view = parse_view(rest, request, (plan, &event))?;
    Some(Ok(HoldAnswer::Hold(Box::new(HoldVerdict {
        event,
        view,
        ended,
    }))))
}

fn parse_event(rest: &mut &[u8], letter: u8, plan: &CallPlan) -> Option<HoldEvent> {
    let lease = |rest: &mut &[u8]| {
        let left_us = parse_number(rest)?;
        Some((left_us > 0).then_some(left_us))
    };
    Some(match letter {
        b'D' => HoldEvent::Decided {
            expires_in_us: lease(rest)?,
        },
        b'A' => HoldEvent::Repeated {
            expires_in_us: lease(rest)?,
        },
        b'C' => HoldEvent::Recorded,
        b'P' => HoldEvent::Peeked,
        b'S' => HoldEvent::Settled(parse_settlement(rest, plan)?),
        b'X' => HoldEvent::Extended {
            state: match rest.split_off_first()? {
                0 => HoldState::Open,
                1 => HoldState::Settled,
                2 => HoldState::Expired,
                3 => HoldState::Unknown,
                _ => return None,
            },
            expires_in_us: lease(rest)?,
        },
        b'K' => HoldEvent::Refused(parse_known(rest)?),
        _ => return None,
    })
}

fn parse_lease(rest: &mut &[u8]) -> Option<LeaseEvent> {
    let became = *rest.split_off_first()?;
    let expires_us = parse_number(rest)?;
    let expires_in_us = parse_number(rest)?;
    Some(match became {
        0 => LeaseEvent::Open {
            expires_us,
            expires_in_us,
        },
        1 => LeaseEvent::Ended,
        2 => LeaseEvent::Lost(LostReason::Expired),
        3 => LeaseEvent::Lost(LostReason::Settled),
        4 => LeaseEvent::Lost(LostReason::Moved),
        5 => LeaseEvent::Lost(LostReason::Forgotten),
        _ => return None,
    })
}

fn parse_settlement(rest: &mut &[u8], plan: &CallPlan) -> Option<Settlement> {
    let outcome = match rest.split_off_first()? {
        0 => SettleOutcome::Settled,
        1 => SettleOutcome::Repeated,
        2 => SettleOutcome::Expired,
        3 => SettleOutcome::Unknown,
        _ => return None,
    };
    let held = parse_number(rest)?;
    let actual = parse_number(rest)?;
    let excess = parse_number(rest)?;
    let mut returned = SmallVec::from_elem(0, plan.order.len());
    for index in &plan.order {
        returned[*index] = parse_number(rest)?;
    }
    Some(Settlement {
        outcome,
        held,
        actual,
        returned,
        excess,
    })
}

fn parse_known(rest: &mut &[u8]) -> Option<KnownId> {
    let call = match rest.split_off_first()? {
        0 => KnownCall::Reserve,
        1 => KnownCall::ShouldAllow,
        2 => KnownCall::Record,
        _ => return None,
    };
    let cost = parse_number(rest)?;
    let length = *rest.split_off_first()?;
    let name = rest.split_off(..usize::from(length))?;
    Some(KnownId {
        call,
        plan: std::str::from_utf8(name).ok()?.into(),
        cost: (cost != NO_COST).then_some(cost),
    })
}

fn parse_view(
    rest: &mut &[u8],
    request: &ScriptRequest,
    (plan, event): (&CallPlan, &HoldEvent),
) -> Option<KeyView> {
    let mut verdict = parse_answer(rest, plan)?.ok()?;
    verdict.release_in_us = parse_number(rest)?;
    let slots = match plan.plan.concurrency() {
        None => None,
        Some(_) => Some(Slots {
            open: u32::from(u16::from_le_bytes(rest.split_off(..2)?.try_into().ok()?)),
            wait_us: parse_number(rest)?,
            first_end_us: parse_number(rest)?,
            last_end_us: parse_number(rest)?,
        }),
    };
    let full_us = parse_number(rest)?;
    let is_full = (full_us > 0).then_some(full_us);
    let cost = match event {
        HoldEvent::Decided { .. } | HoldEvent::Peeked => request.cost,
        _ => 1,
    };
    Some(KeyView::told(
        plan.plan.limits(),
        cost,
        verdict,
        (slots, is_full),
    ))
}

fn parse_figures(rest: &mut &[u8]) -> Option<NoteFigures> {
    let open = usize::try_from(parse_count(rest)?).ok()?;
    let units = parse_number(rest)?;
    let first_us = parse_number(rest)?;
    let known_ids = usize::try_from(parse_count(rest)?).ok()?;
    let told = usize::from(*rest.split_off_first()?);
    if told > RELEASES_MAX {
        return None;
    }
    let mut slot_ends_us = SmallVec::new();
    for _ in 0..told {
        slot_ends_us.push(parse_number(rest)?);
    }
    Some(NoteFigures {
        open,
        units,
        first_end_us: (open > 0).then_some(first_us),
        known_ids,
        slot_ends_us,
    })
}

fn parse_count(rest: &mut &[u8]) -> Option<u64> {
    let bytes = rest.split_off(..4)?.try_into().ok()?;
    Some(u64::from(u32::from_le_bytes(bytes)))
}
