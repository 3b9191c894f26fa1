//! The HTTP side, on a port of its own: a check endpoint for proxies, health for probes, metrics for Prometheus.
//!
//! Its connections are served by the workers, beside those of gRPC, so that checks use all of them. All other paths are answered by
//! the main thread, so that no scrape takes a worker's time.
//!
//! Only this module and those below it name axum. Only `convert` knows both wire and domain types.

mod check;
mod client_address;
mod connection;
mod convert;
mod exposition;
mod host;
mod metrics;
mod metrics_cache;
mod parameters;
mod progress;
mod routes;
mod subject;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::OptionFuture;

use check::CheckEndpoint;
pub use client_address::{PROXIES_MAX, Proxies};
use connection::Endpoint;
use metrics_cache::MetricsCache;
pub use subject::{CheckSettings, KeyPart, PlanSource, SOURCES_MAX};

use crate::grpc::AdminCalls;
use crate::limiter::Limiter;
use crate::server::{AuxServer, Connections, Drained, Listener, WorkerHandles};
use crate::store::{Store, StoreRegistry};
use crate::tls::Tls;

/// Most open connections; a new one then replaces the oldest idle one. A proxy keeps some for each of its own worker
/// processes. Each takes some 20 KiB at most.
pub const CONNECTIONS_MAX: usize = 1024;

/// The state that the handlers share, except that of checks.
struct AppState {
    sources: MetricSources,
    ready: AtomicBool,
    /// Texts of `/metrics`.
    metrics_cache: MetricsCache,
}

/// Sources of metrics.
pub struct MetricSources {
    /// The limiter whose decisions are reported, with those of all limiters beside it.
    pub limiter: Arc<Limiter<()>>,
    /// Connections of gRPC.
    pub grpc_connections: Connections,
    /// Counts of admin calls; `None` without an admin listener.
    pub admin_calls: Option<AdminCalls>,
    /// The stores of all workers and of the admin service.
    pub stores: StoreRegistry,
    /// TLS state; `None` when no listener uses TLS.
    pub tls: Option<Arc<Tls>>,
    /// Returns how many log lines were dropped because standard output was not read fast enough.
    pub log_lines_dropped: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// The workers that serve the connections.
pub struct ServingWorkers<S> {
    /// Runs connections on them.
    pub handles: WorkerHandles,
    /// The limiter of each, in their order.
    pub limiters: Vec<Arc<Limiter<S>>>,
}

/// A running HTTP server. Dropping it ends it at once.
pub struct Server {
    /// Makes the handlers report that this process is not ready.
    unready: Box<dyn Fn() + Send + Sync>,
    aux_server: AuxServer,
}

impl Server {
    /// Serves on `listener`, with at most `connections` at once. `workers` decide checks as `settings` say. The metrics
    /// of `sources` are reported.
    ///
    /// Must be called within a tokio runtime, which accepts connections and answers what is no check.
    pub fn start<S: Store>(
        listener: Listener,
        workers: ServingWorkers<S>,
        settings: CheckSettings,
        sources: MetricSources,
        connections: usize,
    ) -> Self {
        let (ready, metrics_cache) = (AtomicBool::new(true), MetricsCache::default());
        let state = Arc::new(AppState { sources, ready, metrics_cache });
        let (router, settings, main) = (routes::router(state.clone()), Arc::new(settings), tokio::runtime::Handle::current());
        let endpoint = |limiter| {
            let check = CheckEndpoint { limiter, settings: settings.clone() };
            Arc::new(Endpoint { check, router: router.clone(), main: main.clone() })
        };
        let endpoints: Vec<_> = workers.limiters.into_iter().map(endpoint).collect();
        let handles = workers.handles;
        let begin = move |accepted, admission, stopping| {
            handles.spawn(|worker| {
                let endpoint = endpoints.get(worker).cloned();
                // There is one for each worker.
                OptionFuture::from(endpoint.map(|endpoint| connection::serve(accepted, admission, endpoint, stopping))).map(drop)
            });
        };
        let aux_server = AuxServer::start_elsewhere(listener, connections.min(CONNECTIONS_MAX), begin);
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
