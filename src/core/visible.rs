//! Texts that others chose, for people to read: on one line, and with nothing hidden in them.
//!
//! A key may hold characters that a terminal obeys, that turn the direction of writing, or that are not seen at all. So two keys could
//! look alike, or a line could say what it does not. Source: Unicode 16, `Default_Ignorable_Code_Point` and `Bidi_Control`.

/// The text with such characters as escapes, such as `\u{202e}`.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_hidden(letter) {
            shown.extend(letter.escape_unicode())
        } else {
            shown.push(letter)
        }
    }
    shown
}

/// The visible text, cut after `letters_max` letters with a mark.
pub fn shortened(text: &str, letters_max: usize) -> String {
    let mut shown = visible(text);
    if let Some((end, _)) = shown.char_indices().nth(letters_max) {
        shown.truncate(end);
        shown.push('…');
    }
    shown
}

fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_hidden_in_a_text_is_shown_as_an_escape() {
        for (text, shown) in [
            ("a\u{1b}[31m\r\n", "a\\u{1b}[31m\\u{d}\\u{a}"),
            ("\u{202e}ecila", "\\u{202e}ecila"),
            ("ali\u{200b}ce\u{2066}", "ali\\u{200b}ce\\u{2066}"),
            (
                "alice\u{fe0f}\u{e0041}\u{ad}\u{3164}",
                "alice\\u{fe0f}\\u{e0041}\\u{ad}\\u{3164}",
            ),
            ("é नमस्ते مرحبا 日本 \u{1f600}", "é नमस्ते مرحبا 日本 \u{1f600}"),
        ] {
            assert_eq!(visible(text), shown, "{text:?}");
        }
    }

    #[test]
    fn a_long_text_is_cut_after_its_letters() {
        assert_eq!(
            (shortened("abc", 3), shortened("abcd", 3)),
            ("abc".to_owned(), "abc…".to_owned())
        );
        assert_eq!(shortened("é\u{200b}b", 4), "é\\u{…");
    }
}
