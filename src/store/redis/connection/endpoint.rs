//! The server that a connection manager connects to, and the log line for its loss.

use std::fmt;

use super::outage_log::is_repeated;
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

    /// Why there is no server to connect to.
    pub(super) fn why_unnamed(&self) -> StoreError {
        let why = "no Sentinel has named a master yet";
        let last = match self {
            Self::Fixed(_) => None,
            Self::Named(watch) => watch.last_error(),
        };
        StoreError::Unreachable(last.map_or_else(
            || why.to_owned(),
            |last| format!("{why}; the last error is of {last}"),
        ))
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

/// Logs that this server is out of reach.
pub(super) fn log_out_of_reach(server: &Endpoint, error: &StoreError, health: ConnectionHealth) {
    if is_repeated(format!("{server}: {error}")) {
        return;
    }
    let sentence = sentence_on(server, &StoreState::new(&[health]));
    tracing::warn!(%server, "store out of reach: {sentence}");
}

/// The sentence on the store, about this server alone: others may decide, or not.
pub(super) fn sentence_on(server: &impl fmt::Display, state: &StoreState) -> String {
    state
        .to_string()
        .replacen("Redis", &format!("Redis at {server}"), 1)
}
