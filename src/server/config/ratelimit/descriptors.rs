//! Reads the descriptors of envoyproxy/ratelimit. Source: its README, "The configuration format", and what its reader takes.

use std::collections::HashSet;

use super::fields::{Warnings, finish, flag, required_text, take, text};
use super::limits::{RateLimit, rate_limit};
use super::pattern::Pattern;
use crate::config::tree::{ErrorList, Node, Table, report};

/// Maximum number of descriptors in one list, and of levels. All lists of a file together are bounded by what the YAML reader takes.
const LIST_MAX: usize = 10_000;
const LEVELS_MAX: usize = 12;

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

/// Reads the file. Returns `None` after adding at least one error.
pub(super) fn domain(
    root: Node,
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<ConfiguredDomain> {
    let mut table = root.table(errors)?;
    let name = required_text(&mut table, "domain", errors);
    let descriptors = nested(&mut table, 1, errors, warnings);
    finish(table, errors, warnings);
    let name = name?;
    let descriptors = descriptors?;
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

/// The descriptors in a table; none without the field.
fn nested(
    table: &mut Table,
    level: usize,
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<Vec<ConfiguredDescriptor>> {
    match take(table, "descriptors") {
        Some(node) => descriptors(node, level, errors, warnings),
        None => Some(Vec::new()),
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
    let mut level = DescriptorLevel {
        number: level,
        seen: HashSet::new(),
    };
    let read: Vec<_> = nodes
        .into_iter()
        .map(|node| descriptor(node, &mut level, errors, warnings))
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
        if one.pattern.is_exact() {
            kept.push(one);
            continue;
        }
        let before = wide
            .iter()
            .map(|index| &kept[*index])
            .find(|before| before.pattern.contains(&one.pattern));
        match before {
            Some(before) => warn_of_hidden(&one, before, warnings),
            None => {
                wide.push(kept.len());
                kept.push(one);
            }
        }
    }
    kept
}

fn warn_of_hidden(
    hidden: &ConfiguredDescriptor,
    before: &ConfiguredDescriptor,
    warnings: &mut Warnings,
) {
    let why = format!(
        "never decides, there and here: {} is tried before it, and matches all of its values",
        before.path
    );
    report(warnings, &hidden.path, why);
}

/// A list of descriptors while it is read.
struct DescriptorLevel {
    /// How deep it is nested, from 1.
    number: usize,
    /// The key and the value of each descriptor so far.
    seen: HashSet<(String, String)>,
}

impl DescriptorLevel {
    /// Refuses the key and the value of a descriptor before it.
    fn add(&mut self, path: &str, key: &str, value: &str, errors: &mut ErrorList) -> Option<()> {
        if !self.seen.insert((key.to_owned(), value.to_owned())) {
            report(
                errors,
                path,
                "has the key and the value of a descriptor before it; ratelimit refuses that too",
            );
            return None;
        }
        Some(())
    }
}

/// Reads one descriptor: `Some(None)` if it was left out with a warning, `None` after adding at least one error.
fn descriptor(
    node: Node,
    level: &mut DescriptorLevel,
    errors: &mut ErrorList,
    warnings: &mut Warnings,
) -> Option<Option<ConfiguredDescriptor>> {
    let path = node.path.clone();
    let mut table = node.table(errors)?;
    let key = required_text(&mut table, "key", errors);
    let value = text(&mut table, "value", errors);
    let modes = Modes::read(&mut table, errors, warnings);
    let limit = take(&mut table, "rate_limit").map_or(Some(None), |node| {
        rate_limit(node, modes.shadow, errors, warnings).map(Some)
    });
    let nested = nested(&mut table, level.number + 1, errors, warnings);
    finish(table, errors, warnings);
    let limit = limit?;
    let key = key?;
    let value = value?.unwrap_or_default();
    let nested = nested?;
    modes.check(&path, &key, &value, errors)?;
    level.add(&path, &key, &value, errors)?;
    let Some(key) = writable(key, &path, errors, warnings)? else {
        return Some(None);
    };
    Some(Some(ConfiguredDescriptor {
        path,
        pattern: Pattern::new(&key, &value),
        has_value: !value.is_empty(),
        limit,
        shared: modes.shared,
        nested,
    }))
}

/// The fields of a descriptor that are true or false.
struct Modes {
    /// By `shadow_mode`, or by `quota_mode`, which becomes shadow.
    shadow: bool,
    shared: bool,
}

impl Modes {
    fn read(table: &mut Table, errors: &mut ErrorList, warnings: &mut Warnings) -> Self {
        let shadow = flag(table, "shadow_mode", errors);
        let quota = flag(table, "quota_mode", errors);
        let shared = flag(table, "share_threshold", errors);
        warn_of_metrics(table, errors, warnings);
        if quota {
            let why = "becomes shadow: requests above the limit pass, as there, and no quotaModeViolations tell Envoy of them";
            report(warnings, &format!("{}.quota_mode", table.path), why);
        }
        if let Some(node) = take(table, "metadata") {
            report(
                warnings,
                &node.path,
                "is left out: answers of tollgate carry no metadata from the config",
            );
        }
        Self {
            shadow: shadow || quota,
            shared,
        }
    }

    /// Refuses a shared count of one value alone.
    fn check(&self, path: &str, key: &str, value: &str, errors: &mut ErrorList) -> Option<()> {
        if self.shared && !key.contains('*') && !value.contains('*') {
            report(
                errors,
                &format!("{path}.share_threshold"),
                "needs a value with a *; ratelimit refuses that too",
            );
            return None;
        }
        Some(())
    }
}

/// Warns of the fields that change metrics alone.
fn warn_of_metrics(table: &mut Table, errors: &mut ErrorList, warnings: &mut Warnings) {
    for name in ["detailed_metric", "value_to_metric"] {
        if flag(table, name, errors) {
            let why = "is left out: metrics of tollgate have no label from a request; `tollgate explain` tells of one key";
            report(warnings, &format!("{}.{name}", table.path), why);
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
