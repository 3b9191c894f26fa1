//! One log line for many similar events, so that callers who cause them cannot flood the log.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Decides when a line is due, and counts the events since the last one.
#[derive(Debug)]
pub struct LogThrottle {
    every: Duration,
    state: Mutex<ThrottleState>,
}

#[derive(Debug, Default)]
struct ThrottleState {
    last: Option<Instant>,
    since: u64,
}

impl LogThrottle {
    /// At most one line within `every`.
    pub fn new(every: Duration) -> Self {
        Self {
            every,
            state: Mutex::default(),
        }
    }

    /// Counts an event. Returns `Some` when a line is due now, with the number of events since the last line, this one
    /// included.
    pub fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.since += 1;
        if state
            .last
            .is_some_and(|last| now.saturating_duration_since(last) < self.every)
        {
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_store::clock::monotonic;

    #[test]
    fn the_first_event_is_logged_at_once_and_later_ones_together() {
        const EVERY: Duration = Duration::from_secs(10);
        let throttle = LogThrottle::new(EVERY);
        let start = monotonic();
        assert_eq!(throttle.due(start), Some(1));
        assert_eq!(
            (0..99)
                .filter_map(|_| throttle.due(start + EVERY - Duration::from_nanos(1)))
                .count(),
            0
        );
        assert_eq!(throttle.due(start + EVERY), Some(100));
        assert_eq!(throttle.due(start + 3 * EVERY), Some(1));
    }
}
