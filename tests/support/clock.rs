//! A clock that the test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::clock::Clock;

/// Start of fake time, in the year 2096. So a real Redis, with its real clock, reaches no expiry that is set by fake time.
pub const START_US: u64 = 4_000_000_000_000_000;

#[derive(Clone)]
pub struct FakeClock(Arc<AtomicU64>);

impl FakeClock {
    pub fn new() -> Self {
        Self(Arc::new(AtomicU64::new(START_US)))
    }

    pub fn set(&self, now_us: u64) {
        self.0.store(now_us, Ordering::SeqCst);
    }

    pub fn advance(&self, us: u64) {
        self.0.fetch_add(us, Ordering::SeqCst);
    }
}

impl Clock for FakeClock {
    fn now_us(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
