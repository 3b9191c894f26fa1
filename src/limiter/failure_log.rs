//! One log line for many failures: a store that is down fails every decision, and thousands of lines a second help nobody.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::store::StoreError;

/// Between two lines.
const EVERY: Duration = Duration::from_secs(10);

/// Counts failures by kind and logs those of a kind together.
#[derive(Default)]
pub(super) struct FailureLog {
    kinds: Mutex<HashMap<&'static str, State>>,
}

#[derive(Default)]
struct State {
    last: Option<Instant>,
    since: u64,
}

impl FailureLog {
    /// Notes one failure; logs the first of its kind and then at most every ten seconds.
    pub(super) fn note(&self, error: &StoreError, now: Instant) {
        if let Some(decisions) = self.due(error.kind(), now) {
            tracing::warn!(kind = error.kind(), %error, decisions, "the store could not decide; answered by the plan's on_store_failure");
        }
    }

    /// How many failures a line written now speaks of; `None` when it is not time for one.
    fn due(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let state = kinds.entry(kind).or_default();
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
        assert_eq!(log.due("deadline", start), Some(1));
        assert_eq!((0..99).filter_map(|_| log.due("deadline", start)).count(), 0);
        assert_eq!(log.due("deadline", start + EVERY), Some(100));
        assert_eq!(log.due("refused", start), Some(1));
    }
}
