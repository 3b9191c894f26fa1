//! Parameters of a check by HTTP: where they may stand, and what bad ones are answered.

use tollgate::grpc::pb;

use super::{check, counts, serve};
use crate::support::http::{Scrape, ask, post, send};
use crate::support::server::{decide, request};

/// Target, media type and body of bad requests, the status they are answered with, and what the answer says.
const BAD_POSTS: [(&str, &str, &str, u16, &str); 6] = [
    (
        "/v1/check?key=x",
        "application/json",
        r#"{"key": "x", "plan": "two"}"#,
        400,
        "key is given twice",
    ),
    (
        "/v1/check",
        "application/json",
        r#"{"key": "x", "plan": "two", "cost": "1"}"#,
        400,
        "expected u64",
    ),
    (
        "/v1/check",
        "application/json",
        r#"{"key": "x", "key": "y", "plan": "two"}"#,
        400,
        "duplicate field",
    ),
    (
        "/v1/check",
        "application/json",
        "{",
        400,
        "not the JSON of a check",
    ),
    (
        "/v1/check",
        "application/x-www-form-urlencoded",
        "key=%zz&plan=two",
        400,
        "hexadecimal",
    ),
    (
        "/v1/check?key=x&plan=two",
        "text/plain",
        "anything",
        415,
        "application/json",
    ),
];

fn assert_large_bodies_are_refused(http: &str) {
    let body = " ".repeat(9_000);
    let reply = post(http, "/v1/check?key=x&plan=two", "application/json", &body);
    reply.assert_is_problem(413, "8192 bytes", &body);
    // A body in pieces is bounded too.
    let pieces = "Transfer-Encoding: chunked\r\nContent-Type: application/json";
    let chunk = format!(
        "1000\r\n{0}\r\n1000\r\n{0}\r\n1\r\n \r\n0\r\n\r\n",
        " ".repeat(0x1000)
    );
    assert_eq!(
        send(http, "POST", "/v1/check?key=x&plan=two", &[pieces], &chunk).status,
        413
    );
}

