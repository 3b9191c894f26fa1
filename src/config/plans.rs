//! Checks the `plans` table and builds a `PlanSet`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::tree::{ErrorList, Node, Quoted, Table, report};
use crate::plan::{
    Algorithm, Anchor, LIMITS_MAX, Limit, LimitError, OnStoreFailure, PLANS_MAX, Plan, PlanSet, Rule, SHARED_LIMITS_MAX,
    SHARED_WINDOWS_MAX, SharedLimits, check_name,
};

const ANCHORS: [(&str, Anchor); 2] = [("clock", Anchor::Clock), ("first_request", Anchor::FirstRequest)];
const POLICIES: [(&str, OnStoreFailure); 3] =
    [("local", OnStoreFailure::Local), ("allow", OnStoreFailure::Allow), ("deny", OnStoreFailure::Deny)];

/// Algorithms by their names in the config, with the values of fields that may be left out. The first is the default.
fn algorithms() -> Vec<(&'static str, Algorithm)> {
    let mut named: Vec<_> = Algorithm::EVERY.iter().map(|algorithm| (algorithm.name(), *algorithm)).collect();
    named.dedup_by_key(|(name, _)| *name);
    named
}

/// Checks all plans, and that the default plan is one of them. Returns `None` after adding at least one error.
pub(super) fn check(node: Option<Node>, default_plan: Option<&str>, errors: &mut ErrorList) -> Option<PlanSet> {
    let errors_before = errors.len();
    let plans = check_plans(node, errors)?;
    // A plan with errors is left out of the set, so the default plan may seem to be missing.
    if errors.len() > errors_before {
        return None;
    }
    match plans.clone().with_default(default_plan) {
        Ok(plans) => Some(plans),
        Err(unknown) => {
            let near = plans.suggest(unknown).nearest.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
            report(
                errors,
                "default_plan",
                format!("is {}, which is no plan of this config{near}", Quoted(default_plan.unwrap_or(""))),
            );
            None
        }
    }
}

fn check_plans(node: Option<Node>, errors: &mut ErrorList) -> Option<PlanSet> {
    let plans = match node {
        Some(node) => node.table(errors)?.take_all(),
        None => Vec::new(),
    };
    if plans.is_empty() {
        report(errors, "plans", "has no plan; name at least one, such as free: { limits: [ { quota: 100, window: 1m } ] }");
    }
    if plans.len() > PLANS_MAX {
        report(errors, "plans", format!("has {} plans; at most {PLANS_MAX} are enforced by one server", plans.len()));
        return None;
    }
    let mut candidates = Vec::new();
    let checked: Vec<Option<Plan>> = plans.into_iter().map(|(name, node)| plan(&name, node, &mut candidates, errors)).collect();
    let mut plans: BTreeMap<Arc<str>, Plan> = checked.into_iter().flatten().map(|plan| (plan.name.clone(), plan)).collect();
    count_shared_limits(&mut plans, errors);
    let found: Vec<_> = candidates.iter().map(|candidate| candidate.plan(&plans, &candidates, errors)).collect();
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
        let limits = plan.limits().iter().map(|limit| (limit.fingerprint().bytes().to_vec(), limit.clone()));
        shared.entry(plan.counts_as.clone()).or_default().extend(limits);
    }
    let shared: BTreeMap<Arc<str>, SharedLimits> =
        shared.into_iter().map(|(counts_as, limits)| (counts_as, SharedLimits::of(limits.values()))).collect();
    for (counts_as, SharedLimits { all, windows, .. }) in &shared {
        let most = [(*all, SHARED_LIMITS_MAX, "limits"), (*windows, SHARED_WINDOWS_MAX, "limits of a sliding_window")];
        for (count, most, of_what) in most.into_iter().filter(|(count, most, _)| count > most) {
            let count_as = Quoted(counts_as);
            report(errors, "plans", format!("count as {count_as}, with {count} different {of_what} in all; at most {most}"));
        }
    }
    for plan in plans.values_mut() {
        plan.shared = shared.get(&plan.counts_as).copied().unwrap_or_default();
    }
}

/// A field `candidate`, whose plan is looked up when all plans are known.
struct Candidate {
    /// Name of the plan that has the field.
    live: String,
    path: String,
    name: String,
}

