//! Packs a call into the script's argument, and parses the script's reply. `script/request.lua` describes both layouts.

pub(super) mod holds;

use std::fmt::Display;

use smallvec::SmallVec;

use super::batcher::call::{Call, CallPlan, Group, Purpose, ScriptRequest};
use crate::StoreError;
use tollgate_core::algorithm::{Algorithm, BlockReading, Mode, Reading, UNITS_MAX, Verdict};
use tollgate_core::plan::{BLOCK_MAX, Limit};

/// Bytes of a number in a reading, and of a limit's numbers.
const NUMBER: usize = 7;
/// The top bit of the first number of a bucket's reading. When it is set, the emission interval follows, because it differs
/// from the limit's.
const OTHER_RATE: u64 = 1 << (8 * NUMBER - 1);
/// Added to the number of a plan's limits, where some have blocks.
const WITH_BLOCKS: u8 = 128;
/// Bytes of a block's length in milliseconds.
const BLOCK_LENGTH: usize = 4;
/// The top bit of what is told of a block: the request began it.
const BEGINS: u64 = 1 << (8 * NUMBER - 1);
/// Bytes of a cost.
const COST: usize = 5;
/// Bytes of a request: plan, mode, cost.
const REQUEST: usize = 2 + COST;
/// Bytes of a request of a joint decision, without instants.
const JOINT_REQUEST: usize = 5 + COST;
/// A request of a joint decision: which decision, and which of its requests; its group, the place of its reply, and itself.
type JointPart<'a> = ((u16, u16), usize, usize, &'a ScriptRequest);
/// The value of `form` for the group that stands for all joint decisions of a call, as in `script/words.lua`.
const JOINT: u8 = 2;
/// Bytes of the number that gives the end of the plans in a packed call.
const PLANS_END: usize = 4;

/// Packs a call into the script's one argument.
///
/// Errors: a number does not fit its bytes. Calls, plans and costs are bounded so that every number fits, so the error is a
/// defect of this program. The call is then not sent, since the script would read other numbers.
pub(super) fn pack_call(call: &Call) -> Result<Vec<u8>, StoreError> {
    let mut packed = Vec::with_capacity(64 * call.plans.len() + 16 * call.groups.len());
    packed.extend([0; PLANS_END]);
    packed.push(byte(call.plans.len(), "plans")?);
    let mut plans = call.plans.iter();
    plans.try_for_each(|plan| pack_limits(&mut packed, plan, call.store_time_us))?;
    let plans_end =
        u32::try_from(packed.len()).map_err(|_| misfit(packed.len(), "bytes of plans"))?;
    packed[..PLANS_END].copy_from_slice(&plans_end.to_le_bytes());
    // Those of joint decisions are behind all others.
    let alone = call.groups.iter().take_while(|group| !group.is_joint());
    let (alone, joint) = call.groups.split_at(alone.count());
    let groups = alone.len() + usize::from(!joint.is_empty());
    packed.push(byte(groups, "names")?);
    packed.push(byte(
        call.groups.iter().filter(|group| group.has_packed).count(),
        "packed states",
    )?);
    let are_equal = |group: &Group, next: &Group| {
        group.single_terms().is_some() && group.single_terms() == next.single_terms()
    };
    for equal in alone.chunk_by(are_equal) {
        pack_group(&mut packed, &equal[0], equal.len())?;
    }
    if !joint.is_empty() {
        pack_joint_decisions(&mut packed, joint, call)?;
    }
    Ok(packed)
}

/// Packs the limits of a plan.
fn pack_limits(
    packed: &mut Vec<u8>,
    plan: &CallPlan,
    store_time_us: Option<u64>,
) -> Result<(), StoreError> {
    let has_blocks = plan.plan.has_blocks();
    let mark = if has_blocks { WITH_BLOCKS } else { 0 };
    packed.push(mark | byte(plan.order.len(), "limits of a plan")?);
    plan.ordered()
        .try_for_each(|limit| pack_limit(packed, limit, store_time_us))?;
    if has_blocks {
        plan.ordered()
            .try_for_each(|limit| pack_number::<BLOCK_LENGTH>(packed, limit.block_us() / 1_000))?;
    }
    Ok(())
}

