//! Overrides: other limits for one key of a plan, or for all keys with a beginning.
//!
//! An override is written against names. [`PlanOverride::plan_in`] finds what they mean among the plans in force, or says why the
//! override has no effect. [`OverrideTable`] holds those in force for one set of plans.

mod table;

pub use table::{AppliedOverride, OverrideTable};

use std::fmt;
use std::sync::Arc;

use super::{Algorithm, Limit, LimitError, Plan, PlanSet, Rule};
use crate::key::KEY_BYTES_MAX;

/// Maximum number of overrides of exact keys in one source.
pub const OVERRIDE_KEYS_MAX: usize = 10_000;
/// Maximum number of overrides of prefixes in one source.
pub const OVERRIDE_PREFIXES_MAX: usize = 256;
/// Longest reason, in bytes.
pub const REASON_BYTES_MAX: usize = 200;

/// Who set an override.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OverrideSource {
    /// The admin service, at runtime. It holds before one of the file for the same subject.
    Runtime,
    /// The config.
    File,
}

impl OverrideSource {
    /// Every source, in the order of their precedence.
    pub const ALL: [Self; 2] = [Self::Runtime, Self::File];

    /// Its name in metrics and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::File => "file",
        }
    }
}

/// Whose limits are other ones. Bytes are compared, and a shard is not part of them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OverrideSubject {
    /// One key, 1 to [`KEY_BYTES_MAX`] bytes.
    Key(Box<str>),
    /// All keys that begin so, 1 to [`KEY_BYTES_MAX`] bytes.
    Prefix(Box<str>),
}

impl OverrideSubject {
    /// The key or the prefix.
    pub fn text(&self) -> &str {
        match self {
            Self::Key(text) | Self::Prefix(text) => text,
        }
    }

    /// Its name in a config, a request and a message.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::Prefix(_) => "key_prefix",
        }
    }

    /// Whether it is this key, or the beginning of it.
    pub fn matches(&self, key: &str) -> bool {
        match self {
            Self::Key(text) => **text == *key,
            Self::Prefix(prefix) => key.starts_with(&**prefix),
        }
    }

    /// Checks its length. Errors: a sentence without its subject.
    pub fn check(&self) -> Result<(), String> {
        match self.text().len() {
            0 => Err(format!("is empty; it has 1 to {KEY_BYTES_MAX} bytes")),
            1..=KEY_BYTES_MAX => Ok(()),
            bytes => Err(format!("has {bytes} bytes; at most {KEY_BYTES_MAX}")),
        }
    }
}

/// A key often is personal data, so `Debug` shows only its length.
impl fmt::Debug for OverrideSubject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}({} bytes)", self.field(), self.text().len())
    }
}

/// What an override does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OverrideEffect {
    /// Decide as if this plan had been asked for. It is not looked up again.
    UsePlan(Arc<str>),
    /// Decide by the plan with other numbers. At least one.
    Quotas(Vec<LimitQuota>),
}

/// Other numbers for one limit of a plan. At least one of the two is given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LimitQuota {
    /// Name of the limit. `None`: the only one.
    pub name: Option<Arc<str>>,
    /// Its quota. `None`: that of the plan.
    pub quota: Option<u64>,
    /// Its burst, of a `token_bucket`. `None`: the plan's where the plan states one, else the new quota.
    pub burst: Option<u64>,
}

/// Other limits for a subject of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanOverride {
    /// Name of the plan that would decide without it.
    pub plan: Arc<str>,
    /// Whose limits are other ones.
    pub subject: OverrideSubject,
    /// What holds in place of the plan.
    pub effect: OverrideEffect,
    /// Until when it holds, by the store's clock, in microseconds since 1970. `None`: for good.
    pub expires_at_us: Option<u64>,
    /// Why it was set, for people; may be empty. At most [`REASON_BYTES_MAX`].
    pub reason: Arc<str>,
    /// Who set it.
    pub source: OverrideSource,
    /// The version of the set that wrote it; 0 for one of the file.
    pub version: u64,
    /// When it was set, by the store's clock, in microseconds since 1970; 0 for one of the file.
    pub set_at_us: u64,
}

/// What kind of mistake an override has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverrideFault {
    /// A plan or a limit of this name does not exist.
    NotFound,
    /// It does not fit the plan as it is.
    Unfit,
    /// A number is out of range, or something is missing.
    Invalid,
}

/// Why an override has no effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideError {
    /// The field at fault, such as `use_plan` or `quotas[0].burst`.
    pub field: String,
    /// What is wrong with it, and what would be right; follows the field.
    pub problem: String,
    /// What kind of mistake it is.
    pub fault: OverrideFault,
}

impl fmt::Display for OverrideError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.field, self.problem)
    }
}

impl std::error::Error for OverrideError {}

impl OverrideError {
    fn new(field: impl Into<String>, fault: OverrideFault, problem: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            problem: problem.into(),
            fault,
        }
    }
}

impl PlanOverride {
    /// Whether it no longer holds at this time of the store's clock, in microseconds since 1970.
    pub fn is_expired(&self, now_us: u64) -> bool {
        self.expires_at_us
            .is_some_and(|expires_at_us| expires_at_us <= now_us)
    }

