//! The HTTP side from outside: the check endpoint, health, and metrics, which count exactly and contain no key.

mod holds;
mod input;
mod joint;
mod metrics;
mod unread;

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::support::http::{Reply, Scrape, ask, ask_raw, get};
use crate::support::server::{PATIENCE, Server, field, request, tollgate};

const PLANS: &str = "listen: { http: '127.0.0.1:0' }\n\
    plans:\n\
    \x20 two: { limits: [ { name: day, quota: 2, window: 1d } ] }\n\
    \x20 both:\n\
    \x20   limits:\n\
    \x20     - { name: hour, quota: 5, window: 1h, algorithm: fixed_window, anchor: first_request }\n\
    \x20     - { name: bucket, quota: 60, window: 1m, algorithm: token_bucket, burst: 3 }\n\
    \x20 shadow: { limits: [ { name: day, quota: 1, window: 1d } ], shadow: true }\n\
    \x20 closed: { limits: [ { name: day, quota: 1000, window: 1d } ], on_store_failure: deny }\n\
    \x20 open: { limits: [ { name: day, quota: 1000, window: 1d } ], on_store_failure: allow }\n\
    \x20 free: { unlimited: true }\n\
    \x20 banned: { blocked: true }\n";

/// A server, and where it serves HTTP.
fn serve(flags: &[&str]) -> (Server, String) {
    let server = Server::start(PLANS, flags);
    let http = server.http();
    (server, http)
}

fn counts(expected: &[(&str, f64)]) -> BTreeMap<String, f64> {
    expected
        .iter()
        .map(|(labels, count)| ((*labels).to_owned(), *count))
        .collect()
}

fn check(http: &str, query: &str) -> Reply {
    get(http, &format!("/v1/check?{query}"))
}

/// Answers in JSON where the caller accepts it, and of plans that have no limits, are blocked, or deny nothing.
fn assert_other_plans_and_json(http: &str) {
    let json = ask(
        http,
        "GET",
        "/v1/check?key=b&plan=two",
        &["Accept: text/html, application/json;q=0.9"],
    );
    assert_eq!(
        (json.status, json.header("content-type")),
        (200, Some("application/json"))
    );
    assert!(
        json.body.contains("\"allowed\":true") && json.body.contains("\"remaining\":1"),
        "{json:?}"
    );
    let free = check(http, "key=b&plan=free");
    assert_eq!(
        (
            free.status,
            free.header("ratelimit"),
            free.header("ratelimit-policy")
        ),
        (200, None, None)
    );
    assert_eq!(check(http, "key=b&plan=banned").status, 429);
    // A plan in shadow mode denies no request.
    let shadow: Vec<u16> = (0..3)
        .map(|_| check(http, "key=b&plan=shadow").status)
        .collect();
    assert_eq!(shadow, [200, 200, 200]);
}

#[test]
fn a_check_is_answered_by_status_and_header_fields() {
    let (_server, http) = serve(&[]);
    let first = check(&http, "key=a&plan=both&cost=2");
    assert_eq!(
        (
            first.status,
            first.body.as_str(),
            first.header("retry-after")
        ),
        (200, "", None)
    );
    assert_eq!(
        first.header("ratelimit-policy"),
        Some("\"hour\";q=5;w=3600, \"bucket\";q=60;w=60;tollgate-burst=3")
    );
    let standing = first.header("ratelimit").unwrap();
    // The hour began with this request.
    assert_eq!(standing, "\"hour\";r=3;t=3600, \"bucket\";r=1");
    assert_eq!(first.header("cache-control"), Some("no-store"));

    let denied = ask(
        &http,
        "POST",
        "/v1/check?key=a&plan=both&cost=3",
        &["Content-Length: 0"],
    );
    assert_eq!(
        (denied.status, denied.header("content-type")),
        (429, Some("application/problem+json"))
    );
    // The bucket gives a unit a second and lacks two; at most one came back meanwhile.
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=2).contains(&wait), "{denied:?}");
    let standing = denied.header("ratelimit").unwrap();
    assert!(
        standing.ends_with(&format!("\"bucket\";r=1;t={wait}"))
            || standing.contains("\"bucket\";r=2;"),
        "{standing}"
    );
    for part in [
        "\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\"",
        "\"status\":429",
        "\"violated-policies\":[\"bucket\"]",
        "\"allowed\":false",
        "\"outcome\":\"denied\"",
        "\"decided_by\":\"store\"",
        "\"limit_name\":\"bucket\"",
        "\"retry_after_us\":",
    ] {
        assert!(denied.body.contains(part), "no {part} in {}", denied.body);
    }
    assert_eq!(
        check(&http, "key=a&plan=both&cost=3&deny_status=403").status,
        403
    );
    let never = check(&http, "key=a&plan=both&cost=4");
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert!(
        never.body.contains("\"outcome\":\"never_fits\"") && never.body.contains("[\"bucket\"]"),
        "{never:?}"
    );

    assert_other_plans_and_json(&http);
}

#[test]
fn head_charges_as_get_does() {
    let (_server, http) = serve(&[]);
    for remaining in ["\"day\";r=1", "\"day\";r=0"] {
        let charged = ask(&http, "HEAD", "/v1/check?key=a&plan=two", &[]);
        assert_eq!(
            (
                charged.status,
                charged.header("ratelimit"),
                charged.body.as_str()
            ),
            (200, Some(remaining), "")
        );
    }
    assert_eq!(check(&http, "key=a&plan=two").status, 429);
    let denied = ask(&http, "HEAD", "/v1/check?key=a&plan=two", &[]);
    assert_eq!((denied.status, denied.body.as_str()), (429, ""));
}

