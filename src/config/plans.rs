//! The `plans` table to a `PlanSet`.

use std::sync::Arc;

use super::tree::{Mistakes, Node, Shown, Table, wrong};
use crate::plan::{
    Algorithm, Anchor, LIMITS_MAX, Limit, LimitError, OnStoreFailure, PLANS_MAX, PRECISION_DEFAULT, Plan, PlanSet, Rule,
    check_name,
};

const ANCHORS: [(&str, Anchor); 2] = [("clock", Anchor::Clock), ("first_request", Anchor::FirstRequest)];
const POLICIES: [(&str, OnStoreFailure); 3] =
    [("local", OnStoreFailure::Local), ("allow", OnStoreFailure::Allow), ("deny", OnStoreFailure::Deny)];

/// Algorithms by their names in the config, with the one field that each has of its own.
const ALGORITHMS: [(&str, Kind); 5] = [
    ("sliding_window", Kind::SlidingWindow),
    ("sliding_log", Kind::SlidingLog),
    ("fixed_window", Kind::FixedWindow),
    ("sliding_counter", Kind::SlidingCounter),
    ("token_bucket", Kind::TokenBucket),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    SlidingWindow,
    SlidingLog,
    FixedWindow,
    SlidingCounter,
    TokenBucket,
}

/// Checks all plans, and that the default plan, if there is one, is one of them; `None`, or a mistake noted, when something is
/// wrong.
pub(super) fn check(node: Option<Node>, default_plan: Option<&str>, mistakes: &mut Mistakes) -> Option<PlanSet> {
    let mistakes_before = mistakes.len();
    let plans = check_plans(node, mistakes)?;
    // Without a plan that has a mistake, the default may be missing.
    if mistakes.len() > mistakes_before {
        return None;
    }
    match plans.clone().with_default(default_plan) {
        Ok(plans) => Some(plans),
        Err(unknown) => {
            let near = plans.suggest(unknown).nearest.map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
            wrong(
                mistakes,
                "default_plan",
                format!("is {}, which is no plan of this config{near}", Shown(default_plan.unwrap_or(""))),
            );
            None
        }
    }
}

fn check_plans(node: Option<Node>, mistakes: &mut Mistakes) -> Option<PlanSet> {
    let plans = match node {
        Some(node) => node.table(mistakes)?.take_all(),
        None => Vec::new(),
    };
    if plans.is_empty() {
        wrong(mistakes, "plans", "has no plan; name at least one, such as free: { limits: [ { quota: 100, window: 1m } ] }");
    }
    if plans.len() > PLANS_MAX {
        wrong(mistakes, "plans", format!("has {} plans; at most {PLANS_MAX} are enforced by one server", plans.len()));
        return None;
    }
    let checked: Vec<Option<Plan>> = plans.into_iter().map(|(name, node)| plan(&name, node, mistakes)).collect();
    Some(checked.into_iter().flatten().collect())
}

fn plan(name: &str, node: Node, mistakes: &mut Mistakes) -> Option<Plan> {
    let path = node.path.clone();
    if let Err(error) = check_name(name) {
        wrong(mistakes, &path, format!("is no name of a plan: it {error}"));
    }
    let mut table = node.table(mistakes)?;
    let mut truth = |field| table.take(field).map(|node| node.truth(mistakes)).unwrap_or(Some(false));
    let (unlimited, blocked, shadow) = (truth("unlimited"), truth("blocked"), truth("shadow"));
    let policy = table.take("on_store_failure").map_or(Some(OnStoreFailure::default()), |node| node.choice(&POLICIES, mistakes));
    let counts_as = table.take("counts_as").map_or(Some(name.to_owned()), |node| group(node, mistakes));
    let limits = table.take("limits").map(|node| limits(node, mistakes));
    table.finish(mistakes);
    let rule = match (unlimited?, blocked?, limits) {
        (false, false, Some(limits)) => Rule::Limits(limits?),
        (true, false, None) => Rule::Unlimited,
        (false, true, None) => Rule::Blocked,
        (false, false, None) => {
            wrong(mistakes, &path, "says nothing; give it limits, or unlimited: true, or blocked: true");
            return None;
        }
        _ => {
            wrong(mistakes, &path, "says several things; give it either limits, or unlimited: true, or blocked: true");
            return None;
        }
    };
    Some(Plan { name: name.into(), counts_as: counts_as?.into(), rule, shadow: shadow?, on_store_failure: policy? })
}

fn group(node: Node, mistakes: &mut Mistakes) -> Option<String> {
    let path = node.path.clone();
    let name = node.text(mistakes)?;
    if let Err(error) = check_name(&name) {
        wrong(mistakes, &path, error.to_string());
    }
    Some(name)
}

