//! Who is limited now, and who uses most: the heaviest keys of the last minute by denials and by cost, in bounded memory.
//!
//! Each worker counts for itself ([`worker`]), in slots of ten seconds, by sketches whose error is bounded ([`sketch`], [`slot`]).
//! [`TopKeys`] adds them up ([`summary`]), publishes the sum to other replicas each second ([`codec`]), and adds theirs when it is
//! asked. Every key with more than `N / k` of the `N` denials is listed, and no count is shown too low, or too high by more than that.
//!
//! Keys are known by a hash with a secret, which explanations and the log of admin calls show too. No key becomes a metric's label or
//! is written to a log.

mod codec;
mod names;
mod replica;
mod secret;
mod sketch;
mod slot;
mod summary;
mod worker;

use std::sync::Arc;
use std::time::Duration;

pub use replica::{TopKeys, TopStores};
pub use secret::KeyHash;
use secret::Secret;
use tollgate_core::plan::UnknownPlan;
pub(super) use worker::WorkerTop;

/// Fewest keys of a list.
pub const TOP_MIN: usize = 10;
/// Maximum number of keys of a list.
pub const TOP_MAX: usize = sketch::ENTRIES_MAX;
/// Keys of a list, unless the config says otherwise.
pub const TOP_DEFAULT: usize = 1_000;

/// How keys are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopSettings {
    /// Maximum number of keys of a list: `k`, [`TOP_MIN`] to [`TOP_MAX`].
    pub keys_max: usize,
    /// Whether keys are also kept in clear, as many as a bound on bytes allows.
    pub in_clear: bool,
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
    /// Maximum number of keys to list.
    pub limit: usize,
}

/// One of the heaviest keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopKey {
    /// The key, if it was kept in clear. Only for callers who may see it.
    pub key: Option<String>,
    /// The key's hash with the secret that the replicas share.
    pub hash: KeyHash,
    /// The plan that counts the key.
    pub plan: Arc<str>,
    /// Denials or units of the last minute; never too low.
    pub count: u64,
    /// Maximum by which `count` is too high.
    pub error: u64,
}

/// The heaviest keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopAnswer {
    /// The heaviest first.
    pub keys: Vec<TopKey>,
    /// Maximum count of a key that is not listed.
    pub unlisted_max: u64,
    /// Denials or units of all keys of the plan, or of all plans.
    pub total: u64,
    /// How far the counts go back; a minute at most, and less after a start.
    pub window: Duration,
    /// Replicas whose counts are in the answer.
    pub replicas: u64,
    /// Other replicas that publish counts which are not in the answer.
    pub replicas_missing: u64,
    /// Whether the counts of other replicas could not be read, so that all are missing.
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

/// What a registry makes the counts of a new worker by.
#[derive(Debug)]
pub(super) struct TopSource {
    /// How keys are counted; `None`: they are not.
    pub(super) settings: Option<TopSettings>,
    secret: Secret,
}

impl Default for TopSource {
    fn default() -> Self {
        Self {
            settings: None,
            secret: Secret::random(),
        }
    }
}

impl TopSource {
    pub(super) fn worker(&self) -> Option<WorkerTop> {
        self.settings
            .map(|settings| WorkerTop::new(settings, self.secret))
    }
}

#[cfg(test)]
mod tests;
