//! The metrics: what each is called, and where its figures come from. Labels come from the config and from our own words,
//! never from a request, so their number is bounded and no key is ever told.

use super::Told;
use super::exposition::{Exposition, Kind};
use crate::decision::{DecidedBy, Outcome};
use crate::grpc::AdminCalls;
use crate::limiter::{BOUNDS_NS, Limiter, Reloads, Timings, Totals};
use crate::plan::{Plan, Rule};
use crate::store::{NodeHealth, Roster, StoreError};
use crate::tls;

const NS_PER_SECOND: f64 = 1e9;

/// Everything, as of now.
pub(super) fn write<S>(limiter: &Limiter<S>, told: &Told) -> String {
    let connections = &told.grpc_connections;
    let (totals, mut text) = (limiter.totals(), Exposition::default());
    decisions(&mut text, &totals);
    no_decisions(&mut text, &totals);
    timings(
        &mut text,
        "tollgate_decision_duration_seconds",
        "Time that a decision waited for Redis, none if it did not; in a batch, the whole batch's for each.",
        &totals.durations,
    );
    store(&mut text, &totals);
    nodes(&mut text, &told.stores);
    text.single(
        "tollgate_replicas_seen",
        Kind::Gauge,
        "Replicas that share each quota while Redis cannot decide: those seen last, or store.expected_replicas.",
        totals.replicas,
    );
    text.single("tollgate_connections", Kind::Gauge, "Open gRPC connections.", connections.open());
    text.single(
        "tollgate_refused_calls_total",
        Kind::Counter,
        "Calls refused since a worker held as many as it may.",
        connections.refused_calls(),
    );
    text.single(
        "tollgate_log_lines_dropped_total",
        Kind::Counter,
        "Lines of the log that were dropped since nobody read standard output fast enough.",
        (told.log_lines_dropped)(),
    );
    text.family("tollgate_build_info", Kind::Gauge, "The version that runs.");
    text.sample("tollgate_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    text.family("tollgate_config_info", Kind::Gauge, "The hash of the plans, equal on replicas that enforce the same.");
    text.sample("tollgate_config_info", &[("hash", totals.edition().config_hash())], 1);
    reloads(&mut text, &totals.reloads);
    if let Some(calls) = &told.admin_calls {
        admin_calls(&mut text, calls);
    }
    if let Some(tls) = &told.tls {
        certificate(&mut text, &tls.status());
    }
    text.finish()
}

/// Questions that are no decision by the plan that they name.
fn no_decisions(text: &mut Exposition, totals: &Totals) {
    text.single("tollgate_peeks_total", Kind::Counter, "Questions answered without charging.", totals.peeks);
    text.single(
        "tollgate_unknown_plans_total",
        Kind::Counter,
        "Questions about a plan that is not in the config.",
        totals.unknown_plans,
    );
    text.single(
        "tollgate_default_plan_total",
        Kind::Counter,
        "Questions about a plan that is not in the config, decided by default_plan.",
        totals.by_default_plan,
    );
    text.single(
        "tollgate_caller_deadlines_total",
        Kind::Counter,
        "Questions whose caller's deadline, shorter than store.deadline, passed before the store answered.",
        totals.callers_gone,
    );
}

fn admin_calls(text: &mut Exposition, calls: &AdminCalls) {
    const NAME: &str = "tollgate_admin_calls_total";
    text.family(NAME, Kind::Counter, "Calls of the admin service by method and status code.");
    for (method, code, count) in calls.counts() {
        text.sample(NAME, &[("method", method), ("code", code)], count);
    }
}

fn certificate(text: &mut Exposition, status: &tls::Status) {
    const NAME: &str = "tollgate_tls_reloads_total";
    text.family(NAME, Kind::Counter, "Certificates that came since the start; a failure leaves the old one in its place.");
    text.sample(NAME, &[("result", "success")], status.taken_up);
    text.sample(NAME, &[("result", "failure")], status.refused);
    text.single(
        "tollgate_tls_last_reload_successful",
        Kind::Gauge,
        "0 while the files of TLS say something that cannot be served.",
        u8::from(!status.last_refused),
    );
    text.single(
        "tollgate_tls_not_after_timestamp_seconds",
        Kind::Gauge,
        "When the certificate that is served expires, in seconds since 1970.",
        status.not_after,
    );
    text.single(
        "tollgate_tls_failed_handshakes_total",
        Kind::Counter,
        "Connections that were closed since their TLS handshake failed, or was not over in time.",
        status.failed_handshakes,
    );
}

fn reloads(text: &mut Exposition, reloads: &Reloads) {
    const NAME: &str = "tollgate_config_reloads_total";
    text.family(NAME, Kind::Counter, "Configs that came since the start; a failure leaves the plans as they were.");
    text.sample(NAME, &[("result", "success")], reloads.taken_up);
    text.sample(NAME, &[("result", "failure")], reloads.refused);
    text.single(
        "tollgate_config_last_reload_successful",
        Kind::Gauge,
        "0 while the config file says something that cannot be enforced.",
        u8::from(!reloads.last_refused),
    );
}

fn decisions(text: &mut Exposition, totals: &Totals) {
    const NAME: &str = "tollgate_decisions_total";
    text.family(NAME, Kind::Counter, "Decisions by plan, outcome and who decided.");
    for (place, plan) in totals.edition().plans().iter().enumerate() {
        for (outcome, by) in Outcome::ALL.iter().flat_map(|outcome| DecidedBy::ALL.map(|by| (*outcome, by))) {
            let count = totals.decisions(place, outcome, by);
            if count > 0 || is_expected(plan, outcome, by) {
                let labels = [("plan", &*plan.name), ("outcome", outcome.word()), ("decided_by", by.word())];
                text.sample(NAME, &labels, count);
            }
        }
    }
}

/// Whether decisions like that are to be told although there was none: those that a plan may well come to, so that the
/// first of them is an increase and not a beginning, and no more, as a config may have thousands of plans.
fn is_expected(plan: &Plan, outcome: Outcome, by: DecidedBy) -> bool {
    let no = |no: Outcome| if plan.shadow { Outcome::ShadowDenied } else { no };
    match (&plan.rule, by) {
        (Rule::Unlimited, DecidedBy::Plan) => outcome == Outcome::Allowed,
        (Rule::Blocked, DecidedBy::Plan) => outcome == no(Outcome::Denied),
        (Rule::Unlimited | Rule::Blocked, _) => false,
        (Rule::Limits(_), DecidedBy::Store | DecidedBy::LocalFallback) => {
            outcome == Outcome::Allowed || outcome == no(Outcome::Denied)
        }
        (Rule::Limits(_), DecidedBy::DenyCache | DecidedBy::FailClosed) => outcome == no(Outcome::Denied),
        (Rule::Limits(_), DecidedBy::FailOpen) => outcome == Outcome::Allowed,
        (Rule::Limits(_), DecidedBy::Plan) => outcome == no(Outcome::NeverFits),
    }
}

fn store(text: &mut Exposition, totals: &Totals) {
    timings(
        text,
        "tollgate_store_duration_seconds",
        "Time that a call to Redis took, answered or not, waiting for others included; a call is one decision or a batch.",
        &totals.store_durations,
    );
    const ERRORS: &str = "tollgate_store_errors_total";
    text.family(ERRORS, Kind::Counter, "Questions that the store could not decide, by kind of failure.");
    for (kind, count) in StoreError::KINDS.iter().zip(totals.store_errors) {
        text.sample(ERRORS, &[("kind", kind)], count);
    }
    text.single("tollgate_inflight_requests", Kind::Gauge, "Questions that wait for Redis.", totals.waiting);
    text.single(
        "tollgate_deny_cache_hits_total",
        Kind::Counter,
        "Questions denied by a denial that was remembered.",
        totals.decided_by(DecidedBy::DenyCache),
    );
    text.single(
        "tollgate_deny_cache_entries",
        Kind::Gauge,
        "Denials remembered, those that are over and not replaced yet included.",
        totals.deny_cache_entries,
    );
}

/// Nothing where there is no Redis.
fn nodes(text: &mut Exposition, stores: &Roster) {
    let nodes = stores.nodes();
    if nodes.is_empty() {
        return;
    }
    const CONNECTIONS: &str = "tollgate_store_connections";
    text.family(
        CONNECTIONS,
        Kind::Gauge,
        "Connections to each Redis server by the state of their breaker; Redis is asked by closed ones.",
    );
    for (node, health) in &nodes {
        for ((_, state), count) in NodeHealth::STATES.iter().zip(health.connections) {
            text.sample(CONNECTIONS, &[("node", node), ("breaker", state)], count);
        }
    }
    let counters = [
        (
            "tollgate_store_breaker_opened_total",
            "Times that a breaker opened.",
            (|health| health.opened) as fn(&NodeHealth) -> u64,
        ),
        ("tollgate_store_probes_total", "Connections tried, the first ones included.", |health| health.probes),
        (
            "tollgate_store_replaced_total",
            "Times that another Redis process answered than before, by a restart or a failover; what was not saved is forgotten.",
            |health| health.replaced,
        ),
    ];
    for (name, help, count) in counters {
        text.family(name, Kind::Counter, help);
        nodes.iter().for_each(|(node, health)| text.sample(name, &[("node", node)], count(health)));
    }
    let degraded = nodes.values().any(|health| health.connections[1..].iter().any(|count| *count > 0));
    text.single("tollgate_degraded", Kind::Gauge, "1 while some connection to Redis does not ask it.", u8::from(degraded));
}

fn timings(text: &mut Exposition, name: &str, help: &str, timings: &Timings) {
    text.family(name, Kind::Histogram, help);
    let (bucket, mut count) = (format!("{name}_bucket"), 0);
    for (bound_ns, within) in BOUNDS_NS.iter().zip(timings.buckets) {
        count += within;
        text.sample(&bucket, &[("le", &seconds(*bound_ns).to_string())], count);
    }
    text.sample(&bucket, &[("le", "+Inf")], timings.count());
    text.sample(&format!("{name}_sum"), &[], seconds(timings.sum_ns));
    text.sample(&format!("{name}_count"), &[], timings.count());
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / NS_PER_SECOND
}
