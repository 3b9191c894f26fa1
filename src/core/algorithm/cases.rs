//! The table format of the algorithms' tests: a fresh key, then one request per row.

use std::time::Duration;

use super::{Algorithm, Mode, State, decide, refund};
use crate::decision::LimitStatus;
use crate::key::Cost;
use crate::plan::Limit;

/// A limit of `quota` per second.
pub(super) fn limit(quota: u64, algorithm: Algorithm) -> Limit {
    Limit::new("limit", quota, Duration::from_secs(1), algorithm).unwrap()
}

/// One request and its expected answer.
pub(super) struct Case {
    now_us: u64,
    cost: u64,
    remaining: u64,
    allowed: bool,
    is_refund: bool,
    retry_after_us: Option<u64>,
    reset_after_us: Option<u64>,
}

impl Case {
    pub(super) fn allowed(now_us: u64, cost: u64, remaining: u64) -> Self {
        Self {
            now_us,
            cost,
            remaining,
            allowed: true,
            is_refund: false,
            retry_after_us: None,
            reset_after_us: None,
        }
    }

    pub(super) fn denied(now_us: u64, cost: u64, remaining: u64) -> Self {
        Self {
            allowed: false,
            ..Self::allowed(now_us, cost, remaining)
        }
    }

    /// A refund; `remaining` is the number after it.
    pub(super) fn refunded(now_us: u64, cost: u64, remaining: u64) -> Self {
        Self {
            is_refund: true,
            ..Self::allowed(now_us, cost, remaining)
        }
    }

    pub(super) fn retry_in(self, retry_after_us: u64) -> Self {
        Self {
            retry_after_us: Some(retry_after_us),
            ..self
        }
    }

    pub(super) fn fresh_in(self, reset_after_us: u64) -> Self {
        Self {
            reset_after_us: Some(reset_after_us),
            ..self
        }
    }
}

/// Runs the rows on one fresh key. Each row is first peeked at. The peek must leave no trace, and must agree unless the row is
/// a refund.
pub(super) fn check(limit: &Limit, cases: &[Case]) {
    let limits = std::slice::from_ref(limit);
    let mut states = [State::fresh(limit)];
    for (row, case) in cases.iter().enumerate() {
        let cost = Cost::new(case.cost).unwrap();
        let before = states.clone();
        let peeked = decide(
            limits,
            &mut states,
            case.now_us,
            cost.min(Cost::new(limit.capacity()).unwrap()),
            Mode::Peek,
        );
        assert_eq!(states, before, "row {row}: a peek left a trace");
        let verdict = if case.is_refund {
            refund(limits, &mut states, case.now_us, cost).after
        } else {
            decide(limits, &mut states, case.now_us, cost, Mode::Charge)
        };
        assert_eq!(verdict.fits, case.allowed, "row {row}: {verdict:?}");
        if !case.is_refund {
            assert_eq!(peeked.fits, case.allowed, "row {row}: {peeked:?}");
        }
        let LimitStatus {
            remaining,
            retry_after_us,
            reset_after_us,
            ..
        } = verdict.statuses(limits, cost)[0].clone();
        assert_eq!(remaining, case.remaining, "row {row}: remaining");
        assert_eq!(
            retry_after_us, case.retry_after_us,
            "row {row}: retry_after"
        );
        assert!(
            case.reset_after_us
                .is_none_or(|expected| expected == reset_after_us),
            "row {row}: {reset_after_us}"
        );
    }
}
