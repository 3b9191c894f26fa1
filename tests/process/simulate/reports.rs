//! Reports of `tollgate simulate` for a person: text, charts and pages.

use serde_json::Value;

use super::{Folder, PLANS, line};

/// Requests over some days, in groups of the same second: by so many clients, one of which makes half of them, and with some hours
/// without requests.
fn days(requests: u32, clients: u32) -> String {
    let of = |number: u32| {
        let hour = number * 70 / requests;
        let tenth = number * 70 % requests * 6 / requests;
        let client = if number.is_multiple_of(2) {
            1
        } else {
            number.wrapping_mul(2_654_435_761) % clients
        };
        let time = format!(
            "{}/Oct/2025:{:02}:{tenth}0:00 +0000",
            10 + hour / 24,
            hour % 24
        );
        let night = (26..30).contains(&hour);
        let line = format!(
            "2001:db8:85a3:8d3:1319:8a2e:370:{client:04x} - - [{time}] \"GET / HTTP/1.1\" 200 5 \"-\" \"agent\"\n"
        );
        if night { String::new() } else { line }
    };
    (0..requests).map(of).collect()
}

#[test]
fn no_line_of_a_report_is_wider_than_80_columns() {
    let folder = Folder::new();
    let long = "n".repeat(64);
    let limits = "limits: [ { name: LONG, quota: 988200000000, window: 366d, algorithm: token_bucket, burst: 999999999999 }, \
                  { quota: 3, window: 1h30m } ]";
    let of = |limits: &str| {
        format!(
            "plans: {{ free: {{ {limits} }}, {long}: {{ {limits} }}, open: {{ unlimited: true }} }}"
        )
    };
    folder.put("plans.yaml", of(&limits.replace("LONG", &long)).as_bytes());
    let other = format!("{}.yaml", "configs-of-last-year".repeat(6));
    folder.put(
        &other,
        of("limits: [ { quota: 900000000000, window: 1s }, { quota: 40, window: 1d } ]").as_bytes(),
    );
    let names = format!(
        "{}{}",
        days(3_000, 500),
        line(&"日本".repeat(80), 1, "/").repeat(40) + &line(&"k".repeat(500), 2, "/")
    );
    let of_plans = names
        .replace("\"agent\"", &format!("\"{long}\""))
        .replace("curl/8", "free");
    for (log, arguments) in [
        (names.clone(), vec![]),
        (names.clone(), vec!["--compare", &other]),
        (names.clone(), vec!["--plan", "open"]),
        (names.clone(), vec!["--plan", "open", "--compare", &other]),
        (
            of_plans,
            vec!["--plan", "$http_user_agent", "--compare", &other],
        ),
        (
            "nonsense\n".to_owned() + &names,
            vec!["--plan", &long, "--compare", &other],
        ),
        (
            names.clone(),
            vec!["--keys-max", "1", "--cost", "900000000000"],
        ),
    ] {
        folder.put("access.log", log.as_bytes());
        for line in folder.text_report(&arguments).lines() {
            let width = unicode_width::UnicodeWidthStr::width(line);
            assert!(width <= 80, "{arguments:?}: {width} columns: {line}");
        }
    }
}

#[test]
fn the_bars_of_the_chart_are_as_long_as_the_counts_say() {
    let folder = Folder::new();
    folder.put("access.log", days(3_000, 50).as_bytes());
    folder.put("old.yaml", PLANS.replace("quota: 2", "quota: 1").as_bytes());
    for (arguments, shown) in [(vec![], [0, 1]), (vec!["--compare", "old.yaml"], [0, 2])] {
        let text = folder.text_report(&arguments);
        let json = folder.json_report(&arguments);
        let chart = Chart::of(&text, &json);
        assert_eq!(
            chart.rows.len(),
            70,
            "hours without a request have a row: {text}"
        );
        assert!(
            text.contains(&format!("the longest bar is {} requests", chart.most)),
            "{text}"
        );
        assert!(chart.width >= 8, "{text}");
        let mut compared = 0;
        for row in &chart.rows {
            let start = format!("{}T{}:00Z", row[0], row[1]);
            let Some(hour) = chart.hours.iter().find(|hour| hour["start"] == start) else {
                assert!(bars(row).is_empty(), "nothing was asked: {row:?}");
                continue;
            };
            let expected = shown.map(|variant| chart.expected_bar(hour, variant));
            assert_eq!(bars(row), expected, "{row:?}: {hour}");
            compared += 1;
        }
        assert!(compared > 60, "{text}");
    }
}

/// The chart of a report: the words of each row of the text, and the hours of the JSON that it shows.
struct Chart<'a> {
    rows: Vec<Vec<&'a str>>,
    hours: &'a [Value],
    /// Most requests of an hour.
    most: u64,
    /// Characters of the longest bar.
    width: u64,
}

impl<'a> Chart<'a> {
    fn of(text: &'a str, json: &'a Value) -> Self {
        let hours = json["hours"].as_array().unwrap();
        let requests = hours.iter().map(|hour| number(&hour["requests"]));
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip_while(|line| !line.starts_with("by hour"))
            .skip(2)
            .map(|row| row.split_whitespace().collect())
            .collect();
        let widths = rows
            .iter()
            .flat_map(|row| bars(row))
            .map(|bar| bar.chars().count() as u64);
        Self {
            hours,
            most: requests.max().unwrap(),
            width: widths.max().unwrap(),
            rows,
        }
    }

    /// The bar of an hour: full for what is denied, light for the rest.
    fn expected_bar(&self, hour: &Value, variant: usize) -> String {
        let requests = self.bar_length(number(&hour["requests"]));
        let denied = self.bar_length(number(&hour["denied"][variant]));
        format!(
            "{}{}",
            "█".repeat(denied),
            "░".repeat(requests.saturating_sub(denied))
        )
    }

