//! `tollgate override`: asks the admin service to set, delete or list overrides.

use std::future::Future;

use serde_json::{Map, Value, json};
use tonic::{Code, Response, Status};

use super::admin::{AdminToken, shown, signed};
use super::report::{AnswerReport, us};
use super::{AdminAnswer, AnswerForm, AskedService, ClientConnection};
use crate::grpc::pb;
use crate::grpc::pb::plan_override::{Effect, Subject};
use tollgate_core::utc::Utc;

/// Whose limits are other ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubjectQuestion {
    /// One key.
    Key(String),
    /// All keys that begin so.
    Prefix(String),
}

/// The override to set.
#[derive(Debug, Clone)]
pub struct OverrideQuestion {
    /// The plan.
    pub plan: String,
    /// Whose limits are other ones.
    pub subject: SubjectQuestion,
    /// The plan to use.
    pub use_plan: Option<String>,
    /// In its place: other numbers.
    pub quotas: Vec<QuotaQuestion>,
    /// When it ends, in microseconds since 1970.
    pub until_us: Option<u64>,
    /// When it ends, in microseconds from when it is set.
    pub after_us: Option<u64>,
    /// Why.
    pub reason: String,
    /// The version that the present one must have.
    pub if_version: Option<u64>,
}

/// Other numbers for one limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct QuotaQuestion {
    /// Name of the limit; empty for the only one.
    pub name: String,
    /// Its quota.
    pub quota: Option<u64>,
    /// Its burst.
    pub burst: Option<u64>,
}

/// Maximum number of pages that a list asks for: as many overrides as there may be, of both sources.
const PAGES_MAX: usize = 32;
const PAGE_SIZE: u32 = 1_000;

impl ClientConnection {
    /// Sets an override. Errors: a sentence.
    pub async fn set_override(
        &self,
        question: OverrideQuestion,
        form: AnswerForm,
        token: Option<&AdminToken>,
    ) -> Result<AdminAnswer, String> {
        let request = set_request(question);
        let mut admin = self.admin();
        let set = self
            .change(admin.set_override(signed(request, token)))
            .await?;
        Ok(match set {
            Ok(set) => answer(true, set_report(set), form),
            Err(refused) => answer(false, refused, form),
        })
    }

    /// Deletes an override. Errors: a sentence.
    pub async fn delete_override(
        &self,
        (plan, subject): (String, SubjectQuestion),
        if_version: Option<u64>,
        form: AnswerForm,
        token: Option<&AdminToken>,
    ) -> Result<AdminAnswer, String> {
        let subject = match subject {
            SubjectQuestion::Key(text) => pb::delete_override_request::Subject::Key(text),
            SubjectQuestion::Prefix(text) => pb::delete_override_request::Subject::KeyPrefix(text),
        };
        let request = pb::DeleteOverrideRequest {
            plan,
            subject: Some(subject),
            if_version,
        };
        let mut admin = self.admin();
        let deleted = admin.delete_override(signed(request, token));
        let pb::DeleteOverrideResponse { existed, version } = match self.change(deleted).await? {
            Ok(deleted) => deleted,
            Err(refused) => return Ok(answer(false, refused, form)),
        };
        let line = match existed {
            true => format!("deleted: version {version}"),
            false => "nothing to delete: there is no such override".to_owned(),
        };
        let report = AnswerReport {
            lines: vec![line],
            json: json!({ "existed": existed, "version": version }),
        };
        Ok(answer(existed, report, form))
    }

    /// Lists overrides, of a plan, and of those what matches a key. Errors: a sentence.
    pub async fn list_overrides(
        &self,
        plan: String,
        matching_key: String,
        form: AnswerForm,
        token: Option<&AdminToken>,
    ) -> Result<AdminAnswer, String> {
        let listed = self.all_pages(plan, matching_key, token).await?;
        let age_us = listed.age.map_or(0, us);
        let mut lines: Vec<String> = listed.entries.iter().map(line).collect();
        lines.push(format!(
            "{} listed; version {}, confirmed {} ago",
            listed.entries.len(),
            listed.version,
            shown(age_us)
        ));
        let json = json!({
            "entries": listed.entries.iter().map(entry_json).collect::<Vec<_>>(),
            "version": listed.version,
            "age_us": age_us,
        });
        Ok(answer(true, AnswerReport { lines, json }, form))
    }

