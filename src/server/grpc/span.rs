//! Records the end of a gRPC call in its trace span. Names are those of OpenTelemetry's semantic conventions for RPC.

use tonic::{Code, Status};
use tracing::Span;

use super::code::name;
use crate::trace;
use tollgate_core::decision::Decision;

/// Records a decision and the success of the call. Inlined, since most calls have no span.
#[inline]
pub(super) fn answered(span: &Span, decision: &Decision) {
    if !span.is_none() {
        trace::decided(
            span,
            decision.outcome.as_str(),
            decision.decided_by.as_str(),
        );
        succeeded(span);
    }
}

/// Records that the call succeeded.
pub(super) fn succeeded(span: &Span) {
    if !span.is_none() {
        span.record("rpc.response.status_code", name(Code::Ok));
    }
}

/// Records the status that the call failed with, and returns it.
pub(super) fn failed(span: &Span, status: Status) -> Status {
    if !span.is_none() {
        span.record("rpc.response.status_code", name(status.code()));
        // Errors of the caller do not mark the span as failed.
        if matches!(
            status.code(),
            Code::Unknown | Code::DeadlineExceeded | Code::Internal | Code::Unavailable
        ) {
            span.record("otel.status_code", "ERROR");
        }
    }
    status
}
