//! Decides when files that have changed are taken up: the config, and the certificates.
//!
//! It compares contents, which its owner reads by the path each time. So an edit in place, a file renamed over it, and the swap
//! of a ConfigMap's `..data` link all work alike. Inodes and notifications of the file system do not matter. It reads nothing
//! itself.

use std::hash::{Hash, Hasher};
use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3;

/// What was handled (taken up or refused) last, and what was found since.
#[derive(Debug, Default)]
pub(crate) struct FileWatch {
    /// Digest of the contents that were handled last.
    handled: Option<u64>,
    /// What the last poll found, if its contents are not those that were handled.
    changed: Option<(u64, Option<SystemTime>)>,
}

impl FileWatch {
    /// Whether the contents found now, or the error of reading them, are to be handled: they differ from those that were handled
    /// last, and the poll before found the same contents and time of change.
    ///
    /// Half a file can be valid, and a writer in place is not done at the first poll; nor are two files replaced in one step. A
    /// writer that pauses for longer than the time between two polls counts as done.
    pub(crate) fn has_settled(&mut self, found: &impl Hash, modified: Option<SystemTime>) -> bool {
        let found = digest(found);
        if Some(found) == self.handled {
            self.changed = None;
            return false;
        }
        self.changed.replace((found, modified)) == Some((found, modified))
    }

    /// Records that these contents, or this error, are handled now.
    pub(crate) fn record_handled(&mut self, found: &impl Hash) {
        (self.handled, self.changed) = (Some(digest(found)), None);
    }
}

fn digest(found: &impl Hash) -> u64 {
    let mut hasher = Xxh3::new();
    found.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ONE: &str = "plans of yesterday";
    const TWO: &str = "plans of today";

    fn watch() -> FileWatch {
        let mut watch = FileWatch::default();
        watch.record_handled(&ONE);
        watch
    }

    #[test]
    fn contents_settle_when_two_polls_find_the_same() {
        let mut watch = watch();
        assert!(!watch.has_settled(&ONE, None));
        assert!(!watch.has_settled(&TWO, None));
        // The writer goes on.
        assert!(!watch.has_settled(&"plans of today and more", None));
        assert!(watch.has_settled(&"plans of today and more", None));
        watch.record_handled(&"plans of today and more");
        assert!(!watch.has_settled(&"plans of today and more", None));
    }

    #[test]
    fn contents_that_are_written_again_between_two_polls_have_not_settled() {
        let mut watch = watch();
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        for seconds in 1..4 {
            assert!(!watch.has_settled(&TWO, at(seconds)), "{seconds}");
        }
        assert!(watch.has_settled(&TWO, at(3)));
        watch.record_handled(&TWO);
        // What was handled has not changed, whenever it was written.
        assert!(!watch.has_settled(&TWO, at(9)) && !watch.has_settled(&TWO, at(9)));
    }

    #[test]
    fn contents_that_change_back_do_not_settle() {
        let mut watch = watch();
        for _ in 0..3 {
            assert!(!watch.has_settled(&TWO, None));
            assert!(!watch.has_settled(&ONE, None));
        }
    }

    #[test]
    fn nothing_that_was_handled_is_no_contents_at_all() {
        let mut watch = FileWatch::default();
        assert!(!watch.has_settled(&ONE, None));
        assert!(watch.has_settled(&ONE, None));
    }
}
