//! Checks the `check` table: whom a check counts, whose word about a client's address is believed, and which header fields
//! answers carry.

use super::paths_of;
use super::plan_names::PlanNames;
use super::tree::{ErrorList, Node, Quoted, Table, report};
use crate::http::{
    CheckSettings, PROXIES_MAX, Proxies, SOURCES_MAX, Source, SubjectPart, SubjectSources, Subjects,
};
use tollgate_core::headers::HeaderForm;
use tollgate_core::joint::REQUESTS_MAX;
use tollgate_core::plan::PlanSet;

const IPV6_PREFIX_MIN: u64 = 32;
const IPV6_PREFIX_MAX: u64 = 128;

/// Returns the defaults without the table. The names of plans in it are checked by [`check_plans`].
pub(super) fn check(root: &mut Table, errors: &mut ErrorList) -> Option<CheckSettings> {
    let default = CheckSettings::default();
    let Some(node) = root.take("check") else {
        return Some(default);
    };
    let mut check = node.table(errors)?;
    let subjects = subjects(&mut check, errors);
    let trusted_proxies =
        check.read_or("trusted_proxies", default.trusted_proxies, proxies, errors);
    let ipv6_prefix = check.read_or("ipv6_prefix", default.ipv6_prefix, ipv6_prefix, errors);
    let headers = check.choice_or("headers", default.headers, &HeaderForm::NAMES, errors);
    check.finish(errors);
    let subjects = subjects?;
    let headers = headers?;
    Some(CheckSettings {
        subjects,
        trusted_proxies: trusted_proxies?,
        ipv6_prefix: ipv6_prefix?,
        headers,
    })
}

/// Paths of the settings that differ.
pub(super) fn changed_settings(this: &CheckSettings, other: &CheckSettings) -> Vec<&'static str> {
    let CheckSettings {
        subjects,
        trusted_proxies,
        ipv6_prefix,
        headers,
    } = this;
    let (is_key_changed, is_plan_changed) = match (subjects, &other.subjects) {
        (Subjects::One(one), Subjects::One(other)) => {
            (one.key != other.key, one.plan != other.plan)
        }
        _ => (false, false),
    };
    let is_list_changed = *subjects != other.subjects && !is_key_changed && !is_plan_changed;
    paths_of([
        ("check.key", is_key_changed),
        ("check.plan", is_plan_changed),
        ("check.subjects", is_list_changed),
        (
            "check.trusted_proxies",
            *trusted_proxies != other.trusted_proxies,
        ),
        ("check.ipv6_prefix", *ipv6_prefix != other.ipv6_prefix),
        ("check.headers", *headers != other.headers),
    ])
}

/// Checks that the plans that decide checks by default are some of these.
pub(super) fn check_plans(check: &CheckSettings, plans: &PlanNames, errors: &mut ErrorList) {
    for (path, name) in default_plans(check) {
        plans.check(name, (&path, "names the plan", ""), errors);
    }
}

/// The same on a reload, which changes plans and leaves `check` as it was at the start.
pub(super) fn check_kept_plans(check: &CheckSettings, plans: &PlanSet, errors: &mut ErrorList) {
    for (path, name) in default_plans(check).filter(|(_, name)| plans.get(name).is_err()) {
        let sentence = format!(
            "names the plan {} until a restart, and the plan is gone; keep it until then",
            Quoted(name)
        );
        report(errors, &path, sentence);
    }
}

/// The plans that decide checks by default, each with the path that names it.
fn default_plans(check: &CheckSettings) -> impl Iterator<Item = (String, &str)> {
    let subjects = check.subjects.as_slice().iter().enumerate();
    subjects.flat_map(move |(index, subject)| {
        let sources = subject.plan.iter().enumerate();
        sources.filter_map(move |(place, source)| match source {
            Source::Default(name) => {
                let path = check.subjects.path(index);
                Some((format!("{path}.plan[{place}]"), &**name))
            }
            _ => None,
        })
    })
}

/// The subjects of `check.subjects`, or the one of `check.key` and `check.plan`.
fn subjects(check: &mut Table, errors: &mut ErrorList) -> Option<Subjects> {
    let [listed, key, plan] = ["subjects", "key", "plan"].map(|name| check.take(name));
    if let Some(node) = listed {
        for beside in [key, plan].into_iter().flatten() {
            let sentence = format!("stands beside {}; keep one of them", beside.path);
            report(errors, &node.path, sentence);
        }
        return listed_subjects(node, errors).map(Subjects::Listed);
    }
    let Subjects::One(default) = Subjects::default() else {
        return None;
    };
    let key = match key {
        Some(node) => keys(node, Some("key"), errors),
        None => Some(default.key),
    };
    let plan = match plan {
        Some(node) => sources(node, (SubjectPart::Plan, Some("plan")), errors),
        None => Some(default.plan),
    };
    Some(Subjects::one(key?, plan?))
}

