//! `tollgate reset`, `refund`, `explain`, `reload` and `replicas`: calls of the admin service.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};

use super::report::{self, AnswerReport, limit_json, us};
use super::{AnswerForm, AskedService, ClientConnection};
use crate::grpc::pb;
use crate::grpc::pb::admin_service_client::AdminServiceClient;
use tollgate_core::duration::Shown;

/// What an admin command is about.
#[derive(Debug, Clone)]
pub struct AdminQuestion {
    /// The subject that was counted.
    pub key: String,
    /// The shard that it belongs to; empty for none.
    pub shard: String,
    /// The plan that it was counted by.
    pub plan: String,
    /// How the answer is written.
    pub form: AnswerForm,
}

/// The answer to an admin command.
pub struct AdminAnswer {
    /// Whether there was something to forget or to give back, or the next request would be allowed.
    pub yes: bool,
    /// The text to print.
    pub text: String,
}

/// The token that admin calls carry. It has no `Debug`, so that it cannot get into a message by accident.
pub struct AdminToken(MetadataValue<Ascii>);

impl AdminToken {
    /// Uses the contents of a token's file. Errors: a sentence that does not repeat them.
    pub fn new(contents: &[u8]) -> Result<Self, String> {
        let mut bearer = b"Bearer ".to_vec();
        bearer.extend_from_slice(contents.trim_ascii());
        let value = MetadataValue::try_from(bearer.as_slice());
        let value = value.map_err(|_| {
            "the file of --token-file holds what no header can carry; it is one line of ASCII"
                .to_owned()
        });
        value.map(|mut value| {
            value.set_sensitive(true);
            Self(value)
        })
    }
}

impl ClientConnection {
    /// Makes a key as fresh. Errors: a sentence.
    pub async fn reset(
        &self,
        question: &AdminQuestion,
        token: Option<&AdminToken>,
    ) -> Result<AdminAnswer, String> {
        let AdminQuestion {
            key,
            shard,
            plan,
            form,
        } = question.clone();
        let request = signed(pb::ResetRequest { key, plan, shard }, token);
        let existed = self
            .answer(AskedService::Admin, self.admin().reset(request))
            .await?
            .existed;
        let line = if existed {
            "reset: what the key used is forgotten"
        } else {
            "nothing to reset: the key had used nothing"
        };
        let report = AnswerReport {
            lines: vec![line.to_owned()],
            json: json!({ "existed": existed }),
        };
        Ok(AdminAnswer {
            yes: existed,
            text: report.text(form),
        })
    }

    /// Gives units back. Errors: a sentence.
    pub async fn refund(
        &self,
        question: &AdminQuestion,
        cost: Option<u64>,
        token: Option<&AdminToken>,
    ) -> Result<AdminAnswer, String> {
        let AdminQuestion {
            key,
            shard,
            plan,
            form,
        } = question.clone();
        let request = signed(
            pb::RefundRequest {
                key,
                plan,
                cost,
                shard,
            },
            token,
        );
        let answer = self
            .answer(AskedService::Admin, self.admin().refund(request))
            .await?;
        Ok(AdminAnswer {
            yes: answer.refunded > 0,
            text: refunded(&answer).text(form),
        })
    }

    /// Explains where a key stands. Errors: a sentence.
    pub async fn explain(
        &self,
        question: &AdminQuestion,
        token: Option<&AdminToken>,
    ) -> Result<AdminAnswer, String> {
        let AdminQuestion {
            key,
            shard,
            plan,
            form,
        } = question.clone();
        let request = signed(pb::ExplainRequest { key, plan, shard }, token);
        let answer = self
            .answer(AskedService::Admin, self.admin().explain(request))
            .await?;
        let yes = answer.next.as_ref().is_some_and(|next| next.allowed);
        Ok(AdminAnswer {
            yes,
            text: explained(&answer).text(form),
        })
    }

    /// Has the server take up its config file. Errors: a sentence, also when the config has errors and the plans stay.
    pub async fn reload(
        &self,
        form: AnswerForm,
        token: Option<&AdminToken>,
    ) -> Result<AdminAnswer, String> {
        let request = signed(pb::ReloadConfigRequest {}, token);
        let answer = self
            .answer(AskedService::Admin, self.admin().reload_config(request))
            .await?;
        Ok(AdminAnswer {
            yes: true,
            text: reloaded(&answer).text(form),
        })
    }

