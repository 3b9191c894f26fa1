//! The account of the script: what a request may cost Redis, computed before it is sent, in one unit for all that a script does.
//!
//! Pure.

use std::time::Duration;

use super::{Group, ScriptRequest};
use tollgate_core::plan::{Plan, SharedLimits};

/// Maximum work of one call, in microseconds of Redis; see [`ScriptRequest::work`]. What does not fit waits for the next call. A full
/// call takes 0.5 to 1.2 times as long. One of searches takes up to 2.5 times as long, which is 3.2 ms. A joint decision of eight
/// requests under hundreds of limits of one `counts_as` is more than a full call, and is not split: 7 ms were seen. It also bounds the
/// logs of a name, whose number is one byte in the packed call.
pub(in crate::redis) const WORK_MAX: usize = 1_250;
/// Work of searching a log, for each time that the greatest quota of its plans may be halved. At worst, a decision needs two searches,
/// each of which reads as many elements and three more, and a charge trims what is gone: 85 us for 1,000 charges as uneven as can be, and
/// 80 for 8,000. Most logs need no search and take 5 us. So a log counts for less than half of its worst: with fewer logs in a call, each
/// would cost Redis more.
pub(in crate::redis) const SEARCH_STEP_WORK: usize = 3;
/// Minimum number of these steps. Records, settles beyond what was held, and overrides make a log longer than a quota of the config, up to
/// 2^17 units, which takes 100 us at worst. A full call has 32 logs.
pub(in crate::redis) const SEARCH_STEPS_MIN: u8 = 13;
/// Work of deciding under one limit, and of one of a `sliding_window`, which may read 64 runs.
pub(in crate::redis) const LIMIT_WORK: usize = 10;
const WINDOW_WORK: usize = 20;
/// Work of the block of a limit, besides that of its record.
const BLOCK_WORK: usize = 2;
/// Work of reading and writing one record of a state, and one of a `sliding_window`. The general way does it for all records,
/// once for each name, or for each request where logs are beside them.
const RECORD_WORK: usize = 3;
const RINGED_RECORD_WORK: usize = 22;
/// A request of a joint decision is evaluated twice, with each read and written by itself. A log is searched once.
const JOINT_WORK_FACTOR: usize = 2;
/// Searches of a joint decision count for a part of their work: a log is searched once. 60 logs of 1,000 charges, searched and trimmed,
/// take 2.5 ms at worst, and of 100,000 charges 3.4 ms.
const JOINT_SEARCH_DIVISOR: usize = 2;
/// Those of an undo count for more, since it also writes charges anew.
const UNDO_SEARCH_FACTOR: usize = 2;
/// A request of no more work than this, without logs, does not wait for work in flight.
const LIGHT_WORK: usize = 59;
/// Heavy requests wait while one part in this many of the deadline, or one full call if that is more, is in flight. Light
/// requests and joint decisions do not wait. Requests of all connections wait at Redis behind what is in flight.
const WORK_DEADLINE_DIVISOR: u32 = 10;

/// Maximum work in flight on one connection to a Redis that has `deadline` to answer: 2,500 with the default of 25 ms, two full calls.
pub(in crate::redis) fn work_in_flight_max(deadline: Duration) -> usize {
    usize::try_from((deadline / WORK_DEADLINE_DIVISOR).as_micros())
        .unwrap_or(usize::MAX)
        .max(WORK_MAX)
}

/// Work of deciding under these limits, besides searches.
#[inline]
fn limits_work(own: &SharedLimits) -> usize {
    usize::from(own.all - own.windows - own.logs) * LIMIT_WORK
        + usize::from(own.windows) * WINDOW_WORK
        + usize::from(own.blocks) * BLOCK_WORK
}

/// Work of searching a plan's logs. A log of this plan may have been charged by other plans with its `counts_as`.
#[inline]
fn searches_work(own: &SharedLimits, plan: &Plan) -> usize {
    let steps = own.log_halvings.max(plan.shared.log_halvings);
    usize::from(own.logs) * usize::from(steps.max(SEARCH_STEPS_MIN)) * SEARCH_STEP_WORK
}

/// Work of reading and writing all records of a state. None where it can only have those of the plan's own limits, without blocks.
#[inline]
pub(super) fn records_work(plan: &Plan) -> usize {
    let SharedLimits {
        all,
        windows,
        logs,
        blocks,
        log_halvings: _,
    } = plan.shared;
    if usize::from(all) == plan.limits().len() && blocks == 0 {
        0
    } else {
        let others = (all + blocks).saturating_sub(windows + logs);
        usize::from(others) * RECORD_WORK + usize::from(windows) * RINGED_RECORD_WORK
    }
}

impl ScriptRequest {
    /// Maximum time of Redis, in microseconds, that it takes, with those decided with it. Never above [`WORK_MAX`], so that it
    /// fits a call.
    #[inline]
    pub(in crate::redis) fn work(&self) -> usize {
        let plan = &self.plan;
        let own = &self.own_limits;
        let searches = searches_work(own, plan);
        let work = limits_work(own) + records_work(plan) + self.hold_work();
        if self.joint.is_none() {
            return (searches + work).min(WORK_MAX);
        }
        let others: usize = self.others.iter().map(Self::work).sum();
        let searches = if self.is_undo() {
            searches * UNDO_SEARCH_FACTOR
        } else {
            searches.div_ceil(JOINT_SEARCH_DIVISOR)
        };
        (searches + JOINT_WORK_FACTOR * work + others).min(WORK_MAX)
    }

    /// Whether it waits while much work is in flight. It is then passed by. A joint decision does not wait for its logs.
    #[inline]
    pub(in crate::redis) fn is_heavy(&self) -> bool {
        self.work() > LIGHT_WORK || (self.own_limits.logs > 0 && self.joint.is_none())
    }

    /// Work of its own after `last` of the same name. The script uses the result of a search again for an equal request. It reads
    /// the records once for all requests of a name, if there are no logs beside them.
    #[inline]
    pub(super) fn work_after(&self, last: Option<&Self>) -> usize {
        let is_repeated = last.is_some_and(|last| last.charge_terms() == self.charge_terms());
        let reads_records = last.is_none() || self.plan.shared.logs > 0;
        let own = &self.own_limits;
        limits_work(own)
            + self.hold_work()
            + if reads_records {
                records_work(&self.plan)
            } else {
                0
            }
            + if is_repeated {
                0
            } else {
                searches_work(own, &self.plan)
            }
    }
}

impl Group {
    /// Work of all its requests.
    pub(super) fn work(&self) -> usize {
        let before = [None].into_iter().chain(self.requests.iter().map(Some));
        self.requests
            .iter()
            .zip(before)
            .map(|(request, last)| request.work_after(last))
            .sum()
    }
}
