//! Converts the explanation of a key, and the number of replicas.

use crate::grpc::pb;
use crate::limiter::{CandidateExplanation, Explanation, LimitExplanation};
use tollgate_core::algorithm::holds::NoteFigures;
use tollgate_core::plan::Plan;
use tollgate_store::{BreakerState, NodeHealth, StoreRegistry};

/// Converts an explanation, with the breakers of this process.
pub(in crate::grpc) fn explained(
    explained: &Explanation,
    stores: &StoreRegistry,
) -> pb::ExplainResponse {
    let (connections, open) = connections(stores);
    pb::ExplainResponse {
        sentence: explained.sentence(),
        next: Some(super::response(&explained.next, true)),
        limits: limit_explanations(&explained.plan, &explained.limits),
        plan: explained.plan.name.to_string(),
        counts_as: explained.plan.counts_as.to_string(),
        redis_names: explained.redis_names.clone(),
        workers_denying: u32::try_from(explained.workers_denying).unwrap_or(u32::MAX),
        redis_connections: u32::try_from(connections).unwrap_or(u32::MAX),
        redis_connections_open: u32::try_from(open).unwrap_or(u32::MAX),
        candidate: explained.candidate.as_ref().map(candidate_explanation),
        key_hash: explained.key_hash.to_string(),
        applied_override: explained
            .applied_override
            .as_deref()
            .map(super::plan_override),
        holds: explained.holds.as_ref().map(hold_figures),
    }
}

fn hold_figures(figures: &NoteFigures) -> pb::HoldFigures {
    let count = |holds: usize| u32::try_from(holds).unwrap_or(u32::MAX);
    pb::HoldFigures {
        open: count(figures.open),
        units: figures.units,
        first_end: figures.first_end_us.map(super::duration),
        known_ids: count(figures.known_ids),
    }
}

/// Converts the number of replicas that is in force, which the config may fix, with the breakers of this process.
pub(in crate::grpc) fn replicas(
    count: u64,
    fixed: bool,
    stores: &StoreRegistry,
) -> pb::ReplicasResponse {
    let (connections, open) = connections(stores);
    let source = match (fixed, stores.is_empty()) {
        (true, _) => pb::ReplicaSource::Config,
        (false, true) => pb::ReplicaSource::Alone,
        (false, false) => pb::ReplicaSource::Redis,
    };
    pb::ReplicasResponse {
        replicas: u32::try_from(count).unwrap_or(u32::MAX),
        source: source.into(),
        redis_connections: u32::try_from(connections).unwrap_or(u32::MAX),
        redis_connections_open: u32::try_from(open).unwrap_or(u32::MAX),
    }
}

fn candidate_explanation(explained: &CandidateExplanation) -> pb::CandidateExplanation {
    pb::CandidateExplanation {
        plan: explained.plan.name.to_string(),
        allowed: explained.allowed,
        limits: limit_explanations(&explained.plan, &explained.limits),
        redis_names: explained.redis_names.clone(),
    }
}

fn limit_explanations(plan: &Plan, explained: &[LimitExplanation]) -> Vec<pb::LimitExplanation> {
    let limits = super::plans::limits(plan).into_iter().zip(explained);
    limits
        .map(|(limit, explained)| limit_explanation(limit, explained))
        .collect()
}

fn limit_explanation(limit: pb::Limit, explained: &LimitExplanation) -> pb::LimitExplanation {
    let releases = explained.releases.iter();
    let release = |release: &tollgate_core::algorithm::Release| pb::Release {
        units: release.units,
        after: Some(super::duration(release.after_us)),
    };
    pb::LimitExplanation {
        limit: Some(limit),
        status: Some(super::limit_status(&explained.status)),
        used: explained.used,
        releases: releases.map(release).collect(),
    }
}

/// Connections to Redis, and those whose breaker is not closed.
fn connections(stores: &StoreRegistry) -> (u64, u64) {
    let mut all = 0;
    let mut open = 0;
    for node in stores.nodes().values() {
        for ((state, _), count) in NodeHealth::STATES.iter().zip(node.connections) {
            all += count;
            open += if *state == BreakerState::Closed {
                0
            } else {
                count
            };
        }
    }
    (all, open)
}
