//! `Plan`, `Limit`, `PlanSet`: what is allowed, looked up by name.
//!
//! A value of these types is valid by construction. This module does not know where the numbers come from (file, test).

mod calendar;
pub mod envoy;
mod fingerprint;
mod holds;
mod limit;
mod on_store_failure;
mod overrides;
mod set;

pub use calendar::{
    Calendar, CalendarUnit, Edges, MONTH_STARTS_MAX, WEEKDAYS, ZONE_DATABASE, Zone,
};
pub use fingerprint::{COMMON_WINDOWS_MS, LimitFingerprint, RecordKind};
pub use holds::{
    Concurrency, HoldTerms, IDS_MAX, LEASE_MAX, LEASE_MIN, LeaseError, OPEN_MAX, check_used,
};
pub use limit::{
    Algorithm, Anchor, BLOCK_MAX, BLOCK_MIN, BURST_MAX, Limit, LimitError, PRECISION_DEFAULT,
    PRECISION_MAX, PRECISION_MIN, QUOTA_MAX, SLIDING_LOG_QUOTA_MAX, WINDOW_MAX, WINDOW_MIN,
};
pub use on_store_failure::{OnStoreFailure, PolicyAnswer};
pub use overrides::{
    AppliedOverride, LimitQuota, OVERRIDE_KEYS_MAX, OVERRIDE_PREFIXES_MAX, OverrideEffect,
    OverrideError, OverrideFault, OverrideSource, OverrideSubject, OverrideTable, PlanOverride,
    REASON_BYTES_MAX,
};
pub use set::{PlanSet, UnknownPlan};

use std::sync::Arc;

use crate::key::Cost;

/// Maximum number of limits in one plan. Each adds one state to read and write per decision, and no known use needs more.
pub const LIMITS_MAX: usize = 8;
/// Maximum number of plans in one config.
pub const PLANS_MAX: usize = 10_000;
/// Longest name of a plan or of a limit, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Stands between the group of a live plan and the name of its candidate, in the group that the candidate counts in.
pub const CANDIDATE_SEPARATOR: char = ':';

/// Maximum number of distinct limits of all plans with one `counts_as`. Redis may have to read a record of each at once.
pub const SHARED_LIMITS_MAX: u16 = 1_024;
/// Maximum number of these that are of a `sliding_window`: a key's state has room for the runs of so many.
pub const SHARED_WINDOWS_MAX: u16 = 80;

/// The distinct limits of all plans with one `counts_as`. A key's state may hold a record of each. All zero where the plans are
/// not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharedLimits {
    /// Number of them, at most [`SHARED_LIMITS_MAX`].
    pub all: u16,
    /// Of these, those of a `sliding_window`, at most [`SHARED_WINDOWS_MAX`].
    pub windows: u16,
    /// Of these, those of a `sliding_log`.
    pub logs: u16,
    /// Of these, those with `block`.
    pub blocks: u16,
    /// How often the greatest quota of these `sliding_log`s can be halved, rounded up. Requests without ids charge a log no oftener than
    /// its quota.
    pub log_halvings: u8,
}

impl SharedLimits {
    /// Counts these limits, which are distinct; to `u16::MAX`, as more are in no plan.
    pub fn count<'a>(limits: impl IntoIterator<Item = &'a Limit>) -> Self {
        let mut shared = Self::default();
        for limit in limits {
            let is_window = matches!(limit.algorithm(), Algorithm::SlidingWindow { .. });
            let is_log = limit.algorithm() == Algorithm::SlidingLog;
            let add = |count: &mut u16, is_one| *count = count.saturating_add(u16::from(is_one));
            add(&mut shared.all, true);
            add(&mut shared.windows, is_window);
            add(&mut shared.logs, is_log);
            add(&mut shared.blocks, limit.block_us() > 0);
            if is_log {
                let halvings = u64::BITS - limit.quota().leading_zeros();
                let halvings = u8::try_from(halvings).unwrap_or(u8::MAX);
                shared.log_halvings = shared.log_halvings.max(halvings);
            }
        }
        shared
    }
}

/// A named set of limits for one kind of caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Name of the plan in requests. Form: see [`check_name`].
    pub name: Arc<str>,
    /// Plans with the same `counts_as` share one count per key. Default: the plan's own name.
    pub counts_as: Arc<str>,
    /// The limits of all plans with this `counts_as`.
    pub shared: SharedLimits,
    /// Whether the plan has limits, allows everything or denies everything.
    pub rule: Rule,
    /// Decide and report, but always allow. Default: false.
    pub shadow: bool,
    /// What to answer when the store cannot decide. Default: [`OnStoreFailure::Local`].
    pub on_store_failure: OnStoreFailure,
    /// Limits to try out: decided beside this plan's for each charge, counted apart, and never enforced. It has limits and no
    /// candidate of its own; see [`Self::as_candidate_of`]. Default: none.
    pub candidate: Option<Arc<Plan>>,
    /// How its holds behave, and how many of a key may be open at once. Default: those of [`HoldTerms`].
    pub holds: Arc<HoldTerms>,
}