fn listed_subjects(node: Node, errors: &mut ErrorList) -> Option<Vec<SubjectSources>> {
    let path = node.path.clone();
    let not_so_many = |count| format!("has {count} subjects; 1 to {REQUESTS_MAX}");
    let nodes = node.list(REQUESTS_MAX, not_so_many, errors)?;
    if nodes.is_empty() {
        report(errors, &path, not_so_many(0));
        return None;
    }
    let checked: Vec<Option<SubjectSources>> = nodes
        .into_iter()
        .map(|node| subject(node, errors))
        .collect();
    checked.into_iter().collect()
}

fn subject(node: Node, errors: &mut ErrorList) -> Option<SubjectSources> {
    let mut table = node.table(errors)?;
    let key = required(&mut table, "key", "header:x-api-key", errors);
    let key = key.and_then(|node| keys(node, None, errors));
    let plan = required(&mut table, "plan", "default:free", errors);
    let plan = plan.and_then(|node| sources(node, (SubjectPart::Plan, None), errors));
    let cost = match table.take("cost") {
        Some(node) => sources(node, (SubjectPart::Cost, None), errors),
        None => Some(SubjectSources::default_cost()),
    };
    let shard = match table.take("shard") {
        Some(node) => sources(node, (SubjectPart::Shard, None), errors),
        None => Some(Vec::new()),
    };
    let optional = table.read_or("optional", false, Node::boolean, errors);
    table.finish(errors);
    Some(SubjectSources {
        key: key?,
        plan: plan?,
        cost: cost?,
        shard: shard?,
        optional: optional?,
    })
}

/// Takes a field that must be there. Where it is not, the error has an example of a source.
fn required(
    table: &mut Table,
    field: &'static str,
    example: &str,
    errors: &mut ErrorList,
) -> Option<Node> {
    let node = table.take(field);
    if node.is_none() {
        let problem = format!("has no {field}; list its sources, such as {field}: [\"{example}\"]");
        report(errors, &table.path, problem);
    }
    node
}

/// The sources of a key.
fn keys(node: Node, only: Option<&str>, errors: &mut ErrorList) -> Option<Vec<Vec<Source>>> {
    list_of(node, errors, |text| Source::parse_joined(text, only))
}

/// The sources of another part.
fn sources(
    node: Node,
    (part, only): (SubjectPart, Option<&str>),
    errors: &mut ErrorList,
) -> Option<Vec<Source>> {
    let parse = |text: &str| Ok(vec![Source::parse(text, part, only)?]);
    Some(
        list_of(node, errors, parse)?
            .into_iter()
            .flatten()
            .collect(),
    )
}

/// A list of sources, in their order, each of one or more parts. One that comes after a source that is always there would never
/// count.
fn list_of(
    node: Node,
    errors: &mut ErrorList,
    parse: impl Fn(&str) -> Result<Vec<Source>, String>,
) -> Option<Vec<Vec<Source>>> {
    let path = node.path.clone();
    let too_many = |count| format!("has {count} sources; it has 1 to {SOURCES_MAX}");
    let nodes = node.list(SOURCES_MAX, too_many, errors)?;
    if nodes.is_empty() {
        let problem = format!("names no source; it has 1 to {SOURCES_MAX}");
        report(errors, &path, problem);
    }
    let always = |parts: &Vec<Source>| parts.iter().all(Source::is_always_there);
    let mut sources: Vec<Vec<Source>> = Vec::new();
    for node in nodes {
        let path_of_source = node.path.clone();
        match node.text(errors).map(|text| parse(&text)) {
            Some(Ok(_)) if sources.last().is_some_and(always) => {
                let why = "is never used: the one before it is always there; put that one last";
                report(errors, &path_of_source, why);
            }
            Some(Ok(parts)) => {
                refuse_taken_names(&path, &parts, errors);
                sources.push(parts);
            }
            Some(Err(right)) => report(errors, &path_of_source, right),
            // The value is not a text, which is reported.
            None => {}
        }
    }
    Some(sources)
}

/// Reports parameters that a check reads for another purpose.
fn refuse_taken_names(path: &str, parts: &[Source], errors: &mut ErrorList) {
    for name in parts.iter().filter_map(Source::reserved_name) {
        let problem = format!("has param:{name}, which has a meaning of its own");
        report(errors, path, problem);
    }
}

fn proxies(node: Node, errors: &mut ErrorList) -> Option<Proxies> {
    let too_many = |count| format!("has {count} networks; it has at most {PROXIES_MAX}");
    let mut proxies = Proxies::default();
    for node in node.list(PROXIES_MAX, too_many, errors)? {
        let path = node.path.clone();
        let Some(text) = node.text(errors) else {
            continue;
        };
        if let Err(right) = proxies.add(&text) {
            report(errors, &path, right);
        }
    }
    Some(proxies)
}

fn ipv6_prefix(node: Node, errors: &mut ErrorList) -> Option<u8> {
    let path = node.path.clone();
    let bits = node.number(errors)?;
    if !(IPV6_PREFIX_MIN..=IPV6_PREFIX_MAX).contains(&bits) {
        report(
            errors,
            &path,
            format!(
                "is {bits}; it is {IPV6_PREFIX_MIN} to {IPV6_PREFIX_MAX} bits of an IPv6 address"
            ),
        );
    }
    u8::try_from(bits).ok()
}
