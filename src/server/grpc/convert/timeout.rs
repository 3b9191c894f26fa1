//! A caller's deadline, as gRPC sends it.

use std::time::Duration;

use hyper::header::HeaderName;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::limiter::CallerDeadline;

/// Parsed once, since a name given as a string would be parsed for each lookup.
static TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The caller's deadline; `None` without one. Source: `grpc-timeout` of the gRPC wire protocol: at most eight digits and a unit.
///
/// Errors: INVALID_ARGUMENT when it is malformed. Such a caller believes in a deadline that nobody would keep.
pub(in crate::grpc) fn caller_deadline(
    metadata: &MetadataMap,
) -> Result<Option<CallerDeadline>, Status> {
    let Some(value) = metadata.as_ref().get(&TIMEOUT) else {
        return Ok(None);
    };
    let whole = value.to_str().ok().and_then(timeout);
    let malformed = || {
        Status::invalid_argument(
            "grpc-timeout is malformed: send 1 to 8 digits and a unit, one of H M S m u n",
        )
    };
    whole
        .map(|whole| Some(CallerDeadline::new(whole)))
        .ok_or_else(malformed)
}

fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = digits.len() <= 8 && digits.bytes().all(|digit| digit.is_ascii_digit());
    let amount: u64 = digits.parse().ok().filter(|_| is_number)?;
    match unit {
        "H" => Some(Duration::from_secs(amount * 3600)),
        "M" => Some(Duration::from_secs(amount * 60)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}
