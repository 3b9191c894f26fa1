//! Renders the figures of the page as JSON. Their size is bounded, whatever the config holds.

use std::time::Instant;

use serde_json::{Value, json};

use super::history::Counts;
use super::problems::{self, Facts, Problem};
use super::samples::{PlanCounts, RecentActivity, Sample, Samples, percentile_us};
use super::{KeyDisplay, StatusEndpoint};
use crate::http::MetricSources;
use crate::limiter::{LimiterCounter, OverrideFigures, Timings, Totals};
use tollgate_core::plan::{Limit, Plan, Rule};
use tollgate_store::clock::{Clock, SystemClock, monotonic};
use tollgate_store::{NodeHealth, StoreState};

/// Maximum number of plans that are listed: those with the most decisions lately. A config may have 10,000.
const PLANS_MAX: usize = 50;
/// Maximum number of servers of Redis that are listed: those with a breaker that is not closed come first.
const NODES_MAX: usize = 50;

/// Writes the figures as of now, with those of the heaviest keys.
pub(super) fn write(
    sources: &MetricSources,
    status: &StatusEndpoint,
    samples: &mut Samples,
    (keys, top): (KeyDisplay, Value),
) -> String {
    let totals = sources.limiter.totals();
    let now = monotonic();
    let sample = Sample::new(now, &totals);
    let recent = samples.add(&sample);
    let store_state = sources.limiter.store_state(&sources.stores);
    let figures = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "now_ms": now_ms(),
        "problems": problems(sources, status, &store_state, (&top, recent.as_ref())),
        "uptime_s": uptime_s(status, now),
        "config_hash": totals.snapshot().config_hash(),
        "keys": match keys { KeyDisplay::Hashed => "hashed", KeyDisplay::Clear => "clear" },
        "token": status.sources.token.is_some(),
        "span_ms": recent.as_ref().map(|recent| saturated(recent.span.as_millis())),
        "replicas": totals.replicas,
        "overrides": overrides(&totals.overrides, now),
        "connections": sources.grpc_connections.open(),
        "all": counts(sum(&sample.plans), recent.as_ref().map(|recent| sum(&recent.plans))),
        "plans": plans(&sample, recent.as_ref(), &totals),
        "store": store(sources, status, &store_state, (&totals, recent.as_ref())),
        "history": history(status, now, &totals),
        "top": top,
        "latency": latency(&totals, recent.as_ref()),
        "config_changes": config_changes(status),
    });
    format!("{figures}\n")
}

/// How many overrides there are, which version of those that were set at runtime, and when the store confirmed it last, if it did.
fn overrides(figures: &OverrideFigures, now: Instant) -> Value {
    let age_s = figures
        .confirmed_at
        .map(|at| now.saturating_duration_since(at).as_secs());
    json!({
        "count": figures.counts.as_flattened().iter().sum::<u64>(),
        "without_effect": figures.without_effect,
        "version": figures.version,
        "age_s": age_s,
    })
}

fn uptime_s(status: &StatusEndpoint, now: Instant) -> u64 {
    now.saturating_duration_since(status.started_at).as_secs()
}

