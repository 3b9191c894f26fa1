//! The paths beside those of workers: probes, metrics and the status page.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::call::CallPath;
use super::host::Hosts;
use super::{AppState, metrics, status};
use tollgate_store::clock::monotonic;

/// The content type of the Prometheus text format.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The description of all paths, for people and generators of clients.
const OPENAPI: &str = include_str!("../../../docs/openapi.json");

/// What a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Paths {
    /// Everything: there is no listener of metrics.
    All,
    /// Everything but metrics, which have a listener of their own.
    NoMetrics,
    /// Metrics and probes.
    Metrics,
}

impl Paths {
    /// What a request for any other path is told.
    fn not_found(self, with_status: bool) -> String {
        let of_workers = CallPath::ALL.map(CallPath::path);
        let (first, more): (&[_], &[_]) = match (self, with_status) {
            (Self::All, false) => (&of_workers, &["/healthz", "/readyz", "/metrics"]),
            (Self::All, true) => (&of_workers, &["/healthz", "/readyz", "/metrics", "/status"]),
            (Self::NoMetrics, false) => (&of_workers, &["/healthz", "/readyz"]),
            (Self::NoMetrics, true) => (&of_workers, &["/healthz", "/readyz", "/status"]),
            (Self::Metrics, _) => (&["/metrics", "/healthz"], &[]),
        };
        let last = match self {
            Self::All | Self::NoMetrics => "/openapi.json",
            Self::Metrics => "/readyz",
        };
        let paths = [first, more].concat().join(", ");
        format!("not found: the paths are {paths} and {last}\n")
    }
}

/// Every path of `paths` except those of workers. Figures are shown under `hosts`; probes name whatever they like.
pub(super) fn router(state: Arc<AppState>, paths: Paths, hosts: Hosts) -> Router {
    let mut router = Router::new()
        .route("/healthz", get(async || plain(StatusCode::OK, "alive\n")))
        .route("/readyz", get(ready));
    if paths != Paths::Metrics {
        router = router.route(
            "/openapi.json",
            get(async || ([(CONTENT_TYPE, "application/json")], OPENAPI)),
        );
    }
    let with_status = state.status.is_some();
    let mut figures = Router::new();
    if paths != Paths::NoMetrics {
        figures = figures.route("/metrics", get(metrics_text));
    }
    if with_status && paths != Paths::Metrics {
        figures = figures.merge(status::routes());
    }
    router
        .merge(shown_under(hosts, figures))
        .fallback(async move || plain(StatusCode::NOT_FOUND, paths.not_found(with_status)))
        .with_state(state)
}

/// These routes, which refuse requests that name another host.
fn shown_under(hosts: Hosts, figures: Router<Arc<AppState>>) -> Router<Arc<AppState>> {
    figures.layer(from_fn(move |request: Request, next: Next| {
        let refused = hosts.refuse(&request);
        async move {
            match refused {
                Some(refused) => refused,
                None => next.run(request).await,
            }
        }
    }))
}

/// Tells of the store, and does not follow it once it was reached. If it did, the loss of a store would take all replicas out at
/// once, although all still answer by policy.
async fn ready(State(state): State<Arc<AppState>>) -> Response {
    let sources = &state.sources;
    let (status, word) = if !state.ready.load(Ordering::Relaxed) {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else if !sources.stores.is_ready() {
        (StatusCode::SERVICE_UNAVAILABLE, "waiting for the store")
    } else {
        (StatusCode::OK, "ready")
    };
    plain(
        status,
        format!("{word}\n{}\n", sources.limiter.store_state(&sources.stores)),
    )
}

async fn metrics_text(State(state): State<Arc<AppState>>) -> Response {
    let text = state
        .metrics_cache
        .text(monotonic(), || metrics::write(&state.sources));
    ([(CONTENT_TYPE, METRICS_TYPE)], text).into_response()
}

fn plain(status: StatusCode, text: impl Into<String>) -> Response {
    (status, [(CACHE_CONTROL, "no-store")], text.into()).into_response()
}
