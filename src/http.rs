//! The HTTP side, on a port of its own: a check endpoint for proxies, health for probes, metrics for Prometheus.
//!
//! It runs beside the workers, so neither a scrape nor a proxy takes a worker's time.
//!
//! Only this module and those below it name axum. Only `convert` knows both wire and domain types.

mod connection;
mod convert;
mod exposition;
mod host;
mod metrics;
mod metrics_cache;
mod parameters;
mod progress;
mod routes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics_cache::MetricsCache;

use crate::grpc::AdminCalls;
use crate::headers::HeaderForm;
use crate::limiter::Limiter;
use crate::server::{AuxServer, Connections, Drained, Listener};
use crate::store::{Store, StoreRegistry};
use crate::tls::Tls;

/// Most open connections; a new one then replaces the oldest idle one. A proxy keeps some for each of its own worker
/// processes. Each takes some 20 KiB at most.
pub const CONNECTIONS_MAX: usize = 1024;

/// The state that the handlers share.
struct AppState<S> {
    limiter: Limiter<S>,
    sources: MetricSources,
    ready: AtomicBool,
    header_form: HeaderForm,
    /// Texts of `/metrics`.
    metrics_cache: MetricsCache,
}

/// Sources of metrics other than the limiter.
pub struct MetricSources {
    /// Connections of gRPC.
    pub grpc_connections: Connections,
    /// Counts of admin calls; `None` without an admin listener.
    pub admin_calls: Option<AdminCalls>,
    /// The stores of all workers and of this server.
    pub stores: StoreRegistry,
    /// TLS state; `None` when no listener uses TLS.
    pub tls: Option<Arc<Tls>>,
    /// Returns how many log lines were dropped because standard output was not read fast enough.
    pub log_lines_dropped: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// A running HTTP server. Dropping it ends it at once.
pub struct Server {
    /// Makes the handlers report that this process is not ready.
    unready: Box<dyn Fn() + Send + Sync>,
    aux_server: AuxServer,
}

impl Server {
    /// Serves on `listener`, with at most `connections` at once. `limiter` decides; its metrics, those of the limiters
    /// beside it and `sources` are reported.
    ///
    /// Must be called within a tokio runtime, on which it runs.
    pub fn start<S: Store>(listener: Listener, limiter: Limiter<S>, sources: MetricSources, connections: usize) -> Self {
        let (ready, header_form, metrics_cache) = (AtomicBool::new(true), HeaderForm::default(), MetricsCache::default());
        let state = Arc::new(AppState { limiter, sources, ready, header_form, metrics_cache });
        let router = routes::router(state.clone()).layer(axum::middleware::from_fn(host::require));
        let aux_server = AuxServer::start(listener, connections.min(CONNECTIONS_MAX), move |accepted, admission, stopping| {
            connection::serve(accepted, admission, router.clone(), stopping)
        });
        Self { unready: Box::new(move || state.ready.store(false, Ordering::Relaxed)), aux_server }
    }

    /// Waits until the listener fails for good, and returns the reason.
    pub async fn lost(&mut self) -> String {
        self.aux_server.lost().await
    }

    /// Reports from now on that this process is not ready, and continues to serve.
    pub fn drain(&self) {
        (self.unready)();
    }

    /// Stops accepting, waits for unfinished answers, and ends.
    pub async fn stop(self) -> Drained {
        self.aux_server.stop().await
    }
}
