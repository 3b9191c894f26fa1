//! The report as plain text, for a terminal.

use std::fmt::Write as _;

use super::{LimitReport, Report, percent};
use crate::simulate::replay::{HOUR_US, Hour};
use crate::utc::Utc;
use crate::visible::{shortened, visible};

/// Keys that are printed; JSON and HTML have more.
const WORST_PRINTED: usize = 10;
/// Longest text of a key that is printed, in characters.
const KEY_CHARS_MAX: usize = 48;
/// Most rows by hour; with more, days are printed.
const ROWS_MAX: usize = 72;

/// The report as text. Keys and reasons come from the log: control characters in them are shown and not sent to the terminal.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = log(report, &mut out).and_then(|()| {
        totals(report, &mut out)?;
        limits(report, &mut out)?;
        worst(report, &mut out)?;
        hours(report, &mut out)
    });
    out.truncate(out.trim_end().len());
    out
}

fn log(report: &Report, out: &mut String) -> std::fmt::Result {
    let log = &report.log;
    writeln!(out, "{}: {} lines, {} replayed", visible(&log.name), count(log.lines), count(report.requests))?;
    if let Some((first, last)) = log.times_us {
        writeln!(out, "from {} to {}", Utc(first), Utc(last))?;
    }
    for (number, what) in notes(report) {
        writeln!(out, "{} {what}", count(number))?;
    }
    for (number, reason) in &log.first_unreadable {
        writeln!(out, "  line {number}: {reason}")?;
    }
    if report.variants.iter().any(|variant| variant.spacing.is_some()) {
        writeln!(
            out,
            "Times are whole seconds. Each second is replayed twice: all at its start (in bursts), and spread over it (evenly)."
        )?;
    }
    Ok(())
}

/// What was left out or changed, with its count.
pub(super) fn notes(report: &Report) -> Vec<(u64, String)> {
    let log = &report.log;
    let plan = visible(log.first_without_plan.as_deref().unwrap_or_default());
    let all = [
        (log.unreadable, "lines could not be read and are left out; the first:".to_owned()),
        (log.without_key, "lines have an empty key and are left out".to_owned()),
        (log.without_cost, "lines have a cost of 0 and are left out".to_owned()),
        (log.without_plan, format!("lines name a plan that is not in the config and are left out; the first is \"{plan}\"")),
        (log.late, "lines come more than 10 s, or 262,144 lines, late; they count at the time reached by then".to_owned()),
        (
            report.beyond,
            format!("requests are left out: they have keys beyond the first {}; see --keys-max", count(log.keys_max as u64)),
        ),
    ];
    all.into_iter().filter(|(number, _)| *number > 0).collect()
}

fn totals(report: &Report, out: &mut String) -> std::fmt::Result {
    let share = |part: &[u64], whole: u64| part.iter().map(|part| format!("{:.3} %", percent(*part, whole))).collect::<Vec<_>>();
    let counts = |counts: &[u64]| counts.iter().copied().map(count).collect::<Vec<_>>();
    let all = |number: u64| vec![count(number); report.variants.len()];
    let rows = [
        ("requests", all(report.requests)),
        ("denied", counts(&report.denied)),
        ("share denied", share(&report.denied, report.requests)),
        ("keys", all(report.keys)),
        ("keys denied something", counts(&report.keys_denied)),
        ("share of keys", share(&report.keys_denied, report.keys)),
    ];
    let rows = rows.into_iter().map(|(name, cells)| std::iter::once(name.to_owned()).chain(cells).collect()).collect();
    table(out, headings(report, &[""]), rows)
}

fn limits(report: &Report, out: &mut String) -> std::fmt::Result {
    let mut rows = Vec::new();
    for plan in &report.plans {
        for (variant, limits) in plan.variants.iter().enumerate() {
            let row = |limit: &LimitReport| {
                let name = format!("{} {}", plan.name, limit.name);
                vec![name, report.heading(variant), shown(limit), count(limit.denied), suggested(limit)]
            };
            rows.extend(limits.iter().map(row));
        }
    }
    if rows.is_empty() {
        return Ok(());
    }
    table(out, ["limit", "replayed", "is", "denied", "would do"].map(str::to_owned).to_vec(), rows)?;
    let keys = "would do: the smallest quota at which this limit alone denies something to at most 0.1 % of the keys";
    let has_burst = report.plans.iter().flat_map(|plan| plan.variants.iter().flatten()).any(|limit| limit.burst.is_some());
    writeln!(out, "{keys}{}", if has_burst { " (of a token_bucket with a burst of its own, at that burst)" } else { "" })
}

