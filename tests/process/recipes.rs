//! The recipes in `deploy` for gateways that no test runs: their files are parsed, and what they name is there.

use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

use crate::support::http::{Reply, ask};
use crate::support::recipe;
use crate::support::server::{Server, tollgate};

const PLANS: &str = "plans: { free: { limits: [ { name: day, quota: 2, window: 1d } ] } }\n";
/// What these gateways tell of the request that they ask about.
const TOLD: [&str; 5] = [
    "X-Forwarded-For: 192.0.2.7",
    "X-Forwarded-Method: GET",
    "X-Forwarded-Proto: https",
    "X-Forwarded-Host: example.com",
    "X-Forwarded-Uri: /page",
];

fn documents(path: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(&recipe(path, &[])).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn document(path: &str) -> Yaml {
    let [document] = documents(path)
        .try_into()
        .unwrap_or_else(|documents| panic!("{path}: {documents:?}"));
    document
}

fn texts(list: &Yaml) -> Vec<&str> {
    list.as_vec()
        .unwrap()
        .iter()
        .map(|text| text.as_str().unwrap())
        .collect()
}

fn envoy_filter() -> Yaml {
    let listener = document("deploy/envoy/envoy.yaml")["static_resources"]["listeners"][0].clone();
    listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"][0].clone()
}

/// The config of tollgate that a recipe's comment begins with this.
fn config_in_comment(path: &str, begin: &str) -> String {
    let text = recipe(path, &[]);
    let line = text
        .lines()
        .find(|line| line.starts_with('#') && line.contains(begin))
        .unwrap();
    format!("{PLANS}{}\n", &line[line.find(begin).unwrap()..])
}

/// The plan and key that this config finds for a descriptor.
fn explained(config: &str, descriptor: &str) -> String {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), config).unwrap();
    let output = tollgate()
        .arg("check")
        .arg(file.path())
        .args(["--explain-descriptor", descriptor])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{config}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The path and query of the URI that a gateway asks.
fn target(uri: &str) -> &str {
    uri.strip_prefix("http://tollgate:8080").unwrap()
}

#[test]
fn the_filter_of_istio_is_that_of_envoy() {
    let manifest = document("deploy/envoy/istio.yaml");
    assert_eq!(
        (manifest["apiVersion"].as_str(), manifest["kind"].as_str()),
        (Some("networking.istio.io/v1alpha3"), Some("EnvoyFilter"))
    );
    let [filter, route] = [0, 1].map(|place| &manifest["spec"]["configPatches"][place]);
    assert_eq!(
        [&filter["applyTo"], &route["applyTo"]].map(Yaml::as_str),
        [Some("HTTP_FILTER"), Some("VIRTUAL_HOST")]
    );
    assert_eq!(filter["patch"]["operation"].as_str(), Some("INSERT_BEFORE"));
    let of_istio = &filter["patch"]["value"];
    let of_envoy = envoy_filter();
    assert_eq!(of_istio["name"], of_envoy["name"]);
    let [of_istio, of_envoy] =
        [of_istio, &of_envoy].map(|filter| filter["typed_config"].as_hash().unwrap());
    assert!(of_istio.keys().eq(of_envoy.keys()), "{of_istio:?}");
    let service = Yaml::from_str("rate_limit_service");
    for (field, value) in of_istio.iter().filter(|(field, _)| **field != service) {
        assert_eq!(*value, of_envoy[field], "{field:?}");
    }
    let [of_istio, of_envoy] = [of_istio, of_envoy].map(|filter| &filter[&service]);
    assert_eq!(
        of_istio["transport_api_version"],
        of_envoy["transport_api_version"]
    );
    let service = &of_istio["grpc_service"]["envoy_grpc"];
    assert_eq!(
        service["cluster_name"].as_str(),
        Some("outbound|50051||tollgate.tollgate.svc.cluster.local")
    );
    assert_eq!(
        service["authority"].as_str(),
        Some("tollgate.tollgate.svc.cluster.local")
    );
    let actions = &route["patch"]["value"]["rate_limits"][0]["actions"];
    assert!(
        actions[0]["remote_address"].as_hash().is_some(),
        "{actions:?}"
    );
    let said = explained(
        &config_in_comment("deploy/envoy/istio.yaml", "envoy: {"),
        "remote_address=192.0.2.7",
    );
    assert!(
        said.contains("decides: plan free, key \"192.0.2.7\""),
        "{said}"
    );
}

