//! `token_bucket`, by the generic cell rate algorithm (ITU-T I.371): at most `burst + rate * t` units in any interval `t`.
//!
//! GCRA's words: the *emission interval* is the time that one unit takes to come back; the *tat* (theoretical arrival
//! time) is when the bucket will be full again, so `tat - now` is the debt; the *tolerance* is the debt that a key may run
//! up, `burst` emission intervals. A bucket is thus one number. Lua twin: `gcra.lua`.

use super::Reading;
use crate::plan::Limit;

/// One key's bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// When the bucket is full again, in microseconds since 1970.
    pub tat_us: u64,
}

impl Bucket {
    pub(super) fn read(&self, limit: &Limit, now_us: u64) -> Reading {
        Reading::Bucket { backlog_us: self.backlog_us(limit, now_us) }
    }

    pub(super) fn clamp(&mut self, limit: &Limit, now_us: u64) {
        self.tat_us = self.tat_us.min(now_us + debt_max_us(limit));
    }

    pub(super) fn charge(&mut self, limit: &Limit, now_us: u64, cost: u64) {
        self.tat_us = now_us + self.backlog_us(limit, now_us) + cost * limit.emission_us();
    }

    pub(super) fn fresh_at_us(&self) -> u64 {
        self.tat_us
    }

    fn backlog_us(&self, limit: &Limit, now_us: u64) -> u64 {
        self.tat_us.saturating_sub(now_us).min(debt_max_us(limit))
    }
}

/// The largest debt that is believed; a greater one means that the clock stepped back. At least a window, so that the
/// debt of a burst that was just lowered is not forgiven.
fn debt_max_us(limit: &Limit) -> u64 {
    limit.tolerance_us().max(limit.window_us())
}

pub(super) fn wait_us(limit: &Limit, backlog_us: u64, cost: u64) -> u64 {
    (backlog_us + cost * limit.emission_us()).saturating_sub(limit.tolerance_us())
}

pub(super) fn remaining(limit: &Limit, backlog_us: u64) -> u64 {
    limit.tolerance_us().saturating_sub(backlog_us) / limit.emission_us()
}

#[cfg(test)]
mod tests {
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
    fn a_clock_that_steps_back_blocks_for_one_window_at_most() {
        check(
            &limit(10, Algorithm::TokenBucket { burst: 10 }),
            &[Case::allowed(3_600_000_000, 10, 0), Case::denied(1_000_000, 1, 0).after(100_000), Case::allowed(2_000_000, 10, 0)],
        );
    }
}
