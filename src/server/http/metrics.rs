//! The metrics: their names and sources. Labels come from the config and from our own words, never from a request. So their
//! number is bounded and no key is revealed.

mod overrides;
mod plans;
mod process;

use std::collections::BTreeMap;

use super::MetricSources;
use super::exposition::{Exposition, MetricKind};
use crate::grpc::AdminCalls;
use crate::limiter::{BOUNDS_NS, CounterMetric, LimiterCounter, Reloads, Timings, Totals};
use crate::tls;
use tollgate_core::decision::{DecidedBy, Outcome};
use tollgate_core::plan::{Plan, Rule, ZONE_DATABASE};
use tollgate_store::{JointUndos, NodeHealth, StoreRegistry};

const NS_PER_SECOND: f64 = 1e9;

/// Writes all metrics, as of now.
pub(super) fn write(sources: &MetricSources) -> String {
    let totals = sources.limiter.totals();
    let mut text = Exposition::default();
    decisions(&mut text, &totals);
    plans::write(&mut text, &totals);
    limiter_counters(&mut text, &totals);
    overrides::write(&mut text, &totals);
    decision_durations(&mut text, &totals);
    store(&mut text, &totals);
    deny_cache(&mut text, &totals);
    nodes(&mut text, &sources.stores);
    replicas(&mut text, &totals);
    connections_and_log(&mut text, sources);
    process::write(&mut text);
    versions(&mut text, &totals);
    reloads(&mut text, &totals.reloads);
    if let Some(calls) = &sources.admin_calls {
        admin_calls(&mut text, calls);
    }
    if let Some(tls) = &sources.tls {
        certificate(&mut text, &tls.status());
    }
    text.finish()
}

fn decision_durations(text: &mut Exposition, totals: &Totals) {
    timings(
        text,
        "tollgate_decision_duration_seconds",
        "Time that a decision waited for Redis, 0 if it did not; each decision of a batch has the time of the batch.",
        &totals.durations,
    );
}

fn replicas(text: &mut Exposition, totals: &Totals) {
    text.single(
        "tollgate_replicas_seen",
        MetricKind::Gauge,
        "Replicas that share each quota while Redis cannot decide: the number seen last, or store.expected_replicas.",
        totals.replicas,
    );
}

fn connections_and_log(text: &mut Exposition, sources: &MetricSources) {
    let connections = &sources.grpc_connections;
    text.single(
        "tollgate_connections",
        MetricKind::Gauge,
        "Open gRPC connections.",
        connections.open(),
    );
    text.single(
        "tollgate_refused_calls_total",
        MetricKind::Counter,
        "Calls refused because a worker held as many as it may.",
        connections.refused_calls(),
    );
    text.single(
        "tollgate_log_lines_dropped_total",
        MetricKind::Counter,
        "Log lines dropped because standard output was not read fast enough.",
        (sources.log_lines_dropped)(),
    );
}

fn versions(text: &mut Exposition, totals: &Totals) {
    text.family(
        "tollgate_build_info",
        MetricKind::Gauge,
        "The version that runs, and the release of its time zones.",
    );
    text.sample(
        "tollgate_build_info",
        &[
            ("version", env!("CARGO_PKG_VERSION")),
            ("tzdb", ZONE_DATABASE),
        ],
        1,
    );
    text.family(
        "tollgate_config_info",
        MetricKind::Gauge,
        "The hash of the plans, equal on replicas that enforce the same plans.",
    );
    text.sample(
        "tollgate_config_info",
        &[("hash", totals.snapshot().config_hash())],
        1,
    );
}

/// Writes the counters of [`LimiterCounter`].
fn limiter_counters(text: &mut Exposition, totals: &Totals) {
    for &counter in LimiterCounter::ALL {
        let CounterMetric { name, help, label } = counter.metric();
        text.family(name, MetricKind::Counter, help);
        let (label, values) = label;
        for (value, count) in values.iter().zip(totals.counts(counter)) {
            let labels = [(*label, *value)];
            let labels = if label.is_empty() { &[] } else { &labels[..] };
            text.sample(name, labels, count);
        }
    }
}

