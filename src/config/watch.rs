//! Watches a config file for changes since it was last judged.
//!
//! It compares contents, which it reads by the path each time. So an edit in place, a file renamed over it, and the swap of a
//! ConfigMap's `..data` link all work alike. Times, inodes and notifications of the file system do not matter.

use std::hash::Hasher;
use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3;

use super::{Config, ConfigError, ConfigErrors, Origin, Sources, source};

/// A config's sources, and the contents last seen.
pub struct Watch {
    sources: Sources,
    /// Digest of the file when it was last judged.
    judged: Option<u64>,
    /// Digest and change time of the file at the last look, if the digest was another one.
    changed: Option<(u64, Option<SystemTime>)>,
}

impl Watch {
    /// Reads nothing yet. Environment and flags never change after this.
    pub fn new(sources: Sources) -> Self {
        Self { sources, judged: None, changed: None }
    }

    /// The origin of the plans.
    pub fn origin(&self) -> Origin {
        self.sources.origin()
    }

    /// Reads and checks the config now. Errors: all errors of the config.
    pub fn load(&mut self) -> Result<Config, ConfigErrors> {
        let text = source::text(&self.sources).map(|(text, _)| text);
        self.judge(text)
    }

    /// Returns the config if the file has changed since it was last judged, and two looks found the same content and change
    /// time. Half a file can be a valid config that lacks plans, and a writer in place is not done at the first look. A writer
    /// that pauses for longer than the time between two looks counts as done. A file that cannot be read is reported once.
    pub fn look(&mut self) -> Option<Result<Config, ConfigErrors>> {
        let (text, modified) = match source::text(&self.sources) {
            Ok((text, modified)) => (Ok(text), modified),
            Err(error) => (Err(error), None),
        };
        let found = digest(&text);
        if Some(found) == self.judged {
            self.changed = None;
            return None;
        }
        if self.changed.replace((found, modified)) != Some((found, modified)) {
            return None;
        }
        Some(self.judge(text))
    }

    fn judge(&mut self, text: Result<String, ConfigError>) -> Result<Config, ConfigErrors> {
        (self.judged, self.changed) = (Some(digest(&text)), None);
        Config::of(&self.sources, text)
    }
}

/// Digest of the text, or of the error text.
fn digest(text: &Result<String, ConfigError>) -> u64 {
    let mut hasher = Xxh3::new();
    let (kind, bytes) = match text {
        Ok(text) => (0, text.as_bytes()),
        Err(error) => (1, error.message.as_bytes()),
    };
    hasher.write_u8(kind);
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flag;
    use std::path::Path;

    const ONE: &str = "plans: { one: { unlimited: true } }";
    const TWO: &str = "plans: { one: { unlimited: true }, two: { unlimited: true } }";

    fn watch(file: &Path) -> Watch {
        let mut watch = Watch::new(Sources { file: Some(file.into()), ..Sources::default() });
        std::fs::write(file, ONE).unwrap();
        assert_eq!(watch.load().unwrap().plans.len(), 1);
        watch
    }

    #[test]
    fn a_file_is_checked_once_when_two_looks_find_the_same_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let mut watch = watch(&file);
        assert!(watch.look().is_none());
        std::fs::write(&file, TWO).unwrap();
        assert!(watch.look().is_none());
        // The writer goes on.
        std::fs::write(&file, format!("{TWO} ")).unwrap();
        assert!(watch.look().is_none());
        assert_eq!(watch.look().unwrap().unwrap().plans.len(), 2);
        assert!(watch.look().is_none() && watch.look().is_none());
    }

    #[test]
    fn a_file_that_is_written_again_between_two_looks_is_looked_at_once_more() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let mut watch = watch(&file);
        let write_at = |seconds: u64| {
            std::fs::write(&file, TWO).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
        };
        for seconds in 1..4 {
            write_at(seconds);
            assert!(watch.look().is_none(), "{seconds}");
        }
        assert_eq!(watch.look().unwrap().unwrap().plans.len(), 2);
        // A file that was judged has not changed, whenever it was written.
        write_at(9);
        assert!(watch.look().is_none() && watch.look().is_none());
    }

    #[test]
    fn a_file_that_changes_back_is_not_reported() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let mut watch = watch(&file);
        for _ in 0..3 {
            std::fs::write(&file, TWO).unwrap();
            assert!(watch.look().is_none());
            std::fs::write(&file, ONE).unwrap();
            assert!(watch.look().is_none());
        }
    }

    #[test]
    fn a_missing_file_is_reported_once_and_so_is_its_return() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let mut watch = watch(&file);
        std::fs::remove_file(&file).unwrap();
        assert!(watch.look().is_none());
        assert!(watch.look().unwrap().unwrap_err().to_string().contains("cannot be read: No such file"));
        assert!(watch.look().is_none() && watch.look().is_none());
        std::fs::write(&file, ONE).unwrap();
        assert!(watch.look().is_none());
        assert!(watch.look().unwrap().is_ok());
    }

    #[test]
    fn load_counts_as_the_last_check() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let mut watch = watch(&file);
        std::fs::write(&file, TWO).unwrap();
        assert_eq!(watch.load().unwrap().plans.len(), 2);
        assert!(watch.look().is_none() && watch.look().is_none());
    }

    #[test]
    fn environment_and_flags_stay_on_top() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let environment = pair("TOLLGATE_PLANS__ONE__SHADOW", "true");
        let flags = vec![Flag::set("plans.two.shadow", "true")];
        let mut watch = Watch::new(Sources { file: Some(file.clone()), environment, flags, ..Sources::default() });
        for text in [TWO, "plans: { one: { blocked: true }, two: { blocked: true } }"] {
            std::fs::write(&file, text).unwrap();
            let plans = watch.load().unwrap().plans;
            assert!(plans.iter().all(|plan| plan.shadow), "{plans:?}");
        }
    }
}
