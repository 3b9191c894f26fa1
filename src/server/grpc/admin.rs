//! The admin side, on a listener of its own: `tollgate.v1.AdminService`, health and reflection.
//!
//! Other listeners neither serve the admin service nor describe it by reflection.

mod calls;
mod reload;
mod service;
mod token;

use std::future::poll_fn;
use std::sync::Arc;

use h2::RecvStream;
use h2::server::SendResponse;
use hyper::Request;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::Service as _;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::health_reporter;

use super::pb;
use super::pb::admin_service_server::{AdminServiceServer, SERVICE_NAME};
use super::receive::{InboundBody, RequestBody};
use super::{protocol, services};
use crate::limiter::{Limiter, Overrides, TopKeys};
use crate::transport::AuxServer;
use crate::transport::account::{Account, WorkerAccount};
use crate::transport::connection::{CallStarter, ConnectionOptions, STREAM_WINDOW_BYTES};
use crate::transport::send::{Chunk, Sending};
use crate::transport::{Drained, Listener, connection};
pub use calls::AdminCalls;
pub use reload::{ReloadOutcome, ReloadRequest, Reloaded, Reloader, reloader};
use service::Admin;
pub use token::{TOKEN_BYTES_MIN, TokenFile};
use tollgate_store::{Store, StoreRegistry};

/// Maximum number of open connections; more are closed as soon as they are accepted. Operators and their tools need few.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of streams that a connection may have open at once.
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
    /// The overrides.
    pub overrides: Overrides,
    /// The connections to Redis, whose breakers are told.
    pub stores: StoreRegistry,
    /// Asks for a reload of the config file.
    pub reloader: Reloader,
    /// The number of replicas that the config names. `None`: they count each other.
    pub replicas: Option<u64>,
    /// The token that calls must carry. `None` lets in every caller that can connect.
    pub token: Option<TokenFile>,
    /// Counts the calls.
    pub calls: AdminCalls,
    /// Maximum number of open connections; 64 at most in any case.
    pub connections: usize,
}

/// A running admin server. Dropping it ends it at once.
pub struct AdminServer(AuxServer);

impl AdminServer {
    /// Serves on `listener`. Must be called within a tokio runtime, on which it runs.
    pub async fn start<S: Store>(listener: Listener, parts: AdminParts<S>) -> Self {
        let connections = parts.connections.min(CONNECTIONS_MAX);
        let routes = routes(parts).await;
        let kept = WorkerAccount::default();
        Self(AuxServer::start(
            listener,
            connections,
            move |accepted, admission, stopping| {
                // Marked as in use for good, so that connections of operators are never closed to make room.
                admission.usage().begin();
                let account = kept.open();
                let calls = AdminConnection {
                    routes: routes.clone(),
                    account: account.clone(),
                };
                let draining = watch::channel(false).0;
                let window = STREAM_WINDOW_BYTES;
                let options = ConnectionOptions {
                    streams: STREAMS_MAX,
                    window,
                    age: None,
                    draining,
                    admission,
                    account,
                    busy: || false,
                };
                connection::serve(accepted, calls, options, stopping)
            },
        ))
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

/// Begins the calls of a connection.
struct AdminConnection {
    routes: Routes,
    account: Arc<Account>,
}

impl CallStarter<()> for AdminConnection {
    fn start(&self, request: Request<RecvStream>, respond: SendResponse<Chunk<()>>) {
        let account = self.account.clone();
        let request = request.map(|body| RequestBody::Stream(InboundBody::new(body, &account)));
        tokio::spawn(answer(self.routes.clone(), request, respond, account));
    }
}

/// Answers a call. Dropping the future resets its stream, unless all was sent.
async fn answer(
    mut routes: Routes,
    request: Request<RequestBody>,
    mut respond: SendResponse<Chunk<()>>,
    account: Arc<Account>,
) {
    let response = match protocol::refuse::<_, Body>(&request) {
        Some(refused) => refused,
        None => {
            // The router is always ready, so `poll_ready` is not called.
            let responding = routes.call(request);
            tokio::select! {
                Ok(response) = responding => protocol::own_answer(response),
                // The peer has reset the stream, or the connection has ended.
                _ = poll_fn(|context| respond.poll_reset(context)) => return,
            }
        }
    };
    if let Some(mut sending) = Sending::begin(&mut respond, response, account, true) {
        poll_fn(|context| sending.poll(context)).await;
    }
}

async fn routes<S: Store>(parts: AdminParts<S>) -> Routes {
    let (health, health_service) = health_reporter();
    health.set_service_status("", ServingStatus::Serving).await;
    health
        .set_service_status(SERVICE_NAME, ServingStatus::Serving)
        .await;
    let admin = AdminServiceServer::new(Admin::new(parts))
        .accept_compressed(CompressionEncoding::Gzip)
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    services::health_and_reflection(health_service, &[pb::ADMIN_FILE_DESCRIPTOR_SET])
        .add_service(admin)
        .prepare()
}
