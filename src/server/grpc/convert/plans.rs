//! Converts plans and their limits.

use super::{duration, holds, known};
use crate::grpc::pb;
use tollgate_core::plan::{
    Algorithm, Anchor, Calendar, CalendarUnit, Limit, OnStoreFailure, Plan, Rule,
};

/// Converts a plan.
pub(in crate::grpc) fn plan(plan: &Plan) -> pb::Plan {
    pb::Plan {
        name: plan.name.to_string(),
        counts_as: plan.counts_as.to_string(),
        unlimited: plan.rule == Rule::Unlimited,
        blocked: plan.rule == Rule::Blocked,
        shadow: plan.shadow,
        on_store_failure: match plan.on_store_failure {
            OnStoreFailure::Local => pb::OnStoreFailure::Local,
            OnStoreFailure::Allow => pb::OnStoreFailure::Allow,
            OnStoreFailure::Deny => pb::OnStoreFailure::Deny,
        }
        .into(),
        limits: limits(plan),
        candidate: plan
            .candidate
            .as_ref()
            .map_or_else(String::new, |candidate| candidate.name.to_string()),
        holds: matches!(plan.rule, Rule::Limits(_)).then(|| holds::terms(&plan.holds)),
    }
}

/// All limits of a plan, in the order of the config.
pub(super) fn limits(plan: &Plan) -> Vec<pb::Limit> {
    let mut limits: Vec<_> = plan.limits().iter().map(limit).collect();
    if let Some(slots) = plan.concurrency() {
        limits.insert(slots.place().min(limits.len()), holds::concurrency(slots));
    }
    limits
}

fn limit(limit: &Limit) -> pb::Limit {
    let (algorithm, burst, precision, anchor) = match limit.algorithm() {
        Algorithm::FixedWindow { anchor } => (
            pb::Algorithm::FixedWindow,
            None,
            None,
            Some(pb_anchor(anchor).into()),
        ),
        Algorithm::SlidingLog => (pb::Algorithm::SlidingLog, None, None, None),
        Algorithm::SlidingWindow { precision } => (
            pb::Algorithm::SlidingWindow,
            None,
            Some(u32::from(precision)),
            None,
        ),
        Algorithm::SlidingCounter => (pb::Algorithm::SlidingCounter, None, None, None),
        Algorithm::TokenBucket { burst } => (pb::Algorithm::TokenBucket, Some(burst), None, None),
    };
    pb::Limit {
        name: limit.name().to_string(),
        quota: limit.quota(),
        window: limit
            .calendar()
            .is_none()
            .then(|| duration(limit.window_us())),
        algorithm: algorithm.into(),
        burst,
        precision,
        anchor: anchor.filter(|_| limit.calendar().is_none()),
        calendar: limit.calendar().map(calendar),
        block: known(limit.block_us()),
    }
}

fn calendar(calendar: &Calendar) -> pb::Calendar {
    let unit = match calendar.unit() {
        CalendarUnit::Day => pb::CalendarUnit::Day,
        CalendarUnit::Week { .. } => pb::CalendarUnit::Week,
        CalendarUnit::Month { .. } => pb::CalendarUnit::Month,
    };
    pb::Calendar {
        unit: unit.into(),
        zone: calendar.zone().name().to_owned(),
        starts: calendar.unit().starts().into(),
    }
}

fn pb_anchor(anchor: Anchor) -> pb::Anchor {
    match anchor {
        Anchor::Clock => pb::Anchor::Clock,
        Anchor::FirstRequest => pb::Anchor::FirstRequest,
    }
}
