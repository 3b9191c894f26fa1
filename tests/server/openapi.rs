//! `docs/openapi.json` against what a server answers: everything that it answers is described, and everything that is described
//! is answered.

mod description;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use tollgate::grpc::pb::{DecidedBy, ShouldAllowBatchRequest};

use crate::support::http::{Reply, Scrape, ask, ask_raw, get, post, send};
use crate::support::redis::Redis;
use crate::support::server::{PATIENCE, Server, decide, request};
use description::Description;

const DOCUMENT: &str = include_str!("../../docs/openapi.json");
const PLANS: &str = "listen: { http: '127.0.0.1:0', lame_duck: 3s }
plans:
  two: { limits: [ { name: day, quota: 2, window: 1d }, { name: bucket, quota: 9, window: 1m, algorithm: token_bucket } ] }
  free: { unlimited: true }
  jobs: { limits: [ { quota: 1, algorithm: concurrency }, { name: day, quota: 9, window: 1d } ] }
";
/// Redis keeps no holds yet.
const SLOTS: &str = "  jobs: {";
/// Calls about holds, which take JSON by POST.
const OF_HOLDS: [&str; 4] = ["/v1/reserve", "/v1/settle", "/v1/extend", "/v1/record"];
/// What only a store gives that is asked over a network: without one, these two need no confirmation.
const OF_REDIS: [&str; 2] = ["post /v1/reserve 503", "post /v1/extend 503"];
/// Requests of a worker that may wait for Redis.
const REQUESTS_WAITING_MAX: usize = 4096;
/// Set by the server of HTTP itself, so they are not described.
const OF_EVERY_ANSWER: [&str; 5] = [
    "date",
    "connection",
    "content-type",
    "content-length",
    "transfer-encoding",
];

/// What `/readyz` answers once the server stops.
fn not_ready(http: &str) -> Reply {
    let began = Instant::now();
    loop {
        let reply = get(http, "/readyz");
        if reply.status != 200 {
            return reply;
        }
        assert!(began.elapsed() < PATIENCE);
    }
}

/// Lets so many requests wait for the store that the server takes no more, and asks then.
async fn ask_in_a_flood(description: &mut Description) {
    let redis = Redis::start();
    let server = Server::start(
        PLANS.split(SLOTS).next().unwrap(),
        &[
            "--store",
            &redis.url(),
            "--set",
            "store.deadline=10s",
            "--set",
            "workers=1",
        ],
    );
    let mut client = server.client().await;
    let http = server.http();
    // Redis has answered, so that the server takes it for busy and not for gone.
    assert_eq!(
        decide(&mut client, "a", "two").await.decided_by(),
        DecidedBy::Store
    );
    redis.signal("STOP");
    for requests in [1_000, 1_000, 1_000, 1_000, REQUESTS_WAITING_MAX - 4_000] {
        let mut client = client.clone();
        let requests = vec![request("a", "two", None); requests];
        tokio::spawn(async move {
            client
                .should_allow_batch(ShouldAllowBatchRequest { requests })
                .await
        });
    }
    let began = Instant::now();
    while Scrape::of(&http).value("tollgate_inflight_requests") < REQUESTS_WAITING_MAX as f64 {
        assert!(began.elapsed() < PATIENCE, "the requests do not wait");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for method in ["GET", "HEAD", "POST"] {
        let reply = ask(
            &http,
            method,
            "/v1/check?key=b&plan=two",
            &["Content-Length: 0"],
        );
        assert_eq!(reply.status, 503, "{reply:?}");
        description.check(method, "/v1/check", &reply);
    }
    redis.signal("CONT");
}

/// Checks that every method asks for.
const QUERIES: [&str; 6] = [
    "key=a&plan=free",
    "key=a&plan=two&cost=2",
    "key=a&plan=two",
    "key=a",
    "key=a&plan=nowhere",
    "key=b&plan=two&cost=99",
];

/// Asks for all paths but that of checks. The cookies are too long for a server.
fn ask_other_paths(description: &mut Description, http: &str, cookies: &str) {
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        description.check("GET", path, &get(http, path));
        description.check("PUT", path, &ask(http, "PUT", path, &[]));
        description.check("GET", path, &ask(http, "GET", path, &[cookies]));
        let elsewhere =
            format!("GET {path} HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n");
        description.check("GET", path, &ask_raw(http, elsewhere));
    }
}