/// Asserts that the config in Contour's recipe has a plan and key for what its proxy sends.
fn assert_descriptors_are_known(proxy: &Yaml) {
    let descriptors = &proxy["spec"]["virtualhost"]["rateLimitPolicy"]["global"]["descriptors"];
    assert!(
        descriptors[0]["entries"][0]["remoteAddress"]
            .as_hash()
            .is_some(),
        "{descriptors:?}"
    );
    let user = descriptors[1]["entries"][0]["requestHeader"]["descriptorKey"]
        .as_str()
        .unwrap();
    let config = config_in_comment("deploy/envoy/contour.yaml", "envoy: {");
    for (descriptor, key) in [
        ("remote_address=192.0.2.7", "192.0.2.7"),
        (&format!("{user}=al"), "al"),
    ] {
        let said = explained(&config, descriptor);
        assert!(
            said.contains("domain edge")
                && said.contains(&format!("decides: plan free, key \"{key}\"")),
            "{said}"
        );
    }
}

#[test]
fn the_manifests_of_contour_name_each_other_and_a_domain_of_the_config() {
    let [service, configuration, proxy] =
        documents("deploy/envoy/contour.yaml").try_into().unwrap();
    let kinds = [&service, &configuration, &proxy]
        .map(|document| (document["apiVersion"].as_str(), document["kind"].as_str()));
    let expected = [
        ("projectcontour.io/v1alpha1", "ExtensionService"),
        ("projectcontour.io/v1alpha1", "ContourConfiguration"),
        ("projectcontour.io/v1", "HTTPProxy"),
    ];
    assert_eq!(
        kinds,
        expected.map(|(version, kind)| (Some(version), Some(kind)))
    );
    assert_eq!(
        (
            service["spec"]["protocol"].as_str(),
            service["spec"]["services"][0]["port"].as_i64()
        ),
        (Some("h2c"), Some(50051))
    );
    // The same as that of Envoy's recipe.
    assert_eq!(
        service["spec"]["timeoutPolicy"]["response"].as_str(),
        Some("50ms")
    );
    assert_eq!(
        envoy_filter()["typed_config"]["timeout"].as_str(),
        Some("0.05s")
    );
    let limits = &configuration["spec"]["rateLimitService"];
    for field in ["name", "namespace"] {
        assert_eq!(
            limits["extensionService"][field], service["metadata"][field],
            "{field}"
        );
    }
    assert_eq!(
        (limits["domain"].as_str(), limits["failOpen"].as_bool()),
        (Some("edge"), Some(true))
    );
    assert_eq!(limits["enableResourceExhaustedCode"].as_bool(), Some(true));
    assert_descriptors_are_known(&proxy);
}

/// Asserts that two requests to this URI are allowed and the third is denied, with these fields in the header of the answer.
fn assert_fields_of_answers(config: &str, uri: &str, allowed: &[&str], denied: &[&str]) {
    let server = Server::start(config, &["--set", "listen.http=127.0.0.1:0"]);
    let asked: Vec<Reply> = (0..3)
        .map(|_| ask(&server.http(), "GET", target(uri), &TOLD))
        .collect();
    assert_eq!(
        asked.iter().map(|reply| reply.status).collect::<Vec<_>>(),
        [200, 200, 429],
        "{asked:?}"
    );
    for (reply, fields) in [(&asked[0], allowed), (&asked[2], denied)] {
        assert!(
            fields.iter().all(|field| reply.header(field).is_some()),
            "{fields:?}: {reply:?}"
        );
    }
    let other = ask(
        &server.http(),
        "GET",
        target(uri),
        &["X-Forwarded-For: 192.0.2.8"],
    );
    assert_eq!(other.status, 200, "another client: {other:?}");
}

/// Traefik and APISIX tell the client's address alike, so one config serves both.
#[test]
fn what_traefik_and_apisix_ask_is_answered_with_every_field_that_they_pass_on() {
    let config = config_in_comment("deploy/traefik/tollgate.yaml", "check: {")
        .replace("10.0.0.0/8", "127.0.0.0/8");
    let traefik = document("deploy/traefik/tollgate.yaml");
    let http = &traefik["http"];
    let router = &http["routers"]["application"];
    let middleware = texts(&router["middlewares"])[0];
    assert!(!http["services"][router["service"].as_str().unwrap()].is_badvalue());
    let forward = &http["middlewares"][middleware]["forwardAuth"];
    let apisix: Value = serde_json::from_str(&recipe("deploy/apisix/route.json", &[])).unwrap();
    let plugin = &apisix["plugins"]["forward-auth"];
    assert_eq!(
        (
            plugin["request_method"].as_str(),
            plugin["allow_degradation"].as_bool()
        ),
        (Some("GET"), Some(true))
    );
    let list = |field: &str| {
        plugin[field]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap())
            .collect::<Vec<_>>()
    };
    let denied_by_traefik = vec![
        "RateLimit",
        "RateLimit-Policy",
        "Retry-After",
        "Content-Type",
    ];
    for (uri, allowed, denied) in [
        (
            forward["address"].as_str(),
            texts(&forward["authResponseHeaders"]),
            denied_by_traefik,
        ),
        (
            plugin["uri"].as_str(),
            list("upstream_headers"),
            list("client_headers"),
        ),
    ] {
        assert_fields_of_answers(&config, uri.unwrap(), &allowed, &denied);
    }
}
