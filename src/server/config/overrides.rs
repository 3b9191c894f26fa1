//! Checks the `overrides` list: other limits for single keys, and for keys with a beginning.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::plan_names::PlanNames;
use super::tree::{ErrorList, Node, Table, report};
use tollgate_core::plan::{
    LIMITS_MAX, LimitQuota, OVERRIDE_KEYS_MAX, OVERRIDE_PREFIXES_MAX, OverrideEffect,
    OverrideSource, OverrideSubject, PlanOverride, PlanSet, REASON_BYTES_MAX,
};

/// An override as it was read, and where.
struct Read {
    path: String,
    entry: PlanOverride,
}

/// The overrides as they were read, in their order; those with errors are missing.
pub(super) struct ConfiguredOverrides(Vec<Read>);

/// Reads all overrides, and checks each on its own.
pub(super) fn read(
    node: Option<Node>,
    names: &PlanNames,
    errors: &mut ErrorList,
) -> ConfiguredOverrides {
    let Some(node) = node.filter(|node| !node.is_nil()) else {
        return ConfiguredOverrides(Vec::new());
    };
    let most = OVERRIDE_KEYS_MAX + OVERRIDE_PREFIXES_MAX;
    let too_many = |count| {
        format!(
            "has {count} entries; at most {OVERRIDE_KEYS_MAX} with key and {OVERRIDE_PREFIXES_MAX} with key_prefix"
        )
    };
    let path = node.path.clone();
    let nodes = node.list(most, too_many, errors).unwrap_or_default();
    let entries = nodes.into_iter().filter_map(|node| {
        let path = node.path.clone();
        let entry = entry(node, names, errors)?;
        Some(Read { path, entry })
    });
    let entries: Vec<Read> = entries.collect();
    report_counts(&path, &entries, errors);
    report_duplicates(&entries, errors);
    ConfiguredOverrides(entries)
}

impl ConfiguredOverrides {
    /// Checks what each means among the plans, and adds them to the set.
    pub(super) fn checked_with(self, plans: PlanSet, errors: &mut ErrorList) -> PlanSet {
        for Read { path, entry } in &self.0 {
            if let Err(error) = entry.plan_in(&plans) {
                report(errors, &format!("{path}.{}", error.field), error.problem);
            }
        }
        let entries = self.0.into_iter().map(|read| Arc::new(read.entry));
        plans.with_overrides(entries.collect())
    }
}

/// A warning for each override that has expired already.
pub(super) fn warnings(plans: &PlanSet, now_us: u64) -> impl Iterator<Item = String> {
    let expired = plans.overrides().iter().enumerate();
    let expired = expired.filter(move |(_, entry)| entry.is_expired(now_us));
    expired.map(|(index, _)| {
        format!("overrides[{index}].expires is in the past, so it has no effect; remove it")
    })
}

/// Reports too many of one kind. There may be more of both together than of each.
fn report_counts(path: &str, entries: &[Read], errors: &mut ErrorList) {
    for (field, most) in [
        ("key", OVERRIDE_KEYS_MAX),
        ("key_prefix", OVERRIDE_PREFIXES_MAX),
    ] {
        let alike = entries
            .iter()
            .filter(|read| read.entry.subject.field() == field);
        let count = alike.count();
        if count > most {
            report(
                errors,
                path,
                format!("has {count} entries with {field}; at most {most}"),
            );
        }
    }
}

/// Reports an override of the plan and the subject of one before it.
fn report_duplicates(entries: &[Read], errors: &mut ErrorList) {
    let mut known: HashMap<_, &str> = HashMap::new();
    for Read { path, entry } in entries {
        let subject = (&entry.plan, &entry.subject);
        match known.get(&subject) {
            Some(before) => report(
                errors,
                path,
                format!("is of the same plan and key as {before}"),
            ),
            None => {
                known.insert(subject, path);
            }
        }
    }
}

fn entry(node: Node, names: &PlanNames, errors: &mut ErrorList) -> Option<PlanOverride> {
    let mut table = node.table(errors)?;
    let plan = plan(&mut table, names, errors);
    let subject = subject(&mut table, errors);
    let effect = effect(&mut table, names, errors);
    let expires_at_us = table.read("expires", expiry, errors);
    let reason = table.read_or("reason", String::new(), reason, errors);
    table.finish(errors);
    Some(PlanOverride {
        plan: plan?.into(),
        subject: subject?,
        effect: effect?,
        expires_at_us: expires_at_us?,
        reason: reason?.into(),
        source: OverrideSource::File,
        version: 0,
        set_at_us: 0,
    })
}

