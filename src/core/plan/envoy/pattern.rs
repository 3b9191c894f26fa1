//! What one entry of a descriptor must be, as a rule writes it: `name`, or `name=value`, whose value may have `*` anywhere.

use std::fmt;

use super::{Entry, Wildcard};

/// Longest pattern, in bytes. It holds a path or a name of a header field with a long value.
pub const PATTERN_BYTES_MAX: usize = 512;

const RIGHT: &str = "write name for any value, name=value, or name=prefix*; a * stands for any letters, and may be anywhere";

/// A pattern of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryPattern {
    pub(super) name: Box<str>,
    pub(super) value: ValuePattern,
}

/// A pattern of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ValuePattern {
    Any,
    Exact(Box<str>),
    Wildcard(Wildcard),
}

impl EntryPattern {
    /// Parses a pattern. Errors: what is wrong with it, and the right form.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!(
                "has {} bytes; an entry has at most {PATTERN_BYTES_MAX}",
                text.len()
            ));
        }
        let (name, value) = text
            .split_once('=')
            .map_or((text, None), |(name, value)| (name, Some(value)));
        if name.is_empty() {
            return Err(format!("has no name; {RIGHT}"));
        }
        if name.contains(['*', '{', '}']) {
            return Err(format!(
                "has a name with *, {{ or }}; a name is written as it is sent; {RIGHT}"
            ));
        }
        let value = match value {
            None => ValuePattern::Any,
            Some(value) => match Wildcard::parse(value) {
                Some(wildcard) => ValuePattern::Wildcard(wildcard),
                None if value.chars().all(|letter| letter == '*') => {
                    return Err(format!("gives no value after its =; {RIGHT}"));
                }
                None => ValuePattern::Exact(value.into()),
            },
        };
        Ok(Self {
            name: name.into(),
            value,
        })
    }

    /// Whether the pattern leaves the value open, in whole or in part.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.value, ValuePattern::Exact(_))
    }

    pub(super) fn matches(&self, entry: &Entry) -> bool {
        *self.name == *entry.name
            && match &self.value {
                ValuePattern::Any => true,
                ValuePattern::Exact(value) => **value == *entry.value,
                ValuePattern::Wildcard(wildcard) => wildcard.matches(&entry.value),
            }
    }
}

impl fmt::Display for EntryPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            ValuePattern::Any => write!(out, "{}", self.name),
            ValuePattern::Exact(value) => write!(out, "{}={value}", self.name),
            ValuePattern::Wildcard(wildcard) => write!(out, "{}={wildcard}", self.name),
        }
    }
}
