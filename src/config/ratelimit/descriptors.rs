//! Reads the descriptors of envoyproxy/ratelimit. Source: its README, "The configuration format".

use std::collections::HashSet;
use std::time::Duration;

use crate::config::tree::{ErrorList, Node, Table, report};
use crate::plan::{Algorithm, Anchor, Limit, check_name};

/// Most descriptors in one list, and most levels of them. The parser's own bounds are below these in sum.
const LIST_MAX: usize = 10_000;
const LEVELS_MAX: usize = 12;
const DAY: u64 = 24 * 60 * 60;
/// Units and their lengths in seconds. A month and a year have these lengths in ratelimit too.
const UNITS: [(&str, u64); 7] =
    [("second", 1), ("minute", 60), ("hour", 3_600), ("day", DAY), ("week", 7 * DAY), ("month", 30 * DAY), ("year", 365 * DAY)];

/// A whole file.
pub(super) struct Domain {
    pub(super) name: String,
    pub(super) descriptors: Vec<Descriptor>,
}

/// One entry of a descriptor, with its limit and what is nested in it.
#[derive(Debug, Clone)]
pub(super) struct Descriptor {
    pub(super) path: String,
    pub(super) pattern: Pattern,
    pub(super) limit: Option<RateLimit>,
    /// Whether all values that a wildcard matches share one count.
    pub(super) shared: bool,
    pub(super) nested: Vec<Self>,
}

/// What an entry must be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Pattern {
    pub(super) key: String,
    pub(super) value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Value {
    Any,
    Prefix(String),
    Exact(String),
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
    /// A name, units, and the name and the length of the window.
    Quota {
        name: String,
        quota: u64,
        window: Duration,
    },
}

/// Warnings about settings that have no counterpart in tollgate, collected while the file is read.
type Warnings = ErrorList;

/// Reads the file. Returns `None` after adding at least one error.
pub(super) fn domain(root: Node, errors: &mut ErrorList, warnings: &mut Warnings) -> Option<Domain> {
    let mut table = root.table(errors)?;
    let name = required_text(&mut table, "domain", errors);
    let descriptors = match table.take("descriptors") {
        Some(node) => descriptors(node, 1, errors, warnings),
        None => Some(Vec::new()),
    };
    table.finish(errors);
    let (name, descriptors) = (name?, descriptors?);
    if descriptors.is_empty() {
        report(errors, "descriptors", "is empty; there is nothing to convert");
        return None;
    }
    Some(Domain { name, descriptors })
}

fn descriptors(node: Node, level: usize, errors: &mut ErrorList, warnings: &mut Warnings) -> Option<Vec<Descriptor>> {
    let path = node.path.clone();
    if level > LEVELS_MAX {
        report(errors, &path, format!("nests more than {LEVELS_MAX} levels deep"));
        return None;
    }
    let nodes = node.list(LIST_MAX, |count| format!("has {count} descriptors; at most {LIST_MAX} are converted"), errors)?;
    let read: Vec<_> = nodes.into_iter().map(|node| descriptor(node, level, errors, warnings)).collect();
    let read: Vec<Descriptor> = read.into_iter().collect::<Option<_>>()?;
    let mut seen = HashSet::new();
    for own in &read {
        if !seen.insert(&own.pattern) {
            report(errors, &own.path, "has the key and the value of a descriptor before it; ratelimit refuses that too");
        }
    }
    Some(read)
}

fn descriptor(node: Node, level: usize, errors: &mut ErrorList, warnings: &mut Warnings) -> Option<Descriptor> {
    let path = node.path.clone();
    let mut table = node.table(errors)?;
    let key = required_text(&mut table, "key", errors).filter(|key| writable(key, &path, errors));
    let value = value(&mut table, errors);
    let [shadow, shared, detailed, metric, quota_mode] =
        ["shadow_mode", "share_threshold", "detailed_metric", "value_to_metric", "quota_mode"]
            .map(|name| flag(&mut table, name, errors));
    for (is, name) in [(detailed, "detailed_metric"), (metric, "value_to_metric")] {
        if is {
            let why = "is left out: metrics of tollgate have no label from a request; `tollgate explain` tells of one key";
            report(warnings, &format!("{path}.{name}"), why);
        }
    }
    if quota_mode {
        report(warnings, &format!("{path}.quota_mode"), "is left out: the limit denies as any other");
    }
    let limit = table.take("rate_limit").map(|node| rate_limit(node, shadow, errors, warnings));
    let nested = match table.take("descriptors") {
        Some(node) => descriptors(node, level + 1, errors, warnings),
        None => Some(Vec::new()),
    };
    table.finish(errors);
    let limit = match limit {
        Some(limit) => Some(limit?),
        None => None,
    };
    Some(Descriptor { path, pattern: Pattern { key: key?, value: value? }, limit, shared, nested: nested? })
}

