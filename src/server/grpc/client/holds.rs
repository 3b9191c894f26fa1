//! `tollgate try --reserve`, `--settle` and `--record`: one call about a hold, or about what has happened.

use std::time::Duration;

use super::report::{AnswerReport, answer, in_words, seconds, us};
use super::{AnswerForm, AskedService, ClientConnection, PrintedAnswer, Question};
use crate::grpc::pb;
use crate::grpc::pb::hold_service_client::HoldServiceClient;
use crate::grpc::pb::rate_limit_service_client::RateLimitServiceClient;

/// What to do in place of a check.
#[derive(Debug, Clone)]
pub enum HoldQuestion {
    /// Hold the cost under this id, for so long; `None`: as the plan says.
    Reserve(String, Option<Duration>),
    /// End the hold of this id with so many units; `None`: as many as were held.
    Settle(String, Option<u64>),
    /// Charge the cost, whatever the limits say.
    Record,
}

impl ClientConnection {
    /// Does it for the subject and plan of `question`. Errors: a sentence that says what went wrong and what to check.
    pub async fn ask_for_hold(
        &self,
        question: &Question,
        hold: &HoldQuestion,
        form: AnswerForm,
    ) -> Result<PrintedAnswer, String> {
        let (allowed, report) = match hold {
            HoldQuestion::Reserve(id, ttl) => self.reserve(question, (id, *ttl)).await?,
            HoldQuestion::Settle(id, actual) => (true, self.settle(question, (id, *actual)).await?),
            HoldQuestion::Record => (true, self.record(question).await?),
        };
        Ok(PrintedAnswer {
            allowed,
            text: report.text(form),
            failure: None,
        })
    }

    async fn reserve(
        &self,
        question: &Question,
        (id, ttl): (&str, Option<Duration>),
    ) -> Result<(bool, AnswerReport), String> {
        let request = reserve_request(question.clone(), id, ttl);
        let mut client = HoldServiceClient::new(self.channel.clone());
        let reserved = self
            .answer(AskedService::ForCallers, client.reserve(request))
            .await?;
        let decided = reserved.answer.unwrap_or_default();
        let mut report = answer(&decided);
        let expires_after_us = reserved.expires_after.map(us);
        report.lines.push(match expires_after_us {
            Some(left_us) => format!("held: for {}", seconds(left_us)),
            None => "held: no".to_owned(),
        });
        tell_repeated(&mut report, reserved.is_repeated);
        report.json["request_id"] = id.into();
        report.json["held"] = reserved.held.into();
        report.json["expires_after_us"] = expires_after_us.into();
        Ok((decided.allowed, report))
    }

    async fn settle(
        &self,
        question: &Question,
        (id, actual): (&str, Option<u64>),
    ) -> Result<AnswerReport, String> {
        let Question {
            key, shard, plan, ..
        } = question.clone();
        let request = pb::SettleRequest {
            key,
            plan,
            request_id: id.to_owned(),
            actual,
            detailed: true,
            shard,
            ..Default::default()
        };
        let mut client = HoldServiceClient::new(self.channel.clone());
        let settled = self
            .answer(AskedService::ForCallers, client.settle(request))
            .await?;
        Ok(settled_report(id, settled))
    }

    async fn record(&self, question: &Question) -> Result<AnswerReport, String> {
        let Question {
            key,
            shard,
            plan,
            cost,
            ..
        } = question.clone();
        let request = pb::RecordRequest {
            key,
            plan,
            cost,
            detailed: true,
            shard,
            ..Default::default()
        };
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        let recorded = self
            .answer(AskedService::ForCallers, client.record(request))
            .await?;
        let mut report = answer(&recorded.answer.unwrap_or_default());
        report
            .lines
            .splice(..2, [format!("recorded: {}", cost.unwrap_or(1))]);
        tell_repeated(&mut report, recorded.is_repeated);
        Ok(report)
    }
}

fn reserve_request(question: Question, id: &str, ttl: Option<Duration>) -> pb::ReserveRequest {
    pb::ReserveRequest {
        key: question.key,
        plan: question.plan,
        cost: question.cost,
        request_id: id.to_owned(),
        // The longest that is parsed fits.
        ttl: ttl.and_then(|ttl| ttl.try_into().ok()),
        detailed: true,
        http_headers: false,
        shard: question.shard,
    }
}

/// What became of the hold of this id, and what is left of the limits.
fn settled_report(id: &str, settled: pb::SettleResponse) -> AnswerReport {
    let outcome = settled.outcome().as_str_name();
    let outcome = outcome
        .trim_start_matches("SETTLE_OUTCOME_")
        .to_ascii_lowercase();
    let mut decided = settled.answer.unwrap_or_default();
    decided.limits = settled
        .limits
        .into_iter()
        .filter_map(|limit| limit.status)
        .collect();
    let mut report = answer(&decided);
    let held = settled.held;
    let actual = settled.actual;
    let returned = settled.returned;
    let excess = settled.excess;
    let lines = [
        format!("settlement: {}", in_words(&outcome)),
        format!("held {held}, used {actual}, returned {returned}, excess {excess}"),
    ];
    // The outcome of a peek is not news of a settle.
    report.lines.splice(..2, lines);
    report.json["request_id"] = id.into();
    report.json["settlement"] = outcome.into();
    report.json["held"] = held.into();
    report.json["actual"] = actual.into();
    report.json["returned"] = returned.into();
    report.json["excess"] = excess.into();
    report
}

fn tell_repeated(report: &mut AnswerReport, is_repeated: bool) {
    if is_repeated {
        report
            .lines
            .push("repeated: nothing was charged".to_owned());
    }
    report.json["repeated"] = is_repeated.into();
}
