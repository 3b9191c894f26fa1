//! Converts calls about holds, and requests with an id.

use std::time::Duration;

use tonic::Status;

use super::{check_request, duration, limit_status, subject};
use crate::grpc::pb;
use crate::limiter::{Extended, RequestId, SettledHold};
use tollgate_core::algorithm::holds::{HoldState, IfUnknown, LostReason, SettleOutcome};
use tollgate_core::key::Key;
use tollgate_core::plan::{Concurrency, HoldTerms, check_used};
use tollgate_store::Check;

/// A request with its id, and the lease that it asks for.
type Reserve = (Check<String>, RequestId, Option<Duration>);
/// What a call about a hold names, and what it asks.
type About<T> = ((Key, String), T);

/// Converts a reserve. Errors: INVALID_ARGUMENT, with what is wrong and what would be right.
pub(in crate::grpc) fn reserve(request: pb::ReserveRequest) -> Result<Reserve, Status> {
    let id = required_id(&request.request_id)?;
    let ttl = lease(request.ttl)?;
    let check = check_request(pb::ShouldAllowRequest {
        key: request.key,
        plan: request.plan,
        cost: request.cost,
        shard: request.shard,
        ..Default::default()
    });
    Ok((check?, id, ttl))
}

/// Converts a settle. Errors: as [`reserve`].
pub(in crate::grpc) fn settle(
    request: pb::SettleRequest,
) -> Result<About<(RequestId, Option<u64>, IfUnknown)>, Status> {
    let id = required_id(&request.request_id)?;
    let if_unknown = if_unknown(request.if_unknown)?;
    if let Some(actual) = request.actual {
        in_bounds("actual", actual)?;
    }
    let subject = subject(request.key, request.shard, request.plan)?;
    Ok((subject, (id, request.actual, if_unknown)))
}

/// Converts an extend. Errors: as [`reserve`].
pub(in crate::grpc) fn extend(
    request: pb::ExtendRequest,
) -> Result<About<(RequestId, Option<Duration>)>, Status> {
    let asked = (required_id(&request.request_id)?, lease(request.ttl)?);
    Ok((subject(request.key, request.shard, request.plan)?, asked))
}

/// Converts a record. Errors: as [`reserve`].
pub(in crate::grpc) fn record(
    request: pb::RecordRequest,
) -> Result<(Check<String>, Option<RequestId>), Status> {
    let id = optional_id(&request.request_id)?;
    in_bounds("cost", request.cost.unwrap_or(1))?;
    let check = check_request(pb::ShouldAllowRequest {
        key: request.key,
        plan: request.plan,
        cost: request.cost,
        shard: request.shard,
        ..Default::default()
    });
    Ok((check?, id))
}

/// The id of a request that may have one. Errors: INVALID_ARGUMENT.
pub(in crate::grpc) fn optional_id(id: &str) -> Result<Option<RequestId>, Status> {
    RequestId::optional(id).map_err(Status::invalid_argument)
}

fn required_id(id: &str) -> Result<RequestId, Status> {
    RequestId::new(id).map_err(Status::invalid_argument)
}

fn in_bounds(field: &str, units: u64) -> Result<(), Status> {
    check_used(field, units).map_err(Status::invalid_argument)
}

/// What to do about an unknown id. Errors: INVALID_ARGUMENT for a number that this server does not know, since either may be meant.
fn if_unknown(number: i32) -> Result<IfUnknown, Status> {
    match pb::IfUnknown::try_from(number) {
        Ok(pb::IfUnknown::Unspecified | pb::IfUnknown::Charge) => Ok(IfUnknown::Charge),
        Ok(pb::IfUnknown::Ignore) => Ok(IfUnknown::Ignore),
        Err(_) => Err(Status::invalid_argument(format!(
            "if_unknown is {number}: send IF_UNKNOWN_CHARGE (1), IF_UNKNOWN_IGNORE (2), or leave it out"
        ))),
    }
}

