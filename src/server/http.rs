//! The HTTP side, on a port of its own: a check endpoint for proxies, health for probes, metrics for Prometheus. Metrics may
//! have a listener of their own, whose peers cannot ask for decisions.
//!
//! Its connections are served by the workers, beside those of gRPC, so that checks use all of them. All other paths are answered by
//! the main thread, so that no scrape takes a worker's time.
//!
//! Only this module and those below it name axum. Only `convert` knows both wire and domain types.

mod body;
mod call;
mod check;
mod client_address;
mod connection;
mod convert;
mod exposition;
mod holds;
mod host;
mod metrics;
mod parameters;
mod progress;
mod rendering_cache;
mod routes;
mod sources;
mod status;
mod subject;
mod tracked;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use tokio::runtime::Handle;

use check::CheckEndpoint;
pub use client_address::{PROXIES_MAX, Proxies};
use connection::HttpEndpoint;
use host::Hosts;
pub use host::{HOST_NAMES_MAX, HostName};
use rendering_cache::RenderingCache;
use routes::Paths;
pub use sources::{SOURCES_MAX, Source, SubjectPart};
use status::StatusEndpoint;
pub use status::{ConfigChanges, ConfigOutcome, ExplainKey, StatusSources};
pub use subject::{CheckSettings, SubjectSources, Subjects};

use crate::grpc::AdminCalls;
use crate::limiter::Limiter;
use crate::tls::Tls;
use crate::transport::{AuxServer, Connections, Drained, Listener, WorkerHandles};
use tollgate_store::{Store, StoreRegistry};

/// Maximum number of open connections; a new one then replaces the oldest idle one. A proxy keeps some for each of its own worker
/// processes. Each takes some 20 KiB at most.
pub const CONNECTIONS_MAX: usize = 1024;
/// Maximum number of open connections of the listener of metrics, by the same rule. A few scrapers and probes have one each.
const METRICS_CONNECTIONS_MAX: usize = 64;
/// How long a large text of `/metrics` is given to further readers. Writing it takes milliseconds on the thread that answers
/// probes.
const METRICS_FRESH_FOR: Duration = Duration::from_secs(1);
/// Texts of `/metrics` of more bytes than this are large.
const METRICS_SMALL_BYTES: usize = 256 << 10;

/// The state that the handlers share, except that of checks.
struct AppState {
    sources: MetricSources,
    ready: AtomicBool,
    /// Texts of `/metrics`.
    metrics_cache: RenderingCache,
    /// The status page, if it is served.
    status: Option<StatusEndpoint>,
}

/// Sources of metrics, of readiness and of the status page.
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
    /// What the status page needs beside these; `None` when it is off.
    pub status: Option<StatusSources>,
}

/// The workers that serve the connections.
pub struct ServingWorkers<S> {
    /// Runs connections on them.
    pub handles: WorkerHandles,
    /// The limiter of each, in their order.
    pub limiters: Vec<Arc<Limiter<S>>>,
}

/// The sockets of the HTTP side; at least one of them.
pub struct HttpListeners {
    /// For everything; for everything but metrics, when those have their own.
    pub http: Option<Listener>,
    /// For metrics and probes alone.
    pub metrics: Option<Listener>,
    /// Names under which both show figures, beside IP addresses and `localhost`.
    pub hosts: Arc<[HostName]>,
}

/// Maximum number of connections of each listener that the limit of open files allows.
pub struct Caps {
    /// Of `HttpListeners::http`.
    pub http: usize,
    /// Of `HttpListeners::metrics`.
    pub metrics: usize,
}

/// A running HTTP server. Dropping it ends it at once.
pub struct Server {
    /// Makes the handlers report that this process is not ready.
    unready: Box<dyn Fn() + Send + Sync>,
    http: Option<AuxServer>,
    metrics: Option<AuxServer>,
}

