//! The config within the chart's values: any that the program takes, and none with an error is rolled out.

use std::collections::BTreeSet;
use std::process::Output;

use serde_json::Value;

use super::{checked, load};
use crate::process::docs::known_fields;
use crate::support::manifests::{config_of, documents, is_hook, manifests, of_kind, read, render};
use crate::support::server::tollgate;

/// The config of the manual that has everything.
fn everything() -> String {
    let page = read("docs/configuration.md");
    let section = page.split("## A config with everything").nth(1).unwrap();
    section
        .split("```yaml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap()
        .to_owned()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// The paths of all fields, as the manual writes them.
fn fields_of(config: &str) -> BTreeSet<String> {
    let text = manifests(&["json"], &format!("kind: Config\n{config}")).unwrap();
    let mut found = BTreeSet::new();
    walk(
        "",
        &serde_json::from_str::<Value>(&text).unwrap()[0],
        &mut found,
    );
    found.remove("kind");
    found
}

fn walk(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    let named_by_users = ["plans", "envoy.domains"].contains(&path);
    let items = value
        .as_array()
        .filter(|items| items.iter().any(Value::is_object));
    if named_by_users || items.is_some() || !value.is_object() {
        found.insert(path.to_owned());
    }
    for item in items.into_iter().flatten() {
        walk(&format!("{path}[]"), item, found);
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let name = if named_by_users { "NAME" } else { name };
        walk([path, name].join(".").trim_start_matches('.'), inner, found);
    }
}

#[test]
fn the_chart_takes_every_field_of_the_config() {
    let of_sidecar = everything();
    // Of these, a config has either. Nor can it have Redis and holds.
    let of_holds = |field: &String| field.starts_with("plans.NAME.holds");
    let with_subjects =
        |field: &String| !of_holds(field) && !["check.key", "check.plan"].contains(&field.as_str());
    let without_subjects =
        |field: &String| !of_holds(field) && !field.starts_with("check.subjects");
    let known = |has: &dyn Fn(&String) -> bool| {
        known_fields()
            .into_iter()
            .filter(has)
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(
        fields_of(&of_sidecar),
        known(&without_subjects),
        "the manual's config with everything"
    );
    let of_fleet = of_sidecar.replace("127.0.0.1:50051", "0.0.0.0:50051");
    let subjects = "subjects: [ { key: [\"header:x\"], plan: [\"default:free\"], cost: [\"default:1\"], shard: [\"header:s\"], optional: true } ]";
    let (before, key) = of_fleet.split_once("\n  key: [").unwrap();
    let (_, after) = key.split_once("\n  trusted_proxies").unwrap();
    let of_subjects = format!("{before}\n  {subjects}\n  trusted_proxies{after}");
    for (more, config, fields) in [
        (
            "fleet: { enabled: false }",
            of_sidecar,
            known(&without_subjects),
        ),
        ("", of_fleet, known(&without_subjects)),
        ("", of_subjects, known(&with_subjects)),
    ] {
        let text = render(&format!("{more}\nconfig:\n{}", indented(&config))).unwrap();
        checked(&text).unwrap();
        let rendered = config_of(&text);
        assert_eq!(fields_of(&rendered), fields);
        // And nothing else is meant by it.
        assert_eq!(
            format!("{:?}", load(&rendered)),
            format!("{:?}", load(&config))
        );
    }
    let with_holds = "
store: { url: \"memory:\" }
plans:
  jobs: { limits: [ { quota: 5, algorithm: concurrency } ], holds: { ttl: 30s, max_ttl: 10m, on_expiry: release, remember: 5m, max_open: 9, max_ids: 99 } }
";
    let more = "fleet: { enabled: false }\nconfig:";
    let text = render(&format!("{more}{}", indented(with_holds))).unwrap();
    checked(&text).unwrap();
    let rendered = config_of(&text);
    assert!(fields_of(&rendered).is_superset(&known(&of_holds)));
    assert_eq!(
        format!("{:?}", load(&rendered).plans),
        format!("{:?}", load(with_holds).plans)
    );
}

/// What the chart makes of other values stays, but for what the config says.
#[test]
fn a_field_of_the_config_beats_what_the_chart_makes() {
    let rendered = |config: &str, more: &str| {
        let values =
            format!("{{ store: {{ url: 'redis://redis:6379/0' }}, config: {{ {config} }}{more} }}");
        load(&config_of(
            &render(&values).unwrap_or_else(|error| panic!("{error}")),
        ))
    };
    let made = rendered("", "");
    let status = rendered(
        "status: { page: true }, listen: { http: '127.0.0.1:8080', http_hosts: [limits.internal] }",
        "",
    );
    assert!(
        status.listen.http.is_some()
            && status.listen.grpc == made.listen.grpc
            && status.listen.admin == made.listen.admin
    );
    for more in ["", ", fleet: { enabled: false }"] {
        assert!(rendered("", more).workers.is_some(), "one per core{more}");
        assert_eq!(rendered("workers: 0", more).workers, None);
    }
    let other = rendered(
        "plans: { other: { unlimited: true } }, listen: { lame_duck: 0s }, store: { url: 'redis://r' }",
        "",
    );
    assert_eq!(other.plans.len(), 1);
    assert_eq!(other.listen.lame_duck, std::time::Duration::ZERO);
    assert_eq!(other.store.url.to_string(), "redis://r:6379");
    // The probes ask there.
    let own = rendered("listen: { grpc: ['plaintext:0.0.0.0:50051'] }", "");
    assert_eq!(own.listen.grpc, made.listen.grpc);
}

/// The Service, the scrapes and the probes would find nothing.
#[test]
fn addresses_that_the_service_does_not_reach_are_refused() {
    for (config, more, said) in [
        (
            "grpc: ['127.0.0.1:50051']",
            "",
            "config.listen.grpc has no address that other pods reach at ports.grpc, which is 50051",
        ),
        (
            "grpc: ['plaintext:0.0.0.0:50052']",
            "",
            "leave it out, or write 0.0.0.0:50051",
        ),
        (
            "metrics: ''",
            "",
            "config.listen.metrics has no address that other pods reach at ports.metrics, which is 9464; leave it out, or write plaintext:0.0.0.0:9464",
        ),
        (
            "metrics: '0.0.0.0:9464'",
            ", tls: { secretName: t }",
            "config.listen.metrics is encrypted by listen.tls, and scrapes and the readiness probe ask without; leave it out, or write plaintext:0.0.0.0:9464",
        ),
        (
            "metrics: '[::]:9464', tls: { cert_file: /files/a, key_file: /files/b }",
            "",
            "write plaintext:[::]:9464",
        ),
        (
            "http: 'localhost:8080'",
            ", http: { enabled: true }",
            "config.listen.http has no address",
        ),
    ] {
        let values = format!(
            "{{ store: {{ url: 'redis://redis:6379/0' }}, config: {{ listen: {{ {config} }} }}{more} }}"
        );
        let error = render(&values).expect_err(&values);
        assert!(error.contains(said), "{values}: {error}");
    }
}

/// Plans are reloaded from the ConfigMap, so a wrong config has to be found before that is written.
#[test]
fn a_config_with_an_error_ends_an_upgrade_before_anything_changes() {
    let limits =
        |quota: u32| format!("plans: {{ free: {{ limits: [{{ quota: {quota}, window: 1m }}] }} }}");
    for (config, said) in [
        (limits(5), None),
        (limits(0), Some("quota")),
        ("stauts: { page: true }".to_owned(), Some("stauts")),
    ] {
        let image = "image: { repository: registry.example.com/tollgate }";
        let text = render(&format!(
            "{{ store: {{ url: 'redis://redis' }}, {image}, config: {{ {config} }} }}"
        ))
        .unwrap();
        let hooks: Vec<Value> = documents(&text).into_iter().filter(is_hook).collect();
        let [read, job] = hooks.as_slice() else {
            panic!("{hooks:?}")
        };
        for hook in [read, job] {
            assert_eq!(
                hook["metadata"]["annotations"]["helm.sh/hook"],
                "pre-install,pre-upgrade"
            );
        }
        // Made first.
        assert_eq!(
            (
                &read["kind"],
                &read["metadata"]["annotations"]["helm.sh/hook-weight"]
            ),
            (&"ConfigMap".into(), &"-1".into())
        );
        assert_eq!(read["data"]["tollgate.yaml"], config_of(&text).as_str());
        let pod = &job["spec"]["template"]["spec"];
        assert_eq!(
            pod["volumes"][0]["configMap"]["name"],
            read["metadata"]["name"]
        );
        let output = judged_by(job, &config_of(&text));
        assert_eq!(output.status.success(), said.is_none(), "{output:?}");
        assert!(
            said.is_none_or(|said| String::from_utf8_lossy(&output.stderr).contains(said)),
            "{output:?}"
        );
    }
}

/// What the container of the Job says of the config, with its arguments and its variables.
fn judged_by(job: &Value, config: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("tollgate.yaml"), config).unwrap();
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    let words = container["args"].as_array().unwrap().iter();
    let words = words.map(|word| word.as_str().unwrap());
    let mut command = tollgate();
    command.args(words.map(|word| word.replace("/etc/tollgate", folder.path().to_str().unwrap())));
    for variable in container["env"].as_array().into_iter().flatten() {
        let name = &variable["name"];
        let value = &variable["value"];
        command.env(name.as_str().unwrap(), value.as_str().unwrap());
    }
    command.output().unwrap()
}

/// Redis has another URL than the values name, as one that comes from a Secret; an authority goes with that one alone.
#[test]
fn the_check_judges_the_config_with_the_variables_that_beat_it() {
    for (name, value, said) in [
        ("TOLLGATE_STORE__URL", "rediss://redis", None),
        ("TOLLGATE_STORE__URL", "redis://redis", Some("store.tls")),
        ("TOLLGATE_WORKERS", "many", Some("workers")),
    ] {
        let text = render(&format!(
            "{{ store: {{ url: 'redis://redis', caSecret: {{ name: ca }} }}, extraEnv: [{{ name: {name}, value: '{value}' }}] }}"
        ))
        .unwrap();
        let output = judged_by(&of_kind(&text, "Job"), &config_of(&text));
        assert_eq!(output.status.success(), said.is_none(), "{output:?}");
        assert!(
            said.is_none_or(|said| String::from_utf8_lossy(&output.stderr).contains(said)),
            "{output:?}"
        );
    }
}

/// What the release itself makes is not there before an install. The Job would wait for it, and the pods have to.
#[test]
fn the_check_alone_does_without_a_secret_that_is_not_there() {
    let text = render(
        "{ store: { url: 'redis://redis' },
           extraEnv: [{ name: A, valueFrom: { secretKeyRef: { name: s, key: k } } }, { name: B, valueFrom: { configMapKeyRef: { name: c, key: k } } },
             { name: C, value: c }, { name: D, valueFrom: { fieldRef: { fieldPath: spec.nodeName } } }],
           extraEnvFrom: [{ secretRef: { name: s } }, { configMapRef: { name: c }, prefix: P }] }",
    )
    .unwrap();
    checked(&text).unwrap();
    let variables = |kind: &str| {
        let container = of_kind(&text, kind)["spec"]["template"]["spec"]["containers"][0].clone();
        format!("{} {}", container["env"], container["envFrom"])
    };
    let of_check = variables("Job");
    let of_pods = variables("Deployment");
    assert_eq!(
        of_check.matches("\"optional\":true").count(),
        4,
        "{of_check}"
    );
    assert_eq!(of_check.replace(",\"optional\":true", ""), of_pods);
}

/// Its pod is none of the fleet's. No registry has the image by default: an install would wait for it, and never tell what to do.
#[test]
fn the_check_is_apart_from_the_fleet_and_does_not_hold_up_an_install_without_an_image() {
    let text = render("store: { url: 'redis://redis' }").unwrap();
    let all = documents(&text);
    let job = all
        .iter()
        .find(|document| document["kind"] == "Job")
        .unwrap();
    assert_eq!(
        job["metadata"]["annotations"]["helm.sh/hook"],
        "pre-upgrade"
    );
    let labels = job["spec"]["template"]["metadata"]["labels"]
        .as_object()
        .unwrap();
    let selectors = all.iter().flat_map(|document| {
        let spec = &document["spec"];
        [
            spec["selector"].clone(),
            spec["selector"]["matchLabels"].clone(),
            spec["podSelector"]["matchLabels"].clone(),
        ]
    });
    let mut selected = 0;
    for selector in selectors.filter(|selector| selector["app.kubernetes.io/name"].is_string()) {
        assert!(
            selector
                .as_object()
                .unwrap()
                .iter()
                .any(|(name, value)| labels.get(name) != Some(value)),
            "{selector}"
        );
        selected += 1;
    }
    assert!(selected >= 5, "{selected}");
}
