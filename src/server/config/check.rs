//! Checks the `check` table: where key and plan of a check come from, whose word about a client's address is believed, and
//! which header fields answers carry.

use super::paths_of;
use super::plans::PlanNames;
use super::tree::{ErrorList, Node, Table, report};
use crate::http::{CheckSettings, KeyPart, PROXIES_MAX, PlanSource, Proxies, SOURCES_MAX};
use tollgate_core::headers::HeaderForm;

const IPV6_PREFIX_MIN: u64 = 32;
const IPV6_PREFIX_MAX: u64 = 128;

/// Returns the defaults without the table. The names of plans in it are checked by [`check_plans`].
pub(super) fn check(root: &mut Table, errors: &mut ErrorList) -> Option<CheckSettings> {
    let default = CheckSettings::default();
    let Some(node) = root.take("check") else {
        return Some(default);
    };
    let mut check = node.table(errors)?;
    let key = sources(
        check.take("key"),
        default.key,
        errors,
        KeyPart::parse_all,
        |parts| always_there(parts),
    );
    let is_default = |source: &PlanSource| matches!(source, PlanSource::Default(_));
    let plan = sources(
        check.take("plan"),
        default.plan,
        errors,
        PlanSource::parse,
        is_default,
    );
    let trusted_proxies = check
        .take("trusted_proxies")
        .map_or(Some(default.trusted_proxies), |node| proxies(node, errors));
    let ipv6_prefix = check
        .take("ipv6_prefix")
        .map_or(Some(default.ipv6_prefix), |node| ipv6_prefix(node, errors));
    let headers = check.take("headers").map_or(Some(default.headers), |node| {
        node.choice(&HeaderForm::NAMES, errors)
    });
    check.finish(errors);
    let (key, plan, headers) = (key?, plan?, headers?);
    Some(CheckSettings {
        key,
        plan,
        trusted_proxies: trusted_proxies?,
        ipv6_prefix: ipv6_prefix?,
        headers,
    })
}

/// Paths of the settings that differ.
pub(super) fn changed_settings(this: &CheckSettings, other: &CheckSettings) -> Vec<&'static str> {
    let CheckSettings {
        key,
        plan,
        trusted_proxies,
        ipv6_prefix,
        headers,
    } = this;
    paths_of([
        ("check.key", *key != other.key),
        ("check.plan", *plan != other.plan),
        (
            "check.trusted_proxies",
            *trusted_proxies != other.trusted_proxies,
        ),
        ("check.ipv6_prefix", *ipv6_prefix != other.ipv6_prefix),
        ("check.headers", *headers != other.headers),
    ])
}

/// Checks that the plan that decides checks by default is one of these.
pub(super) fn check_plans(check: &CheckSettings, plans: &PlanNames, errors: &mut ErrorList) {
    for (index, source) in check.plan.iter().enumerate() {
        if let PlanSource::Default(name) = source {
            plans.check(
                name,
                (&format!("check.plan[{index}]"), "names the plan", ""),
                errors,
            );
        }
    }
}

/// A client on a TCP connection always has an address.
fn always_there(parts: &[KeyPart]) -> bool {
    parts.iter().all(|part| *part == KeyPart::ClientAddress)
}

/// A list of sources, in their order. One that comes after a source that is `always` there would never count.
fn sources<T>(
    node: Option<Node>,
    default: Vec<T>,
    errors: &mut ErrorList,
    parse: impl Fn(&str) -> Result<T, String>,
    always: impl Fn(&T) -> bool,
) -> Option<Vec<T>> {
    let Some(node) = node else {
        return Some(default);
    };
    let path = node.path.clone();
    let too_many = |count| format!("has {count} sources; it has 1 to {SOURCES_MAX}");
    let nodes = node.list(SOURCES_MAX, too_many, errors)?;
    if nodes.is_empty() {
        report(
            errors,
            &path,
            format!("names no source; it has 1 to {SOURCES_MAX}"),
        );
    }
    let mut sources: Vec<T> = Vec::new();
    for node in nodes {
        let path = node.path.clone();
        let Some(text) = node.text(errors) else {
            continue;
        };
        match parse(&text) {
            Ok(_) if sources.last().is_some_and(&always) => {
                report(
                    errors,
                    &path,
                    "is never used: the one before it is always there; put that one last",
                );
            }
            Ok(source) => sources.push(source),
            Err(right) => report(errors, &path, right),
        }
    }
    Some(sources)
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