impl Server {
    /// Serves on `listeners`, with at most as many connections as `caps` and this module allow. `workers` decide checks as
    /// `settings` say. The metrics of `sources` are reported.
    ///
    /// Must be called within a tokio runtime, which accepts connections and answers what is not a check.
    pub fn start<S: Store>(
        listeners: HttpListeners,
        workers: ServingWorkers<S>,
        settings: CheckSettings,
        sources: MetricSources,
        caps: Caps,
    ) -> Self {
        let state = Arc::new(app_state(sources));
        if state.status.is_some() {
            tokio::spawn(status::keep_history(Arc::downgrade(&state)));
        }
        let paths = match listeners.metrics {
            Some(_) => Paths::NoMetrics,
            None => Paths::All,
        };
        let router = |listener: &Listener, paths| {
            let hosts = Hosts::for_listener(listener.address(), &listeners.hosts);
            routes::router(state.clone(), paths, hosts)
        };
        let metrics = listeners.metrics.map(|listener| {
            let router = router(&listener, Paths::Metrics);
            serve_metrics::<S>(listener, router, caps.metrics)
        });
        let http = listeners.http.map(|listener| {
            let router = router(&listener, paths);
            serve_all(listener, workers, settings, router, caps.http)
        });
        Self {
            unready: Box::new(move || state.ready.store(false, Ordering::Relaxed)),
            http,
            metrics,
        }
    }

    /// Waits until a listener fails for good, and returns the reason.
    pub async fn lost(&mut self) -> String {
        tokio::select! {
            error = lost(&mut self.http) => error,
            error = lost(&mut self.metrics) => error,
        }
    }

    /// Reports from now on that this process is not ready, and continues to serve.
    pub fn drain(&self) {
        (self.unready)();
    }

    /// Stops accepting, waits for unfinished answers, and ends.
    pub async fn stop(self) -> Drained {
        let http = self.http.map(AuxServer::stop);
        let metrics = self.metrics.map(AuxServer::stop);
        match tokio::join!(OptionFuture::from(http), OptionFuture::from(metrics)) {
            (None | Some(Drained::Clean), None | Some(Drained::Clean)) => Drained::Clean,
            _ => Drained::Cut,
        }
    }
}

/// The state of a server that is ready.
fn app_state(mut sources: MetricSources) -> AppState {
    let status = sources.status.take().map(StatusEndpoint::new);
    AppState {
        sources,
        ready: AtomicBool::new(true),
        metrics_cache: RenderingCache::new(METRICS_FRESH_FOR, METRICS_SMALL_BYTES),
        status,
    }
}

/// Waits until the server's listener fails. Never ends without a server.
async fn lost(server: &mut Option<AuxServer>) -> String {
    match server {
        Some(server) => server.lost().await,
        None => std::future::pending().await,
    }
}

/// Serves checks and the paths of `router` by the workers.
fn serve_all<S: Store>(
    listener: Listener,
    workers: ServingWorkers<S>,
    settings: CheckSettings,
    router: Router,
    connections: usize,
) -> AuxServer {
    let settings = Arc::new(settings);
    let main = Handle::current();
    let endpoint = |limiter| {
        let check = Some(CheckEndpoint {
            limiter,
            settings: settings.clone(),
        });
        Arc::new(HttpEndpoint {
            check,
            router: router.clone(),
            main: main.clone(),
        })
    };
    let endpoints: Vec<_> = workers.limiters.into_iter().map(endpoint).collect();
    let handles = workers.handles;
    let begin = move |accepted, admission, stopping| {
        handles.spawn(|worker| {
            let endpoint = endpoints.get(worker).cloned();
            // There is one for each worker.
            OptionFuture::from(
                endpoint.map(|endpoint| connection::serve(accepted, admission, endpoint, stopping)),
            )
            .map(drop)
        });
    };
    AuxServer::start_elsewhere(listener, connections.min(CONNECTIONS_MAX), begin)
}

/// Serves metrics and probes by the current runtime.
fn serve_metrics<S: Store>(listener: Listener, router: Router, connections: usize) -> AuxServer {
    let endpoint = Arc::new(HttpEndpoint::<S> {
        check: None,
        router,
        main: Handle::current(),
    });
    AuxServer::start(
        listener,
        connections.min(METRICS_CONNECTIONS_MAX),
        move |accepted, admission, stopping| {
            connection::serve(accepted, admission, endpoint.clone(), stopping)
        },
    )
}
