//! What a verdict and its readings say of each limit: what is used, what is left, how long to wait.

use smallvec::SmallVec;

use super::{GivenBack, Reading, Verdict, fixed_window, gcra, sliding_counter};
use crate::decision::LimitStatus;
use crate::key::Cost;
use crate::plan::Limit;

impl GivenBack {
    /// Units that each limit gave back.
    pub fn units(&self) -> SmallVec<[u64; 2]> {
        let pairs = self.before.iter().zip(&self.after.readings);
        pairs
            .map(|(before, after)| before.counted().saturating_sub(after.counted()))
            .collect()
    }
}

impl Verdict {
    /// The key's standing in each limit, as reported in the answer to `cost`.
    pub fn statuses(&self, limits: &[Limit], cost: Cost) -> SmallVec<[LimitStatus; 2]> {
        let mut statuses = SmallVec::<[LimitStatus; 2]>::new();
        for (limit, reading) in limits.iter().zip(&self.readings) {
            statuses.push(self.status(limit, reading, cost));
        }
        if let Some(blocks) = &self.blocks {
            for (status, block) in statuses.iter_mut().zip(blocks) {
                status.block(block.left_us, !self.fits);
                status.begins_block = block.begins;
            }
        }
        statuses
    }

    /// A wait of a denial, or the time until a hold gives units back, where that is less.
    fn wait_at_most(&self, wait_us: u64) -> u64 {
        match self.release_in_us {
            0 => wait_us,
            release_in_us => wait_us.min(release_in_us),
        }
    }

    fn status(&self, limit: &Limit, reading: &Reading, cost: Cost) -> LimitStatus {
        let wait_us = if self.fits {
            0
        } else {
            self.wait_at_most(reading.wait_us(limit, cost.units()))
        };
        LimitStatus {
            name: limit.name().clone(),
            limit: limit.quota(),
            window_us: match *reading {
                Reading::Calendar { window_us, .. } => window_us,
                _ => limit.window_us(),
            },
            frees_at_once: limit.algorithm().frees_at_once(),
            capacity: limit.capacity(),
            remaining: reading.remaining(limit),
            retry_after_us: (wait_us > 0).then_some(wait_us),
            reset_after_us: reading.fresh_in_us(limit),
            blocked_for_us: 0,
            begins_block: false,
            first_end_us: 0,
        }
    }
}

impl Reading {
    /// Time until `cost` could pass if nothing else happens; 0 when it can now. A log's reading answers only for the cost that
    /// it was read for.
    #[inline]
    pub fn wait_us(&self, limit: &Limit, cost: u64) -> u64 {
        match *self {
            Self::Window { count, ends_in_us }
            | Self::Calendar {
                count, ends_in_us, ..
            } => fixed_window::wait_us(limit, count, ends_in_us, cost),
            Self::Bucket {
                backlog_us,
                emission_us,
            } => gcra::wait_us(limit, backlog_us, emission_us, cost),
            Self::Counter {
                current,
                previous,
                elapsed_us,
            } => sliding_counter::wait_us(limit, current, previous, elapsed_us, cost),
            Self::Log { frees_in_us, .. } => frees_in_us,
        }
    }

    /// Units that a refund could give back. A bucket's unit counts until it is wholly back. A counter's units count in full in
    /// both windows.
    pub(super) fn counted(&self) -> u64 {
        match *self {
            Self::Window { count, .. } | Self::Calendar { count, .. } => count,
            Self::Bucket {
                backlog_us,
                emission_us,
            } => backlog_us.div_ceil(emission_us),
            Self::Counter {
                current, previous, ..
            } => current + previous,
            Self::Log { used, .. } => used,
        }
    }

    /// Units in use, for people. A counter's is its estimate. A bucket's units are those that are not wholly back.
    #[inline]
    pub fn used(&self, limit: &Limit) -> u64 {
        match *self {
            Self::Counter {
                current,
                previous,
                elapsed_us,
            } => sliding_counter::used(limit, current, previous, elapsed_us),
            Self::Window { .. }
            | Self::Calendar { .. }
            | Self::Bucket { .. }
            | Self::Log { .. } => self.counted(),
        }
    }

    /// Units that a request could take right now.
    #[inline]
    pub fn remaining(&self, limit: &Limit) -> u64 {
        match *self {
            Self::Window { count, .. } | Self::Calendar { count, .. } => {
                limit.quota().saturating_sub(count)
            }
            Self::Bucket {
                backlog_us,
                emission_us,
            } => gcra::remaining(limit, backlog_us, emission_us),
            Self::Counter {
                current,
                previous,
                elapsed_us,
            } => limit
                .quota()
                .saturating_sub(sliding_counter::used(limit, current, previous, elapsed_us)),
            Self::Log { used, .. } => limit.quota().saturating_sub(used),
        }
    }

    /// Time until the key is fresh again if nothing else happens; 0 when it is.
    #[inline]
    pub fn fresh_in_us(&self, limit: &Limit) -> u64 {
        match *self {
            Self::Window { count, ends_in_us }
            | Self::Calendar {
                count, ends_in_us, ..
            } => {
                if count == 0 {
                    0
                } else {
                    ends_in_us
                }
            }
            Self::Bucket { backlog_us, .. } => backlog_us,
            Self::Counter {
                current,
                previous,
                elapsed_us,
            } => sliding_counter::fresh_in_us(limit, current, previous, elapsed_us),
            Self::Log { fresh_in_us, .. } => fresh_in_us,
        }
    }
}
