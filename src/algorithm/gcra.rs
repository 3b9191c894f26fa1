//! `token_bucket`, by the generic cell rate algorithm (ITU-T I.371): at most `burst + rate * t` units in any interval `t`.
//!
//! GCRA's words: the *emission interval* is the time that one unit takes to come back; the *tat* (theoretical arrival
//! time) is when the bucket will be full again, so `tat - now` is the debt; the *tolerance* is the debt that a key may run
//! up, `burst` emission intervals. GCRA needs no
//! more than the tat; the time of the last write stands beside it, to tell a clock that stepped back from a debt that a
//! limit of the same window with a larger burst let the key run up. Lua twin: `gcra.lua`.

use super::Reading;
use crate::plan::Limit;

/// One key's bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// When the bucket is full again, in microseconds since 1970; not before `at_us`.
    pub tat_us: u64,
    /// When that was written.
    pub at_us: u64,
}

impl Bucket {
    pub(super) fn read(&self, now_us: u64) -> Reading {
        Reading::Bucket { backlog_us: self.backlog_us(now_us) }
    }

    pub(super) fn clamp(&mut self, now_us: u64) {
        if self.at_us > now_us {
            *self = Self { tat_us: now_us + self.backlog_us(now_us), at_us: now_us };
        }
    }

    pub(super) fn charge(&mut self, limit: &Limit, now_us: u64, cost: u64) {
        let tat_us = now_us + self.backlog_us(now_us) + cost * limit.emission_us();
        *self = Self { tat_us, at_us: now_us };
    }

    pub(super) fn fresh_at_us(&self) -> u64 {
        self.tat_us
    }

    /// The debt at `now_us`; at a time before the last write, the debt of then.
    fn backlog_us(&self, now_us: u64) -> u64 {
        self.tat_us.saturating_sub(now_us.max(self.at_us))
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
    fn a_smaller_burst_on_the_same_count_forgives_no_debt() {
        let of = |burst| limit(10, Algorithm::TokenBucket { burst });
        let (paid, trial) = (of(100), of(1));
        let mut bucket = Bucket::default();
        bucket.charge(&paid, 5_000_000, 100);
        bucket.clamp(5_000_000);
        assert_eq!(bucket.read(5_000_000), Reading::Bucket { backlog_us: 10_000_000 });
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
