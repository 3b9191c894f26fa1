//! Checks the `plans` table and builds a `PlanSet`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::calendar;
use super::candidate::{Candidate, candidate};
use super::holds;
use super::plan_names::PlanNames;
use super::tree::{ErrorList, Node, Quoted, Table, report};
use tollgate_core::plan::{
    Algorithm, Anchor, BURST_MAX, Concurrency, HoldTerms, LIMITS_MAX, Limit, LimitError,
    OnStoreFailure, PLANS_MAX, Plan, PlanSet, Rule, SHARED_LIMITS_MAX, SHARED_WINDOWS_MAX,
    SharedLimits, check_name,
};

const ANCHORS: [(&str, Anchor); 2] = [
    ("clock", Anchor::Clock),
    ("first_request", Anchor::FirstRequest),
];

/// Algorithms by their names in the config, with the values of fields that may be left out. The first is the default.
pub(super) fn algorithms() -> Vec<(&'static str, Algorithm)> {
    let mut named: Vec<_> = Algorithm::EVERY
        .iter()
        .map(|algorithm| (algorithm.name(), *algorithm))
        .collect();
    named.dedup_by_key(|(name, _)| *name);
    named
}

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
    if plans.is_empty() {
        report(
            errors,
            "plans",
            "has no plan; name at least one, such as free: { limits: [ { quota: 100, window: 1m } ] }",
        );
    }
    if plans.len() > PLANS_MAX {
        report(
            errors,
            "plans",
            format!(
                "has {} plans; at most {PLANS_MAX} are enforced by one server",
                plans.len()
            ),
        );
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
    let found: Vec<_> = candidates
        .iter()
        .map(|candidate| candidate.plan(&plans, (&*names, &candidates), errors))
        .collect();
    for (Candidate { live, .. }, candidate) in candidates.iter().zip(found) {
        if let Some(live) = plans.get_mut(live.as_str()) {
            live.candidate = candidate.map(|candidate| Arc::new(candidate.as_candidate_of(live)));
        }
    }
    Some(plans.into_values().collect())
}

/// Tells each plan which limits there are under its `counts_as`. Refuses too many.
fn count_shared_limits(plans: &mut BTreeMap<Arc<str>, Plan>, errors: &mut ErrorList) {
    let mut shared: BTreeMap<Arc<str>, BTreeMap<Vec<u8>, Limit>> = BTreeMap::new();
    for plan in plans.values() {
        let distinct = shared.entry(plan.counts_as.clone()).or_default();
        for limit in plan.limits() {
            let fingerprint = limit.fingerprint().bytes().to_vec();
            let kept = distinct.entry(fingerprint).or_insert_with(|| limit.clone());
            if kept.quota() < limit.quota() {
                *kept = limit.clone();
            }
        }
    }
    let shared: BTreeMap<Arc<str>, SharedLimits> = shared
        .into_iter()
        .map(|(counts_as, limits)| (counts_as, SharedLimits::count(limits.values())))
        .collect();
    for (counts_as, SharedLimits { all, windows, .. }) in &shared {
        let most = [
            (*all, SHARED_LIMITS_MAX, "limits"),
            (*windows, SHARED_WINDOWS_MAX, "limits of a sliding_window"),
        ];
        for (count, most, of_what) in most.into_iter().filter(|(count, most, _)| count > most) {
            let count_as = Quoted(counts_as);
            report(
                errors,
                "plans",
                format!(
                    "count as {count_as}, with {count} different {of_what} in all; at most {most}"
                ),
            );
        }
    }
    for plan in plans.values_mut() {
        plan.shared = shared.get(&plan.counts_as).copied().unwrap_or_default();
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
        report(
            errors,
            &path,
            format!("is not a name of a plan: it {error}"),
        );
    }
    let mut table = node.table(errors)?;
    let mut boolean = |field| {
        table
            .take(field)
            .map(|node| node.boolean(errors))
            .unwrap_or(Some(false))
    };
    let (unlimited, blocked, shadow) =
        (boolean("unlimited"), boolean("blocked"), boolean("shadow"));
    let policy = table
        .take("on_store_failure")
        .map_or(Some(OnStoreFailure::default()), |node| {
            let policies = OnStoreFailure::ALL.map(|policy| (policy.as_str(), policy));
            node.choice(&policies, errors)
        });
    let counts_as = table
        .take("counts_as")
        .map_or(Some(name.to_owned()), |node| group(node, errors));
    let limits = table.take("limits").map(|node| limits(node, errors));
    let terms = terms(&mut table, &limits, errors);
    candidates.extend(
        table
            .take("candidate")
            .and_then(|node| candidate(name, node, errors)),
    );
    table.finish(errors);
    let (rule, concurrency) = rule(&path, (unlimited?, blocked?, limits), errors)?;
    let (counts_as, on_store_failure) = (counts_as?.into(), policy?);
    Some(Plan {
        counts_as,
        shadow: shadow?,
        on_store_failure,
        holds: HoldTerms {
            concurrency,
            ..terms?
        }
        .share(),
        ..Plan::new(name, rule)
    })
}

