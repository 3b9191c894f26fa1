//! The sidecar: by the example chart that uses the templates of tollgate's chart, and by the plain manifest.

use tollgate::server::Address;

use super::{checked, load};
use crate::support::manifests::{config_of, manifests, of_kind, read};

/// The example application with these values.
pub(super) fn rendered(values: &str) -> String {
    manifests(
        &[
            "render",
            "app",
            "deploy/helm/sidecar-example",
            "deploy/helm/tollgate",
        ],
        values,
    )
    .unwrap()
}

/// Whoever reaches the port of a sidecar could spend anybody's quota. Metrics and probes alone are served to others.
#[test]
fn other_pods_cannot_ask_a_sidecar() {
    let socket = rendered("tollgate: { sidecar: { listen: socket } }");
    for text in [
        read("deploy/kubernetes/sidecar.yaml"),
        rendered("{}"),
        socket.clone(),
    ] {
        let config = load(&config_of(&text));
        assert!(config.listen.grpc.iter().all(Address::is_local), "{text}");
        assert!(
            config.listen.http.is_none()
                && config.listen.admin.as_ref().is_none_or(Address::is_local),
            "{text}"
        );
        let deployment = of_kind(&text, "Deployment");
        let sidecar = &deployment["spec"]["template"]["spec"]["initContainers"][0];
        assert_eq!(sidecar["restartPolicy"], "Always");
        let ports = sidecar["ports"].as_array().unwrap();
        assert!(
            ports.len() == 1 && ports[0]["name"] == "metrics",
            "{ports:?}"
        );
    }
    assert!(
        load(&config_of(&socket))
            .listen
            .grpc
            .iter()
            .all(|address| matches!(address, Address::Unix { .. }))
    );
}

/// The variable that the example's application asks by.
#[test]
fn the_application_asks_where_its_sidecar_listens() {
    for (values, address) in [
        ("{}", "127.0.0.1:50051"),
        ("tollgate: { ports: { grpc: 6000 } }", "127.0.0.1:6000"),
        (
            "tollgate: { sidecar: { listen: socket } }",
            "unix:/run/tollgate/grpc.sock",
        ),
    ] {
        let text = rendered(values);
        checked(&text).unwrap();
        let pod = of_kind(&text, "Deployment")["spec"]["template"]["spec"].clone();
        let app = &pod["containers"][0];
        assert_eq!(app["env"][0]["value"], address, "{values}");
        let served = load(&config_of(&text)).listen.grpc;
        let path = address.strip_prefix("unix:");
        let serves = |at: &Address| match at {
            Address::Unix { path: served, .. } => {
                path.is_some_and(|path| served.as_os_str() == path)
            }
            other => other.to_string() == address,
        };
        assert!(
            served.iter().any(serves),
            "{served:?} does not serve {address}"
        );
        let mounted = app["volumeMounts"]
            .as_array()
            .unwrap()
            .iter()
            .find(|mount| mount["mountPath"] == "/run/tollgate");
        assert_eq!(mounted.is_some(), path.is_some(), "{values}");
    }
}

#[test]
fn a_sidecar_that_other_pods_could_ask_or_that_cannot_serve_is_refused() {
    for (values, said) in [
        (
            "config: { listen: { grpc: ['plaintext:0.0.0.0:50051'] } }",
            "plaintext:0.0.0.0:50051, where other pods could ask a sidecar",
        ),
        (
            "config: { listen: { http: 'plaintext:[::]:8080' } }",
            "plaintext:[::]:8080, where other pods could ask a sidecar",
        ),
        (
            "config: { listen: { metrics: '127.0.0.1:9464' } }",
            "config.listen.metrics has no address that other pods reach at ports.metrics, which is 9464",
        ),
        ("ports: { grpc: 9464 }", "two of the ports are equal"),
    ] {
        let values = format!("tollgate: {{ {values} }}");
        let error = manifests(
            &[
                "render",
                "app",
                "deploy/helm/sidecar-example",
                "deploy/helm/tollgate",
            ],
            &values,
        )
        .unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}
