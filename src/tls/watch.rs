//! Finds changes of the TLS files. Their contents are compared, as those of the config file are. So it does not matter how files
//! are replaced.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::{Files, Tls};

/// The files as they were last seen.
pub struct Watch {
    tls: Arc<Tls>,
    /// Digest of the files that were last used or rejected.
    judged: u64,
    /// Digest of the files at the last look, if it differed from `judged`.
    changed: Option<u64>,
}

impl Watch {
    /// Starts with files that were used or rejected just now.
    pub(super) fn new(tls: Arc<Tls>, files: &Result<Files, String>) -> Self {
        Self { tls, judged: digest(files), changed: None }
    }

    /// Looks at the files. Changed files are used once two looks find the same content, because certificate and key are not
    /// replaced in one step. With `asked`, the present files are used at once. Files with errors are logged and not used.
    pub fn look(&mut self, asked: bool) {
        let files = Files::read(&self.tls.settings);
        let found = digest(&files);
        if !asked && found == self.judged {
            self.changed = None;
            return;
        }
        if !asked && self.changed != Some(found) {
            self.changed = Some(found);
            return;
        }
        (self.judged, self.changed) = (found, None);
        match self.tls.take_up(files) {
            Ok(not_after) => tracing::info!(not_after, "certificate reloaded"),
            Err(mistake) => tracing::error!(mistake, "certificate not reloaded, the old one stays"),
        }
    }
}

/// Digest of the contents, or of the error text.
fn digest(files: &Result<Files, String>) -> u64 {
    let mut hasher = Xxh3::new();
    files.hash(&mut hasher);
    hasher.finish()
}
