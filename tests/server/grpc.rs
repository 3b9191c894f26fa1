//! The wire, black box: every method, every status, health and reflection, against the real binary.

mod bad_input;
mod joint;
mod many_requests;
mod unix_socket;

use std::time::Duration;

use tokio_stream::StreamExt;
use tollgate::grpc::{HEALTH_SERVICE, pb};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::support::redis::Redis;
use crate::support::reflection::{methods, services};
use crate::support::server::{Client, Server, channel_to, decide, request};

const PLANS: &str = "
plans:
  free: { limits: [ { name: minute, quota: 100, window: 1m, algorithm: sliding_log } ] }
  short: { limits: [ { name: second, quota: 3, window: 1500ms } ] }
  browse: { limits: [ { name: minute, quota: 33, window: 1d, algorithm: fixed_window }, { name: hour, quota: 2000, window: 30d, algorithm: fixed_window } ] }
  trial: { limits: [ { name: day, quota: 5, window: 1d } ], counts_as: customer }
  paid: { limits: [ { name: day, quota: 50, window: 1d } ], counts_as: customer }
  shadow: { limits: [ { name: day, quota: 1, window: 1d } ], shadow: true }
  daily: { limits: [ { name: day, quota: 1000, window: 1d } ], counts_as: uneven }
  uneven: { limits: [ { name: day, quota: 1000, window: 1d }, { name: hour, quota: 300, window: 1h } ] }
  internal: { unlimited: true }
  banned: { blocked: true }
";

async fn start() -> (Server, Client) {
    let server = Server::start(PLANS, &[]);
    let client = server.client().await;
    (server, client)
}

fn micros(duration: Option<prost_types::Duration>) -> u64 {
    let duration = duration.unwrap();
    duration.seconds as u64 * 1_000_000 + duration.nanos as u64 / 1_000
}

#[tokio::test]
async fn the_101st_call_on_free_is_denied() {
    let (_server, mut client) = start().await;
    for left in (0..100).rev() {
        let answer = decide(&mut client, "alice", "free").await;
        assert!(
            answer.allowed && answer.remaining() == left && answer.limit() == 100,
            "{answer:?}"
        );
        assert_eq!(
            (answer.outcome(), answer.decided_by()),
            (pb::Outcome::Allowed, pb::DecidedBy::Store)
        );
    }
    let denied = decide(&mut client, "alice", "free").await;
    assert!(
        !denied.allowed && denied.outcome() == pb::Outcome::Denied && denied.limit_name == "minute",
        "{denied:?}"
    );
    assert!((1..=60_000_000).contains(&micros(denied.retry_after)));
    assert!(decide(&mut client, "bob", "free").await.allowed);
}

async fn assert_retry_after_is_true(mut client: Client) {
    for _ in 0..3 {
        assert!(decide(&mut client, "alice", "short").await.allowed);
    }
    let denied = decide(&mut client, "alice", "short").await;
    assert!(!denied.allowed);
    tokio::time::sleep(Duration::from_micros(micros(denied.retry_after))).await;
    assert!(
        decide(&mut client, "alice", "short").await.allowed,
        "retry_after was too short"
    );
}

#[tokio::test]
async fn retry_after_is_true_when_waited_for() {
    let (_server, client) = start().await;
    assert_retry_after_is_true(client).await;
}

#[tokio::test]
async fn retry_after_is_true_when_waited_for_on_redis() {
    let redis = Redis::start();
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "store.deadline=10s"],
    );
    assert_retry_after_is_true(server.client().await).await;
}

#[tokio::test]
async fn a_call_denied_by_one_limit_leaves_the_other_untouched() {
    let (_server, mut client) = start().await;
    for _ in 0..40 {
        decide(&mut client, "alice", "browse").await;
    }
    let mut detailed = request("alice", "browse", None);
    detailed.detailed = true;
    let answer = client.should_allow(detailed).await.unwrap().into_inner();
    let remaining: Vec<(&str, u64)> = answer
        .limits
        .iter()
        .map(|limit| (limit.name.as_str(), limit.remaining))
        .collect();
    assert_eq!(remaining, [("minute", 0), ("hour", 1967)]);
    assert!(!answer.allowed && answer.limit_name == "minute");
}

