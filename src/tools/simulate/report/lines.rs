//! Lines that fit a terminal: shortened names, wrapped sentences, tables. Widths are in columns of the terminal.

use std::fmt::Write as _;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use tollgate_core::visible::visible;

/// No line is wider.
pub(super) const WIDTH: usize = 80;
/// Room between two columns of a table.
const GAP: usize = 2;

/// The visible text, without its end if it is wider; a mark stands for what is cut off.
pub(super) fn beginning(text: &str, width_max: usize) -> String {
    let text = visible(text);
    if text.width() <= width_max {
        return text;
    }
    fitting(text.chars(), width_max).chain(['…']).collect()
}

/// The visible text, without its beginning if it is wider: of a path, the end tells most.
pub(super) fn end(text: &str, width_max: usize) -> String {
    let text = visible(text);
    if text.width() <= width_max {
        return text;
    }
    let letters: Vec<char> = fitting(text.chars().rev(), width_max).collect();
    std::iter::once('…')
        .chain(letters.into_iter().rev())
        .collect()
}

/// The first letters that leave room for a mark.
fn fitting(letters: impl Iterator<Item = char>, width_max: usize) -> impl Iterator<Item = char> {
    let mut room = width_max.saturating_sub(1);
    letters.map_while(move |letter| {
        room = room.checked_sub(letter.width().unwrap_or(1))?;
        Some(letter)
    })
}

/// Adds a sentence, wrapped between words where that can be, with each line indented.
pub(super) fn sentence(out: &mut String, indent: usize, text: &str) -> std::fmt::Result {
    let mut line = " ".repeat(indent);
    let mut used = indent;
    // No line begins with a percent sign.
    for word in text.replace(" %", "\u{a0}%").split(' ') {
        let begins = used == indent;
        if !begins && used + 1 + word.width() > WIDTH {
            next_line(out, &mut line, indent)?;
            used = indent;
        } else if !begins {
            line.push(' ');
            used += 1;
        }
        for letter in word.chars() {
            let width = letter.width().unwrap_or(1);
            if used + width > WIDTH {
                next_line(out, &mut line, indent)?;
                used = indent;
            }
            line.push(if letter == '\u{a0}' { ' ' } else { letter });
            used += width;
        }
    }
    writeln!(out, "{line}")
}

fn next_line(out: &mut String, line: &mut String, indent: usize) -> std::fmt::Result {
    writeln!(out, "{}", line.trim_end())?;
    *line = " ".repeat(indent);
    Ok(())
}

/// The columns that a table leaves free.
pub(super) fn room_beside(headings: &[String], rows: &[Vec<String>]) -> usize {
    let used: usize = widths(headings, rows).iter().map(|width| width + GAP).sum();
    (WIDTH + GAP).saturating_sub(used)
}

fn widths(headings: &[String], rows: &[Vec<String>]) -> Vec<usize> {
    let all = || std::iter::once(headings).chain(rows.iter().map(Vec::as_slice));
    let width = |column: usize| {
        all()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.width())
            .max()
            .unwrap_or(0)
    };
    (0..headings.len()).map(width).collect()
}

/// Adds a table. The first column is aligned to the left, and cut where the others leave too little room.
pub(super) fn table(
    out: &mut String,
    headings: &[String],
    rows: &[Vec<String>],
) -> std::fmt::Result {
    let mut widths = widths(headings, rows);
    let others: usize = widths.iter().skip(1).map(|width| GAP + width).sum();
    if let Some(first) = widths.first_mut() {
        *first = (*first).min(WIDTH.saturating_sub(others));
    }
    for row in std::iter::once(headings).chain(rows.iter().map(Vec::as_slice)) {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match column {
                0 => line.push_str(&padded(&beginning(cell, *width), *width)),
                _ => line.extend([
                    " ".repeat(GAP + width.saturating_sub(cell.width())),
                    cell.clone(),
                ]),
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// The text with spaces up to this width.
pub(super) fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_cut_where_they_tell_least() {
        assert_eq!(
            (beginning("abcdef", 6), beginning("abcdefg", 6)),
            ("abcdef".to_owned(), "abcde…".to_owned())
        );
        assert_eq!(
            (end("abcdef", 6), end("abcdefg", 6)),
            ("abcdef".to_owned(), "…cdefg".to_owned())
        );
        // Two columns for each letter.
        assert_eq!(
            (beginning("日本語", 5), end("日本語", 5)),
            ("日本…".to_owned(), "…本語".to_owned())
        );
    }

    #[test]
    fn a_number_and_its_percent_sign_stay_together() {
        let mut out = String::new();
        sentence(&mut out, 0, &format!("{} 0.1 % of all", "x".repeat(76))).unwrap();
        assert_eq!(out.lines().nth(1), Some("0.1 % of all"));
    }

    #[test]
    fn a_table_that_is_too_wide_loses_the_end_of_its_first_column() {
        let mut out = String::new();
        let row = |first: &str| vec![first.to_owned(), "1".to_owned(), "x".repeat(40)];
        table(
            &mut out,
            &row("key"),
            &[row("short"), row(&"日".repeat(40))],
        )
        .unwrap();
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines.iter().all(|line| line.width() == WIDTH), "{out}");
        assert!(
            lines[1].starts_with("short   ") && lines[2].contains("日…"),
            "{out}"
        );
    }

    proptest! {
        #[test]
        fn a_sentence_is_wrapped_and_loses_nothing(words in proptest::collection::vec("[a-z日]{1,120}", 1..20), indent in 0..4_usize) {
            let mut out = String::new();
            sentence(&mut out, indent, &words.join(" ")).unwrap();
            prop_assert!(out.lines().all(|line| line.width() <= WIDTH && line.starts_with(&" ".repeat(indent))), "{}", out);
            let letters = |text: &str| text.chars().filter(|letter| !letter.is_whitespace()).collect::<String>();
            prop_assert_eq!(letters(&out), letters(&words.concat()));
        }
    }
}
