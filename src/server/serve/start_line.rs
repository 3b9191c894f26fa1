//! The log line that tells that a server has started, and what it serves.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::listeners::Listeners;
use crate::config::Origin;
use crate::limiter::Limiter;
use crate::transport::{Address, Listener};
use tollgate_store::{StoreRegistry, StoreTarget};

/// The content of the start line and, with the example plans, a command to try next.
pub(super) struct StartLine {
    limiter: Arc<Limiter<()>>,
    workers: NonZeroUsize,
    store: String,
    stores: StoreRegistry,
    origin: Origin,
    grpc: Vec<Address>,
    http: Option<Address>,
    metrics: Option<Address>,
    admin: Option<Address>,
    tls: Option<String>,
}

impl StartLine {
    pub(super) fn new(
        limiter: &Arc<Limiter<()>>,
        workers: NonZeroUsize,
        (store, stores): (&StoreTarget, &StoreRegistry),
        origin: Origin,
        listeners: &Listeners,
    ) -> Self {
        let address = |listener: &Listener| listener.address().clone();
        Self {
            limiter: limiter.clone(),
            workers,
            store: store.to_string(),
            stores: stores.clone(),
            origin,
            grpc: listeners.grpc.iter().map(address).collect(),
            http: listeners.http.as_ref().map(address),
            metrics: listeners.metrics.as_ref().map(address),
            admin: listeners.admin.as_ref().map(address),
            tls: listeners.encrypted(),
        }
    }

    pub(super) fn log(self) {
        let addresses: Vec<String> = self.grpc.iter().map(ToString::to_string).collect();
        let snapshot = self.limiter.snapshot();
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            config = %self.origin,
            config_hash = snapshot.config_hash(),
            plans = snapshot.plans().len(),
            workers = self.workers,
            store = %self.store,
            store_state = self.limiter.store_state(&self.stores).to_string(),
            grpc = addresses.join(","),
            http = self.http.as_ref().map(tracing::field::display),
            metrics = self.metrics.as_ref().map(tracing::field::display),
            admin = self.admin.as_ref().map(tracing::field::display),
            tls = self.tls,
            "tollgate is serving"
        );
        if self.origin == Origin::Example {
            let target = match self.grpc.first() {
                Some(Address::Unix { path, .. }) => format!("unix:{}", path.display()),
                _ => addresses.first().cloned().unwrap_or_default(),
            };
            tracing::info!(
                "no config was named, so these are example plans; try: grpcurl -plaintext -d '{{\"key\":\"alice\",\"plan\":\"free\"}}' \
                 {target} tollgate.v1.RateLimitService/ShouldAllow"
            );
        }
    }
}
