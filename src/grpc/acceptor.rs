//! The acceptor: takes connections in on every listener and hands each on, those of gRPC to a worker. Does nothing else, so
//! that a worker that is busy keeps no connection from another.

use std::io;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::socket::Accepted;
use super::{Listener, ServeError};
use crate::clock::monotonic;

/// Between attempts to accept after one that failed.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two log lines of the same kind of trouble; connections can fail by the thousand.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Accepts until a listener fails for good, and gives each connection to `hand`, which tells whether it had room for it; if
/// not, it is closed.
pub(crate) async fn accept(listeners: &[Listener], hand: impl Fn(Accepted) -> bool) -> ServeError {
    let mut accepting: FuturesUnordered<_> = listeners.iter().map(|listener| accept_on(listener, &hand)).collect();
    match accepting.next().await {
        Some(error) => error,
        // Nobody listens, so nothing can fail.
        None => std::future::pending().await,
    }
}

async fn accept_on(listener: &Listener, hand: &impl Fn(Accepted) -> bool) -> ServeError {
    let (mut failures, mut refusals) = (Occasion::default(), Occasion::default());
    loop {
        match listener.accept().await {
            Ok(accepted) => {
                if !hand(accepted)
                    && let Some(times) = refusals.due(monotonic())
                {
                    tracing::warn!(address = %listener.address(), times, "closed connections: as many are open as may be");
                }
            }
            Err(error) if is_final(&error) => return ServeError::Listener(listener.address().clone(), error),
            // The peer left before it was taken in: its own affair, and no reason to keep others waiting.
            Err(error) if is_the_peers(&error) => {}
            Err(error) => {
                if let Some(times) = failures.due(monotonic()) {
                    tracing::warn!(address = %listener.address(), %error, times, "cannot accept a connection");
                }
                // Out of descriptors, most likely: trying again at once would only burn the processor.
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Whether the socket listens no more: EINVAL. Source: accept(2).
fn is_final(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}

fn is_the_peers(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// Something that may happen often and is logged at times.
#[derive(Default)]
struct Occasion {
    last: Option<Instant>,
    since: u64,
}

impl Occasion {
    /// Notes one; how many a log line written now speaks of, or `None` when it is not time for one.
    fn due(&mut self, now: Instant) -> Option<u64> {
        self.since += 1;
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < LOG_EVERY) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_often_is_told_at_times_and_counted() {
        let (mut occasion, start) = (Occasion::default(), monotonic());
        assert_eq!(occasion.due(start), Some(1));
        assert_eq!((0..99).filter_map(|_| occasion.due(start)).count(), 0);
        assert_eq!(occasion.due(start + LOG_EVERY), Some(100));
    }
}
