//! A limit's fingerprint, and the bytes that stand for it in Redis.

use smallvec::SmallVec;

use super::limit::{Algorithm, Anchor, PRECISION_DEFAULT};

/// Windows up to here (24.8 days) are told apart by the millisecond, longer ones by the second; see [`Shape`].
pub(super) const MILLISECOND_WINDOW_MAX: u64 = (1 << 31) - 1;

/// A limit's fingerprint: algorithm, anchor, precision and window, but no quota and no burst, so that an edit of those keeps
/// the key's usage while any other edit starts the limit fresh.
///
/// Shape: 40 bits, free of collisions. The upper byte is the kind, or 128 and the precision of a `sliding_window`; the lower
/// 32 bits hold the window, in milliseconds up to 2^31 - 1, or in seconds with the top bit set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape(u64);

impl Shape {
    pub(super) fn of(algorithm: Algorithm, window_us: u64) -> Self {
        let tag = match algorithm {
            Algorithm::SlidingWindow { precision } => PRECISE | precision,
            other => kind(other),
        };
        Self(u64::from(tag) << 32 | window_code(window_us / 1_000))
    }

    /// Five bytes that stand for this shape in memory.
    pub fn to_fixed_bytes(self) -> [u8; 5] {
        let [b0, b1, b2, b3, b4, ..] = self.0.to_le_bytes();
        [b0, b1, b2, b3, b4]
    }

    /// The shape that [`Self::to_fixed_bytes`] gave these of.
    pub fn from_fixed_bytes([b0, b1, b2, b3, b4]: [u8; 5]) -> Self {
        Self(u64::from_le_bytes([b0, b1, b2, b3, b4, 0, 0, 0]))
    }

    /// The window, in microseconds.
    pub fn window_us(self) -> u64 {
        let window = self.0 & u64::from(u32::MAX);
        if window <= MILLISECOND_WINDOW_MAX { window * 1_000 } else { (window - MILLISECOND_WINDOW_MAX - 1) * 1_000_000 }
    }

    /// The bytes that stand for this shape in Redis, 1 to 6, so that no shape is a beginning of another: a head that holds
    /// the kind and, five bits, the window's place among [`COMMON_WINDOWS_MS`], or 31; the precision, unless it is the
    /// default; the window, least byte first, unless it is common.
    pub fn bytes(self) -> SmallVec<[u8; 6]> {
        let [w0, w1, w2, w3, tag, ..] = self.0.to_le_bytes();
        let kind = match tag {
            tag if tag < PRECISE => tag,
            tag => kind(Algorithm::SlidingWindow { precision: tag - PRECISE }),
        };
        let mut windows = COMMON_WINDOWS_MS.iter().zip(0..NOT_COMMON);
        let place = windows.find(|(ms, _)| window_code(**ms) == self.0 & u64::from(u32::MAX)).map(|(_, place)| place);
        let mut bytes = SmallVec::new();
        bytes.push(kind | place.unwrap_or(NOT_COMMON) << 3);
        if kind == KIND_SLIDING_WINDOW_OTHER {
            bytes.push(tag - PRECISE);
        }
        if place.is_none() {
            bytes.extend([w0, w1, w2, w3]);
        }
        bytes
    }
}

fn window_code(milliseconds: u64) -> u64 {
    if milliseconds <= MILLISECOND_WINDOW_MAX { milliseconds } else { 1 << 31 | (milliseconds / 1_000) }
}

/// Three bits: how a limit counts, with what that takes to be one shape.
pub(super) fn kind(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::FixedWindow { anchor: Anchor::Clock } => 0,
        Algorithm::FixedWindow { anchor: Anchor::FirstRequest } => 1,
        // Not 2, which was a bucket that did not know its rate.
        Algorithm::TokenBucket { .. } => 7,
        Algorithm::SlidingCounter => 3,
        Algorithm::SlidingWindow { precision: PRECISION_DEFAULT } => 4,
        Algorithm::SlidingWindow { .. } => KIND_SLIDING_WINDOW_OTHER,
        Algorithm::SlidingLog => 6,
    }
}

const KIND_SLIDING_WINDOW_OTHER: u8 = 5;