impl Candidate {
    /// The plan to try out. Plans with errors are not among `plans`.
    fn plan(&self, plans: &BTreeMap<Arc<str>, Plan>, others: &[Self], errors: &mut ErrorList) -> Option<Plan> {
        let problem = match (plans.get(self.live.as_str()), plans.get(self.name.as_str())) {
            _ if self.name == self.live => "is the plan itself; name another plan, whose limits are tried out".to_owned(),
            (None, _) => return None,
            (_, None) if !errors.is_empty() => return None,
            (_, None) => format!("is {}, which is no plan of this config", Quoted(&self.name)),
            (Some(live), _) if live.limits().is_empty() => {
                "needs a plan with limits; to try out limits where there are none, write limits and shadow: true".to_owned()
            }
            (_, Some(plan)) if plan.limits().is_empty() => {
                format!("is {}, which has no limits to try out", Quoted(&self.name))
            }
            _ if others.iter().any(|other| other.live == self.name) => {
                format!(
                    "is {}, which has a candidate of its own; a candidate is tried out beside a live plan only",
                    Quoted(&self.name)
                )
            }
            (Some(_), Some(plan)) => return Some(plan.clone()),
        };
        report(errors, &self.path, problem);
        None
    }
}

fn plan(name: &str, node: Node, candidates: &mut Vec<Candidate>, errors: &mut ErrorList) -> Option<Plan> {
    let path = node.path.clone();
    if let Err(error) = check_name(name) {
        report(errors, &path, format!("is no name of a plan: it {error}"));
    }
    let mut table = node.table(errors)?;
    let mut boolean = |field| table.take(field).map(|node| node.boolean(errors)).unwrap_or(Some(false));
    let (unlimited, blocked, shadow) = (boolean("unlimited"), boolean("blocked"), boolean("shadow"));
    let policy = table.take("on_store_failure").map_or(Some(OnStoreFailure::default()), |node| node.choice(&POLICIES, errors));
    let counts_as = table.take("counts_as").map_or(Some(name.to_owned()), |node| group(node, errors));
    let limits = table.take("limits").map(|node| limits(node, errors));
    candidates.extend(table.take("candidate").and_then(|node| candidate(name, node, errors)));
    table.finish(errors);
    let rule = match (unlimited?, blocked?, limits) {
        (false, false, Some(limits)) => Rule::Limits(limits?),
        (true, false, None) => Rule::Unlimited,
        (false, true, None) => Rule::Blocked,
        (false, false, None) => {
            report(errors, &path, "has no rule; write one of limits, unlimited: true, blocked: true");
            return None;
        }
        _ => {
            report(errors, &path, "has several rules; write only one of limits, unlimited: true, blocked: true");
            return None;
        }
    };
    let (counts_as, on_store_failure) = (counts_as?.into(), policy?);
    Some(Plan { counts_as, shadow: shadow?, on_store_failure, ..Plan::new(name, rule) })
}

fn candidate(live: &str, node: Node, errors: &mut ErrorList) -> Option<Candidate> {
    let path = node.path.clone();
    Some(Candidate { live: live.to_owned(), path, name: node.text(errors)? })
}

fn group(node: Node, errors: &mut ErrorList) -> Option<String> {
    let path = node.path.clone();
    let name = node.text(errors)?;
    if let Err(error) = check_name(&name) {
        report(errors, &path, error.to_string());
    }
    Some(name)
}

fn limits(node: Node, errors: &mut ErrorList) -> Option<Vec<Limit>> {
    let path = node.path.clone();
    let not_so_many = |count| format!("has {count} limits; a plan has 1 to {LIMITS_MAX}");
    // Each limit is compared with all before it, so their number must be bounded.
    let nodes = node.list(LIMITS_MAX, not_so_many, errors)?;
    if nodes.is_empty() {
        report(errors, &path, not_so_many(0));
    }
    let checked: Vec<Option<Limit>> = nodes.into_iter().map(|node| limit(node, errors)).collect();
    let limits: Vec<Limit> = checked.into_iter().collect::<Option<_>>()?;
    report_duplicates(&path, &limits, errors);
    Some(limits)
}

