//! Reload: takes up a changed config file or certificate, or keeps the old one, and logs which.
//!
//! It polls the files at intervals, on SIGHUP, and when an operator calls for a reload. It logs one line per change of the
//! config and one per change of the certificate. A signal or a call logs one of each.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::task::JoinError;

use crate::config::{Config, ConfigErrors, ConfigWatch, Origin};
use crate::grpc::{ReloadOutcome, ReloadRequest, Reloaded};
use crate::http::{ConfigChanges, ConfigOutcome};
use crate::limiter::{Changes, Limiter};
use crate::{service_manager, tls};
use tollgate_store::clock::{Clock, SystemClock};

/// Time between two polls of the files. A change is taken up at the second poll that finds it, so within the promised 2 s even
/// when reading is slow. A poll of a file of 10 KB takes about 20 us, of the largest file about 10 ms.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// Maximum number of warnings of one config that are logged.
const WARNINGS_MAX: usize = 10;

const NO_FILE: &str = "nothing to reload: no config file was named";

/// State of the task that reloads.
pub(super) struct Reload {
    pub(super) watch: ConfigWatch,
    /// Watches the TLS files, if there are any.
    pub(super) certificates: Option<tls::TlsWatch>,
    pub(super) limiter: Arc<Limiter<()>>,
    /// The config of the start. Its settings stay in force; a reload changes only the plans.
    pub(super) start: Config,
    /// Keeps what became of the last configs, for the status page.
    pub(super) changes: ConfigChanges,
}

impl Reload {
    /// Runs for ever. Reads and checks on a blocking thread, so that a large file or a file system that hangs delays nothing
    /// else.
    pub(super) async fn run(
        mut self,
        mut hangup: Signal,
        mut calls: mpsc::Receiver<ReloadRequest>,
    ) {
        loop {
            let trigger = tokio::select! {
                () = tokio::time::sleep(POLL_EVERY) => Trigger::Timer,
                _ = hangup.recv() => Trigger::Hangup,
                Some(call) = calls.recv() => Trigger::Call(call),
            };
            let reloading = tokio::task::spawn_blocking(move || {
                let by_hand = !matches!(trigger, Trigger::Timer);
                if by_hand {
                    service_manager::reloading();
                }
                self.reload(trigger);
                if by_hand {
                    service_manager::ready();
                }
                self
            });
            self = match reloading.await {
                Ok(same) => same,
                Err(error) => return log_end(&error),
            };
        }
    }

    fn reload(&mut self, trigger: Trigger) {
        match (&mut self.certificates, &trigger) {
            (Some(certificates), Trigger::Timer) => certificates.poll(),
            (Some(certificates), _) => certificates.load(),
            (None, _) => {}
        }
        let origin = self.watch.origin();
        let loaded = match (&origin, &trigger) {
            (Origin::Example | Origin::StandardInput | Origin::Variable, Trigger::Timer) => return,
            (Origin::Example | Origin::StandardInput | Origin::Variable, _) => {
                tracing::info!(config = %origin, "{NO_FILE}");
                return trigger.answer(Err(NO_FILE.to_owned()));
            }
            (Origin::File(_), Trigger::Timer) => self.watch.poll(),
            (Origin::File(_), _) => Some(self.watch.load()),
        };
        let start = &self.start;
        let checked =
            loaded.map(|loaded| loaded.and_then(|next| start.check_reload(next, &origin)));
        match checked {
            Some(Ok(config)) => trigger.answer(Ok(self.apply(config, &origin))),
            Some(Err(errors)) => trigger.answer(Err(self.refuse(&errors, &origin))),
            None => {}
        }
    }

    fn apply(&mut self, mut config: Config, origin: &Origin) -> Reloaded {
        let before = self.limiter.snapshot();
        let changes = self.limiter.reload(std::mem::take(&mut config.plans));
        let Changes {
            added,
            removed,
            edited,
        } = changes;
        let snapshot = self.limiter.snapshot();
        let hash = snapshot.config_hash();
        let plans = snapshot.plans().len();
        let also = snapshot.changed_beside_plans(&before).join(", ");
        let also = Some(also).filter(|also| !also.is_empty());
        tracing::info!(config = %origin, config_hash = hash, plans, added, removed, edited, also_changed = also, "config reloaded");
        warn_of(&config.warnings);
        let ignored = self.start.changed_settings(&config);
        let text = format!(
            "{plans} plans: {added} added, {removed} removed, {edited} edited{}; config {hash}",
            also.map_or_else(String::new, |also| format!("; also changed: {also}"))
        );
        self.changes
            .record(SystemClock.now_us(), ConfigOutcome::Reloaded, &text);
        if !ignored.is_empty() {
            let settings = ignored.join(", ");
            tracing::warn!(config = %origin, settings, "these settings have changed; a restart takes them up");
        }
        Reloaded {
            config_hash: hash.to_owned(),
            changes,
            restart_needed: ignored,
        }
    }

    fn refuse(&mut self, errors: &ConfigErrors, origin: &Origin) -> String {
        self.limiter.record_reload_failure();
        let errors = errors.in_one_line();
        self.changes
            .record(SystemClock.now_us(), ConfigOutcome::Refused, &errors);
        tracing::error!(config = %origin, errors, "config not reloaded, the plans stay as they are");
        format!("the plans stay as they are: {errors}")
    }
}

/// Logs the warnings of a valid config, at most `WARNINGS_MAX`.
pub(super) fn warn_of(warnings: &[String]) {
    for warning in warnings.iter().take(WARNINGS_MAX) {
        tracing::warn!(
            warning,
            "the config is valid, but probably not what was meant"
        );
    }
    if let Some(more) = warnings
        .len()
        .checked_sub(WARNINGS_MAX)
        .filter(|more| *more > 0)
    {
        tracing::warn!(
            more,
            "the config has more warnings; tollgate check prints all"
        );
    }
}

/// Why the files are read.
enum Trigger {
    /// The interval passed.
    Timer,
    Hangup,
    Call(ReloadRequest),
}

impl Trigger {
    /// Answers the call, if it was one. A caller that has gone away misses the answer.
    fn answer(self, outcome: ReloadOutcome) {
        if let Self::Call(call) = self {
            let _ = call.send(outcome);
        }
    }
}

fn log_end(error: &JoinError) {
    // A runtime that shuts down cancels tasks that have not begun.
    if error.is_panic() {
        tracing::error!(%error, "the config file is no longer watched; restart to take up its changes");
    }
}
