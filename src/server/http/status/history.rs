//! The last quarter of an hour, in points of ten seconds, for the picture of the page.
//!
//! Points are taken whether somebody looks or not: whoever opens the page late wants to see what was before.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::samples::{difference, percentile_us};
use crate::limiter::{BOUNDS_NS, Timings, Totals};
use tollgate_core::decision::{DecidedBy, Outcome};

/// The span of a point. Adding up the counts of ten thousand plans takes about a millisecond.
pub(super) const POINT_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of points that are kept: a quarter of an hour. Each takes 48 bytes.
const POINTS_MAX: usize = 90;
/// Least span of the point that is not over yet.
const SPAN_MIN: Duration = Duration::from_millis(900);

/// What was counted since the start, at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    pub decisions: u64,
    /// Denied or never fitting.
    pub denied: u64,
    /// Answered by a plan's policy because the store could not decide.
    pub by_policy: u64,
    pub durations: Timings,
}

impl Counts {
    /// Counts of all plans, removed ones included, so that they never fall.
    pub(super) fn read(totals: &Totals) -> Self {
        let mut counts = Self {
            durations: totals.durations.clone(),
            ..Self::default()
        };
        for (outcome, by) in Outcome::ALL
            .iter()
            .flat_map(|outcome| DecidedBy::ALL.map(|by| (*outcome, by)))
        {
            let count = totals.all_decisions(outcome, by);
            counts.decisions += count;
            counts.denied += if matches!(outcome, Outcome::Denied | Outcome::NeverFits) {
                count
            } else {
                0
            };
            let is_policy = matches!(
                by,
                DecidedBy::FailOpen | DecidedBy::FailClosed | DecidedBy::LocalFallback
            );
            counts.by_policy += if is_policy { count } else { 0 };
        }
        counts
    }
}

/// What was counted within a span of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    /// The end, in milliseconds since 1970.
    pub at_ms: u64,
    pub span_ms: u64,
    pub decisions: u64,
    pub denied: u64,
    pub by_policy: u64,
    /// The wait that 99 % of the decisions did not exceed, a second at most; `None` without a decision.
    pub p99_us: Option<u64>,
}

/// The points so far, the oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    points: VecDeque<Point>,
    /// The moment at which the last point ended, and its counts.
    last: Option<(Instant, Counts)>,
}

impl History {
    /// Ends a point now. The first call begins the first one.
    pub(super) fn add(&mut self, now: Instant, at_ms: u64, counts: Counts) {
        if let Some(point) = self.point(now, at_ms, &counts) {
            if self.points.len() == POINTS_MAX {
                self.points.pop_front();
            }
            self.points.push_back(point);
        }
        self.last = Some((now, counts));
    }

    /// The points, with the one that is not over yet.
    pub(super) fn points(&self, now: Instant, at_ms: u64, counts: &Counts) -> Vec<Point> {
        let unfinished = self
            .point(now, at_ms, counts)
            .filter(|point| u128::from(point.span_ms) >= SPAN_MIN.as_millis());
        self.points.iter().copied().chain(unfinished).collect()
    }

    fn point(&self, now: Instant, at_ms: u64, counts: &Counts) -> Option<Point> {
        let (began, before) = self.last.as_ref()?;
        let durations = difference(&counts.durations, &before.durations);
        let bound_us = || {
            percentile_us(&durations, 990)
                .or_else(|| BOUNDS_NS.last().map(|bound_ns| bound_ns / 1_000))
        };
        Some(Point {
            at_ms,
            span_ms: u64::try_from(now.saturating_duration_since(*began).as_millis())
                .unwrap_or(u64::MAX),
            decisions: counts.decisions.saturating_sub(before.decisions),
            denied: counts.denied.saturating_sub(before.denied),
            by_policy: counts.by_policy.saturating_sub(before.by_policy),
            p99_us: if durations.count() > 0 {
                bound_us()
            } else {
                None
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_store::clock::monotonic;

    fn counts(decisions: u64, by_policy: u64, slow: u64) -> Counts {
        let mut durations = Timings::default();
        (durations.buckets[0], durations.buckets[BOUNDS_NS.len()]) = (decisions - slow, slow);
        Counts {
            decisions,
            by_policy,
            denied: 1,
            durations,
        }
    }

    #[test]
    fn a_point_has_what_was_counted_in_its_ten_seconds() {
        let mut history = History::default();
        let start = monotonic();
        let at = |seconds: u64| (start + Duration::from_secs(seconds), seconds * 1_000);
        let mut add = |seconds, counts: Counts| {
            let (now, at_ms) = at(seconds);
            history.add(now, at_ms, counts.clone());
            history.points(now, at_ms, &counts)
        };
        assert_eq!(add(0, counts(100, 7, 0)), []);
        let first = Point {
            at_ms: 10_000,
            span_ms: 10_000,
            decisions: 50,
            denied: 0,
            by_policy: 2,
            p99_us: Some(50),
        };
        assert_eq!(add(10, counts(150, 9, 0)), [first]);
        let slow = Point {
            at_ms: 20_000,
            span_ms: 10_000,
            decisions: 50,
            denied: 0,
            by_policy: 0,
            p99_us: Some(1_000_000),
        };
        assert_eq!(add(20, counts(200, 9, 1)), [first, slow]);
        let quiet = add(30, counts(200, 9, 1)).pop().unwrap();
        assert_eq!((quiet.decisions, quiet.p99_us), (0, None));
        // The point that is not over yet is shown, and kept only when it is.
        let (now, at_ms) = at(34);
        let shown = history.points(now, at_ms, &counts(240, 9, 1));
        assert_eq!(
            (shown.len(), shown[3].span_ms, shown[3].decisions),
            (4, 4_000, 40)
        );
        assert_eq!(history.points.len(), 3);
    }

    #[test]
    fn a_quarter_of_an_hour_is_kept() {
        let mut history = History::default();
        let start = monotonic();
        for point in 0..500 {
            history.add(
                start + POINT_EVERY * point,
                u64::from(point) * 10_000,
                counts(u64::from(point), 0, 0),
            );
        }
        assert_eq!(
            (history.points.len(), history.points[0].at_ms),
            (POINTS_MAX, 4_100_000)
        );
        assert_eq!(
            POINT_EVERY * u32::try_from(POINTS_MAX).unwrap(),
            Duration::from_secs(15 * 60)
        );
    }
}
