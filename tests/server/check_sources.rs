//! Where the check endpoint takes key and plan from: parameters, header fields, the client's address behind proxies. Each bad
//! input has its answer.

use std::collections::BTreeSet;
use tollgate::grpc::pb;

use crate::support::http::{Reply, Scrape, ask, ask_raw, get, post};
use crate::support::server::{Server, request};

const PLANS: &str = "plans:
  one: { limits: [ { name: day, quota: 1, window: 1d } ] }
  two: { limits: [ { name: day, quota: 2, window: 1d } ] }
";

/// A server with this `check` section, and where it serves HTTP.
fn serve(check: &str) -> (Server, String) {
    let server = Server::start(
        &format!("listen: {{ http: '127.0.0.1:0' }}\ncheck: {check}\n{PLANS}"),
        &[],
    );
    let http = server.http();
    (server, http)
}

fn check(http: &str, headers: &[&str]) -> Reply {
    ask(http, "GET", "/v1/check", headers)
}

/// How many units of `two` a key has left, asked over gRPC.
async fn remaining(server: &Server, key: &str) -> u64 {
    let peek = pb::PeekRequest {
        key: key.to_owned(),
        plan: "two".to_owned(),
        cost: None,
        ..Default::default()
    };
    server
        .client()
        .await
        .peek(peek)
        .await
        .unwrap()
        .into_inner()
        .answer
        .unwrap()
        .remaining()
}

/// Without trusted proxies, the peer is the client.
async fn assert_header_of_a_stranger_is_not_read() {
    let (server, http) = serve("{ key: [client_address], plan: ['default:two'] }");
    for _ in 0..2 {
        assert_eq!(
            check(
                &http,
                &["X-Forwarded-For: 203.0.113.7", "Forwarded: nonsense"]
            )
            .status,
            200
        );
    }
    assert_eq!(
        check(&http, &["X-Forwarded-For: 203.0.113.8"]).status,
        429,
        "a spoofed address counts as the peer"
    );
    assert_eq!(
        (
            remaining(&server, "203.0.113.7").await,
            remaining(&server, "127.0.0.1").await
        ),
        (2, 0)
    );
}

#[tokio::test]
async fn a_trusted_proxy_tells_the_client_and_nobody_else_does() {
    let (server, http) = serve(
        "{ key: [client_address], plan: ['default:two'], trusted_proxies: [127.0.0.0/8, 10.0.0.0/8, unix] }",
    );
    assert_eq!(
        check(&http, &["X-Forwarded-For: 1.1.1.1, 203.0.113.7, 10.1.2.3"]).status,
        200
    );
    assert_eq!(
        check(&http, &["Forwarded: for=1.1.1.1, for=203.0.113.7"]).status,
        200
    );
    assert_eq!(check(&http, &["X-Forwarded-For: 203.0.113.7"]).status, 429);
    // Clients of one IPv6 network are one.
    assert_eq!(
        check(&http, &["X-Forwarded-For: 2001:db8:1:2::1"]).status,
        200
    );
    assert_eq!(
        check(&http, &["X-Forwarded-For: 2001:db8:1:2:ffff::2"]).status,
        200
    );
    assert_eq!(
        check(&http, &["X-Forwarded-For: 2001:db8:1:2:3::3"]).status,
        429
    );
    assert_eq!(
        (
            remaining(&server, "203.0.113.7").await,
            remaining(&server, "2001:db8:1:2::/64").await
        ),
        (0, 0)
    );
    assert_eq!(
        (
            remaining(&server, "1.1.1.1").await,
            remaining(&server, "127.0.0.1").await
        ),
        (2, 2)
    );

    assert_header_of_a_stranger_is_not_read().await;
}

