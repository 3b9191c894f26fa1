//! Holds and records by HTTP: `/v1/reserve`, `/v1/settle`, `/v1/extend`, `/v1/record`, and `request_id` of a check.

use serde_json::{Value, json};

use super::check;
use crate::support::http::{Reply, ask, post, send};
use crate::support::server::Server;

const PLANS: &str = "listen: { http: '127.0.0.1:0' }
plans:
  tokens: { limits: [ { quota: 100000, window: 1m } ] }
  jobs: { limits: [ { quota: 2, algorithm: concurrency } ], holds: { ttl: 30s } }
  few: { limits: [ { quota: 9, window: 1m } ], holds: { max_open: 1 } }
  login: { limits: [ { quota: 2, window: 15m } ] }
  free: { unlimited: true }
";

struct World {
    _server: Server,
    http: String,
}

impl World {
    fn start(flags: &[&str]) -> Self {
        let server = Server::start(PLANS, flags);
        let http = server.http();
        Self {
            _server: server,
            http,
        }
    }

    /// Calls `/v1/…` for the key acme, with these members beside it.
    fn call(&self, name: &str, members: Value) -> (Reply, Value) {
        let mut body = json!({ "key": "acme" });
        body.as_object_mut()
            .unwrap()
            .extend(members.as_object().unwrap().clone());
        let path = format!("/v1/{name}");
        let reply = post(&self.http, &path, "application/json", &body.to_string());
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{reply:?}");
        let answer = serde_json::from_str(&reply.body).unwrap();
        (reply, answer)
    }

    fn reserve(&self, plan: &str, id: &str, cost: u64) -> (Reply, Value) {
        let asked = json!({ "plan": plan, "request_id": id, "cost": cost });
        self.call("reserve", asked)
    }
}

/// Asserts that the answer has these members, among others.
#[track_caller]
fn assert_has(answer: &Value, members: Value) {
    for (name, value) in members.as_object().unwrap() {
        assert_eq!(answer.get(name), Some(value), "{name} of {answer}");
    }
}

#[test]
fn tokens_are_reserved_and_settled() {
    let world = World::start(&[]);
    let (reply, reserved) = world.reserve("tokens", "r1", 2_000);
    assert_eq!(reply.status, 200, "{reply:?}");
    let held = json!({ "request_id": "r1", "held": true, "repeated": false, "expires_after_us": 60_000_000,
        "allowed": true, "outcome": "allowed", "remaining": 98_000, "plan": "tokens" });
    assert_has(&reserved, held);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(reply.header("ratelimit").unwrap().contains("r=98000"));
    let (_, again) = world.reserve("tokens", "r1", 2_000);
    assert_has(
        &again,
        json!({ "held": true, "repeated": true, "remaining": 98_000 }),
    );
    let used = json!({ "plan": "tokens", "request_id": "r1", "actual": 740 });
    let (reply, settled) = world.call("settle", used.clone());
    assert_eq!((reply.status, reply.header("retry-after")), (200, None));
    let settlement = json!({ "request_id": "r1", "settlement": "settled", "held": 2_000, "actual": 740,
        "returned": 1_260, "excess": 0, "remaining": 99_260, "allowed": true });
    assert_has(&settled, settlement);
    let (_, again) = world.call("settle", used);
    assert_has(
        &again,
        json!({ "settlement": "repeated", "actual": 740, "returned": 0 }),
    );
    let unknown =
        json!({ "plan": "tokens", "request_id": "r2", "actual": 5, "if_unknown": "ignore" });
    let (_, ignored) = world.call("settle", unknown);
    assert_has(
        &ignored,
        json!({ "settlement": "unknown", "actual": 0, "remaining": 99_260 }),
    );
    let charged =
        json!({ "plan": "tokens", "request_id": "r2", "actual": 5, "if_unknown": "charge" });
    let (_, charged) = world.call("settle", charged);
    assert_has(
        &charged,
        json!({ "settlement": "unknown", "excess": 5, "remaining": 99_255 }),
    );
}