/// In a shape's upper byte: what follows is a precision, which is below this.
const PRECISE: u8 = 128;

/// In the place of a window's place among [`COMMON_WINDOWS_MS`]: it has none. The largest number of five bits.
const NOT_COMMON: u8 = 31;

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Windows that most limits have, in milliseconds. In Redis each costs no byte, where another costs four, which lifts a key
/// into the allocator's next size. Part of what is stored: places never change their meaning.
pub const COMMON_WINDOWS_MS: [u64; 31] = [
    SECOND_MS,
    2 * SECOND_MS,
    5 * SECOND_MS,
    10 * SECOND_MS,
    15 * SECOND_MS,
    20 * SECOND_MS,
    30 * SECOND_MS,
    MINUTE_MS,
    2 * MINUTE_MS,
    5 * MINUTE_MS,
    10 * MINUTE_MS,
    15 * MINUTE_MS,
    20 * MINUTE_MS,
    30 * MINUTE_MS,
    HOUR_MS,
    2 * HOUR_MS,
    3 * HOUR_MS,
    4 * HOUR_MS,
    6 * HOUR_MS,
    8 * HOUR_MS,
    12 * HOUR_MS,
    DAY_MS,
    2 * DAY_MS,
    3 * DAY_MS,
    7 * DAY_MS,
    14 * DAY_MS,
    28 * DAY_MS,
    30 * DAY_MS,
    31 * DAY_MS,
    90 * DAY_MS,
    365 * DAY_MS,
];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::{Limit, WINDOW_MAX, WINDOW_MIN};

    const MINUTE: Duration = Duration::from_secs(60);
    const FIXED: Algorithm = Algorithm::FixedWindow { anchor: Anchor::Clock };

    #[test]
    fn shapes_differ_by_all_but_quota_and_burst_and_tell_their_window() {
        let shape = |quota, window, algorithm| Limit::new("l", quota, window, algorithm).unwrap().shape();
        let shapes = [
            shape(1, MINUTE, FIXED),
            shape(1, MINUTE, Algorithm::FixedWindow { anchor: Anchor::FirstRequest }),
            shape(1, MINUTE, Algorithm::SlidingLog),
            shape(1, MINUTE, Algorithm::SlidingCounter),
            shape(1, MINUTE, Algorithm::TokenBucket { burst: 1 }),
            shape(1, MINUTE, Algorithm::SlidingWindow { precision: 2 }),
            shape(1, MINUTE, Algorithm::SlidingWindow { precision: 64 }),
            shape(1, MINUTE * 2, FIXED),
            shape(1, Duration::from_secs(60 * 24 * 3600), FIXED),
            shape(1, Duration::from_millis(60 * 24 * 3600), FIXED),
        ];
        for (i, a) in shapes.iter().enumerate() {
            assert!(shapes[i + 1..].iter().all(|b| a != b && a.bytes() != b.bytes()), "{a:?}");
        }
        for window in [MINUTE, MINUTE * 2, Duration::from_secs(60 * 24 * 3600), WINDOW_MIN, WINDOW_MAX] {
            let shape = shape(1, window, FIXED);
            let read = Shape::from_fixed_bytes(shape.to_fixed_bytes());
            assert_eq!((read, u128::from(shape.window_us())), (shape, window.as_micros()));
        }
        // One byte where the window is common, and no shape begins another.
        assert_eq!((shapes[0].bytes().len(), shapes[5].bytes().len(), shapes[8].bytes().len()), (1, 2, 5));
        assert_eq!(shape(1, MINUTE, Algorithm::TokenBucket { burst: 1 }), shape(9, MINUTE, Algorithm::TokenBucket { burst: 5 }));
    }

    #[test]
    fn a_common_window_above_24_days_has_its_place() {
        let shape = |days: u64| Shape::of(FIXED, days * 24 * 3_600 * 1_000_000).bytes();
        assert_eq!(shape(28)[..], [26 << 3]);
        assert_eq!(shape(365)[..], [30 << 3]);
        assert_eq!(shape(29)[..], [&[31 << 3][..], &((1 << 31) | (29 * 24 * 3_600_u32)).to_le_bytes()].concat());
    }
}
