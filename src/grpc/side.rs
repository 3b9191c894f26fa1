//! A listener beside those of the workers, for few connections: HTTP's and the admin service's.
//!
//! Runs on the runtime that starts it, so that it takes no worker's time, and has a bound and an end of its own. Knows no
//! protocol.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::admission::{Admission, Visit};
use super::socket::Accepted;
use super::{Drained, Listener, ServeError, accept};

/// Longest that answers under way hold up the end, once gRPC has ended: with its 8.5 s at most within the 10 that are promised.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);

/// What serves on such a listener. It ends when dropped, at once.
pub(crate) struct Side {
    stop: watch::Sender<bool>,
    accepting: JoinHandle<ServeError>,
}

impl Side {
    /// Serves by `serve`, which ends a connection once it is told true; see [`Admission`] for who is let in when
    /// `connections_max` are open.
    ///
    /// Must be called within a tokio runtime.
    pub(crate) fn start<F, C>(listener: Listener, connections_max: usize, serve: F) -> Self
    where
        F: Fn(Accepted, Visit, watch::Receiver<bool>) -> C + Send + Sync + 'static,
        C: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopping) = watch::channel(false);
        let admission = Admission::new(connections_max);
        let hand = move |accepted: Accepted| {
            let Some(visit) = admission.admit(accepted.peer()) else { return false };
            tokio::spawn(serve(accepted, visit, stopping.clone()));
            true
        };
        Self { stop, accepting: tokio::spawn(async move { accept(&[listener], hand).await }) }
    }

    /// Waits for the end that nobody asked for: its listener fails for good.
    pub(crate) async fn lost(&mut self) -> String {
        match (&mut self.accepting).await {
            Ok(error) => error.to_string(),
            Err(panicked) => panicked.to_string(),
        }
    }

    /// Takes no more connections in, answers what is under way, and ends.
    pub(crate) async fn stop(self) -> Drained {
        self.accepting.abort();
        // With it go its listener and its own handle on `stop`.
        let _ = self.accepting.await;
        self.stop.send_replace(true);
        match tokio::time::timeout(DRAIN_WITHIN, self.stop.closed()).await {
            Ok(()) => Drained::Clean,
            Err(_) => Drained::Cut,
        }
    }
}
