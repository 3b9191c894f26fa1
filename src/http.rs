//! The HTTP side, on a port of its own: a check endpoint for proxies, health for probes, metrics for Prometheus.
//!
//! Runs beside the acceptor on the runtime of the main thread, so that neither a scrape nor a proxy takes a worker's time.
//!
//! Only this module and those below it name axum; `convert` alone knows both wire and domain types.

mod connection;
mod convert;
mod exposition;
mod metrics;
mod parameters;
mod routes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::grpc::{Accepted, AdminCalls, Connections, Drained, Listener, ServeError, accept};
use crate::limiter::Limiter;
use crate::store::{Roster, Store};
use crate::tls::Tls;

/// Most open connections; more are closed as soon as they are accepted. A proxy keeps some per worker process of its own,
/// and each takes some 20 KiB at most.
const CONNECTIONS_MAX: usize = 1024;
/// Longest that answers under way hold up the end, once gRPC has ended: with its 8.5 s at most within the 10 that are promised.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

/// What the handlers answer from.
struct Site<S> {
    limiter: Limiter<S>,
    told: Told,
    ready: AtomicBool,
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
}

/// A running HTTP server. It ends when dropped, at once.
pub struct Server {
    /// What [`Self::drain`] tells the handlers.
    unready: Box<dyn Fn() + Send + Sync>,
    stop: watch::Sender<()>,
    accepting: JoinHandle<ServeError>,
}

impl Server {
    /// Serves on `listener`: decides by `limiter`, and tells of it, of those beside it and of `told`.
    ///
    /// Must be called within a tokio runtime, whose time it takes.
    pub fn start<S: Store>(listener: Listener, limiter: Limiter<S>, told: Told) -> Self {
        let site = Arc::new(Site { limiter, told, ready: AtomicBool::new(true) });
        let (stop, stopping) = watch::channel(());
        let (router, seats) = (routes::router(site.clone()), Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        let hand = move |accepted: Accepted| {
            let Ok(seat) = seats.clone().try_acquire_owned() else { return false };
            let served = connection::serve(accepted, router.clone(), stopping.clone());
            tokio::spawn(async move {
                served.await;
                drop(seat);
            });
            true
        };
        let accepting = tokio::spawn(async move { accept(&[listener], hand).await });
        Self { unready: Box::new(move || site.ready.store(false, Ordering::Relaxed)), stop, accepting }
    }

    /// Waits for the end that nobody asked for: its listener fails for good.
    pub async fn lost(&mut self) -> String {
        match (&mut self.accepting).await {
            Ok(error) => error.to_string(),
            Err(panicked) => panicked.to_string(),
        }
    }

    /// Says from now on that this process is not ready, and goes on.
    pub fn drain(&self) {
        (self.unready)();
    }

    /// Takes no more connections in, answers what is under way, and ends.
    pub async fn stop(self) -> Drained {
        self.accepting.abort();
        // With it go its listener and its own handle on `stop`. Nobody hears it when no connection is open.
        let _ = self.accepting.await;
        let _ = self.stop.send(());
        match tokio::time::timeout(DRAIN_WITHIN, self.stop.closed()).await {
            Ok(()) => Drained::Clean,
            Err(_) => Drained::Cut,
        }
    }
}
