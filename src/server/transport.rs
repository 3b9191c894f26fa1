//! Parts of the server that gRPC and HTTP share: addresses, listeners, sockets, admission of connections, the worker pool, and
//! HTTP/2 connections.
//!
//! This module knows no protocol above HTTP/2 and no rate limits. Its users pass in the services to serve.

mod acceptor;
pub(crate) mod account;
mod admission;
mod authority;
mod aux_server;
pub(crate) mod connection;
mod header_block;
mod listener;
pub(crate) mod pool;
mod preface;
pub(crate) mod send;
mod socket;
pub(crate) mod turns;
mod worker_handles;

use std::io;

pub(crate) use acceptor::accept;
pub(crate) use admission::{AdmissionPermit, Usage};
pub(crate) use aux_server::AuxServer;
pub(crate) use connection::wait_until_stopped;
pub use listener::{Address, AddressError, BindError, Listener};
pub use pool::{CONNECTIONS_MAX, Connections};
pub(crate) use socket::{Accepted, Socket};
pub use worker_handles::WorkerHandles;

/// How a server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Every call was answered and every connection closed.
    Clean,
    /// Some connection did not close in time and was cut.
    Cut,
}

/// Why a server ended without a signal to stop. If a listener or a worker is lost, the process ends, so that an orchestrator
/// replaces it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A listener failed for good.
    #[error("the listener at {0} failed: {1}")]
    Listener(Address, io::Error),
    /// The thread of a worker panicked. Standard error has the panic message.
    #[error("a worker ended")]
    Worker,
}
