//! Addresses that are served, and what they ask for.

use super::*;

#[test]
fn http_is_off_unless_it_has_an_address() {
    for (yaml, address) in [
        ("", None),
        ("listen: {}", None),
        ("listen: { http: '' }", None),
        ("listen: { http: '127.0.0.1:8080' }", Some("127.0.0.1:8080")),
        (
            "listen: { http: 'plaintext:10.0.0.1:8080' }",
            Some("10.0.0.1:8080"),
        ),
        (
            "listen: { http: 'unix:/run/tollgate/http.sock' }",
            Some("unix:/run/tollgate/http.sock"),
        ),
    ] {
        let found = load(&format!("{PLANS}{yaml}"))
            .unwrap()
            .listen
            .http
            .map(|address| address.to_string());
        assert_eq!(found.as_deref(), address, "{yaml}");
    }
    let from_environment = load_with(PLANS, &[("TOLLGATE_LISTEN__HTTP", "127.0.0.1:9090")], &[])
        .unwrap()
        .listen
        .http;
    assert_eq!(
        from_environment
            .map(|address| address.to_string())
            .as_deref(),
        Some("127.0.0.1:9090")
    );
    for yaml in [
        "listen: { http: 8080 }",
        "listen: { http: ':8080' }",
        "listen: { http: ['127.0.0.1:1', '127.0.0.1:2'] }",
    ] {
        let found = errors(&format!("{PLANS}{yaml}"));
        assert!(
            found.len() == 1 && found[0].starts_with("listen.http is "),
            "{found:?}"
        );
    }
}

#[test]
fn an_address_for_other_hosts_needs_encryption_or_plaintext() {
    let open = "listen: { grpc: ['127.0.0.1:1', '0.0.0.0:2', 'tollgate.internal:3'], http: '[::]:4', metrics: '[::]:5' }";
    let found = errors(&format!("{PLANS}{open}"));
    let paths: Vec<&str> = found
        .iter()
        .map(|error| error.split(' ').next().unwrap())
        .collect();
    assert_eq!(
        paths,
        [
            "listen.grpc[1]",
            "listen.grpc[2]",
            "listen.http",
            "listen.metrics"
        ],
        "{found:?}"
    );
    assert!(
        found[0].contains("listen.plaintext: true (--plaintext), or write plaintext:0.0.0.0:2"),
        "{found:?}"
    );
    for also in ["plaintext: true", "tls: { cert_file: c, key_file: k }"] {
        assert!(
            load(&format!(
                "{PLANS}{}",
                open.replace(" }", &format!(", {also} }}"))
            ))
            .is_ok(),
            "{also}"
        );
    }
    let each = "listen: { grpc: ['plaintext:0.0.0.0:2', 'unix:/s'], http: 'plaintext:[::]:4', metrics: 'plaintext:[::]:5' }";
    assert!(load(&format!("{PLANS}{each}")).is_ok());
    assert!(
        load_with(
            PLANS,
            &[],
            &[("listen.grpc", "0.0.0.0:1"), ("listen.plaintext", "true")]
        )
        .is_ok()
    );
}

#[test]
fn figures_have_names_of_hosts_without_ports() {
    let of = |hosts: &str| format!("{PLANS}listen: {{ http_hosts: {hosts} }}");
    assert_eq!(
        load(&of("[limits.example.com, '*.svc']"))
            .unwrap()
            .listen
            .http_hosts
            .len(),
        2
    );
    assert!(load(PLANS).unwrap().listen.http_hosts.is_empty());
    for (hosts, expected) in [
        (
            "[a, 'a:80']",
            "listen.http_hosts[1] is wrong; write a name without a port",
        ),
        ("['*']", "listen.http_hosts[0] is wrong; "),
        ("[{}]", "listen.http_hosts[0] is a table"),
    ] {
        let found = errors(&of(hosts));
        assert!(
            found.len() == 1 && found[0].starts_with(expected),
            "{found:?}"
        );
    }
}
