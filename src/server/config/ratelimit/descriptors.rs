//! Reads the descriptors of envoyproxy/ratelimit. Source: its README, "The configuration format", and what its reader takes.

use std::collections::HashSet;
use std::time::Duration;

use super::pattern::Pattern;
use crate::config::tree::{ErrorList, Node, Table, report};
use tollgate_core::plan::{Algorithm, Anchor, Limit, check_name};

/// Maximum number of descriptors in one list, and of levels. All lists of a file together are bounded by what the YAML reader takes.
const LIST_MAX: usize = 10_000;
const LEVELS_MAX: usize = 12;
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
/// All names of fields. ratelimit takes each of them everywhere, and ignores those that do not belong where they are.
const FIELDS: [&str; 16] = [
    "domain",
    "descriptors",
    "key",
    "value",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
];
/// What YAML 1.1, which ratelimit reads, takes for true and false, in any usual case.
const TRUE: [&str; 4] = ["true", "yes", "on", "y"];
const FALSE: [&str; 4] = ["false", "no", "off", "n"];

/// A whole file.
pub(super) struct ConfiguredDomain {
    pub(super) name: String,
    pub(super) descriptors: Vec<ConfiguredDescriptor>,
}

/// One entry of a descriptor, with its limit and what is nested in it.
#[derive(Debug, Clone)]
pub(super) struct ConfiguredDescriptor {
    pub(super) path: String,
    pub(super) pattern: Pattern,
    pub(super) limit: Option<RateLimit>,
    /// Whether a value is written, which may be `*`.
    has_value: bool,
    /// Whether all values that a wildcard matches share one count.
    pub(super) shared: bool,
    /// In the order in which they are tried.
    pub(super) nested: Vec<Self>,
}

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
        /// Of the limit: as written, or else the word for its unit.
        name: String,
        quota: u64,
        window: Duration,
    },
}

/// Settings that have no counterpart in tollgate, collected while the file is read.
type Warnings = ErrorList;