#[test]
fn slots_are_taken_extended_and_freed() {
    let world = World::start(&[]);
    for job in ["a", "b"] {
        assert_eq!(world.reserve("jobs", job, 1).0.status, 200);
    }
    let (reply, denied) = world.reserve("jobs", "c", 1);
    assert_eq!(reply.status, 429, "{reply:?}");
    let told = json!({ "request_id": "c", "held": false, "repeated": false, "expires_after_us": null,
        "violated-policies": ["concurrency"], "limit_name": "concurrency", "allowed": false });
    assert_has(&denied, told);
    let fields = ["ratelimit-policy", "ratelimit"].map(|name| reply.header(name));
    let expected = [
        "\"concurrency\";q=2;qu=\"concurrent-requests\"",
        "\"concurrency\";r=0",
    ];
    assert_eq!(fields, expected.map(Some));
    let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!((28..=30).contains(&wait), "{wait}");
    let status = json!({ "plan": "jobs", "request_id": "c", "deny_status": 403 });
    assert_eq!(world.call("reserve", status).0.status, 403);

    let longer = json!({ "plan": "jobs", "request_id": "a", "ttl": "1m" });
    let (reply, extended) = world.call("extend", longer);
    assert_eq!(reply.status, 200);
    assert_eq!(
        extended,
        json!({ "request_id": "a", "state": "open", "expires_after_us": 60_000_000 })
    );
    let freed = json!({ "plan": "jobs", "request_id": "a" });
    assert_eq!(world.call("settle", freed.clone()).0.status, 200);
    for (id, status, state) in [("a", 409, "settled"), ("nobody", 404, "unknown")] {
        let (reply, told) = world.call("extend", json!({ "plan": "jobs", "request_id": id }));
        assert_eq!(
            reply.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(reply.status, status);
        assert_has(
            &told,
            json!({ "request_id": id, "state": state, "status": status }),
        );
    }
    assert_eq!(world.reserve("jobs", "c", 1).0.status, 200);
    // Too many open holds are told by the name of that bound.
    assert_eq!(world.reserve("few", "a", 1).0.status, 200);
    let (reply, denied) = world.reserve("few", "b", 1);
    assert_eq!(reply.status, 429);
    assert_has(
        &denied,
        json!({ "violated-policies": ["holds.max_open"], "limit": 1, "remaining": 0 }),
    );
}

#[test]
fn records_are_200_also_where_the_key_is_overdrawn() {
    let world = World::start(&[]);
    let record = |id: &str| {
        let (reply, recorded) = world.call("record", json!({ "plan": "login", "request_id": id }));
        assert_eq!((reply.status, reply.header("retry-after")), (200, None));
        recorded
    };
    assert_has(
        &record("one"),
        json!({ "repeated": false, "remaining": 1, "allowed": true }),
    );
    assert_has(&record("one"), json!({ "repeated": true, "remaining": 1 }));
    assert_has(
        &record("two"),
        json!({ "repeated": false, "remaining": 0, "allowed": false }),
    );
    let (_, without_id) = world.call("record", json!({ "plan": "login", "cost": 7 }));
    assert_has(&without_id, json!({ "repeated": false, "remaining": 0 }));
    // A plan without limits holds nothing.
    let (reply, free) = world.reserve("free", "a", 1);
    assert_eq!(reply.status, 200);
    assert_has(&free, json!({ "held": false, "expires_after_us": null }));
}

#[test]
fn a_check_with_an_id_is_charged_once() {
    let world = World::start(&[]);
    let asked = "key=acme&plan=login&request_id=one";
    for _ in 0..3 {
        let reply = check(&world.http, asked);
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.header("ratelimit").unwrap().contains("r=1"));
    }
    let (_, again) = world.call("check", json!({ "plan": "login", "request_id": "one" }));
    assert_has(&again, json!({ "repeated": true, "remaining": 1 }));
    let (_, without) = world.call("check", json!({ "plan": "login" }));
    assert!(without.get("repeated").is_none() && without["remaining"] == 0);
    for (query, status, told) in [
        ("plan=login&request_id=", 400, "request_id is empty"),
        (
            "plan=login&request_id=one&peek=true",
            400,
            "stands beside peek",
        ),
        (
            "plan=login&request_id=one&cost=2",
            409,
            "known for a ShouldAllow of cost 1 under plan login",
        ),
        (
            "plan=login&request_id=a&request_id=b",
            400,
            "request_id is given twice",
        ),
        (
            "plan=jobs",
            400,
            "plan jobs has a concurrency limit: call POST /v1/reserve",
        ),
    ] {
        let reply = check(&world.http, &format!("key=acme&{query}"));
        reply.assert_is_problem(status, told, query);
        assert!(
            !reply.body.contains("the request is invalid") || status == 400 && query != "plan=jobs"
        );
    }
    let joint = r#"{"requests":[{"key":"a","plan":"login"}],"request_id":"x"}"#;
    let reply = post(&world.http, "/v1/check", "application/json", joint);
    reply.assert_is_problem(400, "requests stands beside request_id", joint);
}

