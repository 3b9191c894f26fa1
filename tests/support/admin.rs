//! A server that the test calls as a client and as an operator.

use std::path::Path;

use tollgate::grpc::pb::admin_service_client::AdminServiceClient;
use tonic::transport::{Channel, Endpoint};

use super::server::{Client, Server};

/// The admin service behind this socket.
pub async fn admin_at(socket: &Path) -> AdminServiceClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
    AdminServiceClient::new(endpoint.connect().await.unwrap())
}

/// A server with an admin listener, and a client of each service.
pub struct AdminFixture {
    folder: tempfile::TempDir,
    pub server: Server,
    pub client: Client,
    pub admin: AdminServiceClient<Channel>,
}

impl AdminFixture {
    /// Starts a server with this config and further `flags`.
    pub async fn start(config: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("admin.sock");
        let listen = format!("listen.admin=unix:{}", socket.display());
        let server = Server::start(config, &[&["--set", &listen], flags].concat());
        Self {
            client: server.client().await,
            admin: admin_at(&socket).await,
            folder,
            server,
        }
    }

    /// The address of the admin listener, as the command line takes it.
    pub fn address(&self) -> String {
        format!("unix:{}", self.folder.path().join("admin.sock").display())
    }
}