    fn bar_length(&self, count: u64) -> usize {
        let exact = count as f64 * self.width as f64 / self.most as f64;
        (exact.round() as usize).max(usize::from(count > 0))
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// The cells of a row that are bars.
fn bars(row: &[&str]) -> Vec<String> {
    row.iter()
        .filter(|cell| cell.starts_with(['█', '░']))
        .map(|cell| (*cell).to_owned())
        .collect()
}

/// In words for somebody who sees such a report first: what a smaller, an equal and a greater quota than that of the config mean.
#[test]
fn the_report_says_which_quota_is_enough_and_what_follows() {
    let folder = Folder::new();
    let clients = (0..2_000)
        .map(|client| line(&format!("10.0.{}.{}", client / 250, client % 250), 1, "/").repeat(3));
    let heavy = line("192.0.2.1", 2, "/").repeat(120);
    folder.put(
        "access.log",
        (clients.collect::<String>() + &heavy).as_bytes(),
    );
    for (quota, says) in [
        (
            100,
            "The quota of 100 is higher, so it denies nothing to any other key.",
        ),
        (3, "It is the quota of the config."),
        (
            2,
            "The quota of 2 is lower, so it denies something to more keys.",
        ),
    ] {
        folder.put(
            "plans.yaml",
            PLANS
                .replace("quota: 2,", &format!("quota: {quota},"))
                .as_bytes(),
        );
        let text = folder.text_report(&["--html", "report.html"]);
        let says = format!(
            "A quota of 3 would deny something to 1 of the 2,001 keys, which is at most 0.1 %. {says}"
        );
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            flat.contains(&says) && folder.content("report.html").contains(&says),
            "{text}"
        );
        assert!(
            text.contains(&format!(
                "plan free, limit sliding_window/10s: {quota} in 10s by sliding_window\n"
            )),
            "{text}"
        );
    }
    folder.put(
        "plans.yaml",
        PLANS.replace("quota: 2,", "quota: 500,").as_bytes(),
    );
    folder.put("access.log", heavy.as_bytes());
    let flat = folder
        .text_report(&[])
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(
        flat.contains("A quota of 120 would deny nothing to any key. The quota of 500 is higher than any key needs."),
        "{flat}"
    );
}

#[test]
fn the_page_stands_by_itself_and_breaks_no_address() {
    let folder = Folder::new();
    folder.put("access.log", days(3_000, 20).as_bytes());
    folder.put("old.yaml", PLANS.replace("quota: 2", "quota: 1").as_bytes());
    folder.text_report(&["--compare", "old.yaml", "--html", "report.html"]);
    let html = folder.content("report.html");
    for fact in [
        "access.log",
        "2025-10-10T00:00:00Z to 2025-10-12T21:",
        "$remote_addr",
        "free (",
        "plans.yaml, compared with old.yaml",
    ] {
        assert!(html.contains(fact), "{fact}: {html}");
    }
    let version = format!("Z by tollgate {}", env!("CARGO_PKG_VERSION"));
    assert!(html.contains(&version), "{html}");
    for config in [
        "plans.yaml: plan free, limit sliding_window/10s: 2 in 10s",
        "old.yaml: plan free, limit sliding_window/10s: 1 in 10s",
    ] {
        assert!(html.contains(config), "{config}: {html}");
    }
    // Only cells of this class may be broken within a word.
    let styles = html
        .split("<style>")
        .nth(1)
        .unwrap()
        .split("</style>")
        .next()
        .unwrap();
    assert!(
        styles.contains("td{white-space:nowrap}")
            && styles.contains("td.long{white-space:normal;overflow-wrap:anywhere"),
        "{styles}"
    );
    assert!(
        html.contains("<td>2001:db8:85a3:8d3:1319:8a2e:370:0001</td>"),
        "{html}"
    );
    folder.put(
        "access.log",
        line(&"k".repeat(49), 1, "/").repeat(3).as_bytes(),
    );
    folder.text_report(&["--html", "report.html"]);
    assert!(
        folder
            .content("report.html")
            .contains("<td class=\"long\">kkk")
    );
}

/// Names of clients are anyone's to choose.
#[test]
fn charts_and_pages_are_written_and_escape_what_comes_from_the_log() {
    let folder = Folder::new();
    let hostile = "<script>alert(1)</script>\u{1b}[2J\"'&";
    folder.put("access.log", line(hostile, 1, "/").repeat(4).as_bytes());
    let text = folder.text_report(&["--svg", "chart.svg", "--html", "report.html"]);
    assert!(
        !text.contains('\u{1b}') && text.contains("\\u{1b}"),
        "{text}"
    );
    let svg = folder.content("chart.svg");
    let html = folder.content("report.html");
    assert!(
        svg.starts_with("<svg xmlns=")
            && svg.trim_end().ends_with("</svg>")
            && svg.contains("prefers-color-scheme:dark")
    );
    assert!(
        html.starts_with("<!doctype html>")
            && html.contains("name=\"viewport\"")
            && html.contains("<svg "),
        "{html}"
    );
    assert!(
        html.contains("&lt;script&gt;alert(1)&lt;/script&gt;\\u{1b}[2J&quot;&#39;&amp;"),
        "{html}"
    );
    assert!(
        !html.contains("<script")
            && !html.contains("src=")
            && !html.contains("href=")
            && !html.contains('\u{1b}'),
        "{html}"
    );
    // Each tag that is opened is closed.
    for tag in [
        "svg", "g", "table", "tr", "td", "th", "div", "p", "h2", "text", "title",
    ] {
        let open =
            html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
        let close = html.matches(&format!("</{tag}>")).count();
        assert_eq!(open, close, "{tag}");
    }
}
