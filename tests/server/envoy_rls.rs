//! Envoy's Rate Limit Service, by its own messages: what a proxy is told, and what bad input gets.

use std::time::Instant;

use tollgate::grpc::envoy::pb::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tollgate::grpc::envoy::pb::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_response::{
    Code as Limited, DescriptorStatus,
};
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tollgate::grpc::envoy::pb::r#type::v3::RateLimitUnit;
use tollgate::grpc::pb::{DecidedBy, PeekRequest};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::support::http::Scrape;
use crate::support::redis::Redis;
use crate::support::reflection::services;
use crate::support::server::{PATIENCE, Server, channel_to, decide};
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

async fn started(flags: &[&str]) -> (Server, Client) {
    let server = Server::start(&format!("{PLANS}{RULES}"), flags);
    let client = Client::new(channel_to(&server.address).await);
    (server, client)
}

async fn on_redis(server: &Server) {
    let (mut client, began) = (server.client().await, Instant::now());
    while decide(&mut client, "probe", "slow").await.decided_by() != DecidedBy::Store {
        assert!(began.elapsed() < PATIENCE, "the store does not decide");
    }
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

fn limited(
    descriptor: RateLimitDescriptor,
    quota: u32,
    unit: RateLimitUnit,
) -> RateLimitDescriptor {
    RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: quota,
            unit: unit.into(),
        }),
        ..descriptor
    }
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
    let (server, mut client) = started(&[]).await;
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
        started(&["--store", &redis.url(), "--set", "store.deadline=10s"]).await;
    let metrics = || Scrape::of(&server.http());
    on_redis(&server).await;
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
    let scripts = redis.ran("evalsha");
    let answer = ask(&mut client, all).await;
    assert_eq!(redis.ran("evalsha") - scripts, 1, "one store call");
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
async fn hits_are_those_of_the_descriptor_or_of_the_request_and_may_be_none_or_given_back() {
    let (_server, mut client) = started(&[]).await;
    let hits = |hits_addend, descriptors| RateLimitRequest {
        hits_addend,
        ..request("edge", descriptors)
    };
    let mut rest = async |request: RateLimitRequest| {
        let answer = client
            .should_rate_limit(request)
            .await
            .unwrap()
            .into_inner();
        (answer.overall_code(), answer.statuses[0].limit_remaining)
    };
    let own = |hits: u64| RateLimitDescriptor {
        hits_addend: Some(hits),
        ..address("a")
    };
    let back = |hits: Option<u64>, of| RateLimitDescriptor {
        hits_addend: hits,
        is_negative_hits: true,
        ..address(of)
    };
    assert_eq!(rest(hits(3, vec![address("a")])).await, (Limited::Ok, 7));
    assert_eq!(rest(hits(3, vec![own(2)])).await, (Limited::Ok, 5));
    assert_eq!(
        rest(hits(3, vec![own(0)])).await,
        (Limited::Ok, 5),
        "an explicit 0 takes nothing"
    );
    assert_eq!(
        rest(hits(u32::MAX, vec![address("a")])).await,
        (Limited::OverLimit, 0),
        "it can never pass"
    );
    assert_eq!(
        rest(hits(0, vec![own(u64::MAX)])).await,
        (Limited::OverLimit, 0)
    );
    assert_eq!(rest(hits(0, vec![own(5)])).await, (Limited::Ok, 0));
    assert_eq!(rest(hits(0, vec![own(0)])).await, (Limited::OverLimit, 0));
    assert_eq!(rest(hits(2, vec![back(None, "a")])).await, (Limited::Ok, 2));
    assert_eq!(
        rest(hits(0, vec![back(Some(u64::MAX), "a")])).await,
        (Limited::Ok, 10)
    );
    assert_eq!(
        rest(hits(0, vec![back(Some(7), "never seen")])).await,
        (Limited::Ok, 10),
        "an unknown key is full"
    );
}

