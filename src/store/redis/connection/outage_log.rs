//! What is logged of an outage: each kind of cause once, and of equal lines within a second the first.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clock::monotonic;

/// Maximum number of kinds of causes that are logged in one outage, more than one has.
const CAUSES_MAX: usize = 8;
/// Lines within this time are compared. All workers lose a server at nearly the same time.
const REPEATED_WITHIN: Duration = Duration::from_secs(1);

/// The kinds of causes of the present outage that were logged. Causes that alternate thus do not fill the log.
#[derive(Debug, Default)]
pub(in crate::redis) struct LoggedCauses(Vec<String>);

impl LoggedCauses {
    /// Whether a cause of this kind was not logged yet. It counts as logged from now on.
    pub(in crate::redis) fn add(&mut self, cause: &str) -> bool {
        let kind = kind_of(cause);
        let is_new = self.0.len() < CAUSES_MAX && !self.0.iter().any(|known| known == kind);
        if is_new {
            self.0.push(kind.to_owned());
        }
        is_new
    }

    /// The outage is over.
    pub(in crate::redis) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The text of a cause before its first digit or quote. What follows may differ each time.
fn kind_of(cause: &str) -> &str {
    let varies = |letter: char| letter.is_ascii_digit() || matches!(letter, '\'' | '"' | '`');
    cause.split(varies).next().unwrap_or(cause)
}

/// Whether an equal line was logged within the last second. Each worker finds out by itself what happens to a server.
pub(super) fn is_repeated(line: String) -> bool {
    static RECENT: Mutex<Vec<(String, Instant)>> = Mutex::new(Vec::new());
    let now = monotonic();
    // No code panics while holding this lock.
    let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
    recent.retain(|(_, when)| now.saturating_duration_since(*when) < REPEATED_WITHIN);
    let is_repeated = recent.iter().any(|(known, _)| *known == line);
    if !is_repeated {
        recent.push((line, now));
    }
    is_repeated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_that_alternate_are_logged_once_each_until_the_outage_is_over() {
        let mut logged = LoggedCauses::default();
        let unknown = |command: &str| {
            format!("ERR unknown command 'SENTINEL', with args beginning with: '{command}'")
        };
        let causes = [
            ("Connection refused".to_owned(), true),
            (unknown("MASTER"), true),
            (unknown("GET-MASTER-ADDR-BY-NAME"), false),
            ("Connection refused".to_owned(), false),
            ("NOAUTH Authentication required.".to_owned(), true),
            ("no connection within 500ms".to_owned(), true),
            ("no connection within 1s".to_owned(), false),
        ];
        for (cause, is_new) in &causes {
            assert_eq!(logged.add(cause), *is_new, "{cause}");
        }
        logged.clear();
        assert!(logged.add("Connection refused"));
    }

    #[test]
    fn the_causes_of_one_outage_have_a_bound() {
        let mut logged = LoggedCauses::default();
        let cause = |number: usize| "x".repeat(number + 1);
        let lines = (0..100).filter(|number| logged.add(&cause(*number)));
        assert_eq!(lines.count(), CAUSES_MAX);
    }
}