    /// The last page, with the overrides of all pages.
    async fn all_pages(
        &self,
        plan: String,
        matching_key: String,
        token: Option<&AdminToken>,
    ) -> Result<pb::ListOverridesResponse, String> {
        let mut entries = Vec::new();
        let mut last = pb::ListOverridesResponse::default();
        for _ in 0..PAGES_MAX {
            let request = pb::ListOverridesRequest {
                plan: plan.clone(),
                matching_key: matching_key.clone(),
                page_size: PAGE_SIZE,
                page_token: last.next_page_token,
            };
            let mut admin = self.admin();
            let listed = admin.list_overrides(signed(request, token));
            last = self.answer(AskedService::Admin, listed).await?;
            entries.append(&mut last.entries);
            if last.next_page_token.is_empty() {
                break;
            }
        }
        last.entries = entries;
        Ok(last)
    }
}

impl ClientConnection {
    /// The answer to a change, or why the server refuses it. Errors: a sentence, where the server did not answer or could not do it.
    async fn change<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<Result<T, AnswerReport>, String> {
        let status = match self.answered(call).await? {
            Ok(answer) => return Ok(Ok(answer)),
            Err(status) => status,
        };
        match status.code() {
            Code::InvalidArgument | Code::NotFound | Code::Aborted | Code::FailedPrecondition => {
                Ok(Err(AnswerReport {
                    lines: vec![format!("refused: {}", status.message())],
                    json: json!({ "refused": status.message() }),
                }))
            }
            _ => Err(self.reason(AskedService::Admin, &status)),
        }
    }
}

fn set_request(question: OverrideQuestion) -> pb::SetOverrideRequest {
    let subject = match question.subject {
        SubjectQuestion::Key(text) => Subject::Key(text),
        SubjectQuestion::Prefix(text) => Subject::KeyPrefix(text),
    };
    let entry = pb::PlanOverride {
        plan: question.plan,
        subject: Some(subject),
        effect: Some(effect(question.use_plan, question.quotas)),
        expires_at: question.until_us.map(timestamp),
        reason: question.reason,
        ..pb::PlanOverride::default()
    };
    pb::SetOverrideRequest {
        entry: Some(entry),
        expires_after: question.after_us.map(crate::grpc::convert::duration),
        if_version: question.if_version,
    }
}

/// The plan to use, or other numbers in its place.
fn effect(use_plan: Option<String>, quotas: Vec<QuotaQuestion>) -> Effect {
    let limits = quotas
        .into_iter()
        .map(|QuotaQuestion { name, quota, burst }| pb::LimitQuota { name, quota, burst });
    match use_plan {
        Some(name) => Effect::UsePlan(name),
        None => Effect::Quotas(pb::LimitQuotas {
            limits: limits.collect(),
        }),
    }
}

fn set_report(set: pb::SetOverrideResponse) -> AnswerReport {
    let pb::SetOverrideResponse { entry, shared } = set;
    let entry = entry.unwrap_or_default();
    let mut lines = vec![format!("set: version {}", entry.version)];
    lines.push(line(&entry));
    if !shared {
        lines.push(
            "the store is embedded: no other replica has it, and it ends with this process"
                .to_owned(),
        );
    }
    let json = json!({ "entry": entry_json(&entry), "shared": shared });
    AnswerReport { lines, json }
}

fn answer(yes: bool, report: AnswerReport, form: AnswerForm) -> AdminAnswer {
    AdminAnswer {
        yes,
        text: report.text(form),
    }
}

fn timestamp(at_us: u64) -> prost_types::Timestamp {
    let duration = crate::grpc::convert::duration(at_us);
    prost_types::Timestamp {
        seconds: duration.seconds,
        nanos: duration.nanos,
    }
}

/// A time of a message, in microseconds since 1970.
fn timestamp_us(at: prost_types::Timestamp) -> u64 {
    us(prost_types::Duration {
        seconds: at.seconds,
        nanos: at.nanos,
    })
}

