//! Draws the chart as SVG text: for each row a bar of CPU time per decision, split into the server's part and Redis's.

use std::fmt::Write as _;

use crate::harness::Row;

const WIDTH: f64 = 960.0;
/// Where bars begin, right of their names.
const LEFT: f64 = 400.0;
/// Room for the figure behind the longest bar.
const RIGHT: f64 = 120.0;
/// Room for the title and the legend.
const TOP: f64 = 56.0;
/// Distance from one row to the next.
const LINE: f64 = 24.0;
/// Height of a bar.
const BAR: f64 = 14.0;

/// The colours of bars can be seen on a white and on a black page. The colour of text follows the colour scheme of the page.
const STYLE: &str = "text { font: 13px system-ui, sans-serif; fill: #1f2328 } .server { fill: #2f81f7 } .redis { fill: #d9534f } \
                     @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } }";

/// An SVG file's text.
pub fn chart(rows: &[Row]) -> String {
    let longest = rows
        .iter()
        .map(Row::sum_us)
        .fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / longest;
    let height = TOP + LINE * rows.len() as f64 + LINE / 2.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"CPU microseconds a decision\">\n<style>{STYLE}</style>\n\
         <text x=\"{LEFT}\" y=\"20\">CPU microseconds a decision</text>\n"
    );
    legend(&mut svg, LEFT, "server");
    legend(&mut svg, LEFT + 90.0, "redis");
    for (index, row) in rows.iter().enumerate() {
        bar(&mut svg, row, TOP + LINE * index as f64, scale);
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend(svg: &mut String, x: f64, part: &str) {
    rectangle(svg, part, x, 32.0, 12.0);
    text(svg, x + 18.0, 43.0, "start", part);
}

fn bar(svg: &mut String, row: &Row, y: f64, scale: f64) {
    let server = row.server_us * scale;
    let redis = row.redis_us * scale;
    text(svg, LEFT - 8.0, y + 12.0, "end", &row.name);
    rectangle(svg, "server", LEFT, y, server);
    rectangle(svg, "redis", LEFT + server, y, redis);
    let figure = format!("{:.1}", row.sum_us());
    text(svg, LEFT + server + redis + 6.0, y + 12.0, "start", &figure);
}

fn rectangle(svg: &mut String, class: &str, x: f64, y: f64, width: f64) {
    // Writing to a String cannot fail.
    let _ = writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\"/>"
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    // Names of rows have no characters with a meaning in XML.
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>"
    );
}
