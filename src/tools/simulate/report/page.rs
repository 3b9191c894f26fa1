//! The report as one HTML file without scripts or outside assets. It is readable in the dark and on a phone.

use std::fmt::Write as _;

use super::chart::{escape, svg};
use super::hours::{grouped, label};
use super::limits::{self, LimitRows, smallest_quota_cell};
use super::text::{WHOLE_SECONDS, remarks};
use super::{LimitReport, LogSummary, Report, count, percent, spacing_name};
use tollgate_core::utc::Utc;

/// Maximum number of rows by hour; with more, days are shown.
const ROWS_MAX: usize = 240;
/// Maximum number of characters of a cell that is not broken into lines. An IPv6 address has 39.
const WHOLE_CHARACTERS_MAX: usize = 48;
const STYLE: &str =
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:62rem;padding:1rem}
h1{font-size:1.4rem;overflow-wrap:anywhere}h2{font-size:1.1rem;margin-top:2rem}svg{width:100%;height:auto}.wide{overflow-x:auto}
table{border-collapse:collapse;min-width:50%}th,td{padding:.25rem .75rem;text-align:right;border-bottom:1px solid #8884;vertical-align:top}
td{white-space:nowrap}td.long{white-space:normal;overflow-wrap:anywhere;min-width:24rem}
th:first-child,td:first-child,.facts td{text-align:left}";

/// The report as one page. Everything that comes from the log is escaped.
pub fn html(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = page(report, &mut out);
    out
}

fn page(report: &Report, out: &mut String) -> std::fmt::Result {
    head(&escape(&report.log.name), out)?;
    facts(report, out)?;
    if report.is_in_whole_seconds() {
        writeln!(out, "<p>{WHOLE_SECONDS}</p>")?;
    }
    remarks(report)
        .iter()
        .try_for_each(|remark| writeln!(out, "<p>{}</p>", escape(remark)))?;
    writeln!(out, "{}", svg(report))?;
    totals(report, out)?;
    all_limits(report, out)?;
    worst(report, out)?;
    hours(report, out)?;
    writeln!(out, "</body></html>")
}

/// The head of the page, and its title. `name` is the log's, escaped.
fn head(name: &str, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
    )?;
    writeln!(
        out,
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
    )?;
    writeln!(
        out,
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    )?;
    writeln!(
        out,
        "<title>tollgate simulate: {name}</title><style>{STYLE}</style></head><body>\n<h1>What limits would have done to {name}</h1>"
    )
}

/// What was replayed, by what, and when: so that the page can be read by somebody who did not run the command.
fn facts(report: &Report, out: &mut String) -> std::fmt::Result {
    let log = &report.log;
    let lines = format!("{} of {} lines", count(report.requests), count(log.lines));
    let version = env!("CARGO_PKG_VERSION");
    let made = format!("{} by tollgate {version}", Utc(log.made_us));
    let facts = [
        ("log", log.name.clone()),
        ("requests", lines),
        ("time", span(log)),
        ("counted by", log.key.clone()),
        ("plan", plans(report)),
        ("config", configs(report)),
        ("made", made),
    ];
    writeln!(out, "<div class=\"wide\"><table class=\"facts\">")?;
    facts.iter().try_for_each(|(name, fact)| {
        writeln!(out, "<tr><td>{name}</td>{}</tr>", cell("td", fact))
    })?;
    writeln!(out, "</table></div>")
}

fn span(log: &LogSummary) -> String {
    log.times_us.map_or_else(String::new, |(first, last)| {
        format!("{} to {}", Utc(first), Utc(last))
    })
}

fn plans(report: &Report) -> String {
    let plans = report.plans.iter();
    let plans = plans.map(|plan| format!("{} ({} keys)", plan.name, count(plan.keys)));
    plans.collect::<Vec<_>>().join(", ")
}

fn configs(report: &Report) -> String {
    let ranges = report.ranges_by_config().into_iter();
    let configs = ranges.map(|variants| report.variants[variants.start].config.as_str());
    configs.collect::<Vec<_>>().join(", compared with ")
}

