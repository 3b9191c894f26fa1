//! What other sections of the config must know of the plans.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::tree::{ErrorList, Quoted, is_full, report};
use tollgate_core::nearest::nearest;

/// What other sections must know of the plans.
#[derive(Default)]
pub(super) struct PlanNames {
    /// The names of all plans, also of those with errors. `None` where they could not be read, or are too many.
    pub(super) all: Option<BTreeSet<String>>,
    /// Those that have a concurrency limit.
    pub(super) with_slots: BTreeSet<Arc<str>>,
}

impl PlanNames {
    /// Whether there may be a plan of this name. Reports a name that is none. `means` is what the field does with the name, and
    /// `right` what else would be right where no name is near.
    pub(super) fn check(
        &self,
        name: &str,
        (path, means, right): (&str, &str, &str),
        errors: &mut ErrorList,
    ) -> bool {
        let Some(names) = self.all.as_ref().filter(|names| !names.contains(name)) else {
            return true;
        };
        // Finding the nearest name takes up to 50 us, so it is skipped when no error can be added.
        if !is_full(errors) {
            let near = nearest(name, names.iter().map(String::as_str));
            let near = near.map_or_else(
                || right.to_owned(),
                |near| format!("; did you mean {near:?}?"),
            );
            report(
                errors,
                path,
                format!(
                    "{means} {}, which is not a plan of this config{near}",
                    Quoted(name)
                ),
            );
        }
        false
    }

    /// As [`Self::check`], for a place that decides without holds.
    pub(super) fn check_without_slots(
        &self,
        name: &str,
        (path, right): (&str, &str),
        errors: &mut ErrorList,
    ) -> bool {
        if self.with_slots.contains(name) {
            report(errors, path, needs_reserve(name));
            return false;
        }
        self.check(name, (path, "is", right), errors)
    }
}

/// What is wrong with a plan that has a concurrency limit, where nobody reserves.
pub(super) fn needs_reserve(plan: &str) -> String {
    format!(
        "is {}: plan {plan} has a concurrency limit, which needs Reserve",
        Quoted(plan)
    )
}
