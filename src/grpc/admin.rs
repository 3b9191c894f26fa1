//! The admin side, on a listener of its own: `tollgate.v1.AdminService`, with health and reflection.
//!
//! Runs beside the acceptor on the runtime of the main thread, so that it takes no worker's time. Nothing of it is served, or
//! told of by reflection, on any other listener.

mod calls;
mod reload;
mod service;
mod token;

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioExecutor;
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::health_reporter;

use super::connection::Manners;
use super::pb;
use super::pb::admin_service_server::{AdminServiceServer, SERVICE_NAME};
use super::socket::Accepted;
use super::{Drained, Listener, ServeError, accept, connection, services};
use crate::limiter::Limiter;
use crate::store::Store;
pub use calls::AdminCalls;
pub use reload::{ReloadAsked, ReloadOutcome, Reloaded, Reloader, reloader};
use service::Admin;
pub use token::{TOKEN_BYTES_MIN, TokenFile};

/// Most open connections; more are closed as soon as they are accepted. Operators and their tools are few.
const CONNECTIONS_MAX: usize = 64;
/// Streams that one of them may have open at once.
const STREAMS_MAX: u32 = 64;
/// Largest request: the longest key and name are far below, and one that is too long is still told so.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Longest that calls under way hold up the end, once gRPC has ended: with its 8.5 s within the 10 that are promised.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

/// What the admin service works by.
pub struct AdminParts<S> {
    /// Whose store forgets and gives back, and the denials of it and of those beside it.
    pub limiter: Limiter<S>,
    /// Where to ask for the config file to be taken up.
    pub reloader: Reloader,
    /// What calls must carry; `None` lets in whoever can connect.
    pub token: Option<TokenFile>,
    /// Where they are counted.
    pub calls: AdminCalls,
}

/// A running admin server. It ends when dropped, at once.
pub struct AdminServer {
    stop: watch::Sender<bool>,
    accepting: JoinHandle<ServeError>,
}

impl AdminServer {
    /// Serves on `listener`. Must be called within a tokio runtime, whose time it takes.
    pub async fn start<S: Store>(listener: Listener, parts: AdminParts<S>) -> Self {
        let (stop, stopping) = watch::channel(false);
        let (routes, seats) = (routes(parts).await, Arc::new(Semaphore::new(CONNECTIONS_MAX)));
        let hand = move |accepted: Accepted| {
            let Ok(seat) = seats.clone().try_acquire_owned() else { return false };
            let service = TowerToHyperService::new(routes.clone());
            let (executor, leave) = (TokioExecutor::new(), watch::channel(false).0);
            let manners = Manners { executor, streams: STREAMS_MAX, age: None, leave, busy: || false };
            let served = connection::serve(accepted, service, manners, stopping.clone());
            tokio::spawn(async move {
                served.await;
                drop(seat);
            });
            true
        };
        Self { stop, accepting: tokio::spawn(async move { accept(&[listener], hand).await }) }
    }

    /// Waits for the end that nobody asked for: its listener fails for good.
    pub async fn lost(&mut self) -> String {
        match (&mut self.accepting).await {
            Ok(error) => error.to_string(),
            Err(panicked) => panicked.to_string(),
        }
    }

    /// Takes no more connections in, answers what is under way, and ends.
    pub async fn stop(self) -> Drained {
        self.accepting.abort();
        // With it go its listener and its own handle on `stop`.
        let _ = self.accepting.await;
        self.stop.send_replace(true);
        match tokio::time::timeout(DRAIN_WITHIN, self.stop.closed()).await {
            Ok(()) => Drained::Clean,
            Err(_) => Drained::Cut,
        }
    }
}

async fn routes<S: Store>(parts: AdminParts<S>) -> Routes {
    let (health, health_service) = health_reporter();
    health.set_service_status("", ServingStatus::Serving).await;
    health.set_service_status(SERVICE_NAME, ServingStatus::Serving).await;
    let admin = AdminServiceServer::new(Admin::new(parts)).max_decoding_message_size(REQUEST_BYTES_MAX);
    services::others(health_service, pb::ADMIN_FILE_DESCRIPTOR_SET).add_service(admin).prepare()
}
