//! Calls and readings as the packed strings that the script takes and gives; `script/request.lua` gives their layout.

use smallvec::SmallVec;

use super::call::{Call, Group};
use crate::algorithm::{Algorithm, Mode, Reading, Verdict};
use crate::plan::Limit;
use crate::store::StoreError;

/// Bytes of a number in a reading, and of a limit's numbers.
const NUMBER: usize = 7;
/// Bytes of a request: plan, mode, cost.
const REQUEST: usize = 7;

/// A call as the script's one packed argument. Counts are within their bytes by the bounds of calls and plans; a cost fits
/// its plan's capacities, which are below 2^40, and so is a refund's.
pub(super) fn pack_call<T>(call: &Call<T>) -> Vec<u8> {
    let mut packed = Vec::with_capacity(64 * call.plans.len() + 16 * call.groups.len());
    packed.push(call.plans.len() as u8);
    for plan in &call.plans {
        packed.push(plan.limits().len() as u8);
        plan.limits().iter().for_each(|limit| pack_limit(&mut packed, limit));
    }
    packed.push(call.groups.len() as u8);
    packed.push(call.groups.iter().filter(|group| group.has_packed).count() as u8);
    for alike in call.groups.chunk_by(|group, next| group.look().is_some() && group.look() == next.look()) {
        // There are at most as many as a call has names.
        pack_group(&mut packed, &alike[0], alike[0].is_alike(&call.plans), alike.len() as u8);
    }
    packed
}

fn pack_limit(packed: &mut Vec<u8>, limit: &Limit) {
    let precision = match limit.algorithm() {
        Algorithm::SlidingWindow { precision } => precision,
        _ => 0,
    };
    let shape = limit.shape().bytes();
    packed.extend([limit.kind(), precision, shape.len() as u8]);
    packed.extend_from_slice(&shape);
    for number in [limit.window_us(), limit.quota(), limit.capacity()] {
        packed.extend_from_slice(&number.to_le_bytes()[..NUMBER]);
    }
}

/// A group, and how many in a row look just so: of one plan, they have logs and packed states alike.
fn pack_group<T>(packed: &mut Vec<u8>, group: &Group<T>, alike: bool, repeats: u8) {
    packed.reserve(6 + REQUEST * group.members.len());
    packed.extend((group.members.len() as u16).to_le_bytes());
    packed.extend([u8::from(group.has_packed), group.logs.len() as u8, u8::from(alike), repeats]);
    for member in &group.members {
        packed.extend([member.plan, code_of(member.mode)]);
        packed.extend_from_slice(&member.cost.to_le_bytes()[..5]);
    }
}

fn code_of(mode: Mode) -> u8 {
    match mode {
        Mode::Peek => 0,
        Mode::Charge => 1,
        Mode::Refund => 2,
    }
}

/// The answers to a call's requests, group by group; `None` when the reply has another shape.
pub(super) fn parse_reply<T>(reply: &[u8], call: &Call<T>) -> Option<Vec<Result<Verdict, StoreError>>> {
    let mut rest = reply;
    let members = call.groups.iter().flat_map(|group| &group.members);
    let limits = members.map(|member| (call.plans[usize::from(member.plan)].limits(), member.mode));
    let answers: Option<Vec<_>> = limits.map(|(limits, mode)| parse_answer(&mut rest, limits, mode)).collect();
    answers.filter(|_| rest.is_empty())
}

fn parse_answer(rest: &mut &[u8], limits: &[Limit], mode: Mode) -> Option<Result<Verdict, StoreError>> {
    let fits = match rest.split_off_first()? {
        b'1' => true,
        b'0' => false,
        b'E' => return parse_refusal(rest).map(Err),
        _ => return None,
    };
    let mut read = || limits.iter().map(|limit| parse_reading(rest, limit)).collect::<Option<SmallVec<[Reading; 2]>>>();
    let mut readings = read()?;
    if mode == Mode::Refund {
        readings.extend(read()?);
    }
    Some(Ok(Verdict { fits, readings }))
}

fn parse_refusal(rest: &mut &[u8]) -> Option<StoreError> {
    let length = u16::from_le_bytes(rest.split_off(..2)?.try_into().ok()?);
    let text = rest.split_off(..usize::from(length))?;
    Some(StoreError::Refused(String::from_utf8_lossy(text).into_owned()))
}

fn parse_reading(rest: &mut &[u8], limit: &Limit) -> Option<Reading> {
    let mut number = || {
        let mut padded = [0; 8];
        padded[..NUMBER].copy_from_slice(rest.split_off(..NUMBER)?);
        Some(u64::from_le_bytes(padded))
    };
    Some(match limit.algorithm() {
        Algorithm::FixedWindow { .. } => Reading::Window { count: number()?, ends_in_us: number()? },
        Algorithm::TokenBucket { .. } => Reading::Bucket { backlog_us: number()? },
        Algorithm::SlidingCounter => {
            let (current, previous, elapsed_us) = (number()?, number()?, number()?);
            // What the derivation of an answer relies on.
            let sound = elapsed_us < limit.window_us() && current.max(previous).checked_mul(limit.window_us()).is_some();
            return sound.then_some(Reading::Counter { current, previous, elapsed_us });
        }
        Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => {
            Reading::Log { used: number()?, frees_in_us: number()?, fresh_in_us: number()? }
        }
    })
}

#[cfg(test)]
mod fuzz;
