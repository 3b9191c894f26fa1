//! Writes answers as lines for people, and as JSON in the words of the check endpoint.

use serde_json::{Value, json};

use super::AnswerForm;
use crate::grpc::pb;
use tollgate_core::visible::visible;

/// An answer in both forms.
pub(super) struct AnswerReport {
    pub lines: Vec<String>,
    pub json: Value,
}

impl AnswerReport {
    pub(super) fn text(&self, form: AnswerForm) -> String {
        match form {
            AnswerForm::Human => self
                .lines
                .iter()
                .map(|line| visible(line))
                .collect::<Vec<_>>()
                .join("\n"),
            AnswerForm::Json => self.json.to_string(),
        }
    }
}

/// One decision.
pub(super) fn answer(answer: &pb::ShouldAllowResponse) -> AnswerReport {
    let mut lines = vec![
        format!("outcome: {}", in_words(&outcome(answer.outcome()))),
        format!("decided by: {}", in_words(&decided_by(answer.decided_by()))),
    ];
    lines.extend(answer.limits.iter().map(limit_line));
    AnswerReport {
        lines,
        json: answer_json(answer),
    }
}

fn answer_json(answer: &pb::ShouldAllowResponse) -> Value {
    let mut json = json!({
        "allowed": answer.allowed,
        "outcome": outcome(answer.outcome()),
        "decided_by": decided_by(answer.decided_by()),
        "limits": answer.limits.iter().map(limit_json).collect::<Vec<_>>(),
    });
    if !answer.limit_name.is_empty() {
        json["limit_name"] = answer.limit_name.as_str().into();
    }
    let numbers = [
        ("limit", answer.limit),
        ("window_us", answer.window.map(us)),
        ("remaining", answer.remaining),
        ("retry_after_us", answer.retry_after.map(us)),
        ("reset_after_us", answer.reset_after.map(us)),
        ("more_after_us", answer.more_after.map(us)),
    ];
    add_numbers(&mut json, &numbers);
    json
}

/// A name of the check endpoint, for people.
pub(super) fn in_words(name: &str) -> String {
    name.replace('_', " ")
}

/// The word of an outcome, as the check endpoint writes it.
fn outcome(outcome: pb::Outcome) -> String {
    outcome
        .as_str_name()
        .trim_start_matches("OUTCOME_")
        .to_ascii_lowercase()
}

/// The word for who decided, as the check endpoint writes it.
fn decided_by(by: pb::DecidedBy) -> String {
    by.as_str_name()
        .trim_start_matches("DECIDED_BY_")
        .to_ascii_lowercase()
}

fn limit_line(limit: &pb::LimitStatus) -> String {
    let retry = limit.retry_after.map_or_else(String::new, |wait| {
        format!(", retry after {}", seconds(us(wait)))
    });
    let reset = seconds(limit.reset_after.map_or(0, us));
    let blocked = limit.blocked_for.map_or_else(String::new, |left| {
        format!(", blocked for {}", seconds(us(left)))
    });
    format!(
        "limit {}: {} of {} remaining{blocked}{retry}, fresh in {reset}",
        limit.name, limit.remaining, limit.limit
    )
}

pub(super) fn limit_json(limit: &pb::LimitStatus) -> Value {
    let mut json =
        json!({ "limit_name": limit.name, "limit": limit.limit, "remaining": limit.remaining });
    let numbers = [
        ("window_us", limit.window.map(us)),
        ("retry_after_us", limit.retry_after.map(us)),
        ("reset_after_us", limit.reset_after.map(us)),
        ("more_after_us", limit.more_after.map(us)),
        ("blocked_for_us", limit.blocked_for.map(us)),
    ];
    add_numbers(&mut json, &numbers);
    json
}

/// Adds the numbers that are known to an object.
fn add_numbers(json: &mut Value, numbers: &[(&str, Option<u64>)]) {
    for (name, number) in numbers {
        if let Some(number) = number {
            json[*name] = Value::from(*number);
        }
    }
}

/// Whole microseconds of a duration of the wire. A negative one, which no tollgate sends, is 0.
pub(super) fn us(duration: prost_types::Duration) -> u64 {
    let seconds = u64::try_from(duration.seconds).unwrap_or(0);
    let nanos = u64::try_from(duration.nanos).unwrap_or(0);
    seconds
        .saturating_mul(1_000_000)
        .saturating_add(nanos / 1_000)
}

/// Microseconds as seconds with all digits.
pub(super) fn seconds(us: u64) -> String {
    format!("{}.{:06}s", us / 1_000_000, us % 1_000_000)
}
