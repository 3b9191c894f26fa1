//! Logs for `tollgate simulate`: their formats, compressed ones, plans and costs in them, and lines that cannot be read.

use std::io::Write;

use super::{Folder, line, log};
use crate::support::server::tollgate;

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
        let report = folder.json_report(&["--format", format, "--key", key]);
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
    assert_eq!(folder.json_report(&[])["results"][0]["denied"], 2);
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
    let report = folder.json_report(&[
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
    let text = folder.text_report(&[]);
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
    let report = folder.json_report(&[]);
    assert_eq!(
        (&report["log"]["late"], &report["results"][0]["denied"]),
        (&0.into(), &0.into()),
        "{report}"
    );
    folder.put("access.log", at(&[2, 30, 1]).as_bytes());
    assert_eq!(folder.json_report(&[])["log"]["late"], 1);
    assert!(
        folder
            .text_report(&[])
            .contains("1 lines come more than 10 s, 262,144 lines or 16 MiB of keys late")
    );
}
