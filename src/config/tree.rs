//! A walk over raw values that remembers where it is and collects every mistake instead of stopping at the first.

use std::time::Duration;

use config::{Map, Value, ValueKind};

use super::Mistake;
use crate::duration;

/// Names further away than this many edits are no help to offer.
const SUGGESTION_EDITS_MAX: usize = 3;

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
    mistakes.push(Mistake { path: path.to_owned(), message: message.into() });
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
            // A name such as 2024 is written without quotes often enough.
            ValueKind::I64(number) => Some(number.to_string()),
            other => self_wrong(mistakes, &self.path, &other, "a text"),
        }
    }

    pub(super) fn number(self, mistakes: &mut Mistakes) -> Option<u64> {
        let parsed = match &self.value {
            ValueKind::I64(number) => u64::try_from(*number).ok(),
            ValueKind::U64(number) => Some(*number),
            ValueKind::String(text) => text.parse().ok(),
            _ => None,
        };
        parsed.or_else(|| self_wrong(mistakes, &self.path, &self.value, "a whole number, 0 or more"))
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
            let node = Node { path: join(&path, &name), value: value.kind };
            (name, node)
        };
        let mut all: Vec<_> = self.fields.into_iter().map(node).collect();
        // The tree does not keep the file's order; that of names is at least steady.
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Complains of every field that nobody took.
    pub(super) fn finish(self, mistakes: &mut Mistakes) {
        let mut left: Vec<&String> = self.fields.keys().collect();
        left.sort();
        for name in left {
            let near = self.known.iter().map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
            let message = match near {
                Some((edits, known)) if edits <= SUGGESTION_EDITS_MAX && edits < name.len() => {
                    format!("is not a field; did you mean {known}?")
                }
                _ => format!("is not a field; there are {}", self.known.join(", ")),
            };
            wrong(mistakes, &join(&self.path, name), message);
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn self_wrong<T>(mistakes: &mut Mistakes, path: &str, value: &ValueKind, right: &str) -> Option<T> {
    let found = match value {
        ValueKind::Nil => "nothing".to_owned(),
        ValueKind::Table(_) => "a table".to_owned(),
        ValueKind::Array(_) => "a list".to_owned(),
        ValueKind::String(text) => format!("{text:?}"),
        other => other.to_string(),
    };
    let place = if path.is_empty() { "the config " } else { "" };
    wrong(mistakes, path, format!("{place}is {found}; it must be {right}"));
    None
}
