//! The tree of raw values of a config. Reads each value as the type that its field needs, and collects all errors with their
//! paths instead of stopping at the first.
//!
//! A message repeats a value only if it cannot be a secret; see [`is_secret`].

mod shown;

use std::time::Duration;

use config::{Map, Value, ValueKind};

use super::ConfigError;
use super::environment::similar_settings;
use super::place::origin_within;
use shown::shown_value;
pub(super) use shown::{Quoted, is_secret, shown_key};
use tollgate_core::duration;
use tollgate_core::nearest::nearest;

/// Maximum number of errors that are collected. A config of some megabytes can have hundreds of thousands.
const ERRORS_MAX: usize = 1_000;
/// Digits of the largest `u64`, 18,446,744,073,709,551,615. Only some numbers of so many digits fit, so messages say 19.
const NUMBER_DIGITS_MAX: usize = 20;

/// A value and its path.
pub(super) struct Node {
    pub path: String,
    value: ValueKind,
}

/// A table whose fields are taken one by one. A field that is left over is unknown.
pub(super) struct Table {
    pub path: String,
    fields: Map<String, Value>,
    known: Vec<&'static str>,
}

/// The list of errors found so far.
pub(super) type ErrorList = Vec<ConfigError>;

/// Adds an error with this path and message, by [`add`].
pub(super) fn report(errors: &mut ErrorList, path: &str, message: impl Into<String>) {
    add(
        errors,
        ConfigError {
            path: path.to_owned(),
            message: message.into(),
            place: None,
        },
    );
}

/// Adds an error, unless there are already `ERRORS_MAX`.
pub(super) fn add(errors: &mut ErrorList, error: ConfigError) {
    if !is_full(errors) {
        errors.push(error);
    }
}

/// Whether no more errors are kept, so that their messages need not be made.
pub(super) fn is_full(errors: &ErrorList) -> bool {
    errors.len() >= ERRORS_MAX
}

impl Node {
    pub(super) fn root(value: Value) -> Self {
        Self {
            path: String::new(),
            value: value.kind,
        }
    }

    /// The value as a table; an empty value is an empty table.
    pub(super) fn table(self, errors: &mut ErrorList) -> Option<Table> {
        match self.value {
            ValueKind::Table(fields) => Some(Table {
                path: self.path,
                fields,
                known: Vec::new(),
            }),
            ValueKind::Nil => Some(Table {
                path: self.path,
                fields: Map::new(),
                known: Vec::new(),
            }),
            other => report_wrong(errors, &self.path, &other, "a table of fields"),
        }
    }

    /// The value as a list of at most `most` elements. A text is split at commas, which is how the environment writes lists. Of
    /// a longer list only the length is read, for the message of `too_long`.
    pub(super) fn list(
        self,
        most: usize,
        too_long: impl Fn(usize) -> String,
        errors: &mut ErrorList,
    ) -> Option<Vec<Self>> {
        let path = self.path;
        let length = list_length(&self.value);
        if length > most {
            report(errors, &path, too_long(length));
            return None;
        }
        let values: Vec<ValueKind> = match self.value {
            ValueKind::Array(values) => values.into_iter().map(|value| value.kind).collect(),
            ValueKind::String(text) => text
                .split(',')
                .map(|part| ValueKind::String(part.trim().to_owned()))
                .collect(),
            other => return report_wrong(errors, &path, &other, "a list"),
        };
        let item = |(index, value): (usize, ValueKind)| Self {
            path: format!("{path}[{index}]"),
            value,
        };
        Some(values.into_iter().enumerate().map(item).collect())
    }

    /// The value if it is a text; other values are not errors here.
    pub(super) fn plain_text(&self) -> Option<String> {
        match &self.value {
            ValueKind::String(text) => Some(text.clone()),
            _ => None,
        }
    }

    pub(super) fn is_boolean(&self) -> bool {
        matches!(self.value, ValueKind::Boolean(_))
    }

