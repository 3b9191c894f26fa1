//! Reads what a plan says of holds: the section `holds`, and a limit of `algorithm: concurrency`.

use std::time::Duration;

use super::plans::{group, required};
use super::tree::{ErrorList, Node, Table, report};
use tollgate_core::duration::Shown;
use tollgate_core::plan::{Concurrency, HoldTerms, IDS_MAX, LEASE_MAX, LEASE_MIN, OPEN_MAX};

/// Whether a lease that ends gives its units back, by its names in the config.
const ON_EXPIRY: [(&str, bool); 2] = [("charge", false), ("release", true)];
/// Fields of other limits, which a concurrency limit has not.
const FIELDS_OF_RATES: [&str; 7] = [
    "window",
    "burst",
    "anchor",
    "precision",
    "zone",
    "starts",
    "block",
];

/// Whether a limit is one of `algorithm: concurrency`.
pub(super) fn is_concurrency(table: &Table) -> bool {
    table.text("algorithm") == Some(Concurrency::ALGORITHM)
}

/// A concurrency limit, which stands at this place among the limits of its plan.
pub(super) fn concurrency(
    mut table: Table,
    place: usize,
    errors: &mut ErrorList,
) -> Option<Concurrency> {
    let path = table.path.clone();
    let errors_before = errors.len();
    table.take("algorithm");
    let quota = required(&mut table, "quota", errors).and_then(|node| node.number(errors));
    let name = table.read("name", group, errors);
    for field in FIELDS_OF_RATES {
        if let Some(node) = table.take(field) {
            let problem =
                "belongs to limits of units; a concurrency limit has quota and name alone";
            report(errors, &node.path, problem);
        }
    }
    table.finish(errors);
    let name = name?.unwrap_or_else(|| Concurrency::ALGORITHM.to_owned());
    let limit = Concurrency::new(name, quota?, place);
    let limit = limit.map_err(|error| report(errors, &format!("{path}.quota"), error));
    limit.ok().filter(|_| errors.len() == errors_before)
}

/// The terms of a plan's holds, with the default of each field that is left out. `slots` is the quota of its concurrency limit.
pub(super) fn terms(
    node: Option<Node>,
    slots: Option<u32>,
    errors: &mut ErrorList,
) -> Option<HoldTerms> {
    let slots = slots.unwrap_or(0);
    let mut default = HoldTerms::default();
    default.max_open = default.max_open.max(slots);
    let Some(node) = node else {
        return Some(default);
    };
    let errors_before = errors.len();
    let mut table = node.table(errors)?;
    let leases = leases(&mut table, &default, errors);
    let on_expiry = table.choice_or("on_expiry", false, &ON_EXPIRY, errors);
    let max_open = count(&mut table, "max_open", (default.max_open, OPEN_MAX), errors);
    let max_ids = count(&mut table, "max_ids", (default.max_ids, IDS_MAX), errors);
    let path = table.path.clone();
    table.finish(errors);
    if let Some(max_open) = max_open.filter(|max_open| *max_open < slots) {
        let problem = format!("is {max_open}; the concurrency limit alone lets {slots} be open");
        report(errors, &format!("{path}.max_open"), problem);
    }
    let terms = HoldTerms {
        release_on_expiry: on_expiry?,
        max_open: max_open?,
        max_ids: max_ids?,
        ..leases?
    };
    (errors.len() == errors_before).then_some(terms)
}

/// The default terms, with the durations of this table.
fn leases(table: &mut Table, default: &HoldTerms, errors: &mut ErrorList) -> Option<HoldTerms> {
    let ttl = lease(table, "ttl", (default.ttl, LEASE_MIN), errors);
    let shortest = ttl.unwrap_or(LEASE_MIN);
    let usual = default.max_ttl.max(shortest);
    let max_ttl = lease(table, "max_ttl", (usual, shortest), errors);
    let remember = lease(table, "remember", (default.remember, LEASE_MIN), errors);
    Some(HoldTerms {
        ttl: ttl?,
        max_ttl: max_ttl?,
        remember: remember?,
        ..default.clone()
    })
}

/// A duration from `least` to a day.
fn lease(
    table: &mut Table,
    field: &'static str,
    (default, least): (Duration, Duration),
    errors: &mut ErrorList,
) -> Option<Duration> {
    let Some(node) = table.take(field) else {
        return Some(default);
    };
    let path = node.path.clone();
    let duration = node.duration(errors)?;
    if !(least..=LEASE_MAX).contains(&duration) {
        let is = Shown(duration);
        let least = Shown(least);
        let most = Shown(LEASE_MAX);
        report(errors, &path, format!("is {is}; write {least} to {most}"));
        return None;
    }
    Some(duration)
}

/// A number from 1 to `most`.
fn count(
    table: &mut Table,
    field: &'static str,
    (default, most): (u32, u32),
    errors: &mut ErrorList,
) -> Option<u32> {
    let Some(node) = table.take(field) else {
        return Some(default);
    };
    let path = node.path.clone();
    let number = node.number(errors)?;
    let found = u32::try_from(number).ok();
    let found = found.filter(|found| (1..=most).contains(found));
    if found.is_none() {
        report(errors, &path, format!("is {number}; write 1 to {most}"));
    }
    found
}
