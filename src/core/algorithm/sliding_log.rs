//! `sliding_log`: at most `quota` units in any interval of one window, exactly. Every unit counts from its own time.
//!
//! The state is a list of [`Runs`], which also has the reading and the refund. It grows with the number of charges, not with
//! their units. The memory store keeps one run for all charges of one instant, Redis one element per charge. Lua twin:
//! `sliding_log.lua`.

use super::Runs;
use crate::plan::Limit;

pub(super) fn charge(runs: &mut Runs, limit: &Limit, now_us: u64, cost: u64) {
    runs.drop_expired(limit.window_us(), now_us);
    runs.push(now_us, cost);
}

/// Gives back units of a charge of that instant, while it counts. All other units keep their times.
pub(super) fn undo(runs: &mut Runs, limit: &Limit, now_us: u64, units: u64, instant_us: u64) {
    if instant_us <= now_us && now_us < instant_us + limit.window_us() {
        runs.take_back(limit, now_us, (instant_us, units), |at_us| {
            at_us == instant_us
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithm::cases::{Case, check, limit};
    use crate::plan::Algorithm;

    #[test]
    fn a_unit_is_free_again_one_window_after_it_was_taken() {
        check(
            &limit(3, Algorithm::SlidingLog),
            &[
                Case::allowed(1_500_000, 1, 2).fresh_in(1_000_000),
                Case::allowed(1_700_000, 2, 0).fresh_in(1_000_000),
                Case::denied(1_700_000, 1, 0).retry_in(800_000),
                Case::denied(1_700_000, 2, 0).retry_in(1_000_000),
                Case::denied(2_499_999, 1, 0).retry_in(1),
                Case::allowed(2_500_000, 1, 0),
                Case::denied(2_500_000, 3, 0).retry_in(1_000_000),
            ],
        );
    }

    #[test]
    fn a_refund_takes_the_newest_units() {
        check(
            &limit(3, Algorithm::SlidingLog),
            &[
                Case::allowed(1_500_000, 1, 2),
                Case::allowed(1_700_000, 2, 0),
                Case::refunded(1_800_000, 1, 1).fresh_in(900_000),
                Case::refunded(1_800_000, 1, 2).fresh_in(700_000),
                Case::allowed(1_900_000, 1, 1),
                Case::refunded(2_500_000, 9, 3).fresh_in(0),
                Case::allowed(2_500_000, 3, 0),
            ],
        );
    }

    #[test]
    fn a_full_window_at_a_minute_s_end_leaves_nothing_right_after_it() {
        check(
            &limit(100, Algorithm::SlidingLog),
            &[
                Case::allowed(999_999, 100, 0),
                Case::denied(1_000_000, 1, 0).retry_in(999_999),
            ],
        );
    }

    #[test]
    fn a_clock_that_steps_back_blocks_for_one_window_at_most() {
        check(
            &limit(3, Algorithm::SlidingLog),
            &[
                Case::allowed(3_599_999_999, 1, 2),
                Case::allowed(3_600_000_000, 2, 0),
                Case::denied(1_200_000, 1, 0).retry_in(1_000_000),
                Case::denied(2_199_999, 3, 0).retry_in(1),
                Case::allowed(2_200_000, 3, 0),
            ],
        );
    }
}
