//! Logs failures of the store, many of them in one line. A store that is down fails every decision, and a line for each would
//! fill the log.

use std::time::{Duration, Instant};

use crate::log_throttle::LogThrottle;
use crate::store::StoreError;

/// Least time between two lines about failures of one kind.
const EVERY: Duration = Duration::from_secs(10);

/// Counts failures by kind, and logs those of one kind together.
pub(super) struct FailureLog([LogThrottle; StoreError::KINDS.len()]);

impl Default for FailureLog {
    fn default() -> Self {
        Self(std::array::from_fn(|_| LogThrottle::new(EVERY)))
    }
}

impl FailureLog {
    /// Counts one failure. Logs the first of its kind, and then one line per kind in ten seconds.
    pub(super) fn log(&self, error: &StoreError, now: Instant) {
        if let Some(decisions) = self.0[error.kind_index()].due(now) {
            tracing::warn!(kind = error.kind(), %error, decisions, "the store could not decide; answered by the plan's on_store_failure");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[test]
    fn each_kind_of_failure_has_lines_of_its_own() {
        let (log, now) = (FailureLog::default(), monotonic());
        let due = |error: StoreError| log.0[error.kind_index()].due(now);
        assert_eq!(due(StoreError::Full), Some(1));
        assert_eq!(due(StoreError::Full), None);
        assert_eq!(due(StoreError::Refused(String::new())), Some(1));
    }
}
