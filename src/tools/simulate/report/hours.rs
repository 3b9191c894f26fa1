//! The table by hour or day, as text. [`grouped`] finds the rows, for every form of the report.

use std::fmt::Write as _;

use super::lines::{padded, room_beside, sentence, table};
use super::{Report, count, percent};
use crate::simulate::replay::{HOUR_US, Hour};
use tollgate_core::utc::Utc;

/// Maximum number of rows by hour; with more, days are printed.
const ROWS_MAX: usize = 72;
/// Widths of a bar. Where less room is left, there are no percentages; where more is left, it stays empty.
const BAR_WIDTH_MIN: usize = 8;
const BAR_WIDTH_MAX: usize = 40;
/// What a bar is made of: told apart without colours.
const DENIED: char = '█';
const PASSED: char = '░';

/// A row for each hour or day. Its bar is as long as its requests are many, and dark as far as they were denied.
pub(super) fn hour_table(report: &Report, out: &mut String) -> std::fmt::Result {
    let hours = HourTable::new(report);
    let headings = hours.headings();
    let room = |with_share: bool| {
        room_beside(&headings, &hours.rows(with_share, 0)) / hours.columns.len().max(1)
    };
    let with_share = room(true) >= BAR_WIDTH_MIN;
    let bar_width = room(with_share).min(BAR_WIDTH_MAX);
    writeln!(out)?;
    sentence(
        out,
        0,
        &format!(
            "by {} (UTC): {DENIED} denied, {PASSED} passed; the longest bar is {} requests",
            hours.step_name(),
            count(hours.most)
        ),
    )?;
    table(out, &headings, &hours.rows(with_share, bar_width))
}

/// The hours or days of a report, and what their rows show.
struct HourTable {
    hours: Vec<Hour>,
    step_us: u64,
    /// Requests of the longest bar.
    most: u64,
    /// Variants with their headings.
    columns: Vec<(usize, String)>,
}

impl HourTable {
    fn new(report: &Report) -> Self {
        let (hours, step_us) = grouped(&report.hours, report.hour_us, ROWS_MAX);
        Self {
            most: hours.iter().map(|hour| hour.requests).max().unwrap_or(0),
            hours,
            step_us,
            columns: report.columns(),
        }
    }

    fn step_name(&self) -> &'static str {
        if self.step_us == HOUR_US {
            "hour"
        } else {
            "day"
        }
    }

    fn headings(&self) -> Vec<String> {
        let bars = self
            .columns
            .iter()
            .flat_map(|(_, column)| [column.clone(), String::new()]);
        [self.step_name(), "requests"]
            .map(str::to_owned)
            .into_iter()
            .chain(bars)
            .collect()
    }

    fn rows(&self, with_share: bool, bar_width: usize) -> Vec<Vec<String>> {
        let row = |hour: &Hour| {
            let first = [label(hour.start_us, self.step_us), count(hour.requests)];
            let denied = |(variant, _): &(usize, String)| {
                let denied = hour.denied[*variant];
                [
                    denied_text(hour, denied, with_share),
                    padded(&bar(hour.requests, denied, self.most, bar_width), bar_width),
                ]
            };
            let denied = self.columns.iter().flat_map(denied);
            first.into_iter().chain(denied).collect()
        };
        self.hours.iter().map(row).collect()
    }
}

/// A number of denials, with its share of the requests if there is room for it.
fn denied_text(hour: &Hour, denied: u64, with_share: bool) -> String {
    if with_share {
        format!(
            "{} ({:.1} %)",
            count(denied),
            percent(denied, hour.requests)
        )
    } else {
        count(denied)
    }
}

/// So many of `width` columns as the requests are of the most; the denied ones first. What is not 0 has a column at least.
fn bar(requests: u64, denied: u64, most: u64, width: usize) -> String {
    let columns = |number: u64| {
        let rounded = (u128::from(number) * width as u128 * 2 + u128::from(most))
            / (u128::from(most) * 2).max(1);
        usize::try_from(rounded)
            .unwrap_or(width)
            .max(usize::from(number > 0))
            .min(width)
    };
    let all = columns(requests);
    let dark = columns(denied);
    std::iter::repeat_n(DENIED, dark)
        .chain(std::iter::repeat_n(PASSED, all - dark.min(all)))
        .collect()
}