fn admin_calls(text: &mut Exposition, calls: &AdminCalls) {
    const NAME: &str = "tollgate_admin_calls_total";
    text.family(
        NAME,
        MetricKind::Counter,
        "Calls of the admin service by method and status code.",
    );
    for (method, code, count) in calls.counts() {
        text.sample(NAME, &[("method", method), ("code", code)], count);
    }
}

fn certificate(text: &mut Exposition, status: &tls::TlsStatus) {
    certificate_reloads(text, status);
    text.single(
        "tollgate_tls_not_after_timestamp_seconds",
        MetricKind::Gauge,
        "When the certificate that is served expires, in seconds since 1970.",
        status.not_after,
    );
    text.single(
        "tollgate_tls_failed_handshakes_total",
        MetricKind::Counter,
        "Connections closed because their TLS handshake failed or took too long.",
        status.failed_handshakes,
    );
}

fn certificate_reloads(text: &mut Exposition, status: &tls::TlsStatus) {
    const NAME: &str = "tollgate_tls_reloads_total";
    text.family(
        NAME,
        MetricKind::Counter,
        "Certificate reloads since the start; after a failure the old certificate stays.",
    );
    text.sample(NAME, &[("result", "success")], status.taken_up);
    text.sample(NAME, &[("result", "failure")], status.refused);
    text.single(
        "tollgate_tls_last_reload_successful",
        MetricKind::Gauge,
        "0 while the changed TLS files cannot be used.",
        u8::from(!status.last_refused),
    );
}

fn reloads(text: &mut Exposition, reloads: &Reloads) {
    const NAME: &str = "tollgate_config_reloads_total";
    text.family(
        NAME,
        MetricKind::Counter,
        "Config reloads since the start; after a failure the old plans stay.",
    );
    text.sample(NAME, &[("result", "success")], reloads.taken_up);
    text.sample(NAME, &[("result", "failure")], reloads.refused);
    text.single(
        "tollgate_config_last_reload_successful",
        MetricKind::Gauge,
        "0 while the config file has an error.",
        u8::from(!reloads.last_refused),
    );
}

fn decisions(text: &mut Exposition, totals: &Totals) {
    const NAME: &str = "tollgate_decisions_total";
    text.family(
        NAME,
        MetricKind::Counter,
        "Decisions by plan, outcome and decider.",
    );
    for (plan_index, plan) in totals.snapshot().plans().iter().enumerate() {
        for (outcome, by) in Outcome::ALL
            .iter()
            .flat_map(|outcome| DecidedBy::ALL.map(|by| (*outcome, by)))
        {
            let count = totals.decisions(plan_index, outcome, by);
            if count > 0 || is_expected(plan, outcome, by) {
                let labels = [
                    ("plan", &*plan.name),
                    ("outcome", outcome.as_str()),
                    ("decided_by", by.as_str()),
                ];
                text.sample(NAME, &labels, count);
            }
        }
    }
}

/// Whether to write this combination although its count is 0. That is so for combinations that the plan may well reach, so
/// that its first decision is seen as an increase. Others are left out, since a config may have thousands of plans.
fn is_expected(plan: &Plan, outcome: Outcome, by: DecidedBy) -> bool {
    let denial = |outcome: Outcome| {
        if plan.shadow {
            Outcome::ShadowDenied
        } else {
            outcome
        }
    };
    match (&plan.rule, by) {
        (Rule::Unlimited, DecidedBy::Plan) => outcome == Outcome::Allowed,
        (Rule::Blocked, DecidedBy::Plan) => outcome == denial(Outcome::Denied),
        (Rule::Unlimited | Rule::Blocked, _) => false,
        (Rule::Limits(_), DecidedBy::Store | DecidedBy::LocalFallback) => {
            outcome == Outcome::Allowed || outcome == denial(Outcome::Denied)
        }
        (Rule::Limits(_), DecidedBy::DenyCache | DecidedBy::FailClosed) => {
            outcome == denial(Outcome::Denied)
        }
        (Rule::Limits(_), DecidedBy::FailOpen) => outcome == Outcome::Allowed,
        (Rule::Limits(_), DecidedBy::Plan) => outcome == denial(Outcome::NeverFits),
    }
}

