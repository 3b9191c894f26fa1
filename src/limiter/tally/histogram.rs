//! How long things took: counts by bounds that suit decisions, from a thousandth of the default deadline to beyond it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;

/// Upper bounds of the buckets in nanoseconds, each included. The first is half of a round trip to a Redis nearby; 25 ms is
/// the default deadline, and 30 ms is what an answer may take at the most when Redis is lost; a second is more than enough
/// for a deadline that somebody raised.
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

/// Counts by [`BOUNDS_NS`], and one more for what is above the last.
#[derive(Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    pub(super) fn note(&self, took: Duration) {
        // Half a millennium fits, of all that is ever noted together.
        let ns = took.as_nanos() as u64;
        if ns == 0 {
            // Nothing to add up: what did not wait.
            self.buckets[0].fetch_add(1, Ordering::Relaxed);
            return;
        }
        // One by one: nearly all are below the first or the second.
        let bucket = BOUNDS_NS.iter().position(|bound| ns <= *bound).unwrap_or(BOUNDS_NS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// What histograms add up to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timings {
    /// How many took at most the bound of the same place in [`BOUNDS_NS`] and more than the one before; the last has none.
    pub buckets: [u64; BOUNDS_NS.len() + 1],
    /// All together, in nanoseconds.
    pub sum_ns: u64,
}

impl Timings {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub(super) fn add(&mut self, histogram: &Histogram) {
        for (total, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *total += bucket.load(Ordering::Relaxed);
        }
        self.sum_ns = self.sum_ns.wrapping_add(histogram.sum_ns.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_rise_and_each_is_within_its_own_bucket() {
        assert!(BOUNDS_NS.is_sorted_by(|a, b| a < b));
        for (place, bound) in BOUNDS_NS.iter().enumerate() {
            let histogram = Histogram::default();
            histogram.note(Duration::from_nanos(*bound));
            histogram.note(Duration::from_nanos(bound + 1));
            let mut timings = Timings::default();
            timings.add(&histogram);
            assert_eq!((timings.buckets[place], timings.buckets[place + 1], timings.count()), (1, 1, 2), "{bound}");
            assert_eq!(timings.sum_ns, 2 * bound + 1);
        }
    }
}
