//! A limit's fingerprint, and its encoding in Redis.

use smallvec::SmallVec;

use super::calendar::Calendar;
use super::limit::{Algorithm, Anchor, PRECISION_DEFAULT};

/// The longest window with millisecond resolution, in milliseconds (24.8 days). Longer ones have a resolution of a second. See
/// [`LimitFingerprint`].
pub(super) const MILLISECOND_WINDOW_MAX: u64 = (1 << 31) - 1;

/// A limit's fingerprint: algorithm, anchor, precision and window, but not quota and burst. So an edit of quota or burst keeps
/// the key's usage, and any other edit starts the limit fresh.
///
/// It has 40 bits and no collisions. The upper byte is the kind, or 128 plus the precision of a `sliding_window`. The lower 32
/// bits hold the window: in milliseconds up to 2^31 - 1, or in seconds with the top bit set. A calendar window has the two top bits
/// set, and below them its unit with its first day, and a hash of its zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LimitFingerprint(u64);

impl LimitFingerprint {
    #[inline]
    pub(super) fn new(algorithm: Algorithm, window_us: u64) -> Self {
        let tag = match algorithm {
            Algorithm::SlidingWindow { precision } => PRECISION_FLAG | precision,
            other => RecordKind::for_algorithm(other).number(),
        };
        Self(u64::from(tag) << 32 | window_code(window_us / 1_000))
    }

    /// That of a `fixed_window` of calendar windows.
    #[inline]
    pub(super) fn for_calendar(calendar: &Calendar) -> Self {
        let kind = RecordKind::FixedWindowByClock.number();
        Self(u64::from(kind) << 32 | SECONDS_FLAG | u64::from(calendar.code()))
    }

    /// Encodes the fingerprint in five bytes, for use in memory.
    #[inline]
    pub fn to_fixed_bytes(self) -> [u8; 5] {
        let [b0, b1, b2, b3, b4, ..] = self.0.to_le_bytes();
        [b0, b1, b2, b3, b4]
    }

    /// Decodes the result of [`Self::to_fixed_bytes`].
    #[inline]
    pub fn from_fixed_bytes([b0, b1, b2, b3, b4]: [u8; 5]) -> Self {
        Self(u64::from_le_bytes([b0, b1, b2, b3, b4, 0, 0, 0]))
    }

    /// The window, in microseconds. Of calendar windows, none is longer.
    #[inline]
    pub fn window_us(self) -> u64 {
        let [w0, w1, w2, w3, ..] = self.0.to_le_bytes();
        let window = u64::from(u32::from_le_bytes([w0, w1, w2, w3]));
        if window <= MILLISECOND_WINDOW_MAX {
            return window * 1_000;
        }
        let code = u32::from_le_bytes([w0, w1, w2, w3 & 0x7f]);
        Calendar::longest_of_code(code).unwrap_or_else(|| u64::from(code) * 1_000_000)
    }

    /// Encodes the fingerprint for Redis in 1 to 6 bytes. No encoding is a prefix of another.
    /// - A head: the kind, and in five bits the window's index in [`COMMON_WINDOWS_MS`], or 31 for no common window.
    /// - The precision, unless it is the default.
    /// - The window, least significant byte first, unless it is common.
    pub fn bytes(self) -> SmallVec<[u8; 6]> {
        let [w0, w1, w2, w3, tag, ..] = self.0.to_le_bytes();
        let kind = match tag {
            tag if tag < PRECISION_FLAG => tag,
            tag => RecordKind::for_algorithm(Algorithm::SlidingWindow {
                precision: tag - PRECISION_FLAG,
            })
            .number(),
        };
        let mut windows = COMMON_WINDOWS_MS.iter().zip(0..NOT_COMMON);
        let common = windows
            .find(|(ms, _)| window_code(**ms) == self.0 & u64::from(u32::MAX))
            .map(|(_, index)| index);
        let mut bytes = SmallVec::new();
        bytes.push(kind | common.unwrap_or(NOT_COMMON) << 3);
        if kind == RecordKind::SlidingWindowOfPrecision.number() {
            bytes.push(tag - PRECISION_FLAG);
        }
        if common.is_none() {
            bytes.extend([w0, w1, w2, w3]);
        }
        bytes
    }
}

/// The window in the lower 32 bits of a fingerprint; see [`LimitFingerprint`].
fn window_code(milliseconds: u64) -> u64 {
    if milliseconds <= MILLISECOND_WINDOW_MAX {
        milliseconds
    } else {
        SECONDS_FLAG | (milliseconds / 1_000)
    }
}

/// The top bit of a window's 32: the others are not milliseconds.
const SECONDS_FLAG: u64 = 1 << 31;

/// The kind of a limit's record: the algorithm, its anchor, and whether its precision is the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// `fixed_window` whose windows begin by the clock.
    FixedWindowByClock,
    /// `fixed_window` whose windows begin with a request.
    FixedWindowByFirstRequest,
    /// `sliding_counter`.
    SlidingCounter,
    /// `sliding_window` of the default precision.
    SlidingWindow,
    /// `sliding_window` of another precision, which its fingerprint holds.
    SlidingWindowOfPrecision,
    /// `sliding_log`, whose records are a list of their own.
    SlidingLog,
    /// `token_bucket`.
    TokenBucket,
}

