//! The sidecar: by the example chart that uses the templates of tollgate's chart, and by the plain manifest.

use tollgate::server::Address;

use super::load;
use crate::support::manifests::{config_of, manifests, of_kind, read};

/// The example application with these values.
pub(super) fn rendered(values: &str) -> String {
    manifests(&["render", "deploy/helm/sidecar-example", "deploy/helm/tollgate"], values).unwrap()
}

/// Whoever reaches the port of a sidecar could spend anybody's quota. Metrics and probes alone are served to others.
#[test]
fn other_pods_cannot_ask_a_sidecar() {
    let socket = rendered("tollgate: { sidecar: { listen: socket } }");
    for text in [read("deploy/kubernetes/sidecar.yaml"), rendered("{}"), socket.clone()] {
        let config = load(&config_of(&text));
        assert!(config.listen.grpc.iter().all(Address::is_local), "{text}");
        assert!(config.listen.http.is_none() && config.listen.admin.as_ref().is_none_or(Address::is_local), "{text}");
        let deployment = of_kind(&text, "Deployment");
        let sidecar = &deployment["spec"]["template"]["spec"]["initContainers"][0];
        assert_eq!(sidecar["restartPolicy"], "Always");
        let ports = sidecar["ports"].as_array().unwrap();
        assert!(ports.len() == 1 && ports[0]["name"] == "metrics", "{ports:?}");
    }
    assert!(load(&config_of(&socket)).listen.grpc.iter().all(|address| matches!(address, Address::Unix { .. })));
}
