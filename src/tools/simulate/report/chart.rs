//! The chart by hour, as SVG without outside assets. It follows the reader's choice of a dark or light page.

use std::fmt::Write as _;

use super::hours::{grouped, label};
use super::{Report, count, percent};
use crate::simulate::replay::Hour;
use tollgate_core::visible::visible;

const WIDTH: usize = 960;
const HEIGHT: usize = 320;
/// Room for the numbers on the left, the headings above, the times below.
const LEFT: usize = 80;
const TOP: usize = 56;
const BOTTOM: usize = 32;
/// Maximum number of bars; with more hours, each bar is a day.
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

/// Where bars and points lie.
struct Plot {
    /// Width of a bar with its gap.
    step: f64,
    /// Requests of the highest bar; at least 1.
    most: u64,
}

/// The y of the axis, where all bars begin.
const BASE: usize = HEIGHT - BOTTOM;
/// The x at which the axis ends.
const RIGHT: usize = WIDTH - 16;

#[expect(
    clippy::cast_precision_loss,
    reason = "a picture has far fewer points than a float has values"
)]
impl Plot {
    fn new(bars: usize, most: u64) -> Self {
        let step = (RIGHT - LEFT) as f64 / bars.max(1) as f64;
        Self { step, most }
    }

    fn x(&self, index: usize) -> f64 {
        LEFT as f64 + index as f64 * self.step
    }

    fn y(&self, number: u64) -> f64 {
        BASE as f64 - self.height(number)
    }

    fn height(&self, number: u64) -> f64 {
        number as f64 * (BASE - TOP) as f64 / self.most as f64
    }

    fn bar(&self, out: &mut String, class: &str, index: usize, number: u64) -> std::fmt::Result {
        writeln!(
            out,
            "<rect class=\"{class}\" x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\"/>",
            self.x(index),
            self.y(number),
            (self.step * 0.86).max(0.5),
            self.height(number)
        )
    }
}

fn draw(report: &Report, out: &mut String) -> std::fmt::Result {
    let (rows, step_us) = grouped(&report.hours, report.hour_us, BARS_MAX);
    let rows = &rows[rows.len().saturating_sub(DAYS_MAX)..];
    let most = rows.iter().map(|row| row.requests).max().unwrap_or(0);
    let plot = Plot::new(rows.len(), most.max(1));
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
    bars(&plot, rows, step_us, out)?;
    for variant in 1..report.variants.len() {
        line(&plot, rows, variant, out)?;
    }
    let first_and_last = rows.first().zip(rows.last());
    let times =
        first_and_last.map(|(first, last)| [first, last].map(|row| label(row.start_us, step_us)));
    axis(out, plot.most, times)?;
    writeln!(out, "</svg>")
}

/// A bar for each row, with the part that the first variant denied.
fn bars(plot: &Plot, rows: &[Hour], step_us: u64, out: &mut String) -> std::fmt::Result {
    for (index, row) in rows.iter().enumerate() {
        let denied = row.denied.first().copied().unwrap_or(0);
        let time = label(row.start_us, step_us);
        writeln!(
            out,
            "<g><title>{time}: {} requests, {} denied ({:.1} %)</title>",
            count(row.requests),
            count(denied),
            percent(denied, row.requests)
        )?;
        plot.bar(out, "all", index, row.requests)?;
        plot.bar(out, "d0", index, denied)?;
        writeln!(out, "</g>")?;
    }
    Ok(())
}

/// A line through what a further variant denied.
fn line(plot: &Plot, rows: &[Hour], variant: usize, out: &mut String) -> std::fmt::Result {
    let point = |(index, row): (usize, &Hour)| {
        let x = plot.x(index) + plot.step * 0.43;
        format!("{x:.2},{:.2}", plot.y(row.denied[variant]))
    };
    let points: Vec<String> = rows.iter().enumerate().map(point).collect();
    writeln!(
        out,
        "<polyline class=\"d{variant}\" points=\"{}\"/>",
        points.join(" ")
    )
}

/// The axis, the numbers beside it, and the times of the first and the last bar below it.
fn axis(out: &mut String, most: u64, times: Option<[String; 2]>) -> std::fmt::Result {
    writeln!(
        out,
        "<line class=\"axis\" x1=\"{LEFT}\" y1=\"{BASE}\" x2=\"{RIGHT}\" y2=\"{BASE}\"/>"
    )?;
    let x = LEFT - 8;
    let y = TOP + 10;
    let most = count(most);
    writeln!(
        out,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{most}</text>"
    )?;
    writeln!(
        out,
        "<text x=\"{x}\" y=\"{BASE}\" text-anchor=\"end\">0</text>"
    )?;
    let Some([first, last]) = times else {
        return Ok(());
    };
    let y = HEIGHT - 10;
    writeln!(out, "<text x=\"{LEFT}\" y=\"{y}\">{first} UTC</text>")?;
    writeln!(
        out,
        "<text x=\"{RIGHT}\" y=\"{y}\" text-anchor=\"end\">{last} UTC</text>"
    )
}

fn legend(report: &Report, out: &mut String) -> std::fmt::Result {
    writeln!(
        out,
        "<rect class=\"all\" x=\"{LEFT}\" y=\"10\" width=\"12\" height=\"12\"/><text x=\"{}\" y=\"21\">requests</text>",
        LEFT + 18
    )?;
    for variant in 0..report.variants.len() {
        let x = LEFT + 110 + variant % 2 * 380;
        let y = 10 + variant / 2 * 20;
        mark(variant, x, y, out)?;
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

/// What a variant is drawn as, in the legend.
fn mark(variant: usize, x: usize, y: usize, out: &mut String) -> std::fmt::Result {
    match variant {
        0 => writeln!(
            out,
            "<rect class=\"d0\" x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\"/>"
        ),
        _ => writeln!(
            out,
            "<polyline class=\"d{variant}\" points=\"{x},{0} {1},{0}\"/>",
            y + 6,
            x + 12
        ),
    }
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