/// What the plan does with requests, and its concurrency limit, if it has one.
fn rule(
    path: &str,
    rules: (bool, bool, Option<Option<PlanLimits>>),
    errors: &mut ErrorList,
) -> Option<(Rule, Option<Concurrency>)> {
    let problem = match rules {
        (false, false, Some(limits)) => {
            let PlanLimits { rates, slots } = limits?;
            return Some((Rule::limits(rates), slots));
        }
        (true, false, None) => return Some((Rule::Unlimited, None)),
        (false, true, None) => return Some((Rule::Blocked, None)),
        (false, false, None) => "has no rule; write one of limits, unlimited: true, blocked: true",
        _ => "has several rules; write only one of limits, unlimited: true, blocked: true",
    };
    report(errors, path, problem);
    None
}

/// The terms of a plan's holds.
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
    let slots = limits.filter_map(|limits| limits.slots.as_ref()).next();
    holds::terms(node, slots.map(Concurrency::quota), errors)
}

pub(super) fn group(node: Node, errors: &mut ErrorList) -> Option<String> {
    let path = node.path.clone();
    let name = node.text(errors)?;
    if let Err(error) = check_name(&name) {
        report(errors, &path, error.to_string());
    }
    Some(name)
}

/// The limits of a plan: those of units, and the one of open holds, if there is one.
struct PlanLimits {
    rates: Vec<Limit>,
    slots: Option<Concurrency>,
}

fn limits(node: Node, errors: &mut ErrorList) -> Option<PlanLimits> {
    let path = node.path.clone();
    let not_so_many = |count| format!("has {count} limits; a plan has 1 to {LIMITS_MAX}");
    // Each limit is compared with all before it, so their number must be bounded.
    let nodes = node.list(LIMITS_MAX, not_so_many, errors)?;
    if nodes.is_empty() {
        report(errors, &path, not_so_many(0));
    }
    let nodes: Vec<Option<Table>> = nodes.into_iter().map(|node| node.table(errors)).collect();
    let (mut slots, mut rates, mut errors_in_slots) = (Vec::new(), Vec::new(), false);
    for (place, table) in nodes.into_iter().enumerate() {
        match table {
            Some(table) if holds::is_concurrency(&table) => {
                let limit = holds::concurrency(table, place, errors);
                errors_in_slots |= limit.is_none();
                slots.extend(limit);
                rates.push(None);
            }
            table => rates.push(Some(table.and_then(|table| limit(table, errors)))),
        }
    }
    report_slots(&path, (&slots, &rates), errors);
    let of_units: Vec<Option<Limit>> = rates.iter().cloned().map(Option::flatten).collect();
    report_duplicates(&path, &of_units, errors);
    // A place of a concurrency limit is `None`, and a limit with errors `Some(None)`.
    let rates: Option<Vec<Limit>> = rates.into_iter().flatten().collect();
    (!errors_in_slots && slots.len() < 2).then_some(PlanLimits {
        rates: rates?,
        slots: slots.pop(),
    })
}

