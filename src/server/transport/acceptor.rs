//! The acceptor: accepts connections on every listener and passes each on; gRPC connections go to a worker.
//!
//! It does nothing else, so a busy worker never delays connections of other workers.

use std::io;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::socket::Accepted;
use super::{Listener, ServeError};
use crate::log_throttle::LogThrottle;
use tollgate_store::clock::monotonic;

/// Pause after a failed accept, before the next attempt.
const PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two log lines about the same kind of failure: connections can fail by the thousand.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Accepts connections until a listener fails for good, and passes each one to `take`.
///
/// `take` returns whether there was room for the connection; otherwise the connection is closed.
pub(crate) async fn accept(listeners: &[Listener], take: impl Fn(Accepted) -> bool) -> ServeError {
    let mut accepting: FuturesUnordered<_> = listeners
        .iter()
        .map(|listener| accept_on(listener, &take))
        .collect();
    match accepting.next().await {
        Some(error) => error,
        // Without a listener, nothing can fail.
        None => std::future::pending().await,
    }
}

async fn accept_on(listener: &Listener, take: &impl Fn(Accepted) -> bool) -> ServeError {
    let failures = LogThrottle::new(LOG_EVERY);
    let refusals = LogThrottle::new(LOG_EVERY);
    loop {
        match listener.accept().await {
            Ok(accepted) => {
                if !take(accepted)
                    && let Some(times) = refusals.due(monotonic())
                {
                    tracing::warn!(address = %listener.address(), times, "closed connections: too many are open");
                }
            }
            Err(error) if is_final(&error) => {
                return ServeError::Listener(listener.address().clone(), error);
            }
            // The peer closed the connection before it was accepted. This is not a failure of ours, so no pause follows.
            Err(error) if is_caused_by_peer(&error) => {}
            Err(error) => {
                if let Some(times) = failures.due(monotonic()) {
                    tracing::warn!(address = %listener.address(), %error, times, "cannot accept a connection");
                }
                // Most likely the process is out of file descriptors. An immediate retry would only burn processor time.
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Whether the socket no longer listens: EINVAL. Source: accept(2).
fn is_final(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

fn is_caused_by_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}
