//! `fixed_window`: at most `quota` units per window. Windows are aligned to the clock, start at the key's first request, or are
//! those of a calendar. One of a calendar lasts as long as the calendar's window in which it began.
//!
//! Around the edge of two windows, up to twice the quota passes within one window's length. This is a property of fixed
//! windows; `sliding_window` and `sliding_log` do not have it. Lua twin: `fixed_window.lua`.

use super::Reading;
use crate::plan::{Algorithm, Anchor, Edges, Limit};

/// The window of the last charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// Start of the window, in microseconds since 1970.
    pub start_us: u64,
    /// Units counted in it; 0 only when nothing was ever counted.
    pub count: u64,
}

impl Window {
    pub(super) fn read(&self, limit: &Limit, now_us: u64) -> Reading {
        if let Some(edges) = limit.edges_at(now_us) {
            return self.read_in(&edges, now_us);
        }
        let window = self.window_at(limit, now_us);
        Reading::Window {
            count: window.count,
            ends_in_us: window.start_us + limit.window_us() - now_us,
        }
    }

    pub(super) fn clamp(&mut self, limit: &Limit, now_us: u64) {
        if self.start_us > now_us {
            *self = self.window_at(limit, now_us);
        }
    }

    pub(super) fn charge(&mut self, limit: &Limit, now_us: u64, cost: u64) {
        *self = self.window_at(limit, now_us);
        self.count += cost;
    }

    /// Gives back units of the present window only.
    pub(super) fn refund(&mut self, limit: &Limit, now_us: u64, units: u64) {
        let window = self.window_at(limit, now_us);
        match window.count {
            0 => {}
            count if count <= units => *self = Self::default(),
            count => {
                *self = Self {
                    count: count - units,
                    ..window
                }
            }
        }
    }

    /// Gives back units of a charge of that instant, if the present window is still that of the charge.
    pub(super) fn undo(&mut self, limit: &Limit, now_us: u64, units: u64, instant_us: u64) {
        if instant_us >= self.window_at(limit, now_us).start_us {
            self.refund(limit, now_us, units);
        }
    }

    pub(super) fn fresh_at_us(&self, window_us: u64) -> u64 {
        self.start_us + window_us
    }

    /// The window that contains `now_us`, with its units. A window that lies ahead is clamped: it begins now and keeps its
    /// count for a whole window. It ignores the clock's own window ends, so that a small step back across an edge frees
    /// nothing.
    fn window_at(&self, limit: &Limit, now_us: u64) -> Self {
        if let Some(edges) = limit.edges_at(now_us) {
            return self.at_in(&edges, now_us);
        }
        if self.start_us > now_us && self.count > 0 {
            return Self {
                start_us: now_us,
                ..*self
            };
        }
        if self.count > 0 && now_us < self.start_us + limit.window_us() {
            return *self;
        }
        let is_by_clock = limit.algorithm()
            == Algorithm::FixedWindow {
                anchor: Anchor::Clock,
            };
        Self {
            start_us: if is_by_clock {
                now_us - now_us % limit.window_us()
            } else {
                now_us
            },
            count: 0,
        }
    }

    /// As [`Self::window_at`], in the calendar's window that contains `now_us`.
    fn at_in(&self, edges: &Edges, now_us: u64) -> Self {
        if self.count > 0 && self.start_us > now_us {
            return Self {
                start_us: now_us,
                ..*self
            };
        }
        if self.count > 0 && now_us - self.start_us < edges.window_at(self.start_us) {
            return *self;
        }
        Self {
            start_us: edges.start_us,
            count: 0,
        }
    }

    fn read_in(&self, edges: &Edges, now_us: u64) -> Reading {
        let window = self.at_in(edges, now_us);
        let lasts_us = edges.window_at(window.start_us);
        Reading::Calendar {
            count: window.count,
            ends_in_us: window.start_us.saturating_add(lasts_us) - now_us,
            window_us: edges.window_us(),
        }
    }
}

