//! The address of a client behind proxies, by examples of their fields.

use super::*;
use axum::http::HeaderValue;

const PROXY: &str = "10.0.0.1";

fn proxies() -> Proxies {
    Proxies {
        networks: ["10.0.0.0/8", "fd00::/8"]
            .map(|network| network.parse().unwrap())
            .to_vec(),
        unix: true,
    }
}

fn client_by(
    proxies: &Proxies,
    peer: Option<&str>,
    fields: &[(&str, &str)],
) -> Result<Option<String>, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value);
    }
    let client = proxies.client(peer.map(|peer| peer.parse().unwrap()), &headers)?;
    Ok(client.map(|client| client.to_string()))
}

fn client(peer: &str, fields: &[(&str, &str)]) -> String {
    client_by(&proxies(), Some(peer), fields).unwrap().unwrap()
}

fn error(fields: &[(&str, &str)]) -> String {
    client_by(&proxies(), Some(PROXY), fields).unwrap_err()
}

#[test]
fn fields_of_an_untrusted_peer_are_ignored_whatever_they_say() {
    for field in ["1.1.1.1", "10.0.0.2", "nonsense", "1.1.1.1, 10.0.0.2"] {
        assert_eq!(
            client(
                "198.51.100.9",
                &[("x-forwarded-for", field), ("forwarded", field)]
            ),
            "198.51.100.9"
        );
    }
    assert_eq!(
        client_by(&Proxies::default(), None, &[("x-forwarded-for", "1.1.1.1")]),
        Ok(None)
    );
    assert_eq!(
        client_by(&proxies(), None, &[("x-forwarded-for", "1.1.1.1")]),
        Ok(Some("1.1.1.1".to_owned()))
    );
    assert_eq!(client_by(&proxies(), None, &[]), Ok(None));
}

#[test]
fn the_first_untrusted_address_from_the_right_is_the_client() {
    let of = |field: &str| client(PROXY, &[("x-forwarded-for", field)]);
    assert_eq!(of("203.0.113.7"), "203.0.113.7");
    assert_eq!(of("1.1.1.1, 203.0.113.7"), "203.0.113.7");
    assert_eq!(of("1.1.1.1, 203.0.113.7, 10.9.9.9, fd00::1"), "203.0.113.7");
    // What a client writes before that is not even read.
    assert_eq!(of("\u{ff}\", ,,, 203.0.113.7"), "203.0.113.7");
    // All trusted: the first one.
    assert_eq!(of("10.0.0.5, 10.0.0.6"), "10.0.0.5");
    assert_eq!(client(PROXY, &[]), PROXY);
    let lines = [
        ("x-forwarded-for", "1.1.1.1"),
        ("x-forwarded-for", "203.0.113.7, 10.0.0.3"),
    ];
    assert_eq!(client(PROXY, &lines), "203.0.113.7");
}

#[test]
fn forwarded_is_read_in_all_its_forms() {
    for (field, expected) in [
        ("for=203.0.113.7", "203.0.113.7"),
        ("For=\"[2001:db8:cafe::17]:4711\"", "2001:db8:cafe::17"),
        ("for=192.0.2.60;proto=http;by=203.0.113.43", "192.0.2.60"),
        (
            "for=1.1.1.1, for=198.51.100.17 ; host=\"a,b\\\";c\" , for=10.1.1.1",
            "198.51.100.17",
        ),
        ("for=\"203.0.113.7:80\"", "203.0.113.7"),
        ("for=203.0.113.7:80", "203.0.113.7"),
        ("for=\"[::ffff:203.0.113.7]\"", "203.0.113.7"),
    ] {
        assert_eq!(client(PROXY, &[("forwarded", field)]), expected, "{field}");
    }
}

#[test]
fn a_malformed_field_of_a_trusted_proxy_is_an_error() {
    for field in [
        "",
        "for",
        "for=",
        "for=\"1.1.1.1",
        "for=1.1.1.1,",
        "for=1.1.1.1 for=2.2.2.2",
        "=1.1.1.1",
        "for=1.1.1.1;for=2.2.2.2",
        "for=\"x, for=\"[2001:db8::1]\"",
        "for=\"x\\, for=203.0.113.7",
        "f or=1.1.1.1",
        "for=é",
    ] {
        assert!(
            error(&[("forwarded", field)]).starts_with("Forwarded is malformed; write it like"),
            "{field}"
        );
    }
    for field in [
        "for=unknown",
        "for=_hidden",
        "proto=http",
        "for=\"1.1.1.1\\\"\"",
    ] {
        assert_eq!(
            error(&[("forwarded", field)]),
            "Forwarded from 10.0.0.1 names no address of the client",
            "{field}"
        );
    }
    for field in [
        "",
        "unknown",
        "1.1.1.1,",
        "1.1.1.1, unknown",
        "fe80::1%eth0",
        "1.1.1.1:x",
    ] {
        assert_eq!(
            error(&[("x-forwarded-for", field)]),
            "X-Forwarded-For from 10.0.0.1 names no address of the client"
        );
    }
    let beyond = error(&[("x-forwarded-for", "unknown, 10.0.0.7")]);
    assert_eq!(
        beyond,
        "X-Forwarded-For from 10.0.0.7 names no address of the client"
    );
}

#[test]
fn two_fields_that_differ_are_an_error_since_one_may_be_the_clients_own() {
    let both = |one, other| {
        client_by(
            &proxies(),
            Some(PROXY),
            &[("forwarded", one), ("x-forwarded-for", other)],
        )
    };
    assert_eq!(
        both("for=203.0.113.7", "203.0.113.7").unwrap().unwrap(),
        "203.0.113.7"
    );
    assert!(
        both("for=1.1.1.1", "203.0.113.7")
            .unwrap_err()
            .contains("name different clients")
    );
}

#[test]
fn ipv6_clients_are_grouped_by_prefix_and_mapped_addresses_are_ipv4() {
    let of = |text: &str, prefix| shown(text.parse::<IpAddr>().unwrap().to_canonical(), prefix);
    assert_eq!(of("2001:db8:1:2:3:4:5:6", 64), "2001:db8:1:2::/64");
    assert_eq!(of("2001:db8:1:2:ffff::", 64), "2001:db8:1:2::/64");
    assert_eq!(of("2001:db8:1:3::", 64), "2001:db8:1:3::/64");
    assert_eq!(
        (of("2001:db8:1:2::1", 32), of("2001:db8:1:2::1", 56)),
        ("2001:db8::/32".to_owned(), "2001:db8:1::/56".to_owned())
    );
    assert_eq!(of("2001:db8::1", 128), "2001:db8::1");
    assert_eq!(
        (of("::ffff:192.0.2.9", 64), of("192.0.2.9", 32)),
        ("192.0.2.9".to_owned(), "192.0.2.9".to_owned())
    );
}

#[test]
fn a_mapped_peer_is_trusted_by_its_ipv4_network() {
    assert_eq!(
        client(
            "::ffff:10.0.0.1",
            &[("x-forwarded-for", "::ffff:203.0.113.7")]
        ),
        "203.0.113.7"
    );
    assert_eq!(
        client("::ffff:192.0.2.1", &[("x-forwarded-for", "1.1.1.1")]),
        "192.0.2.1"
    );
}
