//! Counts the answers, the errors and the latencies of a load.

use std::time::Duration;

use hdrhistogram::Histogram;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::RateLimitResponse;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_response::Code;
use tollgate::grpc::pb;
use tollgate::grpc::pb::DecidedBy;
use tollgate::grpc::pb::should_allow_result::Result as Answer;

/// Shortest and longest latency told apart, in nanoseconds, and the digits kept of it.
const LATENCY: (u64, u64, u8) = (1_000, 60_000_000_000, 3);

/// The answer that every call should get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Allowed, by the store or the plan.
    Allowed,
    /// Denied, by the store, the plan or the deny cache.
    Denied,
    /// Decided at all.
    Decision,
}

/// Counts of one span of time.
#[derive(Debug, Clone)]
pub struct Tally {
    expect: Expect,
    /// Decisions answered, expected or not.
    pub decisions: u64,
    /// Of these, by the deny cache.
    pub by_deny_cache: u64,
    /// Calls without an answer, answers that cannot be read, refusals within a batch, and wrong decisions. A decision is wrong by
    /// its outcome, or because the store's failure policy made it.
    pub errors: u64,
    /// Describes the first error.
    pub complaint: Option<String>,
    latency: Histogram<u64>,
}

impl Tally {
    pub(super) fn new(expect: Expect) -> Self {
        let (shortest, longest, digits) = LATENCY;
        let latency =
            Histogram::new_with_bounds(shortest, longest, digits).expect("these bounds are sound");
        Self {
            expect,
            decisions: 0,
            by_deny_cache: 0,
            errors: 0,
            complaint: None,
            latency,
        }
    }

    /// A tally that has counted nothing.
    pub(super) fn fresh(&self) -> Self {
        Self::new(self.expect)
    }

    /// Latency at a quantile of 0 to 1, in microseconds; 0 when nothing was measured.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e3
    }

    /// Records the latency of a call.
    pub(super) fn took(&mut self, latency: Duration) {
        // A minute is longer than any answer is waited for.
        self.latency
            .saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Records an error.
    pub(super) fn failed(&mut self, complaint: impl FnOnce() -> String) {
        self.errors += 1;
        self.complaint.get_or_insert_with(complaint);
    }

    /// Records a result of a batch or stream.
    pub(super) fn result(&mut self, result: Option<&pb::ShouldAllowResult>) {
        match result.and_then(|result| result.result.as_ref()) {
            Some(Answer::Response(response)) => self.response(response),
            Some(Answer::Error(status)) => self.failed(|| format!("refused: {}", status.message)),
            None => self.failed(|| "a result is neither answer nor error".to_owned()),
        }
    }

    /// Records the decision on the one descriptor of a call. Only a store that answered tells when the limit resets.
    pub(super) fn envoy(&mut self, response: &RateLimitResponse) {
        let counted =
            matches!(&response.statuses[..], [status] if status.duration_until_reset.is_some());
        self.decision(response.overall_code() == Code::Ok, counted, || {
            format!("not as expected: {response:?}")
        });
    }

    /// Records the response of `/v1/check` with this head. Only a store that answered tells what remains.
    pub(super) fn http(&mut self, head: &str) {
        let allowed = head.starts_with("HTTP/1.1 200 ");
        self.decision(allowed, head.contains("\r\nratelimit: "), || {
            format!("not as expected: {head}")
        });
    }

    /// Records a decision, and an error if it is not as expected.
    pub(super) fn response(&mut self, response: &pb::ShouldAllowResponse) {
        let decided = match response.decided_by() {
            DecidedBy::Store | DecidedBy::Plan => true,
            DecidedBy::DenyCache => {
                self.by_deny_cache += 1;
                true
            }
            DecidedBy::Unspecified
            | DecidedBy::FailOpen
            | DecidedBy::FailClosed
            | DecidedBy::LocalFallback => false,
        };
        let complaint = || {
            format!(
                "not as expected: {:?} by {:?}",
                response.outcome(),
                response.decided_by()
            )
        };
        self.decision(response.allowed, decided, complaint);
    }

    /// Records a decision, which no failure policy should have made.
    fn decision(&mut self, allowed: bool, decided: bool, complaint: impl FnOnce() -> String) {
        self.decisions += 1;
        let outcome_fits = match self.expect {
            Expect::Allowed => allowed,
            Expect::Denied => !allowed,
            Expect::Decision => true,
        };
        if !(outcome_fits && decided) {
            self.failed(complaint);
        }
    }
}
