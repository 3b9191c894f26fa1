//! A histogram of durations. Its bounds suit decisions: from a five-hundredth of the default deadline to far beyond it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// Upper bounds of the buckets in nanoseconds, inclusive. The first is half of a round trip to a nearby Redis. 25 ms is the
/// default deadline, and 30 ms the most that an answer may take when Redis is lost. One second is more than enough for a raised
/// deadline.
pub const BOUNDS_NS: [u64; 15] = [
    50 * US,
    100 * US,
    250 * US,
    500 * US,
    MS,
    2 * MS + 500 * US,
    5 * MS,
    10 * MS,
    15 * MS,
    25 * MS,
    30 * MS,
    50 * MS,
    100 * MS,
    250 * MS,
    1000 * MS,
];

/// Counts by [`BOUNDS_NS`], with one more bucket above the last bound.
#[derive(Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "584 years of nanoseconds fit, and so does the sum of all waits"
    )]
    pub(super) fn record(&self, took: Duration) {
        let ns = took.as_nanos() as u64;
        if ns == 0 {
            // A decision that did not wait adds nothing to the sum.
            self.buckets[0].fetch_add(1, Ordering::Relaxed);
            return;
        }
        // A linear search: nearly all durations are in the first or second bucket.
        let bucket = BOUNDS_NS
            .iter()
            .position(|bound| ns <= *bound)
            .unwrap_or(BOUNDS_NS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// Sums of histograms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timings {
    /// Number of durations per bucket: above the previous bound of [`BOUNDS_NS`] and up to its own. The last has no bound.
    pub buckets: [u64; BOUNDS_NS.len() + 1],
    /// Sum of all durations, in nanoseconds.
    pub sum_ns: u64,
}

impl Timings {
    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub(super) fn add(&mut self, histogram: &Histogram) {
        for (total, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *total += bucket.load(Ordering::Relaxed);
        }
        self.sum_ns = self
            .sum_ns
            .wrapping_add(histogram.sum_ns.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_rise_and_each_is_within_its_own_bucket() {
        assert!(BOUNDS_NS.is_sorted_by(|a, b| a < b));
        for (index, bound) in BOUNDS_NS.iter().enumerate() {
            let histogram = Histogram::default();
            histogram.record(Duration::from_nanos(*bound));
            histogram.record(Duration::from_nanos(bound + 1));
            let mut timings = Timings::default();
            timings.add(&histogram);
            assert_eq!(
                (
                    timings.buckets[index],
                    timings.buckets[index + 1],
                    timings.count()
                ),
                (1, 1, 2),
                "{bound}"
            );
            assert_eq!(timings.sum_ns, 2 * bound + 1);
        }
    }
}