/// Path, members beside those of a sound call, status, and what is told.
const BAD_CALLS: [(&str, &str, u16, &str); 22] = [
    (
        "reserve",
        r#"{"request_id":null}"#,
        400,
        "request_id is empty",
    ),
    (
        "settle",
        r#"{"request_id":"LONG"}"#,
        400,
        "request_id has 65 bytes",
    ),
    (
        "reserve",
        r#"{"request_id":5}"#,
        400,
        "request_id is the number 5",
    ),
    ("reserve", r#"{"cost":0}"#, 400, "cost is 0: send 1 or more"),
    (
        "reserve",
        r#"{"ttl":"500ms"}"#,
        400,
        "ttl is 500ms: send 1s to 10m",
    ),
    (
        "extend",
        r#"{"ttl":"11m"}"#,
        400,
        "ttl is 11m: send 1s to 10m",
    ),
    (
        "reserve",
        r#"{"ttl":"soon"}"#,
        400,
        "ttl: write a whole number and its unit",
    ),
    ("reserve", r#"{"ttl":30}"#, 400, "ttl is the number 30"),
    (
        "settle",
        r#"{"actual":1000000000001}"#,
        400,
        "actual is 1000000000001",
    ),
    ("settle", r#"{"actual":"7"}"#, 400, "expected u64"),
    ("settle", r#"{"actual":-1}"#, 400, "expected u64"),
    (
        "settle",
        r#"{"if_unknown":"panic"}"#,
        400,
        "another word than charge or ignore",
    ),
    (
        "settle",
        r#"{"cost":1}"#,
        400,
        "unknown field `cost`; there are key, plan, actual",
    ),
    ("extend", r#"{"peek":null}"#, 400, "unknown field `peek`"),
    (
        "record",
        r#"{"cost":1000000000001}"#,
        400,
        "cost is 1000000000001",
    ),
    (
        "record",
        r#"{"deny_status":403}"#,
        400,
        "unknown field `deny_status`",
    ),
    (
        "record",
        r#"{"plan":"jobs"}"#,
        400,
        "the plan counts no units",
    ),
    ("reserve", r#"{"deny_status":200}"#, 400, "400 to 599"),
    (
        "reserve",
        r#"{"plan":"token"}"#,
        404,
        "did you mean \\\"tokens\\\"?",
    ),
    (
        "reserve",
        r#"{"request_id":"known"}"#,
        409,
        "known for a Reserve of cost 5 under plan tokens",
    ),
    (
        "record",
        r#"{"request_id":"known"}"#,
        409,
        "the request_id is known for another call",
    ),
    (
        "settle",
        r#"{"plan":"few","request_id":"x"}"#,
        200,
        "unknown",
    ),
];

#[test]
fn bad_calls_say_what_is_wrong_and_charge_nothing() {
    let world = World::start(&[]);
    world.reserve("tokens", "known", 5);
    for (path, members, status, told) in BAD_CALLS {
        let mut asked = json!({ "plan": "tokens", "request_id": "new" });
        let members = members.replace("LONG", &"x".repeat(65));
        let changed: Value = serde_json::from_str(&members).unwrap();
        let changed = changed.as_object().unwrap().clone();
        asked.as_object_mut().unwrap().extend(changed);
        let (reply, _) = world.call(path, asked);
        assert_eq!(reply.status, status, "{path} {members}: {reply:?}");
        assert!(reply.body.contains(told), "{path} {members}: {reply:?}");
    }
    let peeked = check(&world.http, "key=acme&plan=tokens&peek=true");
    assert!(
        peeked.header("ratelimit").unwrap().contains("r=99995"),
        "{peeked:?}"
    );
}

#[test]
fn calls_are_post_of_json_that_is_small_and_there_in_time() {
    let world = World::start(&[]);
    let http = &world.http;
    for path in ["/v1/reserve", "/v1/settle", "/v1/extend", "/v1/record"] {
        for method in ["GET", "HEAD", "PUT", "DELETE"] {
            let reply = ask(http, method, path, &[]);
            assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
        }
        let form = "application/x-www-form-urlencoded";
        let body = "key=a&plan=tokens&request_id=b";
        post(http, path, form, body).assert_is_problem(415, "application/json", path);
        let large = " ".repeat(5_000);
        let reply = post(http, path, "application/json", &large);
        reply.assert_is_problem(413, "4096 bytes", path);
        let reply = post(http, path, "application/json", "");
        reply.assert_is_problem(400, "the body is not the JSON of /v1/", path);
        let in_query = format!("{path}?key=a");
        let reply = post(http, &in_query, "application/json", "{}");
        reply.assert_is_problem(400, "unknown parameter, key; there are ", path);
    }
    let headers = ["Content-Type: application/json", "Content-Length: 10"];
    let reply = send(http, "POST", "/v1/reserve", &headers, "{");
    reply.assert_is_problem(408, "within 5 s", "half a body");
}

#[test]
fn key_and_plan_come_from_where_the_config_says() {
    let sources = [
        "--set",
        "check.key=header:x-user",
        "--set",
        "check.plan=default:tokens",
    ];
    let world = World::start(&sources);
    let call = |path: &str, body: &str| {
        let length = format!("Content-Length: {}", body.len());
        let headers = ["Content-Type: application/json", "X-User: u1", &length];
        send(&world.http, "POST", path, &headers, body)
    };
    let reserved = call("/v1/reserve", r#"{"request_id": "a", "cost": 7}"#);
    assert_eq!(reserved.status, 200, "{reserved:?}");
    let settled = call("/v1/settle", r#"{"request_id": "a", "actual": 3}"#);
    assert!(settled.body.contains("\"returned\":4"), "{settled:?}");
    let named = call("/v1/extend", r#"{"request_id": "a", "key": "u2"}"#);
    named.assert_is_problem(400, "takes no key as a parameter", "a key in the body");
    let two = "check: { subjects: [ { key: ['param:user'], plan: ['default:tokens'] },
        { key: ['client_address'], plan: ['default:free'] } ] }\n";
    let server = Server::start(&format!("{two}{PLANS}"), &[]);
    let body = r#"{"user": "u1", "request_id": "a"}"#;
    let reply = post(&server.http(), "/v1/reserve", "application/json", body);
    reply.assert_is_problem(
        400,
        "names several subjects, and /v1/reserve is about one",
        body,
    );
    let checked = check(&server.http(), "user=u1&request_id=a");
    checked.assert_is_problem(400, "an unknown parameter, request_id", body);
}

#[test]
fn a_store_that_does_not_confirm_is_503_with_a_time_to_come_back() {
    let world = World::start(&["--store", "memory:?capacity=1MiB"]);
    let mut refused = None;
    for key in 0..9_000 {
        let body = json!({ "key": format!("{key:0>400}"), "plan": "login", "request_id": "a" });
        let reply = post(
            &world.http,
            "/v1/record",
            "application/json",
            &body.to_string(),
        );
        if reply.status != 200 {
            refused = Some(reply);
            break;
        }
    }
    let reply = refused.expect("the store takes no more than 1 MiB");
    reply.assert_is_problem(503, "#temporary-reduced-capacity", "a record");
    assert!(reply.body.contains("nothing was done"), "{reply:?}");
    assert_eq!(reply.header("retry-after"), Some("1"));
}