impl Plan {
    /// A plan with this rule and the defaults of all other fields.
    pub fn new(name: impl Into<Arc<str>>, rule: Rule) -> Self {
        let name = name.into();
        Self {
            counts_as: name.clone(),
            name,
            shared: SharedLimits::default(),
            rule,
            shadow: false,
            on_store_failure: OnStoreFailure::Local,
            candidate: None,
            holds: HoldTerms::default().share(),
        }
    }

    /// This plan as the candidate of another. It counts in a group of its own, `group:name`, where `group` is that of the live
    /// plan. No other plan counts there, since names hold no colon.
    pub fn as_candidate_of(&self, live: &Self) -> Self {
        let counts_as = format!("{}{CANDIDATE_SEPARATOR}{}", live.counts_as, self.name).into();
        Self {
            counts_as,
            shared: SharedLimits::default(),
            candidate: None,
            ..self.clone()
        }
    }
}

/// What a plan does with requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// Everything passes and nothing is counted.
    Unlimited,
    /// Nothing passes and nothing is counted.
    Blocked,
    /// A request passes when each of these limits allows it, at most [`LIMITS_MAX`]. No two have the same fingerprint.
    /// There is at least one, unless the plan has a concurrency limit.
    Limits(Box<[Limit]>),
}

impl Rule {
    /// Asks all of these limits.
    pub fn limits(limits: impl IntoIterator<Item = Limit>) -> Self {
        Self::Limits(limits.into_iter().collect())
    }
}

impl Plan {
    /// The plan's limits; none when it is unlimited or blocked.
    #[inline]
    pub fn limits(&self) -> &[Limit] {
        match &self.rule {
            Rule::Limits(limits) => limits,
            Rule::Unlimited | Rule::Blocked => &[],
        }
    }

    /// Whether a denial by one of its limits blocks the key.
    #[inline]
    pub fn has_blocks(&self) -> bool {
        self.limits().iter().any(|limit| limit.block_us() > 0)
    }

    /// The limit of holds of a key that are open at once, if the plan has one.
    #[inline]
    pub fn concurrency(&self) -> Option<&Concurrency> {
        self.holds.concurrency.as_ref()
    }

    /// Whether a hold whose lease ends gives its units back.
    #[inline]
    pub fn releases_holds(&self) -> bool {
        self.holds.release_on_expiry
    }

    /// Index of the first limit that can never allow this cost, however long the caller waits.
    #[inline]
    pub fn never_fits(&self, cost: Cost) -> Option<usize> {
        self.limits()
            .iter()
            .position(|limit| cost.units() > limit.capacity())
    }

    /// The same plan with each limit reduced to one replica's share, `ceil(quota / replicas)`, and without its candidate.
    pub fn share(&self, replicas: u64) -> Self {
        let rule = match &self.rule {
            Rule::Limits(limits) => Rule::limits(limits.iter().map(|limit| limit.share(replicas))),
            other => other.clone(),
        };
        Self {
            rule,
            candidate: None,
            ..self.clone()
        }
    }
}

/// Checks the name of a plan, of a limit or of a `counts_as` group: 1 to 64 bytes of ASCII letters, digits, `_`, `-`, `.` and
/// `/`. A colon is not allowed, so that `group:key` is unambiguous in Redis. Quotes and spaces are not allowed, so that a name
/// needs no escaping in a URL or a metric label.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong { bytes: name.len() });
    }
    match name
        .chars()
        .find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')))
    {
        Some(found) => Err(NameError::Character { found }),
        None => Ok(()),
    }
}

/// Checks the length of the name by which a request asks for a plan. Errors: a sentence for the caller.
#[inline]
pub fn check_requested_name(plan: &str) -> Result<(), String> {
    if (1..=NAME_BYTES_MAX).contains(&plan.len()) {
        Ok(())
    } else {
        Err(wrong_length(plan.len()))
    }
}

#[cold]
fn wrong_length(bytes: usize) -> String {
    match bytes {
        0 => {
            "plan is empty: name a plan of the config; `tollgate plans` lists all plans".to_owned()
        }
        _ => format!("plan has {bytes} bytes: a plan's name has at most {NAME_BYTES_MAX}"),
    }
}

/// Why a text is not a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("is empty; a name has 1 to {NAME_BYTES_MAX} bytes")]
    Empty,
    /// The name is longer than [`NAME_BYTES_MAX`].
    #[error("has {bytes} bytes; a name has at most {NAME_BYTES_MAX}")]
    TooLong {
        /// Length that was given, in bytes.
        bytes: usize,
    },
    /// The name contains a character that is not allowed.
    #[error("holds {found:?}; a name has ASCII letters, digits, '_', '-', '.' and '/'")]
    Character {
        /// The first such character.
        found: char,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_plain_ascii() {
        assert_eq!(check_name(""), Err(NameError::Empty));
        assert_eq!(check_name(&"n".repeat(64)), Ok(()));
        assert_eq!(
            check_name(&"n".repeat(65)),
            Err(NameError::TooLong { bytes: 65 })
        );
        assert_eq!(check_name("team-a/free_v1.2"), Ok(()));
        for bad in [':', '{', '}', ' ', '"', 'é', '\n'] {
            assert_eq!(
                check_name(&format!("a{bad}b")),
                Err(NameError::Character { found: bad })
            );
        }
    }
}
