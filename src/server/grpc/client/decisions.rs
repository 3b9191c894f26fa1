//! `tollgate try`: asks one question, once or several times.

use serde_json::{Value, json};

use super::report::{AnswerReport, answer, us};
use super::{AnswerForm, AskedService, ClientConnection, report};
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
        let (mut sum, mut failure) = (Sum::default(), None);
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
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        let Question {
            key,
            shard,
            plan,
            cost,
            peek,
        } = question.clone();
        if peek {
            let peeked = self
                .answer(
                    AskedService::ForCallers,
                    client.peek(pb::PeekRequest {
                        key,
                        plan,
                        cost,
                        shard,
                    }),
                )
                .await?;
            return Ok(peeked.answer.unwrap_or_default());
        }
        let request = pb::ShouldAllowRequest {
            key,
            plan,
            cost,
            detailed: true,
            shard,
            ..Default::default()
        };
        self.answer(AskedService::ForCallers, client.should_allow(request))
            .await
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
        let Self {
            asked,
            allowed,
            first_denied,
            last,
        } = self;
        let denied = asked - allowed;
        let mut lines = vec![
            format!("asked: {asked}"),
            format!("allowed: {allowed}"),
            format!("denied: {denied}"),
        ];
        let mut json = json!({ "asked": asked, "allowed": allowed, "denied": denied });
        if let Some((request, wait)) = first_denied {
            let after = wait.map_or_else(String::new, |wait| {
                format!(", retry after {}", report::seconds(wait))
            });
            lines.push(format!("first denial: request {request}{after}"));
            json["first_denied"] = json!({ "request": request });
            if let Some(wait) = wait {
                json["first_denied"]["retry_after_us"] = Value::from(*wait);
            }
        }
        if let Some(last) = last {
            let AnswerReport {
                lines: of_last,
                json: last,
            } = answer(last);
            lines.push("last answer:".to_owned());
            lines.extend(of_last.into_iter().map(|line| format!("  {line}")));
            json["last"] = last;
        }
        AnswerReport { lines, json }
    }
}