/// The quota that would do.
pub(super) fn suggested(limit: &LimitReport) -> String {
    let none = if limit.burst.is_some() { "none at this burst" } else { "larger than can be" };
    limit.smallest.map_or_else(|| none.to_owned(), count)
}

/// What a limit is in the config.
pub(super) fn shown(limit: &LimitReport) -> String {
    let burst = limit.burst.map_or_else(String::new, |burst| format!(", burst {}", count(burst)));
    format!("quota {}{burst}", count(limit.quota))
}

fn worst(report: &Report, out: &mut String) -> std::fmt::Result {
    if report.worst.is_empty() {
        return Ok(());
    }
    let has_plans = report.plans.len() > 1;
    let rows = report.worst.iter().take(WORST_PRINTED).map(|worst| {
        let key = if has_plans { format!("{} {}", worst.plan, worst.key) } else { worst.key.clone() };
        let denied = worst.denied.iter().copied().map(count);
        [shortened(&key, KEY_CHARS_MAX), count(worst.requests)].into_iter().chain(denied).collect()
    });
    let headings = headings(report, &["worst keys", "requests"]);
    table(out, headings, rows.collect())
}

fn hours(report: &Report, out: &mut String) -> std::fmt::Result {
    let (rows, step_us) = grouped(&report.hours, report.hour_us, ROWS_MAX);
    let name = if step_us == HOUR_US { "hour (UTC)" } else { "day (UTC)" };
    let row = |hour: &Hour| {
        let denied = hour.denied.iter().map(|denied| format!("{} ({:.1} %)", count(*denied), percent(*denied, hour.requests)));
        [label(hour.start_us, step_us), count(hour.requests)].into_iter().chain(denied).collect()
    };
    table(out, headings(report, &[name, "requests"]), rows.iter().map(row).collect())
}

/// `2000-10-10 13:00`, or the day alone.
pub(super) fn label(start_us: u64, step_us: u64) -> String {
    let text = Utc(start_us).to_string();
    let length = if step_us == HOUR_US { 16 } else { 10 };
    text.get(..length).unwrap_or_default().replace('T', " ")
}

/// The rows, added up to days when there are more than `rows_max`.
pub(super) fn grouped(hours: &[Hour], step_us: u64, rows_max: usize) -> (Vec<Hour>, u64) {
    let day_us = 24 * HOUR_US;
    if hours.len() <= rows_max || step_us == day_us {
        return (hours.to_vec(), step_us);
    }
    let mut days: Vec<Hour> = Vec::new();
    for hour in hours {
        let start_us = hour.start_us - hour.start_us % day_us;
        match days.last_mut() {
            Some(day) if day.start_us == start_us => day.add(hour),
            _ => days.push(Hour { start_us, ..hour.clone() }),
        }
    }
    (days, day_us)
}

fn headings(report: &Report, first: &[&str]) -> Vec<String> {
    let variant = |variant| match first {
        [_, ..] if first.len() > 1 => format!("denied {}", report.heading(variant)),
        _ => report.heading(variant),
    };
    first.iter().map(|text| (*text).to_owned()).chain((0..report.variants.len()).map(variant)).collect()
}

/// A table after an empty line. The first column is aligned to the left, the others to the right.
fn table(out: &mut String, headings: Vec<String>, rows: Vec<Vec<String>>) -> std::fmt::Result {
    let all: Vec<&Vec<String>> = std::iter::once(&headings).chain(&rows).collect();
    let width = |column: usize| all.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    writeln!(out)?;
    for row in all {
        let mut line = String::new();
        for (cell, (width, column)) in row.iter().zip(widths.iter().zip(0..)) {
            match column {
                0 => write!(line, "{cell:<width$}")?,
                _ => write!(line, "  {cell:>width$}")?,
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// A number with commas: `1,234,567`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_between_thousands() {
        assert_eq!([0, 7, 999, 1_000, 1_234_567].map(count), ["0", "7", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn many_hours_are_printed_as_days() {
        let hour = |index: u64| Hour { start_us: index * HOUR_US, requests: 1, denied: vec![index % 2] };
        let hours: Vec<Hour> = (0..73).map(hour).collect();
        assert_eq!(grouped(&hours[..72], HOUR_US, 72).0.len(), 72);
        let (days, step_us) = grouped(&hours, HOUR_US, 72);
        assert_eq!((days.len(), days[0].requests, days[0].denied[0], step_us), (4, 24, 12, 24 * HOUR_US));
        assert_eq!((label(0, HOUR_US), label(0, step_us)), ("1970-01-01 00:00".to_owned(), "1970-01-01".to_owned()));
    }
}
