//! `sliding_counter`: estimates the units of the last window from the counts of two clock-aligned windows. The estimate is
//! `current + previous * (window - elapsed) / window`, rounded up.
//!
//! It is approximate: it assumes that the units of the previous window are spread evenly. Bursts make it err in both
//! directions; docs/algorithms.md has the measured error. The estimate itself is exact, in integers. Lua twin:
//! `sliding_counter.lua`.

use super::Reading;
use crate::plan::Limit;

/// Counts of two neighbouring windows of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counter {
    /// Start of the window charged last, in microseconds since 1970.
    pub start_us: u64,
    /// Units counted in it.
    pub current: u64,
    /// Units counted in the window before it.
    pub previous: u64,
}

impl Counter {
    pub(super) fn read(&self, limit: &Limit, now_us: u64) -> Reading {
        let counter = self.window_at(limit, now_us);
        Reading::Counter {
            current: counter.current,
            previous: counter.previous,
            elapsed_us: now_us - counter.start_us,
        }
    }

    pub(super) fn clamp(&mut self, limit: &Limit, now_us: u64) {
        if self.start_us > now_us {
            *self = self.window_at(limit, now_us);
        }
    }

    pub(super) fn charge(&mut self, limit: &Limit, now_us: u64, cost: u64) {
        *self = self.window_at(limit, now_us);
        self.current += cost;
    }

    /// Gives back units of the present window first, because each of them counts in full. A unit of the previous window counts
    /// only in part, so giving it back frees only that part.
    pub(super) fn refund(&mut self, limit: &Limit, now_us: u64, units: u64) {
        let Self {
            current, previous, ..
        } = self.window_at(limit, now_us);
        let of_current = units.min(current);
        self.give_back(limit, now_us, of_current, previous.min(units - of_current));
    }

    /// Gives back units of a charge of that instant, from the window of that instant alone.
    pub(super) fn undo(&mut self, limit: &Limit, now_us: u64, units: u64, instant_us: u64) {
        let counter = self.window_at(limit, now_us);
        if instant_us >= counter.start_us {
            self.give_back(limit, now_us, units.min(counter.current), 0);
        } else if instant_us + limit.window_us() >= counter.start_us {
            self.give_back(limit, now_us, 0, units.min(counter.previous));
        }
    }

    /// Gives back so many units of each window, which has them.
    fn give_back(&mut self, limit: &Limit, now_us: u64, of_current: u64, of_previous: u64) {
        let Self {
            start_us,
            current,
            previous,
        } = self.window_at(limit, now_us);
        let current_left = current - of_current;
        let previous_left = previous - of_previous;
        match (of_current + of_previous, current_left + previous_left) {
            // Nothing is written.
            (0, _) => {}
            (_, 0) => *self = Self::default(),
            _ => {
                *self = Self {
                    start_us,
                    current: current_left,
                    previous: previous_left,
                }
            }
        }
    }

    /// When the state counts no units any more, in microseconds since 1970.
    pub(super) fn fresh_at_us(&self, window_us: u64) -> u64 {
        self.start_us + 2 * window_us
    }

    /// The counts in the window of `now_us`. If the window charged last starts after `now_us`, the clock stepped back. That
    /// window then begins now, and the next windows follow on it instead of the clock, until the key is fresh again. So a small
    /// step back across the edge of a window frees nothing.
    fn window_at(&self, limit: &Limit, now_us: u64) -> Self {
        let window_us = limit.window_us();
        if self.start_us > now_us {
            return Self {
                start_us: now_us,
                ..*self
            };
        }
        match (now_us - self.start_us) / window_us {
            0 => *self,
            1 => Self {
                start_us: self.start_us + window_us,
                current: 0,
                previous: self.current,
            },
            _ => Self {
                start_us: now_us - now_us % window_us,
                current: 0,
                previous: 0,
            },
        }
    }
}

