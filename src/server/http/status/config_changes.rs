//! The last changes of the config, for people who ask what changed when something began to fail.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of changes that are kept.
const CHANGES_MAX: usize = 10;
/// Maximum number of bytes of a change's text. An invalid config may have thousands of errors; the log has all of them.
const TEXT_BYTES_MAX: usize = 400;

/// What became of a config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigOutcome {
    /// The process began with it.
    Started,
    /// It was taken up.
    Reloaded,
    /// It was rejected because of errors; the plans stayed as they were.
    Refused,
}

impl ConfigOutcome {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Reloaded => "reloaded",
            Self::Refused => "refused",
        }
    }
}

/// A change of the config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigChange {
    /// Microseconds since 1970-01-01T00:00:00Z.
    pub at_us: u64,
    pub outcome: ConfigOutcome,
    /// A sentence for people.
    pub text: String,
}

/// The last changes. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct ConfigChanges(Arc<Mutex<VecDeque<ConfigChange>>>);

impl ConfigChanges {
    /// Records a change at this wall time. `text` is a sentence for people; what is too long of it is cut off.
    pub fn record(&self, at_us: u64, outcome: ConfigOutcome, text: &str) {
        let text = shortened(text);
        let mut changes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        changes.truncate(CHANGES_MAX - 1);
        changes.push_front(ConfigChange {
            at_us,
            outcome,
            text,
        });
    }

    /// The changes, the last one first.
    pub(super) fn list(&self) -> Vec<ConfigChange> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .cloned()
            .collect()
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let whole = text
        .char_indices()
        .map(|(at, letter)| at + letter.len_utf8())
        .take_while(|end| *end <= TEXT_BYTES_MAX);
    format!("{}…", &text[..whole.last().unwrap_or(0)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_changes_are_kept_with_the_beginning_of_their_texts() {
        let changes = ConfigChanges::default();
        (0..50).for_each(|at_us| changes.record(at_us, ConfigOutcome::Reloaded, "short"));
        changes.record(50, ConfigOutcome::Refused, &"é".repeat(1_000));
        let list = changes.list();
        assert_eq!(
            (list.len(), list[0].at_us, list[1].at_us),
            (CHANGES_MAX, 50, 49)
        );
        assert_eq!(list[0].text, format!("{}…", "é".repeat(200)));
    }
}
