//! Envoy's Rate Limit Service, by its own messages: what a proxy is told, and what bad input gets.

mod bad_input;
mod hits_and_limits;
mod joint;

use tollgate::grpc::envoy::pb::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::grpc::envoy::pb::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_response::{
    Code as Limited, DescriptorStatus,
};
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate::grpc::pb::DecidedBy;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::support::http::Scrape;
use crate::support::redis::Redis;
use crate::support::reflection::services;
use crate::support::server::{Server, channel_to, decide};
use crate::support::untimed::{connect, timed};

type Client = RateLimitServiceClient<Channel>;

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

const PLANS: &str = "
workers: 1
listen: { http: '127.0.0.1:0' }
plans:
  free: { limits: [ { name: hour, quota: 10, window: 1h, algorithm: fixed_window, anchor: first_request } ] }
  slow: { limits: [ { name: ten, quota: 100, window: 10s } ] }
  shadow: { limits: [ { name: day, quota: 1, window: 1d } ], shadow: true }
  huge: { limits: [ { quota: 1000000000000, window: 7d } ] }
  internal: { unlimited: true }
  banned: { blocked: true }
";

const RULES: &str = "
envoy:
  domains:
    edge:
      rules:
        - { descriptor: [remote_address], plan: free }
        - { descriptor: ['path=/api*'], plan: slow, key: all }
        - { descriptor: ['path=/shadow'], plan: shadow }
        - { descriptor: ['path=/huge'], plan: huge }
        - { descriptor: ['path=/internal'], plan: internal }
        - { descriptor: ['path=/banned'], plan: banned }
        - { descriptor: ['path=*/admin/*.php'], plan: banned }
        - { descriptor: ['path=/login', user], plan: free, key: 'login:{user}' }
    closed: { unmatched: deny }
    rest: { unmatched: free }
";

async fn start(flags: &[&str]) -> (Server, Client) {
    let server = Server::start(&format!("{PLANS}{RULES}"), flags);
    let client = Client::new(channel_to(&server.address).await);
    (server, client)
}

fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: key.as_bytes().into(),
        value: value.as_bytes().into(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..Default::default()
    }
}

fn address(value: &str) -> RateLimitDescriptor {
    descriptor(&[("remote_address", value)])
}

fn path(value: &str) -> RateLimitDescriptor {
    descriptor(&[("path", value)])
}

fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors,
        hits_addend: 0,
    }
}

async fn ask(client: &mut Client, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
    client
        .should_rate_limit(request("edge", descriptors))
        .await
        .unwrap()
        .into_inner()
}

async fn error(client: &mut Client, request: RateLimitRequest) -> Status {
    client.should_rate_limit(request).await.unwrap_err()
}

fn codes(answer: &RateLimitResponse) -> Vec<Limited> {
    answer.statuses.iter().map(DescriptorStatus::code).collect()
}

fn field<'a>(answer: &'a RateLimitResponse, name: &str) -> Option<&'a str> {
    answer
        .response_headers_to_add
        .iter()
        .find(|field| field.key == name)
        .map(|field| field.value.as_str())
}

fn limit_of(status: &DescriptorStatus) -> (&str, u32, Unit) {
    let limit = status.current_limit.as_ref().unwrap();
    (&limit.name, limit.requests_per_unit, limit.unit())
}

async fn assert_odd_windows_are_told_by_a_unit(client: &mut Client) {
    let slow = ask(client, vec![path("/api/v1")]).await;
    assert_eq!(
        (
            limit_of(&slow.statuses[0]),
            slow.statuses[0].limit_remaining
        ),
        (("ten", 600, Unit::Minute), 99)
    );
    assert_eq!(
        ask(client, vec![path("/api/v2")]).await.statuses[0].limit_remaining,
        98,
        "one key for all"
    );
    let huge = ask(client, vec![path("/huge")]).await;
    assert_eq!(
        limit_of(&huge.statuses[0]),
        ("sliding_window/7d", u32::MAX, Unit::Week)
    );
    assert_eq!(huge.statuses[0].limit_remaining, u32::MAX);
}