/// Asks in every way that a request can go, except those that need a server in trouble.
fn ask_everything(description: &mut Description, http: &str) {
    let cookies = format!("Cookie: {}", "x".repeat(20_000));
    ask_other_paths(description, http, &cookies);
    let mut caller = Caller { description, http };
    for method in ["GET", "HEAD", "POST"] {
        for query in QUERIES {
            let query = query.replace("key=", &format!("key={method}-"));
            caller.check(method, &query, &[], "");
        }
        for status in [403, 500] {
            let query = format!("key={method}-a&plan=two&deny_status={status}");
            caller.check(method, &query, &[], "");
        }
        let query = format!("key={method}-c&plan=two");
        caller.check(method, &query, &["Accept: application/json"], "");
        caller.check(method, "key=a&plan=two", &[&cookies], "");
    }
    caller.check("DELETE", "key=a&plan=two", &[], "");
    let media = ["Content-Type: application/json"];
    caller.check("POST", "", &media, r#"{"key":"d","plan":"two"}"#);
    let pair =
        r#"{"requests":[{"key":"e","plan":"two","cost":2,"shard":"s"},{"key":"f","plan":"two"}]}"#;
    caller.check("POST", "", &media, pair);
    caller.check("POST", "", &media, pair);
    caller.check("POST", "key=a&plan=two", &media, &" ".repeat(9_000));
    let text = ["Content-Type: text/plain"];
    caller.check("POST", "key=a&plan=two", &text, "text");
    ask_about_holds(&mut caller);
}

/// Asks a server whose config names two subjects, until it denies.
fn ask_for_subjects(description: &mut Description) {
    let subjects = "check: { subjects: [ { key: ['param:user'], plan: ['default:two'] },
        { key: ['client_address'], plan: ['default:free'] } ] }\n";
    let server = Server::start(&format!("{subjects}{PLANS}"), &[]);
    let http = server.http();
    let mut caller = Caller {
        description,
        http: &http,
    };
    for query in ["user=a", "user=a&cost=1", "user=a", "key=a"] {
        for method in ["GET", "HEAD", "POST"] {
            caller.check(method, query, &["Accept: application/json"], "");
        }
    }
}

