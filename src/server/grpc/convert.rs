//! Converts gRPC messages to domain types and back. Only this module knows both.

mod explanation;
mod holds;
mod overrides;
mod plans;
mod timeout;
mod top;

use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::admin::{ReloadOutcome, Reloaded};
use super::pb::{should_allow_joint_response, should_allow_response};
use super::{lenient_decode, pb};
use crate::limiter::{AdminError, BATCH_MAX, JointRefusal, Limiter, Refunded, Refusal, RequestId};
pub(super) use explanation::{explained, replicas};
pub(super) use holds::{extend, extended, lost, optional_id, record, reserve, settle, settled};
pub(super) use overrides::{
    deletion, new_override, not_changed, override_list, override_query, plan_override,
};
pub(super) use plans::plan;
pub(super) use timeout::caller_deadline;
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::{DecidedBy, Decision, LimitStatus, Outcome};
use tollgate_core::headers::{HeaderForm, headers};
use tollgate_core::joint::{JointDecision, REQUESTS_MAX};
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::{Plan, check_requested_name};
use tollgate_store::{Check, StoreError};
pub(super) use top::{no_top, top, top_query};

/// Wait suggested to a caller refused because of overload: several times what the store needs for all waiting requests.
const RETRY_OVERLOADED_AFTER: Duration = Duration::from_millis(100);

/// Converts a request. Errors: INVALID_ARGUMENT, with what is wrong and what would be right.
pub(super) fn check_request(request: pb::ShouldAllowRequest) -> Result<Check<String>, Status> {
    let pb::ShouldAllowRequest {
        key,
        plan,
        cost,
        shard,
        ..
    } = request;
    let key = Key::new(key).and_then(|key| key.in_shard(&shard));
    let key = key.map_err(|error| Status::invalid_argument(error.to_string()))?;
    check_requested_name(&plan).map_err(Status::invalid_argument)?;
    let cost = cost
        .map_or(Ok(Cost::ONE), Cost::new)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok(Check {
        key,
        plan,
        cost,
        mode: Mode::Charge,
    })
}

/// Checks the key, its shard and the plan's name of an admin request. Errors: as [`check_request`].
pub(super) fn subject(key: String, shard: String, plan: String) -> Result<(Key, String), Status> {
    check_request(pb::ShouldAllowRequest {
        key,
        plan,
        shard,
        ..Default::default()
    })
    .map(|check| (check.key, check.plan))
}

/// Converts the units to give back. Errors: INVALID_ARGUMENT.
pub(super) fn refund_cost(units: Option<u64>) -> Result<Cost, Status> {
    match units {
        Some(0) => Err(Status::invalid_argument(
            "cost is 0: leave it out to give back 1 unit, or send 1 or more",
        )),
        Some(units) => {
            Cost::new(units).map_err(|error| Status::invalid_argument(error.to_string()))
        }
        None => Ok(Cost::ONE),
    }
}

/// What a request wants in its answer beside the decision.
pub(super) struct AnswerOptions {
    /// Every limit of the plan.
    pub detailed: bool,
    /// Header fields.
    pub http_headers: bool,
    /// The id by which the request may be sent again.
    pub id: Option<RequestId>,
}

impl AnswerOptions {
    pub(super) fn from_request(request: &pb::ShouldAllowRequest) -> Self {
        Self {
            detailed: request.detailed,
            http_headers: request.http_headers,
            id: None,
        }
    }
}

/// For each request of a batch, in its order: what a valid request wants, or the error of an invalid one.
pub(super) type Parsed = Vec<Result<AnswerOptions, Status>>;

/// Converts each request of a batch on its own, so that an invalid one does not fail the others. The second list holds the
/// checks of the valid requests only.
pub(super) fn check_requests(
    requests: Vec<pb::ShouldAllowRequest>,
) -> (Parsed, Vec<Check<String>>) {
    let mut checks = Vec::with_capacity(requests.len());
    let parse = |request: pb::ShouldAllowRequest| {
        let mut options = AnswerOptions::from_request(&request);
        options.id = optional_id(&request.request_id)?;
        if lenient_decode::is_unreadable(&request) {
            return Err(Status::invalid_argument(lenient_decode::ERROR_TEXT));
        }
        check_request(request).map(|check| {
            checks.push(check);
            options
        })
    };
    let parsed = requests.into_iter().map(parse).collect();
    (parsed, checks)
}

