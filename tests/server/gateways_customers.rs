//! Gateways that ask for a customer and an address in one call, by the recipes in `deploy`: nginx and Caddy, each before two replicas.

use std::time::{Duration, Instant};

use tollgate::grpc::pb;
use tollgate::grpc::pb::DecidedBy;
use tollgate::grpc::pb::plan_override::{Effect, Subject};

use crate::support::admin::AdminFixture;
use crate::support::caddy::Caddy;
use crate::support::envoy::application;
use crate::support::http::{Reply, Scrape, ask};
use crate::support::nginx::{Nginx, customers};
use crate::support::redis::Redis;
use crate::support::server::PATIENCE;

/// The plans of the recipes, with small quotas: a customer has 3, an address 14.
const CONFIG: &str = "
listen: { http: '127.0.0.1:0' }
plans:
  free: { limits: [ { name: customer, quota: 3, window: 1d, algorithm: sliding_log } ], counts_as: customer }
  starter: { limits: [ { name: customer, quota: 3, window: 1d, algorithm: sliding_log } ], counts_as: customer }
  paid: { limits: [ { name: customer, quota: 6, window: 1d, algorithm: sliding_log } ], counts_as: customer }
  thousand: { limits: [ { quota: 1000, window: 1d } ], counts_as: customer }
  address: { limits: [ { name: address, quota: 14, window: 1d } ] }
check:
  trusted_proxies: ['127.0.0.1']
  subjects:
    - { key: ['header:x-customer'], plan: ['header:x-plan', 'default:free'], optional: true }
    - { key: ['client_address'], plan: ['default:address'] }
";

struct Deployment {
    replicas: [AdminFixture; 2],
    _redis: Redis,
}

impl Deployment {
    async fn start() -> Self {
        let redis = Redis::start();
        let flags = ["--store", &redis.url(), "--set", "store.deadline=10s"];
        let replicas = [
            AdminFixture::start(CONFIG, &flags).await,
            AdminFixture::start(CONFIG, &flags).await,
        ];
        for replica in &replicas {
            replica
                .server
                .wait_until_decided_by(DecidedBy::Store, "thousand")
                .await;
        }
        Self {
            replicas,
            _redis: redis,
        }
    }

    fn http(&self) -> [String; 2] {
        self.replicas
            .each_ref()
            .map(|replica| replica.server.http())
    }

    /// Decisions of both replicas with these labels.
    fn decisions(&self, labels: &str) -> f64 {
        let of = |http: &String| Scrape::of(http).decisions().get(labels).copied();
        self.http().iter().filter_map(of).sum()
    }

    /// How many units a key has left under this plan.
    async fn remaining(&self, plan: &str, key: &str) -> u64 {
        peek(&self.replicas[0], plan, key).await.remaining()
    }

