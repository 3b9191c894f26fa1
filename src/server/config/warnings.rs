//! Warnings about settings that are valid but probably not intended.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_core::plan::{Limit, Plan, PlanSet};

/// Maximum number of different plans of one group that are compared with each other; two are usual.
const DISTINCT_MAX: usize = 64;

/// Warnings as sentences, at most one for each `counts_as`.
pub(super) fn find(plans: &PlanSet) -> Vec<String> {
    let mut groups: BTreeMap<&str, Vec<&Plan>> = BTreeMap::new();
    for plan in plans.iter().filter(|plan| !plan.limits().is_empty()) {
        groups.entry(&plan.counts_as).or_default().push(plan);
    }
    groups
        .into_iter()
        .filter_map(|(group, plans)| group_warning(group, &plans))
        .collect()
}

/// Plans of one `counts_as` share the usage of a key, but only in limits with the same fingerprint. Often one plan has one more
/// limit than another. When each has a limit that the other lacks, most likely the algorithm or window of one was changed.
fn group_warning(group: &str, plans: &[&Plan]) -> Option<String> {
    let forms = with_distinct_limits(plans);
    let (first, second) = forms
        .iter()
        .enumerate()
        .flat_map(|(index, first)| {
            forms[index + 1..]
                .iter()
                .map(move |second| (*first, *second))
        })
        .find(|(first, second)| {
            only_in(first, second).is_some() && only_in(second, first).is_some()
        })?;
    let of_first = only_in(first, second)?;
    let of_second = only_in(second, first)?;
    Some(format!(
        "plans {} and {} say counts_as {group}, and limits {} and {} count apart, so who changes plans is fresh by them; give \
         both the same algorithm, window, anchor and precision",
        first.name,
        second.name,
        of_first.name(),
        of_second.name(),
    ))
}

/// One plan for each set of fingerprints.
fn with_distinct_limits<'a>(plans: &[&'a Plan]) -> Vec<&'a Plan> {
    let mut seen = BTreeSet::new();
    let fingerprints = |plan: &Plan| {
        plan.limits()
            .iter()
            .map(|limit| limit.fingerprint().to_fixed_bytes())
            .collect::<BTreeSet<_>>()
    };
    plans
        .iter()
        .copied()
        .filter(|plan| seen.insert(fingerprints(plan)))
        .take(DISTINCT_MAX)
        .collect()
}

/// A limit of the first plan whose fingerprint the second plan lacks.
fn only_in<'a>(first: &'a Plan, second: &Plan) -> Option<&'a Limit> {
    first.limits().iter().find(|limit| {
        !second
            .limits()
            .iter()
            .any(|other| other.fingerprint() == limit.fingerprint())
    })
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Origin, Sources};

    fn warnings(plans: &str) -> Vec<String> {
        let text = Some((Origin::StandardInput, format!("plans: {{ {plans} }}")));
        Config::load(Sources {
            text,
            ..Sources::default()
        })
        .unwrap()
        .warnings
    }

    fn plan(name: &str, group: &str, limits: &[&str]) -> String {
        let limits: Vec<String> = limits
            .iter()
            .map(|limit| format!("{{ quota: 5, {limit} }}"))
            .collect();
        format!(
            "{name}: {{ counts_as: {group}, limits: [ {} ] }}",
            limits.join(", ")
        )
    }

    #[test]
    fn limits_of_one_group_that_count_apart_give_a_warning() {
        for (a, b) in [
            ("window: 1m", "window: 1m, algorithm: sliding_log"),
            ("window: 1m", "window: 2m"),
            ("window: 1m", "window: 1m, precision: 8"),
            (
                "window: 1m, algorithm: fixed_window",
                "window: 1m, algorithm: fixed_window, anchor: first_request",
            ),
        ] {
            let found = warnings(&[plan("a", "g", &[a]), plan("b", "g", &[b])].join(", "));
            assert!(
                found.len() == 1
                    && found[0].starts_with("plans a and b say counts_as g, and limits "),
                "{a} {b}: {found:?}"
            );
            // In groups of their own they have nothing in common.
            assert!(warnings(&[plan("a", "g", &[a]), plan("b", "h", &[b])].join(", ")).is_empty());
        }
    }

    #[test]
    fn limits_that_count_together_give_no_warning() {
        for (a, b) in [
            (vec!["window: 1m"], vec!["window: 60s, name: other"]),
            (vec!["window: 1m"], vec!["window: 1m", "window: 1h"]),
            (
                vec!["window: 1h", "window: 1m"],
                vec!["window: 1m", "window: 1h"],
            ),
            (
                vec!["window: 1m, algorithm: token_bucket, burst: 9"],
                vec!["window: 1m, algorithm: token_bucket"],
            ),
        ] {
            let found = warnings(&[plan("a", "g", &a), plan("b", "g", &b)].join(", "));
            assert!(found.is_empty(), "{a:?} {b:?}: {found:?}");
        }
        assert!(
            warnings("a: { unlimited: true, counts_as: g }, b: { blocked: true, counts_as: g }")
                .is_empty()
        );
    }

    #[test]
    fn a_group_gives_one_warning_however_many_plans_it_has() {
        let plans: Vec<String> = (1..1_000)
            .map(|minutes| {
                plan(
                    &format!("p{minutes}"),
                    "g",
                    &[&format!("window: {minutes}m, algorithm: fixed_window")],
                )
            })
            .collect();
        assert_eq!(warnings(&plans.join(", ")).len(), 1);
        // The first two have a limit in common, and so have the first and third. The second and third have none.
        let three = [
            plan("a", "g", &["window: 1m", "window: 1h"]),
            plan("b", "g", &["window: 1m"]),
            plan("c", "g", &["window: 1h"]),
        ];
        assert!(
            warnings(&three.join(", "))[0].starts_with("plans b and c say"),
            "{:?}",
            warnings(&three.join(", "))
        );
    }
}
