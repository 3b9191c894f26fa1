//! The page of `tollgate top`: its words, how it is drawn, and its keys.

use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table};
use ratatui::{DefaultTerminal, Frame};

use crate::duration::Shown;
use crate::grpc::{TopQuestion, TopRow, TopTable};
use crate::visible::shortened;

/// Columns of the table.
pub(super) const COLUMNS: usize = 5;
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
pub(super) enum Key {
    Close,
    SwitchOrder,
}

/// The terminal, which is as before when this is dropped.
pub(super) struct Page(DefaultTerminal);

impl Page {
    /// Takes the whole terminal. Errors: a sentence.
    pub(super) fn open() -> Result<Self, String> {
        ratatui::try_init().map(Self).map_err(|error| format!("the terminal cannot show a page ({error}); use --once"))
    }

    pub(super) fn draw(&mut self, view: &View<'_>) -> Result<(), String> {
        self.0.draw(|frame| draw(frame, view)).map(drop).map_err(|error| format!("the terminal cannot be written to: {error}"))
    }

    /// Waits for a key that means something, for so long.
    pub(super) fn key_within(&mut self, time: Duration) -> Result<Option<Key>, String> {
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

impl Drop for Page {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn key_of(key: KeyEvent) -> Option<Key> {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Close),
        KeyCode::Char('q') | KeyCode::Esc => Some(Key::Close),
        KeyCode::Char('d') | KeyCode::Tab => Some(Key::SwitchOrder),
        _ => None,
    }
}

impl View<'_> {
    /// What is counted, in one line.
    pub(super) fn summary(&self) -> String {
        let TopTable { total, window, replicas, replicas_missing, this_replica_alone, unlisted_max, .. } = self.table;
        let what = if self.question.by_cost { "units" } else { "denials" };
        let plan = self.question.plan.as_ref().map_or("all plans".to_owned(), |plan| format!("plan {plan}"));
        let counted = match (this_replica_alone, replicas_missing) {
            (true, _) => "this replica alone: Redis did not give the others'".to_owned(),
            (false, 0) => format!("{replicas} replica{}", if *replicas == 1 { "" } else { "s" }),
            (false, missing) => format!("{replicas} replicas ({missing} more not counted)"),
        };
        let window = Shown(Duration::from_secs(window.as_secs()));
        format!("{total} {what} in {window}, {plan}, {counted}; a key that is not listed has {unlisted_max} at most")
    }

    /// The head of the table, and a row for each key.
    pub(super) fn rows(&self) -> Vec<[String; COLUMNS]> {
        let what = if self.question.by_cost { "UNITS" } else { "DENIALS" };
        let head = [what, "TOO HIGH BY", "SHARE", "PLAN", "KEY"].map(str::to_owned);
        let row = |row: &TopRow| {
            let share = row.count.saturating_mul(100).checked_div(self.table.total).unwrap_or(0).min(100);
            [row.count.to_string(), row.error.to_string(), format!("{share}%"), row.plan.clone(), key(row)]
        };
        std::iter::once(head).chain(self.table.rows.iter().map(row)).collect()
    }
}

/// The key on one line, or its hash. A key is chosen by callers, so nothing in it may reach the terminal as a command.
fn key(row: &TopRow) -> String {
    let Some(key) = &row.key else { return format!("#{}", row.key_hash) };
    shortened(key, KEY_LETTERS_MAX)
}

fn draw(frame: &mut Frame<'_>, view: &View<'_>) {
    let [title, summary, table, help] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Line::from("tollgate top").bold(), title);
    frame.render_widget(Paragraph::new(view.summary()).wrap(ratatui::widgets::Wrap { trim: true }), summary);
    let mut rows = view.rows().into_iter().map(Row::new);
    let head = rows.next().unwrap_or_default().bold();
    let widths =
        [Constraint::Length(12), Constraint::Length(11), Constraint::Length(5), Constraint::Length(20), Constraint::Fill(1)];
    frame.render_widget(Table::new(rows, widths).header(head).column_spacing(2), table);
    frame.render_widget(Line::from(HELP).dim(), help);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::cli::top::tests::table;

    fn drawn(width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let question = TopQuestion { plan: None, by_cost: false, limit: 9 };
        terminal.draw(|frame| draw(frame, &View { question: &question, table: &table() })).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_page_shows_keys_on_any_terminal() {
        let page = drawn(100, 20);
        for words in ["tollgate top", "120 denials in 55s", "alice", "#00112233445566aa", "q quit"] {
            assert!(page.contains(words), "{words}: {page}");
        }
        assert!(drawn(40, 8).contains("90"));
        drawn(1, 1);
    }

    #[test]
    fn keys_of_the_keyboard_switch_and_close() {
        let pressed = |code, modifiers| key_of(KeyEvent::new(code, modifiers));
        assert_eq!(pressed(KeyCode::Char('q'), KeyModifiers::NONE), Some(Key::Close));
        assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Key::Close));
        assert_eq!(pressed(KeyCode::Char('d'), KeyModifiers::NONE), Some(Key::SwitchOrder));
        assert_eq!(pressed(KeyCode::Char('c'), KeyModifiers::NONE), None);
    }

    #[test]
    fn a_key_reaches_the_terminal_as_text_on_one_line() {
        let row = |key: &str| TopRow { key: Some(key.to_owned()), ..table().rows[0].clone() };
        assert_eq!(key(&row("a\u{1b}[2Jb\n\u{202e}c")), "a\\u{1b}[2Jb\\u{a}\\u{202e}c");
        assert_eq!(key(&row(&"x".repeat(500))).chars().count(), KEY_LETTERS_MAX + 1);
    }
}