/// Packs joint decisions, whose requests are in these groups, as one group.
fn pack_joint_decisions(
    packed: &mut Vec<u8>,
    groups: &[Group],
    call: &Call,
) -> Result<(), StoreError> {
    let has_logs = groups.iter().any(|group| group.log_name_count() > 0);
    packed.extend([1, 0, 0, u8::from(has_logs), JOINT, 1]);
    let states = groups.iter().filter(|group| group.has_packed).count();
    packed.push(byte(groups.len(), "names")?);
    packed.push(byte(states, "packed states")?);
    packed.extend(call.joint_decisions.to_le_bytes());
    if has_logs {
        for group in groups {
            packed.push(byte(group.log_name_count(), "logs of a name")?);
        }
    }
    // In the order of the decisions, and of their requests; each with its group and the place of its reply.
    let requests = groups.iter().enumerate().flat_map(|(index, group)| {
        let requests = group.requests.iter();
        requests.map(move |request| (index, request))
    });
    let placed = requests.enumerate();
    let mut parts: Vec<JointPart<'_>> = placed
        .filter_map(|(place, (group, request))| {
            let joint = request.joint.as_ref()?;
            let order = (joint.decision, joint.request);
            Some((order, group, place, request))
        })
        .collect();
    parts.sort_unstable_by_key(|(order, ..)| *order);
    packed.reserve(4 * usize::from(call.joint_decisions) + JOINT_REQUEST * parts.len());
    for requests in parts.chunk_by(|((decision, _), ..), ((next, _), ..)| decision == next) {
        let is_charge = |request: &ScriptRequest| request.mode == Mode::Charge;
        let charge = requests.iter().find(|(.., request)| is_charge(request));
        let mode = charge
            .or(requests.first())
            .map_or(0, |lead| joint_mode(lead.3));
        packed.extend([mode, byte(requests.len(), "joint requests")?]);
        for (index, (_, group, place, request)) in requests.iter().enumerate() {
            packed.push(byte(*group, "names")?);
            packed.push(byte(request.plan_index, "plans")?);
            let joint = request.joint.as_ref();
            let is_peek = joint.is_some_and(|joint| joint.takes_nothing);
            let is_repeated = requests[..index]
                .iter()
                .any(|(_, other, ..)| other == group);
            let flags = [request.plan.shadow, is_peek, is_repeated];
            packed.push(
                (0..)
                    .zip(flags)
                    .map(|(bit, flag)| u8::from(flag) << bit)
                    .sum(),
            );
            packed.extend(short(*place, "requests")?);
            pack_number::<COST>(packed, request.cost)?;
            if let Some(Purpose::Undo(instants_us)) = purpose(request) {
                for index in &call.plans[request.plan_index].order {
                    let instant_us = instants_us.get(*index).copied().unwrap_or(0);
                    pack_number::<NUMBER>(packed, instant_us)?;
                }
            }
        }
    }
    Ok(())
}

fn purpose(request: &ScriptRequest) -> Option<&Purpose> {
    request.joint.as_ref().map(|joint| &joint.purpose)
}

/// What is asked of a joint decision, of which this is a request.
fn joint_mode(request: &ScriptRequest) -> u8 {
    match purpose(request) {
        Some(Purpose::Part) if request.mode == Mode::Charge => 2,
        Some(Purpose::Undo(_)) => 3,
        _ => mode_number(request.mode),
    }
}

fn mode_number(mode: Mode) -> u8 {
    match mode {
        Mode::Peek => 0,
        Mode::Charge => 1,
    }
}

/// Packs a limit. A calendar's windows are those around the store's time, if it is known, else those that were looked at last.
fn pack_limit(
    packed: &mut Vec<u8>,
    limit: &Limit,
    store_time_us: Option<u64>,
) -> Result<(), StoreError> {
    let edges = limit.calendar().map(|calendar| {
        store_time_us.map_or_else(
            || calendar.latest_edges(),
            |now_us| calendar.edges_at(now_us),
        )
    });
    let precision = match limit.algorithm() {
        Algorithm::SlidingWindow { precision } => precision,
        _ => u8::from(edges.is_some()),
    };
    let prefix = record_prefix(limit)?;
    packed.extend([
        limit.record_kind().number(),
        precision,
        byte(prefix.len(), "bytes of a prefix")?,
    ]);
    packed.extend_from_slice(&prefix);
    let window_us = edges.map_or_else(|| limit.window_us(), |edges| edges.window_us());
    let numbers = [window_us, limit.quota(), limit.capacity()];
    let starts = edges.map(|edges| [edges.start_us, edges.previous_us, edges.earlier_us]);
    numbers
        .into_iter()
        .chain(starts.into_iter().flatten())
        .try_for_each(|number| pack_number::<NUMBER>(packed, number))
}

