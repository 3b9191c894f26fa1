//! `requests` of the check endpoint: several subjects that pass together or not at all.

use serde_json::{Value, json};

use super::{check, serve};
use crate::support::http::{Reply, post};

fn ask(http: &str, query: &str, body: &Value) -> (Reply, Value) {
    let reply = post(
        http,
        &format!("/v1/check?{query}"),
        "application/json",
        &body.to_string(),
    );
    let answer = serde_json::from_str(&reply.body).unwrap();
    (reply, answer)
}

/// What each was told: outcome and remaining units.
fn told(answer: &Value) -> Vec<(&str, Option<u64>)> {
    let each = answer["requests"].as_array().unwrap().iter();
    each.map(|request| {
        (
            request["outcome"].as_str().unwrap(),
            request["remaining"].as_u64(),
        )
    })
    .collect()
}

#[test]
fn requests_are_answered_by_the_one_that_binds() {
    let (_server, http) = serve(&[]);
    let pair = json!({ "requests": [
        { "key": "u1", "plan": "both", "shard": "acme" },
        { "key": "acme", "plan": "two", "shard": "acme", "cost": 2 },
    ] });
    let (peeked, seen) = ask(&http, "peek=true", &pair);
    assert_eq!(
        (peeked.status, told(&seen)),
        (200, vec![("allowed", Some(3)), ("allowed", Some(2))])
    );
    let (reply, answer) = ask(&http, "", &pair);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(told(&answer), [("allowed", Some(2)), ("allowed", Some(0))]);
    assert_eq!(
        (&answer["allowed"], &answer["binding"], &answer["plan"]),
        (&json!(true), &json!(1), &json!("two"))
    );
    assert!(
        reply
            .header("ratelimit")
            .unwrap()
            .starts_with("\"day\";r=0")
    );
    let (reply, answer) = ask(&http, "deny_status=403", &pair);
    assert_eq!(reply.status, 403, "{reply:?}");
    assert_eq!(
        told(&answer),
        [("other_denied", Some(2)), ("denied", Some(0))]
    );
    assert_eq!(
        (
            &answer["allowed"],
            &answer["binding"],
            &answer["violated-policies"]
        ),
        (&json!(false), &json!(1), &json!(["day"]))
    );
    assert_eq!(answer["requests"][0]["plan"], json!("both"));
    assert!(reply.header("retry-after").is_some() && answer["retry_after_us"].is_u64());
    // No key is in an answer.
    assert!(
        !reply.body.contains("u1") && !reply.body.contains("acme"),
        "{}",
        reply.body
    );
    // The parameter names the same subject.
    assert_eq!(check(&http, "key=acme&plan=two&shard=acme").status, 429);
    assert_eq!(check(&http, "key=acme&plan=two").status, 200);
}

#[test]
fn requests_that_cannot_be_decided_say_which() {
    let (_server, http) = serve(&["--set", "check.key=param:key"]);
    let unknown =
        json!({ "requests": [ { "key": "k", "plan": "two" }, { "key": "k", "plan": "tow" } ] });
    let (reply, _) = ask(&http, "", &unknown);
    reply.assert_is_problem(
        404,
        "requests[1].plan is \\\"tow\\\", which is not a plan; did you mean \\\"two\\\"?",
        &unknown,
    );
    let beside = json!({ "key": "k", "requests": [ { "key": "k", "plan": "two" } ] });
    ask(&http, "", &beside)
        .0
        .assert_is_problem(400, "requests stands beside key", &beside);
    let of = |request| json!({ "requests": [ { "key": "k", "plan": "two" }, request ] });
    for (request, sentence) in [
        (
            json!({ "key": "k", "plan": "two", "request_id": "r" }),
            "requests[1]: unknown field `request_id`, expected one of `key`, `plan`, `cost`, `shard`",
        ),
        (json!({ "key": "k" }), "requests[1]: missing field `plan`"),
        // By position, an object with other fields would be a request.
        (
            json!(["k", "two"]),
            "requests[1]: invalid type: sequence, expected an object with key and plan",
        ),
        (
            json!(1),
            "requests[1]: invalid type: integer `1`, expected an object",
        ),
    ] {
        let (reply, _) = ask(&http, "", &of(request));
        assert!(!reply.body.contains("there are"), "{}", reply.body);
        reply.assert_is_problem(400, sentence, sentence);
    }
    assert_eq!(check(&http, "key=k&plan=two&requests=1").status, 400);
    let one = json!({ "requests": [ { "key": "k", "plan": "two" } ] });
    assert_eq!(told(&ask(&http, "", &one).1), [("allowed", Some(1))]);
}

#[test]
fn a_server_that_reads_keys_elsewhere_takes_no_requests_and_no_shard() {
    let (_server, http) = serve(&["--set", "check.key=header:x-user"]);
    let one = json!({ "requests": [ { "key": "k", "plan": "two" } ] });
    ask(&http, "", &one)
        .0
        .assert_is_problem(400, "this server takes no requests", &one);
    check(&http, "plan=two&shard=s").assert_is_problem(400, "takes no shard as a parameter", "");
}

/// A shard is a part of who is counted, so it comes from where the key does.
#[test]
fn a_shard_beside_a_key_that_is_no_parameter_is_refused() {
    let (_server, http) = serve(&["--set", "check.key=param:key,client_address"]);
    let sentence = "shard belongs to a key that is a parameter";
    check(&http, "plan=two&shard=s").assert_is_problem(400, sentence, "");
    assert_eq!(check(&http, "plan=two").status, 200);
}
