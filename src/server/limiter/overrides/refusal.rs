//! Why an override is not set, and what was meant where a name is wrong.

use std::collections::HashSet;

use super::known::RuntimeOverrides;
use tollgate_core::nearest::nearest;
use tollgate_core::plan::{
    OVERRIDE_KEYS_MAX, OVERRIDE_PREFIXES_MAX, OverrideEffect, OverrideError, OverrideFault,
    OverrideSubject, PlanOverride, PlanSet, UnknownPlan,
};
use tollgate_store::StoreError;

/// Why overrides were not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OverrideRefusal {
    /// It would have no effect.
    #[error(transparent)]
    WithoutEffect(#[from] OverrideError),
    /// The plan, or the plan to use, is not in the config.
    #[error("{place}{unknown}")]
    UnknownPlan {
        /// What stands before the plan: nothing, or the field if it is `use_plan`.
        place: &'static str,
        /// The name, and the nearest one.
        unknown: UnknownPlan,
    },
    /// A field is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The present override has another version.
    #[error("the override has version {present}, not {expected}")]
    Version {
        /// Its version; 0 if there is none.
        present: u64,
        /// The version that the caller expects.
        expected: u64,
    },
    /// So many are set already.
    #[error("{0}")]
    Full(String),
    /// Only the file has it.
    #[error("the override is in the config file; remove it there and reload")]
    OfFile,
    /// The store did not confirm.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Errors: so many are set already that no other one may be.
pub(super) fn check_room(
    known: &RuntimeOverrides,
    entry: &PlanOverride,
    now_us: u64,
) -> Result<(), OverrideRefusal> {
    if known.present(entry, now_us).is_some() {
        return Ok(());
    }
    let is_key = |entry: &PlanOverride| matches!(entry.subject, OverrideSubject::Key(_));
    let (most, of_what) = match is_key(entry) {
        true => (OVERRIDE_KEYS_MAX, "keys"),
        false => (OVERRIDE_PREFIXES_MAX, "prefixes"),
    };
    let alike = known
        .entries
        .iter()
        .filter(|other| is_key(other) == is_key(entry) && !other.is_expired(now_us));
    if alike.count() < most {
        return Ok(());
    }
    Err(OverrideRefusal::Full(format!(
        "{most} overrides of {of_what} are set, and no more can be; delete one, or write a plan for them"
    )))
}

pub(super) fn with_nearest(
    entry: &PlanOverride,
    plans: &PlanSet,
    error: OverrideError,
) -> OverrideRefusal {
    let name = match (&entry.effect, error.field.as_str()) {
        _ if error.fault != OverrideFault::NotFound => return error.into(),
        (_, "plan") => (&entry.plan, ""),
        (OverrideEffect::UsePlan(name), "use_plan") => (name, "use_plan: "),
        (effect, _) => return with_nearest_limit(entry, effect, plans, error),
    };
    let unknown = plans.suggest(UnknownPlan {
        name: name.0.to_string(),
        nearest: None,
    });
    OverrideRefusal::UnknownPlan {
        place: name.1,
        unknown,
    }
}

fn with_nearest_limit(
    entry: &PlanOverride,
    effect: &OverrideEffect,
    plans: &PlanSet,
    mut error: OverrideError,
) -> OverrideRefusal {
    let OverrideEffect::Quotas(quotas) = effect else {
        return error.into();
    };
    let limits = plans
        .get(&entry.plan)
        .map(|plan| plan.limits())
        .unwrap_or_default();
    let names: HashSet<&str> = limits.iter().map(|limit| &**limit.name()).collect();
    let wrong = quotas.iter().filter_map(|quota| quota.name.as_deref());
    let wrong = wrong.into_iter().find(|name| !names.contains(name));
    if let Some(near) = wrong.and_then(|name| nearest(name, names.iter().copied())) {
        error.problem += &format!("; did you mean {near:?}?");
    }
    error.into()
}
