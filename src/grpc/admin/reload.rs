//! How a call asks for the config file to be taken up, and hears what came of it. Who does it is not known here.

use tokio::sync::{mpsc, oneshot};

use crate::limiter::Changes;

/// What a reload came to: the plans that are enforced now, or a sentence that says why they stay as they are.
pub type ReloadOutcome = Result<Reloaded, String>;

/// Plans were taken up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reloaded {
    /// Of what is enforced now.
    pub config_hash: String,
    /// How that differs from what was.
    pub changes: Changes,
    /// Paths of other settings that differ from those that run.
    pub restart_needed: Vec<&'static str>,
}

/// Somebody waits for a reload; who does it says here what came of it.
pub type ReloadAsked = oneshot::Sender<ReloadOutcome>;

/// Asks for reloads.
#[derive(Clone)]
pub struct Reloader(mpsc::Sender<ReloadAsked>);

/// A reloader, and where its wishes come out, one after another.
pub fn reloader() -> (Reloader, mpsc::Receiver<ReloadAsked>) {
    let (sender, receiver) = mpsc::channel(1);
    (Reloader(sender), receiver)
}

impl Reloader {
    /// Has the file taken up; `None` when nobody is left who would do that.
    pub(super) async fn reload(&self) -> Option<ReloadOutcome> {
        let (asked, answered) = oneshot::channel();
        self.0.send(asked).await.ok()?;
        answered.await.ok()
    }
}
