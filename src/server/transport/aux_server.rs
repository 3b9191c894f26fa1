//! A server with a listener of its own, for few connections: the HTTP server and the admin service.
//!
//! It accepts on the runtime that starts it. It has its own connection limit and its own drain. Knows no protocol.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::admission::{Admission, AdmissionPermit};
use super::socket::Accepted;
use super::{Drained, Listener, ServeError, accept};

/// Longest time that unfinished answers may delay the end, after gRPC has ended. gRPC takes at most 8.5 s, so both stay
/// within the promised 10 s.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A running server. Dropping it ends it at once.
pub(crate) struct AuxServer {
    stop: watch::Sender<bool>,
    accepting: JoinHandle<ServeError>,
}

impl AuxServer {
    /// Serves each connection with `serve` on the current runtime, and else as [`Self::start_elsewhere`].
    pub(crate) fn start<F, C>(listener: Listener, connections_max: usize, serve: F) -> Self
    where
        F: Fn(Accepted, AdmissionPermit, watch::Receiver<bool>) -> C + Send + Sync + 'static,
        C: Future<Output = ()> + Send + 'static,
    {
        Self::start_elsewhere(
            listener,
            connections_max,
            move |accepted, admission, stopping| {
                tokio::spawn(serve(accepted, admission, stopping));
            },
        )
    }

    /// Passes each connection to `begin`, which starts to serve it somewhere. That must end once the receiver holds true.
    /// [`Admission`] decides which connections are let in when `connections_max` are open.
    ///
    /// Must be called within a tokio runtime.
    pub(crate) fn start_elsewhere<F>(listener: Listener, connections_max: usize, begin: F) -> Self
    where
        F: Fn(Accepted, AdmissionPermit, watch::Receiver<bool>) + Send + Sync + 'static,
    {
        let (stop, stopping) = watch::channel(false);
        let admission = Admission::new(connections_max);
        let take = move |accepted: Accepted| {
            let Some(admission) = admission.admit(accepted.peer()) else {
                return false;
            };
            begin(accepted, admission, stopping.clone());
            true
        };
        Self {
            stop,
            accepting: tokio::spawn(async move { accept(&[listener], take).await }),
        }
    }

    /// Waits until the listener fails for good, and returns the reason.
    pub(crate) async fn lost(&mut self) -> String {
        match (&mut self.accepting).await {
            Ok(error) => error.to_string(),
            Err(panicked) => panicked.to_string(),
        }
    }

    /// Stops accepting, waits for unfinished answers, and ends.
    pub(crate) async fn stop(self) -> Drained {
        self.accepting.abort();
        // Once the task has ended, its listener is closed and its receiver of `stop` is dropped.
        let _ = self.accepting.await;
        self.stop.send_replace(true);
        match tokio::time::timeout(DRAIN_TIMEOUT, self.stop.closed()).await {
            Ok(()) => Drained::Clean,
            Err(_) => Drained::Cut,
        }
    }
}