/// Reports a second concurrency limit, and one with the name of another limit.
fn report_slots(
    path: &str,
    (slots, rates): (&[Concurrency], &[Option<Option<Limit>>]),
    errors: &mut ErrorList,
) {
    for second in slots.iter().skip(1) {
        let problem = "is a second concurrency limit; a plan has one";
        report(errors, &format!("{path}[{}]", second.place()), problem);
    }
    let mut names = rates.iter().flatten().flatten().map(Limit::name);
    if let Some(slots) = slots
        .first()
        .filter(|slots| names.any(|name| name == slots.name()))
    {
        let problem = format!(
            "is named {} like another limit; give each limit a name of its own",
            Quoted(slots.name())
        );
        report(errors, &format!("{path}[{}]", slots.place()), problem);
    }
}

/// Reports limits with the name, or with the count, of one before them. Limits with errors are `None`.
fn report_duplicates(path: &str, limits: &[Option<Limit>], errors: &mut ErrorList) {
    for (index, limit) in limits.iter().enumerate() {
        let (limit_path, Some(limit)) = (format!("{path}[{index}]"), limit) else {
            continue;
        };
        let before = || limits[..index].iter().flatten();
        if before().any(|other| other.name() == limit.name()) {
            report(
                errors,
                &limit_path,
                format!(
                    "is named {} like one before it; give each limit a name of its own",
                    Quoted(limit.name())
                ),
            );
        }
        if before().any(|other| other.fingerprint() == limit.fingerprint()) {
            report(
                errors,
                &limit_path,
                "has the algorithm and window of one before it, so both would be one count; keep the stricter, or change a window",
            );
        }
    }
}

fn limit(mut table: Table, errors: &mut ErrorList) -> Option<Limit> {
    let path = table.path.clone();
    if let Some(unit) = calendar::unit(&table) {
        return calendar::limit(table, unit, errors);
    }
    let named = algorithms();
    let kind = table
        .take("algorithm")
        .map_or(Some(named[0].1), |node| node.choice(&named, errors));
    let quota = required(&mut table, "quota", errors).and_then(|node| node.number(errors));
    let window_node = required(&mut table, "window", errors);
    let window_text = window_node.as_ref().and_then(Node::plain_text);
    let window = window_node.and_then(|node| calendar::fixed_window(node, errors));
    calendar::refuse_own_fields(&mut table, window.is_some(), errors);
    let name = table
        .take("name")
        .map_or(Some(None), |node| group(node, errors).map(Some));
    let own = OwnFields::read(&mut table, kind, errors);
    let block = block(&mut table, errors);
    table.finish(errors);
    let algorithm = kind.and_then(|kind| own.algorithm(kind, quota));
    let mut refused = Limit::check(quota, window, algorithm);
    if algorithm.is_none() {
        refused.extend(
            own.alone()
                .flat_map(|algorithm| Limit::check(None, None, Some(algorithm))),
        );
    }
    refused
        .iter()
        .for_each(|error| report_limit(&path, error, errors));
    if !refused.is_empty() {
        return None;
    }
    let name: Arc<str> = match (name?, window_text) {
        (Some(name), _) => name.into(),
        // Limits of the same window have different algorithms, so the default name contains the algorithm.
        (None, text) => format!(
            "{}/{}",
            kind?.name(),
            text.unwrap_or_default().replace(' ', "")
        )
        .into(),
    };
    let limit = Limit::new(name, quota?, window?, algorithm?);
    let limit = limit.map(|limit| match own.burst {
        Some(None) => limit.with_burst_of_quota(),
        _ => limit,
    });
    let limit = limit.map_err(|refused| {
        refused
            .iter()
            .for_each(|error| report_limit(&path, error, errors))
    });
    with_block(limit.ok()?, (&path, block?), errors)
}

/// How long a denial blocks the key, if it does. The outer `None` is an error.
pub(super) fn block(table: &mut Table, errors: &mut ErrorList) -> Option<Option<Duration>> {
    table
        .take("block")
        .map_or(Some(None), |node| node.duration(errors).map(Some))
}