#[tokio::test]
async fn a_limit_of_the_callers_own_decides_in_place_of_the_plan_by_every_unit() {
    let (_server, mut client) = started(&[]).await;
    let units = [
        (RateLimitUnit::Second, Unit::Second),
        (RateLimitUnit::Minute, Unit::Minute),
        (RateLimitUnit::Hour, Unit::Hour),
        (RateLimitUnit::Day, Unit::Day),
        (RateLimitUnit::Week, Unit::Week),
        (RateLimitUnit::Month, Unit::Month),
        (RateLimitUnit::Year, Unit::Year),
    ];
    for (unit, told) in units {
        let answer = ask(&mut client, vec![limited(address("a"), 1_000_000, unit)]).await;
        assert_eq!(limit_of(&answer.statuses[0]), ("override", 1_000_000, told));
        assert_eq!(
            answer.statuses[0].limit_remaining, 999_999,
            "{unit:?} is counted apart"
        );
    }
    let none = ask(
        &mut client,
        vec![limited(address("a"), 0, RateLimitUnit::Day)],
    )
    .await;
    assert_eq!(
        (none.overall_code(), limit_of(&none.statuses[0])),
        (Limited::OverLimit, ("override", 0, Unit::Day))
    );
    let unmatched = ask(
        &mut client,
        vec![limited(path("/none"), 1, RateLimitUnit::Week); 2],
    )
    .await;
    assert_eq!(codes(&unmatched), [Limited::Ok, Limited::OverLimit]);
    let mut wrong = limited(address("a"), 1, RateLimitUnit::Unknown);
    assert_eq!(
        error(&mut client, request("edge", vec![wrong.clone()]))
            .await
            .code(),
        Code::InvalidArgument
    );
    wrong.limit.as_mut().unwrap().unit = 99;
    let refused = error(&mut client, request("edge", vec![address("a"), wrong])).await;
    assert_eq!(
        refused.message(),
        "descriptors[1].limit.unit is 99: send SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
    );
}

/// Requests that no proxy should send, with the code they are answered with and what the message says.
fn bad_requests() -> [(RateLimitRequest, Code, &'static str); 7] {
    [
        (
            request("", vec![address("a")]),
            Code::InvalidArgument,
            "domain is empty: name a domain of envoy.domains",
        ),
        (
            request("egde", vec![address("a")]),
            Code::NotFound,
            "domain \"egde\" is not in the config; did you mean \"edge\"?",
        ),
        (
            request("edge", vec![]),
            Code::InvalidArgument,
            "the request has 0 descriptors: send 1 to 1000",
        ),
        (
            request("edge", vec![path("/"); 1_001]),
            Code::InvalidArgument,
            "the request has 1001 descriptors: send 1 to 1000",
        ),
        (
            request("edge", vec![descriptor(&[])]),
            Code::InvalidArgument,
            "descriptors[0] has no entries",
        ),
        (
            request("edge", vec![path("/"), descriptor(&[("", "x")])]),
            Code::InvalidArgument,
            "descriptors[1].entries[0].key is empty",
        ),
        (
            request("edge", vec![descriptor(&[("a", "b"); 17]); 1_000]),
            Code::InvalidArgument,
            "the descriptors have 17000 entries: send 16000 at most",
        ),
    ]
}

#[tokio::test]
async fn bad_input_gets_an_error_that_says_what_is_right_and_no_client_can_cause_one() {
    let (server, mut client) = started(&[]).await;
    for (request, code, part) in bad_requests() {
        let refused = error(&mut client, request).await;
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(part), "{refused}");
    }
    let large = request("edge", vec![path(&"x".repeat(1 << 20))]);
    assert_eq!(error(&mut client, large).await.code(), Code::OutOfRange);
    // What a client of the proxy chooses: nothing, what is no UTF-8, or a header field of any length.
    let raw = |value: &[u8]| {
        let mut descriptor = address("");
        descriptor.entries[0].value = value.to_vec();
        descriptor
    };
    for value in [&b""[..], b"\xff\xfe", &[b'x'; 60_000]] {
        for rest in [9, 8] {
            let answer = ask(&mut client, vec![raw(value)]).await;
            assert_eq!(
                (answer.overall_code(), answer.statuses[0].limit_remaining),
                (Limited::Ok, rest)
            );
        }
    }
    // The key of an empty value.
    let empty = server
        .client()
        .await
        .peek(PeekRequest {
            key: "-".to_owned(),
            plan: "free".to_owned(),
            cost: None,
        })
        .await;
    assert_eq!(
        empty.unwrap().into_inner().answer.unwrap().remaining,
        Some(8)
    );
    let mut other = [b'x'; 60_000];
    other[59_999] = b'y';
    assert_eq!(
        ask(&mut client, vec![raw(&other)]).await.statuses[0].limit_remaining,
        9,
        "another long value is another key"
    );
    let most = ask(&mut client, vec![address("many"); 1_000]).await;
    assert_eq!(
        (
            most.statuses.len(),
            codes(&most)
                .iter()
                .filter(|code| **code == Limited::Ok)
                .count()
        ),
        (1_000, 10)
    );
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
    let (_server, mut client) = started(&[]).await;
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
    let (server, _) = started(&["--store", &redis.url(), "--set", "store.deadline=10s"]).await;
    on_redis(&server).await;
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