fn value(table: &mut Table, errors: &mut ErrorList) -> Option<Value> {
    let Some(node) = table.take("value") else { return Some(Value::Any) };
    let path = node.path.clone();
    let text = node.text(errors)?;
    let begin = text.strip_suffix('*').unwrap_or(&text);
    if begin.contains('*') {
        report(
            errors,
            &path,
            "has a * before its end, which a rule of tollgate cannot match as it is; write the value in another way",
        );
        return None;
    }
    Some(match (begin.is_empty(), begin.len() < text.len()) {
        (true, _) => Value::Any,
        (false, true) => Value::Prefix(begin.to_owned()),
        (false, false) => Value::Exact(text),
    })
}

/// Whether a rule of tollgate can name an entry so.
fn writable(key: &str, path: &str, errors: &mut ErrorList) -> bool {
    let wrong = key.is_empty() || key.contains(['=', '*', '{', '}']);
    if wrong {
        report(
            errors,
            &format!("{path}.key"),
            "is empty or has =, *, { or }, which a rule of tollgate cannot name; rename the entry in the proxy",
        );
    }
    !wrong
}

fn rate_limit(node: Node, shadow: bool, errors: &mut ErrorList, warnings: &mut Warnings) -> Option<RateLimit> {
    let path = node.path.clone();
    let mut table = node.table(errors)?;
    let unlimited = flag(&mut table, "unlimited", errors);
    let name = table.take("name").and_then(|node| node.text(errors));
    if table.take("replaces").is_some() {
        let why = "is left out: every descriptor of a request is decided by its own plan, and none replaces another; \
                   send only the descriptor that should count";
        report(warnings, &format!("{path}.replaces"), why);
    }
    let unit = table.take("unit").map(|node| (node.path.clone(), node.text(errors)));
    let units = table.take("requests_per_unit").map(|node| (node.path.clone(), node.number(errors)));
    table.finish(errors);
    let amount = match (unlimited, unit) {
        (true, None) => Amount::Unlimited,
        (true, Some((path, _))) => {
            report(errors, &path, "is set beside unlimited; remove one of them");
            return None;
        }
        (false, None) => {
            report(errors, &path, "has no unit; write second, minute, hour, day, week, month or year");
            return None;
        }
        (false, Some((unit_path, unit))) => quota((&path, &unit_path), (&unit?, units), name, errors, warnings)?,
    };
    Some(RateLimit { amount, shadow })
}

fn quota(
    (path, unit_path): (&str, &str),
    (unit, units): (&str, Option<(String, Option<u64>)>),
    name: Option<String>,
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<Amount> {
    let Some((word, length)) = UNITS.into_iter().find(|(word, _)| unit.eq_ignore_ascii_case(word)) else {
        report(errors, unit_path, "is no unit; write second, minute, hour, day, week, month or year");
        return None;
    };
    let (units_path, units) = units.unwrap_or_else(|| {
        report(warnings, path, "has no requests_per_unit, which means 0 in ratelimit: every request is denied");
        (path.to_owned(), Some(0))
    });
    let quota = units?;
    if quota == 0 {
        return Some(Amount::Nothing);
    }
    let name = match name {
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
    let fixed = Algorithm::FixedWindow { anchor: Anchor::Clock };
    if let Err(wrong) = Limit::new(name.as_str(), quota, window, fixed) {
        wrong.iter().for_each(|error| report(errors, &units_path, error.to_string()));
        return None;
    }
    Some(Amount::Quota { name, quota, window })
}

fn required_text(table: &mut Table, name: &'static str, errors: &mut ErrorList) -> Option<String> {
    match table.take(name) {
        Some(node) => node.text(errors),
        None => {
            let path = table.path.clone();
            report(errors, &path, format!("has no {name}"));
            None
        }
    }
}

fn flag(table: &mut Table, name: &'static str, errors: &mut ErrorList) -> bool {
    table.take(name).and_then(|node| node.boolean(errors)).unwrap_or(false)
}
