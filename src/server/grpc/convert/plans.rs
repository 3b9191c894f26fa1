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
        on_store_failure: on_store_failure(plan.on_store_failure).into(),
        limits: limits(plan),
        candidate: plan
            .candidate
            .as_ref()
            .map_or_else(String::new, |candidate| candidate.name.to_string()),
        holds: matches!(plan.rule, Rule::Limits(_)).then(|| holds::terms(&plan.holds)),
    }
}

/// The value of the policy's name. A test below finds one that has none.
fn on_store_failure(policy: OnStoreFailure) -> pb::OnStoreFailure {
    let name = format!("ON_STORE_FAILURE_{}", policy.as_str().to_ascii_uppercase());
    pb::OnStoreFailure::from_str_name(&name).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_has_a_value_and_every_value_a_policy() {
        let values = OnStoreFailure::ALL.map(|policy| (policy.as_str(), on_store_failure(policy)));
        for (name, value) in values {
            assert_ne!(value, pb::OnStoreFailure::Unspecified, "{name}");
        }
        let on_the_wire = (0..100).filter_map(|number| pb::OnStoreFailure::try_from(number).ok());
        let unused: Vec<_> = on_the_wire
            .filter(|value| values.iter().all(|(_, used)| used != value))
            .collect();
        assert_eq!(unused, [pb::OnStoreFailure::Unspecified]);
    }
}
