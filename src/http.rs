//! The HTTP side, on a port of its own: a check endpoint for proxies, health for probes, metrics for Prometheus.
//!
//! Beside the workers, so that neither a scrape nor a proxy takes a worker's time.
//!
//! Only this module and those below it name axum; `convert` alone knows both wire and domain types.

mod connection;
mod convert;
mod exposition;
mod host;
mod metrics;
mod parameters;
mod progress;
mod renderings;
mod routes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use renderings::Renderings;

use crate::grpc::{AdminCalls, Connections, Drained, Listener, Side};
use crate::limiter::Limiter;
use crate::store::{Roster, Store};
use crate::tls::Tls;

/// Most open connections; beyond, the oldest that does nothing makes room. A proxy keeps some per worker process of its own,
/// and each takes some 20 KiB at most.
pub const CONNECTIONS_MAX: usize = 1024;

/// What the handlers answer from.
struct Site<S> {
    limiter: Limiter<S>,
    told: Told,
    ready: AtomicBool,
    /// Of the metrics.
    renderings: Renderings,
}

/// What the metrics tell of beside decisions.
pub struct Told {
    /// Those of gRPC.
    pub grpc_connections: Connections,
    /// If there may be any.
    pub admin_calls: Option<AdminCalls>,
    /// Of every worker, and of this server.
    pub stores: Roster,
    /// If anything is encrypted.
    pub tls: Option<Arc<Tls>>,
    /// How many lines of the log were dropped, since nobody read it fast enough.
    pub log_lines_dropped: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// A running HTTP server. It ends when dropped, at once.
pub struct Server {
    /// What [`Self::drain`] tells the handlers.
    unready: Box<dyn Fn() + Send + Sync>,
    side: Side,
}

impl Server {
    /// Serves on `listener`, at most so many connections at once: decides by `limiter`, and tells of it, of those beside it and
    /// of `told`.
    ///
    /// Must be called within a tokio runtime, whose time it takes.
    pub fn start<S: Store>(listener: Listener, limiter: Limiter<S>, told: Told, connections: usize) -> Self {
        let site = Arc::new(Site { limiter, told, ready: AtomicBool::new(true), renderings: Renderings::default() });
        let router = routes::router(site.clone()).layer(axum::middleware::from_fn(host::require));
        let side = Side::start(listener, connections.min(CONNECTIONS_MAX), move |accepted, visit, stopping| {
            connection::serve(accepted, visit, router.clone(), stopping)
        });
        Self { unready: Box::new(move || site.ready.store(false, Ordering::Relaxed)), side }
    }

    /// Waits for the end that nobody asked for: its listener fails for good.
    pub async fn lost(&mut self) -> String {
        self.side.lost().await
    }

    /// Says from now on that this process is not ready, and goes on.
    pub fn drain(&self) {
        (self.unready)();
    }

    /// Takes no more connections in, answers what is under way, and ends.
    pub async fn stop(self) -> Drained {
        self.side.stop().await
    }
}