    /// Asks how many replicas share each quota while the store cannot decide. Errors: a sentence.
    pub async fn replicas(
        &self,
        form: AnswerForm,
        token: Option<&AdminToken>,
    ) -> Result<AdminAnswer, String> {
        let request = signed(pb::ReplicasRequest {}, token);
        let answer = self
            .answer(AskedService::Admin, self.admin().replicas(request))
            .await?;
        Ok(AdminAnswer {
            yes: true,
            text: replicas(&answer).text(form),
        })
    }

    pub(super) fn admin(&self) -> AdminServiceClient<tonic::transport::Channel> {
        AdminServiceClient::new(self.channel.clone())
    }
}

pub(super) fn signed<T>(message: T, token: Option<&AdminToken>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(AdminToken(value)) = token {
        request
            .metadata_mut()
            .insert("authorization", value.clone());
    }
    request
}

fn refunded(answer: &pb::RefundResponse) -> AnswerReport {
    let mut lines = vec![format!("refunded: {}", answer.refunded)];
    let mut limits = Vec::new();
    for limit in &answer.limits {
        let status = limit.status.clone().unwrap_or_default();
        lines.push(format!(
            "limit {}: {} refunded, {} of {} remaining",
            status.name, limit.refunded, status.remaining, status.limit
        ));
        let mut json = limit_json(&status);
        json["refunded"] = limit.refunded.into();
        limits.push(json);
    }
    AnswerReport {
        lines,
        json: json!({ "refunded": answer.refunded, "limits": limits }),
    }
}

fn reloaded(answer: &pb::ReloadConfigResponse) -> AnswerReport {
    let pb::ReloadConfigResponse {
        config_hash,
        added,
        removed,
        edited,
        restart_needed,
    } = answer;
    let mut lines = vec![format!(
        "reloaded: config {config_hash}; plans: {added} added, {removed} removed, {edited} edited"
    )];
    if !restart_needed.is_empty() {
        lines.push(format!(
            "changed, and taken up by a restart only: {}",
            restart_needed.join(", ")
        ));
    }
    let json = json!({
        "config_hash": config_hash,
        "added": added,
        "removed": removed,
        "edited": edited,
        "restart_needed": restart_needed,
    });
    AnswerReport { lines, json }
}

fn replicas(answer: &pb::ReplicasResponse) -> AnswerReport {
    let count = answer.replicas;
    let all = answer.redis_connections;
    let (source, reason) = match answer.source() {
        pb::ReplicaSource::Config => ("config", "as store.expected_replicas says"),
        pb::ReplicaSource::Alone => ("alone", "since the embedded store is shared with nobody"),
        pb::ReplicaSource::Redis if all > 0 && all == answer.redis_connections_open => {
            ("redis", "the number that Redis gave last")
        }
        pb::ReplicaSource::Redis | pb::ReplicaSource::Unspecified => {
            ("redis", "as they announce themselves in Redis")
        }
    };
    let plural = if count == 1 { " has" } else { "s share" };
    let mut lines = vec![format!(
        "{count} replica{plural} each quota while the store cannot decide, {reason}"
    )];
    lines.extend(connections(all, answer.redis_connections_open));
    let json = json!({
        "replicas": count,
        "source": source,
        "redis_connections": all,
        "redis_connections_open": answer.redis_connections_open,
    });
    AnswerReport { lines, json }
}

/// The line about connections to Redis, where there are any.
fn connections(all: u32, open: u32) -> Option<String> {
    (all > 0).then(|| format!("connections to Redis: {all}, of which {open} do not ask it now"))
}

