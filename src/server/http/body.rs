//! Reads the body of a call, with bounds on its size and its time.

use std::time::Duration;

use axum::RequestExt;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;

use super::convert;

/// Longest time for the body to arrive. Clients send it at once, with the head.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Content types of a body that calls accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Form,
}

impl Media {
    /// The content type of the body, without its parameters such as `charset=utf-8`.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let media = headers
            .get(CONTENT_TYPE)?
            .to_str()
            .ok()?
            .split(';')
            .next()?
            .trim();
        let is = |known: &str| media.eq_ignore_ascii_case(known);
        match () {
            () if is("application/json") => Some(Self::Json),
            () if is("application/x-www-form-urlencoded") => Some(Self::Form),
            () => None,
        }
    }
}

/// Reads the body, of at most so many bytes. Errors: the response to a body that cannot be read.
pub(super) async fn read(mut request: Request, bytes_max: usize) -> Result<Bytes, Response> {
    DefaultBodyLimit::max(bytes_max).apply(&mut request);
    let reading = tokio::time::timeout(BODY_TIMEOUT, request.extract::<Bytes, _>());
    let (status, sentence) = match reading.await {
        Ok(Ok(bytes)) => return Ok(bytes),
        Ok(Err(rejected)) if rejected.status() == StatusCode::PAYLOAD_TOO_LARGE => (
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body has more than {bytes_max} bytes; a call needs fewer"),
        ),
        Ok(Err(_)) => (StatusCode::BAD_REQUEST, "the body was cut off".to_owned()),
        Err(_) => (
            StatusCode::REQUEST_TIMEOUT,
            format!(
                "the body did not arrive within {} s",
                BODY_TIMEOUT.as_secs()
            ),
        ),
    };
    Err(convert::bad_request(status, &sentence))
}

/// The response to a body of another content type.
pub(super) fn other_media(sentence: &str) -> Response {
    convert::bad_request(StatusCode::UNSUPPORTED_MEDIA_TYPE, sentence)
}
