//! `check.subjects`: the subjects that a config names, which pass together or not at all. Each bad input has its answer.

use serde_json::Value;
use tollgate::grpc::pb;

use crate::support::http::{Reply, Scrape, ask, ask_raw, get, post};
use crate::support::server::Server;

const PLANS: &str = "plans:
  customer: { limits: [ { name: minute, quota: 3, window: 1d } ] }
  paid: { limits: [ { name: paid, quota: 1000, window: 1d } ] }
  address: { limits: [ { name: address, quota: 14, window: 1d } ] }
  free: { unlimited: true }
";

/// A customer, who may be missing, and an address.
const CUSTOMER_AND_ADDRESS: &str = "subjects: [
    { key: ['header:x-api-key', 'param:customer'], plan: ['header:x-plan', 'default:customer'],
      cost: ['param:units', 'default:1'], shard: ['param:org'], optional: true },
    { key: [client_address], plan: ['default:address'] } ]";

/// A server with these fields of `check`, and where it serves HTTP.
fn serve(check: &str) -> (Server, String) {
    let config = format!(
        "listen: {{ http: '127.0.0.1:0' }}\ncheck: {{ {check}, trusted_proxies: [127.0.0.1] }}\n{PLANS}"
    );
    let server = Server::start(&config, &[]);
    let http = server.http();
    (server, http)
}

/// Asks for a customer and an address, and wants JSON.
fn check(http: &str, query: &str, customer: &str, address: &str) -> (Reply, Value) {
    let reply = ask(
        http,
        "GET",
        &format!("/v1/check?{query}"),
        &[
            &format!("X-Api-Key: {customer}"),
            &format!("X-Forwarded-For: {address}"),
            "Accept: application/json",
        ],
    );
    let answer = serde_json::from_str(&reply.body).unwrap();
    (reply, answer)
}

/// Of each subject its plan, its outcome and what it has left.
fn told(answer: &Value) -> Vec<(&str, &str, u64)> {
    let each = answer["requests"].as_array().unwrap().iter();
    each.map(|request| {
        let text = |name: &str| request[name].as_str().unwrap();
        (
            text("plan"),
            text("outcome"),
            request["remaining"].as_u64().unwrap(),
        )
    })
    .collect()
}

#[test]
fn subjects_pass_together_and_a_denied_one_costs_the_others_nothing() {
    let (_server, http) = serve(CUSTOMER_AND_ADDRESS);
    let address = "203.0.113.7";
    for left in [2, 1, 0] {
        let (reply, answer) = check(&http, "", "u-17", address);
        assert_eq!(
            told(&answer),
            [
                ("customer", "allowed", left),
                ("address", "allowed", 11 + left)
            ]
        );
        assert_eq!(
            (reply.status, &answer["binding"], &answer["allowed"]),
            (200, &0.into(), &true.into())
        );
        let limit = reply.header("ratelimit").unwrap();
        assert!(
            limit.starts_with(&format!("\"minute\";r={left}")),
            "{limit}"
        );
    }
    for _ in 0..5 {
        let (reply, answer) = check(&http, "deny_status=403", "u-17", address);
        assert_eq!(
            told(&answer),
            [("customer", "denied", 0), ("address", "other_denied", 11)]
        );
        assert_eq!(
            (reply.status, &answer["violated-policies"]),
            (403, &Value::from(vec!["minute"]))
        );
        assert!(reply.header("retry-after").is_some() && !reply.body.contains("u-17"));
    }
    // Others of the same address use it up. Then it denies, and its fields are those of the answer.
    for customer in 0..11 {
        let customer = format!("u-{customer}");
        assert_eq!(check(&http, "", &customer, address).0.status, 200);
    }
    let (reply, answer) = check(&http, "", "u-18", address);
    assert_eq!(
        told(&answer),
        [("customer", "other_denied", 3), ("address", "denied", 0)]
    );
    assert_eq!((reply.status, &answer["binding"]), (429, &1.into()));
    assert!(
        reply
            .header("ratelimit-policy")
            .unwrap()
            .starts_with("\"address\";q=14")
    );
    let decisions = Scrape::of(&http).decisions();
    assert_eq!(
        (
            decisions["address allowed store"],
            decisions["address other_denied store"],
            decisions["customer other_denied store"]
        ),
        (14.0, 5.0, 1.0)
    );
}

