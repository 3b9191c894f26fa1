//! The rules and the dashboard in the chart: the same as those of deploy/, about the scrapes of their release.

use serde_json::{Value, json};

use super::{RULES, TESTS, promtool, rules, yaml};
use crate::support::manifests::{documents, of_kind, read, render, render_as, root};

const MONITORED: &str = "{ store: { url: 'redis://redis' }, serviceMonitor: { enabled: true }, prometheusRule: { enabled: true } }";
/// Names of releases: the chart's own, one without it, and one with a dash.
const RELEASES: [&str; 3] = ["tollgate", "edge", "payments-limits"];

/// Stand for labels of an alert about one replica, and of one about a release.
const INSTANCE: &str = "THE-INSTANCE";
const ALERT: &str = "THE-ALERT";

/// The labels that the scrapes of a release have by Prometheus' operator: those of its alerts, and all others.
struct Scrapes {
    job: String,
    namespace: String,
    others: Vec<(&'static str, String)>,
}

impl Scrapes {
    /// As the operator makes them of the ServiceMonitor and the one Service that it selects.
    fn of(text: &str) -> Self {
        let monitor = of_kind(text, "ServiceMonitor");
        let selected = monitor["spec"]["selector"]["matchLabels"]
            .as_object()
            .unwrap();
        let has = |service: &Value| {
            selected
                .iter()
                .all(|(name, value)| service["metadata"]["labels"][name] == *value)
        };
        let services = documents(text)
            .into_iter()
            .filter(|document| document["kind"] == "Service" && has(document));
        let [service] = services
            .collect::<Vec<_>>()
            .try_into()
            .unwrap_or_else(|found| panic!("{found:?}"));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let label = text(&monitor["spec"]["jobLabel"]);
        let others = [
            ("service", text(&service["metadata"]["name"])),
            ("endpoint", text(&monitor["spec"]["endpoints"][0]["port"])),
            ("container", "tollgate".to_owned()),
            ("pod", "tollgate-7c9-x2x".to_owned()),
        ];
        Self {
            job: text(&service["metadata"]["labels"][&label]),
            namespace: text(&service["metadata"]["namespace"]),
            others: others.into(),
        }
    }

    /// The tests of the rules, with these labels. `exact`: the rules name job and namespace.
    fn tests(&self, exact: bool) -> String {
        let Self { job, namespace, .. } = self;
        let of = |wanted: fn(&str, &str) -> String| {
            self.others
                .iter()
                .map(|(name, value)| wanted(name, value))
                .collect::<String>()
        };
        let in_series = format!(
            "job=\"{job}\",namespace=\"{namespace}\"{}",
            of(|name, value| format!(",{name}=\"{value}\""))
        );
        let of_alert = format!("job: {job}, namespace: {namespace}");
        let of_instance = format!(
            "instance: \"a:9464\", {of_alert}{}",
            of(|name, value| format!(", {name}: {value}"))
        );
        let written = read(TESTS).replace("job=\"tollgate\"", &in_series);
        let marked = written
            .replace("instance: \"a:9464\", job: tollgate", INSTANCE)
            .replace("job: tollgate", ALERT);
        // What is absent has the labels that the rule names by a value.
        let absent = if exact {
            format!("severity: critical, {ALERT} }}")
        } else {
            "severity: critical }".to_owned()
        };
        marked
            .replace("severity: critical }", &absent)
            .replace(INSTANCE, &of_instance)
            .replace(ALERT, &of_alert)
    }
}

/// Runs rules with the scrapes of a release.
fn tried(rules: &Value, scrapes: &Scrapes, exact: bool) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // JSON is YAML.
    std::fs::write(place("alerts.yaml"), rules.to_string()).unwrap();
    std::fs::write(place("alerts.test.yaml"), scrapes.tests(exact)).unwrap();
    promtool(&["test", "rules", &place("alerts.test.yaml")])
}

#[test]
fn every_alert_fires_and_ends_for_a_release_of_any_name() {
    let rendered = RELEASES.map(|release| render_as(release, MONITORED).unwrap());
    let scrapes = rendered.each_ref().map(|text| Scrapes::of(text));
    let by_hand = json!({ "groups": yaml(RULES)["groups"] });
    for (text, own) in rendered.iter().zip(&scrapes) {
        let rules = of_kind(text, "PrometheusRule")["spec"].clone();
        tried(&rules, own, true).unwrap_or_else(|error| panic!("{}: {error}", own.job));
        // Those of another release are not its business, though it is in the same Prometheus.
        let other = scrapes.iter().find(|other| other.job != own.job).unwrap();
        tried(&rules, other, true).unwrap_err();
        let elsewhere = Scrapes {
            job: own.job.clone(),
            namespace: "elsewhere".to_owned(),
            others: own.others.clone(),
        };
        tried(&rules, &elsewhere, true).unwrap_err();
        // Rules that are loaded without the chart find the scrapes of every release.
        tried(&by_hand, own, false).unwrap_or_else(|error| panic!("{}: {error}", own.job));
    }
}

#[test]
fn the_rules_and_the_dashboard_of_the_chart_are_those_of_deploy() {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana/tollgate.json")).unwrap();
    for (copy, expected) in [
        ("alerts.yaml", read(RULES)),
        ("dashboard.json", format!("{dashboard}\n")),
    ] {
        let place = format!("deploy/helm/tollgate/files/{copy}");
        if std::fs::read_to_string(root().join(&place)).ok().as_ref() != Some(&expected) {
            std::fs::write(root().join("target").join(copy), expected).unwrap();
            panic!("{place} is another one: cp target/{copy} {place}");
        }
    }
    let text =
        render("{ store: { url: 'redis://redis' }, dashboard: { enabled: true }, configCheck: { enabled: false } }").unwrap();
    let found = documents(&text)
        .into_iter()
        .find(|document| document["metadata"]["labels"]["grafana_dashboard"] == "1");
    let shown = found.unwrap()["data"]["tollgate.json"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), dashboard);
}

/// By their names and their runbooks, which lie where the values say.
#[test]
fn a_release_has_all_alerts_with_the_runbooks_of_its_operator() {
    let values = MONITORED.replace(
        "prometheusRule: {",
        "prometheusRule: { runbooks: 'https://wiki.example.com/limits',",
    );
    let spec = of_kind(&render_as("edge", &values).unwrap(), "PrometheusRule")["spec"].clone();
    let made = spec["groups"][0]["rules"].as_array().unwrap().clone();
    assert_eq!(made.len(), rules().len());
    for (made, written) in made.iter().zip(rules()) {
        assert_eq!(
            (&made["alert"], &made["labels"]),
            (&written["alert"], &written["labels"])
        );
        let anchor = written["alert"].as_str().unwrap().to_lowercase();
        assert_eq!(
            made["annotations"]["runbook_url"],
            format!("https://wiki.example.com/limits#{anchor}")
        );
        let expression = made["expr"].as_str().unwrap();
        let selectors = expression.matches('{').count();
        assert_eq!(
            expression
                .matches("job=\"edge-tollgate\",namespace=\"default\"")
                .count(),
            selectors,
            "{expression}"
        );
    }
}