pub(super) fn wait_us(limit: &Limit, count: u64, ends_in_us: u64, cost: u64) -> u64 {
    if count + cost <= limit.quota() {
        0
    } else {
        ends_in_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::cases::{Case, check, limit};
    use crate::plan::{Calendar, CalendarUnit, Zone};

    const CLOCK: Algorithm = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };
    const FIRST: Algorithm = Algorithm::FixedWindow {
        anchor: Anchor::FirstRequest,
    };

    #[test]
    fn clock_windows_start_at_whole_multiples() {
        check(
            &limit(3, CLOCK),
            &[
                Case::allowed(1_500_000, 2, 1).fresh_in(500_000),
                Case::denied(1_999_999, 2, 1).retry_in(1),
                Case::allowed(1_999_999, 1, 0),
                Case::allowed(2_000_000, 3, 0).fresh_in(1_000_000),
                Case::denied(2_000_000, 1, 0).retry_in(1_000_000),
            ],
        );
    }

    #[test]
    fn twice_the_quota_passes_around_the_edge() {
        check(
            &limit(100, CLOCK),
            &[
                Case::allowed(999_999, 100, 0),
                Case::allowed(1_000_000, 100, 0),
            ],
        );
    }

    #[test]
    fn own_windows_start_at_the_first_request() {
        check(
            &limit(3, FIRST),
            &[
                Case::allowed(1_500_000, 3, 0).fresh_in(1_000_000),
                Case::denied(2_499_999, 1, 0).retry_in(1),
                Case::allowed(2_500_000, 1, 2).fresh_in(1_000_000),
            ],
        );
    }

    #[test]
    fn refunded_units_are_free_again_in_their_own_window_only() {
        for algorithm in [CLOCK, FIRST] {
            check(
                &limit(3, algorithm),
                &[
                    Case::allowed(1_000_000, 3, 0),
                    Case::refunded(1_500_000, 2, 2).fresh_in(500_000),
                    Case::allowed(1_999_999, 2, 0).fresh_in(1),
                    Case::refunded(2_000_000, 3, 3).fresh_in(0),
                    Case::allowed(2_000_000, 1, 2),
                    Case::refunded(2_000_000, 9, 3).fresh_in(0),
                ],
            );
        }
    }

    #[test]
    fn a_window_that_was_refunded_whole_had_no_first_request() {
        check(
            &limit(3, FIRST),
            &[
                Case::allowed(1_500_000, 3, 0),
                Case::refunded(1_900_000, 3, 3),
                Case::allowed(2_000_000, 3, 0).fresh_in(1_000_000),
                Case::denied(2_500_000, 1, 0).retry_in(500_000),
            ],
        );
    }

    #[test]
    fn a_clock_that_steps_back_blocks_for_one_window_at_most() {
        for algorithm in [CLOCK, FIRST] {
            check(
                &limit(3, algorithm),
                &[
                    Case::allowed(3_600_000_000, 3, 0),
                    Case::denied(1_200_000, 1, 0).retry_in(1_000_000),
                    Case::denied(2_199_999, 1, 0).retry_in(1),
                    Case::allowed(2_200_000, 3, 0),
                ],
            );
        }
    }

    #[test]
    fn a_clock_that_steps_back_across_an_edge_frees_nothing() {
        check(
            &limit(3, CLOCK),
            &[
                Case::allowed(1_999_999, 3, 0),
                Case::allowed(2_000_000, 3, 0),
                Case::denied(1_999_999, 1, 0).retry_in(1_000_000),
                Case::denied(2_000_000, 1, 0).retry_in(999_999),
                Case::allowed(2_999_999, 3, 0),
            ],
        );
    }

    const HOUR: u64 = 3_600_000_000;
    /// When the day of Havana begins that has 25 hours, 2027-11-07, in microseconds.
    const HAVANA: u64 = 1_825_560_000_000_000;

    fn by_calendar(quota: u64, unit: CalendarUnit, zone: &str) -> Limit {
        let zone = Zone::find(zone).unwrap();
        Limit::by_calendar("limit", quota, Calendar::new(unit, zone)).unwrap()
    }

    #[test]
    fn calendar_windows_start_and_end_at_the_edges_of_the_zone() {
        check(
            &by_calendar(3, CalendarUnit::Day, "America/Havana"),
            &[
                Case::allowed(HAVANA - 1, 3, 0).fresh_in(1),
                Case::allowed(HAVANA, 2, 1).fresh_in(25 * HOUR),
                // Midnight once more.
                Case::denied(HAVANA + HOUR, 2, 1).retry_in(24 * HOUR),
                Case::denied(HAVANA + 25 * HOUR - 1, 2, 1).retry_in(1),
                Case::allowed(HAVANA + 25 * HOUR, 3, 0).fresh_in(24 * HOUR),
            ],
        );
    }

    #[test]
    fn units_of_a_calendar_window_are_given_back_in_that_window_only() {
        check(
            &by_calendar(3, CalendarUnit::Day, "America/Havana"),
            &[
                Case::allowed(HAVANA, 3, 0),
                Case::refunded(HAVANA + 24 * HOUR, 2, 2).fresh_in(HOUR),
                Case::refunded(HAVANA + 25 * HOUR, 3, 3).fresh_in(0),
            ],
        );
    }

    #[test]
    fn a_clock_that_steps_back_blocks_for_one_calendar_window_at_most() {
        check(
            &by_calendar(3, CalendarUnit::Day, "America/Havana"),
            &[
                Case::allowed(HAVANA + 100_000 * HOUR, 3, 0),
                // The day in which the clock is set has 25 hours.
                Case::denied(HAVANA + HOUR, 1, 0).retry_in(25 * HOUR),
                Case::denied(HAVANA + 26 * HOUR - 1, 1, 0).retry_in(1),
                Case::allowed(HAVANA + 26 * HOUR, 3, 0).fresh_in(23 * HOUR),
            ],
        );
    }

    #[test]
    fn a_clock_that_steps_back_across_an_edge_of_a_calendar_frees_nothing() {
        check(
            &by_calendar(3, CalendarUnit::Day, "America/Havana"),
            &[
                Case::allowed(HAVANA - 1, 3, 0),
                Case::allowed(HAVANA, 3, 0),
                Case::denied(HAVANA - 1, 1, 0).retry_in(24 * HOUR),
                Case::denied(HAVANA, 1, 0).retry_in(24 * HOUR - 1),
                Case::allowed(HAVANA + 24 * HOUR - 1, 3, 0).fresh_in(HOUR + 1),
            ],
        );
    }

    #[test]
    fn the_window_of_an_answer_is_the_present_one() {
        let limit = by_calendar(3, CalendarUnit::Day, "America/Havana");
        let lasts = |now_us| match Window::default().read(&limit, now_us) {
            Reading::Calendar { window_us, .. } => window_us / HOUR,
            other => panic!("{other:?}"),
        };
        let before = HAVANA - 1;
        let long = HAVANA;
        let after = HAVANA + 25 * HOUR;
        assert_eq!([before, long, after].map(lasts), [24, 25, 24]);
    }
}
