//! Lines of text in the form of nginx's `log_format`: variables, and fixed text between them.

use std::ops::Range;

/// A `log_format`, cut into its variables.
#[derive(Debug)]
pub(super) struct Layout {
    /// Text before the first variable.
    begin: Vec<u8>,
    names: Vec<String>,
    /// Text after each variable.
    ends: Vec<Vec<u8>>,
}

impl Layout {
    /// Errors: a sentence, for a format that lines could not be cut by.
    pub(super) fn new(format: &str) -> Result<Self, String> {
        let mut parts = format.split('$');
        let mut layout = Self {
            begin: parts.next().unwrap_or_default().into(),
            names: Vec::new(),
            ends: Vec::new(),
        };
        for part in parts {
            let (name, end) = variable(part).ok_or_else(|| {
                format!("the format names no variable after a $, before {part:?}")
            })?;
            if let (Some(before), Some(b"")) =
                (layout.names.last(), layout.ends.last().map(Vec::as_slice))
            {
                return Err(format!(
                    "the format cannot be read: nothing stands between ${before} and ${name}"
                ));
            }
            if layout.names.iter().any(|known| known == name) {
                return Err(format!("the format has ${name} twice; leave one out"));
            }
            layout.names.push(name.to_owned());
            layout.ends.push(end.into());
        }
        Ok(layout)
    }

    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Finds each variable. What follows the format's last text is left out.
    pub(super) fn cut(
        &self,
        line: &[u8],
        places: &mut [Option<Range<usize>>],
    ) -> Result<(), &'static str> {
        if !line.starts_with(&self.begin) {
            return Err("it does not begin as the format does");
        }
        let mut at = self.begin.len();
        for (end, place) in self.ends.iter().zip(places) {
            let length = match end.as_slice() {
                [] => line.len() - at,
                end => find(&line[at..], end).ok_or(
                    "it ends before the format does, or has other text between the fields",
                )?,
            };
            *place = Some(at..at + length);
            at += length + end.len();
        }
        Ok(())
    }
}

/// The name that a variable begins with, without its `$`, and the text after it.
pub(in crate::simulate) fn variable(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = match text.strip_prefix('{') {
        Some(text) => text.split_once('}')?,
        None => text.split_at(
            text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(text.len()),
        ),
    };
    (!name.is_empty()).then_some((name, rest))
}

/// Where `end` begins. A quote after a backslash is part of the value: Apache escapes quotes so.
fn find(text: &[u8], end: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let found = from + memchr::memchr(end[0], &text[from..])?;
        let backslashes = text[..found]
            .iter()
            .rev()
            .take_while(|byte| **byte == b'\\')
            .count();
        if text[found..].starts_with(end) && (end[0] != b'"' || backslashes % 2 == 0) {
            return Some(found);
        }
        from = found + 1;
    }
}
