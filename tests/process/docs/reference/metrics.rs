//! The table of metrics, compared with the code and with a scrape.

use std::collections::BTreeSet;

use super::{PLAN, documented_metrics};
use crate::process::docs::markdown::root;
use crate::process::tidy::sources;
use crate::support::http::get;
use crate::support::server::Server;

#[test]
fn every_metric_has_its_row_and_every_row_its_metric() {
    let mut names = BTreeSet::new();
    let mut folders = ["http", "limiter"]
        .map(|folder| root().join("src/server").join(folder))
        .to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).unwrap();
            let code = source.split("#[cfg(test)]").next().unwrap();
            for (prefix, quoted) in [("tollgate_", "\"tollgate_"), ("process_", "\"process_")] {
                let found = code
                    .split(quoted)
                    .skip(1)
                    .filter_map(|rest| rest.split('"').next());
                names.extend(found.map(|name| format!("{prefix}{name}")));
            }
        }
    }
    assert!(names.len() > 20, "{names:?}");
    let documented: BTreeSet<String> = documented_metrics()
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(documented, names);
}

#[test]
fn metrics_have_the_labels_of_their_rows() {
    let server = Server::start(
        PLAN,
        &[
            "--set",
            "listen.http=127.0.0.1:0",
            "--store",
            "redis://127.0.0.1:1",
        ],
    );
    let scraped = get(&server.http(), "/metrics").body;
    let mut compared = BTreeSet::new();
    for line in scraped.lines().filter(|line| !line.starts_with('#')) {
        let sample = line.rsplit_once(' ').unwrap().0;
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let suffixes = ["_bucket", "_sum", "_count"];
        let name = suffixes
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix))
            .unwrap_or(name);
        let found: Vec<&str> = labels
            .split("=\"")
            .filter_map(|part| part.rsplit(['"', ',']).next())
            .collect();
        let found: Vec<&str> = found
            .into_iter()
            .filter(|label| !label.is_empty() && *label != "le" && *label != "}")
            .collect();
        let documented = documented_metrics()
            .into_iter()
            .find(|(known, _)| known == name);
        let (_, labels) = documented.unwrap_or_else(|| panic!("{name} has no row"));
        assert_eq!(found, labels, "{line}");
        compared.insert(name.to_owned());
    }
    assert!(compared.len() > 15, "{compared:?}");
}

/// So that none stays 0 for ever, or counts something else.
#[test]
fn every_metric_has_a_value_that_a_test_expects() {
    let tests = sources("tests", &["rs"]).into_iter();
    let tests: String = tests
        .filter(|source| !source.path.starts_with("tests/process/docs/"))
        .map(|source| source.text)
        .collect();
    let ends = |rest: &str| {
        let suffixes = ["_bucket", "_sum", "_count"];
        let suffix = suffixes.iter().find_map(|suffix| rest.strip_prefix(suffix));
        !suffix
            .unwrap_or(rest)
            .starts_with(|letter: char| letter.is_alphanumeric() || letter == '_')
    };
    let mut unread = documented_metrics();
    unread.retain(|(name, _)| !tests.split(name).skip(1).any(ends));
    assert!(unread.is_empty(), "no test reads {unread:?}");
}
