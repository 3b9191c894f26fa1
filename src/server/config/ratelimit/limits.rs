//! Reads `rate_limit` of a descriptor.

use std::time::Duration;

use super::fields::{Warnings, finish, flag, take, text};
use crate::config::tree::{ErrorList, Node, Table, report};
use tollgate_core::plan::{Algorithm, Anchor, Limit, check_name};

const DAY: u64 = 24 * 60 * 60;
const MONTH: &str = "month";
/// Units and their lengths in seconds. A month and a year have these lengths in ratelimit too.
const UNITS: [(&str, u64); 7] = [
    ("second", 1),
    ("minute", 60),
    ("hour", 3_600),
    ("day", DAY),
    ("week", 7 * DAY),
    (MONTH, 30 * DAY),
    ("year", 365 * DAY),
];
/// What is right in the place of a wrong unit.
const WRITE_A_UNIT: &str = "write second, minute, hour, day, week, month or year";
const FIXED: Algorithm = Algorithm::FixedWindow {
    anchor: Anchor::Clock,
};

/// `rate_limit` of a descriptor: how much passes, and whether it only reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RateLimit {
    pub(super) amount: Amount,
    pub(super) shadow: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Amount {
    Unlimited,
    Nothing,
    /// So many units in each window.
    Quota {
        /// Name of the limit: that of the file, or else its unit, such as `minute`.
        name: String,
        quota: u64,
        window: Duration,
    },
}

/// Reads `rate_limit`. Returns `None` after adding at least one error.
pub(super) fn rate_limit(
    node: Node,
    shadow: bool,
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<RateLimit> {
    let path = node.path.clone();
    let mut table = node.table(errors)?;
    let unlimited = flag(&mut table, "unlimited", errors);
    let name = text(&mut table, "name", errors);
    warn_of_replaces(&mut table, warnings);
    let unit = text(&mut table, "unit", errors);
    let units =
        take(&mut table, "requests_per_unit").map(|node| (node.path.clone(), node.number(errors)));
    finish(table, errors, warnings);
    let name = name?;
    let unit = unit?.unwrap_or_default();
    let length = length_of_unit(&unit, unlimited, &path, errors)?;
    if length.is_some_and(|(word, _)| word == MONTH) {
        let told = "is a month of 30 days, as in ratelimit; for months of the calendar write window: month in its plan";
        report(warnings, &format!("{path}.unit"), told);
    }
    let amount = match length {
        None => Amount::Unlimited,
        Some(length) => quota((&path, length), units, name, errors, warnings)?,
    };
    Some(RateLimit { amount, shadow })
}

fn warn_of_replaces(table: &mut Table, warnings: &mut Warnings) {
    if let Some(node) = take(table, "replaces") {
        let why = "is left out: a request that has this descriptor and one that it replaces is charged by both, and denied by either; \
                   send only the descriptor that should count";
        report(warnings, &node.path, why);
    }
}

/// The unit by its word, and its length in seconds; `Some(None)` for an unlimited one, which has none. `None` after adding an
/// error.
fn length_of_unit(
    unit: &str,
    unlimited: bool,
    path: &str,
    errors: &mut ErrorList,
) -> Option<Option<(&'static str, u64)>> {
    let length = UNITS
        .into_iter()
        .find(|(word, _)| unit.eq_ignore_ascii_case(word));
    let (path, problem) = match (unlimited, length) {
        (false, None) if unit.is_empty() => {
            (path.to_owned(), format!("has no unit; {WRITE_A_UNIT}"))
        }
        (false, None) => (
            format!("{path}.unit"),
            format!("is not a unit; {WRITE_A_UNIT}"),
        ),
        (true, Some(_)) => (
            format!("{path}.unit"),
            "is set beside unlimited; remove one of them".to_owned(),
        ),
        (true, None) | (false, Some(_)) => return Some(length),
    };
    report(errors, &path, problem);
    None
}

fn quota(
    (path, (word, length)): (&str, (&str, u64)),
    units: Option<(String, Option<u64>)>,
    name: Option<String>,
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<Amount> {
    let (units_path, units) = units.unwrap_or_else(|| {
        let why = "has no requests_per_unit, which means 0 in ratelimit: every request is denied";
        report(warnings, path, why);
        (path.to_owned(), Some(0))
    });
    let quota = units?;
    if quota == 0 {
        return Some(Amount::Nothing);
    }
    let name = limit_name(name, word, path, warnings);
    let window = Duration::from_secs(length);
    if let Err(wrong) = Limit::new(name.as_str(), quota, window, FIXED) {
        wrong
            .iter()
            .for_each(|error| report(errors, &units_path, error.to_string()));
        return None;
    }
    Some(Amount::Quota {
        name,
        quota,
        window,
    })
}

/// The name of the limit: as written, or else the word for its unit.
fn limit_name(name: Option<String>, word: &str, path: &str, warnings: &mut Warnings) -> String {
    match name.filter(|name| !name.is_empty()) {
        Some(name) if check_name(&name).is_ok() => name,
        Some(_) => {
            report(
                warnings,
                &format!("{path}.name"),
                "is left out: a limit's name has 1 to 64 ASCII letters, digits, `_`, `-`, `.` and `/`",
            );
            word.to_owned()
        }
        None => word.to_owned(),
    }
}
