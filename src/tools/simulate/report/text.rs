//! The report as plain text, for a terminal of 80 columns, with or without colours.

use std::fmt::Write as _;
use std::ops::Range;

use super::limits::LimitRows;
use super::lines::{WIDTH, beginning, end, padded, room_beside, sentence, table};
use super::{LimitReport, Report, WorstKey, count, limits, percent, spacing_name};
use crate::simulate::order::{HELD_BYTES_MAX, HELD_MAX, ORDER_SECONDS};
use crate::simulate::replay::{HOUR_US, Hour};
use tollgate_core::utc::Utc;
use tollgate_core::visible::visible;

/// Keys that are printed; JSON and HTML have more.
const WORST_PRINTED: usize = 10;
/// Widest text of a plan that stands before a key.
const PLAN_WIDTH_MAX: usize = 20;
/// Maximum number of rows by hour; with more, days are printed.
const ROWS_MAX: usize = 72;
/// Widths of a bar. Where less room is left, there are no percentages; where more is left, it stays empty.
const BAR_WIDTH_MIN: usize = 8;
const BAR_WIDTH_MAX: usize = 40;
/// What a bar is made of: told apart without colours.
const DENIED: char = '█';
const PASSED: char = '░';

/// The report as text. Keys and reasons come from the log: control characters in them are shown and not sent to the terminal.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = log(report, &mut out).and_then(|()| {
        totals(report, &mut out)?;
        all_limits(report, &mut out)?;
        worst(report, &mut out)?;
        hours(report, &mut out)
    });
    out.truncate(out.trim_end().len());
    out
}

fn log(report: &Report, out: &mut String) -> std::fmt::Result {
    let log = &report.log;
    let counts = format!(
        ": {} lines, {} replayed",
        count(log.lines),
        count(report.requests)
    );
    writeln!(
        out,
        "{}{counts}",
        end(&log.name, WIDTH.saturating_sub(counts.len()))
    )?;
    if let Some((first, last)) = log.times_us {
        writeln!(out, "from {} to {}", Utc(first), Utc(last))?;
    }
    for remark in remarks(report) {
        sentence(
            out,
            if remark.starts_with("line ") { 2 } else { 0 },
            &remark,
        )?;
    }
    if report.is_in_whole_seconds() {
        sentence(out, 0, WHOLE_SECONDS)?;
    }
    Ok(())
}

pub(super) const WHOLE_SECONDS: &str = "Times are whole seconds. Each second is replayed twice: all at its start (in bursts), and spread over it (evenly).";

/// What was left out or changed, and the first lines that could not be read.
pub fn remarks(report: &Report) -> Vec<String> {
    let log = &report.log;
    let plan = beginning(log.first_without_plan.as_deref().unwrap_or_default(), 40);
    let all = [
        (
            log.without_key,
            "lines have an empty key and are left out".to_owned(),
        ),
        (
            log.without_cost,
            "lines have a cost of 0 and are left out".to_owned(),
        ),
        (
            log.without_plan,
            format!(
                "lines name a plan that is not in the config and are left out; the first is \"{plan}\""
            ),
        ),
        (
            log.late,
            format!(
                "lines come more than {ORDER_SECONDS} s, {} lines or {} MiB of keys late; they count at the time reached by then",
                count(HELD_MAX as u64),
                HELD_BYTES_MAX >> 20
            ),
        ),
        (
            report.beyond,
            format!(
                "requests are left out: they have keys beyond the first {}; see --keys-max",
                count(log.keys_max as u64)
            ),
        ),
        (
            log.unreadable,
            "lines could not be read and are left out; the first:".to_owned(),
        ),
    ];
    let counted = all
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{} {what}", count(number)));
    let unreadable = log
        .first_unreadable
        .iter()
        .map(|(line, reason)| format!("line {line}: {}", visible(reason)));
    counted
        .chain(unreadable)
        .chain(overridden(report))
        .collect()
}

/// How many requests overrides decided, for each config.
fn overridden(report: &Report) -> Vec<String> {
    let ranges = report.ranges_by_config();
    let of_config = |variants: &Range<usize>| {
        let number = report.overridden[variants.start];
        let config = match ranges.len() {
            1 => String::new(),
            _ => format!(" of {}", visible(&report.variants[variants.start].config)),
        };
        (number > 0).then(|| {
            format!(
                "{} requests are decided by overrides{config}; no quota is suggested by their keys",
                count(number)
            )
        })
    };
    ranges.iter().filter_map(of_config).collect()
}

