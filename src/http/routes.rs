//! The handlers and their paths.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{RequestExt, Router};
use tracing::Span;

use super::parameters::{Fields, Parameters};
use super::{AppState, convert, metrics};
use crate::clock::monotonic;
use crate::store::Store;
use crate::trace;

/// The content type of the Prometheus text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Most bytes of a body. The longest key and plan, with each letter escaped as `\u0041`, take 3,456.
const BODY_BYTES_MAX: usize = 4 << 10;
/// Longest time for the body to arrive. Clients send it at once, with the head.
const BODY_WITHIN: Duration = Duration::from_secs(5);

pub(super) fn router<S: Store>(state: Arc<AppState<S>>) -> Router {
    // HEAD charges as GET does, since proxies check with the method of their caller's request.
    let check = get(check::<S>).post(check::<S>).layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
    Router::new()
        .route("/v1/check", check)
        .route("/healthz", get(async || plain(StatusCode::OK, "alive\n")))
        .route("/readyz", get(ready::<S>))
        .route("/metrics", get(metrics_text::<S>))
        .fallback(async || plain(StatusCode::NOT_FOUND, "not found: the paths are /v1/check, /healthz, /readyz and /metrics\n"))
        .with_state(state)
}

async fn check<S: Store>(State(state): State<Arc<AppState<S>>>, request: Request) -> Response {
    let span = trace::call("/v1/check", |name| request.headers().get(name)?.to_str().ok());
    let asks_in_json = request.method() == Method::POST && media_type(request.headers()) == Some(Media::Json);
    let wants_json = asks_in_json || wants_json(request.headers());
    let response = match parameters(request).await {
        Ok(parameters) => answer(&state, parameters, wants_json, &span).await,
        Err(refused) => refused,
    };
    if !span.is_none() {
        span.record("http.route", "/v1/check").record("http.response.status_code", response.status().as_u16());
    }
    response
}

async fn answer<S: Store>(state: &AppState<S>, parameters: Parameters, wants_json: bool, span: &Span) -> Response {
    let answer = state.limiter.decide_with_plan(parameters.check, None).await;
    if let Ok((decision, plan)) = &answer {
        trace::plan(span, &plan.name);
        trace::decided(span, decision.outcome.word(), decision.decided_by.word());
    }
    match answer {
        Ok((decision, plan)) if decision.allowed() => convert::allowed(&decision, &plan, wants_json, state.header_form),
        Ok((decision, plan)) => convert::denied(&decision, &plan, parameters.deny_status, state.header_form),
        Err(refusal) => convert::refusal(&refusal),
    }
}

/// Reads the parameters from the query, and for a POST also from the body. Errors: the response to an invalid request.
async fn parameters(request: Request) -> Result<Parameters, Response> {
    let bad_request = |sentence: String| convert::bad_request(StatusCode::BAD_REQUEST, &sentence);
    let of_query = Fields::of_query(request.uri().query().unwrap_or_default());
    let of_body = match *request.method() {
        Method::POST => body(request).await?,
        _ => Ok(Fields::default()),
    };
    of_query.and_then(|fields| fields.merged(of_body?)).and_then(Fields::check).map_err(bad_request)
}

/// Reads the parameters from the body; the inner error says what is wrong with them. Outer errors: the response to a body
/// that cannot be read.
async fn body(request: Request) -> Result<Result<Fields, String>, Response> {
    let media = media_type(request.headers());
    let bytes = match tokio::time::timeout(BODY_WITHIN, request.extract::<Bytes, _>()).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(rejected)) if rejected.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let sentence = format!("the body has more than {BODY_BYTES_MAX} bytes; a check needs fewer");
            return Err(convert::bad_request(StatusCode::PAYLOAD_TOO_LARGE, &sentence));
        }
        Ok(Err(_)) => return Err(convert::bad_request(StatusCode::BAD_REQUEST, "the body was cut off")),
        Err(_) => {
            let sentence = format!("the body did not arrive within {} s", BODY_WITHIN.as_secs());
            return Err(convert::bad_request(StatusCode::REQUEST_TIMEOUT, &sentence));
        }
    };
    match media {
        _ if bytes.is_empty() => Ok(Ok(Fields::default())),
        Some(Media::Json) => Ok(Fields::of_json(&bytes)),
        Some(Media::Form) => Ok(Fields::of_form(&bytes)),
        None => {
            let sentence = "send a body as application/json or application/x-www-form-urlencoded, or none";
            Err(convert::bad_request(StatusCode::UNSUPPORTED_MEDIA_TYPE, sentence))
        }
    }
}

/// Content types of a body that a check accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Media {
    Json,
    Form,
}

/// The content type of the body, without its parameters such as `charset=utf-8`.
fn media_type(headers: &HeaderMap) -> Option<Media> {
    let media = headers.get(CONTENT_TYPE)?.to_str().ok()?.split(';').next()?.trim();
    let is = |known: &str| media.eq_ignore_ascii_case(known);
    match () {
        () if is("application/json") => Some(Media::Json),
        () if is("application/x-www-form-urlencoded") => Some(Media::Form),
        () => None,
    }
}

/// Whether `Accept` names JSON. `*/*` does not count, since most clients send it by default.
fn wants_json(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut types = accepted.flat_map(|value| value.split(',')).filter_map(|range| range.split(';').next());
    types.any(|media| media.trim().eq_ignore_ascii_case("application/json"))
}

/// Answers `/readyz`. It does not depend on the store. If it did, the loss of a store would take all replicas out of service at
/// once, although each still answers by policy.
async fn ready<S>(State(state): State<Arc<AppState<S>>>) -> Response {
    if state.ready.load(Ordering::Relaxed) {
        plain(StatusCode::OK, "ready\n")
    } else {
        plain(StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    }
}

async fn metrics_text<S>(State(state): State<Arc<AppState<S>>>) -> Response {
    let text = state.metrics_cache.text(monotonic(), || metrics::write(&state.limiter, &state.sources));
    ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response()
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    (status, [(CACHE_CONTROL, "no-store")], text).into_response()
}
