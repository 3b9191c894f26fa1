//! Polls a config file for changes since it was last handled.

use super::{Config, ConfigError, ConfigErrors, Origin, Sources, source};
use crate::file_watch::FileWatch;

/// A config's sources, and what its file held last.
pub struct ConfigWatch {
    sources: Sources,
    file: FileWatch,
}

impl ConfigWatch {
    /// Reads nothing yet. Environment and flags never change after this.
    pub fn new(sources: Sources) -> Self {
        Self {
            sources,
            file: FileWatch::default(),
        }
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

    /// Returns the config if the file has changed since it was last handled, and two polls found the same content and change
    /// time. A file that cannot be read is reported once.
    pub fn poll(&mut self) -> Option<Result<Config, ConfigErrors>> {
        let (text, modified) = match source::text(&self.sources) {
            Ok((text, modified)) => (Ok(text), modified),
            Err(error) => (Err(error), None),
        };
        self.file
            .has_settled(&text, modified)
            .then(|| self.judge(text))
    }

    fn judge(&mut self, text: Result<String, ConfigError>) -> Result<Config, ConfigErrors> {
        self.file.record_handled(&text);
        Config::from_sources(&self.sources, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flag;
    use std::path::Path;
    use std::time::SystemTime;

    const ONE: &str = "plans: { one: { unlimited: true } }";
    const TWO: &str = "plans: { one: { unlimited: true }, two: { unlimited: true } }";

    fn watch(file: &Path) -> ConfigWatch {
        let mut watch = ConfigWatch::new(Sources {
            file: Some(file.into()),
            ..Sources::default()
        });
        std::fs::write(file, ONE).unwrap();
        assert_eq!(watch.load().unwrap().plans.len(), 1);
        watch
    }

    #[test]
    fn a_file_is_checked_once_when_two_polls_find_the_same_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let mut watch = watch(&file);
        assert!(watch.poll().is_none());
        std::fs::write(&file, TWO).unwrap();
        assert!(watch.poll().is_none());
        // The writer goes on.
        std::fs::write(&file, format!("{TWO} ")).unwrap();
        assert!(watch.poll().is_none());
        assert_eq!(watch.poll().unwrap().unwrap().plans.len(), 2);
        assert!(watch.poll().is_none() && watch.poll().is_none());
    }

    #[test]
    fn a_file_that_is_written_again_between_two_polls_waits_for_one_more() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let mut watch = watch(&file);
        let write_at = |seconds: u64| {
            std::fs::write(&file, TWO).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::options()
                .write(true)
                .open(&file)
                .unwrap()
                .set_modified(time)
                .unwrap();
        };
        for seconds in 1..4 {
            write_at(seconds);
            assert!(watch.poll().is_none(), "{seconds}");
        }
        assert_eq!(watch.poll().unwrap().unwrap().plans.len(), 2);
        // A file that was handled has not changed, whenever it was written.
        write_at(9);
        assert!(watch.poll().is_none() && watch.poll().is_none());
    }

    #[test]
    fn a_missing_file_is_reported_once_and_so_is_its_return() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let mut watch = watch(&file);
        std::fs::remove_file(&file).unwrap();
        assert!(watch.poll().is_none());
        assert!(
            watch
                .poll()
                .unwrap()
                .unwrap_err()
                .to_string()
                .contains("cannot be read: No such file")
        );
        assert!(watch.poll().is_none() && watch.poll().is_none());
        std::fs::write(&file, ONE).unwrap();
        assert!(watch.poll().is_none());
        assert!(watch.poll().unwrap().is_ok());
    }

    #[test]
    fn load_counts_as_the_last_check() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let mut watch = watch(&file);
        std::fs::write(&file, TWO).unwrap();
        assert_eq!(watch.load().unwrap().plans.len(), 2);
        assert!(watch.poll().is_none() && watch.poll().is_none());
    }

    #[test]
    fn environment_and_flags_stay_on_top() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let pair = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let environment = pair("TOLLGATE_PLANS__ONE__SHADOW", "true");
        let flags = vec![Flag::set("plans.two.shadow", "true")];
        let mut watch = ConfigWatch::new(Sources {
            file: Some(file.clone()),
            environment,
            flags,
            ..Sources::default()
        });
        for text in [
            TWO,
            "plans: { one: { blocked: true }, two: { blocked: true } }",
        ] {
            std::fs::write(&file, text).unwrap();
            let plans = watch.load().unwrap().plans;
            assert!(plans.iter().all(|plan| plan.shadow), "{plans:?}");
        }
    }
}
