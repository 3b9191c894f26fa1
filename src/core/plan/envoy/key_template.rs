//! The key of a descriptor: a template of a rule, filled with values of the entries.
//!
//! Different values give different keys, whatever the values hold. With several values in a template, every letter that its texts
//! have, and `\`, gets a `\` before it within a value. So no value can look like the end of one and the beginning of another.

use super::{Entry, EntryPattern};
use crate::key::{KEY_BYTES_MAX, Key, SHARD_BYTES_MAX};

/// The key that a plan counts a descriptor under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTemplate {
    parts: Vec<TemplatePart>,
    /// Letters that get a `\` before them within a value; none where there is no second value.
    escaped: Box<str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplatePart {
    Text(Box<str>),
    /// The value of the entry at this index.
    Value(usize),
}

impl KeyTemplate {
    /// Parses a template such as `{user}:{path}`, for a rule with these patterns; `{user=2}` is the second entry named so. Errors:
    /// what is wrong, and what is right.
    pub fn parse(text: &str, patterns: &[EntryPattern]) -> Result<Self, String> {
        let all = "all values that the descriptor leaves open";
        check_text(text, all, (KEY_BYTES_MAX, "a key"))?;
        Self::parse_text(text, patterns)
    }

    /// Parses the same for a shard.
    pub fn parse_shard(text: &str, patterns: &[EntryPattern]) -> Result<Self, String> {
        check_text(text, "no shard", (SHARD_BYTES_MAX, "a shard"))?;
        Self::parse_text(text, patterns)
    }

    fn parse_text(text: &str, patterns: &[EntryPattern]) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after
                .split_once('}')
                .ok_or("has a { without a }; write {name} for the value of an entry")?;
            push_text(&mut parts, before)?;
            if before.is_empty() && matches!(parts.last(), Some(TemplatePart::Value(_))) {
                return Err(
                    "has two values side by side; write a letter between them, such as {a}:{b}"
                        .to_owned(),
                );
            }
            parts.push(TemplatePart::Value(index_of(name, patterns)?));
            rest = after;
        }
        push_text(&mut parts, rest)?;
        Ok(Self::from_parts(parts))
    }

    /// All values that the patterns leave open; where there is none, the descriptor itself.
    pub fn for_open_values(patterns: &[EntryPattern]) -> Self {
        let open = patterns
            .iter()
            .enumerate()
            .filter(|(_, pattern)| pattern.is_open());
        let mut parts: Vec<TemplatePart> = open
            .flat_map(|(entry_index, _)| {
                [
                    TemplatePart::Text("|".into()),
                    TemplatePart::Value(entry_index),
                ]
            })
            .collect();
        if parts.is_empty() {
            let patterns: Vec<String> = patterns.iter().map(ToString::to_string).collect();
            return Self::from_parts(vec![TemplatePart::Text(patterns.join("|").into())]);
        }
        parts.remove(0);
        Self::from_parts(parts)
    }

    fn from_parts(parts: Vec<TemplatePart>) -> Self {
        let values = parts
            .iter()
            .filter(|part| matches!(part, TemplatePart::Value(_)))
            .count();
        let texts = parts.iter().map(|part| {
            if let TemplatePart::Text(text) = part {
                &**text
            } else {
                ""
            }
        });
        let escaped: String = if values > 1 {
            texts.chain(["\\"]).collect()
        } else {
            String::new()
        };
        Self {
            parts,
            escaped: escaped.into(),
        }
    }

    /// The key of a descriptor with these entries, which the rule matches.
    pub fn key(&self, entries: &[Entry]) -> Key {
        Key::from_any(self.text(entries))
    }

    /// The text of a descriptor with these entries.
    pub(super) fn text(&self, entries: &[Entry]) -> String {
        let value = |entry_index: usize| entries.get(entry_index).map_or("", |entry| &entry.value);
        let bytes = |part: &TemplatePart| match part {
            TemplatePart::Text(text) => text.len(),
            TemplatePart::Value(entry_index) => value(*entry_index).len(),
        };
        // Exact where nothing is escaped.
        let mut key = String::with_capacity(self.parts.iter().map(bytes).sum());
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => key.push_str(text),
                TemplatePart::Value(entry_index) => {
                    push_escaped(&mut key, value(*entry_index), &self.escaped)
                }
            }
        }
        key
    }
}

/// Checks the text of a template. `without` is what a rule has without one.
fn check_text(text: &str, without: &str, (most, what): (usize, &str)) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("is empty; leave it out for {without}"));
    }
    if text.len() > most {
        return Err(format!(
            "has {} bytes; at most {most} are {what}",
            text.len()
        ));
    }
    if text.contains('\\') {
        return Err("has a \\, which marks letters of values; write another letter".to_owned());
    }
    Ok(())
}

/// The key of a descriptor by all its entries, with their names. Different descriptors have different keys.
pub fn key_of_all(before: &str, entries: &[Entry]) -> Key {
    let mut key = String::new();
    push_escaped(&mut key, before, "|=\\");
    for entry in entries {
        if !key.is_empty() {
            key.push('|');
        }
        push_escaped(&mut key, &entry.name, "|=\\");
        key.push('=');
        push_escaped(&mut key, &entry.value, "|=\\");
    }
    Key::from_any(key)
}

fn push_escaped(key: &mut String, value: &str, escaped: &str) {
    if escaped.is_empty() || !value.contains(|letter| escaped.contains(letter)) {
        return key.push_str(value);
    }
    for letter in value.chars() {
        if escaped.contains(letter) {
            key.push('\\');
        }
        key.push(letter);
    }
}

fn push_text(parts: &mut Vec<TemplatePart>, text: &str) -> Result<(), String> {
    if text.contains('}') {
        return Err("has a } without a {; write {name} for the value of an entry".to_owned());
    }
    if !text.is_empty() {
        parts.push(TemplatePart::Text(text.into()));
    }
    Ok(())
}

/// The entry that `{name}` means, or `{name=2}`, the second of several with this name. No name has a `=`.
fn index_of(text: &str, patterns: &[EntryPattern]) -> Result<usize, String> {
    let (name, number) = text
        .split_once('=')
        .map_or((text, None), |(name, number)| (name, Some(number)));
    let of_name: Vec<usize> = patterns
        .iter()
        .enumerate()
        .filter(|(_, pattern)| *pattern.name == *name)
        .map(|(entry_index, _)| entry_index)
        .collect();
    let count = of_name.len();
    match (number, &of_name[..]) {
        (_, []) => {
            let names: Vec<String> = patterns
                .iter()
                .map(|pattern| format!("{{{}}}", pattern.name))
                .collect();
            Err(format!(
                "has {{{name}}}, which no entry fills; there are {}",
                names.join(", ")
            ))
        }
        (None, [entry_index]) => Ok(*entry_index),
        (None, _) => Err(format!(
            "has {{{name}}}, and {count} entries have this name; write {{{name}=1}} for the first of them"
        )),
        (Some(number), _) => {
            let entry_index = number
                .parse::<usize>()
                .ok()
                .and_then(|number| of_name.get(number.checked_sub(1)?));
            entry_index.copied().ok_or_else(|| {
                format!("has {{{text}}}; after the = write a number from 1 to {count}")
            })
        }
    }
}
