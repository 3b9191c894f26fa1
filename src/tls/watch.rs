//! The files of TLS, looked at again and again: whether they read otherwise than when they were last judged, as the config
//! file is looked at, by content and so however they are replaced.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::{Files, Tls};

/// What was seen of the files.
pub struct Watch {
    tls: Arc<Tls>,
    /// What they read when they were judged the last time.
    judged: u64,
    /// What they read at the last look, when that was something else.
    news: Option<u64>,
}

impl Watch {
    /// Of files that were judged just now.
    pub(super) fn new(tls: Arc<Tls>, files: &Result<Files, String>) -> Self {
        Self { tls, judged: digest(files), news: None }
    }

    /// Takes up files that read otherwise than when they were last judged and have read so twice, since a certificate and
    /// its key are not replaced in one step; or, when asked to, whatever there is. Those with a mistake are said and left.
    pub fn look(&mut self, asked: bool) {
        let files = Files::read(&self.tls.settings);
        let found = digest(&files);
        if !asked && found == self.judged {
            self.news = None;
            return;
        }
        if !asked && self.news != Some(found) {
            self.news = Some(found);
            return;
        }
        (self.judged, self.news) = (found, None);
        match self.tls.take_up(files) {
            Ok(not_after) => tracing::info!(not_after, "certificate reloaded"),
            Err(mistake) => tracing::error!(mistake, "certificate not reloaded, the old one stays"),
        }
    }
}

/// Tells contents apart, and errors by what they say.
fn digest(files: &Result<Files, String>) -> u64 {
    let mut hasher = Xxh3::new();
    files.hash(&mut hasher);
    hasher.finish()
}
