//! `tollgate plans`: the plans that a server enforces.

use serde_json::{Value, json};

use super::admin::{algorithm, shown};
use super::report::{AnswerReport, us};
use super::{AnswerForm, AskedService, ClientConnection};
use crate::grpc::pb;
use crate::grpc::pb::rate_limit_service_client::RateLimitServiceClient;
use tollgate_core::plan::WEEKDAYS;

/// Largest answer, in bytes: more than 10,000 plans of eight limits with the longest names.
const ANSWER_BYTES_MAX: usize = 32 << 20;

impl ClientConnection {
    /// The plans that the server enforces now, as text. Errors: a sentence.
    pub async fn plans(&self, form: AnswerForm) -> Result<String, String> {
        let mut client = RateLimitServiceClient::new(self.channel.clone())
            .max_decoding_message_size(ANSWER_BYTES_MAX);
        let answer = self
            .answer(
                AskedService::ForCallers,
                client.list_plans(pb::ListPlansRequest {}),
            )
            .await?;
        Ok(listed(&answer).text(form))
    }
}

fn listed(answer: &pb::ListPlansResponse) -> AnswerReport {
    let pb::ListPlansResponse {
        plans,
        config_hash,
        overrides_version: _,
    } = answer;
    let plural = if plans.len() == 1 { "" } else { "s" };
    let head = format!("config {config_hash}, {} plan{plural}", plans.len());
    let lines = std::iter::once(head)
        .chain(plans.iter().flat_map(plan_lines))
        .collect();
    AnswerReport {
        lines,
        json: json!({ "config_hash": config_hash, "plans": plans.iter().map(plan_json).collect::<Vec<_>>() }),
    }
}

fn plan_lines(plan: &pb::Plan) -> Vec<String> {
    let rule = match (plan.unlimited, plan.blocked) {
        (true, _) => "unlimited".to_owned(),
        (_, true) => "blocked".to_owned(),
        _ => format!("on store failure {}", on_store_failure(plan)),
    };
    let differs = plan.counts_as != plan.name;
    let more = [
        differs.then(|| format!("counted as {}", plan.counts_as)),
        plan.shadow.then(|| "shadow".to_owned()),
        (!plan.candidate.is_empty()).then(|| format!("candidate {}", plan.candidate)),
    ];
    let head = more
        .into_iter()
        .flatten()
        .fold(format!("plan {}: {rule}", plan.name), |head, part| {
            format!("{head}, {part}")
        });
    std::iter::once(head)
        .chain(plan.limits.iter().map(limit_line))
        .collect()
}

fn limit_line(limit: &pb::Limit) -> String {
    let own = [
        limit.burst.map(|burst| format!(", burst {burst}")),
        limit
            .precision
            .map(|precision| format!(", precision {precision}")),
        limit.anchor.map(|_| format!(", anchor {}", anchor(limit))),
        limit
            .block
            .map(|block| format!(", block {}", shown(us(block)))),
    ];
    let window = limit
        .calendar
        .as_ref()
        .map_or_else(|| shown(limit.window.map_or(0, us)).to_string(), calendar);
    let own = own.into_iter().flatten().collect::<String>();
    if limit.algorithm() == pb::Algorithm::Concurrency {
        return format!("  limit {}: {} holds at once", limit.name, limit.quota);
    }
    format!(
        "  limit {}: {} in {window} ({}{own})",
        limit.name,
        limit.quota,
        algorithm(limit)
    )
}

fn plan_json(plan: &pb::Plan) -> Value {
    json!({
        "name": plan.name,
        "counts_as": plan.counts_as,
        "unlimited": plan.unlimited,
        "blocked": plan.blocked,
        "shadow": plan.shadow,
        "on_store_failure": on_store_failure(plan),
        "candidate": Some(&plan.candidate).filter(|name| !name.is_empty()),
        "limits": plan.limits.iter().map(limit_json).collect::<Vec<_>>(),
    })
}

fn limit_json(limit: &pb::Limit) -> Value {
    let mut json = json!({
        "name": limit.name,
        "quota": limit.quota,
        "algorithm": algorithm(limit),
    });
    let calendar = limit.calendar.as_ref().map(|calendar| {
        json!({ "unit": unit(calendar), "zone": calendar.zone, "starts": calendar.starts })
    });
    let own = [
        ("window_us", limit.window.map(us).map(Value::from)),
        ("calendar", calendar),
        ("burst", limit.burst.map(Value::from)),
        ("precision", limit.precision.map(Value::from)),
        ("anchor", limit.anchor.map(|_| anchor(limit).into())),
        ("block_us", limit.block.map(us).map(Value::from)),
    ];
    for (name, value) in own
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    {
        json[name] = value;
    }
    json
}

/// The name of the policy in the config.
fn on_store_failure(plan: &pb::Plan) -> String {
    plan.on_store_failure()
        .as_str_name()
        .trim_start_matches("ON_STORE_FAILURE_")
        .to_ascii_lowercase()
}

/// Calendar windows as the plans in force describe them: `month from day 15 in Europe/Berlin`.
fn calendar(calendar: &pb::Calendar) -> String {
    let unit = unit(calendar);
    let zone = &calendar.zone;
    let weekday = usize::try_from(calendar.starts)
        .ok()
        .and_then(|day| WEEKDAYS.get(day.checked_sub(1)?));
    match (calendar.unit(), calendar.starts) {
        (pb::CalendarUnit::Week, 2..) => {
            format!("{unit} from {} in {zone}", weekday.unwrap_or(&"?"))
        }
        (pb::CalendarUnit::Month, starts @ 2..) => format!("{unit} from day {starts} in {zone}"),
        _ => format!("{unit} in {zone}"),
    }
}

/// The name of the unit in the config.
fn unit(calendar: &pb::Calendar) -> String {
    calendar
        .unit()
        .as_str_name()
        .trim_start_matches("CALENDAR_UNIT_")
        .to_ascii_lowercase()
}

/// The name of the anchor in the config.
fn anchor(limit: &pb::Limit) -> String {
    limit
        .anchor()
        .as_str_name()
        .trim_start_matches("ANCHOR_")
        .to_ascii_lowercase()
}