    /// Lets a customer go on under the plan that it has bought, on both replicas.
    async fn sell(&mut self, customer: &str, from: &str, to: &str) {
        let entry = pb::PlanOverride {
            plan: from.to_owned(),
            subject: Some(Subject::Key(customer.to_owned())),
            effect: Some(Effect::UsePlan(to.to_owned())),
            ..pb::PlanOverride::default()
        };
        let set = pb::SetOverrideRequest {
            entry: Some(entry),
            ..pb::SetOverrideRequest::default()
        };
        self.replicas[0].admin.set_override(set).await.unwrap();
        for replica in &self.replicas {
            let began = Instant::now();
            while !peek(replica, from, customer).await.overridden {
                assert!(began.elapsed() < PATIENCE);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn peek(replica: &AdminFixture, plan: &str, key: &str) -> pb::ShouldAllowResponse {
    let peek = pb::PeekRequest {
        key: key.to_owned(),
        plan: plan.to_owned(),
        ..pb::PeekRequest::default()
    };
    let peeked = replica.client.clone().peek(peek).await.unwrap();
    peeked.into_inner().answer.unwrap()
}

/// Asks with an API key, and with all that a client could write to be somebody else.
fn ask_as(gateway: &str, key: &str) -> Reply {
    let key = format!("X-Api-Key: {key}");
    let fields = [
        key.as_str(),
        "X-Customer: zoe",
        "X-Plan: thousand",
        "X-Forwarded-For: 203.0.113.9",
        "Forwarded: for=203.0.113.9",
        "RateLimit: \"day\";r=99",
    ];
    ask(
        gateway,
        "GET",
        "/page?peek=true&cost=9&customer=zoe",
        &fields,
    )
}

fn assert_limit(reply: &Reply, status: u16, limit: &str) {
    assert_eq!(reply.status, status, "{reply:?}");
    let found = reply.header("ratelimit").unwrap();
    assert!(found.starts_with(limit), "{limit}: {reply:?}");
    assert_eq!(reply.header("retry-after").is_some(), status == 429);
}

/// A customer has 3, one who has bought more 6, and an address 14, exactly. What is denied costs nothing.
async fn assert_both_are_limited_exactly(deployment: &mut Deployment, gateway: &str) {
    for left in [2, 1, 0] {
        let reply = ask_as(gateway, "key-of-acme");
        assert_limit(&reply, 200, &format!("\"customer\";r={left}"));
        assert_eq!(reply.body, "ok");
    }
    for _ in 0..20 {
        let reply = ask_as(gateway, "key-of-acme");
        assert_limit(&reply, 429, "\"customer\";r=0;t=");
        let policy = reply.header("ratelimit-policy").unwrap();
        assert_eq!(policy, "\"customer\";q=3;w=86400");
    }
    assert_eq!(deployment.remaining("address", "127.0.0.1").await, 11);
    assert_limit(&ask_as(gateway, "key-of-bolt"), 200, "\"customer\";r=2");
    // What was used before the purchase counts.
    deployment.sell("bolt", "free", "paid").await;
    // The limit of which the smallest share is left binds: 9 of 14, then 3 of 6.
    assert_limit(&ask_as(gateway, "key-of-bolt"), 200, "\"address\";r=9");
    for left in [3, 2, 1, 0] {
        let reply = ask_as(gateway, "key-of-bolt");
        assert_limit(&reply, 200, &format!("\"customer\";r={left}"));
        let policy = reply.header("ratelimit-policy").unwrap();
        assert!(policy.starts_with("\"customer\";q=6"), "{policy}");
    }
    assert_limit(&ask_as(gateway, "key-of-bolt"), 429, "\"customer\";r=0;t=");
    assert_eq!(deployment.remaining("address", "127.0.0.1").await, 5);
    // Whoever has no key of a customer is decided by the address alone.
    for (key, left) in ["", "nobody", "acme", "key-of-acme2", "KEY-OF-ACME\u{e9}"]
        .iter()
        .cycle()
        .zip((0..5).rev())
    {
        assert_limit(&ask_as(gateway, key), 200, &format!("\"address\";r={left}"));
    }
    for key in ["", "nobody", "acme"] {
        assert_limit(&ask_as(gateway, key), 429, "\"address\";r=0;t=");
    }
    let remaining = [
        deployment.remaining("free", "bolt").await,
        deployment.remaining("free", "acme").await,
        deployment.remaining("free", "zoe").await,
        deployment.remaining("address", "203.0.113.9").await,
    ];
    assert_eq!(remaining, [0, 0, 3, 14]);
    // One call for each request that has a customer, and both replicas decided.
    let whole = |labels| deployment.decisions(labels);
    assert_eq!(
        [
            whole("starter allowed store"),
            whole("free allowed store"),
            whole("paid allowed store"),
            whole("address allowed store"),
            whole("address other_denied store")
        ],
        [3.0, 1.0, 5.0, 14.0, 21.0]
    );
    for http in deployment.http() {
        let decisions = Scrape::of(&http).decisions();
        assert!(
            decisions.contains_key("address allowed store"),
            "{decisions:?}"
        );
    }
}

#[tokio::test]
async fn nginx_limits_customers_and_addresses_in_one_call() {
    let mut deployment = Deployment::start().await;
    let [one, other] = deployment.http();
    let proxied = format!("proxy_pass http://{};", application());
    let nginx = Nginx::by_recipe(&customers(&[&one, &other]), &[("/", &proxied)], "");
    assert_both_are_limited_exactly(&mut deployment, &nginx.address).await;
}

#[tokio::test]
async fn caddy_limits_customers_and_addresses_in_one_call() {
    let mut deployment = Deployment::start().await;
    let [one, other] = deployment.http();
    let caddy = Caddy::for_customers(&[&one, &other], &application());
    assert_both_are_limited_exactly(&mut deployment, &caddy.address).await;
    // What tollgate would not take, Caddy does not either.
    for kib in [1, 4, 8, 11, 12, 13, 14, 15, 16, 17, 20, 64, 900] {
        let long = "x".repeat(kib << 10);
        let statuses = [
            ask(&caddy.address, "GET", "/", &[&format!("Cookie: {long}")]).status,
            ask(&caddy.address, "GET", &format!("/{long}"), &[]).status,
        ];
        let expected = if kib < 12 { vec![429] } else { vec![429, 431] };
        assert!(
            statuses.iter().all(|status| expected.contains(status)),
            "{kib}: {statuses:?}"
        );
    }
}

#[tokio::test]
async fn the_recipes_for_customers_let_all_pass_without_tollgate() {
    let deployment = Deployment::start().await;
    let [one, other] = deployment.http();
    let proxied = format!("proxy_pass http://{};", application());
    let nginx = Nginx::by_recipe(&customers(&[&one, &other]), &[("/", &proxied)], "");
    let caddy = Caddy::for_customers(&[&one, &other], &application());
    drop(deployment);
    for gateway in [&nginx.address, &caddy.address] {
        let reply = ask_as(gateway, "key-of-acme");
        assert_eq!(
            (reply.status, reply.body.as_str()),
            (200, "ok"),
            "{reply:?}"
        );
    }
}
