//! The gRPC side: `tollgate.v1.RateLimitService`, Envoy's Rate Limit Service, health and reflection on every gRPC listener, and `admin` on a listener
//! of its own.
//!
//! `transport` accepts connections and assigns each to a worker. A worker is a thread with its own runtime. It serves a
//! connection until the connection ends.
//!
//! Only this module and those below it name tonic and prost. Only `convert` knows both wire and domain types.

mod admin;
mod answer;
mod calls;
mod client;
mod code;
pub mod codec;
mod convert;
mod drain;
pub mod envoy;
#[cfg(test)]
mod fuzz;
mod hold_stream;
mod holds;
mod in_memory;
mod lenient_decode;
mod protocol;
mod receive;
mod service;
mod services;
mod span;
mod stream;
mod unary;
mod workers;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use crate::transport::{Drained, Listener, ServeError, accept};
pub use admin::{
    AdminCalls, AdminParts, AdminServer, ReloadOutcome, ReloadRequest, Reloaded, Reloader,
    TOKEN_BYTES_MIN, TokenFile, reloader,
};
pub use client::{
    AdminAnswer, AdminQuestion, AdminToken, AnswerForm, ClientConnection, Health, HoldQuestion,
    OverrideQuestion, PrintedAnswer, Question, QuotaQuestion, SubjectQuestion, Target, TopQuestion,
    TopRow, TopTable,
};
use envoy::pb::service::ratelimit::v3::rate_limit_service_server::RateLimitService as EnvoyService;
pub use in_memory::InMemoryServer;
use pb::hold_service_server::HoldService;
use pb::rate_limit_service_server::RateLimitService;
pub use service::Service;
pub use workers::{StartError, Workers};

/// The generated messages and services.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    reason = "generated; the proto file is the manual"
)]
pub mod pb {
    tonic::include_proto!("tollgate.v1");
    /// Descriptors of the contract, for reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/tollgate.binpb"));
    /// Descriptors of the admin service and of the messages that it shares with the contract, for reflection on the admin
    /// listener.
    pub const ADMIN_FILE_DESCRIPTOR_SET: &[u8] =
        include_bytes!(concat!(env!("OUT_DIR"), "/admin.binpb"));
}

/// The future of an encoded message that several answers share.
pub type SharedMessage = Pin<Box<dyn Future<Output = Result<Arc<[u8]>, tonic::Status>> + Send>>;

/// What workers serve on the listeners of callers.
pub trait WorkerService: RateLimitService + HoldService + EnvoyService {
    /// Whether tonic's server answers unary calls, too. By default it answers only those that are compressed.
    const UNARY_BY_TONIC: bool = false;

    /// The answer to `ListPlans` as an encoded message with its prefix, which all answers share. `None`: the method answers by itself.
    fn listed_plans(&self) -> Option<SharedMessage> {
        None
    }

    /// Whether reflection lists Envoy's service now.
    fn serves_envoy(&self) -> bool {
        false
    }
}

/// Service name whose health says whether this server takes calls. The health of "" says whether it is alive.
pub const HEALTH_SERVICE: &str = "tollgate.v1.RateLimitService";
/// The services of callers, which have that health.
const CALLERS_SERVICES: [&str; 2] = [HEALTH_SERVICE, "tollgate.v1.HoldService"];

/// Serves on `listeners` with `workers` until `shutdown` resolves, and for the duration that it resolves to after that.
/// During that time, health says NOT_SERVING.
///
/// Then it drains: connections get GOAWAY, silent ones are closed, calls in progress are answered, and streams end. After 5
/// seconds, the rest is cut.
///
/// Each connection is served by one worker: the one with the fewest connections. The acceptor runs on the caller's runtime.
///
/// Errors: the reason why the server ended without being asked to. It was drained then, too.
pub async fn serve(
    listeners: Vec<Listener>,
    workers: Workers,
    shutdown: impl Future<Output = Duration>,
) -> Result<Drained, ServeError> {
    let Workers {
        pool,
        mut ends,
        handles,
    } = workers;
    // The HTTP server took them at its start, if there is one. Else they would keep the workers running after the drain.
    drop(handles);
    let take = |accepted| pool.assign(accepted);
    let unready = ends.unready();
    let failed = {
        let serving = async {
            tokio::select! {
                error = accept(&listeners, take) => error,
                () = ends.lost() => ServeError::Worker,
            }
        };
        let mut serving = pin!(serving);
        tokio::select! {
            error = serving.as_mut() => {
                unready.await;
                Some(error)
            }
            lame_duck = shutdown => {
                unready.await;
                tokio::time::timeout(lame_duck, serving).await.ok()
            }
        }
    };
    tracing::info!("stopping: no new calls, answering those under way");
    // Without it, clients that have connected but were not accepted would be reset, perhaps with a call already sent.
    for accepted in listeners.into_iter().flat_map(Listener::close) {
        take(accepted);
    }
    let drained = ends.drain(pool).await;
    failed.map_or(Ok(drained), Err)
}