#[tokio::test]
async fn key_and_plan_come_from_header_fields() {
    let (server, http) = serve(
        "{ key: ['header:x-org+header:x-user', 'header:x-user', 'param:key'], plan: ['header:x-plan', 'param:plan'] }",
    );
    assert_eq!(
        check(&http, &["X-Org: a+b", "X-User: c", "X-Plan: two"]).status,
        200
    );
    assert_eq!(
        check(&http, &["X-Org: a", "X-User: b+c", "X-Plan: two"]).status,
        200
    );
    assert_eq!(
        check(&http, &["X-User: c", "X-Plan: two", "X-Org:"]).status,
        200
    );
    assert_eq!(get(&http, "/v1/check?key=d&plan=two&cost=2").status, 200);
    for (key, expected) in [
        ("a%2Bb+c", 1),
        ("a+b%2Bc", 1),
        ("c", 1),
        ("d", 0),
        ("a+b+c", 2),
    ] {
        assert_eq!(remaining(&server, key).await, expected, "{key}");
    }
    // Of two sources the first counts, whatever the body says.
    let body = post(
        &http,
        "/v1/check?plan=one",
        "application/json",
        r#"{"key": "e"}"#,
    );
    assert_eq!(body.status, 200, "{body:?}");
    let peeked = ask(
        &http,
        "HEAD",
        "/v1/check?peek=true",
        &["X-User: c", "X-Plan: two"],
    );
    assert_eq!(
        (peeked.status, peeked.header("ratelimit")),
        (200, Some("\"day\";r=1"))
    );
}

/// Header fields of bad requests, the status they are answered with, and what the answer says.
const BAD_HEADERS: [(&[&str], u16, &str); 7] = [
    (
        &["X-Key: a", "X-Key: b"],
        400,
        "the header x-key is given twice; the proxy must send it once",
    ),
    (
        &["X-Key: a", "X-Plan: tow"],
        404,
        "did you mean \\\"two\\\"?",
    ),
    (
        &["X-Forwarded-For: unknown"],
        400,
        "X-Forwarded-For from 127.0.0.1 names no address of the client",
    ),
    (
        &["X-Forwarded-For:"],
        400,
        "X-Forwarded-For from 127.0.0.1 names no address of the client",
    ),
    (
        &["Forwarded: for=\"1.1.1.1"],
        400,
        "Forwarded is malformed; write it like: for=192.0.2.1",
    ),
    (
        &["Forwarded: for=_hidden"],
        400,
        "Forwarded from 127.0.0.1 names no address of the client",
    ),
    (
        &["Forwarded: for=1.1.1.1", "X-Forwarded-For: 2.2.2.2"],
        400,
        "name different clients",
    ),
];

#[test]
fn every_bad_input_has_its_answer_and_charges_nothing() {
    let (_server, http) = serve(
        "{ key: ['header:x-key', client_address], plan: ['header:x-plan', 'default:two'], trusted_proxies: [127.0.0.1] }",
    );
    for (headers, status, sentence) in BAD_HEADERS {
        check(&http, headers).assert_is_problem(status, sentence, headers);
    }
    let long = format!("X-Key: {}", "k".repeat(513));
    let headers = [long.as_str()];
    check(&http, &headers).assert_is_problem(400, "key has 513 bytes: at most 512", &headers);
    let raw = String::from_utf8(vec![0xc3, 0xa9]).unwrap();
    assert_eq!(
        check(&http, &[&format!("X-Key: {raw}")]).status,
        200,
        "UTF-8 is fine"
    );
    let parameter = get(&http, "/v1/check?key=a");
    assert!(
        parameter.status == 400
            && parameter
                .body
                .contains("check.key of the config has no param:key"),
        "{parameter:?}"
    );
    assert_eq!(Scrape::of(&http).decisions().values().sum::<f64>(), 1.0);

    let (_server, http) = serve("{ key: ['header:x-key'], plan: ['default:two'] }");
    let missing = ask_raw(&http, "GET /v1/check HTTP/1.0\r\nX-Key: \r\n\r\n");
    assert!(
        missing.status == 400 && missing.body.contains("key is empty: send the header x-key"),
        "{missing:?}"
    );
    let latin = ask_raw(&http, b"GET /v1/check HTTP/1.0\r\nX-Key: \xe9\r\n\r\n");
    assert!(
        latin.status == 400 && latin.body.contains("the header x-key is not UTF-8"),
        "{latin:?}"
    );
}

