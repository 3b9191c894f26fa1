//! The servers on the main thread: HTTP and the admin service.

use futures_util::future::OptionFuture;

use crate::grpc::AdminServer;
use crate::http;
use crate::transport::Drained;

/// The servers on the main thread, beside gRPC's decisions.
pub(super) struct AuxServers {
    pub(super) http: Option<http::Server>,
    pub(super) admin: Option<AdminServer>,
}

impl AuxServers {
    /// Waits until one of the servers ends on its own. Returns which one and why.
    pub(super) async fn lost(&mut self) -> String {
        tokio::select! {
            error = lost(&mut self.http, http::Server::lost) => format!("HTTP: {error}"),
            error = lost(&mut self.admin, AdminServer::lost) => format!("admin: {error}"),
        }
    }

    pub(super) fn drain(&self) {
        if let Some(http) = &self.http {
            http.drain();
        }
    }

    pub(super) async fn stop(self) -> Drained {
        let http = self.http.map(http::Server::stop);
        let admin = self.admin.map(AdminServer::stop);
        match tokio::join!(OptionFuture::from(http), OptionFuture::from(admin)) {
            (None | Some(Drained::Clean), None | Some(Drained::Clean)) => Drained::Clean,
            _ => Drained::Cut,
        }
    }
}

/// Waits until the server ends, and then removes it.
async fn lost<T>(aux_server: &mut Option<T>, wait: impl AsyncFnOnce(&mut T) -> String) -> String {
    let Some(running) = aux_server else {
        return std::future::pending().await;
    };
    let error = wait(running).await;
    *aux_server = None;
    error
}
