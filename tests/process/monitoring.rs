//! deploy/prometheus and deploy/grafana: every alert fires and ends, has its runbook, and every query is about metrics that a
//! server really has.

mod releases;

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::support::authority::Authority;
use crate::support::http::get;
use crate::support::manifests::{manifests, read, root};
use crate::support::server::{Server, field};

const RULES: &str = "deploy/prometheus/alerts.yaml";
const TESTS: &str = "deploy/prometheus/alerts.test.yaml";
const PLANS: &str = "plans: { free: { limits: [ { quota: 2, window: 1d } ], candidate: strict }, strict: { limits: [ { quota: 1, window: 1d } ] } }";
/// What names of metrics begin with.
const OURS: [&str; 2] = ["tollgate_", "process_"];
/// Labels that Prometheus adds, and the one of its histograms.
const OF_PROMETHEUS: [&str; 4] = ["namespace", "job", "instance", "le"];

/// Runs promtool. Errors: what it says.
fn promtool(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("promtool")
        .args(arguments)
        .current_dir(root())
        .output();
    let output = output.expect("promtool is needed by this test; tests/run installs prometheus");
    let said = [output.stdout, output.stderr].concat();
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8(said).unwrap())
    }
}

/// A file of YAML that is not a manifest.
fn yaml(path: &str) -> Value {
    let text = manifests(&["json"], &format!("kind: File\n{}", read(path))).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()[0].clone()
}

fn rules() -> Vec<Value> {
    let file = yaml(RULES);
    let groups = file["groups"].as_array().unwrap();
    groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is not a text"))
        .to_owned()
}

/// The queries of all panels, with what Grafana puts in place of its variables.
fn dashboard_queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/tollgate.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries = targets.map(|target| text(&target["expr"]).replace("$__rate_interval", "1m"));
    queries
        .map(|query| query.replace("$job", ".*").replace("$plan", ".*"))
        .collect()
}

#[test]
fn the_rules_are_sound_and_every_alert_fires_and_ends() {
    promtool(&["check", "rules", RULES]).unwrap();
    promtool(&["test", "rules", TESTS]).unwrap();
    let cases = yaml(TESTS);
    for rule in rules() {
        let alert = text(&rule["alert"]);
        let case = cases["tests"]
            .as_array()
            .unwrap()
            .iter()
            .find(|case| case["name"] == rule["alert"]);
        assert_eq!(
            rule["annotations"]["runbook_url"],
            format!("docs/operations/runbooks.md#{}", alert.to_lowercase())
        );
        let checks = case.unwrap_or_else(|| panic!("{alert} has no test"))["alert_rule_test"]
            .as_array()
            .unwrap()
            .clone();
        assert!(
            checks
                .iter()
                .all(|check| check["alertname"] == rule["alert"]),
            "{alert}"
        );
        let fires: Vec<bool> = checks
            .iter()
            .map(|check| !check["exp_alerts"].as_array().unwrap().is_empty())
            .collect();
        assert_eq!(
            fires,
            [false, true, false],
            "{alert} is quiet, fires and ends"
        );
    }
}

#[test]
fn every_alert_has_its_runbook_and_every_runbook_an_alert() {
    let alerts: BTreeSet<String> = rules().iter().map(|rule| text(&rule["alert"])).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    let page = read("docs/operations/runbooks.md");
    let sections: Vec<&str> = page.split("\n## ").skip(1).collect();
    let named: BTreeSet<String> = sections
        .iter()
        .map(|section| section.lines().next().unwrap().to_owned())
        .collect();
    assert_eq!(named, alerts);
    for section in sections {
        for part in ["**What it means**", "**Look at**", "**Do**"] {
            assert!(section.contains(part), "{part} is missing: {section}");
        }
    }
}

/// Grafana does not say of a query with an error more than that there is no data.
#[test]
fn every_query_of_the_dashboard_is_promql() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    let check = |queries: &[String]| {
        let record = |query: &String| {
            format!(
                "      - {{ record: a, labels: {{ n: x }}, expr: {} }}\n",
                serde_json::json!(query)
            )
        };
        let of = |(place, query)| record(query).replace("n: x", &format!("n: x{place}"));
        let rules: String = queries.iter().enumerate().map(of).collect();
        std::fs::write(
            file.path(),
            format!("groups:\n  - name: dashboard\n    rules:\n{rules}"),
        )
        .unwrap();
        promtool(&["check", "rules", file.path().to_str().unwrap()])
    };
    let queries = dashboard_queries();
    assert!(
        queries.len() > 25 && queries.iter().all(|query| !query.contains('$')),
        "{queries:?}"
    );
    check(&queries).unwrap();
    check(&["sum(rate(tollgate_degraded[1m])".to_owned()]).unwrap_err();
}

