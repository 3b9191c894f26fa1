//! A walk over raw values that remembers where it is and collects every mistake instead of stopping at the first.
//!
//! What a value says is told only where it cannot be a secret, see [`is_secret`].

use std::fmt;
use std::time::Duration;

use config::{Map, Value, ValueKind};

use super::Mistake;
use crate::duration;

/// Names further away than this many edits are no help to offer.
const SUGGESTION_EDITS_MAX: usize = 3;
/// Most letters of a name or value that a mistake repeats.
const SHOWN_LETTERS_MAX: usize = 64;
/// Most mistakes that are collected; a text of some megabytes can have hundreds of thousands.
const MISTAKES_MAX: usize = 1_000;
/// Digits of the largest number, 18,446,744,073,709,551,615.
const NUMBER_DIGITS_MAX: usize = 20;

/// A value and its path.
pub(super) struct Node {
    pub path: String,
    value: ValueKind,
}

/// A table whose fields are taken one by one; what is left over was not known.
pub(super) struct Table {
    pub path: String,
    fields: Map<String, Value>,
    known: Vec<&'static str>,
}

/// Collects mistakes.
pub(super) type Mistakes = Vec<Mistake>;

/// Notes a mistake at `path`.
pub(super) fn wrong(mistakes: &mut Mistakes, path: &str, message: impl Into<String>) {
    note(mistakes, Mistake { path: path.to_owned(), message: message.into(), place: None });
}

/// Notes a mistake, unless there are so many that nobody reads on.
pub(super) fn note(mistakes: &mut Mistakes, mistake: Mistake) {
    if mistakes.len() < MISTAKES_MAX {
        mistakes.push(mistake);
    }
}

impl Node {
    pub(super) fn root(value: Value) -> Self {
        Self { path: String::new(), value: value.kind }
    }

    /// The value as a table; nothing written is an empty one.
    pub(super) fn table(self, mistakes: &mut Mistakes) -> Option<Table> {
        match self.value {
            ValueKind::Table(fields) => Some(Table { path: self.path, fields, known: Vec::new() }),
            ValueKind::Nil => Some(Table { path: self.path, fields: Map::new(), known: Vec::new() }),
            other => self_wrong(mistakes, &self.path, &other, "a table of fields"),
        }
    }

    /// The value as a list; a text is one with its comma-separated parts, which is how the environment writes lists.
    pub(super) fn list(self, mistakes: &mut Mistakes) -> Option<Vec<Self>> {
        let path = self.path;
        let item = |(index, value): (usize, ValueKind)| Self { path: format!("{path}[{index}]"), value };
        match self.value {
            ValueKind::Array(values) => Some(values.into_iter().map(|value| value.kind).enumerate().map(item).collect()),
            ValueKind::String(text) => {
                let parts = text.split(',').map(|part| ValueKind::String(part.trim().to_owned()));
                Some(parts.enumerate().map(item).collect())
            }
            other => self_wrong(mistakes, &path, &other, "a list"),
        }
    }

    /// The text, if it is one; no complaint if not.
    pub(super) fn plain_text(&self) -> Option<String> {
        match &self.value {
            ValueKind::String(text) => Some(text.clone()),
            _ => None,
        }
    }

    pub(super) fn text(self, mistakes: &mut Mistakes) -> Option<String> {
        match self.value {
            ValueKind::String(text) => Some(text),
            other => self_wrong(mistakes, &self.path, &other, "a text"),
        }
    }

    pub(super) fn number(self, mistakes: &mut Mistakes) -> Option<u64> {
        let parsed = match &self.value {
            ValueKind::String(text) => number(text),
            _ => Err("a whole number in digits alone, such as 1000"),
        };
        parsed.map_err(|right| self_wrong::<()>(mistakes, &self.path, &self.value, right)).ok()
    }

    pub(super) fn truth(self, mistakes: &mut Mistakes) -> Option<bool> {
        match &self.value {
            ValueKind::Boolean(truth) => Some(*truth),
            ValueKind::String(text) if text == "true" => Some(true),
            ValueKind::String(text) if text == "false" => Some(false),
            other => self_wrong(mistakes, &self.path, other, "true or false"),
        }
    }

    pub(super) fn duration(self, mistakes: &mut Mistakes) -> Option<Duration> {
        let ValueKind::String(text) = &self.value else {
            return self_wrong(mistakes, &self.path, &self.value, "a duration with its unit, such as 250ms, 10s, 1m, 1h or 1d");
        };
        let parsed = duration::parse(text);
        parsed.map_err(|why| self_wrong::<()>(mistakes, &self.path, &self.value, &format!("a duration: {why}"))).ok()
    }

