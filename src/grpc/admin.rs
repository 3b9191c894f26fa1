//! The admin side, on a listener of its own: `tollgate.v1.AdminService`, health and reflection.
//!
//! Other listeners neither serve the admin service nor describe it by reflection.

mod calls;
mod reload;
mod service;
mod token;

use std::sync::Arc;

use futures_util::future::Either;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioExecutor;
use tokio::sync::watch;
use tonic::codec::CompressionEncoding;
use tonic::codegen::Service as _;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::health_reporter;

use super::pb;
use super::pb::admin_service_server::{AdminServiceServer, SERVICE_NAME};
use super::{protocol, services};
use crate::limiter::{Limiter, TopKeys};
use crate::server::AuxServer;
use crate::server::connection::{ConnectionOptions, STREAM_WINDOW_BYTES};
use crate::server::{Drained, Listener, connection};
use crate::store::{Store, StoreRegistry};
pub use calls::AdminCalls;
pub use reload::{ReloadOutcome, ReloadRequest, Reloaded, Reloader, reloader};
use service::Admin;
pub use token::{TOKEN_BYTES_MIN, TokenFile};

/// Most open connections; more are closed as soon as they are accepted. Operators and their tools need few.
const CONNECTIONS_MAX: usize = 64;
/// Most streams that a connection may have open at once.
const STREAMS_MAX: u32 = 16;
/// Largest request, in bytes. The longest key and name take 600. A request three times as long still gets an error that
/// names the fault. 64 connections of 16 calls each take 2 MiB.
const REQUEST_BYTES_MAX: usize = 2 << 10;

/// What the admin service needs.
pub struct AdminParts<S> {
    /// Resets, refunds and explains. Its remembered denials, and those of the limiters beside it, are dropped.
    pub limiter: Arc<Limiter<S>>,
    /// The heaviest keys.
    pub top: TopKeys,
    /// The connections to Redis, whose breakers are told.
    pub stores: StoreRegistry,
    /// Asks for a reload of the config file.
    pub reloader: Reloader,
    /// The token that calls must carry. `None` lets in every caller that can connect.
    pub token: Option<TokenFile>,
    /// Counts the calls.
    pub calls: AdminCalls,
    /// Most open connections; 64 at most in any case.
    pub connections: usize,
}

/// A running admin server. Dropping it ends it at once.
pub struct AdminServer(AuxServer);

impl AdminServer {
    /// Serves on `listener`. Must be called within a tokio runtime, on which it runs.
    pub async fn start<S: Store>(listener: Listener, parts: AdminParts<S>) -> Self {
        let connections = parts.connections.min(CONNECTIONS_MAX);
        let routes = routes(parts).await;
        Self(AuxServer::start(listener, connections, move |accepted, admission, stopping| {
            // Marked as in use for good, so that connections of operators are never closed to make room.
            admission.usage().begin();
            let routes = routes.clone();
            let service = service_fn(move |request: Request<Incoming>| match protocol::refuse(&request) {
                Some(refused) => Either::Left(std::future::ready(Ok(refused))),
                // The router is always ready, so `poll_ready` is not called.
                None => Either::Right(routes.clone().call(request)),
            });
            let (executor, draining, window) = (TokioExecutor::new(), watch::channel(false).0, STREAM_WINDOW_BYTES);
            let options =
                ConnectionOptions { executor, streams: STREAMS_MAX, window, age: None, draining, admission, busy: || false };
            connection::serve(accepted, service, options, stopping)
        }))
    }

    /// Waits until the listener fails for good, and returns the reason.
    pub async fn lost(&mut self) -> String {
        self.0.lost().await
    }

    /// Stops accepting, waits for unfinished answers, and ends.
    pub async fn stop(self) -> Drained {
        self.0.stop().await
    }
}

async fn routes<S: Store>(parts: AdminParts<S>) -> Routes {
    let (health, health_service) = health_reporter();
    health.set_service_status("", ServingStatus::Serving).await;
    health.set_service_status(SERVICE_NAME, ServingStatus::Serving).await;
    let admin = AdminServiceServer::new(Admin::new(parts))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    services::health_and_reflection(health_service, &[pb::ADMIN_FILE_DESCRIPTOR_SET]).add_service(admin).prepare()
}