#[tokio::test]
async fn a_post_has_its_parameters_in_json_or_in_a_form() {
    let (server, http) = serve(&[]);
    let mut client = server.client().await;
    let json = |body: &str| post(&http, "/v1/check", "application/json; charset=utf-8", body);
    let first = json(r#"{"key": "a+b c", "plan": "two"}"#);
    assert_eq!(
        (first.status, first.header("content-type")),
        (200, Some("application/json")),
        "{first:?}"
    );
    assert!(first.body.contains("\"remaining\":1"), "{first:?}");
    let peeked = json(r#"{"key": "a+b c", "plan": "two", "peek": true, "cost": 1}"#);
    assert!(
        peeked.status == 200 && peeked.body.contains("\"remaining\":1"),
        "{peeked:?}"
    );
    // The same key by gRPC, in a form and in a query. In a query `+` is a plus, in a form it is a space.
    assert_eq!(decide(&mut client, "a+b c", "two").await.remaining(), 0);
    let form = |body: &str| {
        post(
            &http,
            "/v1/check",
            "application/x-www-form-urlencoded",
            body,
        )
    };
    assert_eq!(form("key=a%2Bb+c&plan=two&deny_status=403").status, 403);
    assert_eq!(check(&http, "key=a+b%20c&plan=two").status, 429);
    assert_eq!(
        post(
            &http,
            "/v1/check?plan=two",
            "application/json",
            r#"{"key": "a+b c"}"#
        )
        .status,
        429
    );
    assert_eq!(
        json(r#"{"key": "a+b c", "plan": "two", "deny_status": 403}"#).status,
        403
    );

    for (target, media, body, status, sentence) in BAD_POSTS {
        let reply = post(&http, target, media, body);
        reply.assert_is_problem(status, sentence, body);
    }
    assert_large_bodies_are_refused(&http);
    // None of them was charged.
    assert_eq!(decide(&mut client, "x", "two").await.remaining(), 1);
}

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    let (_server, http) = serve(&[]);
    let headers = ["Content-Type: application/json", "Content-Length: 10"];
    let reply = send(&http, "POST", "/v1/check?key=x&plan=two", &headers, "{");
    assert!(
        reply.status == 408 && reply.body.contains("within 5 s"),
        "{reply:?}"
    );
    // A request whose body did not arrive charged nothing.
    assert_eq!(check(&http, "key=x&plan=two&cost=2").status, 200);
}

#[tokio::test]
async fn a_misspelt_plan_is_decided_by_the_default_plan_and_counted() {
    let (server, http) = serve(&["--set", "default_plan=two"]);
    let mut client = server.client().await;
    assert_eq!(check(&http, "key=a&plan=tow").status, 200);
    assert_eq!(
        decide(&mut client, "a", "no such plan").await.remaining(),
        0
    );
    assert_eq!(check(&http, "key=a&plan=two").status, 429);
    let batch = pb::ShouldAllowBatchRequest {
        requests: vec![request("a", "tow", None)],
    };
    let answered = client.should_allow_batch(batch).await.unwrap().into_inner();
    let pb::should_allow_result::Result::Response(denied) =
        answered.results[0].result.clone().unwrap()
    else {
        panic!("it failed")
    };
    assert!(!denied.allowed && denied.limit_name == "day", "{denied:?}");
    let scrape = Scrape::of(&http);
    assert_eq!(
        (
            scrape.value("tollgate_unknown_plans_total"),
            scrape.value("tollgate_default_plan_total")
        ),
        (3.0, 3.0)
    );
    assert_eq!(
        scrape.decisions(),
        counts(&[("two allowed store", 2.0), ("two denied store", 2.0)])
    );
}

#[test]
fn an_invalid_request_gets_its_error_and_charges_nothing() {
    let (_server, http) = serve(&[]);
    for (query, status, sentence) in [
        ("", 400, "key is empty"),
        ("plan=two", 400, "key is empty"),
        ("key=a", 400, "plan is empty"),
        ("key=a&plan=tow", 404, "did you mean \\\"two\\\"?"),
        ("key=a&plan=two&cost=0", 400, "cost is 0"),
        ("key=a&plan=two&cost=one", 400, "whole number"),
        ("key=a&plan=two&deny_status=200", 400, "400 to 599"),
        (
            "key=a&plan=two&user=b",
            400,
            "there are key, plan, cost, deny_status, peek, shard",
        ),
        ("key=a&key=b&plan=two", 400, "key is given twice"),
        ("key=%ff&plan=two", 400, "key is not UTF-8"),
        ("key=%zz&plan=two", 400, "hexadecimal"),
        (
            &format!("key={}&plan=two", "x".repeat(513)),
            400,
            "key has 513 bytes",
        ),
    ] {
        let reply = check(&http, query);
        assert_eq!(
            (reply.status, reply.header("content-type")),
            (status, Some("application/problem+json")),
            "{query}"
        );
        assert!(reply.body.contains(sentence), "{query}: {}", reply.body);
    }
    for (method, target, status) in [
        ("GET", "/", 404),
        ("GET", "/v1/check/", 404),
        ("GET", "/metrics/x", 404),
        ("DELETE", "/v1/check?key=a&plan=two", 405),
        ("PUT", "/v1/check?key=a&plan=two", 405),
        ("POST", "/metrics", 405),
        ("HEAD", "/healthz", 200),
        ("HEAD", "/metrics", 200),
    ] {
        let reply = ask(&http, method, target, &["Content-Length: 0"]);
        assert_eq!(reply.status, status, "{method} {target}: {reply:?}");
    }
    let oversized = check(&http, &format!("plan=two&key={}", "x".repeat(20_000)));
    assert!([414, 431].contains(&oversized.status), "{oversized:?}");
    let cookies = format!("Cookie: {}", "x".repeat(20_000));
    assert_eq!(
        ask(&http, "GET", "/v1/check?key=a&plan=two", &[&cookies]).status,
        431
    );
    assert!(Scrape::of(&http).decisions().is_empty());
}
