//! Random numbers from the system's generator: for secrets, and to spread what many processes would do at one moment.

use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};

/// Random bytes, fit for secrets.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .expect("the system gives random bytes to every process");
    bytes
}

/// A random number, all values equally likely.
pub fn bits() -> u64 {
    u64::from_ne_bytes(bytes())
}

/// A duration that is longer or shorter by up to this share of it: by all of it at the least and the greatest `random`.
#[expect(clippy::cast_precision_loss, reason = "a pause need not be exact")]
pub fn jittered(duration: Duration, share: f64, random: u64) -> Duration {
    let position = random as f64 / u64::MAX as f64;
    duration.mul_f64(1.0 - share + 2.0 * share * position)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_varies_by_its_share_at_most() {
        let second = Duration::from_secs(1);
        let bounds =
            [0, u64::MAX / 2, u64::MAX].map(|random| jittered(second, 0.1, random).as_millis());
        assert_eq!(bounds, [900, 1_000, 1_100]);
        assert_ne!(bits(), bits());
    }
}
