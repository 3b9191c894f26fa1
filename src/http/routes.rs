//! The handlers, and where each is found.

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
use super::{Site, convert, metrics};
use crate::clock::monotonic;
use crate::store::Store;
use crate::trace;

/// Of the Prometheus text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Most bytes of a body: the longest key and plan, each letter escaped as `\u0041`, take 3,456 of them.
const BODY_BYTES_MAX: usize = 4 << 10;
/// Longest that a body may take to come: it is sent at once, with the head.
const BODY_WITHIN: Duration = Duration::from_secs(5);

pub(super) fn router<S: Store>(site: Arc<Site<S>>) -> Router {
    // HEAD charges as GET does, since proxies ask by the method of their caller.
    let check = get(check::<S>).post(check::<S>).layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
    Router::new()
        .route("/v1/check", check)
        .route("/healthz", get(async || plain(StatusCode::OK, "alive\n")))
        .route("/readyz", get(ready::<S>))
        .route("/metrics", get(tell::<S>))
        .fallback(async || plain(StatusCode::NOT_FOUND, "there are /v1/check, /healthz, /readyz and /metrics\n"))
        .with_state(site)
}

async fn check<S: Store>(State(site): State<Arc<Site<S>>>, request: Request) -> Response {
    let span = trace::call("/v1/check", |name| request.headers().get(name)?.to_str().ok());
    let asks_in_json = request.method() == Method::POST && media_type(request.headers()) == Some(Media::Json);
    let wants_json = asks_in_json || wants_json(request.headers());
    let response = match parameters(request).await {
        Ok(parameters) => answer(&site, parameters, wants_json, &span).await,
        Err(refused) => refused,
    };
    if !span.is_none() {
        span.record("http.route", "/v1/check").record("http.response.status_code", response.status().as_u16());
    }
    response
}

async fn answer<S: Store>(site: &Site<S>, parameters: Parameters, wants_json: bool, span: &Span) -> Response {
    let answer = site.limiter.decide_and_tell(parameters.question, None).await;
    if let Ok((decision, plan)) = &answer {
        trace::plan(span, &plan.name);
        trace::decided(span, decision.outcome.word(), decision.decided_by.word());
    }
    match answer {
        Ok((decision, plan)) if decision.allowed() => convert::allowed(&decision, &plan, wants_json),
        Ok((decision, plan)) => convert::denied(&decision, &plan, parameters.deny_status),
        Err(refusal) => convert::refusal(&refusal),
    }
}

/// What is asked for: by the query, and of a POST by its body too. Errors: the answer to a request that is wrong.
async fn parameters(request: Request) -> Result<Parameters, Response> {
    let wrong = |sentence: String| convert::bad_request(StatusCode::BAD_REQUEST, &sentence);
    let of_query = Fields::of_query(request.uri().query().unwrap_or_default());
    let of_body = match *request.method() {
        Method::POST => body(request).await?,
        _ => Ok(Fields::default()),
    };
    of_query.and_then(|fields| fields.and(of_body?)).and_then(Fields::check).map_err(wrong)
}

/// What a body says, or what is wrong with it. Errors: the answer to one that is not to be read.
async fn body(request: Request) -> Result<Result<Fields, String>, Response> {
    let media = media_type(request.headers());
    let bytes = match tokio::time::timeout(BODY_WITHIN, request.extract::<Bytes, _>()).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(rejected)) if rejected.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let sentence = format!("the body has more than {BODY_BYTES_MAX} bytes, which no check needs");
            return Err(convert::bad_request(StatusCode::PAYLOAD_TOO_LARGE, &sentence));
        }
        Ok(Err(_)) => return Err(convert::bad_request(StatusCode::BAD_REQUEST, "the body was cut off")),
        Err(_) => {
            let sentence = format!("the body did not come within {} s", BODY_WITHIN.as_secs());
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

/// Types of a body that a check reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Media {
    Json,
    Form,
}

/// The type of the body, whatever its parameters, such as `charset=utf-8`.
fn media_type(headers: &HeaderMap) -> Option<Media> {
    let media = headers.get(CONTENT_TYPE)?.to_str().ok()?.split(';').next()?.trim();
    let is = |known: &str| media.eq_ignore_ascii_case(known);
    match () {
        () if is("application/json") => Some(Media::Json),
        () if is("application/x-www-form-urlencoded") => Some(Media::Form),
        () => None,
    }
}

/// Whether the caller names JSON; `*/*`, which most say without meaning anything, does not.
fn wants_json(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut types = accepted.flat_map(|value| value.split(',')).filter_map(|range| range.split(';').next());
    types.any(|media| media.trim().eq_ignore_ascii_case("application/json"))
}

/// Follows no store: were one lost, every replica would be taken away at once, and all of them still answer by policy.
async fn ready<S>(State(site): State<Arc<Site<S>>>) -> Response {
    if site.ready.load(Ordering::Relaxed) {
        plain(StatusCode::OK, "ready\n")
    } else {
        plain(StatusCode::SERVICE_UNAVAILABLE, "stopping\n")
    }
}

async fn tell<S>(State(site): State<Arc<Site<S>>>) -> Response {
    let text = site.renderings.text(monotonic(), || metrics::write(&site.limiter, &site.told));
    ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response()
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    (status, [(CACHE_CONTROL, "no-store")], text).into_response()
}
