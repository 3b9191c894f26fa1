//! Checks the `plans` table and builds a `PlanSet`.

mod limits;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::limits::{PlanLimits, limits};
pub(super) use self::limits::{algorithms, block, field_of, report_limit, required, with_block};
use super::candidate::{Candidate, candidate};
use super::holds;
use super::plan_names::PlanNames;
use super::tree::{ErrorList, Node, Quoted, Table, report};
use tollgate_core::plan::{
    Concurrency, HoldTerms, Limit, OnStoreFailure, PLANS_MAX, Plan, PlanSet, Rule,
    SHARED_LIMITS_MAX, SHARED_WINDOWS_MAX, SharedLimits, check_name,
};

/// Checks all plans, and that the default plan is one of them. Returns no plans after adding at least one error.
pub(super) fn check(
    node: Option<Node>,
    default_plan: Option<&str>,
    errors: &mut ErrorList,
) -> (PlanNames, Option<PlanSet>) {
    let plans = match node.map(|node| node.table(errors)) {
        Some(Some(table)) => table.take_all(),
        Some(None) => return (PlanNames::default(), None),
        None => Vec::new(),
    };
    let few = plans.len() <= PLANS_MAX;
    let all = few.then(|| plans.iter().map(|(name, _)| name.clone()).collect());
    let mut names = PlanNames {
        all,
        ..PlanNames::default()
    };
    let errors_before = errors.len();
    let plans = check_plans(plans, &mut names, errors);
    let known = default_plan
        .is_none_or(|name| names.check_without_slots(name, ("default_plan", ""), errors));
    // A plan with errors is left out of the set.
    let plans = plans.filter(|_| known && errors.len() == errors_before);
    (
        names,
        plans.and_then(|plans| plans.with_default(default_plan).ok()),
    )
}

fn check_plans(
    plans: Vec<(String, Node)>,
    names: &mut PlanNames,
    errors: &mut ErrorList,
) -> Option<PlanSet> {
    if !are_few(plans.len(), errors) {
        return None;
    }
    let mut candidates = Vec::new();
    let checked: Vec<Option<Plan>> = plans
        .into_iter()
        .map(|(name, node)| plan(&name, node, &mut candidates, errors))
        .collect();
    let mut plans: BTreeMap<Arc<str>, Plan> = checked
        .into_iter()
        .flatten()
        .map(|plan| (plan.name.clone(), plan))
        .collect();
    let with_slots = plans.values().filter(|plan| plan.concurrency().is_some());
    names.with_slots = with_slots.map(|plan| plan.name.clone()).collect();
    count_shared_limits(&mut plans, errors);
    give_candidates(&mut plans, &candidates, names, errors);
    Some(plans.into_values().collect())
}

/// Whether so many plans are checked. Reports too many, and none.
fn are_few(count: usize, errors: &mut ErrorList) -> bool {
    if count == 0 {
        report(
            errors,
            "plans",
            "has no plan; name at least one, such as free: { limits: [ { quota: 100, window: 1m } ] }",
        );
    }
    let are_few = count <= PLANS_MAX;
    if !are_few {
        report(
            errors,
            "plans",
            format!("has {count} plans; at most {PLANS_MAX} are enforced by one server"),
        );
    }
    are_few
}

/// Gives each plan the candidate that its field names.
fn give_candidates(
    plans: &mut BTreeMap<Arc<str>, Plan>,
    candidates: &[Candidate],
    names: &PlanNames,
    errors: &mut ErrorList,
) {
    let found: Vec<_> = candidates
        .iter()
        .map(|candidate| candidate.plan(plans, (names, candidates), errors))
        .collect();
    for (Candidate { live, .. }, candidate) in candidates.iter().zip(found) {
        if let Some(live) = plans.get_mut(live.as_str()) {
            live.candidate = candidate.map(|candidate| Arc::new(candidate.as_candidate_of(live)));
        }
    }
}

/// Tells each plan which limits there are under its `counts_as`. Refuses too many.
fn count_shared_limits(plans: &mut BTreeMap<Arc<str>, Plan>, errors: &mut ErrorList) {
    let shared: BTreeMap<Arc<str>, SharedLimits> = distinct_limits(plans)
        .into_iter()
        .map(|(counts_as, limits)| (counts_as, SharedLimits::count(limits.values())))
        .collect();
    for (counts_as, shared) in &shared {
        refuse_too_many(counts_as, shared, errors);
    }
    for plan in plans.values_mut() {
        plan.shared = shared.get(&plan.counts_as).copied().unwrap_or_default();
    }
}