/// The name of the plan. Whether there is such a plan is checked here, so that the error stands beside those of other fields.
fn plan(table: &mut Table, names: &PlanNames, errors: &mut ErrorList) -> Option<String> {
    let Some(node) = table.take("plan") else {
        report(
            errors,
            &table.path,
            "has no plan; name the plan whose limits are other ones",
        );
        return None;
    };
    plan_name(node, names, errors)
}

fn plan_name(node: Node, names: &PlanNames, errors: &mut ErrorList) -> Option<String> {
    let path = node.path.clone();
    let name = node.text(errors)?;
    names
        .check(&name, (&path, "is", ""), errors)
        .then_some(name)
}

fn subject(table: &mut Table, errors: &mut ErrorList) -> Option<OverrideSubject> {
    let key = table.take("key");
    let prefix = table.take("key_prefix");
    let (node, of): (_, fn(Box<str>) -> OverrideSubject) = match (key, prefix) {
        (Some(key), None) => (key, OverrideSubject::Key),
        (None, Some(prefix)) => (prefix, OverrideSubject::Prefix),
        (None, None) => {
            report(
                errors,
                &table.path,
                "has no key and no key_prefix; write one",
            );
            return None;
        }
        (Some(_), Some(_)) => {
            report(errors, &table.path, "has key and key_prefix; keep one");
            return None;
        }
    };
    let path = node.path.clone();
    let subject = of(node.text(errors)?.into());
    let checked = subject
        .check()
        .map_err(|problem| report(errors, &path, problem));
    checked.is_ok().then_some(subject)
}

fn effect(table: &mut Table, names: &PlanNames, errors: &mut ErrorList) -> Option<OverrideEffect> {
    match (table.take("use_plan"), table.take("quotas")) {
        (Some(node), None) => Some(OverrideEffect::UsePlan(
            plan_name(node, names, errors)?.into(),
        )),
        (None, Some(node)) => Some(OverrideEffect::Quotas(quotas(node, errors)?)),
        (None, None) => {
            report(
                errors,
                &table.path,
                "has no effect; write use_plan or quotas",
            );
            None
        }
        (Some(_), Some(_)) => {
            report(errors, &table.path, "has use_plan and quotas; keep one");
            None
        }
    }
}

fn quotas(node: Node, errors: &mut ErrorList) -> Option<Vec<LimitQuota>> {
    let too_many = |count| format!("has {count} entries; a plan has 1 to {LIMITS_MAX} limits");
    let nodes = node.list(LIMITS_MAX, too_many, errors)?;
    let read: Vec<_> = nodes.into_iter().map(|node| quota(node, errors)).collect();
    read.into_iter().collect()
}

fn quota(node: Node, errors: &mut ErrorList) -> Option<LimitQuota> {
    let mut table = node.table(errors)?;
    let name = table.read("name", Node::text, errors);
    let quota = table.read("quota", Node::number, errors);
    let burst = table.read("burst", Node::number, errors);
    table.finish(errors);
    Some(LimitQuota {
        name: name?.map(Arc::from),
        quota: quota?,
        burst: burst?,
    })
}

/// A time in microseconds since 1970.
fn expiry(node: Node, errors: &mut ErrorList) -> Option<u64> {
    let path = node.path.clone();
    let text = node.text(errors)?;
    let at: Option<Timestamp> = text.parse().ok();
    let at_us = at.and_then(|at| u64::try_from(at.as_microsecond()).ok());
    if at_us.is_none() {
        report(
            errors,
            &path,
            "is not a time; write it as \"2027-01-01T00:00:00Z\"",
        );
    }
    at_us
}

fn reason(node: Node, errors: &mut ErrorList) -> Option<String> {
    let path = node.path.clone();
    let reason = node.text(errors)?;
    if reason.len() > REASON_BYTES_MAX {
        let bytes = reason.len();
        report(
            errors,
            &path,
            format!("has {bytes} bytes; at most {REASON_BYTES_MAX}"),
        );
        return None;
    }
    Some(reason)
}
