//! One log line for many failures: a store that is down fails every decision, and thousands of lines a second help nobody.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::store::StoreError;

/// Between two lines.
const EVERY: Duration = Duration::from_secs(10);

/// Counts failures and logs them together.
#[derive(Default)]
pub(super) struct FailureLog {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: Option<Instant>,
    since: u64,
}

impl FailureLog {
    /// Notes one failure; logs at the first and then at most every ten seconds.
    pub(super) fn note(&self, error: &StoreError, now: Instant) {
        if let Some(decisions) = self.due(now) {
            tracing::warn!(kind = error.kind(), %error, decisions, "the store could not decide; answered by the plan's on_store_failure");
        }
    }

    /// How many failures a line written now speaks of; `None` when it is not time for one.
    fn due(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.since += 1;
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[test]
    fn failures_between_two_lines_are_told_by_the_second() {
        let (log, start) = (FailureLog::default(), monotonic());
        assert_eq!(log.due(start), Some(1));
        assert_eq!((0..99).filter_map(|_| log.due(start)).count(), 0);
        assert_eq!(log.due(start + EVERY), Some(100));
    }
}