/// Reports limits with the name, or with the count, of one before them.
fn report_duplicates(path: &str, limits: &[Limit], errors: &mut ErrorList) {
    for (index, limit) in limits.iter().enumerate() {
        let limit_path = format!("{path}[{index}]");
        let before = &limits[..index];
        if before.iter().any(|other| other.name() == limit.name()) {
            report(
                errors,
                &limit_path,
                format!("is named {} like one before it; give each limit a name of its own", Quoted(limit.name())),
            );
        }
        if before.iter().any(|other| other.fingerprint() == limit.fingerprint()) {
            report(
                errors,
                &limit_path,
                "has the algorithm and window of one before it, so both would be one count; keep the stricter, or change a window",
            );
        }
    }
}

fn limit(node: Node, errors: &mut ErrorList) -> Option<Limit> {
    let path = node.path.clone();
    let mut table = node.table(errors)?;
    let named = algorithms();
    let kind = table.take("algorithm").map_or(Some(named[0].1), |node| node.choice(&named, errors));
    let quota = required(&mut table, "quota", errors).and_then(|node| node.number(errors));
    let window_node = required(&mut table, "window", errors);
    let window_text = window_node.as_ref().and_then(Node::plain_text);
    let window = window_node.and_then(|node| node.duration(errors));
    let name = table.take("name").map_or(Some(None), |node| group(node, errors).map(Some));
    let algorithm = kind.and_then(|kind| algorithm(kind, &mut table, quota, errors));
    table.finish(errors);
    let name: Arc<str> = match (name?, window_text) {
        (Some(name), _) => name.into(),
        // Limits of the same window have different algorithms, so the default name contains the algorithm.
        (None, text) => format!("{}/{}", kind?.name(), text.unwrap_or_default().replace(' ', "")).into(),
    };
    let limit = Limit::new(name, quota?, window?, algorithm?);
    limit.map_err(|refused| refused.iter().for_each(|error| report_limit(&path, error, errors))).ok()
}

/// The algorithm with its own fields.
fn algorithm(kind: Algorithm, table: &mut Table, quota: Option<u64>, errors: &mut ErrorList) -> Option<Algorithm> {
    let anchor_node = field_of(table, kind, "anchor", "fixed_window", errors);
    let precision_node = field_of(table, kind, "precision", "sliding_window", errors);
    let burst_node = field_of(table, kind, "burst", "token_bucket", errors);
    Some(match kind {
        Algorithm::FixedWindow { anchor } => {
            Algorithm::FixedWindow { anchor: anchor_node.map_or(Some(anchor), |node| node.choice(&ANCHORS, errors))? }
        }
        Algorithm::SlidingWindow { precision } => {
            let precision = precision_node.map_or(Some(u64::from(precision)), |node| node.number(errors))?;
            // A number above u8 is out of range in any case; `Limit::new` reports it.
            Algorithm::SlidingWindow { precision: u8::try_from(precision).unwrap_or(u8::MAX) }
        }
        Algorithm::TokenBucket { .. } => Algorithm::TokenBucket { burst: burst_node.map_or(quota, |node| node.number(errors))? },
        Algorithm::SlidingLog | Algorithm::SlidingCounter => kind,
    })
}

/// A field of one algorithm only. With any other algorithm it is an error.
fn field_of(table: &mut Table, kind: Algorithm, field: &'static str, of: &str, errors: &mut ErrorList) -> Option<Node> {
    let node = table.take(field)?;
    if kind.name() != of {
        report(errors, &node.path, format!("belongs to {of} only; remove it or change the algorithm"));
        return None;
    }
    Some(node)
}

fn required(table: &mut Table, field: &'static str, errors: &mut ErrorList) -> Option<Node> {
    let node = table.take(field);
    if node.is_none() {
        report(
            errors,
            &table.path,
            format!("has no {field}; a limit needs quota and window, such as {{ quota: 100, window: 1m }}"),
        );
    }
    node
}

fn report_limit(path: &str, error: &LimitError, errors: &mut ErrorList) {
    let field = match error {
        LimitError::Quota(_) => "quota",
        LimitError::Window(_) => "window",
        LimitError::Precision(_) => "precision",
        LimitError::Burst(_) => "burst",
    };
    report(errors, &format!("{path}.{field}"), error.to_string());
}