#[tokio::test]
async fn a_descriptor_is_decided_by_its_rule_and_told_with_limit_rest_and_fields() {
    let (server, mut client) = start(&[]).await;
    let mut answer = RateLimitResponse::default();
    for taken in 1..=10 {
        answer = ask(&mut client, vec![address("10.0.0.1")]).await;
        assert_eq!(
            (answer.overall_code(), answer.statuses[0].limit_remaining),
            (Limited::Ok, 10 - taken)
        );
    }
    assert_eq!(limit_of(&answer.statuses[0]), ("hour", 10, Unit::Hour));
    let reset = answer.statuses[0].duration_until_reset.unwrap();
    assert!((3_000..=3_600).contains(&reset.seconds), "{reset:?}");
    assert_eq!(
        field(&answer, "ratelimit-policy"),
        Some("\"hour\";q=10;w=3600")
    );
    assert!(
        field(&answer, "ratelimit")
            .unwrap()
            .starts_with("\"hour\";r=0;t=")
    );
    assert_eq!(
        (field(&answer, "retry-after"), answer.raw_body.len()),
        (None, 0)
    );
    let denied = ask(&mut client, vec![address("10.0.0.1")]).await;
    assert_eq!(
        (denied.overall_code(), codes(&denied)),
        (Limited::OverLimit, vec![Limited::OverLimit])
    );
    let wait: u64 = field(&denied, "retry-after").unwrap().parse().unwrap();
    assert!((3_000..=3_600).contains(&wait) && denied.raw_body.is_empty());
    assert_eq!(
        ask(&mut client, vec![address("10.0.0.2")])
            .await
            .overall_code(),
        Limited::Ok
    );
    // The plan and the key are those of every other road.
    assert!(
        !decide(&mut server.client().await, "10.0.0.1", "free")
            .await
            .allowed
    );
    // Another window than that of any unit.
    assert_odd_windows_are_told_by_a_unit(&mut client).await;
}

/// Asserts what is told of the seven descriptors of the test below, the second of which is denied.
fn assert_each_descriptor_is_told(answer: &RateLimitResponse) {
    let [first, full, shadow, shadowed, internal, none, second] = &answer.statuses[..] else {
        panic!("{answer:?}")
    };
    assert_eq!(answer.overall_code(), Limited::OverLimit);
    assert_eq!((first.code(), first.limit_remaining), (Limited::Ok, 9));
    assert_eq!((full.code(), full.limit_remaining), (Limited::OverLimit, 0));
    assert_eq!(
        (shadow.code(), shadowed.code(), shadowed.limit_remaining),
        (Limited::Ok, Limited::Ok, 0)
    );
    assert_eq!(
        (
            internal.code(),
            internal.limit_remaining,
            &internal.current_limit
        ),
        (Limited::Ok, u32::MAX, &None)
    );
    assert_eq!((none.code(), &none.current_limit), (Limited::Ok, &None));
    assert_eq!(
        (second.code(), second.limit_remaining),
        (Limited::Ok, 8),
        "charged after the denial, too"
    );
    assert!(
        field(answer, "ratelimit")
            .unwrap()
            .starts_with("\"hour\";r=0"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn all_descriptors_are_charged_and_one_denial_denies_the_request() {
    let redis = Redis::start();
    let (server, mut client) =
        start(&["--store", &redis.url(), "--set", "store.deadline=10s"]).await;
    let metrics = || Scrape::of(&server.http());
    server.wait_until_decided_by(DecidedBy::Store, "slow").await;
    ask(
        &mut client,
        vec![RateLimitDescriptor {
            hits_addend: Some(10),
            ..address("full")
        }],
    )
    .await;
    let login = descriptor(&[("path", "/login"), ("user", "al")]);
    let all = vec![
        login.clone(),
        address("full"),
        path("/shadow"),
        path("/shadow"),
        path("/internal"),
        path("/none"),
        login,
    ];
    redis.log_calls();
    let answer = ask(&mut client, all).await;
    assert_eq!(redis.decision_calls(), 1, "one store call");
    assert_each_descriptor_is_told(&answer);
    let banned = ask(&mut client, vec![path("/banned")]).await;
    assert_eq!(
        (banned.overall_code(), banned.response_headers_to_add.len()),
        (Limited::OverLimit, 0)
    );
    for (domain, code) in [("closed", Limited::OverLimit), ("rest", Limited::Ok)] {
        let answer = client
            .should_rate_limit(request(domain, vec![address("x")]))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answer.overall_code(), code, "{domain}");
    }
    let scraped = metrics();
    assert_eq!(
        scraped.value("tollgate_envoy_unmatched_total{outcome=\"denied\"}"),
        1.0
    );
    assert_eq!(
        scraped.value("tollgate_envoy_unmatched_total{outcome=\"allowed\"}"),
        2.0
    );
    assert_eq!(scraped.value("tollgate_decisions_total{plan=\"shadow\",outcome=\"shadow_denied\",decided_by=\"store\"}"), 1.0);
}

#[tokio::test]
async fn the_service_is_there_only_when_it_is_configured_and_a_reload_brings_it() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), PLANS).unwrap();
    let server = Server::start_on(file.path(), &[]);
    let channel = channel_to(&server.address).await;
    let mut client = Client::new(channel.clone());
    let unserved = error(&mut client, request("edge", vec![address("a")])).await;
    assert_eq!(unserved.code(), Code::Unimplemented);
    assert!(
        unserved
            .message()
            .contains("the config of this server has no envoy.domains"),
        "{unserved}"
    );
    assert!(
        !services(channel.clone())
            .await
            .contains(&SERVICE.to_owned())
    );
    let text_body = RULES.replace("envoy:", "envoy:\n  body: text");
    std::fs::write(file.path(), format!("{PLANS}{text_body}")).unwrap();
    server.signal("HUP");
    server.wait_for_line("config reloaded").await;
    assert_eq!(
        ask(&mut client, vec![address("a")]).await.overall_code(),
        Limited::Ok
    );
    assert!(services(channel).await.contains(&SERVICE.to_owned()));
    let denied = ask(
        &mut client,
        vec![RateLimitDescriptor {
            hits_addend: Some(10),
            ..address("a")
        }],
    )
    .await;
    let body = String::from_utf8(denied.raw_body).unwrap();
    assert!(
        body.starts_with("too many requests; try again in "),
        "{body}"
    );
    assert_eq!(
        ask(&mut client, vec![path("/banned")]).await.raw_body,
        b"too many requests\n"
    );
    assert!(
        ask(&mut client, vec![address("b")])
            .await
            .raw_body
            .is_empty()
    );
}

