//! The report as JSON. docs/simulate.md has its fields.

use serde_json::{Value, json as value};

use super::{LimitReport, Report, WorstKey};
use crate::simulate::replay::{HOUR_US, Hour, RequestSpacing};
use tollgate_core::utc::Utc;

/// The report as one object, over several lines.
pub fn json(report: &Report) -> String {
    let variants: Vec<Value> = (0..report.variants.len())
        .map(|variant| variant_json(report, variant))
        .collect();
    let report = value!({
        "log": log(report),
        "requests": report.requests,
        "keys": report.keys,
        "results": variants,
        "worst_keys": report.worst.iter().map(worst_key).collect::<Vec<_>>(),
        "step": if report.hour_us == HOUR_US { "hour" } else { "day" },
        "hours": report.hours.iter().map(hour).collect::<Vec<_>>(),
    });
    format!("{report:#}")
}

fn log(report: &Report) -> Value {
    let log = &report.log;
    let first = log
        .first_unreadable
        .iter()
        .map(|(line, reason)| value!({ "line": line, "reason": reason }));
    value!({
        "name": log.name,
        "lines": log.lines,
        "unreadable": log.unreadable,
        "first_unreadable": first.collect::<Vec<_>>(),
        "without_key": log.without_key,
        "without_cost": log.without_cost,
        "without_plan": log.without_plan,
        "first_without_plan": log.first_without_plan,
        "late": log.late,
        "beyond_keys_max": report.beyond,
        "first": log.times_us.map(|(first, _)| Utc(first).to_string()),
        "last": log.times_us.map(|(_, last)| Utc(last).to_string()),
    })
}

fn worst_key(worst: &WorstKey) -> Value {
    value!({ "plan": worst.plan, "key": worst.key, "requests": worst.requests, "denied": worst.denied })
}

fn hour(hour: &Hour) -> Value {
    value!({ "start": Utc(hour.start_us).to_string(), "requests": hour.requests, "denied": hour.denied })
}

fn limit(limit: &LimitReport) -> Value {
    value!({
        "limit": &**limit.limit.name(),
        "quota": limit.limit.quota(),
        "window": limit.limit.window_text(),
        "algorithm": limit.limit.algorithm().name(),
        "burst": limit.burst(),
        "denied": limit.denied,
        "smallest": limit.smallest,
        "keys_denied_then": limit.keys_denied_then,
    })
}

fn variant_json(report: &Report, variant: usize) -> Value {
    let spacing = match report.variants[variant].spacing {
        None => "as_stamped",
        Some(RequestSpacing::AsStamped) => "bursts",
        Some(RequestSpacing::Evenly) => "evenly",
    };
    let plans = report.plans.iter().map(
        |plan| value!({ "plan": plan.name, "keys": plan.keys, "rule": plan.rules[variant], "limits": plan.variants[variant].iter().map(limit).collect::<Vec<_>>() }),
    );
    value!({
        "config": report.variants[variant].config,
        "spacing": spacing,
        "denied": report.denied[variant],
        "keys_denied": report.keys_denied[variant],
        "overridden": report.overridden[variant],
        "plans": plans.collect::<Vec<_>>(),
    })
}
