//! Envoy that sends two descriptors for each request, which are decided together.

use super::*;

const CONFIG: &str = "
workers: 1
listen: { http: '127.0.0.1:0' }
plans:
  customer: { limits: [ { name: customer, quota: 3, window: 1d } ] }
  address: { limits: [ { name: address, quota: 14, window: 1d } ] }
envoy:
  joint: true
  domains:
    edge:
      rules:
        - { descriptor: [user], plan: customer, shard: 'house' }
        - { descriptor: [remote_address], plan: address, shard: 'house' }
";
/// A route with a descriptor of the user and one of the address.
const ROUTES: &str = r#"
              - match: { prefix: "/" }
                route:
                  cluster: application
                  rate_limits:
                  - actions: [ { request_headers: { header_name: x-user, descriptor_key: user } } ]
                  - actions: [ { remote_address: {} } ]
"#;

/// Two replicas on one Redis, and an Envoy before them that asks for both.
async fn start(redis: &Redis) -> ([Server; 2], Envoy) {
    let flags = ["--store", &redis.url(), "--set", "store.deadline=10s"];
    let replicas = [(); 2].map(|()| Server::start(CONFIG, &flags));
    for replica in &replicas {
        replica
            .wait_until_decided_by(DecidedBy::Store, "customer")
            .await;
    }
    let [one, other] = &replicas;
    let routes = ROUTES.trim_start_matches('\n');
    let envoy = Envoy::before([&one.address, &other.address], "1s", routes, "");
    (replicas, envoy)
}

fn assert_limit(reply: &Reply, status: u16, limit: &str) {
    assert_eq!(reply.status, status, "{reply:?}");
    let found = reply.header("ratelimit").unwrap();
    assert!(found.starts_with(limit), "{limit}: {reply:?}");
}

#[tokio::test]
async fn a_denied_descriptor_costs_the_others_nothing_behind_envoy_and_two_replicas() {
    let redis = Redis::start();
    let (replicas, envoy) = start(&redis).await;
    let get = |user: &str| {
        let user = format!("x-user: {user}");
        ask(&envoy.address, "GET", "/", &[&user])
    };
    // A customer's three, and the fields of the customer, who has the least share left.
    for left in [2, 1, 0] {
        let reply = get("al");
        assert_limit(&reply, 200, &format!("\"customer\";r={left}"));
        assert_eq!(reply.body, "ok");
    }
    for _ in 0..20 {
        assert_limit(&get("al"), 429, "\"customer\";r=0;t=");
    }
    // So eleven of the address's fourteen are left, exactly.
    let passed = (0..20).filter(|number| get(&format!("u{number}")).status == 200);
    assert_eq!(passed.count(), 11);
    assert_limit(&get("bo"), 429, "\"address\";r=0;t=");
    let peek = tollgate::grpc::pb::PeekRequest {
        key: "bo".to_owned(),
        plan: "customer".to_owned(),
        shard: "house".to_owned(),
        cost: None,
    };
    let peeked = replicas[0].client().await.peek(peek).await.unwrap();
    let answer = peeked.into_inner().answer.unwrap();
    assert_eq!(answer.remaining, Some(3), "no unit of it was taken");
    let allowed = replicas.each_ref().map(|replica| {
        let decisions = Scrape::of(&replica.http()).decisions();
        decisions.get("address allowed store").copied()
    });
    assert!(
        allowed.iter().all(Option::is_some),
        "Envoy asks one only: {allowed:?}"
    );
    assert_eq!(
        (
            envoy.limited("error"),
            envoy.limited("failure_mode_allowed")
        ),
        (0, 0)
    );
}