#[tokio::test]
async fn a_cost_above_the_quota_never_fits() {
    let (_server, mut client) = start().await;
    for cost in [101, u64::MAX] {
        let answer = client
            .should_allow(request("k", "free", Some(cost)))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(
            (answer.allowed, answer.outcome()),
            (false, pb::Outcome::NeverFits)
        );
        assert_eq!(
            (answer.retry_after, answer.decided_by()),
            (None, pb::DecidedBy::Plan)
        );
    }
    assert_eq!(decide(&mut client, "k", "free").await.remaining(), 99);
}

#[tokio::test]
async fn plans_without_limits_answer_by_themselves() {
    let (_server, mut client) = start().await;
    let unlimited = decide(&mut client, "k", "internal").await;
    assert!(unlimited.allowed && unlimited.decided_by() == pb::DecidedBy::Plan);
    assert_eq!(
        (unlimited.limit, unlimited.remaining, unlimited.window),
        (None, None, None),
        "an unlimited plan has none"
    );
    let blocked = decide(&mut client, "k", "banned").await;
    assert!(
        !blocked.allowed
            && blocked.retry_after.is_none()
            && blocked.decided_by() == pb::DecidedBy::Plan
    );
    assert!(decide(&mut client, "k", "shadow").await.allowed);
    let shadow = decide(&mut client, "k", "shadow").await;
    assert!(
        shadow.allowed
            && shadow.outcome() == pb::Outcome::ShadowDenied
            && shadow.retry_after.is_none(),
        "{shadow:?}"
    );
    let mut detailed = request("k", "shadow", None);
    detailed.detailed = true;
    let shadow = client.should_allow(detailed).await.unwrap().into_inner();
    assert!(
        shadow.retry_after.is_none() && shadow.limits[0].retry_after.is_some(),
        "{shadow:?}"
    );
}

#[tokio::test]
async fn an_answer_tells_the_window_and_when_there_is_more() {
    let (_server, mut client) = start().await;
    let answer = decide(&mut client, "k", "short").await;
    assert_eq!(
        (micros(answer.window), answer.more_after),
        (1_500_000, None)
    );
    let answer = client
        .should_allow(pb::ShouldAllowRequest {
            detailed: true,
            ..request("k", "browse", None)
        })
        .await;
    let answer = answer.unwrap().into_inner();
    let days: Vec<u64> = answer
        .limits
        .iter()
        .map(|limit| micros(limit.window) / 86_400_000_000)
        .collect();
    assert_eq!(days, [1, 30]);
    let ends = |limit: &pb::LimitStatus| {
        limit.more_after == limit.reset_after && limit.more_after.is_some()
    };
    assert!(
        answer.limits.iter().all(ends) && answer.more_after == answer.limits[0].more_after,
        "{answer:?}"
    );
    for _ in 0..3 {
        decide(&mut client, "k", "short").await;
    }
    let denied = decide(&mut client, "k", "short").await;
    assert!(
        denied.remaining == Some(0)
            && denied.more_after == denied.retry_after
            && denied.retry_after.is_some(),
        "{denied:?}"
    );
}

#[tokio::test]
async fn remaining_is_what_any_limit_would_still_give() {
    let (_server, mut client) = start().await;
    // The day's share is the least, so it binds; the hour gives fewer units.
    client
        .should_allow(request("k", "daily", Some(605)))
        .await
        .unwrap();
    let mut peek = async |cost| {
        let asked = pb::PeekRequest {
            key: "k".to_owned(),
            plan: "uneven".to_owned(),
            cost,
            ..Default::default()
        };
        client
            .peek(asked)
            .await
            .unwrap()
            .into_inner()
            .answer
            .unwrap()
    };
    let answer = peek(None).await;
    assert_eq!(
        (
            answer.limit_name.as_str(),
            answer.limit(),
            answer.remaining()
        ),
        ("day", 1000, 300),
        "{answer:?}"
    );
    assert!(peek(Some(300)).await.allowed);
    assert_eq!(peek(Some(301)).await.outcome(), pb::Outcome::NeverFits);
    client
        .should_allow(request("k", "uneven", Some(10)))
        .await
        .unwrap();
    let after = client
        .should_allow(request("k", "uneven", Some(1)))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (after.limit_name.as_str(), after.remaining()),
        ("day", 289),
        "{after:?}"
    );
}

#[tokio::test]
async fn plans_that_count_as_one_carry_usage_through_an_upgrade() {
    let (_server, mut client) = start().await;
    for _ in 0..5 {
        assert!(decide(&mut client, "k", "trial").await.allowed);
    }
    assert!(!decide(&mut client, "k", "trial").await.allowed);
    assert_eq!(decide(&mut client, "k", "paid").await.remaining(), 44);
}