/// The limit with its block, if it has one.
pub(super) fn with_block(
    limit: Limit,
    (path, block): (&str, Option<Duration>),
    errors: &mut ErrorList,
) -> Option<Limit> {
    let Some(block) = block else {
        return Some(limit);
    };
    let limit = limit.with_block(block);
    limit
        .map_err(|error| report_limit(path, &error, errors))
        .ok()
}

/// The fields that belong to one algorithm each. The outer `None` is an error, the inner one a field that is not there.
struct OwnFields {
    anchor: Option<Option<Anchor>>,
    precision: Option<Option<u8>>,
    burst: Option<Option<u64>>,
}

impl OwnFields {
    /// Reads them. Where the algorithm is not known, none of them is out of place.
    fn read(table: &mut Table, kind: Option<Algorithm>, errors: &mut ErrorList) -> Self {
        let mut own =
            |field, of, errors: &mut ErrorList| field_of(table, kind, (field, of), errors);
        let anchor = own("anchor", "fixed_window", errors);
        let precision = own("precision", "sliding_window", errors);
        let burst = own("burst", "token_bucket", errors);
        let number = |node: Option<Node>, errors: &mut ErrorList| {
            node.map_or(Some(None), |node| node.number(errors).map(Some))
        };
        Self {
            anchor: anchor.map_or(Some(None), |node| node.choice(&ANCHORS, errors).map(Some)),
            // A number above u8 is out of range in any case.
            precision: number(precision, errors)
                .map(|precision| precision.map(|it| u8::try_from(it).unwrap_or(u8::MAX))),
            burst: number(burst, errors),
        }
    }

    /// The algorithm of this kind with its own fields. `None` where one of them is wrong.
    fn algorithm(&self, kind: Algorithm, quota: Option<u64>) -> Option<Algorithm> {
        Some(match kind {
            Algorithm::FixedWindow { anchor } => Algorithm::FixedWindow {
                anchor: self.anchor?.unwrap_or(anchor),
            },
            Algorithm::SlidingWindow { precision } => Algorithm::SlidingWindow {
                precision: self.precision?.unwrap_or(precision),
            },
            // A quota out of range is reported as such, and not as a burst that nobody wrote.
            Algorithm::TokenBucket { .. } => Algorithm::TokenBucket {
                burst: self
                    .burst?
                    .or(quota.map(|quota| quota.clamp(1, BURST_MAX)))?,
            },
            without_own_fields => without_own_fields,
        })
    }

    /// The algorithms that the fields belong to, for checking the fields alone.
    fn alone(&self) -> impl Iterator<Item = Algorithm> {
        let precision = self
            .precision
            .flatten()
            .map(|precision| Algorithm::SlidingWindow { precision });
        precision.into_iter().chain(
            self.burst
                .flatten()
                .map(|burst| Algorithm::TokenBucket { burst }),
        )
    }
}

/// A field of one algorithm only. With any other algorithm it is an error.
pub(super) fn field_of(
    table: &mut Table,
    kind: Option<Algorithm>,
    (field, of): (&'static str, &str),
    errors: &mut ErrorList,
) -> Option<Node> {
    let node = table.take(field)?;
    if kind.is_some_and(|kind| kind.name() != of) {
        report(
            errors,
            &node.path,
            format!("belongs to {of} only; remove it or change the algorithm"),
        );
        return None;
    }
    Some(node)
}

pub(super) fn required(
    table: &mut Table,
    field: &'static str,
    errors: &mut ErrorList,
) -> Option<Node> {
    let node = table.take(field);
    if node.is_none() {
        report(
            errors,
            &table.path,
            format!(
                "has no {field}; a limit needs quota and window, such as {{ quota: 100, window: 1m }}"
            ),
        );
    }
    node
}

pub(super) fn report_limit(path: &str, error: &LimitError, errors: &mut ErrorList) {
    let field = match error {
        LimitError::Quota(_) => "quota",
        LimitError::Window(_) => "window",
        LimitError::Precision(_) => "precision",
        LimitError::Burst(_) => "burst",
        LimitError::Block(_) => "block",
    };
    report(errors, &format!("{path}.{field}"), error.to_string());
}
