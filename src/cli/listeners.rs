//! The sockets that `tollgate serve` listens on.

use std::sync::Arc;

use crate::config::Config;
use crate::server::{BindError, Listener};
use crate::tls::Tls;

/// Every socket that the process listens on.
pub(super) struct Listeners {
    pub grpc: Vec<Listener>,
    pub http: Option<Listener>,
    pub metrics: Option<Listener>,
    pub admin: Option<Listener>,
}

impl Listeners {
    pub(super) async fn bind(config: &Config, tls: Option<&Arc<Tls>>) -> Result<Self, BindError> {
        let secured = |listener: Listener| match tls {
            Some(tls) => listener.with_tls(tls.clone()),
            None => listener,
        };
        let mut grpc = Vec::new();
        for address in &config.listen.grpc {
            grpc.push(secured(Listener::bind(address).await?));
        }
        let http = match &config.listen.http {
            Some(address) => Some(secured(Listener::bind(address).await?)),
            None => None,
        };
        let metrics = match &config.listen.metrics {
            Some(address) => Some(secured(Listener::bind(address).await?)),
            None => None,
        };
        let admin = match &config.listen.admin {
            Some(address) => Some(Listener::bind(address).await?),
            None => None,
        };
        Ok(Self { grpc, http, metrics, admin })
    }

    /// The addresses that use TLS, as text; `None` without any.
    pub(super) fn encrypted(&self) -> Option<String> {
        let encrypted = self.grpc.iter().chain(&self.http).chain(&self.metrics).filter(|listener| listener.is_encrypted());
        let addresses: Vec<String> = encrypted.map(|listener| listener.address().to_string()).collect();
        (!addresses.is_empty()).then(|| addresses.join(","))
    }
}
