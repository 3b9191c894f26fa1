//! The sockets that `tollgate serve` listens on.

use std::sync::Arc;

use crate::config::Config;
use crate::tls::Tls;
use crate::transport::{Address, BindError, Listener};

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
        let http = bind_if_set(config.listen.http.as_ref()).await?.map(secured);
        let metrics = bind_if_set(config.listen.metrics.as_ref())
            .await?
            .map(secured);
        let admin = bind_if_set(config.listen.admin.as_ref()).await?;
        Ok(Self {
            grpc,
            http,
            metrics,
            admin,
        })
    }

    /// The addresses that use TLS, as text; `None` without any.
    pub(super) fn encrypted(&self) -> Option<String> {
        let encrypted = self
            .grpc
            .iter()
            .chain(&self.http)
            .chain(&self.metrics)
            .filter(|listener| listener.is_encrypted());
        let addresses: Vec<String> = encrypted
            .map(|listener| listener.address().to_string())
            .collect();
        (!addresses.is_empty()).then(|| addresses.join(","))
    }
}

async fn bind_if_set(address: Option<&Address>) -> Result<Option<Listener>, BindError> {
    match address {
        Some(address) => Listener::bind(address).await.map(Some),
        None => Ok(None),
    }
}
