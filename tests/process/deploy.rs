//! What deploy/ gives to operators: manifests of Kubernetes, a Compose file and a unit of systemd. They keep the schemas and the
//! level "restricted" of Pod Security, and their configs are valid.

mod config;
mod network;
mod pods;
mod promises;
mod sidecar;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tollgate::config::{Config, Origin, Sources};

use crate::support::authority::Authority;
use crate::support::http::get;
use crate::support::manifests::{config_of, documents, manifests, of_kind, read, render, root};
use crate::support::server::{Server, decide, field, tollgate};

/// Values that reach every branch of the chart's templates.
const VALUES: [&str; 7] = [
    "store: { url: 'redis://redis:6379/0' }",
    "{ store: { url: 'memory:' }, replicas: 1, networkPolicy: { enabled: false }, podDisruptionBudget: { enabled: false } }",
    "{ store: { url: 'rediss://redis:6379/0', username: limits, passwordSecret: { name: s }, caSecret: { name: c } },
       http: { enabled: true }, tls: { secretName: t, requireClientCertificate: true, clientNames: [shop.internal] },
       config: { default_plan: free, deny_cache: { entries: 0 }, store: { deadline: 50ms, tls: { server_name: redis } } } }",
    "{ store: { url: 'redis-cluster://a:6379?node=b:6379' }, tls: { secretName: t }, autoscaling: { enabled: true },
       serviceMonitor: { enabled: true, labels: { release: prometheus } }, prometheusRule: { enabled: true, labels: { a: b } },
       dashboard: { enabled: true, annotations: { grafana_folder: limits } }, service: { headless: false, annotations: { a: b } } }",
    "{ store: { url: 'redis://redis:6379/0' }, listen: { host: '[::]' }, service: { ipFamilyPolicy: PreferDualStack },
       networkPolicy: { callers: [{ namespaceSelector: {} }], scrapers: [], store: [{ ipBlock: { cidr: 10.0.0.0/8 } }],
         dns: { to: [{ namespaceSelector: {} }], ports: [53, 5353] }, egress: [{ ports: [{ port: 4317 }] }] } }",
    "{ store: { url: 'redis://redis:6379/0' }, image: { repository: r.example.com/t, digest: 'sha256:HASH' }, logLevel: debug,
       imagePullSecrets: [{ name: pull }], priorityClassName: high, nodeSelector: { a: b }, tolerations: [{ operator: Exists }],
       affinity: { nodeAffinity: {} }, podLabels: { team: a }, podAnnotations: { c: d }, fullnameOverride: limits,
       plans: { big: { limits: [{ quota: 1000000000000, window: 1h }] } }, config: { workers: 4, check: { ipv6_prefix: 56 } },
       podDisruptionBudget: { minAvailable: 50% }, configCheck: { enabled: false } }",
    "{ store: { url: 'redis://redis:6379/0' }, extraEnv: [{ name: OTEL_SERVICE_NAME, value: limits }], extraVolumes: [{ name: v, emptyDir: {} }],
       extraEnvFrom: [{ secretRef: { name: s } }], extraVolumeMounts: [{ name: v, mountPath: /v }], podDisruptionBudget: { maxUnavailable: 25% } }",
];

fn values() -> impl Iterator<Item = String> {
    VALUES
        .iter()
        .map(|values| values.replace("HASH", &"0".repeat(64)))
}

/// Errors: what is wrong with the manifests.
fn checked(text: &str) -> Result<(), String> {
    manifests(&["validate", "target/tools/schemas"], text)?;
    manifests(&["restricted"], text)?;
    Ok(())
}

fn load(text: &str) -> Config {
    let text = Some((Origin::StandardInput, text.to_owned()));
    let config = Config::load(Sources {
        text: text.clone(),
        ..Sources::default()
    });
    let config = config.unwrap_or_else(|errors| panic!("{errors}\n{text:?}"));
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    config
}

