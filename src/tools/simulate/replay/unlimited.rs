//! Counters that deny nothing: how high a key's count goes when every request is charged.

use smallvec::SmallVec;

use super::packed::LogCount;
use tollgate_core::algorithm::{Mode, State, decide};
use tollgate_core::key::Cost;
use tollgate_core::plan::{Algorithm, Limit, QUOTA_MAX, SLIDING_LOG_QUOTA_MAX};

/// Counters that deny nothing, one for each limit.
pub(super) type Unlimited = SmallVec<[UnlimitedCounter; 1]>;

#[derive(Debug)]
pub(super) enum UnlimitedCounter {
    State(State),
    /// Of a `sliding_log`. Nothing is decided by it, so it need not be a state.
    Log(Box<LogCount>),
}

impl UnlimitedCounter {
    pub(super) fn new((state, limit): (&State, &Limit)) -> Self {
        match (state, limit.algorithm()) {
            (State::Runs(runs), Algorithm::SlidingLog) => {
                Self::Log(Box::new(LogCount::from_runs(runs)))
            }
            _ => Self::State(state.clone()),
        }
    }

    /// Charges a request. Returns the units that count then; `None` if `limit` is below them.
    pub(super) fn charge(&mut self, limit: &Limit, now_us: u64, cost: Cost) -> Option<u64> {
        if cost.units() > limit.capacity() {
            return None;
        }
        match self {
            Self::State(state) => {
                let verdict = decide(
                    std::slice::from_ref(limit),
                    std::slice::from_mut(state),
                    now_us,
                    cost,
                    Mode::Charge,
                );
                let used = verdict
                    .readings
                    .first()
                    .map(|reading| limit.capacity() - reading.remaining(limit));
                used.filter(|_| verdict.fits)
            }
            Self::Log(log) => Some(log.add(limit.window_us(), now_us, cost.units()))
                .filter(|used| *used <= limit.capacity()),
        }
    }

    pub(super) fn fresh_at_us(&self, window_us: u64) -> u64 {
        match self {
            Self::State(state) => state.fresh_at_us(window_us),
            Self::Log(log) => log.fresh_at_us(window_us),
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::State(state) => state.heap_bytes(),
            Self::Log(log) => log.heap_bytes(),
        }
    }
}

pub(super) fn heap_bytes(unlimited: &Unlimited) -> usize {
    unlimited.iter().map(UnlimitedCounter::heap_bytes).sum()
}

/// The same limit with a quota that is at least half of the largest that it may have. A `token_bucket` is not asked.
pub(super) fn largest(limit: &Limit) -> Limit {
    let mut most = match limit.algorithm() {
        Algorithm::SlidingLog => SLIDING_LOG_QUOTA_MAX,
        _ => QUOTA_MAX,
    };
    // The bounds depend on the window; the limit's own check tells which quota is within them.
    while most > limit.capacity() && !matches!(limit.algorithm(), Algorithm::TokenBucket { .. }) {
        match limit.with_quota(most) {
            Ok(larger) => return larger,
            Err(_) => most /= 2,
        }
    }
    limit.clone()
}
