//! The gRPC side: `tollgate.v1.RateLimitService`, health and reflection on every listener, and `admin` on its own.
//!
//! One acceptor hands each connection to a worker, a thread with a runtime of its own, which serves it to its end.
//!
//! Only this module and those below it name tonic and prost; `convert` alone knows both wire and domain types. Addresses,
//! listeners and sockets know no protocol, so `http` takes them from here.

mod acceptor;
mod admin;
mod client;
pub mod codec;
mod connection;
mod convert;
mod crew;
mod listener;
mod preface;
mod service;
mod services;
mod socket;
mod span;
mod workers;

use std::future::Future;
use std::io;

pub(crate) use acceptor::accept;
pub use admin::{
    AdminCalls, AdminParts, AdminServer, ReloadAsked, ReloadOutcome, Reloaded, Reloader, TOKEN_BYTES_MIN, TokenFile, reloader,
};
pub use client::{Answer, ask};
pub use crew::Connections;
pub use listener::{Address, AddressError, BindError, Listener};
pub use service::Service;
pub(crate) use socket::{Accepted, Socket};
pub use workers::{StartError, Workers};

/// The generated messages and services.
#[allow(missing_docs, clippy::all, clippy::pedantic, reason = "generated; the proto file is the manual")]
pub mod pb {
    tonic::include_proto!("tollgate.v1");
    /// Descriptors of the contract, for reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tollgate.binpb"));
    /// Descriptors of the admin service and of the messages that it shares with the contract, for reflection on its listener.
    pub const ADMIN_FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/admin.binpb"));
}

/// Name under which health tells whether this server decides; "" tells whether it is alive.
pub const HEALTH_SERVICE: &str = "tollgate.v1.RateLimitService";

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every call was answered and every connection closed.
    Clean,
    /// Some connection did not close in time and was cut.
    Cut,
}

/// Why a server ended although nobody told it to: one that cannot be reached, or only in part, must not stay.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A listener listens no more.
    #[error("the listener at {0} failed: {1}")]
    Listener(Address, io::Error),
    /// The thread of a worker panicked, which standard error tells of.
    #[error("a worker ended")]
    Worker,
}

/// Serves on `listeners` by `workers` until `shutdown` resolves, then drains: health says NOT_SERVING, connections are told
/// to go away, those that never spoke are dropped, calls under way are answered, and after 8 seconds what is left is cut.
///
/// Each connection is served by one worker, the one that has the fewest. Runs the acceptor on the caller's runtime.
///
/// Errors: the server ended by itself, after it was drained as well.
pub async fn serve(
    listeners: Vec<Listener>,
    workers: Workers,
    shutdown: impl Future<Output = ()>,
) -> Result<Drained, ServeError> {
    let Workers { crew, mut ends } = workers;
    let failed = tokio::select! {
        () = shutdown => None,
        error = acceptor::accept(listeners, |accepted| crew.hand(accepted)) => Some(error),
        () = ends.lost() => Some(ServeError::Worker),
    };
    let drained = ends.drain(crew).await;
    failed.map_or(Ok(drained), Err)
}
