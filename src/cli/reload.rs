//! Reload: takes up the plans of a config file that changed, and a certificate that did, or keeps the old ones, and says so.
//!
//! Looks at the files by itself, when the process is sent SIGHUP and when an operator calls for it. One log line for each change
//! of the config, one for each of the certificate, and one of each for a signal or call.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::task::JoinError;

use crate::config::{Config, Mistakes, Origin, Watch};
use crate::grpc::{ReloadAsked, ReloadOutcome, Reloaded};
use crate::limiter::{Changes, Limiter};
use crate::tls;

/// From one look at the file to the next. What changed is taken up at the second look that finds it, within 2 s, as is
/// promised, also where reading takes its time. A look at a file of 10 KB takes some 20 us, at the largest some 10 ms.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Most warnings of one config that are logged.
const WARNINGS_MAX: usize = 10;

const NO_FILE: &str = "nothing to reload: no config file was named";

/// What a reload needs to know.
pub(super) struct Reload {
    pub(super) watch: Watch,
    /// Of the files of TLS, where there is any.
    pub(super) certificates: Option<tls::Watch>,
    pub(super) limiter: Arc<Limiter<()>>,
    /// The config of the start, whose settings last.
    pub(super) start: Config,
}

impl Reload {
    /// Goes on for ever. Reads and checks on a thread of its own, so that nothing is kept waiting by a large file, or by a
    /// file system that hangs.
    pub(super) async fn run(mut self, mut hangup: Signal, mut calls: mpsc::Receiver<ReloadAsked>) {
        loop {
            let asked = tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => Asked::Nobody,
                _ = hangup.recv() => Asked::Hangup,
                Some(call) = calls.recv() => Asked::Call(call),
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

    fn look(&mut self, asked: Asked) {
        if let Some(certificates) = &mut self.certificates {
            certificates.look(!matches!(asked, Asked::Nobody));
        }
        let origin = self.watch.origin();
        let judged = match (&origin, &asked) {
            (Origin::Example | Origin::StandardInput | Origin::Variable, Asked::Nobody) => return,
            (Origin::Example | Origin::StandardInput | Origin::Variable, _) => {
                tracing::info!(config = %origin, "{NO_FILE}");
                return asked.answer(Err(NO_FILE.to_owned()));
            }
            (Origin::File(_), Asked::Nobody) => self.watch.look(),
            (Origin::File(_), _) => Some(self.watch.load()),
        };
        match judged {
            Some(Ok(config)) => asked.answer(Ok(self.take_up(config, &origin))),
            Some(Err(mistakes)) => asked.answer(Err(self.refuse(&mistakes, &origin))),
            None => {}
        }
    }

    fn take_up(&mut self, mut config: Config, origin: &Origin) -> Reloaded {
        let changes = self.limiter.reload(std::mem::take(&mut config.plans));
        let Changes { added, removed, edited } = changes;
        let edition = self.limiter.edition();
        let (hash, plans) = (edition.config_hash(), edition.plans().len());
        tracing::info!(config = %origin, config_hash = hash, plans, added, removed, edited, "config reloaded");
        warn_of(&config.warnings);
        let ignored = self.start.settings_unlike(&config);
        if !ignored.is_empty() {
            let settings = ignored.join(", ");
            tracing::warn!(config = %origin, settings, "these settings differ from those that run; a restart takes them up");
        }
        Reloaded { config_hash: hash.to_owned(), changes, restart_needed: ignored }
    }

    fn refuse(&mut self, mistakes: &Mistakes, origin: &Origin) -> String {
        self.limiter.keep_plans();
        let mistakes = mistakes.in_one_line();
        tracing::error!(config = %origin, mistakes, "config not reloaded, the plans stay as they are");
        format!("the plans stay as they are: {mistakes}")
    }
}

/// Logs what a config has that is valid, and most likely not what was meant.
pub(super) fn warn_of(warnings: &[String]) {
    for warning in warnings.iter().take(WARNINGS_MAX) {
        tracing::warn!(warning, "the config is valid, and may not mean what it says");
    }
    if let Some(more) = warnings.len().checked_sub(WARNINGS_MAX).filter(|more| *more > 0) {
        tracing::warn!(more, "there are more warnings of the config; tollgate check tells all");
    }
}

/// What made for a look at the file.
enum Asked {
    /// It was time for one.
    Nobody,
    Hangup,
    Call(ReloadAsked),
}

impl Asked {
    /// Whoever asked by a call and has gone wants no answer.
    fn answer(self, outcome: ReloadOutcome) {
        if let Self::Call(call) = self {
            let _ = call.send(outcome);
        }
    }
}

fn lost(error: &JoinError) {
    // A runtime that ends cancels what has not begun.
    if error.is_panic() {
        tracing::error!(%error, "the config file is no longer looked at; restart to take up what changes in it");
    }
}