/// Converts the requests of a joint decision, and what each wants in its answer. Errors: INVALID_ARGUMENT, with the place.
pub(super) fn joint_checks(
    requests: Vec<pb::ShouldAllowRequest>,
    peek: bool,
) -> Result<(Vec<Check<String>>, Vec<AnswerOptions>), Status> {
    if !(1..=REQUESTS_MAX).contains(&requests.len()) {
        return Err(Status::invalid_argument(format!(
            "the joint decision has {} requests: send 1 to {REQUESTS_MAX}",
            requests.len()
        )));
    }
    let options = requests.iter().map(AnswerOptions::from_request).collect();
    let mut checks = Vec::with_capacity(requests.len());
    for (index, request) in requests.into_iter().enumerate() {
        if !request.request_id.is_empty() {
            return Err(Status::invalid_argument(format!(
                "requests[{index}].request_id is set: requests of a joint decision have none; leave it out"
            )));
        }
        let check = check_request(request).map_err(|status| {
            Status::invalid_argument(format!("requests[{index}].{}", status.message()))
        })?;
        let mode = if peek { Mode::Peek } else { Mode::Charge };
        checks.push(Check { mode, ..check });
    }
    Ok((checks, options))
}

/// The status of a joint decision that was not made.
pub(super) fn joint_refusal(refused: &JointRefusal) -> Status {
    match refused.refusal {
        Refusal::UnknownPlan(_) => Status::not_found(refused.to_string()),
        Refusal::NeedsReserve(_) => Status::failed_precondition(refused.to_string()),
        ref refusal => self::refusal(refusal),
    }
}

/// Converts a joint decision, whose requests were decided by these plans.
pub(super) fn joint_response(
    joint: &JointDecision,
    plans: &[Arc<Plan>],
    options: &[AnswerOptions],
    form: HeaderForm,
) -> pb::ShouldAllowJointResponse {
    let decided = joint.decisions.iter().zip(plans).zip(options);
    let responses = decided.map(|((decision, plan), options)| {
        let mut response = response(decision, options.detailed);
        if options.http_headers {
            response.http_headers = http_headers(decision, plan, form);
        }
        response
    });
    pb::ShouldAllowJointResponse {
        allowed: joint.allowed(),
        outcome: outcome(joint.outcome).into(),
        // There are eight at most.
        binding: u32::try_from(joint.binding).unwrap_or_default(),
        retry_after: joint.retry_after_us.map(duration),
        responses: responses.collect(),
        http_headers: Vec::new(),
    }
}

/// Returns one result per request, given the decisions on the valid ones and the plans that decided.
pub(super) fn results(
    parsed: &Parsed,
    decisions: &[Result<(Decision, Arc<Plan>), Refusal>],
    form: HeaderForm,
) -> Vec<pb::ShouldAllowResult> {
    let mut decisions = decisions.iter();
    let mut next = |options| match decisions.next() {
        Some(decided) => result(decided, options, form),
        None => error_result(&Status::internal("a request of the batch got no answer")),
    };
    parsed
        .iter()
        .map(|parsed| parsed.as_ref().map_or_else(error_result, &mut next))
        .collect()
}

/// Maximum number of bytes of a limit's part of an answer, or of a header field for it: its name and some numbers.
const LIMIT_ANSWER_BYTES: usize = 256;

/// Maximum number of bytes that the parts of answers take for which `requests` ask beside the decision, by the plans in force.
pub(super) fn extra_answer_bytes<S>(
    requests: &[pb::ShouldAllowRequest],
    limiter: &Limiter<S>,
) -> usize {
    let asks = |request: &&pb::ShouldAllowRequest| request.detailed || request.http_headers;
    let mut asking = requests.iter().filter(asks).peekable();
    if asking.peek().is_none() {
        return 0;
    }
    let count_limits = limiter.limit_counter();
    let extra_bytes = |request: &pb::ShouldAllowRequest| {
        let limits = count_limits(&request.plan, &request.key);
        // A limit has an item in each of two header fields.
        let parts = usize::from(request.detailed) * limits
            + usize::from(request.http_headers) * (1 + 2 * limits);
        parts * LIMIT_ANSWER_BYTES
    };
    asking.map(extra_bytes).sum()
}

