//! Serves connections over byte streams in memory, so that what a decision costs can be counted without sockets and threads.

use std::rc::Rc;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tonic_health::server::health_reporter;

use super::WorkerService;
use super::calls::CallLimits;
use super::drain::DrainSignal;
use super::services::{OtherRoutes, Services};
use crate::transport::connection::H2Connection;
use crate::transport::turns::WorkerTurns;
use crate::transport::{Usage, pool};

/// Serves as a worker does, with all limits of calls. Left out is what needs a socket: its preface, its age, and its place
/// among other connections.
pub struct InMemoryServer {
    other_routes: OtherRoutes,
}

impl InMemoryServer {
    /// A server that knows of no service but health and reflection.
    #[expect(
        clippy::new_without_default,
        reason = "it reads descriptors, which a default should not cost"
    )]
    pub fn new() -> Self {
        let (_, health) = health_reporter();
        Self {
            other_routes: OtherRoutes::new(&health),
        }
    }

    /// Serves one connection until the peer closes it. It must run on a [`tokio::runtime::LocalRuntime`].
    pub async fn serve<T: WorkerService>(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        service: T,
    ) {
        let limits = CallLimits::new(Arc::default(), WorkerTurns::default());
        let calls = limits.connection(Arc::<Usage>::default());
        let account = calls.account().clone();
        let (_draining, drain) = watch::channel(false);
        let services = Rc::new(Services::new(service, self.other_routes.clone(), limits));
        let service = services.for_connection(calls, DrainSignal(drain));
        let ended = match H2Connection::open(
            stream,
            account,
            pool::streams(0),
            pool::window(1),
            Arc::default(),
        )
        .await
        {
            Ok(mut connection) => connection.run(&service).await,
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }
}