/// The bytes that a record of this limit begins with: the fingerprint. For a `token_bucket` the quota follows: its length, then
/// as few bytes as it needs. So a bucket's record is known by its rate, too.
fn record_prefix(limit: &Limit) -> Result<SmallVec<[u8; 12]>, StoreError> {
    let mut prefix = SmallVec::from_slice(&limit.fingerprint().bytes());
    if let Algorithm::TokenBucket { .. } = limit.algorithm() {
        let quota = limit.quota().to_le_bytes();
        let width = quota
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(1, |last| last + 1);
        prefix.push(byte(width, "bytes of a quota")?);
        prefix.extend_from_slice(&quota[..width]);
    }
    Ok(prefix)
}

/// Packs one group for `repeats` groups in a row that pack to the same bytes. They differ only in their names, which are keys of
/// the call.
fn pack_group(packed: &mut Vec<u8>, group: &Group, repeats: usize) -> Result<(), StoreError> {
    let requests = group.requests.len();
    packed.reserve(6 + REQUEST * requests);
    packed.extend(short(requests, "requests for a name")?);
    let logs = byte(group.log_name_count(), "logs of a name")?;
    packed.extend([
        u8::from(group.has_packed),
        logs,
        u8::from(group.is_uniform),
        byte(repeats, "equal groups")?,
    ]);
    for request in &group.requests {
        packed.extend([
            byte(request.plan_index, "plans")?,
            mode_number(request.mode),
        ]);
        pack_number::<COST>(packed, request.cost)?;
    }
    Ok(())
}

/// Packs the lowest `N` bytes of a number. Errors: another byte is not zero.
fn pack_number<const N: usize>(packed: &mut Vec<u8>, number: u64) -> Result<(), StoreError> {
    let bytes = number.to_le_bytes();
    let (low, high) = bytes.split_at(N);
    packed.extend_from_slice(low);
    if high.iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err(misfit(number, "units or microseconds"))
    }
}

fn byte(count: usize, what: &str) -> Result<u8, StoreError> {
    u8::try_from(count).map_err(|_| misfit(count, what))
}

fn short(count: usize, what: &str) -> Result<[u8; 2], StoreError> {
    let number = u16::try_from(count).map_err(|_| misfit(count, what))?;
    Ok(number.to_le_bytes())
}

#[cold]
fn misfit(count: impl Display, what: &str) -> StoreError {
    StoreError::Refused(format!(
        "{count} {what} are more than a script call can hold"
    ))
}

/// The error for a reply that cannot be parsed, or that has no answer to the request.
pub(super) fn unknown_form() -> StoreError {
    StoreError::InvalidReply("the script's reply has an unknown form".to_owned())
}

/// Parses the answers to a call's requests, in the order of [`Call::requests`]; `None` when the reply has another form.
pub(super) fn parse_reply(reply: &[u8], call: &Call) -> Option<Vec<Result<Verdict, StoreError>>> {
    let mut rest = reply;
    // Collecting into an option would not reserve this capacity.
    let mut answers = Vec::with_capacity(call.len());
    for request in call.requests() {
        let plan = &call.plans[request.plan_index];
        answers.push(parse_answer(&mut rest, plan)?);
    }
    rest.is_empty().then_some(answers)
}

/// Splits the reply to a call that tells its instant: the answers, and the instant in microseconds since 1970, if it is there.
pub(super) fn split_instant(reply: &[u8]) -> (&[u8], Option<u64>) {
    let Some((answers, instant)) = reply.split_last_chunk::<NUMBER>() else {
        return (reply, None);
    };
    let mut padded = [0; 8];
    padded[..NUMBER].copy_from_slice(instant);
    (answers, Some(u64::from_le_bytes(padded)))
}

/// The places of the names that the node refused in a call by names; `None` when the reply has another form.
pub(super) fn parse_refused(reply: &[u8]) -> Option<Vec<usize>> {
    let (places, rest) = reply.strip_prefix(b"R")?.as_chunks::<2>();
    let places = places
        .iter()
        .map(|place| usize::from(u16::from_le_bytes(*place)))
        .collect();
    rest.is_empty().then_some(places)
}

