//! `token_bucket`, by the generic cell rate algorithm (ITU-T I.371): at most `burst + rate * t` units in any interval `t`.
//!
//! GCRA's words: the *emission interval* is the time that one unit takes to come back; the *tat* (theoretical arrival
//! time) is when the bucket will be full again, so `tat - now` is the debt; the *tolerance* is the debt that a key may run
//! up, `burst` emission intervals. A bucket is thus one number; only a debt above a window, which a burst above the quota
//! can run up, keeps the time of its writing beside it. That tells a clock that stepped back from a debt that a limit of
//! the same window with a larger burst ran up, so that neither blocks a key for long and none is forgiven.
//! Lua twin: `gcra.lua`.

use super::Reading;
use crate::plan::Limit;

/// One key's bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// When the bucket is full again, in microseconds since 1970.
    pub tat_us: u64,
    /// When that was written, if the debt was above a window then; else 0.
    pub at_us: u64,
}

impl Bucket {
    fn new(limit: &Limit, now_us: u64, backlog_us: u64) -> Self {
        let at_us = if backlog_us > limit.window_us() { now_us } else { 0 };
        Self { tat_us: now_us + backlog_us, at_us }
    }

    pub(super) fn read(&self, limit: &Limit, now_us: u64) -> Reading {
        Reading::Bucket { backlog_us: self.backlog_us(limit, now_us) }
    }

    pub(super) fn clamp(&mut self, limit: &Limit, now_us: u64) {
        let backlog_us = self.backlog_us(limit, now_us);
        if self.tat_us > now_us + backlog_us {
            *self = Self::new(limit, now_us, backlog_us);
        }
    }

    pub(super) fn charge(&mut self, limit: &Limit, now_us: u64, cost: u64) {
        *self = Self::new(limit, now_us, self.backlog_us(limit, now_us) + cost * limit.emission_us());
    }

    /// A unit that was not wholly back yet is.
    pub(super) fn refund(&mut self, limit: &Limit, now_us: u64, units: u64) {
        let backlog_us = self.backlog_us(limit, now_us);
        match backlog_us.saturating_sub(units.saturating_mul(limit.emission_us())) {
            _ if backlog_us == 0 => {}
            0 => *self = Self::default(),
            left_us => *self = Self::new(limit, now_us, left_us),
        }
    }

    pub(super) fn fresh_at_us(&self) -> u64 {
        self.tat_us
    }

    /// The debt at `now_us`. Where the clock stepped back, at most what it was when it was written, as far as is known.
    fn backlog_us(&self, limit: &Limit, now_us: u64) -> u64 {
        match self.at_us {
            0 => self.tat_us.saturating_sub(now_us).min(limit.window_us()),
            at_us => self.tat_us.saturating_sub(now_us.max(at_us)),
        }
    }
}

pub(super) fn wait_us(limit: &Limit, backlog_us: u64, cost: u64) -> u64 {
    (backlog_us + cost * limit.emission_us()).saturating_sub(limit.tolerance_us())
}

pub(super) fn remaining(limit: &Limit, backlog_us: u64) -> u64 {
    limit.tolerance_us().saturating_sub(backlog_us) / limit.emission_us()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::cases::{Case, check, limit};
    use crate::plan::Algorithm;

    #[test]
    fn a_burst_then_one_unit_per_emission_interval() {
        check(
            &limit(10, Algorithm::TokenBucket { burst: 2 }),
            &[
                Case::allowed(5_000_000, 2, 0).fresh_in(200_000),
                Case::denied(5_000_000, 1, 0).after(100_000),
                Case::denied(5_099_999, 1, 0).after(1),
                Case::allowed(5_100_000, 1, 0),
                Case::allowed(9_000_000, 1, 1),
            ],
        );
    }

    #[test]
    fn after_idling_no_more_than_the_burst_passes() {
        check(
            &limit(10, Algorithm::TokenBucket { burst: 10 }),
            &[Case::allowed(5_000_000, 10, 0), Case::allowed(500_000_000, 10, 0), Case::denied(500_000_000, 1, 0).after(100_000)],
        );
    }

    #[test]
    fn an_interval_that_is_no_whole_microsecond_is_rounded_up() {
        let limit = limit(3, Algorithm::TokenBucket { burst: 1 });
        assert_eq!(limit.emission_us(), 333_334);
        check(&limit, &[Case::allowed(0, 1, 0), Case::denied(333_333, 1, 0).after(1), Case::allowed(333_334, 1, 0)]);
    }

    #[test]
    fn what_is_given_back_shortens_the_debt_to_nothing_at_most() {
        check(
            &limit(10, Algorithm::TokenBucket { burst: 4 }),
            &[
                Case::allowed(5_000_000, 4, 0).fresh_in(400_000),
                Case::refunded(5_050_000, 2, 2).fresh_in(150_000),
                Case::denied(5_050_000, 3, 2).after(50_000),
                Case::refunded(5_050_000, u64::MAX, 4).fresh_in(0),
                Case::allowed(5_050_000, 4, 0).fresh_in(400_000),
            ],
        );
    }

    #[test]
    fn a_smaller_burst_on_the_same_count_forgives_no_debt() {
        let of = |burst| limit(10, Algorithm::TokenBucket { burst });
        let (paid, trial) = (of(100), of(1));
        let mut bucket = Bucket::default();
        bucket.charge(&paid, 5_000_000, 100);
        bucket.clamp(&trial, 5_000_000);
        assert_eq!(bucket.read(&trial, 5_000_000), Reading::Bucket { backlog_us: 10_000_000 });
        assert_eq!((wait_us(&trial, 10_000_000, 1), remaining(&trial, 10_000_000)), (10_000_000, 0));
    }

    #[test]
    fn a_clock_that_steps_back_blocks_for_one_window_at_most() {
        check(
            &limit(10, Algorithm::TokenBucket { burst: 10 }),
            &[Case::allowed(3_600_000_000, 10, 0), Case::denied(1_000_000, 1, 0).after(100_000), Case::allowed(2_000_000, 10, 0)],
        );
    }
}
