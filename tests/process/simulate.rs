//! `tollgate simulate` as a user runs it: formats, reports, broken logs, exit codes.

mod calendar;
mod logs;
mod overrides;
mod reports;

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

    fn content(&self, name: &str) -> String {
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

    fn text_report(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        assert!(
            output.stderr.is_empty(),
            "no bar is drawn where there is no terminal: {output:?}"
        );
        String::from_utf8(output.stdout).unwrap()
    }

    fn json_report(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text_report(&[&["--output", "json"], arguments].concat()))
            .unwrap()
    }

    fn assert_fails(&self, arguments: &[&str], code: i32, sentence: &str) {
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
fn a_plan_with_a_concurrency_limit_is_refused_by_name() {
    let folder = Folder::new();
    let jobs = "plans: { jobs: { limits: [ { quota: 5, algorithm: concurrency } ] } }\n";
    folder.put("plans.yaml", jobs.as_bytes());
    let line =
        b"192.0.2.1 - - [25/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 12 \"-\" \"curl\"\n";
    folder.put("access.log", line);
    let output = folder.run(&["--plan", "jobs"]);
    let told = String::from_utf8(output.stderr).unwrap();
    let expected =
        "plan jobs has a concurrency limit, and a log has no durations; leave the plan out";
    assert!(
        output.status.code() == Some(2) && told.contains(expected),
        "{told}"
    );
}

#[test]
fn a_log_is_replayed_and_the_report_printed() {
    let folder = Folder::new();
    folder.put("access.log", log().as_bytes());
    let report = folder.json_report(&[]);
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
    let text = folder.text_report(&[]);
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
    let report = folder.json_report(&[]);
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
    let report = folder.json_report(&["--format", "json", "--key", "ip"]);
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
fn two_configs_are_shown_side_by_side() {
    let folder = Folder::new();
    folder.put("old.yaml", PLANS.replace("quota: 2", "quota: 3").as_bytes());
    folder.put("access.log", log().as_bytes());
    let report = folder.json_report(&["--compare", "old.yaml"]);
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
    let text = folder.text_report(&["--compare", "old.yaml"]);
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
    folder.assert_fails(
        &["--compare", "old.yaml"],
        2,
        "old.yaml: plan \"free\" is not in the config; there are gratis",
    );
}

#[test]
fn what_is_wrong_is_said_in_a_sentence_with_the_right_exit_code() {
    let folder = Folder::new();
    let put = |text: &str| folder.put("access.log", text.as_bytes());
    put("");
    folder.assert_fails(&[], 1, "access.log is empty");
    put(&"x".repeat(3 << 20));
    folder.assert_fails(
        &[],
        1,
        "access.log begins with a line of more than 1 MiB; a line has 64 KiB at most",
    );
    put("\n\n");
    folder.assert_fails(&[], 1, "has no request to replay");
    put(&"nonsense\n".repeat(3));
    folder.assert_fails(
        &[],
        2,
        "access.log: none of the first 3 lines can be read; line 1: it ends before the format does",
    );
    folder.assert_fails(
        &["--format", "json"],
        2,
        "no field of the log is named as times are",
    );
    put(&log());
    folder.assert_fails(
        &["--key", "$remote_adr"],
        2,
        "--key: $remote_adr is not a field of this log; did you mean $remote_addr?",
    );
    folder.assert_fails(
        &["--plan", "fre"],
        2,
        "plans.yaml: plan \"fre\" is not in the config; did you mean \"free\"?",
    );
    folder.assert_fails(
        &["--plan", "enterprise"],
        2,
        "is not in the config; there are free, paid",
    );
    folder.assert_fails(
        &["--format", "combind"],
        2,
        "--format: \"combind\" is not a format; write combined",
    );
    folder.assert_fails(&["--format", "$a$b"], 2, "nothing stands between $a and $b");
    folder.assert_fails(&["--cost", "none"], 2, "--cost: \"none\" is not a cost");
    folder.assert_fails(&["--time", "$when"], 2, "$when is not a field of this log");
    folder.assert_fails(
        &["--svg", "/nowhere/chart.svg"],
        1,
        "/nowhere/chart.svg cannot be written: No such file",
    );
    folder.assert_fails(&["--key", "$remote_user"], 1, "has no request to replay: ");
    folder.put("plans.yaml", b"plans: {}");
    let output = folder.run(&[]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    std::fs::remove_file(folder.0.path().join("access.log")).unwrap();
    folder.put("plans.yaml", PLANS.as_bytes());
    folder.assert_fails(&[], 1, "access.log cannot be read: No such file");
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
