//! What is refused before the parser reads a text: characters that end it early, and what would take all memory or time.

use super::{DEPTH_MAX, error_at};
use crate::config::ConfigError;

/// Maximum number of tokens of a text; see [`count_tokens`]. The parser keeps all tokens of a `{…}` until it is complete, about
/// 100 bytes each. The largest valid config, written that way with everything quoted, has 3.7 million.
const TOKENS_MAX: usize = 4_000_000;
/// Maximum number of brackets that the parser allows to be open. At each token it checks every open bracket.
const BRACKETS_MAX: usize = 255;
/// Maximum number of checks of open brackets: as if [`DEPTH_MAX`] were open all the time. The largest valid config needs a sixth.
const BRACKET_CHECKS_MAX: usize = TOKENS_MAX * DEPTH_MAX;

/// Refuses characters that the parser takes for the end of the text, then texts with too many tokens.
pub(super) fn check_text(text: &str) -> Result<(), ConfigError> {
    let forbidden = |letter: char| {
        letter.is_control() && !matches!(letter, '\t' | '\n' | '\r') || letter == '\u{feff}'
    };
    if let Some((before, _)) = text.split_once(forbidden) {
        let letter = text[before.len()..].chars().next().map_or(0, u32::from);
        let line = 1 + before.bytes().filter(|byte| *byte == b'\n').count();
        return Err(error_at(
            Some(line),
            &format!(
                "has the control character U+{letter:04X}; a config has none but tabs and line ends"
            ),
        ));
    }
    check_tokens(text)
}

/// Refuses texts whose tokens would take all memory, or whose open brackets would take all time.
fn check_tokens(text: &str) -> Result<(), ConfigError> {
    let (tokens, bracket_checks) = count_tokens(text);
    if tokens > TOKENS_MAX {
        return Err(error_at(
            None,
            &format!("has more than {TOKENS_MAX} names, values, brackets, commas and colons"),
        ));
    }
    if bracket_checks > BRACKET_CHECKS_MAX {
        return Err(error_at(
            None,
            &format!(
                "has more than {DEPTH_MAX} brackets open for most of its length; a config nests less deep"
            ),
        ));
    }
    Ok(())
}

/// An upper bound on the tokens that the parser makes, and the sum over all tokens of the brackets open before each.
///
/// Only bytes are counted, so quotes and comments count too: the result may be too high, never too low.
fn count_tokens(text: &str) -> (usize, usize) {
    let mut tokens = 0_usize;
    let mut bracket_checks = 0_usize;
    let mut open = 0_usize;
    let mut quotes = 0_usize;
    // Whether an unquoted value has begun since the last special character; its letters are one token.
    let mut in_value = false;
    for byte in text.bytes() {
        let made = match byte {
            b'[' | b']' | b'{' | b'}' | b',' | b'?' | b'*' | b'&' | b'!' | b'#' => 1,
            // The name before it and the value after it are one token each. In a list, so are both ends of the table.
            b':' => 4,
            b'"' | b'\'' => {
                quotes += 1;
                // Both quotes together are one token; the text between them is none.
                in_value &= quotes % 2 == 1;
                quotes % 2
            }
            b' ' | b'\t' | b'\n' | b'\r' => continue,
            _ => {
                in_value = true;
                continue;
            }
        };
        open = brackets_after(byte, open);
        let made = made + usize::from(in_value);
        in_value = false;
        tokens += made;
        bracket_checks = bracket_checks.saturating_add(made.saturating_mul(open));
    }
    (tokens, bracket_checks)
}

/// The number of brackets that are open after this byte, where `open` were open before it.
fn brackets_after(byte: u8, open: usize) -> usize {
    match byte {
        b'[' | b'{' => BRACKETS_MAX.min(open + 1),
        b']' | b'}' => open.saturating_sub(1),
        _ => open,
    }
}