#[test]
fn every_manifest_keeps_the_schemas_and_the_restricted_level_and_has_a_valid_config() {
    let mut all: Vec<String> = values()
        .map(|values| render(&values).unwrap_or_else(|error| panic!("{values}: {error}")))
        .collect();
    all.extend(
        ["base", "example"].map(|folder| {
            manifests(&["build", &format!("deploy/kustomize/{folder}")], "").unwrap()
        }),
    );
    all.push(read("deploy/kubernetes/sidecar.yaml"));
    all.push(sidecar::rendered("{}"));
    all.push(sidecar::rendered(
        "tollgate: { sidecar: { listen: socket }, store: { passwordSecret: { name: s } } }",
    ));
    for text in all {
        checked(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        load(&config_of(&text));
    }
}

/// The check itself: it finds what it is there for.
#[test]
fn a_misspelt_field_and_a_pod_with_too_many_rights_are_found() {
    let sound = read("deploy/kubernetes/sidecar.yaml");
    for (written, broken, found) in [
        (
            "restartPolicy: Always",
            "restartPolcy: Always",
            "restartPolcy",
        ),
        ("replicas: 3", "replicas: three", "/spec/replicas"),
        (
            "kind: Deployment",
            "kind: Deploymint",
            "could not find schema",
        ),
        ("runAsNonRoot: true", "runAsNonRoot: false", "runAsNonRoot"),
        (
            "seccompProfile: { type: RuntimeDefault }",
            "seccompProfile: { type: Unconfined }",
            "seccompProfile",
        ),
        (
            "capabilities: { drop: [ALL] }",
            "capabilities: { add: [NET_ADMIN] }",
            "unrestricted capabilities",
        ),
        (
            "allowPrivilegeEscalation: false",
            "allowPrivilegeEscalation: true",
            "allowPrivilegeEscalation",
        ),
        (
            "automountServiceAccountToken: false",
            "hostNetwork: true",
            "host namespaces",
        ),
    ] {
        assert!(sound.contains(written), "{written}");
        let error = checked(&sound.replacen(written, broken, 1)).unwrap_err();
        assert!(error.contains(found), "{broken}: {error}");
    }
}

/// Beyond the level "restricted": nothing that is written to, and no token of Kubernetes.
#[test]
fn no_container_of_tollgate_writes_to_its_image_or_knows_kubernetes() {
    for values in values() {
        let deployment = of_kind(&render(&values).unwrap(), "Deployment");
        let pod = &deployment["spec"]["template"]["spec"];
        assert_eq!(
            (
                &pod["automountServiceAccountToken"],
                &pod["enableServiceLinks"]
            ),
            (&Value::Bool(false), &Value::Bool(false))
        );
        for container in pod["containers"].as_array().unwrap() {
            assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
            assert!(container["resources"]["limits"]["memory"].is_string());
        }
    }
}

/// A change of plans is taken up while the server runs; one of anything else has to begin a rollout.
#[test]
fn only_what_is_not_reloaded_begins_a_rollout() {
    let template = |more: &str| {
        let text = render(&format!(
            "{{ store: {{ url: 'redis://redis:6379/0' }}{more} }}"
        ))
        .unwrap();
        of_kind(&text, "Deployment")["spec"]["template"].clone()
    };
    let before = template("");
    for same in [
        ", plans: { other: { unlimited: true } }",
        ", config: { default_plan: free }",
        ", config: { overrides: [{ plan: free, key: a, quotas: [{ quota: 5 }] }] }",
        ", config: { envoy: { joint: true } }",
    ] {
        assert_eq!(template(same), before, "{same}");
    }
    for other in [
        ", config: { workers: 3 }",
        ", listen: { lameDuck: 1s }",
        ", config: { store: { deadline: 9ms } }",
    ] {
        assert_ne!(template(other), before, "{other}");
    }
}

#[test]
fn the_kustomization_is_what_the_chart_renders() {
    let rendered =
        render("{ store: { url: 'redis://redis:6379/0' }, configCheck: { enabled: false } }")
            .unwrap();
    let of_helm = [
        "helm.sh/chart:",
        "app.kubernetes.io/managed-by:",
        "app.kubernetes.io/instance:",
        "namespace: default",
    ];
    let kept = rendered.lines().filter(|line| {
        !of_helm
            .iter()
            .any(|words| line.trim_start().starts_with(words))
    });
    let head = "# Made from deploy/helm/tollgate, without what is Helm's. A test compares them, and says how it is made anew.";
    let expected = std::iter::once(head)
        .chain(kept)
        .map(|line| format!("{line}\n"))
        .collect::<String>();
    if read("deploy/kustomize/base/tollgate.yaml") != expected {
        std::fs::write(root().join("target/base.yaml"), expected).unwrap();
        panic!(
            "the chart renders something else: cp target/base.yaml deploy/kustomize/base/tollgate.yaml"
        );
    }
}

/// The commands and paths of the probes, on a server with the config of the chart, whose callers need a certificate.
#[tokio::test]
async fn the_probes_work_where_calls_are_encrypted() {
    let values = "{ store: { url: 'memory:' }, replicas: 1, tls: { secretName: t, requireClientCertificate: true } }";
    let text = render(values).unwrap();
    let authority = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    authority.sign("tls", "localhost");
    let files = authority.text("");
    let place = folder.path().to_str().unwrap();
    let moved = |text: &str| {
        text.replace("/run/secrets/tollgate/tls", &files)
            .replace("/run/tollgate", place)
    };
    let config = moved(&config_of(&text))
        .replace("0.0.0.0:50051", "127.0.0.1:0")
        .replace("0.0.0.0:9464", "127.0.0.1:0");
    let file = folder.path().join("tollgate.yaml");
    std::fs::write(&file, config).unwrap();
    let server = Server::start_configured(&file);
    let deployment = of_kind(&text, "Deployment");
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    for probe in ["startupProbe", "livenessProbe"] {
        let words = container[probe]["exec"]["command"].as_array().unwrap();
        let words: Vec<String> = words
            .iter()
            .skip(1)
            .map(|word| moved(word.as_str().unwrap()))
            .collect();
        let output = tollgate().args(&words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
    let path = container["readinessProbe"]["httpGet"]["path"]
        .as_str()
        .unwrap();
    let line = server.wait_for_line("tollgate is serving").await;
    assert_eq!(get(&field(&line, "metrics"), path).status, 200);
    assert!(line.contains("\"tls\":\"127.0.0.1:"), "{line}");
}

/// `listen.host: "[::]"` serves callers of both families.
#[tokio::test]
async fn an_address_of_ipv6_serves_both_families() {
    let values = "{ store: { url: 'memory:' }, replicas: 1, listen: { host: '[::]' } }";
    let config = config_of(&render(values).unwrap());
    let config = config
        .replace("[::]:50051", "[::]:0")
        .replace("[::]:9464", "[::]:0");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.yaml");
    std::fs::write(
        &file,
        config.replace("/run/tollgate", folder.path().to_str().unwrap()),
    )
    .unwrap();
    let server = Server::start_configured(&file);
    let port = server
        .address
        .split(',')
        .next()
        .unwrap()
        .rsplit(':')
        .next()
        .unwrap()
        .to_owned();
    for host in ["[::1]", "127.0.0.1"] {
        let channel = crate::support::server::channel_to(&format!("{host}:{port}")).await;
        let mut client = crate::support::server::Client::new(channel);
        assert!(decide(&mut client, "alice", "free").await.allowed, "{host}");
    }
}

/// Where no registry is assumed, a short name resolves to nothing or to somebody else's image.
#[test]
fn every_image_that_is_fetched_has_its_full_name() {
    let compose = manifests(&["compose", "deploy/compose/compose.yaml"], "").unwrap();
    let in_compose = compose
        .lines()
        .filter_map(|line| line.trim().strip_prefix("image: "))
        .filter(|image| *image != "tollgate:0.1.0");
    let dockerfile = read("Dockerfile");
    let in_dockerfile = dockerfile
        .lines()
        .filter_map(|line| line.strip_prefix("FROM "))
        .map(|from| from.split(' ').next().unwrap());
    let mut images = 0;
    for image in in_compose.chain(in_dockerfile.filter(|image| *image != "scratch")) {
        let (registry, rest) = image
            .split_once('/')
            .unwrap_or_else(|| panic!("{image} names no registry"));
        assert!(
            registry.contains('.') && rest.contains(':') && !rest.ends_with(":latest"),
            "{image}"
        );
        images += 1;
    }
    assert!(images >= 4, "{images}");
}

#[test]
fn the_compose_file_has_a_valid_config_and_mounts_what_is_there() {
    let folder = root().join("deploy/compose");
    let config = load(&read("deploy/compose/config/tollgate.yaml"));
    assert!(config.listen.metrics.is_some() && config.plans.len() == 3);
    let compose = manifests(
        &["json"],
        &format!("kind: Compose\n{}", read("deploy/compose/compose.yaml")),
    )
    .unwrap();
    let compose: Value = serde_json::from_str(&compose).unwrap();
    let services = compose[0]["services"].as_object().unwrap();
    let mounts = services
        .values()
        .flat_map(|service| service["volumes"].as_array().into_iter().flatten());
    let sources: Vec<&str> = mounts
        .map(|mount| mount["source"].as_str().unwrap())
        .collect();
    assert!(sources.len() >= 5, "{sources:?}");
    for source in sources {
        assert!(folder.join(source).exists(), "{source}");
    }
}

/// Everything but whether the programs are there, which they are on the host that it is for.
#[test]
fn the_unit_of_systemd_is_understood() {
    let unit = read("deploy/systemd/tollgate.service");
    assert!(unit.contains("Type=notify\n"));
    // A service that fails at boot comes back without a person.
    assert!(unit.contains("StartLimitIntervalSec=0\n") && unit.contains("RestartSec=2\n"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.service");
    std::fs::write(
        &file,
        unit.replace(
            "=tollgate ",
            concat!("=", env!("CARGO_BIN_EXE_tollgate"), " "),
        ),
    )
    .unwrap();
    let verify = |file: &Path| {
        let mut command = Command::new("systemd-analyze");
        let output = command
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(file)
            .output();
        let output =
            output.expect("systemd-analyze is needed by this test; tests/run installs systemd");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert_eq!(verify(&file), (true, String::new()));
    std::fs::write(
        &file,
        std::fs::read_to_string(&file)
            .unwrap()
            .replace("Type=notify", "Type=notified"),
    )
    .unwrap();
    assert!(verify(&file).1.contains("notified"), "nothing is found");
}

/// The manifests of a text, to show that it has some.
#[test]
fn the_chart_makes_what_its_values_ask_for() {
    let kinds = |values: &str| {
        let mut kinds: Vec<String> = documents(&render(values).unwrap())
            .iter()
            .map(|document| document["kind"].as_str().unwrap().to_owned())
            .collect();
        kinds.sort();
        kinds.join(" ")
    };
    let of = |more: &str| {
        kinds(&format!(
            "{{ store: {{ url: 'redis://redis:6379/0' }}{more} }}"
        ))
    };
    let of_fleet = "ConfigMap Deployment NetworkPolicy PodDisruptionBudget Service Service";
    assert_eq!(of(", configCheck: { enabled: false }"), of_fleet);
    // A config to check, and the Job that does it.
    assert_eq!(
        of(""),
        "ConfigMap ConfigMap Deployment Job NetworkPolicy PodDisruptionBudget Service Service"
    );
    let all = of(", autoscaling: { enabled: true }, serviceMonitor: { enabled: true }, prometheusRule: { enabled: true },
        dashboard: { enabled: true }, configCheck: { enabled: false }");
    assert_eq!(
        all,
        "ConfigMap ConfigMap Deployment HorizontalPodAutoscaler NetworkPolicy PodDisruptionBudget PrometheusRule Service Service \
         ServiceMonitor"
    );
    assert_eq!(
        of(", fleet: { enabled: false }, configCheck: { enabled: false }"),
        "ConfigMap"
    );
}
