//! The page of `tollgate top`: its words, how it is drawn, and its keys.

use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, Wrap};
use ratatui::{DefaultTerminal, Frame};

use tollgate_core::duration::Shown;
use tollgate_core::visible::shortened;
use tollgate_server::grpc::{TopQuestion, TopRow, TopTable};

/// Columns of the table.
pub(super) const COLUMNS: usize = 5;
/// Widths of the columns before the key, which has the rest.
const WIDTHS: [u16; COLUMNS - 1] = [12, 11, 5, 20];
/// Between two columns.
const SPACING: u16 = 2;
/// Columns that are left out where the key would have less than [`KEY_WIDTH_MIN`], in this order.
const LEFT_OUT: [usize; 3] = [1, 2, 3];
/// A hash and its mark.
const KEY_WIDTH_MIN: u16 = 17;
/// Maximum number of lines of a text above the table.
const LINES_MAX: u16 = 6;
/// Letters of a key that are shown; a key has 512 bytes at most.
const KEY_LETTERS_MAX: usize = 120;
const HELP: &str = "d denials/cost   q quit";

/// What was asked and answered.
pub(super) struct View<'a> {
    pub(super) question: &'a TopQuestion,
    pub(super) table: &'a TopTable,
}

/// What a person pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PressedKey {
    Close,
    SwitchOrder,
}

/// The terminal, which is as before when this is dropped.
pub(super) struct TopPage(DefaultTerminal);

impl TopPage {
    /// Takes the whole terminal. Errors: a sentence.
    pub(super) fn open() -> Result<Self, String> {
        ratatui::try_init()
            .map(Self)
            .map_err(|error| format!("the terminal cannot show a page ({error}); use --once"))
    }

    pub(super) fn draw(&mut self, view: &View<'_>) -> Result<(), String> {
        self.0
            .draw(|frame| draw(frame, view))
            .map(drop)
            .map_err(|error| format!("the terminal cannot be written to: {error}"))
    }

    /// Waits for a key that means something, for so long.
    pub(super) fn key_within(&mut self, time: Duration) -> Result<Option<PressedKey>, String> {
        let unreadable = |error| format!("the terminal cannot be read: {error}");
        if !event::poll(time).map_err(unreadable)? {
            return Ok(None);
        }
        Ok(match event::read().map_err(unreadable)? {
            Event::Key(key) if key.kind != KeyEventKind::Release => key_of(key),
            // Of another size, it is drawn anew at once.
            _ => None,
        })
    }
}

impl Drop for TopPage {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn key_of(key: KeyEvent) -> Option<PressedKey> {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            Some(PressedKey::Close)
        }
        KeyCode::Char('q') | KeyCode::Esc => Some(PressedKey::Close),
        KeyCode::Char('d') | KeyCode::Tab => Some(PressedKey::SwitchOrder),
        _ => None,
    }
}

impl View<'_> {
    /// Whether the store decides.
    fn store(&self) -> String {
        match self.table.store_state.as_str() {
            "" => "tollgate top".to_owned(),
            state => format!("tollgate top: {state}"),
        }
    }

    /// What is counted, in one line.
    pub(super) fn summary(&self) -> String {
        let TopTable {
            total,
            window,
            unlisted_max,
            ..
        } = self.table;
        let what = if self.question.by_cost {
            "units"
        } else {
            "denials"
        };
        let plan = self
            .question
            .plan
            .as_ref()
            .map_or("all plans".to_owned(), |plan| format!("plan {plan}"));
        let counted = self.replicas();
        let window = Shown(Duration::from_secs(window.as_secs()));
        format!(
            "{total} {what} in {window}, {plan}, {counted}; a key that is not listed has {unlisted_max} at most"
        )
    }

    /// The replicas that are counted.
    fn replicas(&self) -> String {
        let TopTable {
            replicas,
            replicas_missing,
            this_replica_alone,
            ..
        } = self.table;
        match (this_replica_alone, replicas_missing) {
            (true, _) => "this replica alone: Redis did not give the others'".to_owned(),
            (false, 0) => format!(
                "{replicas} replica{}",
                if *replicas == 1 { "" } else { "s" }
            ),
            (false, missing) => format!("{replicas} replicas ({missing} more not counted)"),
        }
    }

    /// The head of the table, and a row for each key.
    pub(super) fn rows(&self) -> Vec<[String; COLUMNS]> {
        let what = if self.question.by_cost {
            "UNITS"
        } else {
            "DENIALS"
        };
        let head = [what, "TOO HIGH BY", "SHARE", "PLAN", "KEY"].map(str::to_owned);
        let row = |row: &TopRow| {
            let share = row
                .count
                .saturating_mul(100)
                .checked_div(self.table.total)
                .unwrap_or(0)
                .min(100);
            [
                row.count.to_string(),
                row.error.to_string(),
                format!("{share}%"),
                row.plan.clone(),
                key(row),
            ]
        };
        std::iter::once(head)
            .chain(self.table.rows.iter().map(row))
            .collect()
    }
}

/// The key on one line, or its hash. A key is chosen by callers, so nothing in it may reach the terminal as a command.
fn key(row: &TopRow) -> String {
    let Some(key) = &row.key else {
        return format!("#{}", row.key_hash);
    };
    shortened(key, KEY_LETTERS_MAX)
}