    /// The value as one of `choices`.
    pub(super) fn choice<T: Copy>(self, choices: &[(&str, T)], mistakes: &mut Mistakes) -> Option<T> {
        let chosen = match &self.value {
            ValueKind::String(text) => choices.iter().find(|choice| choice.0 == text).map(|choice| choice.1),
            _ => None,
        };
        chosen.or_else(|| {
            let names: Vec<&str> = choices.iter().map(|choice| choice.0).collect();
            self_wrong(mistakes, &self.path, &self.value, &format!("one of {}", names.join(", ")))
        })
    }
}

/// A whole number as people write it. Errors: what would be right. Other forms mean other things to other readers of YAML:
/// `010` is 8 or 10, `1_000` is 1000 or a text.
fn number(text: &str) -> Result<u64, &'static str> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.as_bytes() {
        [b'0', _, ..] if digits => Err("a whole number without a 0 before it"),
        _ if digits && text.len() <= NUMBER_DIGITS_MAX => text.parse().map_err(|_| "a whole number of 19 digits at most"),
        _ if digits => Err("a whole number of 19 digits at most"),
        _ => Err("a whole number in digits alone, such as 1000"),
    }
}

impl Table {
    /// Takes a field out, if it is there.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Node> {
        self.known.push(name);
        let value = self.fields.remove(name)?.kind;
        Some(Node { path: join(&self.path, name), value })
    }

    /// Takes every field out, for a table whose fields are names of the user's.
    pub(super) fn take_all(self) -> Vec<(String, Node)> {
        let path = self.path;
        let node = |(name, value): (String, Value)| {
            let node = Node { path: join(&path, &shown_key(&name)), value: value.kind };
            (name, node)
        };
        let mut all: Vec<_> = self.fields.into_iter().map(node).collect();
        // The tree does not keep the file's order; that of names is at least steady.
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Complains of every field that nobody took.
    pub(super) fn finish(self, mistakes: &mut Mistakes) {
        let mut left: Vec<(&String, &Value)> = self.fields.iter().collect();
        left.sort_by_key(|(name, _)| *name);
        for (name, value) in left {
            let near = self.known.iter().map(|known| (strsim::damerau_levenshtein(known, &shown_key(name)), known)).min();
            let near = near.filter(|(edits, _)| *edits <= SUGGESTION_EDITS_MAX && *edits < name.len());
            let known = self.known.join(", ");
            let (path, message) = match near {
                Some((_, known)) => (join(&self.path, &shown_key(name)), format!("is not a field; did you mean {known}?")),
                // A name that is like none of ours may be a value that stands in the wrong place.
                None if self.path.is_empty() || is_secret(&self.path) => {
                    (self.path.clone(), format!("has a field that is not known; there are {known}"))
                }
                None => (join(&self.path, &shown_key(name)), format!("is not a field; there are {known}")),
            };
            note(mistakes, Mistake { path, message, place: value.origin().map(str::to_owned) });
        }
    }
}

/// A path and a name below it.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A name of the user's as it stands in a path: on one line, and not too long.
pub(super) fn shown_key(name: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
    if !name.is_empty() && name.len() <= SHOWN_LETTERS_MAX && name.chars().all(plain) {
        return name.to_owned();
    }
    Shown(name).to_string()
}

/// A text in quotes, escaped, and cut where it is long.
pub(super) struct Shown<'a>(pub(super) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN_LETTERS_MAX) {
            Some((end, _)) => write!(out, "{:?}…", &self.0[..end]),
            None => write!(out, "{:?}", self.0),
        }
    }
}

/// Whether what stands at this path may be a secret, or be one by mistake: then no message repeats it.
fn is_secret(path: &str) -> bool {
    let mut parts = path.split(['.', '[']);
    match parts.next() {
        Some("store") => true,
        Some("plans") => false,
        first => first.into_iter().chain(parts).any(|part| ["tls", "token", "password"].iter().any(|word| part.contains(word))),
    }
}

fn self_wrong<T>(mistakes: &mut Mistakes, path: &str, value: &ValueKind, right: &str) -> Option<T> {
    let found = match value {
        ValueKind::Nil => "nothing".to_owned(),
        ValueKind::Table(_) => "a table".to_owned(),
        ValueKind::Array(_) => "a list".to_owned(),
        // The whole of a file that is no config.
        ValueKind::String(_) if path.is_empty() => "a text".to_owned(),
        ValueKind::String(_) if is_secret(path) => {
            wrong(mistakes, path, format!("is wrong; it must be {right}"));
            return None;
        }
        ValueKind::String(text) if is_number_like(text) => text.clone(),
        ValueKind::String(text) => Shown(text).to_string(),
        other => other.to_string(),
    };
    let place = if path.is_empty() { "the config " } else { "" };
    wrong(mistakes, path, format!("{place}is {found}; it must be {right}"));
    None
}

/// Whether it is told without quotes, as it was most likely written.
fn is_number_like(text: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'_' | b'e' | b'E');
    text.len() <= NUMBER_DIGITS_MAX && text.bytes().all(letters) && text.bytes().any(|byte| byte.is_ascii_digit())
}