/// `2000-10-10 13:00`, or the day alone.
pub(super) fn label(start_us: u64, step_us: u64) -> String {
    let text = Utc(start_us).to_string();
    let length = if step_us == HOUR_US { 16 } else { 10 };
    text.get(..length).unwrap_or_default().replace('T', " ")
}

/// The rows, added up to days when they span more than `rows_max` hours. A row for each step that had no request stands between,
/// unless these are too many: one line may have a wrong year.
pub(super) fn grouped(hours: &[Hour], step_us: u64, rows_max: usize) -> (Vec<Hour>, u64) {
    let day_us = 24 * HOUR_US;
    if step_us == day_us || steps(hours, step_us) <= rows_max {
        return (without_gaps(hours, step_us, rows_max), step_us);
    }
    let mut days: Vec<Hour> = Vec::new();
    for hour in hours {
        let start_us = hour.start_us - hour.start_us % day_us;
        match days.last_mut() {
            Some(day) if day.start_us == start_us => day.add(hour),
            _ => days.push(Hour {
                start_us,
                ..hour.clone()
            }),
        }
    }
    (without_gaps(&days, day_us, rows_max), day_us)
}

fn without_gaps(rows: &[Hour], step_us: u64, rows_max: usize) -> Vec<Hour> {
    let (Some(first), steps) = (rows.first(), steps(rows, step_us)) else {
        return Vec::new();
    };
    if steps > rows_max {
        return rows.to_vec();
    }
    let mut rows_left = rows.iter().peekable();
    let at = |start_us: u64| {
        let row = rows_left.next_if(|row| row.start_us == start_us).cloned();
        row.unwrap_or_else(|| Hour {
            start_us,
            requests: 0,
            denied: vec![0; first.denied.len()],
        })
    };
    (first.start_us..)
        .step_by(usize::try_from(step_us).unwrap_or(usize::MAX))
        .take(steps)
        .map(at)
        .collect()
}

/// How many rows there are without gaps.
fn steps(rows: &[Hour], step_us: u64) -> usize {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return 0;
    };
    usize::try_from((last.start_us - first.start_us) / step_us + 1).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_hours_are_printed_as_days() {
        let hour = |index: u64| Hour {
            start_us: index * HOUR_US,
            requests: 1,
            denied: vec![index % 2],
        };
        let hours: Vec<Hour> = (0..73).map(hour).collect();
        assert_eq!(grouped(&hours[..72], HOUR_US, 72).0.len(), 72);
        let (days, step_us) = grouped(&hours, HOUR_US, 72);
        assert_eq!(
            (days.len(), days[0].requests, days[0].denied[0], step_us),
            (4, 24, 12, 24 * HOUR_US)
        );
        assert_eq!(
            (label(0, HOUR_US), label(0, step_us)),
            ("1970-01-01 00:00".to_owned(), "1970-01-01".to_owned())
        );
    }

    #[test]
    fn hours_without_a_request_have_a_row_unless_they_are_too_many() {
        let hour = |index: u64| Hour {
            start_us: index * HOUR_US,
            requests: 1,
            denied: vec![1],
        };
        let (rows, _) = grouped(&[hour(2), hour(5)], HOUR_US, 4);
        assert_eq!(
            rows.iter()
                .map(|row| (row.start_us / HOUR_US, row.requests))
                .collect::<Vec<_>>(),
            [(2, 1), (3, 0), (4, 0), (5, 1)]
        );
        let (rows, step_us) = grouped(&[hour(2), hour(24 * 9)], HOUR_US, 4);
        assert_eq!((rows.len(), step_us), (2, 24 * HOUR_US));
    }

    #[test]
    fn a_bar_has_its_share_of_the_longest_and_shows_the_least_denial() {
        for (requests, denied, shown) in [
            (0, 0, ""),
            (1_000, 0, "░░░░░░░░"),
            (1_000, 1_000, "████████"),
            (1_000, 1, "█░░░░░░░"),
            (1, 1, "█"),
            (500, 250, "██░░"),
        ] {
            assert_eq!(
                bar(requests, denied, 1_000, 8),
                shown,
                "{requests} {denied}"
            );
        }
        assert_eq!(
            (bar(0, 0, 0, 8), bar(u64::MAX, u64::MAX, u64::MAX, 8)),
            (String::new(), "████████".to_owned())
        );
    }
}