#[test]
fn a_peek_asks_without_charging_by_every_method() {
    let (_server, http) = serve(&[]);
    for method in ["GET", "HEAD", "POST"] {
        let peeked = ask(
            &http,
            method,
            "/v1/check?key=a&plan=two&peek=true",
            &["Content-Length: 0"],
        );
        assert_eq!(
            (peeked.status, peeked.header("ratelimit")),
            (200, Some("\"day\";r=2")),
            "{method}"
        );
    }
    assert_eq!(check(&http, "key=a&plan=two&cost=2").status, 200);
    assert_eq!(check(&http, "key=a&plan=two&peek=true").status, 429);
    assert_eq!(check(&http, "key=a&plan=two&peek=false").status, 429);
    assert_eq!(Scrape::of(&http).value("tollgate_peeks_total"), 4.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_changes_readiness_only_and_ends() {
    let (server, http) = serve(&[]);
    assert_eq!(
        (get(&http, "/readyz").status, get(&http, "/healthz").status),
        (200, 200)
    );
    // An open stream keeps the drain of gRPC from ending.
    let mut client = server.client().await;
    let (asking, asked) = tokio::sync::mpsc::channel(1);
    let stream = client
        .should_allow_stream(tokio_stream::wrappers::ReceiverStream::new(asked))
        .await
        .unwrap();
    // Connections that send nothing must not delay the end of HTTP.
    let _silent: Vec<TcpStream> = (0..5).map(|_| TcpStream::connect(&http).unwrap()).collect();
    server.signal("TERM");
    let started = Instant::now();
    while get(&http, "/readyz").status != 503 {
        assert!(started.elapsed() < PATIENCE, "still ready");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        (get(&http, "/healthz").status, get(&http, "/metrics").status),
        (200, 200)
    );
    assert_eq!(check(&http, "key=a&plan=two").status, 200);
    drop((asking, stream, client));
    let ((status, log), _) = server.wait_and_log();
    assert!(
        status.success() && log.contains("stopped: every call was answered"),
        "{status} {log}"
    );
    assert!(
        TcpStream::connect(&http).is_err(),
        "something listens at {http} still"
    );
}

#[test]
fn no_port_is_opened_unless_configured() {
    let off = Server::start(&PLANS.replace("127.0.0.1:0", ""), &[]);
    let start = off.log();
    assert!(
        start.contains("tollgate is serving") && !start.contains("\"http\""),
        "{start}"
    );
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("listen.http={}", taken.local_addr().unwrap());
    let output = tollgate()
        .args(["--listen", "127.0.0.1:0", "--set", &address])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("another process listens there"),
        "{output:?}"
    );
}

#[test]
fn a_request_names_its_host_once() {
    let (_server, http) = serve(&[]);
    let ask = |version: &str, hosts: &str| {
        ask_raw(
            &http,
            format!(
                "GET /v1/check?key=k&plan=free HTTP/{version}\r\n{hosts}Connection: close\r\n\r\n"
            ),
        )
        .status
    };
    assert_eq!(
        (ask("1.1", ""), ask("1.1", "Host: a\r\nHost: b\r\n")),
        (400, 400)
    );
    assert_eq!((ask("1.1", "Host: a\r\n"), ask("1.0", "")), (200, 200));
}

/// A site whose name resolves to this server (DNS rebinding) is told no figures. Probes and proxies name whatever they like.
#[test]
fn figures_are_shown_under_names_of_this_server_alone() {
    let status = "--set=status.page=true";
    let (_server, http) = serve(&[status]);
    let listed = Server::start(
        PLANS,
        &[status, "--set=listen.http_hosts=limits.example.com,*.svc"],
    );
    let of_metrics = Server::start(PLANS, &["--set=listen.metrics=127.0.0.1:0"]);
    let metrics = field(&of_metrics.log(), "metrics");
    let ask = |address: &str, host: &str, request: &str| {
        ask_raw(
            address,
            format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"),
        )
    };
    let figures = [
        "GET /metrics",
        "GET /status",
        "GET /status/data",
        "POST /status/explain",
        "PUT /status",
        "HEAD /metrics",
    ];
    for (address, host, refused) in [
        (http.as_str(), "evil.example", true),
        (&http, "limits.example.com", true),
        (&http, "localhost:8080", false),
        (&http, &http, false),
        (&listed.http(), "limits.example.com", false),
        (&listed.http(), "a.svc:80", false),
        (&listed.http(), "evil.example", true),
    ] {
        for request in figures {
            let reply = ask(address, host, request);
            assert_eq!(reply.status == 421, refused, "{host} {request}: {reply:?}");
            assert!(
                !refused || reply.body.contains("listen.http_hosts") || request.starts_with("HEAD"),
                "{reply:?}"
            );
        }
        for other in [
            "/healthz",
            "/readyz",
            "/openapi.json",
            "/v1/check?key=k&plan=free",
        ] {
            assert_eq!(
                ask(address, host, &format!("GET {other}")).status,
                200,
                "{host} {other}"
            );
        }
    }
    assert_eq!(
        ["evil.example", "localhost"].map(|host| ask(&metrics, host, "GET /metrics").status),
        [421, 200]
    );
    assert_eq!(ask(&metrics, "evil.example", "GET /readyz").status, 200);
}