/// The samples of a server with all that makes metrics: Redis, TLS and admin.
fn samples() -> Vec<String> {
    let authority = Authority::new();
    authority.sign("server", "localhost");
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        "listen.metrics=plaintext:127.0.0.1:0".to_owned(),
        format!("listen.tls.cert_file={}", authority.text("server.crt")),
        format!("listen.tls.key_file={}", authority.text("server.key")),
        format!(
            "listen.admin=unix:{}",
            folder.path().join("admin.sock").to_str().unwrap()
        ),
    ];
    let mut flags = vec!["--store", "redis://127.0.0.1:1"];
    flags.extend(settings.iter().flat_map(|setting| ["--set", setting]));
    let server = Server::start(PLANS, &flags);
    let metrics = field(&server.start_line(), "metrics");
    let scraped = get(&metrics, "/metrics").body;
    scraped
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').unwrap().0.to_owned())
        .collect()
}

/// Names of labels in `{a="b",c="d"}`, or in `{a="b",c=~"d"}`.
fn labels(within: &str) -> BTreeSet<String> {
    let names = within
        .split('"')
        .step_by(2)
        .map(|part| part.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// What a query says of metrics that are not there. `None` when all is well.
fn wrong_with(query: &str, samples: &[String]) -> Option<String> {
    let mut known: BTreeSet<String> = OF_PROMETHEUS.map(str::to_owned).into();
    for (place, _) in OURS.iter().flat_map(|prefix| query.match_indices(prefix)) {
        let rest = &query[place..];
        let name: String = rest
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || *c == '_')
            .collect();
        let mut of_name = samples
            .iter()
            .filter_map(|sample| sample.strip_prefix(name.as_str()));
        let mut of_name = of_name
            .by_ref()
            .filter(|rest| rest.is_empty() || rest.starts_with('{'))
            .peekable();
        if of_name.peek().is_none() {
            return Some(format!("there is no {name}"));
        }
        let found: BTreeSet<String> = of_name.flat_map(labels).collect();
        let asked = rest[name.len()..]
            .strip_prefix('{')
            .map(|rest| labels(rest.split('}').next().unwrap()))
            .unwrap_or_default();
        let unknown = asked
            .iter()
            .find(|label| !found.contains(*label) && !OF_PROMETHEUS.contains(&label.as_str()));
        if let Some(label) = unknown {
            return Some(format!("{name} has no label {label}"));
        }
        known.extend(found);
    }
    let grouped = query
        .split("by (")
        .skip(1)
        .flat_map(|rest| rest.split(')').next().unwrap().split(", "));
    let unknown = grouped.into_iter().find(|label| !known.contains(*label));
    unknown.map(|label| format!("nothing here has a label {label}"))
}

#[test]
fn every_query_of_dashboard_and_rules_names_metrics_and_labels_that_a_server_has() {
    let samples = samples();
    assert!(samples.len() > 60, "{samples:?}");
    let queries: Vec<String> = rules()
        .iter()
        .map(|rule| text(&rule["expr"]))
        .chain(dashboard_queries())
        .collect();
    for query in &queries {
        assert_eq!(wrong_with(query, &samples), None, "{query}");
        assert!(
            OURS.iter().any(|prefix| query.contains(prefix)) || query.contains("up{"),
            "{query}"
        );
    }
    for (query, wrong) in [
        (
            "rate(tollgate_denials_total[1m])",
            "there is no tollgate_denials_total",
        ),
        (
            "tollgate_decisions_total{key=\"alice\"}",
            "tollgate_decisions_total has no label key",
        ),
        (
            "sum by (job, key) (tollgate_decisions_total)",
            "nothing here has a label key",
        ),
        (
            "tollgate_store_duration_seconds",
            "there is no tollgate_store_duration_seconds",
        ),
    ] {
        assert_eq!(wrong_with(query, &samples).as_deref(), Some(wrong));
    }
}
