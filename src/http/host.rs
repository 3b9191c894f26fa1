//! A request of HTTP/1.1 names its host, once; any other is refused. Source: RFC 9112, section 3.2.

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::{StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

const REFUSED: &str = "a request of HTTP/1.1 has one Host header; send one, such as Host: localhost\n";

/// Answers 400 to a request of HTTP/1.1 that has no Host header or several: proxies may each believe another one.
pub(super) async fn require(request: Request, next: Next) -> Response {
    let hosts = request.headers().get_all(HOST).iter().count();
    let sound = hosts == 1 || (hosts == 0 && request.version() < Version::HTTP_11);
    if sound { next.run(request).await } else { (StatusCode::BAD_REQUEST, REFUSED).into_response() }
}
