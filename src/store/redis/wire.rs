//! Requests and readings as the packed strings that the script takes and gives; `script/decide.lua` gives their layout.

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Mode, Reading, Verdict};
use crate::plan::Limit;
use crate::store::{Ask, StoreError};

/// Bytes of a number in a reading.
const NUMBER: usize = 7;
/// Bytes of a reading: three numbers.
const READING: usize = 3 * NUMBER;

/// One request: mode, cost, counts of keys and of limits, then each limit's shape, window, quota and burst.
pub(super) fn pack_ask(ask: &Ask, keys: usize) -> Vec<u8> {
    let limits = ask.plan.limits();
    let mut packed = Vec::with_capacity(8 + 26 * limits.len());
    packed.push(u8::from(ask.mode == Mode::Charge));
    // A cost fits its plan's capacities, which are below 2^40.
    packed.extend_from_slice(&ask.cost.units().to_le_bytes()[..5]);
    // A plan has at most eight limits, and a key at most for each of them and one for all.
    packed.push(keys as u8);
    packed.push(limits.len() as u8);
    for limit in limits {
        packed.extend_from_slice(&limit.shape().bytes());
        for number in [limit.window_us(), limit.quota(), limit.capacity()] {
            packed.extend_from_slice(&number.to_le_bytes()[..NUMBER]);
        }
    }
    packed
}

/// The answers to `asks`, in their order; `None` when the reply has another shape.
pub(super) fn parse_reply(reply: &[u8], asks: &[Ask]) -> Option<Vec<Result<Verdict, StoreError>>> {
    let mut rest = reply;
    let answers: Option<Vec<_>> = asks.iter().map(|ask| parse_answer(&mut rest, ask.plan.limits())).collect();
    answers.filter(|_| rest.is_empty())
}

fn parse_answer(rest: &mut &[u8], limits: &[Limit]) -> Option<Result<Verdict, StoreError>> {
    let fits = match rest.split_off_first()? {
        b'1' => true,
        b'0' => false,
        b'E' => return parse_refusal(rest).map(Err),
        _ => return None,
    };
    let readings: Option<SmallVec<[Reading; 2]>> = limits.iter().map(|limit| parse_reading(rest, limit)).collect();
    Some(Ok(Verdict { fits, readings: readings? }))
}

fn parse_refusal(rest: &mut &[u8]) -> Option<StoreError> {
    let length = u16::from_le_bytes(rest.split_off(..2)?.try_into().ok()?);
    let text = rest.split_off(..usize::from(length))?;
    Some(StoreError::Refused(String::from_utf8_lossy(text).into_owned()))
}

fn parse_reading(rest: &mut &[u8], limit: &Limit) -> Option<Reading> {
    let bytes = rest.split_off(..READING)?;
    let number = |index: usize| {
        let mut padded = [0; 8];
        padded[..NUMBER].copy_from_slice(&bytes[index * NUMBER..][..NUMBER]);
        u64::from_le_bytes(padded)
    };
    Some(match limit.algorithm() {
        Algorithm::FixedWindow { .. } => Reading::Window { count: number(0), ends_in_us: number(1) },
        Algorithm::TokenBucket { .. } => Reading::Bucket { backlog_us: number(0) },
        Algorithm::SlidingCounter => {
            let (current, previous, elapsed_us) = (number(0), number(1), number(2));
            // What the derivation of an answer relies on.
            let sound = elapsed_us < limit.window_us() && current.max(previous).checked_mul(limit.window_us()).is_some();
            return sound.then_some(Reading::Counter { current, previous, elapsed_us });
        }
        Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => {
            Reading::Log { used: number(0), frees_in_us: number(1), fresh_in_us: number(2) }
        }
    })
}
