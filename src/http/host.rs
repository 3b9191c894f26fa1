//! Requires one Host header of HTTP/1.1 requests. Source: RFC 9112, section 3.2.

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::{StatusCode, Version};
use axum::response::{IntoResponse, Response};

const REFUSED: &str = "an HTTP/1.1 request must have one Host header; send one, such as Host: localhost\n";

/// The answer 400 to an HTTP/1.1 request with no Host header or several; `None` to any other. With several, two proxies could
/// each believe another one.
pub(super) fn refuse(request: &Request) -> Option<Response> {
    let hosts = request.headers().get_all(HOST).iter().count();
    let valid = hosts == 1 || (hosts == 0 && request.version() < Version::HTTP_11);
    (!valid).then(|| (StatusCode::BAD_REQUEST, REFUSED).into_response())
}
