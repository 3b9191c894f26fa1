//! The server that a connection manager connects to, and the log line for its loss.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::monotonic;
use crate::redis::sentinel::MasterWatch;
use crate::redis::target::ServerAddress;
use crate::{ConnectionHealth, StoreError, StoreState};

/// The server that a connection manager connects to.
pub(in crate::redis) enum Endpoint {
    Fixed(ServerAddress),
    /// The master that the Sentinels name.
    Named(MasterWatch),
}

impl Endpoint {
    /// The server to connect to now. Waits until the Sentinels have named one.
    pub(super) async fn peer(&self) -> ServerAddress {
        match self {
            Self::Fixed(peer) => peer.clone(),
            Self::Named(watch) => ServerAddress::Tcp(watch.master().await),
        }
    }

    /// Waits until the server to connect to is not `peer` any more.
    pub(super) async fn peer_changed(&self, peer: &ServerAddress) {
        match (self, peer) {
            (Self::Named(watch), ServerAddress::Tcp(address)) => {
                watch.master_other_than(address).await
            }
            _ => std::future::pending().await,
        }
    }
}

/// For logs.
impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(peer) => write!(out, "{peer}"),
            Self::Named(_) => out.write_str("the master that Sentinels name"),
        }
    }
}

/// Logs that the store is out of reach. Each worker finds that out by itself, so equal lines within a second are logged once.
pub(super) fn log_out_of_reach(server: &Endpoint, error: &StoreError, health: ConnectionHealth) {
    const ALIKE_WITHIN: Duration = Duration::from_secs(1);
    static LAST: Mutex<Option<(String, Instant)>> = Mutex::new(None);
    let (line, now) = (format!("{server}: {error}"), monotonic());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.as_ref().is_some_and(|(last, when)| {
        *last == line && now.saturating_duration_since(*when) < ALIKE_WITHIN
    }) {
        return;
    }
    *last = Some((line, now));
    drop(last);
    tracing::warn!(%server, "store out of reach: {}", StoreState::new(&[health]));
}