/// Converts one decision to a result of a batch or stream.
fn result(
    decided: &Result<(Decision, Arc<Plan>), Refusal>,
    options: &AnswerOptions,
    form: HeaderForm,
) -> pb::ShouldAllowResult {
    match decided {
        Ok((decision, plan)) => {
            let mut response = response(decision, options.detailed);
            if options.http_headers {
                response.http_headers = http_headers(decision, plan, form);
            }
            pb::ShouldAllowResult {
                result: Some(pb::should_allow_result::Result::Response(response)),
            }
        }
        Err(refused) => error_result(&refusal(refused)),
    }
}

/// Converts a status to a result of a batch or stream.
pub(super) fn error_result(status: &Status) -> pb::ShouldAllowResult {
    pb::ShouldAllowResult {
        result: Some(pb::should_allow_result::Result::Error(error(status))),
    }
}

/// Converts a status to the error of one of several calls.
pub(super) fn error(status: &Status) -> pb::Error {
    pb::Error {
        code: i32::from(status.code()),
        message: status.message().to_owned(),
    }
}

/// The status of a request that got no decision.
pub(super) fn refusal(refusal: &Refusal) -> Status {
    match refusal {
        Refusal::UnknownPlan(unknown) => Status::not_found(unknown.to_string()),
        Refusal::Overloaded => overloaded(&refusal.to_string()),
        Refusal::CallerDeadline => Status::deadline_exceeded(refusal.to_string()),
        Refusal::NeedsReserve(_) | Refusal::NothingToRecord(_) => {
            Status::failed_precondition(refusal.to_string())
        }
        Refusal::Lease(_) | Refusal::KnownId(_) => Status::invalid_argument(refusal.to_string()),
        Refusal::Unconfirmed(_) => Status::unavailable(refusal.to_string()),
    }
}

/// The status of a call refused because of overload, with the time after which to retry.
pub(super) fn overloaded(sentence: &str) -> Status {
    let details = ErrorDetails::with_retry_info(Some(RETRY_OVERLOADED_AFTER));
    Status::with_error_details(Code::ResourceExhausted, sentence, details)
}

/// Added to the error of an admin call that timed out.
const OUTCOME_UNKNOWN: &str = "it is not known whether it was done, and it may still happen";

/// The status of an admin call that failed.
pub(super) fn not_done(error: &AdminError) -> Status {
    match error {
        AdminError::UnknownPlan(unknown) => Status::not_found(unknown.to_string()),
        AdminError::NothingCounted(_) => Status::failed_precondition(error.to_string()),
        AdminError::CallerDeadline => {
            Status::deadline_exceeded(format!("{error}; {OUTCOME_UNKNOWN}"))
        }
        AdminError::Store(StoreError::Overloaded(_)) => refusal(&Refusal::Overloaded),
        AdminError::Store(StoreError::Deadline(_)) => {
            Status::unavailable(format!("{error}; {OUTCOME_UNKNOWN}"))
        }
        AdminError::Store(StoreError::Unreachable(_) | StoreError::NotSent(_)) => {
            Status::unavailable(format!(
                "nothing was done, unless it was in progress when the connection ended: {error}"
            ))
        }
        AdminError::Store(_) => Status::unavailable(format!("nothing was done: {error}")),
    }
}

/// Converts the result of a refund.
pub(super) fn refunded(refunded: &Refunded) -> pb::RefundResponse {
    let limit = |(status, units): &(LimitStatus, u64)| pb::LimitRefund {
        status: Some(limit_status(status)),
        refunded: *units,
    };
    pb::RefundResponse {
        refunded: refunded.units(),
        limits: refunded.limits.iter().map(limit).collect(),
    }
}

/// Converts the result of a reload; `None` when the task that reloads has ended.
pub(super) fn reloaded(outcome: Option<ReloadOutcome>) -> Result<pb::ReloadConfigResponse, Status> {
    let outcome = outcome.ok_or_else(|| {
        Status::internal("the config file is no longer watched; restart to apply it")
    })?;
    let Reloaded {
        config_hash,
        changes,
        restart_needed,
    } = outcome.map_err(Status::failed_precondition)?;
    let restart_needed = restart_needed.into_iter().map(str::to_owned).collect();
    // A config has 10,000 plans at most.
    let [added, removed, edited] = [changes.added, changes.removed, changes.edited]
        .map(|plans| u32::try_from(plans).unwrap_or(u32::MAX));
    Ok(pb::ReloadConfigResponse {
        config_hash,
        added,
        removed,
        edited,
        restart_needed,
    })
}

