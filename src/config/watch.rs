//! A config file that is looked at again and again: whether it reads otherwise than when it was last judged.
//!
//! Goes by content, read by its path each time: an edit in place, a file renamed over it and the swap of a ConfigMap's
//! `..data` link are all alike then, whatever they do to times and inodes, and whatever file system does not tell of them.

use std::hash::Hasher;
use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3;

use super::{Config, Mistake, Mistakes, Origin, Sources, source};

/// A file and what goes on top of it, and what was seen of it.
pub struct Watch {
    sources: Sources,
    /// What the file read when it was judged the last time.
    judged: Option<u64>,
    /// What it read at the last look, and when it had been changed, when that was something else.
    news: Option<(u64, Option<SystemTime>)>,
}

impl Watch {
    /// Nothing is read yet. Environment and flags stay what they are here.
    pub fn new(sources: Sources) -> Self {
        Self { sources, judged: None, news: None }
    }

    /// Where the plans come from.
    pub fn origin(&self) -> Origin {
        self.sources.origin()
    }

    /// The config as the file is now. Errors: every mistake.
    pub fn load(&mut self) -> Result<Config, Mistakes> {
        let text = source::text(&self.sources).map(|(text, _)| text);
        self.judge(text)
    }

    /// The config, if the file reads otherwise than when it was last judged, and two looks agree on its content and its time
    /// of change: half a file can be a valid config that lacks plans, and whoever writes in place is not done at the first
    /// look. A writer that pauses for longer than from one look to the next is taken for done. A file that cannot be read is
    /// news too, once.
    pub fn look(&mut self) -> Option<Result<Config, Mistakes>> {
        let (text, modified) = match source::text(&self.sources) {
            Ok((text, modified)) => (Ok(text), modified),
            Err(mistake) => (Err(mistake), None),
        };
        let found = digest(&text);
        if Some(found) == self.judged {
            self.news = None;
            return None;
        }
        if self.news.replace((found, modified)) != Some((found, modified)) {
            return None;
        }
        Some(self.judge(text))
    }

    fn judge(&mut self, text: Result<String, Mistake>) -> Result<Config, Mistakes> {
        (self.judged, self.news) = (Some(digest(&text)), None);
        Config::of(&self.sources, text)
    }
}

/// Tells texts apart, and errors by what they say.
fn digest(text: &Result<String, Mistake>) -> u64 {
    let mut hasher = Xxh3::new();
    let (kind, bytes) = match text {
        Ok(text) => (0, text.as_bytes()),
        Err(mistake) => (1, mistake.message.as_bytes()),
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
    fn a_file_is_judged_when_it_has_read_alike_twice_and_then_never_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.yaml");
        let mut watch = watch(&file);
        assert!(watch.look().is_none());
        std::fs::write(&file, TWO).unwrap();
        assert!(watch.look().is_none());
        // Somebody writes on.
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
        // What was judged is no news, whenever it was written.
        write_at(9);
        assert!(watch.look().is_none() && watch.look().is_none());
    }

    #[test]
    fn a_file_that_is_what_it_was_again_is_no_news() {
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
    fn a_file_that_is_gone_is_news_once_and_so_is_its_return() {
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
    fn to_load_is_to_judge_at_once() {
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