fn store(text: &mut Exposition, totals: &Totals) {
    timings(
        text,
        "tollgate_store_duration_seconds",
        "Time that a call to Redis took, answered or not, including the wait behind other calls; a call is a decision or a batch.",
        &totals.store_durations,
    );
    text.single(
        "tollgate_inflight_requests",
        MetricKind::Gauge,
        "Requests that wait for Redis.",
        totals.waiting,
    );
}

fn deny_cache(text: &mut Exposition, totals: &Totals) {
    text.single(
        "tollgate_deny_cache_hits_total",
        MetricKind::Counter,
        "Requests denied by a remembered denial.",
        totals.decided_by(DecidedBy::DenyCache),
    );
    text.single(
        "tollgate_deny_cache_entries",
        MetricKind::Gauge,
        "Remembered denials, including those that are over and not yet replaced.",
        totals.deny_cache_entries,
    );
}

/// Writes nothing if there is no Redis.
fn nodes(text: &mut Exposition, stores: &StoreRegistry) {
    if stores.is_empty() {
        return;
    }
    text.single(
        "tollgate_degraded",
        MetricKind::Gauge,
        "1 while the breaker of a connection to Redis is not closed.",
        u8::from(stores.state().is_out()),
    );
    text.single(
        "tollgate_store_reached",
        MetricKind::Gauge,
        "0 until a connection to Redis was usable; then 1 until the end of the process.",
        u8::from(stores.was_reached()),
    );
    let nodes = stores.nodes();
    node_connections(text, &nodes);
    node_counters(text, &nodes);
    joint_undos(text, stores.joint_undos());
}

fn joint_undos(text: &mut Exposition, undos: JointUndos) {
    const NAME: &str = "tollgate_joint_undos_total";
    text.family(
        NAME,
        MetricKind::Counter,
        "Requests charged on a Redis Cluster and undone since another of their joint decision was denied; unknown: no answer, or refused.",
    );
    text.sample(NAME, &[("result", "done")], undos.done);
    text.sample(NAME, &[("result", "unknown")], undos.unknown);
}

fn node_connections(text: &mut Exposition, nodes: &BTreeMap<String, NodeHealth>) {
    const CONNECTIONS: &str = "tollgate_store_connections";
    text.family(
        CONNECTIONS,
        MetricKind::Gauge,
        "Connections to each Redis server by the state of their breaker; only those with a closed breaker are used.",
    );
    for (node, health) in nodes {
        for ((_, state), count) in NodeHealth::STATES.iter().zip(health.connections) {
            text.sample(CONNECTIONS, &[("node", node), ("breaker", state)], count);
        }
    }
}

fn node_counters(text: &mut Exposition, nodes: &BTreeMap<String, NodeHealth>) {
    let counters = [
        (
            "tollgate_store_breaker_opened_total",
            "Times that a breaker opened.",
            (|health| health.opened) as fn(&NodeHealth) -> u64,
        ),
        (
            "tollgate_store_probes_total",
            "Connection attempts, including the first ones.",
            |health| health.probes,
        ),
        (
            "tollgate_store_replaced_total",
            "Times that a new Redis process answered, after a restart or a failover; counts that were not saved are lost.",
            |health| health.replaced,
        ),
    ];
    for (name, help, count) in counters {
        text.family(name, MetricKind::Counter, help);
        nodes
            .iter()
            .for_each(|(node, health)| text.sample(name, &[("node", node)], count(health)));
    }
}

fn timings(text: &mut Exposition, name: &str, help: &str, timings: &Timings) {
    text.family(name, MetricKind::Histogram, help);
    let bucket = format!("{name}_bucket");
    let mut count = 0;
    for (bound_ns, within) in BOUNDS_NS.iter().zip(timings.buckets) {
        count += within;
        text.sample(&bucket, &[("le", &seconds(*bound_ns).to_string())], count);
    }
    text.sample(&bucket, &[("le", "+Inf")], timings.count());
    text.sample(&format!("{name}_sum"), &[], seconds(timings.sum_ns));
    text.sample(&format!("{name}_count"), &[], timings.count());
}

#[expect(clippy::cast_precision_loss, reason = "a sample is a float")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / NS_PER_SECOND
}