/// The status for a batch that is empty or too large.
pub(super) fn batch_size(requests: usize) -> Status {
    Status::invalid_argument(format!(
        "the batch has {requests} requests: send 1 to {BATCH_MAX}"
    ))
}

/// The header fields of a decision by `plan`.
pub(super) fn http_headers<E: From<(String, String)>>(
    decision: &Decision,
    plan: &Plan,
    form: HeaderForm,
) -> Vec<E> {
    let entry = |(name, value): (&str, String)| (name.to_owned(), value).into();
    headers(decision, plan, form)
        .into_iter()
        .map(entry)
        .collect()
}

impl From<(String, String)> for should_allow_response::HttpHeadersEntry {
    fn from((key, value): (String, String)) -> Self {
        Self { key, value }
    }
}

impl From<(String, String)> for should_allow_joint_response::HttpHeadersEntry {
    fn from((key, value): (String, String)) -> Self {
        Self { key, value }
    }
}

/// Converts a decision, without header fields.
pub(super) fn response(decision: &Decision, detailed: bool) -> pb::ShouldAllowResponse {
    let allowed = decision.allowed();
    let outcome = outcome(decision.outcome);
    let binding = decision.binding();
    let key = decision.key_status();
    pb::ShouldAllowResponse {
        allowed,
        outcome: outcome.into(),
        limit_name: binding.map_or_else(String::new, |status| String::from(&*status.name)),
        limit: binding.map(|status| status.limit),
        remaining: key.remaining,
        retry_after: key.retry_after_us.map(duration),
        reset_after: key.reset_after_us.map(duration),
        decided_by: decided_by(decision.decided_by).into(),
        limits: if detailed {
            decision.limits().iter().map(limit_status).collect()
        } else {
            Vec::new()
        },
        http_headers: Vec::new(),
        window: binding.and_then(|status| known(status.window_us)),
        more_after: key.more_after_us.map(duration),
        plan: decision
            .other_plan
            .as_deref()
            .unwrap_or_default()
            .to_owned(),
        overridden: decision.overridden,
        is_repeated: decision.is_repeated,
    }
}

fn limit_status(status: &LimitStatus) -> pb::LimitStatus {
    pb::LimitStatus {
        name: String::from(&*status.name),
        limit: status.limit,
        remaining: status.remaining,
        retry_after: status.retry_after_us.map(duration),
        reset_after: Some(duration(status.reset_after_us)),
        window: known(status.window_us),
        more_after: status.more_after_us().map(duration),
        blocked_for: known(status.blocked_for_us),
    }
}

/// A duration that is unset where there is none.
fn known(us: u64) -> Option<prost_types::Duration> {
    (us > 0).then(|| duration(us))
}

fn outcome(outcome: Outcome) -> pb::Outcome {
    match outcome {
        Outcome::Allowed => pb::Outcome::Allowed,
        Outcome::Denied => pb::Outcome::Denied,
        Outcome::NeverFits => pb::Outcome::NeverFits,
        Outcome::ShadowDenied => pb::Outcome::ShadowDenied,
        Outcome::OtherDenied => pb::Outcome::OtherDenied,
    }
}

fn decided_by(by: DecidedBy) -> pb::DecidedBy {
    match by {
        DecidedBy::Store => pb::DecidedBy::Store,
        DecidedBy::DenyCache => pb::DecidedBy::DenyCache,
        DecidedBy::Plan => pb::DecidedBy::Plan,
        DecidedBy::FailOpen => pb::DecidedBy::FailOpen,
        DecidedBy::FailClosed => pb::DecidedBy::FailClosed,
        DecidedBy::LocalFallback => pb::DecidedBy::LocalFallback,
    }
}

/// Converts microseconds. The wire's duration is finer, so nothing is rounded.
pub(super) fn duration(us: u64) -> prost_types::Duration {
    // Both parts fit: u64 microseconds are below 2^45 seconds.
    let seconds = i64::try_from(us / 1_000_000);
    let nanos = i32::try_from(us % 1_000_000 * 1_000);
    prost_types::Duration {
        seconds: seconds.unwrap_or(i64::MAX),
        nanos: nanos.unwrap_or(i32::MAX),
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod fuzz;
