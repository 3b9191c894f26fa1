//! The chart by hour, as SVG without outside assets. It follows the reader's choice of a dark or light page.

use std::fmt::Write as _;

use super::text::{grouped, label};
use super::{Report, count, percent};
use crate::visible::visible;

const WIDTH: usize = 960;
const HEIGHT: usize = 320;
/// Room for the numbers on the left, the headings above, the times below.
const LEFT: usize = 80;
const TOP: usize = 56;
const BOTTOM: usize = 32;
/// Most bars; with more hours, each bar is a day.
const BARS_MAX: usize = 240;
/// Bars of days that fit; the last ones are drawn.
const DAYS_MAX: usize = 740;
const STYLE: &str = "<style>
svg{font:13px system-ui,sans-serif;background:#fff}text{fill:#222}.all{fill:#b9c6d8}.d0{fill:#c2410c}.d1,.d2,.d3{fill:none;stroke-width:2}
.d1{stroke:#1d4ed8}.d2{stroke:#047857}.d3{stroke:#7e22ce}.axis{stroke:#888}
@media(prefers-color-scheme:dark){svg{background:#16181d}text{fill:#e6e6e6}.all{fill:#3b4658}.d0{fill:#f08a4b}.d1{stroke:#7aa2f7}.d2{stroke:#4fd1a5}.d3{stroke:#c4a1ff}}
</style>";

/// The chart: a bar for the requests of each hour, its denied part, and a line for each further column of the report.
pub fn svg(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = draw(report, &mut out);
    out
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a picture has far fewer points than a float has values"
)]
fn draw(report: &Report, out: &mut String) -> std::fmt::Result {
    let (rows, step_us) = grouped(&report.hours, report.hour_us, BARS_MAX);
    let rows = &rows[rows.len().saturating_sub(DAYS_MAX)..];
    let most = rows
        .iter()
        .map(|row| row.requests)
        .max()
        .unwrap_or(0)
        .max(1);
    let (plot_width, plot_height) = ((WIDTH - LEFT - 16) as f64, (HEIGHT - TOP - BOTTOM) as f64);
    let step = plot_width / rows.len().max(1) as f64;
    let x = |index: usize| LEFT as f64 + index as f64 * step;
    let height = |number: u64| number as f64 * plot_height / most as f64;
    let base = (HEIGHT - BOTTOM) as f64;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">"
    )?;
    writeln!(
        out,
        "<title>Requests and denials of {}</title>\n{STYLE}",
        escape(&report.log.name)
    )?;
    legend(report, out)?;
    let bar = |out: &mut String, class: &str, index: usize, number: u64| {
        let (x, height, width) = (x(index), height(number), (step * 0.86).max(0.5));
        writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/>",
            base - height
        )
    };
    for (index, row) in rows.iter().enumerate() {
        let denied = row.denied.first().copied().unwrap_or(0);
        let (time, requests) = (label(row.start_us, step_us), count(row.requests));
        writeln!(
            out,
            "<g><title>{time}: {requests} requests, {} denied ({:.1} %)</title>",
            count(denied),
            percent(denied, row.requests)
        )?;
        bar(out, "all", index, row.requests)?;
        bar(out, "d0", index, denied)?;
        writeln!(out, "</g>")?;
    }
    for variant in 1..report.variants.len() {
        let points = rows
            .iter()
            .enumerate()
            .map(|(index, row)| (x(index) + step * 0.43, base - height(row.denied[variant])));
        let points: Vec<String> = points.map(|(x, y)| format!("{x:.2},{y:.2}")).collect();
        writeln!(
            out,
            "<polyline class=\"d{variant}\" points=\"{}\"/>",
            points.join(" ")
        )?;
    }
    let right = WIDTH - 16;
    writeln!(
        out,
        "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{base}\" x2=\"{right}\" y2=\"{base}\"/>"
    )?;
    writeln!(
        out,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
        LEFT - 8,
        TOP + 10,
        count(most)
    )?;
    writeln!(
        out,
        "<text x=\"{}\" y=\"{base}\" text-anchor=\"end\">0</text>",
        LEFT - 8
    )?;
    if let (Some(first), Some(last)) = (rows.first(), rows.last()) {
        let y = HEIGHT - 10;
        writeln!(
            out,
            "<text x=\"{LEFT}\" y=\"{y}\">{} UTC</text>",
            label(first.start_us, step_us)
        )?;
        writeln!(
            out,
            "<text x=\"{right}\" y=\"{y}\" text-anchor=\"end\">{} UTC</text>",
            label(last.start_us, step_us)
        )?;
    }
    writeln!(out, "</svg>")
}

fn legend(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "<rect class=\"all\" x=\"{LEFT}\" y=\"10\" width=\"12\" height=\"12\"/><text x=\"{}\" y=\"21\">requests</text>",
        LEFT + 18
    )?;
    for variant in 0..report.variants.len() {
        let (x, y) = (LEFT + 110 + variant % 2 * 380, 10 + variant / 2 * 20);
        match variant {
            0 => writeln!(
                out,
                "<rect class=\"d0\" x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\"/>"
            )?,
            _ => writeln!(
                out,
                "<polyline class=\"d{variant}\" points=\"{x},{0} {1},{0}\"/>",
                y + 6,
                x + 12
            )?,
        }
        writeln!(
            out,
            "<text x=\"{}\" y=\"{}\">denied {}</text>",
            x + 18,
            y + 11,
            escape(&report.heading(variant))
        )?;
    }
    Ok(())
}

/// The text with what means something in HTML and XML as references. What is hidden in it is shown as escapes, and XML has no
/// references to control characters.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in visible(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Not allowed in XML.
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_log_becomes_a_tag() {
        assert_eq!(
            escape("<a href='x' title=\"&\">\u{1}\u{ffff}"),
            "&lt;a href=&#39;x&#39; title=&quot;&amp;&quot;&gt;\\u{1}\u{fffd}"
        );
    }
}
