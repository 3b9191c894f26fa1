//! Who is limited now, and who uses most: the heaviest keys of the last minute by denials and by cost, in bounded memory.
//!
//! Each worker counts for itself ([`worker`]), in slots of ten seconds, by sketches whose error is bounded ([`sketch`], [`slot`]).
//! [`TopKeys`] adds them up when it is asked ([`summary`]). Every key with more than `N / k` of the `N` denials is listed, and no
//! count is shown too low, or too high by more than that.
//!
//! Keys are known by a hash with a secret. No key becomes a metric's label or is written to a log.

mod sketch;
mod slot;
mod summary;
mod worker;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Limiter;
use crate::plan::UnknownPlan;
use crate::random;
use summary::Summary;
use worker::SLOTS;
pub(super) use worker::WorkerTop;

/// Fewest keys of a list.
pub const TOP_MIN: usize = 10;
/// Most keys of a list.
pub const TOP_MAX: usize = sketch::ENTRIES_MAX;
/// Keys of a list, unless the config says otherwise.
pub const TOP_DEFAULT: usize = 1_000;
/// Most keys that replicas tell each other, of all plans together: four full lists.
const SUMMARY_KEYS_MAX: usize = 4 * TOP_MAX;
/// How long one slot is counted in.
const SLOT_LENGTH: Duration = Duration::from_secs(10);

/// How keys are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopSettings {
    /// Most keys of a list: `k`, [`TOP_MIN`] to [`TOP_MAX`].
    pub keys_max: usize,
}

/// What keys are ranked by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TopBy {
    /// Requests that were denied, or would have been by a plan in shadow mode.
    #[default]
    Denials,
    /// Units of the requests that were allowed.
    Cost,
}

/// What to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopQuery {
    /// The plan; `None`: all plans.
    pub plan: Option<String>,
    /// What keys are ranked by.
    pub by: TopBy,
    /// Most keys to list.
    pub limit: usize,
}

/// One of the heaviest keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopKey {
    /// The key's hash with the secret that the replicas share.
    pub hash: u64,
    /// The plan that counts the key.
    pub plan: Arc<str>,
    /// Denials or units of the last minute; never too low.
    pub count: u64,
    /// Most that `count` is too high by.
    pub error: u64,
}

/// The heaviest keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopAnswer {
    /// The heaviest first.
    pub keys: Vec<TopKey>,
    /// Most that a key which is not listed was counted.
    pub unlisted_max: u64,
    /// Denials or units of all keys of the plan, or of all plans.
    pub total: u64,
    /// How far the counts go back; a minute at most, and less after a start.
    pub window: Duration,
    /// Replicas whose counts are in the answer.
    pub replicas: u64,
    /// Whether the counts of other replicas could not be read, so that they are missing.
    pub this_replica_alone: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopError {
    /// Keys are not counted.
    #[error("keys are not counted; set status.keys to hash or clear")]
    Off,
    /// The plan is not in the config.
    #[error(transparent)]
    UnknownPlan(#[from] UnknownPlan),
}

/// A secret that hashes of keys are made with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Secret(u64, u64);

impl Secret {
    /// A new secret.
    pub(super) fn random() -> Self {
        Self(random::bits(), random::bits())
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Secret")
    }
}

/// What a registry makes the counts of a new worker by.
#[derive(Debug, Clone, Copy)]
pub(super) struct TopSource {
    settings: TopSettings,
    secret: Secret,
}

impl TopSource {
    pub(super) fn new(settings: TopSettings) -> Self {
        Self { settings, secret: Secret::random() }
    }

    pub(super) fn settings(&self) -> TopSettings {
        self.settings
    }

    pub(super) fn worker(&self) -> WorkerTop {
        WorkerTop::new(self.settings.keys_max, self.secret)
    }
}

/// Answers who is limited now, for this process and all replicas that it knows. Clones share everything.
#[derive(Clone)]
pub struct TopKeys(Arc<Parts>);

struct Parts {
    limiter: Arc<Limiter<()>>,
    /// `None` when keys are not counted.
    settings: Option<TopSettings>,
    /// When each slot of the last minute began, the oldest first.
    began: Mutex<VecDeque<Instant>>,
}

impl TopKeys {
    /// The keys of `limiter` and of all beside it.
    pub fn new(limiter: Arc<Limiter<()>>) -> Self {
        let settings = limiter.common.registry().counts_keys();
        let began = Mutex::new(VecDeque::from([limiter.common.clock.monotonic()]));
        Self(Arc::new(Parts { limiter, settings, began }))
    }

    /// Whether keys are counted.
    pub fn is_on(&self) -> bool {
        self.0.settings.is_some()
    }

    /// The heaviest keys of the last minute. Errors: [`TopError`].
    pub async fn top(&self, query: &TopQuery) -> Result<TopAnswer, TopError> {
        let settings = self.0.settings.ok_or(TopError::Off)?;
        let snapshot = self.0.limiter.snapshot();
        let plan = match &query.plan {
            Some(name) => Some(snapshot.plans().find(name).map_err(|unknown| snapshot.plans().suggest(unknown))?.0),
            None => None,
        };
        let plan_id = plan.map(|place| snapshot.plan_id(place));
        let summary = self.local(query.by, settings);
        let (heavy, unlisted_max) = summary.heaviest(plan_id, query.limit);
        let names = snapshot.plan_names();
        let named = |heavy: &summary::Heavy| {
            let plan = names.get(&heavy.plan)?.clone();
            Some(TopKey { hash: heavy.hash ^ heavy.plan, plan, count: heavy.shown, error: heavy.error })
        };
        let total = plan_id.map_or(summary.total, |id| summary.plans.get(&id).map_or(0, |plan| plan.total));
        let (keys, window) = (heavy.iter().filter_map(named).collect(), self.window());
        Ok(TopAnswer { keys, unlisted_max, total, window, replicas: 1, this_replica_alone: true })
    }

    /// Begins a new slot if it is time. To be called about once a second.
    pub fn advance(&self) {
        let now = self.0.limiter.common.clock.monotonic();
        let mut began = self.0.began.lock().unwrap_or_else(PoisonError::into_inner);
        if began.back().is_some_and(|last| now.saturating_duration_since(*last) < SLOT_LENGTH) {
            return;
        }
        if began.len() == SLOTS {
            began.pop_front();
        }
        began.push_back(now);
        self.workers().iter().for_each(|worker| worker.begin_slot());
    }

    /// What this process counted, cut to what replicas tell each other.
    fn local(&self, by: TopBy, settings: TopSettings) -> Summary {
        let mut summary = Summary::default();
        for worker in self.workers() {
            worker.slots(by).iter().for_each(|slot| summary.add_slot(slot));
        }
        summary.cut(settings.keys_max, SUMMARY_KEYS_MAX);
        summary
    }

    fn workers(&self) -> Vec<Arc<WorkerTop>> {
        let workers = self.0.limiter.common.registry().workers();
        workers.iter().filter_map(|worker| worker.top.clone()).collect()
    }

    fn window(&self) -> Duration {
        let now = self.0.limiter.common.clock.monotonic();
        let began = self.0.began.lock().unwrap_or_else(PoisonError::into_inner);
        began.front().map_or(Duration::ZERO, |first| now.saturating_duration_since(*first))
    }
}

#[cfg(test)]
mod tests;
