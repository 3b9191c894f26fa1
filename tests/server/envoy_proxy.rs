//! A real Envoy before two replicas on one Redis, by the recipe of deploy/envoy/envoy.yaml.

mod joint;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::grpc::pb::DecidedBy;
use tonic::Code;

use crate::support::envoy::Envoy;
use crate::support::http::{Reply, Scrape, ask, raw};
use crate::support::redis::Redis;
use crate::support::server::{Client, Server, channel_to, request};

const QUOTA: usize = 20;
const CONFIG: &str = "
workers: 1
listen: { http: '127.0.0.1:0' }
plans: { free: { limits: [ { name: day, quota: 20, window: 1d } ] }, large: { limits: [ { quota: 1000000, window: 1d } ] } }
envoy:
  domains:
    edge:
      rules:
        - { descriptor: [user], plan: free }
        - { descriptor: [user=load], plan: large }
        - { descriptor: [remote_address], plan: free, key: 'address:{remote_address}' }
        - { descriptor: [path=/upload, user], plan: free, key: '{user}' }
        - { descriptor: [path=/upload, remote_address], plan: free, key: 'address:{remote_address}' }
";
/// A route that gives units back, and one with a limit of its own, which a filter puts into the metadata of every request.
const ROUTES: &str = r#"
              - match: { prefix: "/refund" }
                route: { cluster: application }
                typed_per_filter_config:
                  envoy.filters.http.ratelimit:
                    "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
                    rate_limits:
                    - actions: [ { request_headers: { header_name: x-user, descriptor_key: user } } ]
                      hits_addend: { number: 3, is_negative_hits: true }
              - match: { prefix: "/override" }
                route:
                  cluster: application
                  rate_limits:
                  - actions: [ { request_headers: { header_name: x-user, descriptor_key: user } } ]
                    limit: { dynamic_metadata: { metadata_key: { key: own, path: [ { key: limit } ] } } }
"#;
const FILTERS: &str = r#"
          - name: envoy.filters.http.set_metadata
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
              metadata: [ { metadata_namespace: own, value: { limit: { requests_per_unit: 2, unit: HOUR } } } ]
"#;

struct Deployment {
    replicas: Vec<Server>,
    envoy: Envoy,
    redis: Redis,
}

impl Deployment {
    /// Replicas that wait so long for Redis, and an Envoy that waits so long for them.
    async fn start(store_deadline: &str, timeout: &str) -> Self {
        let redis = Redis::start();
        let deadline = format!("store.deadline={store_deadline}");
        let replicas: Vec<Server> = (0..2)
            .map(|_| Server::start(CONFIG, &["--store", &redis.url(), "--set", &deadline]))
            .collect();
        for replica in &replicas {
            replica
                .wait_until_decided_by(DecidedBy::Store, "large")
                .await;
        }
        let envoy = Envoy::before(
            [&replicas[0].address, &replicas[1].address],
            timeout,
            ROUTES.trim_start_matches('\n'),
            FILTERS.trim_start_matches('\n'),
        );
        Self {
            replicas,
            envoy,
            redis,
        }
    }

    fn get(&self, target: &str, user: &str) -> Reply {
        ask(
            &self.envoy.address,
            "GET",
            target,
            &[&format!("x-user: {user}")],
        )
    }

    /// Asks at a steady pace, also where an answer is late. Every request must pass.
    fn ask_until(&self, stop: &AtomicBool, answered: &AtomicU64) {
        let mut due = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let reply = self.get("/", "load");
            assert_eq!(reply.status, 200, "{reply:?}");
            answered.fetch_add(1, Ordering::Relaxed);
            due += PACE;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }

    /// Stops Redis for five seconds of seven, in which all callers ask. Returns how many requests passed.
    fn stop_redis_under_load(&self) -> u64 {
        let stop = AtomicBool::new(false);
        let answered = AtomicU64::new(0);
        let wait = |seconds: u64, what: &str| {
            let before = answered.load(Ordering::Relaxed);
            let began = Instant::now();
            std::thread::sleep(Duration::from_secs(seconds));
            let rate =
                (answered.load(Ordering::Relaxed) - before) as f64 / began.elapsed().as_secs_f64();
            println!("{what}: {rate:.0} requests a second");
        };
        std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                scope.spawn(|| self.ask_until(&stop, &answered));
            }
            wait(1, "before");
            self.redis.signal("STOP");
            wait(5, "without Redis");
            self.redis.signal("CONT");
            wait(1, "after");
            stop.store(true, Ordering::Relaxed);
        });
        answered.into_inner()
    }

    /// How many requests the replicas let pass that were decided in this way.
    fn passed_by(&self, decider: &str) -> f64 {
        let of = |replica: &Server| {
            Scrape::of(&replica.http())
                .decisions()
                .get(&format!("large allowed {decider}"))
                .copied()
        };
        self.replicas.iter().filter_map(of).sum()
    }

    /// How many of so many requests pass; the others are denied.
    fn pass(&self, target: &str, user: &str, requests: usize) -> usize {
        let statuses: Vec<u16> = (0..requests)
            .map(|_| self.get(target, user).status)
            .collect();
        assert!(
            statuses.iter().all(|status| [200, 429].contains(status)),
            "{statuses:?}"
        );
        let passed = statuses.iter().filter(|status| **status == 200).count();
        assert!(
            statuses[..passed].iter().all(|status| *status == 200),
            "denied before the quota was used up: {statuses:?}"
        );
        passed
    }
}