#[tokio::test]
async fn a_rule_with_stars_denies_what_it_matches_and_nothing_else() {
    let (_server, mut client) = start(&[]).await;
    for (value, code) in [
        ("/admin/x.php", Limited::OverLimit),
        ("/site/admin/a/b.php", Limited::OverLimit),
        // More bytes beside the star than `/api*`.
        ("/api/admin/.php", Limited::OverLimit),
        ("/site/admin/x.php5", Limited::Ok),
        ("/admin.php", Limited::Ok),
    ] {
        assert_eq!(
            ask(&mut client, vec![path(value)]).await.overall_code(),
            code,
            "{value}"
        );
    }
}

/// A proxy waits 20 ms by default, less than `store.deadline`. What it does not hear in time, it lets pass.
#[tokio::test]
async fn a_redis_that_does_not_answer_is_replaced_by_policy_before_the_proxy_gives_up() {
    let redis = Redis::start();
    let (server, _) = start(&["--store", &redis.url(), "--set", "store.deadline=10s"]).await;
    server.wait_until_decided_by(DecidedBy::Store, "slow").await;
    let (connection, origin) = connect(&server.address).await;
    let mut client = RateLimitServiceClient::with_origin(connection, origin);
    redis.signal("STOP");
    // Long, so that a busy machine keeps it: the answer comes 3 ms before it, and not after ten seconds.
    let answer = client
        .should_rate_limit(timed(
            request("edge", vec![address("a"), path("/banned")]),
            "2S",
        ))
        .await;
    redis.signal("CONT");
    let answer = answer.unwrap().into_inner();
    assert_eq!(codes(&answer), [Limited::Ok, Limited::OverLimit]);
    let scraped = Scrape::of(&server.http());
    let local =
        "tollgate_decisions_total{plan=\"free\",outcome=\"allowed\",decided_by=\"local_fallback\"}";
    assert_eq!(
        (
            scraped.value(local),
            scraped.value("tollgate_caller_deadlines_total")
        ),
        (1.0, 1.0)
    );
    let none = client
        .should_rate_limit(timed(request("edge", vec![address("a")]), "0n"))
        .await
        .unwrap_err();
    assert_eq!(none.code(), Code::DeadlineExceeded);
}
