//! A real Envoy before two replicas on one Redis, by the recipe of deploy/envoy/envoy.yaml.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::grpc::pb::DecidedBy;
use tonic::Code;

use crate::support::envoy::Envoy;
use crate::support::http::{Reply, Scrape, ask};
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, channel_to, decide, request};

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
    async fn start(store_deadline: &str) -> Self {
        let (redis, deadline) = (Redis::start(), format!("store.deadline={store_deadline}"));
        let replicas: Vec<Server> =
            (0..2).map(|_| Server::start(CONFIG, &["--store", &redis.url(), "--set", &deadline])).collect();
        for replica in &replicas {
            let (mut client, began) = (replica.client().await, Instant::now());
            while decide(&mut client, "probe", "large").await.decided_by() != DecidedBy::Store {
                assert!(began.elapsed() < PATIENCE, "the store does not decide");
            }
        }
        let envoy = Envoy::before(
            [&replicas[0].address, &replicas[1].address],
            ROUTES.trim_start_matches('\n'),
            FILTERS.trim_start_matches('\n'),
        );
        Self { replicas, envoy, redis }
    }

    fn get(&self, target: &str, user: &str) -> Reply {
        ask(&self.envoy.address, "GET", target, &[&format!("x-user: {user}")])
    }

    /// Asks at a steady pace. Every request must pass.
    fn ask_until(&self, stop: &AtomicBool, answered: &AtomicU64) {
        while !stop.load(Ordering::Relaxed) {
            let reply = self.get("/", "load");
            assert_eq!(reply.status, 200, "{reply:?}");
            answered.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(PACE);
        }
    }

    /// How many of so many requests pass; the others are denied.
    fn pass(&self, target: &str, user: &str, requests: usize) -> usize {
        let statuses: Vec<u16> = (0..requests).map(|_| self.get(target, user).status).collect();
        assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
        let passed = statuses.iter().filter(|status| **status == 200).count();
        assert!(statuses[..passed].iter().all(|status| *status == 200), "denied before the quota was used up: {statuses:?}");
        passed
    }
}

#[tokio::test]
async fn envoy_enforces_one_exact_limit_over_two_replicas_and_passes_all_without_them() {
    // Exact, however busy the machine is.
    let mut deployment = Deployment::start("10s").await;
    let first = deployment.get("/", "al");
    assert_eq!((first.status, first.body.as_str()), (200, "ok"));
    assert_eq!(first.header("ratelimit-policy"), Some("\"day\";q=20;w=86400"));
    assert!(first.header("ratelimit").unwrap().starts_with("\"day\";r=19"), "{first:?}");
    assert_eq!(deployment.pass("/", "al", 24), QUOTA - 1);
    let denied = deployment.get("/", "al");
    assert_eq!((denied.status, denied.body.as_str()), (429, ""));
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((86_000..=86_400).contains(&wait) && denied.header("ratelimit").unwrap().starts_with("\"day\";r=0;t="), "{denied:?}");
    for replica in &deployment.replicas {
        let decisions = Scrape::of(&replica.http()).decisions();
        assert!(decisions.get("free allowed store").is_some_and(|count| *count >= 1.0), "Envoy asks one only: {decisions:?}");
    }
    // A gRPC call of the same user.
    let mut client = Client::new(channel_to(&deployment.envoy.address).await);
    let mut call = tonic::Request::new(request("k", "free", None));
    call.metadata_mut().insert("x-user", "al".parse().unwrap());
    assert_eq!(client.should_allow(call).await.unwrap_err().code(), Code::ResourceExhausted);
    // A cost of the descriptor, units that come back, and a limit of the route's own.
    assert_eq!(deployment.pass("/upload", "bo", 5), QUOTA / 5);
    assert_eq!(deployment.pass("/refund", "bo", 1), 1);
    assert_eq!(deployment.pass("/", "bo", 5), 3);
    assert_eq!(deployment.pass("/override", "al", 4), 2);
    assert_eq!(ask(&deployment.envoy.address, "GET", "/", &[]).status, 200, "by its address");
    let counted = deployment.replicas[0].client().await.peek(peek("address:127.0.0.1")).await.unwrap().into_inner();
    assert_eq!(counted.answer.unwrap().remaining, Some(19));
    let envoy = &deployment.envoy;
    assert_eq!((envoy.limited("error"), envoy.limited("failure_mode_allowed")), (0, 0));
    deployment.replicas.clear();
    assert_eq!(deployment.get("/", "al").status, 200);
    assert!(deployment.envoy.limited("failure_mode_allowed") >= 1);
}

fn peek(key: &str) -> tollgate::grpc::pb::PeekRequest {
    tollgate::grpc::pb::PeekRequest { key: key.to_owned(), plan: "free".to_owned(), cost: None }
}

/// Callers beside each other, and requests of each in a second.
const CALLERS: u64 = 10;
const PACE: Duration = Duration::from_millis(20);

#[tokio::test]
async fn fault_58_a_redis_that_stops_for_five_seconds_under_load_fails_no_request_behind_envoy() {
    let deployment = Deployment::start("25ms").await;
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| deployment.ask_until(&stop, &answered));
        }
        std::thread::sleep(Duration::from_secs(1));
        deployment.redis.signal("STOP");
        std::thread::sleep(Duration::from_secs(5));
        deployment.redis.signal("CONT");
        std::thread::sleep(Duration::from_secs(1));
        stop.store(true, Ordering::Relaxed);
    });
    let (envoy, answered) = (&deployment.envoy, answered.into_inner());
    println!("{answered} requests");
    assert_eq!((envoy.limited("error"), envoy.limited("failure_mode_allowed")), (0, 0));
    assert_eq!(envoy.limited("ok"), answered);
    let by = |decider: &str| {
        let of = |replica: &Server| Scrape::of(&replica.http()).decisions().get(&format!("large allowed {decider}")).copied();
        deployment.replicas.iter().filter_map(of).sum::<f64>()
    };
    // The replicas decided all of them, by Redis before and after, and by policy meanwhile.
    assert!(by("store") > 0.0 && by("local_fallback") > 0.0, "{} by Redis, {} by policy", by("store"), by("local_fallback"));
}
