//! The report as one HTML file without scripts or outside assets. It is readable in the dark and on a phone.

use std::fmt::Write as _;

use super::chart::{escape, svg};
use super::text::{count, grouped, label, notes, shown, suggested};
use super::{Report, percent};

/// Most rows by hour; with more, days are shown.
const ROWS_MAX: usize = 240;
const STYLE: &str =
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:62rem;padding:1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}svg{width:100%;height:auto}.wide{overflow-x:auto}
table{border-collapse:collapse;min-width:50%}th,td{padding:.25rem .75rem;text-align:right;border-bottom:1px solid #8884}
th:first-child,td:first-child{text-align:left;overflow-wrap:anywhere;max-width:24rem}";

/// The report as one page. Everything that comes from the log is escaped.
pub fn html(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = page(report, &mut out);
    out
}

fn page(report: &Report, out: &mut String) -> std::fmt::Result {
    let name = escape(&report.log.name);
    writeln!(out, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">")?;
    writeln!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">")?;
    writeln!(out, "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">")?;
    writeln!(out, "<title>tollgate simulate: {name}</title><style>{STYLE}</style></head><body>\n<h1>{name}</h1>")?;
    remarks(report, out)?;
    writeln!(out, "{}", svg(report))?;
    totals(report, out)?;
    limits(report, out)?;
    worst(report, out)?;
    hours(report, out)?;
    writeln!(out, "</body></html>")
}

/// What was read and replayed, and what was not.
fn remarks(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(out, "<p>{} lines, {} requests replayed.</p>", count(report.log.lines), count(report.requests))?;
    if report.variants.iter().any(|variant| variant.spacing.is_some()) {
        writeln!(
            out,
            "<p>Times are whole seconds. Each second is replayed twice: all at its start (in bursts), and spread over it (evenly).</p>"
        )?;
    }
    for (number, note) in notes(report) {
        writeln!(out, "<p>{} {}</p>", count(number), escape(&note))?;
    }
    for (number, reason) in &report.log.first_unreadable {
        writeln!(out, "<p>line {number}: {}</p>", escape(reason))?;
    }
    Ok(())
}

fn totals(report: &Report, out: &mut String) -> std::fmt::Result {
    let row = |variant: usize| {
        let (denied, keys) = (report.denied[variant], report.keys_denied[variant]);
        let share = |part, whole| format!("{:.3} %", percent(part, whole));
        vec![report.heading(variant), count(denied), share(denied, report.requests), count(keys), share(keys, report.keys)]
    };
    let rows = (0..report.variants.len()).map(row).collect();
    let headings = ["", "requests denied", "share", "keys denied something", "share"].map(str::to_owned);
    table(out, &format!("Requests {}, keys {}", count(report.requests), count(report.keys)), &headings, rows)
}

fn limits(report: &Report, out: &mut String) -> std::fmt::Result {
    let mut rows = Vec::new();
    for plan in &report.plans {
        for (variant, limit) in
            plan.variants.iter().enumerate().flat_map(|(variant, limits)| limits.iter().map(move |limit| (variant, limit)))
        {
            let name = format!("{} {}", plan.name, limit.name);
            rows.push(vec![name, report.heading(variant), shown(limit), count(limit.denied), suggested(limit)]);
        }
    }
    let headings = ["limit", "replayed", "is", "denied", "would do"].map(str::to_owned);
    table(out, "The smallest quota that denies something to at most 0.1 % of the keys", &headings, rows)
}

fn worst(report: &Report, out: &mut String) -> std::fmt::Result {
    let rows = report.worst.iter().map(|worst| {
        let denied = worst.denied.iter().copied().map(count);
        [worst.key.clone(), worst.plan.clone(), count(worst.requests)].into_iter().chain(denied).collect()
    });
    table(out, "Keys with the most denials", &headings(report, &["key", "plan", "requests"]), rows.collect())
}

fn hours(report: &Report, out: &mut String) -> std::fmt::Result {
    let (rows, step_us) = grouped(&report.hours, report.hour_us, ROWS_MAX);
    let rows = rows.iter().map(|row| {
        let denied = row.denied.iter().map(|denied| format!("{} ({:.1} %)", count(*denied), percent(*denied, row.requests)));
        [label(row.start_us, step_us), count(row.requests)].into_iter().chain(denied).collect()
    });
    table(out, "By time (UTC)", &headings(report, &["begin", "requests"]), rows.collect())
}

fn headings(report: &Report, first: &[&str]) -> Vec<String> {
    let variants = (0..report.variants.len()).map(|variant| format!("denied {}", report.heading(variant)));
    first.iter().map(|text| (*text).to_owned()).chain(variants).collect()
}

fn table(out: &mut String, title: &str, headings: &[String], rows: Vec<Vec<String>>) -> std::fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    let cells = |tag: &str, row: &[String]| row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect::<String>();
    writeln!(out, "<h2>{}</h2><div class=\"wide\"><table><tr>{}</tr>", escape(title), cells("th", headings))?;
    rows.iter().try_for_each(|row| writeln!(out, "<tr>{}</tr>", cells("td", row)))?;
    writeln!(out, "</table></div>")
}
