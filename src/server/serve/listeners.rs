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
    /// Binds all of them. Errors: a sentence that names the setting.
    pub(super) async fn bind(config: &Config, tls: Option<&Arc<Tls>>) -> Result<Self, String> {
        let secured = |listener: Listener| match tls {
            Some(tls) => listener.with_tls(tls.clone()),
            None => listener,
        };
        let mut grpc = Vec::new();
        for address in &config.listen.grpc {
            grpc.push(secured(bind(address, "listen.grpc").await?));
        }
        let listen = &config.listen;
        let http = bind_if_set(listen.http.as_ref(), "listen.http").await?;
        let metrics = bind_if_set(listen.metrics.as_ref(), "listen.metrics").await?;
        let admin = bind_if_set(listen.admin.as_ref(), "listen.admin").await?;
        let http = http.map(secured);
        let metrics = metrics.map(secured);
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

async fn bind(address: &Address, setting: &str) -> Result<Listener, String> {
    let told = |error: BindError| format!("{error} ({setting})");
    Listener::bind(address).await.map_err(told)
}

async fn bind_if_set(address: Option<&Address>, setting: &str) -> Result<Option<Listener>, String> {
    match address {
        Some(address) => bind(address, setting).await.map(Some),
        None => Ok(None),
    }
}