/// An override in one line.
fn line(entry: &pb::PlanOverride) -> String {
    let subject = subject_text(entry);
    let effect = effect_text(entry);
    let until = entry.expires_at.map_or_else(String::new, |at| {
        format!(", until {}", Utc(timestamp_us(at)))
    });
    let by = match entry.source() {
        pb::OverrideSource::File => "of the config".to_owned(),
        _ => format!("version {}", entry.version),
    };
    let reason = match entry.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    let problem = match entry.problem.as_str() {
        "" => String::new(),
        problem => format!("; without effect: {problem}"),
    };
    let plan = &entry.plan;
    format!("plan {plan}, {subject}: {effect}{until} ({by}){reason}{problem}")
}

fn subject_text(entry: &pb::PlanOverride) -> String {
    match &entry.subject {
        Some(Subject::Key(text)) => format!("key {text}"),
        Some(Subject::KeyPrefix(text)) => format!("keys that begin with {text}"),
        None => "no key".to_owned(),
    }
}

fn effect_text(entry: &pb::PlanOverride) -> String {
    match &entry.effect {
        Some(Effect::UsePlan(name)) => format!("plan {name}"),
        Some(Effect::Quotas(quotas)) => {
            let limits: Vec<String> = quotas.limits.iter().map(limit).collect();
            limits.join(", ")
        }
        None => "nothing".to_owned(),
    }
}

fn limit(limit: &pb::LimitQuota) -> String {
    let name = match limit.name.as_str() {
        "" => String::new(),
        name => format!("{name} "),
    };
    let quota = limit.quota.map(|quota| format!("quota {quota}"));
    let burst = limit.burst.map(|burst| format!("burst {burst}"));
    let numbers: Vec<String> = quota.into_iter().chain(burst).collect();
    format!("{name}{}", numbers.join(" "))
}

/// An override with the names of the config, and times in microseconds. What is not set is left out.
fn entry_json(entry: &pb::PlanOverride) -> Value {
    let mut json = Map::new();
    let mut put = |name: &str, value: Value| json.insert(name.to_owned(), value);
    put("plan", entry.plan.as_str().into());
    if let Some((name, subject)) = subject_json(entry) {
        put(name, subject);
    }
    if let Some((name, effect)) = effect_json(entry) {
        put(name, effect);
    }
    put("source", source_name(entry).into());
    put("version", entry.version.into());
    for (name, at) in [
        ("expires_at_us", entry.expires_at),
        ("set_at_us", entry.set_at),
    ] {
        if let Some(at) = at {
            put(name, timestamp_us(at).into());
        }
    }
    for (name, text) in [("reason", &entry.reason), ("problem", &entry.problem)] {
        if !text.is_empty() {
            put(name, text.as_str().into());
        }
    }
    Value::Object(json)
}

fn subject_json(entry: &pb::PlanOverride) -> Option<(&'static str, Value)> {
    Some(match entry.subject.as_ref()? {
        Subject::Key(text) => ("key", text.as_str().into()),
        Subject::KeyPrefix(text) => ("key_prefix", text.as_str().into()),
    })
}

fn effect_json(entry: &pb::PlanOverride) -> Option<(&'static str, Value)> {
    Some(match entry.effect.as_ref()? {
        Effect::UsePlan(name) => ("use_plan", name.as_str().into()),
        Effect::Quotas(quotas) => ("quotas", quotas.limits.iter().map(limit_json).collect()),
    })
}

fn source_name(entry: &pb::PlanOverride) -> &'static str {
    match entry.source() {
        pb::OverrideSource::File => "file",
        _ => "runtime",
    }
}

fn limit_json(limit: &pb::LimitQuota) -> Value {
    let mut json = Map::new();
    if !limit.name.is_empty() {
        json.insert("name".to_owned(), limit.name.as_str().into());
    }
    for (name, number) in [("quota", limit.quota), ("burst", limit.burst)] {
        if let Some(number) = number {
            json.insert(name.to_owned(), number.into());
        }
    }
    Value::Object(json)
}