/// Converts a lease, whose range the plan has. Errors: INVALID_ARGUMENT for one that is not a length of time.
fn lease(ttl: Option<prost_types::Duration>) -> Result<Option<Duration>, Status> {
    let Some(ttl) = ttl else { return Ok(None) };
    let seconds = u64::try_from(ttl.seconds);
    let nanos = u32::try_from(ttl.nanos);
    match (seconds, nanos) {
        (Ok(seconds), Ok(nanos @ 0..=999_999_999)) => Ok(Some(Duration::new(seconds, nanos))),
        _ => Err(Status::invalid_argument(
            "ttl is negative or malformed: send a duration of 1 s or more, or leave it out",
        )),
    }
}

/// Converts the result of a settle.
pub(in crate::grpc) fn settled(
    settled: &SettledHold,
    answer: pb::ShouldAllowResponse,
    detailed: bool,
) -> pb::SettleResponse {
    let settlement = &settled.settlement;
    let outcome = match settlement.outcome {
        SettleOutcome::Settled => pb::SettleOutcome::Settled,
        SettleOutcome::Repeated => pb::SettleOutcome::Repeated,
        SettleOutcome::Expired => pb::SettleOutcome::Expired,
        SettleOutcome::Unknown => pb::SettleOutcome::Unknown,
    };
    let limits = settled.limits().filter(|_| detailed);
    let limits = limits.map(|(status, returned)| pb::LimitSettlement {
        status: Some(limit_status(status)),
        returned,
    });
    pb::SettleResponse {
        outcome: outcome.into(),
        held: settlement.held,
        actual: settlement.actual,
        returned: settlement.returned.iter().max().copied().unwrap_or(0),
        excess: settlement.excess,
        answer: Some(answer),
        limits: limits.collect(),
    }
}

/// Converts the result of an extend.
pub(in crate::grpc) fn extended(extended: Extended) -> pb::ExtendResponse {
    let state = match extended.state {
        HoldState::Open => pb::HoldState::Open,
        HoldState::Settled => pb::HoldState::Settled,
        HoldState::Expired => pb::HoldState::Expired,
        HoldState::Unknown => pb::HoldState::Unknown,
    };
    pb::ExtendResponse {
        state: state.into(),
        expires_after: extended.expires_in_us.map(duration),
    }
}

/// Converts the news that a hold is no longer its stream's. `id` is that of its reserve.
pub(in crate::grpc) fn lost(
    id: u64,
    request_id: &RequestId,
    reason: LostReason,
) -> pb::HoldResponse {
    let reason = match reason {
        LostReason::Expired => pb::LostReason::Expired,
        LostReason::Settled => pb::LostReason::Settled,
        LostReason::Moved => pb::LostReason::Moved,
        LostReason::Forgotten => pb::LostReason::Forgotten,
    };
    let lost = pb::HoldLost {
        request_id: request_id.as_str().to_owned(),
        reason: reason.into(),
    };
    pb::HoldResponse {
        id,
        result: Some(pb::hold_response::Result::Lost(lost)),
    }
}

/// Converts the terms of a plan's holds.
pub(super) fn terms(terms: &HoldTerms) -> pb::Holds {
    let of = |duration: Duration| {
        Some(super::duration(
            u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
        ))
    };
    pb::Holds {
        ttl: of(terms.ttl),
        max_ttl: of(terms.max_ttl),
        release_on_expiry: terms.release_on_expiry,
        remember: of(terms.remember),
        max_open: terms.max_open,
        max_ids: terms.max_ids,
    }
}

/// Converts a concurrency limit, which has no window.
pub(super) fn concurrency(limit: &Concurrency) -> pb::Limit {
    pb::Limit {
        name: limit.name().to_string(),
        quota: limit.quota().into(),
        algorithm: pb::Algorithm::Concurrency.into(),
        ..Default::default()
    }
}