/// One user's requests over HTTP: the fields of the answers, the exact quota, and that both replicas decide.
fn assert_one_user_gets_the_quota(deployment: &Deployment) {
    let first = deployment.get("/", "al");
    assert_eq!((first.status, first.body.as_str()), (200, "ok"));
    assert_eq!(
        first.header("ratelimit-policy"),
        Some("\"day\";q=20;w=86400")
    );
    assert!(
        first
            .header("ratelimit")
            .unwrap()
            .starts_with("\"day\";r=19"),
        "{first:?}"
    );
    assert_eq!(deployment.pass("/", "al", 24), QUOTA - 1);
    let denied = deployment.get("/", "al");
    assert_eq!((denied.status, denied.body.as_str()), (429, ""));
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!(
        (86_000..=86_400).contains(&wait)
            && denied
                .header("ratelimit")
                .unwrap()
                .starts_with("\"day\";r=0;t="),
        "{denied:?}"
    );
    for replica in &deployment.replicas {
        let decisions = Scrape::of(&replica.http()).decisions();
        assert!(
            decisions
                .get("free allowed store")
                .is_some_and(|count| *count >= 1.0),
            "Envoy asks one only: {decisions:?}"
        );
    }
}

#[tokio::test]
async fn envoy_enforces_one_exact_limit_over_two_replicas_and_passes_all_without_them() {
    // Exact, however busy the machine is.
    let mut deployment = Deployment::start("10s", "1s").await;
    assert_one_user_gets_the_quota(&deployment);
    // A gRPC call of the same user.
    let mut client = Client::new(channel_to(&deployment.envoy.address).await);
    let mut call = tonic::Request::new(request("k", "free", None));
    call.metadata_mut().insert("x-user", "al".parse().unwrap());
    assert_eq!(
        client.should_allow(call).await.unwrap_err().code(),
        Code::ResourceExhausted
    );
    // A cost of the descriptor, units that come back, and a limit of the route's own.
    assert_eq!(deployment.pass("/upload", "bo", 5), QUOTA / 5);
    assert_eq!(deployment.pass("/refund", "bo", 1), 1);
    assert_eq!(deployment.pass("/", "bo", 5), 3);
    assert_eq!(deployment.pass("/override", "al", 4), 2);
    assert_eq!(
        ask(&deployment.envoy.address, "GET", "/", &[]).status,
        200,
        "by its address"
    );
    let counted = deployment.replicas[0]
        .client()
        .await
        .peek(peek("address:127.0.0.1"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(counted.answer.unwrap().remaining, Some(19));
    let envoy = &deployment.envoy;
    assert_eq!(
        (
            envoy.limited("error"),
            envoy.limited("failure_mode_allowed")
        ),
        (0, 0)
    );
    deployment.replicas.clear();
    assert_eq!(deployment.get("/", "al").status, 200);
    assert!(deployment.envoy.limited("failure_mode_allowed") >= 1);
}

/// Requests that try to be something else than what they are.
fn ways_around() -> Vec<(&'static str, &'static str, String)> {
    let mut ways = Vec::new();
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"] {
        for path in ["/", "/upload"] {
            ways.push((method, path, String::new()));
        }
    }
    for path in [
        "/upload/",
        "/upload?x=1",
        "//upload",
        "/./upload",
        "/a/../upload",
        "/%75pload",
        "/upload%2f",
        "/%2fupload",
        "/upload;x",
        "/UPLOAD",
        "/uploads",
        "/?x=/upload",
        "/a%00b",
        "/..;/upload",
    ] {
        ways.push(("POST", path, String::new()));
    }
    for field in [
        "X-Forwarded-For: 203.0.113.{}",
        "X-Forwarded-For: 203.0.113.{}, 198.51.100.1",
        "X-Real-IP: 203.0.113.{}",
        "Forwarded: for=203.0.113.{}",
        "X-Envoy-External-Address: 203.0.113.{}",
        "X-Envoy-Internal: true",
        "X-Envoy-Original-Path: /{}",
        "X-Forwarded-Host: h{}",
        "X-Forwarded-Proto: https",
        "x_user: u{}",
        "X-User-: u{}",
        "Transfer-Encoding: chunked",
        "X-HTTP-Method-Override: OPTIONS",
        "X-Envoy-RateLimited: true",
        "Upgrade: websocket",
    ] {
        ways.push(("GET", "/", field.to_owned()));
    }
    for kib in [1, 8, 30, 55, 64, 256, 1_000] {
        ways.push(("GET", "/", format!("Cookie: {}", "c".repeat(kib << 10))));
    }
    ways
}

#[tokio::test]
async fn nothing_gets_around_envoy() {
    let deployment = Deployment::start("10s", "10s").await;
    let envoy = &deployment.envoy.address;
    let anonymous =
        |method: &str, target: &str, fields: &[&str]| ask(envoy, method, target, fields).status;
    // An upload costs 5 without a user, too.
    assert_eq!(anonymous("POST", "/upload", &["Content-Length: 0"]), 200);
    let passed = (0..QUOTA)
        .filter(|_| anonymous("GET", "/", &[]) == 200)
        .count();
    assert_eq!(passed, QUOTA - 5);
    for (method, path, field) in ways_around() {
        for number in 0..3 {
            let field = field.replace("{}", &number.to_string());
            let fields: Vec<&str> = if field.is_empty() {
                vec![]
            } else {
                vec![&field]
            };
            let status = raw_status(envoy, method, path, &fields);
            assert!(
                status != Some(200),
                "{method} {path} {:.60}: {status:?}",
                field
            );
        }
    }
    // A name is used up in any case, too: also one that is empty, long, or no UTF-8.
    for user in ["al", "", &"l".repeat(20_000), "\u{e9}"] {
        let fields = [format!("x-user: {user}")];
        let passed = (0..QUOTA + 5)
            .filter(|_| raw_status(envoy, "GET", "/", &[&fields[0]]) == Some(200))
            .count();
        assert_eq!(passed, QUOTA, "{user:.10}");
        assert_ne!(
            raw_status(envoy, "POST", "/upload", &[&fields[0]]),
            Some(200)
        );
    }
    assert_eq!(
        (
            deployment.envoy.limited("error"),
            deployment.envoy.limited("failure_mode_allowed")
        ),
        (0, 0)
    );
}

/// The status of an answer; `None` where Envoy closes without one. A redirect to another spelling is followed.
fn raw_status(envoy: &str, method: &str, path: &str, fields: &[&str]) -> Option<u16> {
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let end = if fields.contains("chunked") {
        "0\r\n\r\n"
    } else {
        ""
    };
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n{end}");
    let text = raw(envoy, &request);
    let status = text.split(' ').nth(1)?.parse().ok();
    match text
        .lines()
        .find_map(|line| line.strip_prefix("location: "))
    {
        Some(location) => raw_status(
            envoy,
            method,
            &location[location.find("/").unwrap()..].replace("/h/", "/"),
            &[],
        ),
        None => status,
    }
}

fn peek(key: &str) -> tollgate::grpc::pb::PeekRequest {
    tollgate::grpc::pb::PeekRequest {
        key: key.to_owned(),
        plan: "free".to_owned(),
        cost: None,
        ..Default::default()
    }
}

/// Callers beside each other, and the time between two requests of each: 500 a second in all.
const CALLERS: u64 = 10;
const PACE: Duration = Duration::from_millis(20);

/// The replicas decide every request in time: by Redis before and after, and by policy meanwhile.
async fn assert_replicas_decide_while_redis_stops(timeout: &str) {
    let deployment = Deployment::start("25ms", timeout).await;
    let answered = deployment.stop_redis_under_load();
    let envoy = &deployment.envoy;
    let [ok, error, open] = ["ok", "error", "failure_mode_allowed"].map(|how| envoy.limited(how));
    let [store, local] = ["store", "local_fallback"].map(|decider| deployment.passed_by(decider));
    println!(
        "{answered} requests with {timeout} each: {ok} ok, {error} error, {open} failure_mode_allowed; {store} by Redis, {local} by policy"
    );
    assert_eq!((ok, error, open), (answered, 0, 0));
    assert!(store > 0.0 && local > 0.0);
}

/// Envoy waits twenty times as long as the recipe says, so that a busy machine is not a failure of tollgate's.
#[tokio::test]
async fn fault_58_a_redis_that_stops_for_five_seconds_under_load_fails_no_request_behind_envoy() {
    assert_replicas_decide_while_redis_stops("1s").await;
}

#[tokio::test]
#[ignore = "by hand: the 50 ms of the recipe, which a busy machine may miss whatever tollgate does"]
async fn more_of_fault_58_with_the_time_limit_of_the_recipe() {
    assert_replicas_decide_while_redis_stops("0.05s").await;
}
