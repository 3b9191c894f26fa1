//! Converts answers about holds.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::{HttpAnswer, body, error_with, merge, no_store};
use crate::limiter::{Extended, RequestId, Reserved, SettledHold};
use tollgate_core::algorithm::holds::{HoldState, SettleOutcome};

impl HttpAnswer<'_> {
    /// With what became of a reserve.
    pub(in crate::http) fn reserved(self, reserved: &Reserved, id: &RequestId) -> Self {
        let held = json!({
            "request_id": id.as_str(),
            "held": reserved.expires_in_us.is_some(),
            "expires_after_us": reserved.expires_in_us,
        });
        self.repeated().with_members(held)
    }

    /// With what became of a settle.
    pub(in crate::http) fn settled(self, settled: &SettledHold, id: &RequestId) -> Self {
        let settlement = &settled.settlement;
        let outcome = match settlement.outcome {
            SettleOutcome::Settled => "settled",
            SettleOutcome::Repeated => "repeated",
            SettleOutcome::Expired => "expired",
            SettleOutcome::Unknown => "unknown",
        };
        self.with_members(json!({
            "request_id": id.as_str(),
            "settlement": outcome,
            "held": settlement.held,
            "actual": settlement.actual,
            "returned": settlement.returned.iter().max().copied().unwrap_or(0),
            "excess": settlement.excess,
        }))
    }

    /// With whether the id was known.
    pub(in crate::http) fn repeated(self) -> Self {
        let repeated = self.decision.is_repeated;
        self.with_members(json!({ "repeated": repeated }))
    }

    fn with_members(mut self, more: Value) -> Self {
        merge(&mut self.more_members, more);
        self
    }
}

/// The response to an extend of a hold that is open.
pub(in crate::http) fn extended(extended: Extended, id: &RequestId) -> Response {
    let mut value = state(extended, id);
    value["expires_after_us"] = extended.expires_in_us.into();
    let body = body("application/json", &value);
    (StatusCode::OK, no_store(), body).into_response()
}

/// The response to an extend of a hold that is not open.
pub(in crate::http) fn not_extended(extended: Extended, id: &RequestId) -> Response {
    let (status, title, detail) = match extended.state {
        HoldState::Unknown | HoldState::Open => (
            StatusCode::NOT_FOUND,
            "no such hold is known",
            "no hold of this key has this request_id: it was never reserved, or is forgotten",
        ),
        HoldState::Settled => (
            StatusCode::CONFLICT,
            "the hold has ended",
            "the hold was settled: reserve anew, by another request_id",
        ),
        HoldState::Expired => (
            StatusCode::CONFLICT,
            "the hold has ended",
            "the lease has ended: settle what was used, and reserve anew by another request_id",
        ),
    };
    error_with(status, (title, detail), state(extended, id))
}

fn state(extended: Extended, id: &RequestId) -> Value {
    let state = match extended.state {
        HoldState::Open => "open",
        HoldState::Settled => "settled",
        HoldState::Expired => "expired",
        HoldState::Unknown => "unknown",
    };
    json!({ "request_id": id.as_str(), "state": state })
}