fn limits(node: Node, mistakes: &mut Mistakes) -> Option<Vec<Limit>> {
    let path = node.path.clone();
    let nodes = node.list(mistakes)?;
    if !(1..=LIMITS_MAX).contains(&nodes.len()) {
        wrong(mistakes, &path, format!("has {} limits; a plan has 1 to {LIMITS_MAX}", nodes.len()));
    }
    let checked: Vec<Option<Limit>> = nodes.into_iter().map(|node| limit(node, mistakes)).collect();
    let limits: Vec<Limit> = checked.into_iter().collect::<Option<_>>()?;
    for (index, limit) in limits.iter().enumerate() {
        let place = format!("{path}[{index}]");
        let before = &limits[..index];
        if before.iter().any(|other| other.name() == limit.name()) {
            wrong(
                mistakes,
                &place,
                format!("is named {} like one before it; give each limit a name of its own", Shown(limit.name())),
            );
        }
        if before.iter().any(|other| other.shape() == limit.shape()) {
            wrong(
                mistakes,
                &place,
                "has the algorithm and window of one before it, so both would be one count; keep the stricter, or change a window",
            );
        }
    }
    Some(limits)
}

fn limit(node: Node, mistakes: &mut Mistakes) -> Option<Limit> {
    let path = node.path.clone();
    let mut table = node.table(mistakes)?;
    let kind = table.take("algorithm").map_or(Some(Kind::SlidingWindow), |node| node.choice(&ALGORITHMS, mistakes));
    let quota = required(&mut table, "quota", mistakes).and_then(|node| node.number(mistakes));
    let window_node = required(&mut table, "window", mistakes);
    let window_text = window_node.as_ref().and_then(Node::plain_text);
    let window = window_node.and_then(|node| node.duration(mistakes));
    let name = table.take("name").map_or(Some(None), |node| group(node, mistakes).map(Some));
    let algorithm = kind.and_then(|kind| algorithm(kind, &mut table, quota, mistakes));
    table.finish(mistakes);
    let name: Arc<str> = match (name?, window_text) {
        (Some(name), _) => name.into(),
        // Two limits of one window and different algorithms are told apart by the algorithm.
        (None, text) => format!("{}/{}", kind_name(kind?), text.unwrap_or_default().replace(' ', "")).into(),
    };
    let limit = Limit::new(name, quota?, window?, algorithm?);
    limit.map_err(|errors| errors.iter().for_each(|error| numbers(&path, error, mistakes))).ok()
}

fn algorithm(kind: Kind, table: &mut Table, quota: Option<u64>, mistakes: &mut Mistakes) -> Option<Algorithm> {
    let anchor = own(table, kind == Kind::FixedWindow, "anchor", "fixed_window", mistakes);
    let precision = own(table, kind == Kind::SlidingWindow, "precision", "sliding_window", mistakes);
    let burst = own(table, kind == Kind::TokenBucket, "burst", "token_bucket", mistakes);
    Some(match kind {
        Kind::SlidingLog => Algorithm::SlidingLog,
        Kind::SlidingCounter => Algorithm::SlidingCounter,
        Kind::FixedWindow => {
            Algorithm::FixedWindow { anchor: anchor.map_or(Some(Anchor::default()), |node| node.choice(&ANCHORS, mistakes))? }
        }
        Kind::SlidingWindow => {
            let precision = precision.map_or(Some(u64::from(PRECISION_DEFAULT)), |node| node.number(mistakes))?;
            // What does not fit is out of range all the same; `Limit::new` says so.
            Algorithm::SlidingWindow { precision: u8::try_from(precision).unwrap_or(u8::MAX) }
        }
        Kind::TokenBucket => Algorithm::TokenBucket { burst: burst.map_or(quota, |node| node.number(mistakes))? },
    })
}

/// A field that only one algorithm has: taken for that one, complained of for any other.
fn own(table: &mut Table, fits: bool, field: &'static str, of: &str, mistakes: &mut Mistakes) -> Option<Node> {
    let node = table.take(field)?;
    if !fits {
        wrong(mistakes, &node.path, format!("belongs to {of} only; remove it or change the algorithm"));
        return None;
    }
    Some(node)
}

fn required(table: &mut Table, field: &'static str, mistakes: &mut Mistakes) -> Option<Node> {
    let node = table.take(field);
    if node.is_none() {
        wrong(
            mistakes,
            &table.path,
            format!("has no {field}; a limit needs quota and window, such as {{ quota: 100, window: 1m }}"),
        );
    }
    node
}

fn numbers(path: &str, error: &LimitError, mistakes: &mut Mistakes) {
    let field = match error {
        LimitError::Quota(_) => "quota",
        LimitError::Window(_) => "window",
        LimitError::Precision(_) => "precision",
        LimitError::Burst(_) => "burst",
    };
    wrong(mistakes, &format!("{path}.{field}"), error.to_string());
}

fn kind_name(kind: Kind) -> &'static str {
    ALGORITHMS.iter().find(|entry| entry.1 == kind).map_or("", |entry| entry.0)
}
