//! The only reader of time.
//!
//! Decisions take their time from here (memory store) or from Redis. Nothing else may call `SystemTime::now` or `Instant::now`;
//! `.clippy.toml` forbids it.

use std::time::{Duration, Instant, SystemTime};

/// Gives the wall time for decisions of an embedded store, and the monotonic time for deadlines and remembered denials.
pub trait Clock: Send + Sync + 'static {
    /// Microseconds since 1970-01-01T00:00:00Z. May step back; algorithms clamp.
    fn now_us(&self) -> u64;

    /// A point in monotonic time. Default: [`monotonic`].
    fn monotonic(&self) -> Instant {
        monotonic()
    }
}

/// The system's wall clock, so that clock-aligned windows match the time that people read.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the one reader of wall time")]
    fn now_us(&self) -> u64 {
        let since_1970 = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
    }
}

/// A point in monotonic time, for deadlines.
#[expect(
    clippy::disallowed_methods,
    reason = "the one reader of monotonic time"
)]
#[inline]
pub fn monotonic() -> Instant {
    Instant::now()
}