/// Asks for everything about holds, except what needs a store that is full.
fn ask_about_holds(caller: &mut Caller<'_>) {
    let cookies = format!("Cookie: {}", "x".repeat(20_000));
    for (path, members) in [
        ("/v1/reserve", r#""plan":"jobs","request_id":"a""#),
        ("/v1/reserve", r#""plan":"jobs","request_id":"b""#),
        (
            "/v1/reserve",
            r#""plan":"jobs","request_id":"b","deny_status":403"#,
        ),
        (
            "/v1/reserve",
            r#""plan":"jobs","request_id":"b","deny_status":500"#,
        ),
        ("/v1/reserve", r#""plan":"jobs","request_id":"a","cost":2"#),
        ("/v1/extend", r#""plan":"jobs","request_id":"a""#),
        ("/v1/extend", r#""plan":"jobs","request_id":"c""#),
        ("/v1/settle", r#""plan":"jobs","request_id":"a","actual":1"#),
        ("/v1/extend", r#""plan":"jobs","request_id":"a""#),
        ("/v1/record", r#""plan":"two","request_id":"r""#),
        ("/v1/record", r#""plan":"two","request_id":"r","cost":2"#),
        ("/v1/settle", r#""plan":"two","request_id":"r""#),
    ] {
        caller.post(path, &format!(r#"{{"key":"h",{members}}}"#));
    }
    for path in OF_HOLDS {
        caller.post(path, r#"{"key":"h"}"#);
        caller.post(path, r#"{"key":"h","plan":"nowhere","request_id":"a"}"#);
        caller.post(path, &" ".repeat(5_000));
        let http = caller.http;
        let mut check = |method, headers: &[&str]| {
            let reply = ask(http, method, path, headers);
            caller.description.check(method, path, &reply);
        };
        check("POST", &["Content-Type: text/plain", "Content-Length: 0"]);
        check("POST", &[&cookies]);
        check("PUT", &[]);
    }
    for method in ["GET", "HEAD", "POST"] {
        for cost in [1, 2] {
            let query = format!("key={method}-i&plan=two&request_id=a&cost={cost}");
            caller.check(method, &query, &[], "");
        }
    }
}

/// Half a body for every call that has one.
fn send_half_a_body(description: &mut Description, http: &str) {
    let paths = OF_HOLDS.into_iter().chain(["/v1/check"]);
    let asked = paths.map(|path| {
        let http = http.to_owned();
        let headers = ["Content-Type: application/json", "Content-Length: 9"];
        let send = move || send(&http, "POST", path, &headers, "{");
        (path, std::thread::spawn(send))
    });
    for (path, reply) in asked.collect::<Vec<_>>() {
        description.check("POST", path, &reply.join().unwrap());
    }
}

/// Records and settles until the store takes no more.
fn fill_the_store(description: &mut Description) {
    let server = Server::start(PLANS, &["--store", "memory:?capacity=1MiB"]);
    let http = server.http();
    let mut caller = Caller {
        description,
        http: &http,
    };
    for (path, units) in [("/v1/record", ""), ("/v1/settle", r#","actual":1"#)] {
        let mut full = |key: usize| {
            let key = format!("{key:0>400}");
            let body = format!(r#"{{"key":"{key}","plan":"two","request_id":"a"{units}}}"#);
            caller.post(path, &body) == 503
        };
        assert!((0..9_000).any(&mut full), "{path}");
    }
}

struct Caller<'a> {
    description: &'a mut Description,
    http: &'a str,
}

impl Caller<'_> {
    /// Sends JSON, and panics when the answer is not as described. Returns its status.
    fn post(&mut self, path: &str, body: &str) -> u16 {
        let reply = post(self.http, path, "application/json", body);
        self.description.check("POST", path, &reply);
        reply.status
    }

    /// Asks for a check, and panics when the answer is not as described.
    fn check(&mut self, method: &str, query: &str, headers: &[&str], body: &str) {
        let length = format!("Content-Length: {}", body.len());
        let with_length: Vec<&str> = headers
            .iter()
            .copied()
            .chain((method == "POST").then_some(length.as_str()))
            .collect();
        let target = format!("/v1/check?{query}");
        let reply = send(self.http, method, &target, &with_length, body);
        self.description.check(method, "/v1/check", &reply);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_is_answered_is_described_and_everything_that_is_described_is_answered() {
    let document: Value = serde_json::from_str(DOCUMENT).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let mut description = Description {
        document,
        seen: BTreeSet::new(),
    };
    for headers in ["ietf", "x-ratelimit"] {
        let server = Server::start(PLANS, &["--set", &format!("check.headers={headers}")]);
        let http = server.http();
        assert_eq!(
            serde_json::from_str::<Value>(&get(&http, "/openapi.json").body).unwrap(),
            description.document
        );
        ask_everything(&mut description, &http);
        if headers == "ietf" {
            send_half_a_body(&mut description, &http);
            server.signal("TERM");
            description.check("GET", "/readyz", &not_ready(&http));
        }
    }
    ask_for_subjects(&mut description);
    fill_the_store(&mut description);
    ask_in_a_flood(&mut description).await;
    let described = description.described();
    let seen = &description.seen;
    assert!(described.len() > 120, "{described:?}");
    let of_redis = |name: &&String| OF_REDIS.iter().any(|redis| name.starts_with(redis));
    let missing = described.difference(seen);
    let missing: Vec<_> = missing.filter(|name| !of_redis(name)).collect();
    assert!(
        missing.is_empty(),
        "described, and never answered: {missing:#?}"
    );
}
