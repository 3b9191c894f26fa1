//! `tollgate simulate` as a user runs it: formats, reports, broken logs, exit codes.

use std::io::Write;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use super::docs::page_blocks;
use crate::support::server::tollgate;

const PLANS: &str = "plans: { free: { limits: [ { quota: 2, window: 10s } ] }, paid: { limits: [ { quota: 5, window: 10s } ] } }\n";

/// A folder of its own with a config and logs.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.put("plans.yaml", PLANS.as_bytes());
        folder
    }

    fn put(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    /// Replays `access.log` by the plan `free`, unless the arguments say otherwise.
    fn run(&self, arguments: &[&str]) -> Output {
        let mut all = vec!["simulate", "--config", "plans.yaml", "--log", "access.log"];
        if !arguments.contains(&"--plan") {
            all.extend(["--plan", "free"]);
        }
        tollgate()
            .args(all)
            .args(arguments)
            .current_dir(self.0.path())
            .output()
            .unwrap()
    }

    fn prints(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        assert!(
            output.stderr.is_empty(),
            "no bar is drawn where there is no terminal: {output:?}"
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.prints(&[&["--output", "json"], arguments].concat())).unwrap()
    }

    fn fails(&self, arguments: &[&str], code: i32, sentence: &str) {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(
            said.contains(sentence) && said.starts_with("tollgate: "),
            "{arguments:?}: {said}"
        );
    }
}

/// A line of the combined format, in the minute after 13:00.
fn line(client: &str, second: u32, path: &str) -> String {
    let time = format!("10/Oct/2025:13:00:{second:02} +0000");
    format!("{client} - - [{time}] \"GET {path} HTTP/1.1\" 200 512 \"-\" \"curl/8\"\n")
}

/// `a` asks four times in a second, `b` twice in all, `c` once.
fn log() -> String {
    let clients = [
        ("a", 1),
        ("a", 1),
        ("b", 1),
        ("a", 1),
        ("a", 1),
        ("c", 5),
        ("b", 20),
    ];
    clients
        .map(|(client, second)| line(client, second, "/x?y"))
        .concat()
}

#[test]
fn a_log_is_replayed_and_the_report_printed() {
    let folder = Folder::new();
    folder.put("access.log", log().as_bytes());
    let report = folder.json(&[]);
    assert_eq!(
        (&report["requests"], &report["keys"]),
        (&7.into(), &3.into())
    );
    let [bursts, evenly] = report["results"].as_array().unwrap().as_slice() else {
        panic!("{report}")
    };
    for result in [bursts, evenly] {
        assert_eq!(
            (&result["denied"], &result["keys_denied"]),
            (&2.into(), &1.into()),
            "{report}"
        );
        let limit = &result["plans"][0]["limits"][0];
        assert_eq!(
            (&limit["quota"], &limit["smallest"]),
            (&2.into(), &4.into()),
            "{report}"
        );
    }
    assert_eq!(
        (&bursts["spacing"], &evenly["spacing"]),
        (&"bursts".into(), &"evenly".into())
    );
    assert_eq!(report["worst_keys"][0]["key"], "a");
    assert_eq!(report["hours"][0]["start"], "2025-10-10T13:00:00Z");
    let text = folder.prints(&[]);
    assert!(
        text.starts_with(
            "access.log: 7 lines, 7 replayed\nfrom 2025-10-10T13:00:01Z to 2025-10-10T13:00:20Z\n"
        ),
        "{text}"
    );
    assert!(
        text.contains("Each second is replayed twice") && text.contains("28.571 %"),
        "{text}"
    );
}

