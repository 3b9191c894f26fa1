//! The admin side, on a listener of its own: `tollgate.v1.AdminService`, with health and reflection.
//!
//! Nothing of it is served, or told of by reflection, on any other listener.

mod calls;
mod reload;
mod service;
mod token;

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

use super::connection::{Manners, STREAM_WINDOW_BYTES};
use super::pb;
use super::pb::admin_service_server::{AdminServiceServer, SERVICE_NAME};
use super::side::Side;
use super::{Drained, Listener, connection, protocol, services};
use crate::limiter::Limiter;
use crate::store::Store;
pub use calls::AdminCalls;
pub use reload::{ReloadAsked, ReloadOutcome, Reloaded, Reloader, reloader};
use service::Admin;
pub use token::{TOKEN_BYTES_MIN, TokenFile};

/// Most open connections; more are closed as soon as they are accepted. Operators and their tools are few.
const CONNECTIONS_MAX: usize = 64;
/// Streams that one of them may have open at once.
const STREAMS_MAX: u32 = 16;
/// Largest request: the longest key and name take 600 bytes, and one three times as long is still told what is wrong with
/// it. 64 connections of 16 calls each take 2 MiB of them.
const REQUEST_BYTES_MAX: usize = 2 << 10;

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
    /// Connections at once, at most; 64 is a bound of its own.
    pub connections: usize,
}

/// A running admin server. It ends when dropped, at once.
pub struct AdminServer(Side);

impl AdminServer {
    /// Serves on `listener`. Must be called within a tokio runtime, whose time it takes.
    pub async fn start<S: Store>(listener: Listener, parts: AdminParts<S>) -> Self {
        let connections = parts.connections.min(CONNECTIONS_MAX);
        let routes = routes(parts).await;
        Self(Side::start(listener, connections, move |accepted, visit, stopping| {
            // Operators keep their places.
            visit.usage().begin();
            let routes = routes.clone();
            let service = service_fn(move |request: Request<Incoming>| match protocol::refuse(&request) {
                Some(refused) => Either::Left(std::future::ready(Ok(refused))),
                // Always ready, so it is not asked whether it is.
                None => Either::Right(routes.clone().call(request)),
            });
            let (executor, leave, window) = (TokioExecutor::new(), watch::channel(false).0, STREAM_WINDOW_BYTES);
            let manners = Manners { executor, streams: STREAMS_MAX, window, age: None, leave, visit, busy: || false };
            connection::serve(accepted, service, manners, stopping)
        }))
    }

    /// Waits for the end that nobody asked for: its listener fails for good.
    pub async fn lost(&mut self) -> String {
        self.0.lost().await
    }

    /// Takes no more connections in, answers what is under way, and ends.
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
    services::others(health_service, pb::ADMIN_FILE_DESCRIPTOR_SET).add_service(admin).prepare()
}
