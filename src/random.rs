//! Random numbers, for example to spread what many processes would do at one moment.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A random number, all values equally likely.
pub(crate) fn bits() -> u64 {
    // The keys of `RandomState` are the standard library's source of randomness.
    RandomState::new().hash_one(())
}

/// A duration that is longer or shorter by up to this share of it: by all of it at the least and the greatest `random`.
#[expect(clippy::cast_precision_loss, reason = "a pause need not be exact")]
pub(crate) fn jittered(duration: Duration, share: f64, random: u64) -> Duration {
    let position = random as f64 / u64::MAX as f64;
    duration.mul_f64(1.0 - share + 2.0 * share * position)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_varies_by_its_share_at_most() {
        let second = Duration::from_secs(1);
        let bounds = [0, u64::MAX / 2, u64::MAX].map(|random| jittered(second, 0.1, random).as_millis());
        assert_eq!(bounds, [900, 1_000, 1_100]);
        assert_ne!(bits(), bits());
    }
}
