//! Polls the TLS files for changes.

use std::sync::Arc;

use super::{Files, Tls};
use crate::file_watch::FileWatch;

/// TLS in force, and what its files held last.
pub struct TlsWatch {
    tls: Arc<Tls>,
    files: FileWatch,
}

impl TlsWatch {
    /// Starts with files that were used or rejected just now.
    pub(super) fn new(tls: Arc<Tls>, found: &Result<Files, String>) -> Self {
        let mut files = FileWatch::default();
        files.record_handled(found);
        Self { tls, files }
    }

    /// Uses the files if they have changed and two polls found the same contents, because certificate and key are not replaced
    /// in one step.
    pub fn poll(&mut self) {
        let found = Files::read(&self.tls.settings);
        if self.files.has_settled(&found, None) {
            self.judge(found);
        }
    }

    /// Uses the present files at once, as an operator asked.
    pub fn load(&mut self) {
        self.judge(Files::read(&self.tls.settings));
    }

    /// Files with errors are logged and not used.
    fn judge(&mut self, found: Result<Files, String>) {
        self.files.record_handled(&found);
        match self.tls.apply(found) {
            Ok(not_after) => tracing::info!(not_after, "certificate reloaded"),
            Err(error) => tracing::error!(error, "certificate not reloaded, the old one stays"),
        }
    }
}