    /// Reports the value, and what would be right, as in `is 31; a month starts on day 1 to 28`. It must not be a secret.
    pub(super) fn report_value(&self, right: &str, errors: &mut ErrorList) {
        let found = shown_value(&self.value);
        report(errors, &self.path, format!("is {found}; {right}"));
    }

    /// Whether nothing is written after the field's name.
    pub(super) fn is_nil(&self) -> bool {
        matches!(self.value, ValueKind::Nil)
    }

    pub(super) fn text(self, errors: &mut ErrorList) -> Option<String> {
        match self.value {
            ValueKind::String(text) => Some(text),
            other => report_wrong(errors, &self.path, &other, "a text"),
        }
    }

    pub(super) fn number(self, errors: &mut ErrorList) -> Option<u64> {
        let parsed = match &self.value {
            ValueKind::String(text) => number(text),
            _ => Err("a whole number in digits alone, such as 1000"),
        };
        parsed
            .map_err(|right| report_wrong::<()>(errors, &self.path, &self.value, right))
            .ok()
    }

    pub(super) fn boolean(self, errors: &mut ErrorList) -> Option<bool> {
        match &self.value {
            ValueKind::Boolean(boolean) => Some(*boolean),
            ValueKind::String(text) if text == "true" => Some(true),
            ValueKind::String(text) if text == "false" => Some(false),
            other => report_wrong(errors, &self.path, other, "true or false"),
        }
    }

    pub(super) fn duration(self, errors: &mut ErrorList) -> Option<Duration> {
        let ValueKind::String(text) = &self.value else {
            return report_wrong(
                errors,
                &self.path,
                &self.value,
                "a duration with its unit, such as 250ms, 10s, 1m, 1h or 1d",
            );
        };
        let parsed = duration::parse(text);
        parsed
            .map_err(|why| {
                report_wrong::<()>(
                    errors,
                    &self.path,
                    &self.value,
                    &format!("a duration: {why}"),
                )
            })
            .ok()
    }

    /// The value as one of `choices`.
    pub(super) fn choice<T: Copy>(
        self,
        choices: &[(&str, T)],
        errors: &mut ErrorList,
    ) -> Option<T> {
        let chosen = match &self.value {
            ValueKind::String(text) => choices
                .iter()
                .find(|choice| choice.0 == text)
                .map(|choice| choice.1),
            _ => None,
        };
        chosen.or_else(|| {
            let names: Vec<&str> = choices.iter().map(|choice| choice.0).collect();
            report_wrong(
                errors,
                &self.path,
                &self.value,
                &format!("one of {}", names.join(", ")),
            )
        })
    }
}

/// Parses a whole number in plain digits. Errors: the right form. Other forms are ambiguous in YAML: `010` is 8 or 10, `1_000`
/// is 1000 or a text.
fn number(text: &str) -> Result<u64, &'static str> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.as_bytes() {
        [b'0', _, ..] if digits => Err("a whole number without a 0 before it"),
        _ if digits && text.len() <= NUMBER_DIGITS_MAX => text
            .parse()
            .map_err(|_| "a whole number of 19 digits at most"),
        _ if digits => Err("a whole number of 19 digits at most"),
        _ => Err("a whole number in digits alone, such as 1000"),
    }
}