fn draw(frame: &mut Frame<'_>, view: &View<'_>) {
    let width = frame.area().width;
    let store = view.store();
    let summary = view.summary();
    let heights = [lines(&store, width), lines(&summary, width)].map(Constraint::Length);
    let [store_area, summary_area, table, help] = Layout::vertical([
        heights[0],
        heights[1],
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let store = Paragraph::new(store).wrap(Wrap { trim: true }).bold();
    let store = if view.table.store_decides {
        store
    } else {
        store.red()
    };
    frame.render_widget(store, store_area);
    let summary = Paragraph::new(summary).wrap(Wrap { trim: true });
    frame.render_widget(summary, summary_area);
    frame.render_widget(table_widget(view, width), table);
    frame.render_widget(Line::from(HELP).dim(), help);
}

/// The table, with the columns that a terminal of this width shows.
fn table_widget(view: &View<'_>, width: u16) -> Table<'static> {
    let columns = columns(width);
    let cells = |row: [String; COLUMNS]| {
        Row::new(
            columns
                .iter()
                .map(|column| row[*column].clone())
                .collect::<Vec<_>>(),
        )
    };
    let mut rows = view.rows().into_iter().map(cells);
    let head = rows.next().unwrap_or_default().bold();
    let widths = columns.iter().map(|column| {
        WIDTHS
            .get(*column)
            .map_or(Constraint::Fill(1), |width| Constraint::Length(*width))
    });
    Table::new(rows, widths)
        .header(head)
        .column_spacing(SPACING)
}

/// Lines that a text takes at most: words that do not fit waste a part of each line.
fn lines(text: &str, width: u16) -> u16 {
    let letters = u16::try_from(text.chars().count()).unwrap_or(u16::MAX);
    letters
        .div_ceil(width.saturating_sub(width / 8).max(1))
        .clamp(1, LINES_MAX)
}

/// The columns that a terminal of this width shows. The count and the key always are.
fn columns(width: u16) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..COLUMNS).collect();
    for gone in LEFT_OUT {
        let taken: u16 = columns
            .iter()
            .filter_map(|column| WIDTHS.get(*column))
            .map(|width| width + SPACING)
            .sum();
        if taken + KEY_WIDTH_MIN <= width {
            break;
        }
        columns.retain(|column| *column != gone);
    }
    columns
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::cli::top::tests::table;

    fn drawn_of(table: &TopTable, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let question = TopQuestion {
            plan: None,
            by_cost: false,
            limit: 9,
        };
        terminal
            .draw(|frame| {
                draw(
                    frame,
                    &View {
                        question: &question,
                        table,
                    },
                )
            })
            .unwrap();
        terminal.backend().to_string()
    }

    fn drawn(width: u16, height: u16) -> String {
        drawn_of(&table(), width, height)
    }

    #[test]
    fn the_page_shows_keys_on_any_terminal() {
        let page = drawn(100, 20);
        for words in [
            "tollgate top",
            "120 denials in 55s",
            "alice",
            "#00112233445566aa",
            "q quit",
        ] {
            assert!(page.contains(words), "{words}: {page}");
        }
        drawn(1, 1);
    }

    #[test]
    fn the_key_stays_on_a_narrow_terminal_and_other_columns_go() {
        for (width, heads) in [
            (80, &["DENIALS", "TOO HIGH BY", "SHARE", "PLAN", "KEY"][..]),
            (60, &["DENIALS", "SHARE", "PLAN", "KEY"]),
            (59, &["DENIALS", "PLAN", "KEY"]),
            (40, &["DENIALS", "KEY"]),
            (31, &["DENIALS", "KEY"]),
        ] {
            let page = drawn(width, 16);
            let head = page
                .lines()
                .find(|line| line.contains("DENIALS"))
                .unwrap_or_else(|| panic!("{page}"));
            let shown: Vec<&str> = ["DENIALS", "TOO HIGH BY", "SHARE", "PLAN", "KEY"]
                .into_iter()
                .filter(|it| head.contains(it))
                .collect();
            assert_eq!(shown, heads, "{page}");
            assert!(
                page.contains("90 ")
                    && page.contains("alice")
                    && page.contains("#00112233445566aa"),
                "{page}"
            );
        }
    }

    #[test]
    fn the_first_line_says_whether_the_store_decides() {
        assert!(
            drawn(80, 16)
                .lines()
                .next()
                .unwrap()
                .contains("tollgate top: Redis decides.")
        );
        let state = "Redis has not decided since 2000-10-10T20:55:30Z: Connection refused. Each plan's on_store_failure answers meanwhile.";
        let table = TopTable {
            store_state: state.to_owned(),
            store_decides: false,
            ..table()
        };
        for width in [40, 80, 160] {
            let page = drawn_of(&table, width, 20);
            let words: Vec<&str> = page
                .split(|letter: char| letter.is_whitespace() || letter == '"')
                .filter(|it| !it.is_empty())
                .collect();
            assert!(
                words
                    .join(" ")
                    .starts_with(&format!("tollgate top: {state} 120 denials")),
                "{page}"
            );
        }
    }

    #[test]
    fn keys_of_the_keyboard_switch_and_close() {
        let pressed = |code, modifiers| key_of(KeyEvent::new(code, modifiers));
        assert_eq!(
            pressed(KeyCode::Char('q'), KeyModifiers::NONE),
            Some(PressedKey::Close)
        );
        assert_eq!(
            pressed(KeyCode::Char('c'), KeyModifiers::CONTROL),
            Some(PressedKey::Close)
        );
        assert_eq!(
            pressed(KeyCode::Char('d'), KeyModifiers::NONE),
            Some(PressedKey::SwitchOrder)
        );
        assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::NONE), None);
    }

    #[test]
    fn a_key_reaches_the_terminal_as_text_on_one_line() {
        let row = |key: &str| TopRow {
            key: Some(key.to_owned()),
            ..table().rows[0].clone()
        };
        assert_eq!(
            key(&row("a\u{1b}[2Jb\n\u{202e}c")),
            "a\\u{1b}[2Jb\\u{a}\\u{202e}c"
        );
        assert_eq!(
            key(&row(&"x".repeat(500))).chars().count(),
            KEY_LETTERS_MAX + 1
        );
    }
}
