//! Passes reload requests from admin calls to the part that reloads the config file, and its results back. That part is not
//! known here.

use tokio::sync::{mpsc, oneshot};

use crate::limiter::Changes;

/// The result of a reload: the plans that are enforced now, or a sentence that says why the old ones stay.
pub type ReloadOutcome = Result<Reloaded, String>;

/// The new plans are in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloaded {
    /// The hash of the plans that are in force now.
    pub config_hash: String,
    /// How they differ from the plans before.
    pub changes: Changes,
    /// Paths of other settings in the file that differ from the running ones.
    pub restart_needed: Vec<&'static str>,
}

/// A reload request. The receiver of the request sends the result through it.
pub type ReloadRequest = oneshot::Sender<ReloadOutcome>;

/// Asks for reloads.
#[derive(Clone)]
pub struct Reloader(mpsc::Sender<ReloadRequest>);

/// Returns a reloader and the receiver of its requests, which come one after another.
pub fn reloader() -> (Reloader, mpsc::Receiver<ReloadRequest>) {
    let (sender, receiver) = mpsc::channel(1);
    (Reloader(sender), receiver)
}

impl Reloader {
    /// Requests a reload and waits for its result; `None` when no receiver is left.
    pub(super) async fn reload(&self) -> Option<ReloadOutcome> {
        let (asked, answered) = oneshot::channel();
        self.0.send(asked).await.ok()?;
        answered.await.ok()
    }
}