/// Reads the file. Returns `None` after adding at least one error.
pub(super) fn domain(
    root: Node,
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<ConfiguredDomain> {
    let mut table = root.table(errors)?;
    let name = required_text(&mut table, "domain", errors);
    let descriptors = match take(&mut table, "descriptors") {
        Some(node) => descriptors(node, 1, errors, warnings),
        None => Some(Vec::new()),
    };
    finish(table, errors, warnings);
    let (name, descriptors) = (name?, descriptors?);
    if name.is_empty() {
        report(errors, "domain", "is empty, which ratelimit refuses too");
        return None;
    }
    if !descriptors.iter().any(ConfiguredDescriptor::has_limit) {
        report(
            warnings,
            "descriptors",
            "has no rate_limit: every request of this domain passes",
        );
    }
    Some(ConfiguredDomain { name, descriptors })
}

impl ConfiguredDescriptor {
    fn has_limit(&self) -> bool {
        self.limit.is_some() || self.nested.iter().any(Self::has_limit)
    }
}

fn descriptors(
    node: Node,
    level: usize,
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<Vec<ConfiguredDescriptor>> {
    let path = node.path.clone();
    if level > LEVELS_MAX {
        report(
            errors,
            &path,
            format!("nests more than {LEVELS_MAX} levels deep"),
        );
        return None;
    }
    let nodes = node.list(
        LIST_MAX,
        |count| format!("has {count} descriptors; at most {LIST_MAX} are converted"),
        errors,
    )?;
    let mut seen = HashSet::new();
    let read: Vec<_> = nodes
        .into_iter()
        .map(|node| descriptor(node, (level, &mut seen), errors, warnings))
        .collect();
    let read: Vec<Option<ConfiguredDescriptor>> = read.into_iter().collect::<Option<_>>()?;
    Some(in_order(read.into_iter().flatten().collect(), warnings))
}

/// The order in which ratelimit tries descriptors: whole values, then wildcards as they stand in the file, then any value. Those
/// that are never tried are left out: an earlier one matches all that they match.
fn in_order(
    mut list: Vec<ConfiguredDescriptor>,
    warnings: &mut Warnings,
) -> Vec<ConfiguredDescriptor> {
    list.sort_by_key(|one| match one.pattern.is_exact() {
        true => 0,
        false if one.has_value => 1,
        false => 2,
    });
    let mut kept = Vec::<ConfiguredDescriptor>::new();
    // Indices in `kept` of patterns of more than one value. Only these hide others, since whole values are looked up first.
    let mut wide = Vec::<usize>::new();
    for one in list {
        let before = wide
            .iter()
            .map(|index| &kept[*index])
            .find(|before| before.pattern.contains(&one.pattern));
        match before.filter(|_| !one.pattern.is_exact()) {
            Some(before) => {
                let why = format!(
                    "never decides, there and here: {} is tried before it, and matches all of its values",
                    before.path
                );
                report(warnings, &one.path, why);
            }
            None => {
                wide.extend((!one.pattern.is_exact()).then_some(kept.len()));
                kept.push(one);
            }
        }
    }
    kept
}

/// Reads one descriptor: `Some(None)` if it was left out with a warning, `None` after adding at least one error.
fn descriptor(
    node: Node,
    (level, seen): (usize, &mut HashSet<(String, String)>),
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<Option<ConfiguredDescriptor>> {
    let path = node.path.clone();
    let mut table = node.table(errors)?;
    let key = required_text(&mut table, "key", errors);
    let value = text(&mut table, "value", errors);
    let modes = Modes::read(&mut table, errors, warnings);
    let limit =
        take(&mut table, "rate_limit").map(|node| rate_limit(node, &modes, errors, warnings));
    let nested = match take(&mut table, "descriptors") {
        Some(node) => descriptors(node, level + 1, errors, warnings),
        None => Some(Vec::new()),
    };
    finish(table, errors, warnings);
    let limit = match limit {
        Some(limit) => Some(limit?),
        None => None,
    };
    let (key, value, nested) = (key?, value?.unwrap_or_default(), nested?);
    if modes.shared && !key.contains('*') && !value.contains('*') {
        report(
            errors,
            &format!("{path}.share_threshold"),
            "needs a value with a *; ratelimit refuses that too",
        );
        return None;
    }
    if !seen.insert((key.clone(), value.clone())) {
        report(
            errors,
            &path,
            "has the key and the value of a descriptor before it; ratelimit refuses that too",
        );
        return None;
    }
    let Some(key) = writable(key, &path, errors, warnings)? else {
        return Some(None);
    };
    let (pattern, has_value) = (Pattern::new(&key, &value), !value.is_empty());
    Some(Some(ConfiguredDescriptor {
        path,
        pattern,
        has_value,
        limit,
        shared: modes.shared,
        nested,
    }))
}

/// The fields of a descriptor that are true or false.
struct Modes {
    shadow: bool,
    quota: bool,
    shared: bool,
}

impl Modes {
    fn read(table: &mut Table, errors: &mut ErrorList, warnings: &mut Warnings) -> Self {
        let [shadow, quota, shared, detailed, metric] = [
            "shadow_mode",
            "quota_mode",
            "share_threshold",
            "detailed_metric",
            "value_to_metric",
        ]
        .map(|name| flag(table, name, errors));
        let path = &table.path;
        for (is, name) in [(detailed, "detailed_metric"), (metric, "value_to_metric")] {
            if is {
                let why = "is left out: metrics of tollgate have no label from a request; `tollgate explain` tells of one key";
                report(warnings, &format!("{path}.{name}"), why);
            }
        }
        if quota {
            let why = "becomes shadow: requests above the limit pass, as there, and no quotaModeViolations tell Envoy of them";
            report(warnings, &format!("{path}.quota_mode"), why);
        }
        if let Some(node) = take(table, "metadata") {
            report(
                warnings,
                &node.path,
                "is left out: answers of tollgate carry no metadata from the config",
            );
        }
        Self {
            shadow,
            quota,
            shared,
        }
    }
}

/// The key, if a rule of tollgate can name an entry so; else the descriptor is left out.
fn writable(
    key: String,
    path: &str,
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<Option<String>> {
    if key.is_empty() {
        report(
            errors,
            &format!("{path}.key"),
            "is empty, which ratelimit refuses too",
        );
        return None;
    }
    if !key.contains(['=', '*', '{', '}']) {
        return Some(Some(key));
    }
    let why = "has =, *, { or }, which no rule of tollgate can name: the descriptor is left out with all that is nested in it, and \
               its requests pass; rename the entry in the proxy";
    report(warnings, &format!("{path}.key"), why);
    Some(None)
}

fn rate_limit(
    node: Node,
    modes: &Modes,
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<RateLimit> {
    let path = node.path.clone();
    let mut table = node.table(errors)?;
    let unlimited = flag(&mut table, "unlimited", errors);
    let name = text(&mut table, "name", errors);
    if let Some(node) = take(&mut table, "replaces") {
        let why = "is left out: a request that has this descriptor and one that it replaces is charged by both, and denied by either; \
                   send only the descriptor that should count";
        report(warnings, &node.path, why);
    }
    let (unit_path, unit) = (format!("{path}.unit"), text(&mut table, "unit", errors));
    let units =
        take(&mut table, "requests_per_unit").map(|node| (node.path.clone(), node.number(errors)));
    finish(table, errors, warnings);
    let (name, unit) = (name?, unit?.unwrap_or_default());
    let length = UNITS
        .into_iter()
        .find(|(word, _)| unit.eq_ignore_ascii_case(word));
    let amount = match (unlimited, length) {
        (true, None) => Amount::Unlimited,
        (true, Some(_)) => {
            report(
                errors,
                &unit_path,
                "is set beside unlimited; remove one of them",
            );
            return None;
        }
        (false, None) => {
            let (path, what) = if unit.is_empty() {
                (&path, "has no unit")
            } else {
                (&unit_path, "is not a unit")
            };
            report(
                errors,
                path,
                format!("{what}; write second, minute, hour, day, week, month or year"),
            );
            return None;
        }
        (false, Some(length)) => {
            if length.0 == MONTH {
                let told = "is a month of 30 days, as in ratelimit; for months of the calendar write window: month in its plan";
                report(warnings, &unit_path, told);
            }
            quota((&path, length), units, name, errors, warnings)?
        }
    };
    Some(RateLimit {
        amount,
        shadow: modes.shadow || modes.quota,
    })
}

fn quota(
    (path, (word, length)): (&str, (&str, u64)),
    units: Option<(String, Option<u64>)>,
    name: Option<String>,
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<Amount> {
    let (units_path, units) = units.unwrap_or_else(|| {
        report(
            warnings,
            path,
            "has no requests_per_unit, which means 0 in ratelimit: every request is denied",
        );
        (path.to_owned(), Some(0))
    });
    let quota = units?;
    if quota == 0 {
        return Some(Amount::Nothing);
    }
    let name = match name.filter(|name| !name.is_empty()) {
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
    };
    let window = Duration::from_secs(length);
    let fixed = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };
    if let Err(wrong) = Limit::new(name.as_str(), quota, window, fixed) {
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

/// Takes a field that has a value. A field without one counts as absent, as in ratelimit.
fn take(table: &mut Table, name: &'static str) -> Option<Node> {
    table.take(name).filter(|node| !node.is_nil())
}

/// Warns of fields that ratelimit ignores here, and adds an error for each that it does not know.
fn finish(mut table: Table, errors: &mut ErrorList, warnings: &mut Warnings) {
    for name in FIELDS {
        if let Some(node) = take(&mut table, name) {
            report(
                warnings,
                &node.path,
                "is left out: ratelimit ignores it here",
            );
        }
    }
    table.finish(errors);
}

/// The text of a field: `Some(None)` if there is none, `None` after adding an error.
fn text(table: &mut Table, name: &'static str, errors: &mut ErrorList) -> Option<Option<String>> {
    let Some(node) = take(table, name) else {
        return Some(None);
    };
    match node.is_boolean() {
        // Where a text is wanted, `true` is one.
        true => node
            .boolean(errors)
            .map(|boolean| Some(boolean.to_string())),
        false => node.text(errors).map(Some),
    }
}

fn required_text(table: &mut Table, name: &'static str, errors: &mut ErrorList) -> Option<String> {
    let text = text(table, name, errors)?;
    if text.is_none() {
        let path = table.path.clone();
        report(errors, &path, format!("has no {name}"));
    }
    text
}

fn flag(table: &mut Table, name: &'static str, errors: &mut ErrorList) -> bool {
    let Some(node) = take(table, name) else {
        return false;
    };
    let word = node.plain_text().unwrap_or_default();
    let is = |words: &[&str]| words.iter().any(|known| word.eq_ignore_ascii_case(known));
    is(&TRUE) || !is(&FALSE) && node.boolean(errors).unwrap_or(false)
}