fn explained(answer: &pb::ExplainResponse) -> AnswerReport {
    let mut lines = vec![
        answer.sentence.clone(),
        format!("plan {}, counted as {}", answer.plan, answer.counts_as),
    ];
    if !answer.key_hash.is_empty() {
        lines.push(format!("hash of the key: {}", answer.key_hash));
    }
    lines.extend(redis_lines(&answer.redis_names));
    lines.extend(connections(
        answer.redis_connections,
        answer.redis_connections_open,
    ));
    if answer.workers_denying > 0 {
        lines.push(format!(
            "workers that deny from memory: {}",
            answer.workers_denying
        ));
    }
    lines.extend(answer.limits.iter().flat_map(limit_lines));
    lines.extend(answer.candidate.iter().flat_map(candidate_lines));
    AnswerReport {
        lines,
        json: explained_json(answer),
    }
}

fn redis_lines(names: &[String]) -> impl Iterator<Item = String> {
    names.iter().map(|name| format!("in Redis: {name}"))
}

fn candidate_lines(candidate: &pb::CandidateExplanation) -> Vec<String> {
    let outcome = if candidate.allowed { "allow" } else { "deny" };
    let mut lines = vec![format!(
        "candidate {}: it would {outcome} the next request of cost 1",
        candidate.plan
    )];
    lines.extend(redis_lines(&candidate.redis_names));
    lines.extend(candidate.limits.iter().flat_map(limit_lines));
    lines
}

fn explained_json(answer: &pb::ExplainResponse) -> Value {
    let next = answer.next.as_ref().map(|next| report::answer(next).json);
    json!({
        "sentence": answer.sentence,
        "key_hash": answer.key_hash,
        "next": next,
        "limits": answer.limits.iter().map(limit_explanation).collect::<Vec<_>>(),
        "plan": answer.plan,
        "counts_as": answer.counts_as,
        "redis_names": answer.redis_names,
        "workers_denying": answer.workers_denying,
        "redis_connections": answer.redis_connections,
        "redis_connections_open": answer.redis_connections_open,
        "candidate": answer.candidate.as_ref().map(candidate_json),
    })
}

fn candidate_json(candidate: &pb::CandidateExplanation) -> Value {
    json!({
        "plan": candidate.plan,
        "allowed": candidate.allowed,
        "limits": candidate.limits.iter().map(limit_explanation).collect::<Vec<_>>(),
        "redis_names": candidate.redis_names,
    })
}

fn limit_lines(explained: &pb::LimitExplanation) -> Vec<String> {
    let status = explained.status.clone().unwrap_or_default();
    let limit = explained.limit.clone().unwrap_or_default();
    let algorithm = algorithm(&limit);
    // A concurrency limit has none.
    let window = status.window.map(us).filter(|window_us| *window_us > 0);
    let window = window.map_or_else(String::new, |window_us| format!(", {}", shown(window_us)));
    let head = format!(
        "limit {}: {} of {} used, {} remaining ({algorithm}{window})",
        status.name, explained.used, status.limit, status.remaining
    );
    let blocked = status
        .blocked_for
        .map(|left| format!("  blocked for {} more", shown(us(left))));
    std::iter::once(head)
        .chain(blocked)
        .chain(explained.releases.iter().map(release_line))
        .collect()
}

fn release_line(release: &pb::Release) -> String {
    let plural = if release.units == 1 { "" } else { "s" };
    format!(
        "  {} unit{plural} can be taken in {}",
        release.units,
        shown(release.after.map_or(0, us))
    )
}

fn limit_explanation(explained: &pb::LimitExplanation) -> Value {
    let mut json = limit_json(&explained.status.clone().unwrap_or_default());
    json["used"] = explained.used.into();
    json["algorithm"] = algorithm(&explained.limit.clone().unwrap_or_default()).into();
    let release = |release: &pb::Release| json!({ "units": release.units, "after_us": release.after.map_or(0, us) });
    json["releases"] = explained.releases.iter().map(release).collect();
    json
}

/// The name of a limit's algorithm in the config.
pub(super) fn algorithm(limit: &pb::Limit) -> String {
    limit
        .algorithm()
        .as_str_name()
        .trim_start_matches("ALGORITHM_")
        .to_ascii_lowercase()
}

/// A duration for people, rounded up to a millisecond.
pub(super) fn shown(us: u64) -> Shown {
    Shown(Duration::from_millis(us.div_ceil(1_000)))
}
