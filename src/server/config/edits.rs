//! Edits of a text, which fuzz targets make up.

/// One edit: where it begins, which word it puts there, and how many bytes it replaces, each modulo what there is.
pub(in crate::config) type Edit = (u16, u8, u8);

/// The text with parts replaced by words. An edit within a character of several bytes is left out.
pub(in crate::config) fn edited(text: &str, edits: &[Edit], words: &[&str]) -> String {
    let mut text = text.to_owned();
    for (start, word, cut) in edits {
        let start = usize::from(*start) % (text.len() + 1);
        let end = (start + usize::from(*cut % 16)).min(text.len());
        if text.is_char_boundary(start) && text.is_char_boundary(end) {
            text.replace_range(start..end, words[usize::from(*word) % words.len()]);
        }
    }
    text
}