fn saturated(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn sum(plans: &[PlanCounts]) -> PlanCounts {
    plans
        .iter()
        .fold(PlanCounts::default(), |sum, plan| sum.plus(*plan))
}

/// Counts since the start, and of the last seconds if they are known.
fn counts(total: PlanCounts, recent: Option<PlanCounts>) -> Value {
    let fields = |counts: PlanCounts| {
        let PlanCounts {
            allowed,
            denied,
            shadow_denied,
            by_policy,
        } = counts;
        json!({ "allowed": allowed, "denied": denied, "shadow_denied": shadow_denied, "by_policy": by_policy })
    };
    json!({ "total": fields(total), "recent": recent.map(fields) })
}

/// The busiest plans in the order of the config, and the sum of the others.
fn plans(sample: &Sample, recent: Option<&RecentActivity>, totals: &Totals) -> Value {
    let recent_of = |plan: usize| recent.and_then(|recent| recent.plans.get(plan)).copied();
    let activity = |plan: usize| {
        let total = sample
            .plans
            .get(plan)
            .map_or(0, |counts| counts.decisions());
        (recent_of(plan).map_or(0, PlanCounts::decisions), total)
    };
    let mut busiest: Vec<usize> = (0..sample.plans.len()).collect();
    busiest.sort_by_key(|plan| std::cmp::Reverse(activity(*plan)));
    let others = busiest.split_off(busiest.len().min(PLANS_MAX));
    busiest.sort_unstable();
    let all: Vec<_> = sample.snapshot.plans().iter().zip(&sample.plans).collect();
    let shown = busiest.iter().filter_map(|index| {
        let (plan, total) = all.get(*index)?;
        Some(json!({
            "name": &*plan.name, "rule": rule(plan), "shadow": plan.shadow, "candidate": candidate(plan, *index, totals),
            "counts": counts(**total, recent_of(*index)),
        }))
    });
    let others_sum = |of: &dyn Fn(usize) -> Option<PlanCounts>| {
        others
            .iter()
            .filter_map(|plan| of(*plan))
            .fold(PlanCounts::default(), PlanCounts::plus)
    };
    json!({
        "total": sample.plans.len(),
        "shown": shown.collect::<Vec<_>>(),
        "others": others.len(),
        "others_counts": counts(
            others_sum(&|plan| sample.plans.get(plan).copied()),
            recent.map(|_| others_sum(&recent_of)),
        ),
    })
}

/// How the candidate of the plan at this index differs from it, in requests since the start; `null` without a candidate.
fn candidate(plan: &Plan, index: usize, totals: &Totals) -> Value {
    let Some(candidate) = &plan.candidate else {
        return Value::Null;
    };
    let decisions =
        |allowed, candidate_allowed| totals.candidate_decisions(index, allowed, candidate_allowed);
    json!({ "name": &*candidate.name, "denies_more": decisions(true, false), "denies_less": decisions(false, true) })
}

/// The rule of a plan, for people.
fn rule(plan: &Plan) -> String {
    match &plan.rule {
        Rule::Unlimited => "unlimited".to_owned(),
        Rule::Blocked => "blocked".to_owned(),
        Rule::Limits(limits) => limits.iter().map(limit).collect::<Vec<_>>().join("; "),
    }
}

fn limit(limit: &Limit) -> String {
    let window = limit.window_text();
    let burst = match limit.capacity() {
        capacity if capacity == limit.quota() => String::new(),
        capacity => format!(", burst {capacity}"),
    };
    format!(
        "{} in {window}{burst} ({})",
        limit.quota(),
        limit.algorithm().name()
    )
}

/// What is wrong, the most harmful first.
fn problems(
    sources: &MetricSources,
    status: &StatusEndpoint,
    store: &StoreState,
    (top, recent): (&Value, Option<&RecentActivity>),
) -> Vec<Value> {
    let changes = status.sources.config_changes.list();
    let facts = Facts {
        store,
        config: changes.first(),
        certificate_refused: sources
            .tls
            .as_ref()
            .is_some_and(|tls| tls.status().last_refused),
        replicas_missing: top["missing"].as_u64().unwrap_or(0),
        alone: top["alone"] == true,
        unknown_plans: recent.map_or(0, |recent| recent.unknown_plans),
    };
    problems::list(&facts).iter().map(Problem::json).collect()
}

/// The last quarter of an hour. For each point: its end, its span, decisions, those denied and those by policy, and the 99th
/// percentile of their waits.
fn history(status: &StatusEndpoint, now: Instant, totals: &Totals) -> Vec<Value> {
    let points = status
        .history()
        .points(now, now_ms(), &Counts::read(totals));
    let fields = points.iter().map(|it| {
        json!([
            it.at_ms,
            it.span_ms,
            it.decisions,
            it.denied,
            it.by_policy,
            it.p99_us
        ])
    });
    fields.collect()
}

fn now_ms() -> u64 {
    SystemClock.now_us() / 1_000
}

fn store(
    sources: &MetricSources,
    status: &StatusEndpoint,
    state: &StoreState,
    (totals, recent): (&Totals, Option<&RecentActivity>),
) -> Value {
    let all = sources.stores.nodes();
    let is_degraded = |health: &NodeHealth| health.connections[1..].iter().any(|count| *count > 0);
    let mut nodes: Vec<_> = all.iter().collect();
    nodes.sort_by_key(|(_, health)| !is_degraded(health));
    let shown = nodes.iter().take(NODES_MAX).map(|(address, health)| {
        let [closed, open, half_open] = health.connections;
        json!({
            "address": address, "closed": closed, "open": open, "half_open": half_open,
            "opened": health.opened, "replaced": health.replaced,
        })
    });
    json!({
        "url": status.sources.store,
        "embedded": sources.stores.is_empty(),
        "decides": state.decides(),
        "state": state.to_string(),
        "nodes": shown.collect::<Vec<_>>(),
        "others": all.len().saturating_sub(NODES_MAX),
        "waiting": totals.waiting,
        "errors": totals.count(LimiterCounter::StoreErrors),
        "recent_errors": recent.map(|recent| recent.store_errors),
    })
}

/// Of the last seconds, or since the start while those are not known or were quiet.
fn latency(totals: &Totals, recent: Option<&RecentActivity>) -> Value {
    let is_lively = |recent: &&RecentActivity| recent.durations.count() > 0;
    match recent.filter(is_lively) {
        Some(recent) => json!({
            "recent": true, "decisions": percentiles(&recent.durations), "store": percentiles(&recent.store_durations),
        }),
        None => json!({
            "recent": false, "decisions": percentiles(&totals.durations), "store": percentiles(&totals.store_durations),
        }),
    }
}

/// Upper bounds; `null` is above the last bound, a second.
fn percentiles(timings: &Timings) -> Value {
    let of = |permille| percentile_us(timings, permille);
    json!({ "count": timings.count(), "p50_us": of(500), "p95_us": of(950), "p99_us": of(990) })
}

fn config_changes(status: &StatusEndpoint) -> Vec<Value> {
    let changes = status.sources.config_changes.list().into_iter();
    changes
        .map(|change| json!({ "at_ms": change.at_us / 1_000, "outcome": change.outcome.as_str(), "text": change.text }))
        .collect()
}
