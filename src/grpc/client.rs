//! The gRPC client of `tollgate try`.

use std::time::Duration;

use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::pb;
use super::pb::rate_limit_service_client::RateLimitServiceClient;

/// Longest time that `try` waits for a connection, and again for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// An answer, as lines to print.
pub struct Answer {
    /// Whether the request may pass.
    pub allowed: bool,
    /// The server's answer, one `name: value` per line.
    pub text: String,
}

/// Sends one request to the server at `address` (`host:port`). With `peek`, nothing is charged.
///
/// Errors: a sentence that says what went wrong and what to check.
pub async fn ask(address: &str, key: String, plan: String, cost: Option<u64>, peek: bool) -> Result<Answer, String> {
    let mut client = RateLimitServiceClient::new(connect(address).await?);
    let answered = if peek {
        let answer = client.peek(pb::PeekRequest { key, plan, cost }).await;
        answer.map(|answer| answer.into_inner().answer.unwrap_or_default())
    } else {
        let request = pb::ShouldAllowRequest { key, plan, cost, detailed: true, http_headers: false };
        client.should_allow(request).await.map(tonic::Response::into_inner)
    };
    answered.map(|answer| Answer { allowed: answer.allowed, text: print(&answer) }).map_err(|status| describe(&status))
}

async fn connect(address: &str) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.map_err(|_| format!("{address:?} is no address; write host:port"))?;
    let connected = endpoint.connect_timeout(PATIENCE).timeout(PATIENCE).connect().await;
    connected.map_err(|_| format!("nothing answers at {address}; is `tollgate serve` running there?"))
}

fn describe(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

fn print(answer: &pb::ShouldAllowResponse) -> String {
    let mut lines = vec![
        format!("outcome: {}", answer.outcome().as_str_name()),
        format!("decided_by: {}", answer.decided_by().as_str_name()),
    ];
    for limit in &answer.limits {
        let retry = limit.retry_after.map_or_else(String::new, |wait| format!(", retry after {}", seconds(wait)));
        let reset = seconds(limit.reset_after.unwrap_or_default());
        lines.push(format!("limit {}: {} of {} remaining{retry}, fresh in {reset}", limit.name, limit.remaining, limit.limit));
    }
    lines.join("\n")
}

fn seconds(duration: prost_types::Duration) -> String {
    format!("{}.{:06}s", duration.seconds, duration.nanos / 1_000)
}
