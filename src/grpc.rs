//! The gRPC side: `tollgate.v1.RateLimitService`, health and reflection on every listener, and `admin` on its own.
//!
//! One acceptor hands each connection to a worker, a thread with a runtime of its own, which serves it to its end.
//!
//! Only this module and those below it name tonic and prost; `convert` alone knows both wire and domain types. Addresses,
//! listeners and sockets know no protocol, so `http` takes them from here.

mod acceptor;
mod admin;
mod admission;
mod answer;
mod authority;
mod calls;
mod client;
mod code;
pub mod codec;
mod connection;
mod convert;
mod crew;
#[cfg(test)]
mod fuzz;
mod leaving;
mod listener;
mod preface;
mod protocol;
mod receive;
mod salvage;
mod service;
mod services;
mod side;
mod socket;
mod span;
mod stream;
mod workers;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use acceptor::accept;
pub use admin::{
    AdminCalls, AdminParts, AdminServer, ReloadAsked, ReloadOutcome, Reloaded, Reloader, TOKEN_BYTES_MIN, TokenFile, reloader,
};
pub(crate) use admission::{Usage, Visit};
pub use client::{Answer, ask};
pub(crate) use connection::stopped;
pub use crew::{CONNECTIONS_MAX, Connections};
pub use listener::{Address, AddressError, BindError, Listener};
pub use service::Service;
pub(crate) use side::Side;
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

/// Serves on `listeners` by `workers` until `shutdown` resolves, and for as long after it as that says, with health saying
/// NOT_SERVING. Then drains: connections are told to go away, those that never spoke are dropped, calls under way are
/// answered, streams end, and after 5 seconds what is left is cut.
///
/// Each connection is served by one worker, the one that has the fewest. Runs the acceptor on the caller's runtime.
///
/// Errors: the server ended by itself, after it was drained as well.
pub async fn serve(
    listeners: Vec<Listener>,
    workers: Workers,
    shutdown: impl Future<Output = Duration>,
) -> Result<Drained, ServeError> {
    let Workers { crew, mut ends } = workers;
    let (hand, unready) = (|accepted| crew.hand(accepted), ends.unready());
    let failed = {
        let serving = async {
            tokio::select! {
                error = acceptor::accept(&listeners, hand) => error,
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
    // Else whoever has connected but was not taken in yet would be reset, with a call sent perhaps.
    for accepted in listeners.into_iter().flat_map(Listener::close) {
        hand(accepted);
    }
    let drained = ends.drain(crew).await;
    failed.map_or(Ok(drained), Err)
}
