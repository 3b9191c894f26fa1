//! The report as plain text, for a terminal of 80 columns, with or without colours.

use std::fmt::Write as _;
use std::ops::Range;

use super::hours::hour_table;
use super::limits::LimitRows;
use super::lines::{WIDTH, beginning, end, sentence, table};
use super::{LimitReport, Report, WorstKey, count, limits, percent, spacing_name};
use crate::simulate::order::{HELD_BYTES_MAX, HELD_MAX, ORDER_SECONDS};
use tollgate_core::utc::Utc;
use tollgate_core::visible::visible;

/// Keys that are printed; JSON and HTML have more.
const WORST_PRINTED: usize = 10;
/// Widest text of a plan that stands before a key.
const PLAN_WIDTH_MAX: usize = 20;

/// The report as text. Keys and reasons come from the log: control characters in them are shown and not sent to the terminal.
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = log(report, &mut out).and_then(|()| {
        totals(report, &mut out)?;
        all_limits(report, &mut out)?;
        worst(report, &mut out)?;
        hour_table(report, &mut out)
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