/// The limits under each `counts_as`, by their fingerprints. Of several with one fingerprint, that of the largest quota.
fn distinct_limits(
    plans: &BTreeMap<Arc<str>, Plan>,
) -> BTreeMap<Arc<str>, BTreeMap<Vec<u8>, Limit>> {
    let mut distinct: BTreeMap<Arc<str>, BTreeMap<Vec<u8>, Limit>> = BTreeMap::new();
    for plan in plans.values() {
        let limits = distinct.entry(plan.counts_as.clone()).or_default();
        for limit in plan.limits() {
            let fingerprint = limit.fingerprint().bytes().to_vec();
            let kept = limits.entry(fingerprint).or_insert_with(|| limit.clone());
            if kept.quota() < limit.quota() {
                *kept = limit.clone();
            }
        }
    }
    distinct
}

/// Reports more limits under one `counts_as` than there may be.
fn refuse_too_many(counts_as: &str, shared: &SharedLimits, errors: &mut ErrorList) {
    let counts = [
        (shared.all, SHARED_LIMITS_MAX, "limits"),
        (
            shared.windows,
            SHARED_WINDOWS_MAX,
            "limits of a sliding_window",
        ),
    ];
    for (count, most, of_what) in counts.into_iter().filter(|(count, most, _)| count > most) {
        let count_as = Quoted(counts_as);
        report(
            errors,
            "plans",
            format!("count as {count_as}, with {count} different {of_what} in all; at most {most}"),
        );
    }
}

fn plan(
    name: &str,
    node: Node,
    candidates: &mut Vec<Candidate>,
    errors: &mut ErrorList,
) -> Option<Plan> {
    let path = node.path.clone();
    if let Err(error) = check_name(name) {
        let problem = format!("is not a name of a plan: it {error}");
        report(errors, &path, problem);
    }
    let mut table = node.table(errors)?;
    let unlimited = table.read_or("unlimited", false, Node::boolean, errors);
    let blocked = table.read_or("blocked", false, Node::boolean, errors);
    let shadow = table.read_or("shadow", false, Node::boolean, errors);
    let on_store_failure = on_store_failure(&mut table, errors);
    let counts_as = table.read_or("counts_as", name.to_owned(), group, errors);
    let limits = table.take("limits").map(|node| limits(node, errors));
    let terms = terms(&mut table, &limits, errors);
    let candidate_node = table.take("candidate");
    candidates.extend(candidate_node.and_then(|node| candidate(name, node, errors)));
    table.finish(errors);
    let rule = rule(&path, (unlimited?, blocked?, limits), errors)?;
    Some(Plan {
        counts_as: counts_as?.into(),
        shadow: shadow?,
        on_store_failure: on_store_failure?,
        holds: terms?.share(),
        ..Plan::new(name, rule)
    })
}

fn on_store_failure(table: &mut Table, errors: &mut ErrorList) -> Option<OnStoreFailure> {
    let policies = OnStoreFailure::ALL.map(|policy| (policy.as_str(), policy));
    let default = OnStoreFailure::default();
    table.choice_or("on_store_failure", default, &policies, errors)
}

/// What the plan does with requests.
fn rule(
    path: &str,
    rules: (bool, bool, Option<Option<PlanLimits>>),
    errors: &mut ErrorList,
) -> Option<Rule> {
    let problem = match rules {
        (false, false, Some(limits)) => return Some(Rule::limits(limits?.rates)),
        (true, false, None) => return Some(Rule::Unlimited),
        (false, true, None) => return Some(Rule::Blocked),
        (false, false, None) => "has no rule; write one of limits, unlimited: true, blocked: true",
        _ => "has several rules; write only one of limits, unlimited: true, blocked: true",
    };
    report(errors, path, problem);
    None
}

/// The terms of a plan's holds, with its concurrency limit, if it has one.
fn terms(
    table: &mut Table,
    limits: &Option<Option<PlanLimits>>,
    errors: &mut ErrorList,
) -> Option<HoldTerms> {
    let node = table.take("holds");
    if let (Some(node), None) = (&node, limits) {
        let problem = "belongs to plans with limits; remove it, or write limits";
        report(errors, &node.path, problem);
    }
    let limits = limits.iter().flatten();
    let concurrency = limits.filter_map(|limits| limits.slots.clone()).next();
    let slots = concurrency.as_ref().map(Concurrency::quota);
    let terms = holds::terms(node, slots, errors)?;
    Some(HoldTerms {
        concurrency,
        ..terms
    })
}

pub(super) fn group(node: Node, errors: &mut ErrorList) -> Option<String> {
    let path = node.path.clone();
    let name = node.text(errors)?;
    if let Err(error) = check_name(&name) {
        report(errors, &path, error.to_string());
    }
    Some(name)
}
