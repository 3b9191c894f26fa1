//! Reload: takes up the plans of a config file that changed, or keeps the old ones, and says so.
//!
//! Looks at the file by itself and when the process is sent SIGHUP. One log line for each change of the file, and one for
//! each signal.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::task::JoinError;

use crate::config::{Config, Mistakes, Origin, Watch};
use crate::limiter::{Changes, Limiter};

/// From one look at the file to the next. What changed is taken up at the second look that finds it, within 2 s, as is
/// promised, also where reading takes its time. A look at a file of 10 KB takes some 20 us, at the largest some 10 ms.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What a reload needs to know.
pub(super) struct Reload {
    pub(super) watch: Watch,
    pub(super) limiter: Arc<Limiter<()>>,
    /// The config of the start, whose settings last.
    pub(super) start: Config,
}

impl Reload {
    /// Goes on for ever. Reads and checks on a thread of its own, so that nothing is kept waiting by a large file, or by a
    /// file system that hangs.
    pub(super) async fn run(mut self, mut hangup: Signal) {
        loop {
            let asked = tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => false,
                _ = hangup.recv() => true,
            };
            let looked = tokio::task::spawn_blocking(move || {
                self.look(asked);
                self
            });
            self = match looked.await {
                Ok(same) => same,
                Err(error) => return lost(&error),
            };
        }
    }

    fn look(&mut self, asked: bool) {
        let origin = self.watch.origin();
        let judged = match (&origin, asked) {
            (Origin::Example, true) => {
                tracing::info!(config = %origin, "nothing to reload: no config file was named");
                None
            }
            (Origin::Example, false) => None,
            (Origin::File(_), true) => Some(self.watch.load()),
            (Origin::File(_), false) => self.watch.look(),
        };
        match judged {
            Some(Ok(config)) => self.take_up(config, &origin),
            Some(Err(mistakes)) => self.refuse(&mistakes, &origin),
            None => {}
        }
    }

    fn take_up(&mut self, mut config: Config, origin: &Origin) {
        let Changes { added, removed, edited } = self.limiter.reload(std::mem::take(&mut config.plans));
        let edition = self.limiter.edition();
        let (hash, plans) = (edition.config_hash(), edition.plans().len());
        tracing::info!(config = %origin, config_hash = hash, plans, added, removed, edited, "config reloaded");
        let ignored = self.start.settings_unlike(&config);
        if !ignored.is_empty() {
            let settings = ignored.join(", ");
            tracing::warn!(config = %origin, settings, "these settings differ from those that run; a restart takes them up");
        }
    }

    fn refuse(&mut self, mistakes: &Mistakes, origin: &Origin) {
        self.limiter.keep_plans();
        let mistakes = mistakes.in_one_line();
        tracing::error!(config = %origin, mistakes, "config not reloaded, the plans stay as they are");
    }
}

fn lost(error: &JoinError) {
    // A runtime that ends cancels what has not begun.
    if error.is_panic() {
        tracing::error!(%error, "the config file is no longer looked at; restart to take up what changes in it");
    }
}