/// A limit of one request a second: four in one second are three too many, unless the second before was full too.
#[test]
fn whole_seconds_are_replayed_as_bursts_and_evenly() {
    let folder = Folder::new();
    folder.put("plans.yaml", b"plans: { free: { limits: [ { quota: 4, window: 1s, algorithm: token_bucket, burst: 1 } ] } }");
    folder.put(
        "access.log",
        (1..5)
            .map(|second| line("a", second, "/").repeat(4))
            .collect::<String>()
            .as_bytes(),
    );
    let report = folder.json(&[]);
    assert_eq!(
        (
            &report["results"][0]["denied"],
            &report["results"][1]["denied"]
        ),
        (&12.into(), &0.into()),
        "{report}"
    );
    // Times with a fraction are what they are.
    folder.put(
        "access.log",
        b"{\"ts\":1.5,\"ip\":\"a\"}\n{\"ts\":1.75,\"ip\":\"a\"}\n{\"ts\":1.76,\"ip\":\"a\"}\n",
    );
    let report = folder.json(&["--format", "json", "--key", "ip"]);
    assert_eq!(report["results"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!(
        (
            &report["results"][0]["spacing"],
            &report["results"][0]["denied"]
        ),
        (&"as_stamped".into(), &1.into())
    );
}

#[test]
fn every_format_gives_the_same_answer() {
    let folder = Folder::new();
    let clients = ["a", "a", "b", "a", "a"];
    let json = clients
        .map(|client| format!("{{\"request\":{{\"ip\":\"{client}\"}},\"ts\":1760101201.0}}\n"))
        .concat();
    let csv = clients
        .map(|client| format!("2025-10-10 13:00:01,\"{client}\"\r\n"))
        .concat();
    let own = clients
        .map(|client| format!("1760101201.000 <{client}> /\n"))
        .concat();
    let common = clients
        .map(|client| line(client, 1, "/").replace(" \"-\" \"curl/8\"", ""))
        .concat();
    for (format, key, text) in [
        (
            "combined",
            "$remote_addr",
            clients.map(|client| line(client, 1, "/")).concat(),
        ),
        ("common", "$remote_addr", common),
        ("json", "$request.ip", json),
        ("csv", "$client", format!("time,client\r\n{csv}")),
        ("$msec <$remote_addr> $uri", "remote_addr", own),
    ] {
        folder.put("access.log", text.as_bytes());
        let report = folder.json(&["--format", format, "--key", key]);
        assert_eq!(
            (&report["requests"], &report["results"][0]["denied"]),
            (&5.into(), &2.into()),
            "{format}: {report}"
        );
    }
}

#[test]
fn a_log_may_be_compressed_or_standard_input() {
    use std::process::{Command, Stdio};
    let folder = Folder::new();
    folder.put("access.log", log().as_bytes());
    assert!(
        Command::new("gzip")
            .arg("access.log")
            .current_dir(folder.0.path())
            .status()
            .unwrap()
            .success()
    );
    std::fs::rename(
        folder.0.path().join("access.log.gz"),
        folder.0.path().join("access.log"),
    )
    .unwrap();
    assert_eq!(folder.json(&[])["results"][0]["denied"], 2);
    let mut command = tollgate();
    command
        .args([
            "simulate",
            "--config",
            "plans.yaml",
            "--plan",
            "free",
            "--log",
            "-",
        ])
        .current_dir(folder.0.path());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(log().as_bytes())
        .unwrap();
    let printed = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert!(
        printed.starts_with("standard input: 7 lines, 7 replayed"),
        "{printed}"
    );
}

#[test]
fn two_configs_are_shown_side_by_side() {
    let folder = Folder::new();
    folder.put("old.yaml", PLANS.replace("quota: 2", "quota: 3").as_bytes());
    folder.put("access.log", log().as_bytes());
    let report = folder.json(&["--compare", "old.yaml"]);
    let denied: Vec<_> = report["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| (&result["config"], &result["denied"]))
        .collect();
    let expected = [
        ("plans.yaml", 2),
        ("plans.yaml", 2),
        ("old.yaml", 1),
        ("old.yaml", 1),
    ];
    let expected = expected.map(|(config, denied)| (Value::from(config), Value::from(denied)));
    assert_eq!(
        denied,
        expected
            .iter()
            .map(|(config, denied)| (config, denied))
            .collect::<Vec<_>>()
    );
    assert_eq!(
        report["worst_keys"][0]["denied"],
        serde_json::json!([2, 2, 1, 1])
    );
    let text = folder.prints(&["--compare", "old.yaml"]);
    for name in [
        "plans.yaml, in bursts",
        "plans.yaml, evenly",
        "old.yaml, in bursts",
        "old.yaml, evenly",
    ] {
        assert!(text.contains(&format!("\n{name} ")), "{text}");
    }
    assert!(
        text.contains("by plans.yaml") && text.contains("by old.yaml"),
        "{text}"
    );
    folder.put("old.yaml", b"plans: { gratis: { unlimited: true } }");
    folder.fails(
        &["--compare", "old.yaml"],
        2,
        "old.yaml: plan \"free\" is not in the config; there are gratis",
    );
}

/// Requests over some days, in groups of the same second: by so many clients, one of which makes half of them, and with some hours
/// without requests.
fn days(requests: u32, clients: u32) -> String {
    let of = |number: u32| {
        let (hour, tenth) = (
            number * 70 / requests,
            number * 70 % requests * 6 / requests,
        );
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
        for line in folder.prints(&arguments).lines() {
            let width = unicode_width::UnicodeWidthStr::width(line);
            assert!(width <= 80, "{arguments:?}: {width} columns: {line}");
        }
    }
}

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "laid out by rustfmt's defaults and not yet split"
)]
fn the_bars_of_the_chart_are_as_long_as_the_counts_say() {
    let folder = Folder::new();
    folder.put("access.log", days(3_000, 50).as_bytes());
    folder.put("old.yaml", PLANS.replace("quota: 2", "quota: 1").as_bytes());
    for (arguments, shown) in [(vec![], [0, 1]), (vec!["--compare", "old.yaml"], [0, 2])] {
        let (text, json) = (folder.prints(&arguments), folder.json(&arguments));
        let hours = json["hours"].as_array().unwrap();
        let number = |value: &Value| value.as_u64().unwrap();
        let most = hours
            .iter()
            .map(|hour| number(&hour["requests"]))
            .max()
            .unwrap();
        assert!(
            text.contains(&format!("the longest bar is {most} requests")),
            "{text}"
        );
        let rows: Vec<Vec<&str>> = text
            .lines()
            .skip_while(|line| !line.starts_with("by hour"))
            .skip(2)
            .map(|row| row.split_whitespace().collect())
            .collect();
        assert_eq!(rows.len(), 70, "hours without a request have a row: {text}");
        let bars = |row: &[&str]| {
            row.iter()
                .filter(|cell| cell.starts_with(['█', '░']))
                .map(|cell| (*cell).to_owned())
                .collect::<Vec<_>>()
        };
        let width = rows
            .iter()
            .flat_map(|row| bars(row))
            .map(|bar| bar.chars().count() as u64)
            .max()
            .unwrap();
        assert!(width >= 8, "{text}");
        let mut compared = 0;
        for row in &rows {
            let start = format!("{}T{}:00Z", row[0], row[1]);
            let Some(hour) = hours.iter().find(|hour| hour["start"] == start) else {
                assert!(bars(row).is_empty(), "nothing was asked: {row:?}");
                continue;
            };
            let of = |number: u64| {
                ((number as f64 * width as f64 / most as f64).round() as usize)
                    .max(usize::from(number > 0))
            };
            let requests = of(number(&hour["requests"]));
            let expected = shown.map(|variant| {
                let denied = of(number(&hour["denied"][variant]));
                format!(
                    "{}{}",
                    "█".repeat(denied),
                    "░".repeat(requests.saturating_sub(denied))
                )
            });
            assert_eq!(bars(row), expected, "{row:?}: {hour}");
            compared += 1;
        }
        assert!(compared > 60, "{text}");
    }
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
        let text = folder.prints(&["--html", "report.html"]);
        let says = format!(
            "A quota of 3 would deny something to 1 of the 2,001 keys, which is at most 0.1 %. {says}"
        );
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            flat.contains(&says) && folder.text("report.html").contains(&says),
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
        .prints(&[])
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
    folder.prints(&["--compare", "old.yaml", "--html", "report.html"]);
    let html = folder.text("report.html");
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
    folder.prints(&["--html", "report.html"]);
    assert!(
        folder
            .text("report.html")
            .contains("<td class=\"long\">kkk")
    );
}

#[test]
fn plans_and_costs_may_come_from_the_log() {
    let folder = Folder::new();
    let lines = [
        "free,a,2", "paid,a,2", "paid,a,4", "gold,a,1", "free,a,0", "free,,1", "free,b,1",
    ];
    let log = lines
        .map(|line| format!("2025-10-10T13:00:01Z,{line}\n"))
        .concat();
    folder.put(
        "access.log",
        format!("time,plan,key,units\n{log}").as_bytes(),
    );
    let report = folder.json(&[
        "--format", "csv", "--key", "$key", "--plan", "$plan", "--cost", "$units",
    ]);
    assert_eq!(
        (
            &report["requests"],
            &report["keys"],
            &report["results"][0]["denied"]
        ),
        (&4.into(), &3.into(), &1.into())
    );
    let log = &report["log"];
    assert_eq!(
        (
            &log["without_plan"],
            &log["without_cost"],
            &log["without_key"]
        ),
        (&1.into(), &1.into(), &1.into()),
        "{report}"
    );
    assert_eq!(
        (&log["first_without_plan"], &report["worst_keys"][0]["plan"]),
        (&"gold".into(), &"paid".into())
    );
}

#[test]
fn lines_that_are_broken_are_counted_and_the_first_are_shown() {
    let folder = Folder::new();
    let long = "x".repeat(70_000);
    let broken = format!(
        "nonsense\n\n{}{long}\n{}",
        line("a", 1, "/"),
        line("b", 1, "/").replace("Oct", "Okt")
    );
    folder.put(
        "access.log",
        (broken + &"\u{0}\u{1b}[2J\n".repeat(9) + &line("a", 1, "/")).as_bytes(),
    );
    let text = folder.prints(&[]);
    assert!(
        text.starts_with("access.log: 14 lines, 2 replayed\n")
            && text.contains("\n12 lines could not be read"),
        "{text}"
    );
    for reason in [
        "\n  line 1: it ends before the format does",
        "\n  line 4: it is longer than 64 KiB",
        "\n  line 5: its time cannot be read",
        "\n  line 6: ",
    ] {
        assert!(text.contains(reason), "{reason}: {text}");
    }
    assert_eq!(text.matches("\n  line ").count(), 5, "{text}");
}

#[test]
fn lines_out_of_order_are_sorted_and_those_that_come_too_late_are_counted() {
    let folder = Folder::new();
    let at = |seconds: &[u32]| {
        seconds
            .iter()
            .map(|second| line("a", *second, "/"))
            .collect::<String>()
    };
    folder.put("access.log", at(&[11, 1, 12, 2]).as_bytes());
    let report = folder.json(&[]);
    assert_eq!(
        (&report["log"]["late"], &report["results"][0]["denied"]),
        (&0.into(), &0.into()),
        "{report}"
    );
    folder.put("access.log", at(&[2, 30, 1]).as_bytes());
    assert_eq!(folder.json(&[])["log"]["late"], 1);
    assert!(
        folder
            .prints(&[])
            .contains("1 lines come more than 10 s, or 262,144 lines, late")
    );
}

#[test]
fn what_is_wrong_is_said_in_a_sentence_with_the_right_exit_code() {
    let folder = Folder::new();
    let put = |text: &str| folder.put("access.log", text.as_bytes());
    put("");
    folder.fails(&[], 1, "access.log is empty");
    put(&"x".repeat(3 << 20));
    folder.fails(
        &[],
        1,
        "access.log begins with a line of more than 1 MiB; a line has 64 KiB at most",
    );
    put("\n\n");
    folder.fails(&[], 1, "has no request to replay");
    put(&"nonsense\n".repeat(3));
    folder.fails(
        &[],
        2,
        "access.log: none of the first 3 lines can be read; line 1: it ends before the format does",
    );
    folder.fails(
        &["--format", "json"],
        2,
        "no field of the log is named as times are",
    );
    put(&log());
    folder.fails(
        &["--key", "$remote_adr"],
        2,
        "--key: $remote_adr is no field of this log; did you mean $remote_addr?",
    );
    folder.fails(
        &["--plan", "fre"],
        2,
        "plans.yaml: plan \"fre\" is not in the config; did you mean \"free\"?",
    );
    folder.fails(
        &["--plan", "enterprise"],
        2,
        "is not in the config; there are free, paid",
    );
    folder.fails(
        &["--format", "combind"],
        2,
        "--format: \"combind\" is no format; write combined",
    );
    folder.fails(&["--format", "$a$b"], 2, "nothing stands between $a and $b");
    folder.fails(&["--cost", "none"], 2, "--cost: \"none\" is no cost");
    folder.fails(&["--time", "$when"], 2, "$when is no field of this log");
    folder.fails(
        &["--svg", "/nowhere/chart.svg"],
        1,
        "/nowhere/chart.svg cannot be written: No such file",
    );
    folder.fails(&["--key", "$remote_user"], 1, "has no request to replay: ");
    folder.put("plans.yaml", b"plans: {}");
    let output = folder.run(&[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    std::fs::remove_file(folder.0.path().join("access.log")).unwrap();
    folder.put("plans.yaml", PLANS.as_bytes());
    folder.fails(&[], 1, "access.log cannot be read: No such file");
}

/// Names of clients are anyone's to choose.
#[test]
fn charts_and_pages_are_written_and_escape_what_comes_from_the_log() {
    let folder = Folder::new();
    let hostile = "<script>alert(1)</script>\u{1b}[2J\"'&";
    folder.put("access.log", line(hostile, 1, "/").repeat(4).as_bytes());
    let text = folder.prints(&["--svg", "chart.svg", "--html", "report.html"]);
    assert!(
        !text.contains('\u{1b}') && text.contains("\\u{1b}"),
        "{text}"
    );
    let (svg, html) = (folder.text("chart.svg"), folder.text("report.html"));
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
        let (open, close) = (
            html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count(),
            html.matches(&format!("</{tag}>")).count(),
        );
        assert_eq!(open, close, "{tag}");
    }
}

#[test]
fn the_manual_shows_what_is_printed() {
    let blocks = page_blocks("docs/simulate.md");
    let folder = Folder::new();
    let block = |info: &str| {
        blocks
            .iter()
            .find(|(found, _)| found == info)
            .map(|(_, text)| text.clone())
            .unwrap()
    };
    folder.put("tollgate.yaml", block("yaml").as_bytes());
    folder.put("access.log", block("log").as_bytes());
    let (command, shown) = block("console")
        .split_once('\n')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let words: Vec<&str> = command
        .strip_prefix("$ tollgate ")
        .unwrap()
        .split(' ')
        .map(|word| word.trim_matches('\''))
        .collect();
    let output = tollgate()
        .args(words)
        .current_dir(folder.0.path())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), shown, "{output:?}");
}