fn totals(report: &Report, out: &mut String) -> std::fmt::Result {
    let row = |variant: usize| {
        let denied = report.denied[variant];
        let keys = report.keys_denied[variant];
        let share = |part, whole| format!("{:.3} %", percent(part, whole));
        vec![
            report.heading(variant),
            count(denied),
            share(denied, report.requests),
            count(keys),
            share(keys, report.keys),
        ]
    };
    let rows = (0..report.variants.len()).map(row).collect();
    let headings =
        ["", "requests denied", "share", "keys with denials", "share"].map(str::to_owned);
    table(
        out,
        &format!(
            "Requests {}, keys {}",
            count(report.requests),
            count(report.keys)
        ),
        &headings,
        rows,
    )
}

/// The limits with their numbers, then a sentence on each.
fn all_limits(report: &Report, out: &mut String) -> std::fmt::Result {
    let mut rows = Vec::new();
    let mut verdicts = Vec::new();
    let several = report.ranges_by_config().len() > 1;
    for limit in limits::rows(report) {
        let config = if several {
            format!("{}: ", limit.config)
        } else {
            String::new()
        };
        let name = format!("{config}plan {}, {}", limit.plan.name, limit.described());
        verdicts.extend(limit.verdict().map(|verdict| format!("{name}. {verdict}")));
        rows.extend(limit_cells(report, &limit, &name));
    }
    let headings = [
        "limit",
        "replayed",
        "requests denied",
        "quota that 99.9 % of the keys need",
    ]
    .map(str::to_owned);
    table(out, "Limits", &headings, rows)?;
    verdicts
        .iter()
        .try_for_each(|verdict| writeln!(out, "<p>{}</p>", escape(verdict)))
}

/// A row for each spacing of time, or one without numbers for a plan without limits.
fn limit_cells(report: &Report, limit: &LimitRows<'_>, name: &str) -> Vec<Vec<String>> {
    if limit.variants.is_empty() {
        return vec![[name, "", "", ""].map(str::to_owned).to_vec()];
    }
    let row = |(variant, found): &(usize, &LimitReport)| {
        let spacing = spacing_name(report.variants[*variant].spacing).unwrap_or("as logged");
        vec![
            name.to_owned(),
            spacing.to_owned(),
            count(found.denied),
            smallest_quota_cell(found),
        ]
    };
    limit.variants.iter().map(row).collect()
}

fn worst(report: &Report, out: &mut String) -> std::fmt::Result {
    let rows = report.worst.iter().map(|worst| {
        let denied = worst.denied.iter().copied().map(count);
        [worst.key.clone(), worst.plan.clone(), count(worst.requests)]
            .into_iter()
            .chain(denied)
            .collect()
    });
    table(
        out,
        "Keys with the most denials",
        &headings(report, &["key", "plan", "requests"]),
        rows.collect(),
    )
}

fn hours(report: &Report, out: &mut String) -> std::fmt::Result {
    let (rows, step_us) = grouped(&report.hours, report.hour_us, ROWS_MAX);
    let rows = rows.iter().map(|row| {
        let denied = row.denied.iter().map(|denied| {
            format!(
                "{} ({:.1} %)",
                count(*denied),
                percent(*denied, row.requests)
            )
        });
        [label(row.start_us, step_us), count(row.requests)]
            .into_iter()
            .chain(denied)
            .collect()
    });
    table(
        out,
        "By time (UTC)",
        &headings(report, &["begin", "requests"]),
        rows.collect(),
    )
}

fn headings(report: &Report, first: &[&str]) -> Vec<String> {
    let variants =
        (0..report.variants.len()).map(|variant| format!("denied {}", report.heading(variant)));
    first
        .iter()
        .map(|text| (*text).to_owned())
        .chain(variants)
        .collect()
}

fn table(
    out: &mut String,
    title: &str,
    headings: &[String],
    rows: Vec<Vec<String>>,
) -> std::fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let cells =
        |tag: &str, row: &[String]| row.iter().map(|text| cell(tag, text)).collect::<String>();
    writeln!(
        out,
        "<h2>{}</h2><div class=\"wide\"><table><tr>{}</tr>",
        escape(title),
        cells("th", headings)
    )?;
    rows.iter()
        .try_for_each(|row| writeln!(out, "<tr>{}</tr>", cells("td", row)))?;
    writeln!(out, "</table></div>")
}

/// One cell. A text that fits a line stays on one: half an address looks like another address.
fn cell(tag: &str, text: &str) -> String {
    let class = if tag == "td" && text.chars().count() > WHOLE_CHARACTERS_MAX {
        " class=\"long\""
    } else {
        ""
    };
    format!("<{tag}{class}>{}</{tag}>", escape(text))
}