#[test]
fn a_request_without_an_optional_key_is_decided_by_the_others() {
    let (_server, http) = serve(CUSTOMER_AND_ADDRESS);
    for expected in [13, 12] {
        let (reply, answer) = check(&http, "", "", "203.0.113.7");
        assert_eq!(told(&answer), [("address", "allowed", expected)]);
        assert!(
            reply
                .header("ratelimit")
                .unwrap()
                .starts_with("\"address\"")
        );
    }
    // It has header fields alone unless it wants JSON, as with one subject.
    let plain = ask(&http, "GET", "/v1/check", &["X-Forwarded-For: 203.0.113.7"]);
    assert_eq!((plain.status, plain.body.as_str()), (200, ""));
    let (_server, http) = serve(
        "subjects: [ { key: ['header:x-api-key'], plan: ['default:free'], optional: true } ]",
    );
    get(&http, "/v1/check").assert_is_problem(
        400,
        "the request has none of the keys: send the header x-api-key",
        "",
    );
}

/// How many units of the plan `customer` a key of a shard has left, asked over gRPC.
async fn remaining(server: &Server, key: &str, shard: &str) -> u64 {
    let peek = pb::PeekRequest {
        key: key.to_owned(),
        plan: "customer".to_owned(),
        shard: shard.to_owned(),
        cost: None,
    };
    let peeked = server.client().await.peek(peek).await.unwrap();
    peeked.into_inner().answer.unwrap().remaining()
}

#[tokio::test]
async fn cost_and_shard_have_sources_of_their_own() {
    let (server, http) = serve(CUSTOMER_AND_ADDRESS);
    let (_, answer) = check(&http, "units=2&cost=5&org=acme", "u-17", "203.0.113.7");
    assert_eq!(
        told(&answer),
        [("customer", "allowed", 1), ("address", "allowed", 9)]
    );
    assert_eq!(
        (
            remaining(&server, "u-17", "acme").await,
            remaining(&server, "u-17", "").await
        ),
        (1, 3)
    );
    let body = r#"{"customer": "u-18", "units": 3, "org": "{a}cme{"}"#;
    let answer = |target: &str| -> Value {
        let reply = post(&http, target, "application/json", body);
        assert_eq!(reply.status, 200, "{reply:?}");
        serde_json::from_str(&reply.body).unwrap()
    };
    // The address is that of the peer.
    let peeked = answer("/v1/check?peek=true");
    assert_eq!(
        told(&peeked),
        [("customer", "allowed", 3), ("address", "allowed", 14)]
    );
    let charged = answer("/v1/check");
    assert_eq!(
        told(&charged),
        [("customer", "allowed", 0), ("address", "allowed", 13)]
    );
    assert_eq!(remaining(&server, "u-18", "{a}cme{").await, 0);
}

/// The text without times, which run on between two requests.
fn without_times(text: &str) -> String {
    let is_digit = |letter: char| letter.is_ascii_digit();
    let short = |digits: &&str| digits.len() < 5;
    let mut shown = String::new();
    for word in text.split_inclusive(|letter: char| !is_digit(letter)) {
        let rest = word.trim_start_matches(is_digit);
        let digits = &word[..word.len() - rest.len()];
        shown.push_str(Some(digits).filter(short).unwrap_or("TIME"));
        shown.push_str(rest);
    }
    shown
}

#[test]
fn one_subject_is_answered_as_key_and_plan_are() {
    let fields = "key: ['header:x-api-key'], plan: ['header:x-plan', 'default:free']";
    let servers = [
        serve(fields),
        serve(&format!("subjects: [ {{ {fields} }} ]")),
    ];
    let ask = |headers: &[&str]| {
        let replies = servers
            .each_ref()
            .map(|(_, http)| ask(http, "GET", "/v1/check", headers));
        let shown = replies.map(|reply| {
            let fields = reply.headers().filter(|(name, _)| *name != "date");
            let fields = fields.map(|(name, value)| without_times(&format!("{name}: {value}")));
            (
                reply.status,
                fields.collect::<Vec<_>>(),
                without_times(&reply.body),
            )
        });
        assert_eq!(shown[0], shown[1], "{headers:?}");
        shown[0].0
    };
    let json = "Accept: application/json";
    assert_eq!(ask(&["X-Api-Key: a"]), 200);
    assert_eq!(ask(&["X-Api-Key: a", json]), 200);
    assert_eq!(ask(&["X-Api-Key: a", "X-Plan: nowhere"]), 404);
    for status in [200, 200, 200, 429, 429] {
        assert_eq!(ask(&["X-Api-Key: a", "X-Plan: customer", json]), status);
    }
}

