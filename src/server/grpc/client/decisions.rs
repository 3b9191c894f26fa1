//! `tollgate try`: asks one question, once or several times.

use serde_json::json;

use super::report::{AnswerReport, answer, seconds, us};
use super::{AnswerForm, AskedService, ClientConnection};
use crate::grpc::pb;
use crate::grpc::pb::rate_limit_service_client::RateLimitServiceClient;

/// What to ask.
#[derive(Debug, Clone)]
pub struct Question {
    /// The subject to count.
    pub key: String,
    /// The shard that it belongs to; empty for none.
    pub shard: String,
    /// The plan to decide by.
    pub plan: String,
    /// Units to ask for; `None`: 1.
    pub cost: Option<u64>,
    /// Whether to take nothing.
    pub peek: bool,
}

/// The answer, or the sum of several answers.
pub struct PrintedAnswer {
    /// Whether every request may pass.
    pub allowed: bool,
    /// The text to print.
    pub text: String,
    /// Why the questions ended early, as a sentence.
    pub failure: Option<String>,
}

/// The sum of several answers.
#[derive(Default)]
struct Sum {
    asked: u64,
    allowed: u64,
    /// Number of the first denied request, from 1, and its wait.
    first_denied: Option<(u64, Option<u64>)>,
    last: Option<pb::ShouldAllowResponse>,
}

impl ClientConnection {
    /// Asks once. Errors: a sentence that says what went wrong and what to check.
    pub async fn ask(
        &self,
        question: &Question,
        form: AnswerForm,
    ) -> Result<PrintedAnswer, String> {
        let answered = self.ask_once(question).await?;
        Ok(PrintedAnswer {
            allowed: answered.allowed,
            text: answer(&answered).text(form),
            failure: None,
        })
    }

    /// Asks `times`, one request after the other, and adds the answers up. The first failure ends it.
    pub async fn ask_repeatedly(
        &self,
        question: &Question,
        times: u64,
        form: AnswerForm,
    ) -> PrintedAnswer {
        let mut sum = Sum::default();
        let mut failure = None;
        while sum.asked < times && failure.is_none() {
            match self.ask_once(question).await {
                Ok(answered) => sum.add(answered),
                Err(sentence) => failure = Some(sentence),
            }
        }
        PrintedAnswer {
            allowed: sum.allowed == sum.asked,
            text: sum.report().text(form),
            failure,
        }
    }

    async fn ask_once(&self, question: &Question) -> Result<pb::ShouldAllowResponse, String> {
        if question.peek {
            return self.peek(question).await;
        }
        let request = pb::ShouldAllowRequest {
            key: question.key.clone(),
            plan: question.plan.clone(),
            cost: question.cost,
            detailed: true,
            shard: question.shard.clone(),
            ..Default::default()
        };
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        self.answer(AskedService::ForCallers, client.should_allow(request))
            .await
    }

    /// Asks without taking anything.
    async fn peek(&self, question: &Question) -> Result<pb::ShouldAllowResponse, String> {
        let request = pb::PeekRequest {
            key: question.key.clone(),
            plan: question.plan.clone(),
            cost: question.cost,
            shard: question.shard.clone(),
        };
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        let peeked = self
            .answer(AskedService::ForCallers, client.peek(request))
            .await?;
        Ok(peeked.answer.unwrap_or_default())
    }
}

impl Sum {
    fn add(&mut self, answer: pb::ShouldAllowResponse) {
        self.asked += 1;
        self.allowed += u64::from(answer.allowed);
        if !answer.allowed {
            self.first_denied
                .get_or_insert((self.asked, answer.retry_after.map(us)));
        }
        self.last = Some(answer);
    }

    fn report(&self) -> AnswerReport {
        let asked = self.asked;
        let allowed = self.allowed;
        let denied = asked - allowed;
        let mut report = AnswerReport {
            lines: vec![
                format!("asked: {asked}"),
                format!("allowed: {allowed}"),
                format!("denied: {denied}"),
            ],
            json: json!({ "asked": asked, "allowed": allowed, "denied": denied }),
        };
        if let Some((request, wait_us)) = self.first_denied {
            add_first_denied(&mut report, request, wait_us);
        }
        if let Some(last) = &self.last {
            let last = answer(last);
            report.lines.push("last answer:".to_owned());
            let lines = last.lines.into_iter();
            report.lines.extend(lines.map(|line| format!("  {line}")));
            report.json["last"] = last.json;
        }
        report
    }
}

fn add_first_denied(report: &mut AnswerReport, request: u64, wait_us: Option<u64>) {
    let after = wait_us.map_or_else(String::new, |wait_us| {
        format!(", retry after {}", seconds(wait_us))
    });
    report
        .lines
        .push(format!("first denial: request {request}{after}"));
    report.json["first_denied"] = json!({ "request": request });
    if let Some(wait_us) = wait_us {
        report.json["first_denied"]["retry_after_us"] = wait_us.into();
    }
}
