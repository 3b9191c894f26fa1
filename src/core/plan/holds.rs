//! What a plan says of holds: how long they last, what their end gives back, and how many may be open at once.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::limit::QUOTA_MAX;
use crate::duration::{Shown, ShownExactly};

/// Shortest lease, and shortest time that an id is known for. Network and clients need time to renew.
pub const LEASE_MIN: Duration = Duration::from_secs(1);
/// Longest lease, and longest time that an id is known for.
pub const LEASE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum quota of a `concurrency` limit, and maximum number of holds of a key, of all plans that count for it. A denial may look at
/// all leases of the key.
pub const OPEN_MAX: u32 = 1_000;
/// Maximum number of ids that may be known for certain.
pub const IDS_MAX: u32 = 100_000;

/// How the holds of a plan behave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldTerms {
    /// Length of a lease that is not stated, [`LEASE_MIN`] to [`LEASE_MAX`]. Default: a minute.
    pub ttl: Duration,
    /// Longest lease, `ttl` to [`LEASE_MAX`]. Default: ten minutes, or `ttl` if that is longer.
    pub max_ttl: Duration,
    /// Whether the units of a hold whose lease ends are given back. Default: they stay charged.
    pub release_on_expiry: bool,
    /// How long an id is known after its hold ended or its charge, [`LEASE_MIN`] to [`LEASE_MAX`]. Default: ten minutes.
    pub remember: Duration,
    /// Maximum number of open holds of a key and plan, 1 to [`OPEN_MAX`]. Default: 256, or the concurrency quota if that is more.
    pub max_open: u32,
    /// Ids of a key that are known for certain, beside those of open holds: 1 to [`IDS_MAX`]. Default: 1,000.
    pub max_ids: u32,
    /// The limit of holds that are open at once, if there is one. There is none where the plan is unlimited or blocked. Default: none.
    pub concurrency: Option<Concurrency>,
}

impl Default for HoldTerms {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(60),
            max_ttl: Duration::from_secs(600),
            release_on_expiry: false,
            remember: Duration::from_secs(600),
            max_open: 256,
            max_ids: 1_000,
            concurrency: None,
        }
    }
}

impl HoldTerms {
    /// The terms, for plans to refer to: one object for all plans that say nothing of holds.
    pub fn share(self) -> Arc<Self> {
        static USUAL: LazyLock<Arc<HoldTerms>> = LazyLock::new(Arc::default);
        if self == **USUAL {
            USUAL.clone()
        } else {
            self.into()
        }
    }

    /// The length of a lease in microseconds: as asked for, or the plan's own. Errors: it is out of range.
    pub fn lease_us(&self, asked: Option<Duration>) -> Result<u64, LeaseError> {
        let lease = asked.unwrap_or(self.ttl);
        if (LEASE_MIN..=self.max_ttl).contains(&lease) {
            Ok(micros(lease))
        } else {
            Err(LeaseError {
                lease,
                most: self.max_ttl,
            })
        }
    }

    /// The longest lease, in microseconds.
    pub fn max_ttl_us(&self) -> u64 {
        micros(self.max_ttl)
    }

    /// How long an id is known after its hold ended or its charge, in microseconds.
    pub fn remember_us(&self) -> u64 {
        micros(self.remember)
    }
}

/// The longest that a lease has is a day, which fits.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Checks units that were used, which no limit bounds. `field` names them. Errors: a sentence for the caller.
pub fn check_used(field: &str, units: u64) -> Result<(), String> {
    if units <= QUOTA_MAX {
        return Ok(());
    }
    Err(format!("{field} is {units}: send at most {QUOTA_MAX}"))
}

/// A lease that is too short or too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("ttl is {}: send 1s to {}, the plan's max_ttl, or leave it out", ShownExactly(*lease), Shown(*most))]
pub struct LeaseError {
    lease: Duration,
    most: Duration,
}

/// A limit of `algorithm: concurrency`: so many holds of a key may be open at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concurrency {
    name: Arc<str>,
    quota: u32,
    place: usize,
}

impl Concurrency {
    /// Its name in the config and in documents, as an algorithm.
    pub const ALGORITHM: &str = "concurrency";

    /// Checks the quota: 1 to [`OPEN_MAX`]. `place` is its index among all limits of the plan.
    ///
    /// Errors: a sentence about the quota.
    pub fn new(name: impl Into<Arc<str>>, quota: u64, place: usize) -> Result<Self, String> {
        match u32::try_from(quota) {
            Ok(quota @ 1..=OPEN_MAX) => Ok(Self {
                name: name.into(),
                quota,
                place,
            }),
            _ => Err(format!(
                "is {quota}; a concurrency limit has 1 to {OPEN_MAX}"
            )),
        }
    }

    /// Name of the limit in answers, unique within its plan.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Maximum number of holds of a key that are open at once.
    pub fn quota(&self) -> u32 {
        self.quota
    }

    /// Its index among all limits of the plan.
    pub fn place(&self) -> usize {
        self.place
    }
}