/// Units in use by the estimate, rounded up. `Limit::new` bounds the product by 2^53, unless more than the quota was charged.
pub(super) fn used(limit: &Limit, current: u64, previous: u64, elapsed_us: u64) -> u64 {
    let window_us = limit.window_us();
    match previous.checked_mul(window_us - elapsed_us) {
        Some(product) => current + product.div_ceil(window_us),
        None => current + used_of_many(window_us, previous, elapsed_us),
    }
}

#[cold]
fn used_of_many(window_us: u64, previous: u64, elapsed_us: u64) -> u64 {
    let product = u128::from(previous) * u128::from(window_us - elapsed_us);
    // At most `previous`.
    u64::try_from(product.div_ceil(u128::from(window_us))).unwrap_or(previous)
}

pub(super) fn wait_us(
    limit: &Limit,
    current: u64,
    previous: u64,
    elapsed_us: u64,
    cost: u64,
) -> u64 {
    if used(limit, current, previous, elapsed_us) + cost <= limit.quota() {
        return 0;
    }
    let to_next_us = limit.window_us() - elapsed_us;
    match limit.quota().checked_sub(current + cost) {
        Some(room) => room_at_us(limit, previous, room) - elapsed_us,
        None => to_next_us + room_at_us(limit, current, limit.quota() - cost),
    }
}

/// The earliest time, from a window's start, at which `previous` units of the window before count as at most `room` units. At
/// the end of the window they count as none, so the result is at most the window's length.
fn room_at_us(limit: &Limit, previous: u64, room: u64) -> u64 {
    if previous <= room {
        0
    } else {
        limit.window_us() - room * limit.window_us() / previous
    }
}

pub(super) fn fresh_in_us(limit: &Limit, current: u64, previous: u64, elapsed_us: u64) -> u64 {
    match (current, previous) {
        (0, 0) => 0,
        (0, _) => limit.window_us() - elapsed_us,
        _ => 2 * limit.window_us() - elapsed_us,
    }
}

#[cfg(test)]
mod tests {
    use crate::algorithm::cases::{Case, check, limit};
    use crate::plan::Algorithm;

    #[test]
    fn the_previous_window_weighs_by_its_part_within_the_last_window() {
        check(
            &limit(10, Algorithm::SlidingCounter),
            &[
                Case::allowed(1_000_000, 10, 0).fresh_in(2_000_000),
                Case::denied(1_500_000, 1, 0).retry_in(600_000),
                Case::denied(2_000_000, 1, 0).retry_in(100_000),
                Case::denied(2_099_999, 1, 0).retry_in(1),
                Case::allowed(2_100_000, 1, 0),
                Case::allowed(2_500_000, 4, 0),
                Case::denied(2_500_001, 6, 0).retry_in(699_999),
                Case::denied(3_199_999, 6, 5).retry_in(1),
                Case::allowed(3_200_000, 6, 0),
            ],
        );
    }

    #[test]
    fn a_refund_takes_units_of_the_present_window_first() {
        check(
            &limit(10, Algorithm::SlidingCounter),
            &[
                Case::allowed(1_000_000, 8, 2),
                Case::allowed(2_500_000, 4, 2),
                // Half of the 8 weigh.
                Case::refunded(2_500_000, 3, 5),
                Case::refunded(2_500_000, 3, 7).fresh_in(500_000),
                Case::refunded(2_500_000, 7, 10).fresh_in(0),
                Case::allowed(2_500_000, 10, 0),
            ],
        );
    }

    #[test]
    fn a_clock_that_steps_back_blocks_for_one_window_and_weighs_for_two() {
        check(
            &limit(10, Algorithm::SlidingCounter),
            &[
                Case::allowed(3_600_000_000, 10, 0),
                Case::denied(1_200_000, 1, 0).retry_in(1_100_000),
                Case::allowed(3_200_000, 10, 0),
            ],
        );
    }
}