/// The store's time, in microseconds, if the reply tells that it lies outside of a calendar's window in the call: nothing was
/// decided then. `None` when the reply has another form.
pub(super) fn parse_store_time(reply: &[u8]) -> Option<u64> {
    let time: [u8; NUMBER] = reply.strip_prefix(b"T")?.try_into().ok()?;
    let [b0, b1, b2, b3, b4, b5, b6] = time;
    Some(u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, 0]))
}

fn parse_answer(rest: &mut &[u8], plan: &CallPlan) -> Option<Result<Verdict, StoreError>> {
    let (fits, tells_blocks) = match rest.split_off_first()? {
        b'1' => (true, false),
        b'0' => (false, false),
        b'3' => (true, true),
        b'2' => (false, true),
        b'E' => return parse_refusal(rest).map(Err),
        _ => return None,
    };
    let mut verdict = Verdict {
        fits,
        readings: parse_readings(rest, plan)?,
        blocks: None,
        release_in_us: 0,
    };
    if tells_blocks {
        verdict.tell_blocks(parse_blocks(rest, plan)?);
    }
    Some(Ok(verdict))
}

/// A reading of each limit. The script sends them in its own order of limits; the result is in the plan's order.
#[inline(always)]
fn parse_readings(rest: &mut &[u8], plan: &CallPlan) -> Option<SmallVec<[Reading; 2]>> {
    let limits = plan.plan.limits();
    let unread = Reading::Window {
        count: 0,
        ends_in_us: 0,
    };
    let mut readings = SmallVec::from_elem(unread, limits.len());
    for index in &plan.order {
        readings[*index] = parse_reading(rest, &limits[*index])?;
    }
    Some(readings)
}

/// What is told of the blocks, in the plan's order of limits. A block never lasts for longer than one may.
#[cold]
fn parse_blocks(rest: &mut &[u8], plan: &CallPlan) -> Option<SmallVec<[BlockReading; 2]>> {
    let mut blocks = SmallVec::from_elem(BlockReading::default(), plan.order.len());
    for index in &plan.order {
        let told = parse_number(rest)?;
        let left_us = told & !BEGINS;
        if u128::from(left_us) > BLOCK_MAX.as_micros() {
            return None;
        }
        blocks[*index] = BlockReading {
            left_us,
            begins: told & BEGINS != 0,
        };
    }
    Some(blocks)
}

fn parse_number(rest: &mut &[u8]) -> Option<u64> {
    let mut padded = [0; 8];
    padded[..NUMBER].copy_from_slice(rest.split_off(..NUMBER)?);
    Some(u64::from_le_bytes(padded))
}

fn parse_refusal(rest: &mut &[u8]) -> Option<StoreError> {
    let length = u16::from_le_bytes(rest.split_off(..2)?.try_into().ok()?);
    let text = rest.split_off(..usize::from(length))?;
    Some(StoreError::Refused(
        String::from_utf8_lossy(text).into_owned(),
    ))
}

fn parse_reading(rest: &mut &[u8], limit: &Limit) -> Option<Reading> {
    let mut number = || parse_number(rest);
    Some(match limit.algorithm() {
        Algorithm::FixedWindow { .. } if limit.calendar().is_some() => Reading::Calendar {
            count: number()?,
            ends_in_us: number()?,
            window_us: number()?,
        },
        Algorithm::FixedWindow { .. } => Reading::Window {
            count: number()?,
            ends_in_us: number()?,
        },
        Algorithm::TokenBucket { .. } => {
            let told = number()?;
            let emission_us = if told & OTHER_RATE == 0 {
                limit.emission_us()
            } else {
                number()?
            };
            return (emission_us > 0).then_some(Reading::Bucket {
                backlog_us: told & !OTHER_RATE,
                emission_us,
            });
        }
        Algorithm::SlidingCounter => {
            let current = number()?;
            let previous = number()?;
            let elapsed_us = number()?;
            // The code that computes an answer from the reading relies on both, or would overflow.
            let sound = elapsed_us < limit.window_us() && current.max(previous) <= UNITS_MAX;
            return sound.then_some(Reading::Counter {
                current,
                previous,
                elapsed_us,
            });
        }
        Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => Reading::Log {
            used: number()?,
            frees_in_us: number()?,
            fresh_in_us: number()?,
        },
    })
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
