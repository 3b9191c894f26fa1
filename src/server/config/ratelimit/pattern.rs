//! What an entry must be, and which entries two wildcards both match.

use std::cmp::Reverse;
use std::collections::HashSet;

use tollgate_core::plan::envoy::{PATTERN_BYTES_MAX, Wildcard};

/// Maximum number of texts with `*` that two wildcards both match, counting each way to come to one. `*a*` and `*b*` have `*a*b*`
/// and `*b*a*`.
const MEETS_MAX: usize = 1_000;

/// What an entry must be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Pattern {
    pub(super) key: String,
    pub(super) value: MatchedValue,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum MatchedValue {
    Any,
    /// With its text.
    Wildcard(String, Wildcard),
    Exact(String),
}

/// Of two patterns where one matches only what the other matches too, it is the greater one.
pub(super) type PatternSpecificity = (u8, usize, Reverse<usize>);

impl Pattern {
    pub(super) fn new(key: &str, value: &str) -> Self {
        let value = match Wildcard::parse(value) {
            Some(wildcard) => MatchedValue::Wildcard(wildcard.to_string(), wildcard),
            None if value.chars().all(|letter| letter == '*') => MatchedValue::Any,
            None => MatchedValue::Exact(value.to_owned()),
        };
        Self {
            key: key.to_owned(),
            value,
        }
    }

    pub(super) fn is_exact(&self) -> bool {
        matches!(self.value, MatchedValue::Exact(_))
    }

    /// Whether every entry that `other` matches is matched by this too.
    pub(super) fn contains(&self, other: &Self) -> bool {
        self.key == other.key
            && match (&self.value, &other.value) {
                (MatchedValue::Any, _) => true,
                (_, MatchedValue::Any) => false,
                (
                    MatchedValue::Wildcard(_, wildcard),
                    MatchedValue::Wildcard(text, _) | MatchedValue::Exact(text),
                ) => wildcard.matches(text),
                (MatchedValue::Exact(value), other) => {
                    matches!(other, MatchedValue::Exact(other) if other == value)
                }
            }
    }

    pub(super) fn is_wider_than(&self, other: &Self) -> bool {
        self.contains(other) && self != other
    }

    pub(super) fn specificity(&self) -> PatternSpecificity {
        match &self.value {
            MatchedValue::Any => (0, 0, Reverse(0)),
            MatchedValue::Wildcard(_, wildcard) => (1, wildcard.bytes(), Reverse(wildcard.stars())),
            MatchedValue::Exact(_) => (2, 0, Reverse(0)),
        }
    }

    /// The widest patterns of entries that both match, where neither contains the other. `None`: there are too many.
    pub(super) fn meets(&self, other: &Self) -> Option<Vec<Self>> {
        let (
            MatchedValue::Wildcard(text, wildcard),
            MatchedValue::Wildcard(other_text, other_wildcard),
        ) = (&self.value, &other.value)
        else {
            return Some(Vec::new());
        };
        // No rule has a longer entry; that is told later.
        let are_short = text.len().max(other_text.len()) <= PATTERN_BYTES_MAX;
        if self.key != other.key || !can_meet(wildcard, other_wildcard) || !are_short {
            return Some(Vec::new());
        }
        let found: Vec<Self> = Meets::texts(text, other_text)?
            .iter()
            .map(|text| Self::new(&self.key, text))
            .collect();
        let mut widest: Vec<Self> = found
            .iter()
            .filter(|pattern| !found.iter().any(|other| other.is_wider_than(pattern)))
            .cloned()
            .collect();
        // The same in each run.
        widest.sort_by(|one, other| one.text().cmp(other.text()));
        Some(widest)
    }

    /// The value as it is written; empty for any.
    pub(super) fn text(&self) -> &str {
        match &self.value {
            MatchedValue::Any => "",
            MatchedValue::Wildcard(text, _) | MatchedValue::Exact(text) => text,
        }
    }
}

/// Whether a text can begin and end as both wildcards do.
fn can_meet(one: &Wildcard, other: &Wildcard) -> bool {
    let can_begin =
        one.begin().starts_with(other.begin()) || other.begin().starts_with(one.begin());
    let can_end = one.end().ends_with(other.end()) || other.end().ends_with(one.end());
    can_begin && can_end
}

/// The search for texts with `*` that two others match.
#[derive(Default)]
struct Meets {
    first: Vec<char>,
    second: Vec<char>,
    /// The text so far.
    text: String,
    found: HashSet<String>,
    /// Ways that led to a text, of which several may lead to the same one.
    ways: usize,
    /// Places in both from which no text is found.
    dead: HashSet<(usize, usize)>,
}

impl Meets {
    /// The texts with `*` that both of these match. `None`: there are too many.
    fn texts(first: &str, second: &str) -> Option<HashSet<String>> {
        let mut meets = Self {
            first: first.chars().collect(),
            second: second.chars().collect(),
            ..Self::default()
        };
        meets.follow(0, 0);
        (meets.ways < MEETS_MAX).then_some(meets.found)
    }

    /// Goes on from these places. Returns whether a text was found. The depth is that of both texts, of 512 bytes each at most.
    fn follow(&mut self, first: usize, second: usize) -> bool {
        if self.ways >= MEETS_MAX || self.dead.contains(&(first, second)) {
            return false;
        }
        let found = self.search(first, second);
        if !found && self.ways < MEETS_MAX {
            self.dead.insert((first, second));
        }
        found
    }

    /// Tries every way on from these places.
    fn search(&mut self, first: usize, second: usize) -> bool {
        let letter = self.first.get(first).copied();
        let other = self.second.get(second).copied();
        match (letter, other) {
            (None, None) => {
                self.ways += 1;
                self.found.insert(self.text.clone());
                true
            }
            (Some('*'), Some('*')) => {
                let ends = self.follow_letter('*', first + 1, second);
                self.follow_letter('*', first, second + 1) || ends
            }
            // A star stands for the letter, or for nothing more.
            (Some('*'), other) => {
                let stands = other.is_some_and(|one| self.follow_letter(one, first, second + 1));
                self.follow(first + 1, second) || stands
            }
            (letter, Some('*')) => {
                let stands = letter.is_some_and(|one| self.follow_letter(one, first + 1, second));
                self.follow(first, second + 1) || stands
            }
            (Some(letter), Some(other)) if letter == other => {
                self.follow_letter(letter, first + 1, second + 1)
            }
            _ => false,
        }
    }

    /// Goes on with one letter more.
    fn follow_letter(&mut self, letter: char, first: usize, second: usize) -> bool {
        self.text.push(letter);
        let found = self.follow(first, second);
        self.text.pop();
        found
    }
}