#[tokio::test]
async fn a_peek_takes_nothing_and_lists_every_limit() {
    let (_server, mut client) = start().await;
    let peek = |cost| pb::PeekRequest {
        key: "k".to_owned(),
        plan: "browse".to_owned(),
        cost,
        ..Default::default()
    };
    for _ in 0..3 {
        let answer = client
            .peek(peek(None))
            .await
            .unwrap()
            .into_inner()
            .answer
            .unwrap();
        let remaining: Vec<u64> = answer.limits.iter().map(|limit| limit.remaining).collect();
        assert!(answer.allowed && remaining == [33, 2000], "{answer:?}");
    }
    assert_eq!(
        client.peek(peek(Some(0))).await.unwrap_err().code(),
        Code::InvalidArgument
    );
    assert_eq!(decide(&mut client, "k", "browse").await.remaining(), 32);
}

#[tokio::test]
async fn list_plans_returns_the_plans_in_force() {
    let (_server, mut client) = start().await;
    let listed = client
        .list_plans(pb::ListPlansRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.config_hash.len(), 16);
    let names: Vec<&str> = listed.plans.iter().map(|plan| plan.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "banned", "browse", "daily", "free", "internal", "paid", "shadow", "short", "trial",
            "uneven"
        ]
    );
    let free = &listed.plans[3].limits[0];
    assert_eq!(
        (free.quota, free.algorithm(), micros(free.window)),
        (100, pb::Algorithm::SlidingLog, 60_000_000)
    );
    assert!(listed.plans[0].blocked && listed.plans[4].unlimited && listed.plans[6].shadow);
    assert_eq!(listed.plans[8].counts_as, "customer");
}

/// A method that the service lacks has the answer of its stub.
#[tokio::test]
async fn every_method_of_the_contract_is_served() {
    let (server, _) = start().await;
    let channel = channel_to(&server.address).await;
    for path in methods() {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let codec =
            tonic_prost::ProstCodec::<pb::ListPlansRequest, pb::ListPlansResponse>::default();
        // An empty message: most methods refuse it, and say what is right.
        let empty = tonic::Request::new(pb::ListPlansRequest {});
        let asked = grpc.unary(empty, path.parse().unwrap(), codec).await;
        let code = asked.map_or_else(|status| status.code(), |_| Code::Ok);
        assert_ne!(code, Code::Unimplemented, "{path}");
    }
}

#[tokio::test]
async fn health_speaks_of_the_process_and_of_deciding() {
    let (mut server, _) = start().await;
    let mut health = HealthClient::new(channel_to(&server.address).await);
    let of = |service: &str| HealthCheckRequest {
        service: service.to_owned(),
    };
    for service in ["", HEALTH_SERVICE] {
        assert_eq!(
            health.check(of(service)).await.unwrap().into_inner().status,
            1
        );
    }
    assert_eq!(
        health
            .check(of("no.such.Service"))
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );
    let mut watched = health.watch(of(HEALTH_SERVICE)).await.unwrap().into_inner();
    assert_eq!(watched.next().await.unwrap().unwrap().status, 1);
    server.signal("TERM");
    assert_eq!(
        watched.next().await.unwrap().unwrap().status,
        2,
        "NOT_SERVING comes before the end"
    );
    drop((watched, health));
    assert!(server.wait().0.success());
}

#[tokio::test]
async fn reflection_lists_every_service_in_both_generations() {
    let (server, _) = start().await;
    let channel = channel_to(&server.address).await;
    let expected = [
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "tollgate.v1.HoldService",
        "tollgate.v1.RateLimitService",
    ];
    assert_eq!(services(channel.clone()).await, expected);
    use tonic_reflection::pb::v1alpha;
    let list = v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let ask = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(list),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let mut answers = client
        .server_reflection_info(tokio_stream::once(ask))
        .await
        .unwrap()
        .into_inner();
    let Some(v1alpha::server_reflection_response::MessageResponse::ListServicesResponse(listed)) =
        answers.next().await.unwrap().unwrap().message_response
    else {
        panic!("no list")
    };
    assert!(
        listed
            .service
            .iter()
            .any(|service| service.name == "tollgate.v1.RateLimitService")
    );
    assert!(
        listed
            .service
            .iter()
            .any(|service| service.name == "grpc.health.v1.Health")
    );
}