/// Queries, and bodies of forms, that are refused.
const SMUGGLED: [(&str, &str, &str); 12] = [
    ("customer=a&customer=b", "", "customer is given twice"),
    ("customer=a", "customer=a", "customer is given twice"),
    ("org=s", "org=s", "org is given twice"),
    ("units=1", "units=2", "units is given twice"),
    ("peek=false", "peek=false", "peek is given twice"),
    (
        "deny_status=403&deny_status=403",
        "",
        "deny_status is given twice",
    ),
    (
        "key=a",
        "",
        "an unknown parameter, key; there are customer, units, cost, deny_status, peek, org",
    ),
    ("plan=paid", "", "an unknown parameter, plan; there are"),
    ("shard=s", "", "an unknown parameter, shard; there are"),
    ("%63ustomer=a", "", "an unknown parameter; there are"),
    ("Customer=a", "", "an unknown parameter; there are"),
    (
        "customer=a;units=1000",
        "plan=paid",
        "an unknown parameter, plan; there are",
    ),
];

/// Requests that are refused because a value is out of bounds, with what they are told.
fn out_of_bounds() -> Vec<(String, &'static str)> {
    let long = |bytes| "s".repeat(bytes);
    vec![
        (
            format!("customer=a&org={}", long(65)),
            "subjects[0].shard has 65 bytes: at most 64",
        ),
        ("customer=a&org=%ff".to_owned(), "org is not UTF-8"),
        (
            "customer=a&org=%zz".to_owned(),
            "org has a % that two hexadecimal digits do not follow",
        ),
        (
            format!("customer={}", long(513)),
            "subjects[0].key has 513 bytes: at most 512",
        ),
        ("customer=".to_owned(), "subjects[0].key is empty"),
        ("customer=a&units=0".to_owned(), "subjects[0].cost is 0"),
        (
            "customer=a&units=-1".to_owned(),
            "units is \\\"-1\\\"; it must be a whole number",
        ),
        (
            "cost=18446744073709551616".to_owned(),
            "cost is \\\"18446744073709551616\\\"",
        ),
    ]
}

#[test]
fn every_bad_input_has_its_answer_and_charges_nothing() {
    let (_server, http) = serve(CUSTOMER_AND_ADDRESS);
    let client = "X-Forwarded-For: 203.0.113.7";
    let form = |query: &str, body: &str| {
        let request = format!(
            "POST /v1/check?{query} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n{client}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        ask_raw(&http, request)
    };
    for (query, body, sentence) in SMUGGLED {
        form(query, body).assert_is_problem(400, sentence, &(query, body));
    }
    for (query, sentence) in out_of_bounds() {
        form(&query, "").assert_is_problem(400, sentence, &query);
    }
    for (body, sentence) in [
        (
            r#"{"customer": 7}"#,
            "customer is the number 7; send it as a text",
        ),
        (r#"{"customer": "a", "units": "7"}"#, "units is the text"),
        (
            r#"{"customer": "a", "units": 1.5}"#,
            "expected u64, or a text",
        ),
        (r#"{"customer": ["a"]}"#, "expected u64, or a text"),
        (
            r#"{"customer": "a", "customer": "b"}"#,
            "duplicate field `customer`",
        ),
        (r#"{"key": "a"}"#, "unknown field `key`; there are customer"),
        (
            r#"{"requests": [{"key": "a", "plan": "paid"}]}"#,
            "check.subjects of the config says who is counted",
        ),
    ] {
        post(&http, "/v1/check", "application/json", body).assert_is_problem(400, sentence, body);
    }
    let fields = |fields: &[&str]| ask(&http, "GET", "/v1/check", fields);
    fields(&[client, "X-Api-Key: a", "X-Api-Key: b"]).assert_is_problem(
        400,
        "the header x-api-key is given twice",
        "",
    );
    fields(&[client, "X-Api-Key: a", "X-Plan: piad"]).assert_is_problem(
        404,
        "subjects[0].plan is \\\"piad\\\", which is not a plan; did you mean \\\"paid\\\"?",
        "",
    );
    assert_eq!(Scrape::of(&http).decisions().values().sum::<f64>(), 0.0);
}
