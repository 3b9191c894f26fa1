//! What operators set of the chart's pods, and what it tells them.

use serde_json::{Value, json};

use super::sidecar::rendered;
use super::{checked, load};
use crate::support::manifests::{config_of, documents, manifests, of_kind, read, render};

const REDIS: &str = "store: { url: 'redis://redis:6379/0' }";

/// All pods that the manifests make.
fn pods(text: &str) -> Vec<Value> {
    let templates = documents(text)
        .into_iter()
        .map(|document| document["spec"]["template"]["spec"].clone());
    templates.filter(Value::is_object).collect()
}

/// OpenShift gives each namespace users of its own, and refuses pods that name another.
#[test]
fn no_user_or_group_is_named_where_the_values_take_it_away() {
    let none = "runAsUser: null, runAsGroup: null";
    let values =
        format!("podSecurityContext: {{ {none}, fsGroup: null }}, securityContext: {{ {none} }}");
    let fleet = format!("{{ {REDIS}, {values} }}");
    for text in [
        render(&fleet).unwrap(),
        rendered(&format!("tollgate: {{ {values} }}")),
    ] {
        checked(&text).unwrap();
        assert_eq!(pods(&text).len(), 2);
        assert!(
            !text.contains("runAsUser")
                && !text.contains("runAsGroup")
                && !text.contains("fsGroup"),
            "{text}"
        );
        assert!(text.contains("runAsNonRoot: true"));
    }
    assert!(render(REDIS).unwrap().contains("runAsUser: 65532"));
}

#[test]
fn variables_and_volumes_of_the_values_are_in_the_fleet_and_in_a_sidecar() {
    let values = "extraEnv: [{ name: TOLLGATE_STORE__URL, valueFrom: { secretKeyRef: { name: redis, key: url } } }],
        extraEnvFrom: [{ configMapRef: { name: more } }], extraVolumes: [{ name: files, secret: { secretName: files } }],
        extraVolumeMounts: [{ name: files, mountPath: /files, readOnly: true }]";
    for (text, place) in [
        (
            render(&format!("{{ {REDIS}, {values} }}")).unwrap(),
            "containers",
        ),
        (
            rendered(&format!("tollgate: {{ {values} }}")),
            "initContainers",
        ),
    ] {
        checked(&text).unwrap();
        let pod = of_kind(&text, "Deployment")["spec"]["template"]["spec"].clone();
        let server = &pod[place][0];
        assert_eq!(server["env"][0]["name"], "TOLLGATE_STORE__URL");
        assert_eq!(server["envFrom"][0]["configMapRef"]["name"], "more");
        let last = |list: &Value| list.as_array().unwrap().last().unwrap().clone();
        assert_eq!(last(&server["volumeMounts"])["mountPath"], "/files");
        assert_eq!(last(&pod["volumes"])["secret"]["secretName"], "files");
    }
}

/// The rule of docs/operations/deploy.md, in MiB. Without a number of workers there is one per core of the node.
#[test]
fn the_memory_limit_has_room_for_the_workers() {
    let kustomized =
        |folder: &str| manifests(&["build", &format!("deploy/kustomize/{folder}")], "").unwrap();
    for (text, place) in [
        (render(REDIS).unwrap(), "containers"),
        (kustomized("base"), "containers"),
        (kustomized("example"), "containers"),
        (rendered("{}"), "initContainers"),
        (read("deploy/kubernetes/sidecar.yaml"), "initContainers"),
    ] {
        let workers = load(&config_of(&text)).workers;
        let workers = workers.unwrap_or_else(|| panic!("one per core: {text}"));
        let pod = of_kind(&text, "Deployment")["spec"]["template"]["spec"].clone();
        let limit = &pod[place][0]["resources"]["limits"]["memory"];
        assert_eq!(*limit, format!("{}Mi", 128 + 64 * workers.get()), "{text}");
    }
}

#[test]
fn a_disruption_budget_is_a_number_or_a_percentage() {
    for (values, expected) in [
        ("maxUnavailable: 2", json!({ "maxUnavailable": 2 })),
        ("maxUnavailable: 25%", json!({ "maxUnavailable": "25%" })),
        ("minAvailable: 2", json!({ "minAvailable": 2 })),
        ("minAvailable: 50%", json!({ "minAvailable": "50%" })),
    ] {
        let text = render(&format!(
            "{{ {REDIS}, podDisruptionBudget: {{ {values} }} }}"
        ))
        .unwrap();
        checked(&text).unwrap();
        let spec = of_kind(&text, "PodDisruptionBudget")["spec"].clone();
        let budget: Value = spec
            .as_object()
            .unwrap()
            .clone()
            .into_iter()
            .filter(|(name, _)| name.ends_with("vailable"))
            .collect();
        assert_eq!(budget, expected);
    }
    for broken in [
        "maxUnavailable: 0",
        "maxUnavailable: 0%",
        "maxUnavailable: 101%",
        "minAvailable: half",
        "minAvailable: 2.5",
    ] {
        render(&format!(
            "{{ {REDIS}, podDisruptionBudget: {{ {broken} }} }}"
        ))
        .expect_err(broken);
    }
}

/// Files that a volume brings encrypt as a Secret does.
#[test]
fn a_certificate_of_the_config_encrypts_all_that_is_served() {
    let tls = "config: { listen: { tls: { cert_file: /files/a, key_file: /files/b } } }";
    let text = render(&format!("{{ {REDIS}, {tls}, http: {{ enabled: true }} }}")).unwrap();
    checked(&text).unwrap();
    let config = load(&config_of(&text));
    assert!(config.listen.tls.is_some());
    assert!(
        text.contains("- 0.0.0.0:50051")
            && text.contains("http: 0.0.0.0:8080")
            && !text.contains("h2c"),
        "{text}"
    );
}

/// An image of this name is in no registry.
#[test]
fn an_install_tells_how_to_build_and_push_an_image_until_one_is_named() {
    let notes =
        |values: &str| manifests(&["notes", "edge", "deploy/helm/tollgate"], values).unwrap();
    let default = notes(REDIS);
    for part in [
        "No registry has the image tollgate:0.1.0",
        "docker build -t ",
        "docker push ",
        "helm upgrade edge ",
        // Unlike --reuse-values, it takes the defaults of a newer chart.
        " --reset-then-reuse-values ",
        "image.repository=",
    ] {
        assert!(default.contains(part), "{default}");
    }
    let named = notes(&format!(
        "{{ {REDIS}, image: {{ repository: registry.example.com/tollgate }} }}"
    ));
    assert!(
        !named.contains("docker")
            && named.contains("tollgate serves gRPC at edge-tollgate.default:50051"),
        "{named}"
    );
}