    /// Indices of the plan that it is for and of the plan that decides, and the latter with its numbers.
    ///
    /// Errors: why it has no effect among these plans, without a suggested name.
    pub fn plan_in(&self, plans: &PlanSet) -> Result<(usize, usize, Arc<Plan>), OverrideError> {
        let (asked_index, asked) = find(plans, "plan", &self.plan)?;
        match &self.effect {
            OverrideEffect::UsePlan(name) if *name == self.plan => Err(OverrideError::new(
                "use_plan",
                OverrideFault::Unfit,
                "is the plan itself; name another plan",
            )),
            OverrideEffect::UsePlan(name) => {
                let (index, plan) = find(plans, "use_plan", name)?;
                if plan.concurrency().is_some() && asked.concurrency().is_none() {
                    return Err(needs_reserve(name, &self.plan));
                }
                Ok((asked_index, index, plan.clone()))
            }
            OverrideEffect::Quotas(quotas) => {
                let plan = Arc::new(with_quotas(asked, quotas)?);
                Ok((asked_index, asked_index, plan))
            }
        }
    }
}

/// Who asks for a plan without slots does not reserve, and could not be decided by one with slots.
fn needs_reserve(name: &str, asked: &str) -> OverrideError {
    let problem = format!(
        "is {name:?}, which has a concurrency limit and needs Reserve; {asked:?} has none, so name a plan without one"
    );
    OverrideError::new("use_plan", OverrideFault::Invalid, problem)
}

fn find<'a>(
    plans: &'a PlanSet,
    field: &str,
    name: &str,
) -> Result<(usize, &'a Arc<Plan>), OverrideError> {
    plans.find_if_any(name).ok_or_else(|| {
        let problem = format!("is {name:?}, which is not a plan of this config");
        OverrideError::new(field, OverrideFault::NotFound, problem)
    })
}

/// The plan with other numbers in these limits.
fn with_quotas(plan: &Plan, quotas: &[LimitQuota]) -> Result<Plan, OverrideError> {
    let Rule::Limits(limits) = &plan.rule else {
        let problem = format!(
            "need a plan with limits, which {:?} is not; write use_plan",
            plan.name
        );
        return Err(OverrideError::new("quotas", OverrideFault::Unfit, problem));
    };
    if quotas.is_empty() {
        let problem = "has no entry; write at least one, such as { quota: 300 }";
        return Err(OverrideError::new(
            "quotas",
            OverrideFault::Invalid,
            problem,
        ));
    }
    let mut limits = limits.clone();
    let mut done = [false; super::LIMITS_MAX];
    for (index, quota) in quotas.iter().enumerate() {
        let field = format!("quotas[{index}]");
        let place = place_of(plan, quota, &field)?;
        if std::mem::replace(&mut done[place], true) {
            let problem = format!(
                "is of limit {:?} like one before it; keep one",
                limits[place].name()
            );
            return Err(OverrideError::new(field, OverrideFault::Invalid, problem));
        }
        limits[place] = quota.applied_to(&limits[place], &field)?;
    }
    Ok(Plan {
        rule: Rule::limits(limits),
        ..plan.clone()
    })
}

/// The index of the limit that these numbers are for.
fn place_of(plan: &Plan, quota: &LimitQuota, field: &str) -> Result<usize, OverrideError> {
    let limits = plan.limits();
    let known = || {
        let names: Vec<String> = limits
            .iter()
            .map(|limit| format!("{:?}", limit.name()))
            .collect();
        match names.is_empty() {
            true => "no limit of units, and an override changes no other".to_owned(),
            false => names.join(", "),
        }
    };
    let (field, problem, fault) = match &quota.name {
        None if limits.len() == 1 => return Ok(0),
        None => (
            field.to_owned(),
            format!("has no name; plan {:?} has {}", plan.name, known()),
            OverrideFault::Invalid,
        ),
        Some(name) => match limits.iter().position(|limit| limit.name() == name) {
            Some(place) => return Ok(place),
            None => (
                format!("{field}.name"),
                format!(
                    "is {name:?}, which is not a limit of plan {:?}; it has {}",
                    plan.name,
                    known()
                ),
                OverrideFault::NotFound,
            ),
        },
    };
    Err(OverrideError::new(field, fault, problem))
}

impl LimitQuota {
    /// The limit with these numbers.
    fn applied_to(&self, limit: &Limit, field: &str) -> Result<Limit, OverrideError> {
        let invalid = |field: String, problem: &str| {
            OverrideError::new(field, OverrideFault::Invalid, problem)
        };
        if (self.quota, self.burst) == (None, None) {
            return Err(invalid(field.to_owned(), "has neither quota nor burst"));
        }
        let is_bucket = matches!(limit.algorithm(), Algorithm::TokenBucket { .. });
        if self.burst.is_some() && !is_bucket {
            let field = format!("{field}.burst");
            return Err(invalid(field, "belongs to token_bucket only"));
        }
        let changed = limit.with_numbers(self.quota, self.burst);
        changed.map_err(|errors| match errors.first() {
            Some(LimitError::Burst(problem)) => invalid(format!("{field}.burst"), problem),
            Some(error) => invalid(format!("{field}.quota"), &error.to_string()),
            None => invalid(field.to_owned(), "has numbers that do not fit the limit"),
        })
    }
}