fn totals(report: &Report, out: &mut String) -> std::fmt::Result {
    let share = |part: u64, whole: u64| format!("{:.3} %", percent(part, whole));
    let row = |variant: usize| {
        let denied = report.denied[variant];
        let keys = report.keys_denied[variant];
        vec![
            report.heading(variant),
            count(denied),
            share(denied, report.requests),
            count(keys),
            share(keys, report.keys),
        ]
    };
    let out_of = ["out of", &count(report.requests), "", &count(report.keys)]
        .map(str::to_owned)
        .to_vec();
    let rows: Vec<Vec<String>> = (0..report.variants.len())
        .map(row)
        .chain([out_of])
        .collect();
    writeln!(out)?;
    table(
        out,
        &["", "denied", "share", "keys with denials", "share"].map(str::to_owned),
        &rows,
    )
}

/// A block for each limit: its numbers in the config, what it denied, and which quota would be enough.
fn all_limits(report: &Report, out: &mut String) -> std::fmt::Result {
    let has_several = report.ranges_by_config().len() > 1;
    for rows in limits::rows(report) {
        let config = if has_several {
            format!("{}: ", end(rows.config, WIDTH / 2))
        } else {
            String::new()
        };
        writeln!(out)?;
        sentence(
            out,
            0,
            &format!("{config}plan {}, {}", rows.plan.name, rows.described()),
        )?;
        if let Some(verdict) = rows.verdict() {
            limit_table(report, &rows, out)?;
            sentence(out, 2, &verdict)?;
        }
    }
    Ok(())
}

/// What a limit denied, and which quota would be enough, at each spacing of time.
fn limit_table(report: &Report, rows: &LimitRows<'_>, out: &mut String) -> std::fmt::Result {
    let spacings = rows
        .variants
        .iter()
        .filter_map(|(variant, _)| spacing_name(report.variants[*variant].spacing));
    let headings: Vec<String> = std::iter::once("")
        .chain(spacings)
        .map(str::to_owned)
        .collect();
    let cells = |name: &str, cell: &dyn Fn(&LimitReport) -> String| {
        std::iter::once(name.to_owned())
            .chain(rows.variants.iter().map(|(_, limit)| cell(limit)))
            .collect::<Vec<_>>()
    };
    let cells = [
        cells("  requests that it denied", &|limit| count(limit.denied)),
        cells(
            "  quota that 99.9 % of the keys need",
            &limits::smallest_quota_cell,
        ),
    ];
    match headings.len() {
        1 => table(out, &cells[0], &cells[1..]),
        _ => table(out, &headings, &cells),
    }
}

fn worst(report: &Report, out: &mut String) -> std::fmt::Result {
    if report.worst.is_empty() {
        return Ok(());
    }
    let columns = report.columns();
    let rows = report.worst.iter().take(WORST_PRINTED);
    let rows: Vec<Vec<String>> = rows
        .map(|worst| worst_cells(report, worst, &columns))
        .collect();
    let denied = columns
        .iter()
        .map(|(_, column)| format!("denied {column}").trim_end().to_owned());
    let headings: Vec<String> = ["worst keys", "requests"]
        .map(str::to_owned)
        .into_iter()
        .chain(denied)
        .collect();
    writeln!(out)?;
    if report.variants.len() > columns.len() {
        sentence(out, 0, "Below, denials are those in bursts.")?;
    }
    table(out, &headings, &rows)
}

/// A key, after its plan if there are several, with its requests and denials.
fn worst_cells(report: &Report, worst: &WorstKey, columns: &[(usize, String)]) -> Vec<String> {
    let plan = if report.plans.len() > 1 {
        format!("{} ", beginning(&worst.plan, PLAN_WIDTH_MAX))
    } else {
        String::new()
    };
    let key = format!("{plan}{}", visible(&worst.key));
    let denied = columns
        .iter()
        .map(|(variant, _)| count(worst.denied[*variant]));
    [key, count(worst.requests)]
        .into_iter()
        .chain(denied)
        .collect()
}

/// A row for each hour or day. Its bar is as long as its requests are many, and dark as far as they were denied.
fn hours(report: &Report, out: &mut String) -> std::fmt::Result {
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

/// The table by hour or day.
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
