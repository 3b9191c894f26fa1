//! What a message shows of a name or a value: quoted, cut, and nothing of what may be a secret.

use std::fmt;

use config::ValueKind;

use super::NUMBER_DIGITS_MAX;

/// Maximum number of letters of a name or value that a message repeats.
const SHOWN_LETTERS_MAX: usize = 64;

/// A user's name as part of a path: on one line and not too long.
pub(in crate::config) fn shown_key(name: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
    if !name.is_empty() && name.len() <= SHOWN_LETTERS_MAX && name.chars().all(plain) {
        return name.to_owned();
    }
    Quoted(name).to_string()
}

/// Shows a text in quotes, escaped, and cut if it is long.
pub(in crate::config) struct Quoted<'a>(pub(in crate::config) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A URL with a user may hold a password, wherever it was put by mistake.
        if let Some((scheme, rest)) = self.0.split_once("://")
            && rest.contains('@')
        {
            let end = scheme
                .char_indices()
                .nth(SHOWN_LETTERS_MAX)
                .map_or(scheme.len(), |(end, _)| end);
            return write!(out, "{:?}", format!("{}://…", &scheme[..end]));
        }
        match self.0.char_indices().nth(SHOWN_LETTERS_MAX) {
            Some((end, _)) => write!(out, "{:?}…", &self.0[..end]),
            None => write!(out, "{:?}", self.0),
        }
    }
}

/// Whether the value at this path may be a secret, even by mistake. Messages do not repeat it then.
pub(in crate::config) fn is_secret(path: &str) -> bool {
    let mut parts = path.split(['.', '[']);
    match parts.next() {
        Some("store") => true,
        Some("plans") => false,
        first => first.into_iter().chain(parts).any(|part| {
            ["tls", "token", "password"]
                .iter()
                .any(|word| part.contains(word))
        }),
    }
}

/// A value for a message.
pub(super) fn shown_value(value: &ValueKind) -> String {
    match value {
        ValueKind::Nil => "nothing".to_owned(),
        ValueKind::Table(_) => "a table".to_owned(),
        ValueKind::Array(_) => "a list".to_owned(),
        ValueKind::String(text) if is_number_like(text) => text.clone(),
        ValueKind::String(text) => Quoted(text).to_string(),
        other => other.to_string(),
    }
}

/// Whether a message shows the value without quotes. The reader gives every value as a text, also a number written without
/// quotes.
fn is_number_like(text: &str) -> bool {
    let letters =
        |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'_' | b'e' | b'E');
    text.len() <= NUMBER_DIGITS_MAX
        && text.bytes().all(letters)
        && text.bytes().any(|byte| byte.is_ascii_digit())
}