impl RecordKind {
    /// Every kind, and its name in the Redis script.
    pub const NAMES: [(Self, &'static str); 7] = [
        (Self::FixedWindowByClock, "FIXED_WINDOW_BY_CLOCK"),
        (
            Self::FixedWindowByFirstRequest,
            "FIXED_WINDOW_BY_FIRST_REQUEST",
        ),
        (Self::SlidingCounter, "SLIDING_COUNTER"),
        (Self::SlidingWindow, "SLIDING_WINDOW"),
        (
            Self::SlidingWindowOfPrecision,
            "SLIDING_WINDOW_OF_PRECISION",
        ),
        (Self::SlidingLog, "SLIDING_LOG"),
        (Self::TokenBucket, "TOKEN_BUCKET"),
    ];

    #[inline]
    pub(super) fn for_algorithm(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow {
                anchor: Anchor::Clock,
            } => Self::FixedWindowByClock,
            Algorithm::FixedWindow {
                anchor: Anchor::FirstRequest,
            } => Self::FixedWindowByFirstRequest,
            Algorithm::SlidingCounter => Self::SlidingCounter,
            Algorithm::SlidingWindow {
                precision: PRECISION_DEFAULT,
            } => Self::SlidingWindow,
            Algorithm::SlidingWindow { .. } => Self::SlidingWindowOfPrecision,
            Algorithm::SlidingLog => Self::SlidingLog,
            Algorithm::TokenBucket { .. } => Self::TokenBucket,
        }
    }

    /// The number that stored records have, 0 to 7. It is part of the stored format and must never change. 2 is free. The kind that
    /// takes it is the last one that the head of a fingerprint has room for: a further one needs a byte behind the head.
    #[inline]
    pub fn number(self) -> u8 {
        match self {
            Self::FixedWindowByClock => 0,
            Self::FixedWindowByFirstRequest => 1,
            Self::SlidingCounter => 3,
            Self::SlidingWindow => 4,
            Self::SlidingWindowOfPrecision => 5,
            Self::SlidingLog => 6,
            Self::TokenBucket => 7,
        }
    }
}

/// Flag in a fingerprint's upper byte: the other seven bits are a precision, which is below this number.
const PRECISION_FLAG: u8 = 128;

/// In place of an index into [`COMMON_WINDOWS_MS`]: the window is not common. The largest number of five bits.
const NOT_COMMON: u8 = 31;

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Common windows, in milliseconds. In Redis they cost no extra byte. Other windows cost four, which moves a key into the
/// allocator's next size. The order is part of the stored format and must never change.
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
    const FIXED: Algorithm = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };

    #[test]
    fn fingerprints_differ_by_all_but_quota_and_burst_and_hold_their_window() {
        let fingerprint = |quota, window, algorithm| {
            Limit::new("l", quota, window, algorithm)
                .unwrap()
                .fingerprint()
        };
        let fingerprints = [
            fingerprint(1, MINUTE, FIXED),
            fingerprint(
                1,
                MINUTE,
                Algorithm::FixedWindow {
                    anchor: Anchor::FirstRequest,
                },
            ),
            fingerprint(1, MINUTE, Algorithm::SlidingLog),
            fingerprint(1, MINUTE, Algorithm::SlidingCounter),
            fingerprint(1, MINUTE, Algorithm::TokenBucket { burst: 1 }),
            fingerprint(1, MINUTE, Algorithm::SlidingWindow { precision: 2 }),
            fingerprint(1, MINUTE, Algorithm::SlidingWindow { precision: 64 }),
            fingerprint(1, MINUTE * 2, FIXED),
            fingerprint(1, Duration::from_secs(60 * 24 * 3600), FIXED),
            fingerprint(1, Duration::from_millis(60 * 24 * 3600), FIXED),
        ];
        for (i, a) in fingerprints.iter().enumerate() {
            assert!(
                fingerprints[i + 1..]
                    .iter()
                    .all(|b| a != b && a.bytes() != b.bytes()),
                "{a:?}"
            );
        }
        for window in [
            MINUTE,
            MINUTE * 2,
            Duration::from_secs(60 * 24 * 3600),
            WINDOW_MIN,
            WINDOW_MAX,
        ] {
            let fingerprint = fingerprint(1, window, FIXED);
            let read = LimitFingerprint::from_fixed_bytes(fingerprint.to_fixed_bytes());
            assert_eq!(
                (read, u128::from(fingerprint.window_us())),
                (fingerprint, window.as_micros())
            );
        }
        // One byte for a common window, and no encoding is a prefix of another.
        assert_eq!(
            (
                fingerprints[0].bytes().len(),
                fingerprints[5].bytes().len(),
                fingerprints[8].bytes().len()
            ),
            (1, 2, 5)
        );
        assert_eq!(
            fingerprint(1, MINUTE, Algorithm::TokenBucket { burst: 1 }),
            fingerprint(9, MINUTE, Algorithm::TokenBucket { burst: 5 })
        );
    }

    /// A number above 7 would be read as another algorithm's common window.
    #[test]
    fn every_algorithm_has_a_number_of_three_bits_for_itself() {
        let mut numbers =
            Algorithm::EVERY.map(|algorithm| RecordKind::for_algorithm(algorithm).number());
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 3, 4, 5, 6, 7]);
        let mut named = RecordKind::NAMES.map(|(kind, _)| kind.number());
        named.sort_unstable();
        assert_eq!(named, numbers);
    }

    #[test]
    fn a_common_window_above_24_days_is_encoded_by_its_index() {
        let fingerprint =
            |days: u64| LimitFingerprint::new(FIXED, days * 24 * 3_600 * 1_000_000).bytes();
        assert_eq!(fingerprint(28)[..], [26 << 3]);
        assert_eq!(fingerprint(365)[..], [30 << 3]);
        assert_eq!(
            fingerprint(29)[..],
            [
                &[31 << 3][..],
                &((1 << 31) | (29 * 24 * 3_600_u32)).to_le_bytes()
            ]
            .concat()
        );
    }
}