/// The names of the fields that an answer over gRPC carries, but for Retry-After.
async fn fields_over_grpc(server: &Server) -> BTreeSet<String> {
    let wanted = pb::ShouldAllowRequest {
        http_headers: true,
        ..request("k", "one", None)
    };
    let ready = server
        .client()
        .await
        .should_allow(wanted)
        .await
        .unwrap()
        .into_inner()
        .http_headers;
    ready
        .into_iter()
        .map(|entry| entry.key)
        .filter(|name| name != "retry-after")
        .collect()
}

#[tokio::test]
async fn answers_carry_the_fields_that_the_config_asks_for_over_http_and_grpc() {
    let ietf = ["ratelimit", "ratelimit-policy"];
    let older = [
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
    ];
    for (headers, has_ietf, has_older) in [
        ("ietf", true, false),
        ("x-ratelimit", false, true),
        ("both", true, true),
        ("none", false, false),
    ] {
        let (server, http) = serve(&format!("{{ headers: {headers} }}"));
        for status in [200, 429] {
            let reply = get(&http, "/v1/check?key=k&plan=one");
            assert_eq!(
                (reply.status, reply.header("retry-after").is_some()),
                (status, status == 429),
                "{headers}"
            );
            assert!(
                ietf.iter()
                    .all(|name| reply.header(name).is_some() == has_ietf),
                "{headers}: {reply:?}"
            );
            assert!(
                older
                    .iter()
                    .all(|name| reply.header(name).is_some() == has_older),
                "{headers}: {reply:?}"
            );
        }
        let denied = get(&http, "/v1/check?key=k&plan=one");
        if has_older {
            let number = |name| denied.header(name).unwrap().parse::<u64>().unwrap();
            assert_eq!((number(older[0]), number(older[1])), (1, 0));
            assert!((86_000..=86_400).contains(&number(older[2])));
        }
        let expected = ietf
            .iter()
            .filter(|_| has_ietf)
            .chain(older.iter().filter(|_| has_older));
        let expected: BTreeSet<String> = expected.map(|name| (*name).to_owned()).collect();
        assert_eq!(fields_over_grpc(&server).await, expected, "{headers}");
    }
}

/// Calls of the kernel in which a thread of this name waited, as often as it did.
fn waits(server: &Server, thread: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    let read = |file: std::path::PathBuf| std::fs::read_to_string(file).unwrap_or_default();
    let mut named = tasks
        .map(|task| task.unwrap().path())
        .filter(|task| read(task.join("comm")).trim() == thread);
    let status = read(
        named
            .next()
            .unwrap_or_else(|| panic!("no thread {thread}"))
            .join("status"),
    );
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
        .unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn checks_are_served_by_all_workers() {
    use std::io::{Read, Write};
    const CHECKS: u64 = 200;
    let server = Server::start(
        &format!("listen: {{ http: '127.0.0.1:0' }}\nworkers: 2\n{PLANS}"),
        &[],
    );
    let http = server.http();
    let mut connections = [(); 2].map(|()| std::net::TcpStream::connect(&http).unwrap());
    let before = ["worker 0", "worker 1"].map(|worker| waits(&server, worker));
    for _ in 0..CHECKS {
        for connection in &mut connections {
            connection
                .write_all(b"HEAD /v1/check?key=k&plan=two HTTP/1.1\r\nHost: a\r\n\r\n")
                .unwrap();
            let read = connection.read(&mut [0; 4096]).unwrap();
            assert!(read > 0, "the connection stays open");
        }
    }
    // A worker waits before each request of its connection, unless it was so late that the next had come.
    let after = ["worker 0", "worker 1"].map(|worker| waits(&server, worker));
    assert!(
        after
            .iter()
            .zip(before)
            .all(|(after, before)| after - before > CHECKS / 10),
        "{before:?} {after:?}"
    );
    // Both count together.
    assert_eq!(Scrape::of(&http).decisions()["two allowed store"], 2.0);
}
