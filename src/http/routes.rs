//! The handlers, and where each is found.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tracing::Span;

use super::{Site, convert, metrics, parameters};
use crate::algorithm::Mode;
use crate::store::Store;
use crate::trace;

/// Of the Prometheus text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn router<S: Store>(site: Arc<Site<S>>) -> Router {
    // HEAD promises to change nothing, so it asks without charging.
    let check = get(charge::<S>).post(charge::<S>).head(peek::<S>);
    Router::new()
        .route("/v1/check", check)
        .route("/healthz", get(async || plain(StatusCode::OK, "alive\n")))
        .route("/readyz", get(ready::<S>))
        .route("/metrics", get(tell::<S>))
        .fallback(async || plain(StatusCode::NOT_FOUND, "there are /v1/check, /healthz, /readyz and /metrics\n"))
        .with_state(site)
}

async fn charge<S: Store>(site: State<Arc<Site<S>>>, query: RawQuery, headers: HeaderMap) -> Response {
    check(&site, query, &headers, Mode::Charge).await
}

async fn peek<S: Store>(site: State<Arc<Site<S>>>, query: RawQuery, headers: HeaderMap) -> Response {
    check(&site, query, &headers, Mode::Peek).await
}

async fn check<S: Store>(site: &Site<S>, query: RawQuery, headers: &HeaderMap, mode: Mode) -> Response {
    let span = trace::call("/v1/check", |name| headers.get(name)?.to_str().ok());
    let response = answer(site, query, headers, (mode, &span)).await;
    if !span.is_none() {
        span.record("http.route", "/v1/check").record("http.response.status_code", response.status().as_u16());
    }
    response
}

async fn answer<S: Store>(
    site: &Site<S>,
    RawQuery(query): RawQuery,
    headers: &HeaderMap,
    (mode, span): (Mode, &Span),
) -> Response {
    let parameters = match parameters::parse(query.as_deref().unwrap_or_default(), mode) {
        Ok(parameters) => parameters,
        Err(sentence) => return convert::bad_request(&sentence),
    };
    let answer = site.limiter.decide_and_tell(parameters.question, None).await;
    if let Ok((decision, plan)) = &answer {
        trace::plan(span, &plan.name);
        trace::decided(span, decision.outcome.word(), decision.decided_by.word());
    }
    match answer {
        Ok((decision, plan)) if decision.allowed() => convert::allowed(&decision, &plan, wants_json(headers)),
        Ok((decision, plan)) => convert::denied(&decision, &plan, parameters.deny_status),
        Err(refusal) => convert::refusal(&refusal),
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
    ([(CONTENT_TYPE, METRICS_TYPE)], metrics::write(&site.limiter, &site.told)).into_response()
}

fn plain(status: StatusCode, text: &'static str) -> Response {
    (status, [(CACHE_CONTROL, "no-store")], text).into_response()
}
