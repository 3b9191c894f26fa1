//! What a hold gives back to each limit: units of its own charge, at the place where that was. docs/holds.md has a table of it by
//! algorithm.
//!
//! A bucket drains, so what it owes for one charge is gone after a while. `h` is when the bucket would have been full just after the
//! charge. What others gave back since brought that nearer, and so is taken from it. The least of the units, of what `h` then leaves,
//! and of what the bucket owes at all is given back. Without that sum, two holds that are open at once would free too much.

use super::Notes;
use super::packed::{ChargedBucket, Hold};
use crate::algorithm::State;
use crate::plan::{Algorithm, Limit};

/// Units given back to each limit, in their order.
pub(super) type Returned = smallvec::SmallVec<[u64; 2]>;

/// Gives back units of a hold. Nothing is given back where the limits were edited since: one more or fewer, or another algorithm,
/// window, anchor, precision or, of a bucket, time of a unit.
pub(super) fn give_back(
    limits: &[Limit],
    (states, notes): (&mut [State], &mut Notes),
    hold: &Hold,
    now_us: u64,
    units: u64,
) -> Returned {
    if units == 0 || !are_alike(limits, hold.plan.limits()) {
        return limits.iter().map(|_| 0).collect();
    }
    let mut buckets = hold.buckets.iter();
    let mut returned = Returned::new();
    for (limit, state) in limits.iter().zip(states) {
        let charged = match limit.algorithm() {
            Algorithm::TokenBucket { .. } => buckets.next().copied(),
            _ => None,
        };
        returned.push(match charged {
            Some(charged) => give_back_to_bucket((limit, state), notes, charged, now_us, units),
            None => state.give_back(limit, now_us, units, hold.at_us),
        });
    }
    returned
}

/// What the charge left in each bucket, in the order of the limits.
pub(super) fn charged_buckets<'a>(
    limits: &'a [Limit],
    states: &'a [State],
    notes: &Notes,
) -> impl Iterator<Item = ChargedBucket> {
    limits.iter().zip(states).filter_map(|pair| match pair {
        (limit, State::Bucket(bucket)) => Some(ChargedBucket {
            full_at_us: bucket.tat_us,
            given_us: notes.given_us(limit.fingerprint()),
        }),
        _ => None,
    })
}

fn give_back_to_bucket(
    (limit, state): (&Limit, &mut State),
    notes: &mut Notes,
    charged: ChargedBucket,
    now_us: u64,
    units: u64,
) -> u64 {
    let State::Bucket(bucket) = state else {
        return 0;
    };
    let given_us = notes.given_us(limit.fingerprint());
    let given_since_us = given_us.saturating_sub(charged.given_us);
    let left_us = charged
        .full_at_us
        .saturating_sub(given_since_us)
        .saturating_sub(now_us);
    let (units, given_us) = bucket.settle(limit, now_us, units, left_us);
    if given_us > 0 {
        notes.gave(limit.fingerprint(), given_us);
    }
    units
}

fn are_alike(limits: &[Limit], before: &[Limit]) -> bool {
    let unit_us = |limit: &Limit| match limit.algorithm() {
        Algorithm::TokenBucket { .. } => limit.emission_us(),
        _ => 0,
    };
    limits.len() == before.len()
        && limits.iter().zip(before).all(|(limit, before)| {
            limit.fingerprint() == before.fingerprint() && unit_us(limit) == unit_us(before)
        })
}
