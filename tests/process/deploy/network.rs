//! The chart's NetworkPolicy: what replicas may reach.

use serde_json::{Value, json};

use super::load;
use crate::support::manifests::{of_kind, render};

/// The rules for what goes out.
fn egress(values: &str) -> Vec<Value> {
    let text = render(values).unwrap_or_else(|error| panic!("{values}: {error}"));
    of_kind(&text, "NetworkPolicy")["spec"]["egress"]
        .as_array()
        .unwrap()
        .clone()
}

fn ports(rule: &Value) -> Vec<i64> {
    let mut ports: Vec<i64> = rule["ports"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| port["port"].as_i64().unwrap())
        .collect();
    ports.sort_unstable();
    ports
}

#[test]
fn replicas_reach_redis_at_the_ports_of_its_url() {
    for (url, expected) in [
        ("redis://redis:6379/0", vec![6379]),
        ("redis://redis", vec![6379]),
        ("rediss://redis:6380/0", vec![6380]),
        ("valkey://[fd00::1]/1", vec![6379]),
        ("redis://[fd00::1]:7/1", vec![7]),
        (
            "redis-cluster://a:7000?node=b:7001&node=[::1]:7002&node=c:7000",
            vec![7000, 7001, 7002],
        ),
        ("valkeys-cluster://a?node=b%3A7001", vec![6379, 7001]),
        // The server itself has a port that the Sentinels name.
        (
            "redis-sentinel://a?sentinelServiceName=m&node=b:26380",
            vec![6379, 26379, 26380],
        ),
        (
            "rediss-sentinel://a:5000/3?node=b:5001&sentinelServiceName=m",
            vec![5000, 5001, 6379],
        ),
    ] {
        load(&format!(
            "store: {{ url: '{url}' }}\nplans: {{ any: {{ unlimited: true }} }}"
        ));
        let of_values = egress(&format!("store: {{ url: '{url}' }}"));
        assert_eq!(ports(&of_values[1]), expected, "{url}");
        assert_eq!(
            egress(&format!("config: {{ store: {{ url: '{url}' }} }}")),
            of_values
        );
        let more = egress(&format!(
            "{{ store: {{ url: '{url}' }}, networkPolicy: {{ storePorts: [9] }} }}"
        ));
        assert!(
            ports(&more[1]).contains(&9) && ports(&more[1]).len() == expected.len() + 1,
            "{url}"
        );
    }
    for none in [
        "{ store: { url: 'memory:' }, replicas: 1 }",
        "store: { url: 'redis+unix:///run/redis.sock' }",
    ] {
        assert_eq!(egress(none).len(), 1, "{none}");
    }
}

/// A cache on the node is not a pod, and OpenShift resolves in a namespace and at a port of its own.
#[test]
fn names_are_resolved_anywhere_unless_the_values_say_where() {
    let redis = "store: { url: 'redis://redis' }";
    let dns = &egress(redis)[0];
    assert_eq!((dns.get("to"), ports(dns)), (None, vec![53, 53]));
    let to =
        "[{ namespaceSelector: { matchLabels: { kubernetes.io/metadata.name: openshift-dns } } }]";
    let dns = &egress(&format!(
        "{{ {redis}, networkPolicy: {{ dns: {{ to: {to}, ports: [5353] }} }} }}"
    ))[0];
    assert_eq!(
        dns["to"][0]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"],
        "openshift-dns"
    );
    assert_eq!(ports(dns), [5353, 5353]);
    let all = egress(&format!(
        "{{ {redis}, networkPolicy: {{ egress: [{{ ports: [{{ port: 4317 }}] }}] }} }}"
    ));
    assert_eq!(all[2], json!({ "ports": [{ "port": 4317 }] }));
}