impl Table {
    /// A field's value, if it is a text. The field stays.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match &self.fields.get(name)?.kind {
            ValueKind::String(text) => Some(text),
            _ => None,
        }
    }

    /// Removes a field and returns it, if it exists.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Node> {
        self.known.push(name);
        let value = self.fields.remove(name)?.kind;
        Some(Node {
            path: join(&self.path, name),
            value,
        })
    }

    /// Takes a field and reads its value. Without the field, the value is `default`.
    pub(super) fn read_or<T>(
        &mut self,
        name: &'static str,
        default: T,
        read: impl FnOnce(Node, &mut ErrorList) -> Option<T>,
        errors: &mut ErrorList,
    ) -> Option<T> {
        match self.take(name) {
            Some(node) => read(node, errors),
            None => Some(default),
        }
    }

    /// Takes a field and reads its value, which is `Some(None)` without the field.
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Node, &mut ErrorList) -> Option<T>,
        errors: &mut ErrorList,
    ) -> Option<Option<T>> {
        self.read_or(
            name,
            None,
            |node, errors| read(node, errors).map(Some),
            errors,
        )
    }

    /// Takes a field and reads its value as one of `choices`. Without the field, the value is `default`.
    pub(super) fn choice_or<T: Copy>(
        &mut self,
        name: &'static str,
        default: T,
        choices: &[(&str, T)],
        errors: &mut ErrorList,
    ) -> Option<T> {
        self.read_or(
            name,
            default,
            |node, errors| node.choice(choices, errors),
            errors,
        )
    }

    /// Removes and returns all fields of a table whose names the user chooses.
    pub(super) fn take_all(self) -> Vec<(String, Node)> {
        let path = self.path;
        let node = |(name, value): (String, Value)| {
            let node = Node {
                path: join(&path, &shown_key(&name)),
                value: value.kind,
            };
            (name, node)
        };
        let mut all: Vec<_> = self.fields.into_iter().map(node).collect();
        // The tree does not keep the file's order. The order of names is at least stable.
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// Adds an error for every field that was not taken.
    pub(super) fn finish(self, errors: &mut ErrorList) {
        let mut left: Vec<(&String, &Value)> = self.fields.iter().collect();
        left.sort_by_key(|(name, _)| *name);
        for (name, value) in left {
            // Finding the nearest known name takes microseconds, and a text may have a million unknown names.
            if is_full(errors) {
                return;
            }
            let (path, message) = self.unknown(name);
            add(
                errors,
                ConfigError {
                    path,
                    message,
                    place: origin_within(value).map(str::to_owned),
                },
            );
        }
    }

    /// The path and the message of an error about a field that is not known.
    fn unknown(&self, name: &str) -> (String, String) {
        let known = self.known.join(", ");
        let field = join(&self.path, &shown_key(name));
        match nearest(name, self.known.iter().copied()) {
            Some(near) => (field, format!("is not a field; did you mean {near}?")),
            // A name unlike all known ones may be a value in the wrong place.
            None if self.path.is_empty() => (String::new(), unknown_at_top(name, &known)),
            None if is_secret(&self.path) => (
                self.path.clone(),
                format!("has a field that is not known; there are {known}"),
            ),
            None => (field, format!("is not a field; there are {known}")),
        }
    }
}

/// The message about a name at the top of the config, which it does not repeat.
fn unknown_at_top(name: &str, known: &str) -> String {
    let meant = similar_settings(name).join(" or ");
    let right = if meant.is_empty() {
        format!("there are {known}")
    } else {
        format!("did you mean {meant}?")
    };
    format!("the config has a field that is not known; {right}")
}

/// The path of a field below `path`.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// The number of elements of a list, or of a text that is split at commas.
fn list_length(value: &ValueKind) -> usize {
    match value {
        ValueKind::Array(values) => values.len(),
        ValueKind::String(text) => text.split(',').count(),
        _ => 0,
    }
}

fn report_wrong<T>(
    errors: &mut ErrorList,
    path: &str,
    value: &ValueKind,
    right: &str,
) -> Option<T> {
    let found = match value {
        // A whole file that is not a config.
        ValueKind::String(_) if path.is_empty() => "a text".to_owned(),
        ValueKind::String(_) if is_secret(path) => {
            report(errors, path, format!("is wrong; it must be {right}"));
            return None;
        }
        other => shown_value(other),
    };
    let place = if path.is_empty() { "the config " } else { "" };
    report(
        errors,
        path,
        format!("{place}is {found}; it must be {right}"),
    );
    None
}
