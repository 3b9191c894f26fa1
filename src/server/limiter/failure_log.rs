//! Logs failures of the store, many of them in one line. A store that is down fails every decision, and a line for each would
//! fill the log. It also knows whether a store that is there refuses requests.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::field::display;

use crate::log_throttle::LogThrottle;
use tollgate_store::StoreError;
use tollgate_store::clock::Clock;

/// Least time between two lines about failures of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How long the last line about a refusal counts as present. Refusals that go on have a line every [`LOG_INTERVAL`].
const PRESENT_FOR: Duration = Duration::from_secs(15);

/// Counts failures by kind, and logs those of one kind together.
pub(super) struct FailureLog {
    throttles: [LogThrottle; StoreError::KINDS.len()],
    refusals: Mutex<Option<StoreRefusals>>,
    /// Whether there were refusals whose end was not logged. A decision reads only this while the store is well.
    is_refusing: AtomicBool,
}

/// Refusals of a store that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoreRefusals {
    /// When the first was logged.
    pub since: Instant,
    last: Instant,
    /// The last error.
    pub error: StoreError,
}

impl Default for FailureLog {
    fn default() -> Self {
        Self {
            throttles: std::array::from_fn(|_| LogThrottle::new(LOG_INTERVAL)),
            refusals: Mutex::default(),
            is_refusing: AtomicBool::new(false),
        }
    }
}

impl FailureLog {
    /// Counts one failure. Logs the first of its kind, and then one line per kind in ten seconds. What the store says against a request
    /// may be about its key alone: then the line names the plan, and the key as elsewhere.
    pub(super) fn log<P: fmt::Display, K: fmt::Display>(
        &self,
        error: &StoreError,
        now: Instant,
        subject: Option<impl FnOnce() -> (P, K)>,
    ) {
        let Some(decisions) = self.throttles[error.kind_index()].due(now) else {
            return;
        };
        self.keep(error, now);
        let may_be_of_key = matches!(error, StoreError::Refused(_) | StoreError::InvalidReply(_));
        let (plan, key_hash) = subject
            .filter(|_| may_be_of_key)
            .map(|subject| subject())
            .unzip();
        let plan = plan.map(display);
        let key_hash = key_hash.map(display);
        tracing::warn!(kind = error.kind(), %error, decisions, plan, key_hash, "the store could not decide; answered by the plan's on_store_failure");
    }

    /// Keeps a refusal. Other errors are told by the connections.
    fn keep(&self, error: &StoreError, now: Instant) {
        if let StoreError::Refused(_) | StoreError::InvalidReply(_) | StoreError::Full = error {
            let since = self.refusals(now).map_or(now, |refusals| refusals.since);
            let refusals = StoreRefusals {
                since,
                last: now,
                error: error.clone(),
            };
            *self.refusals.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusals);
            self.is_refusing.store(true, Ordering::Relaxed);
        }
    }

    /// The store decided. Logs that once if it refused before and has not for [`PRESENT_FOR`].
    #[inline]
    pub(super) fn decided(&self, clock: &dyn Clock) {
        if self.is_refusing.load(Ordering::Relaxed) && self.has_ended(clock.monotonic()) {
            tracing::info!("the store decides again and refuses nothing any more");
        }
    }

    /// Forgets refusals that are not present any more. Returns whether it did.
    #[cold]
    fn has_ended(&self, now: Instant) -> bool {
        // Where another thread has the lock, a later decision finds out.
        let Ok(mut refusals) = self.refusals.try_lock() else {
            return false;
        };
        let is_over = |refusals: &mut StoreRefusals| {
            now.saturating_duration_since(refusals.last) >= PRESENT_FOR
        };
        let has_ended = refusals.take_if(is_over).is_some();
        if has_ended {
            self.is_refusing.store(false, Ordering::Relaxed);
        }
        has_ended
    }

    /// The refusals that go on at present.
    pub(super) fn refusals(&self, now: Instant) -> Option<StoreRefusals> {
        let refusals = self
            .refusals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        refusals.filter(|refusals| now.saturating_duration_since(refusals.last) < PRESENT_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody() -> (&'static str, &'static str) {
        ("", "")
    }
    use tollgate_store::clock::monotonic;

    #[test]
    fn each_kind_of_failure_has_lines_of_its_own() {
        let log = FailureLog::default();
        let now = monotonic();
        let due = |error: StoreError| log.throttles[error.kind_index()].due(now);
        assert_eq!(due(StoreError::Full), Some(1));
        assert_eq!(due(StoreError::Full), None);
        assert_eq!(due(StoreError::Refused(String::new())), Some(1));
    }

    #[test]
    fn refusals_are_present_while_they_go_on_and_a_lost_connection_is_none() {
        let log = FailureLog::default();
        let start = monotonic();
        let at = |second| start + Duration::from_secs(second);
        log.log(
            &StoreError::Unreachable("gone".to_owned()),
            start,
            Some(nobody),
        );
        log.log(&StoreError::Deadline(Duration::ZERO), start, Some(nobody));
        assert_eq!(log.refusals(start), None);
        (0..=25).for_each(|second| {
            log.log(
                &StoreError::Refused("OOM".to_owned()),
                at(second),
                Some(nobody),
            )
        });
        let refusals = log.refusals(at(25)).unwrap();
        assert_eq!(
            (refusals.since, refusals.error),
            (start, StoreError::Refused("OOM".to_owned()))
        );
        assert!(log.refusals(at(34)).is_some());
        assert_eq!(log.refusals(at(35)), None);
    }

    #[test]
    fn the_end_of_refusals_is_told_once_and_not_while_they_go_on() {
        let log = FailureLog::default();
        let start = monotonic();
        let at = |second| start + Duration::from_secs(second);
        let is_told = |second| log.is_refusing.load(Ordering::Relaxed) && log.has_ended(at(second));
        assert!(!is_told(0), "nothing was refused");
        // Of some keys only: others are decided meanwhile.
        for second in 0..=25 {
            log.log(
                &StoreError::Refused("WRONGTYPE".to_owned()),
                at(second),
                Some(nobody),
            );
            assert!(!is_told(second), "{second}");
        }
        assert!(!is_told(34));
        assert!(is_told(35));
        assert!(!is_told(36));
        log.log(&StoreError::Full, at(40), Some(nobody));
        assert!(!is_told(54) && is_told(55));
    }
}
