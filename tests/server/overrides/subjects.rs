//! A customer who buys more, behind `check.subjects`: the gateway sends the API key alone, and the plan is an override.

use serde_json::Value;

use super::{Effect, replica_on, set};
use crate::support::http::{Reply, ask};
use crate::support::redis::Redis;
use crate::support::server::PATIENCE;
use tollgate::grpc::pb;
use tollgate::grpc::pb::plan_override::Subject;

const CONFIG: &str = "
listen: { http: '127.0.0.1:0' }
plans:
  free: { limits: [ { name: minute, quota: 3, window: 1d } ], counts_as: customer }
  starter: { limits: [ { name: minute, quota: 10, window: 1d } ], counts_as: customer }
  address: { limits: [ { name: address, quota: 14, window: 1d } ] }
check:
  trusted_proxies: ['127.0.0.1']
  subjects: [ { key: ['header:x-api-key'], plan: ['default:free'], optional: true }, { key: [client_address], plan: ['default:address'] } ]
";

/// Asks as a gateway does.
fn check(http: &str, key: &str) -> (Reply, Value) {
    let key = format!("X-Api-Key: {key}");
    let headers = [
        key.as_str(),
        "X-Forwarded-For: 203.0.113.7",
        "Accept: application/json",
    ];
    let reply = ask(http, "GET", "/v1/check", &headers);
    let answer = serde_json::from_str(&reply.body).unwrap();
    (reply, answer)
}

#[tokio::test]
async fn a_buyer_goes_on_with_what_was_used_counted_and_the_address_counts_all() {
    let redis = Redis::start();
    let mut one = replica_on(CONFIG, &redis.url()).await;
    let two = replica_on(CONFIG, &redis.url()).await;
    for _ in 0..3 {
        assert_eq!(check(&one.server.http(), "u-17").0.status, 200);
    }
    // Denied on both, which costs the address nothing.
    for replica in [&one, &two] {
        assert_eq!(check(&replica.server.http(), "u-17").0.status, 429);
    }
    let entry = pb::PlanOverride {
        plan: "free".to_owned(),
        subject: Some(Subject::Key("u-17".to_owned())),
        effect: Some(Effect::UsePlan("starter".to_owned())),
        reason: "order 4711".to_owned(),
        ..pb::PlanOverride::default()
    };
    set(&mut one, entry).await.unwrap();
    let began = std::time::Instant::now();
    let mut passed = 0;
    while passed == 0 {
        assert!(began.elapsed() < PATIENCE);
        passed += usize::from(check(&two.server.http(), "u-17").0.status == 200);
    }
    let replicas = [&one, &two];
    let mut last = Value::Null;
    for request in 0..20 {
        let (reply, answer) = check(&replicas[request % 2].server.http(), "u-17");
        passed += usize::from(reply.status == 200);
        last = answer;
    }
    assert_eq!(passed, 7, "ten of the plan, of which three were used");
    let customer = &last["requests"][0];
    assert_eq!(
        (&customer["plan"], &customer["overridden"]),
        (&"starter".into(), &true.into())
    );
    assert_eq!(
        (&last["plan"], &last["limit"]),
        (&"starter".into(), &10.into())
    );
    // Four are left of the address: another customer has three, and then it is the address that denies.
    for status in [200, 200, 200, 429] {
        assert_eq!(check(&two.server.http(), "u-18").0.status, status);
    }
    assert_eq!(check(&two.server.http(), "u-19").0.status, 200);
    let (denied, answer) = check(&two.server.http(), "u-20");
    assert_eq!((denied.status, &answer["plan"]), (429, &"address".into()));
}
