//! The wire, black box: every method, every status, health and reflection, against the real binary.

use std::time::Duration;

use tokio_stream::StreamExt;
use tollgate::grpc::{HEALTH_SERVICE, pb};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::support::frames::{
    self, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, Raw, frame,
};
use crate::support::redis::Redis;
use crate::support::reflection::services;
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

async fn waits_as_told(mut client: Client) {
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
    waits_as_told(client).await;
}

#[tokio::test]
async fn retry_after_is_true_when_waited_for_on_redis() {
    let redis = Redis::start();
    let server = Server::start(
        PLANS,
        &["--store", &redis.url(), "--set", "store.deadline=10s"],
    );
    waits_as_told(server.client().await).await;
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
async fn fault_26_bad_input_gets_a_status_and_a_sentence() {
    let (_server, mut client) = start().await;
    let long = "k".repeat(513);
    for (request, code, sentence) in [
        (
            request("", "free", None),
            Code::InvalidArgument,
            "key is empty",
        ),
        (
            request(&long, "free", None),
            Code::InvalidArgument,
            "key has 513 bytes: at most 512",
        ),
        (
            request("k", "", None),
            Code::InvalidArgument,
            "plan is empty",
        ),
        (
            request("k", &long, None),
            Code::InvalidArgument,
            "plan has 513 bytes",
        ),
        (
            request("k", "fre", None),
            Code::NotFound,
            "plan \"fre\" is not in the config; did you mean \"free\"?",
        ),
        (
            request("k", "enterprise", None),
            Code::NotFound,
            "`tollgate plans` lists all plans",
        ),
        (
            request("k", "free", Some(0)),
            Code::InvalidArgument,
            "call Peek",
        ),
    ] {
        let status = client.should_allow(request).await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(sentence), "{status}");
    }
    // gubernator and throttlecrab take a zero for "always allowed"; the longest key is a good one.
    assert!(decide(&mut client, &"k".repeat(512), "free").await.allowed);
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

/// The same fields as a request, but of bytes, to send what no string may hold.
#[derive(Clone, PartialEq, prost::Message)]
struct RawRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    plan: Vec<u8>,
}

#[tokio::test]
async fn fault_27_a_key_that_is_no_utf8_is_an_invalid_argument() {
    let (server, _) = start().await;
    let mut grpc = tonic::client::Grpc::new(channel_to(&server.address).await);
    grpc.ready().await.unwrap();
    let path = "/tollgate.v1.RateLimitService/ShouldAllow".parse().unwrap();
    let raw = tonic::Request::new(RawRequest {
        key: vec![0xff, 0xfe],
        plan: b"free".to_vec(),
    });
    let codec = tonic_prost::ProstCodec::<RawRequest, pb::ShouldAllowResponse>::default();
    let status = grpc.unary(raw, path, codec).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().contains("UTF-8"), "{status}");
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawBatch {
    #[prost(message, repeated, tag = "1")]
    requests: Vec<RawRequest>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawStreamed {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, optional, tag = "2")]
    request: Option<RawRequest>,
}

/// What came of each: OK, or a status code.
fn codes(results: impl IntoIterator<Item = pb::ShouldAllowResult>) -> Vec<Code> {
    let code = |result: pb::ShouldAllowResult| match result.result.unwrap() {
        pb::should_allow_result::Result::Response(_) => Code::Ok,
        pb::should_allow_result::Result::Error(error) => Code::from(error.code),
    };
    results.into_iter().map(code).collect()
}

#[tokio::test]
async fn of_many_requests_one_that_is_no_utf8_is_refused_alone() {
    let (server, mut client) = start().await;
    let mut grpc = tonic::client::Grpc::new(channel_to(&server.address).await);
    let raw = |key: &[u8]| RawRequest {
        key: key.to_vec(),
        plan: b"free".to_vec(),
    };
    let requests = vec![
        raw(b"a"),
        raw(&[b'k', 0xff]),
        raw(b"b"),
        RawRequest {
            key: b"c".to_vec(),
            plan: vec![0xc0, 0x80],
        },
    ];
    let expected = [
        Code::Ok,
        Code::InvalidArgument,
        Code::Ok,
        Code::InvalidArgument,
    ];

    grpc.ready().await.unwrap();
    let path = "/tollgate.v1.RateLimitService/ShouldAllowBatch"
        .parse()
        .unwrap();
    let codec = tonic_prost::ProstCodec::<RawBatch, pb::ShouldAllowBatchResponse>::default();
    let batch = tonic::Request::new(RawBatch {
        requests: requests.clone(),
    });
    let answered = grpc.unary(batch, path, codec).await.unwrap().into_inner();
    assert_eq!(codes(answered.results), expected);

    grpc.ready().await.unwrap();
    let path = "/tollgate.v1.RateLimitService/ShouldAllowStream"
        .parse()
        .unwrap();
    let codec = tonic_prost::ProstCodec::<RawStreamed, pb::ShouldAllowStreamResponse>::default();
    let streamed = (0..).zip(requests).map(|(id, request)| RawStreamed {
        id,
        request: Some(request),
    });
    let streamed = tonic::Request::new(tokio_stream::iter(streamed.collect::<Vec<_>>()));
    let mut answers = grpc
        .streaming(streamed, path, codec)
        .await
        .unwrap()
        .into_inner();
    let mut by_id = std::collections::BTreeMap::new();
    while let Some(answer) = answers.next().await {
        let answer = answer.unwrap();
        by_id.insert(answer.id, answer.result.unwrap());
    }
    assert_eq!(codes(by_id.into_values()), expected);
    // The sound ones were charged, twice each.
    assert_eq!(decide(&mut client, "a", "free").await.remaining(), 97);
}

#[tokio::test]
async fn fault_26_a_message_of_more_than_a_mebibyte_is_refused() {
    let (_server, mut client) = start().await;
    let status = client
        .should_allow(request(&"k".repeat(2 << 20), "free", None))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
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
async fn a_batch_answers_each_item_on_its_own() {
    let (_server, mut client) = start().await;
    let items = [
        ("a", "trial", None),
        ("", "trial", None),
        ("a", "nope", None),
        ("a", "trial", Some(5)),
        ("a", "trial", Some(4)),
    ];
    let requests = items
        .map(|(key, plan, cost)| request(key, plan, cost))
        .to_vec();
    let batch = client
        .should_allow_batch(pb::ShouldAllowBatchRequest { requests })
        .await
        .unwrap()
        .into_inner();
    let results: Vec<String> = batch
        .results
        .into_iter()
        .map(|result| match result.result.unwrap() {
            pb::should_allow_result::Result::Response(response) => {
                response.outcome().as_str_name().to_owned()
            }
            pb::should_allow_result::Result::Error(error) => {
                format!("{:?}", Code::from(error.code))
            }
        })
        .collect();
    assert_eq!(
        results,
        [
            "OUTCOME_ALLOWED",
            "InvalidArgument",
            "NotFound",
            "OUTCOME_DENIED",
            "OUTCOME_ALLOWED"
        ]
    );
}

#[tokio::test]
async fn a_batch_has_1_to_1000_requests() {
    let (_server, mut client) = start().await;
    let batch = |count| pb::ShouldAllowBatchRequest {
        requests: vec![request(&"k".repeat(512), "internal", None); count],
    };
    for count in [0, 1001] {
        let status = client.should_allow_batch(batch(count)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(
            status
                .message()
                .contains(&format!("the batch has {count} requests: send 1 to 1000")),
            "{status}"
        );
    }
    assert_eq!(
        client
            .should_allow_batch(batch(1000))
            .await
            .unwrap()
            .into_inner()
            .results
            .len(),
        1000
    );
}

#[tokio::test]
async fn a_stream_answers_every_id_once() {
    let (_server, mut client) = start().await;
    let asked = tokio_stream::iter((0..500).map(|id| {
        let key = if id % 100 == 99 { "" } else { "streamed" };
        pb::ShouldAllowStreamRequest {
            id,
            request: Some(request(key, "free", None)),
        }
    }));
    let mut answers = client
        .should_allow_stream(asked)
        .await
        .unwrap()
        .into_inner();
    let (mut ids, mut allowed, mut errors) = (Vec::new(), 0, 0);
    while let Some(answer) = answers.next().await {
        let answer = answer.unwrap();
        ids.push(answer.id);
        match answer.result.unwrap().result.unwrap() {
            pb::should_allow_result::Result::Response(response) => {
                allowed += u32::from(response.allowed)
            }
            pb::should_allow_result::Result::Error(_) => errors += 1,
        }
    }
    ids.sort_unstable();
    assert_eq!(ids, (0..500).collect::<Vec<u64>>());
    assert_eq!((allowed, errors), (100, 5));
}

#[tokio::test]
async fn a_peek_takes_nothing_and_lists_every_limit() {
    let (_server, mut client) = start().await;
    let peek = |cost| pb::PeekRequest {
        key: "k".to_owned(),
        plan: "browse".to_owned(),
        cost,
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

#[tokio::test]
async fn a_unix_socket_serves_too_and_a_stale_one_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tollgate.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = format!("unix:{}", path.display());
    let _server = Server::start(PLANS, &["--listen", &address]);
    let channel = tonic::transport::Endpoint::from_shared(format!("unix://{}", path.display()))
        .unwrap()
        .connect()
        .await
        .unwrap();
    assert!(decide(&mut Client::new(channel), "k", "free").await.allowed);
}

/// Whether this call is answered by headers, as frames tell.
fn is_answered(raw: &mut Raw<std::os::unix::net::UnixStream>, stream: u32, headers: &[u8]) -> bool {
    let call = [
        frame(HEADERS, END_HEADERS, stream, headers),
        frame(DATA, END_STREAM, stream, frames::ASK),
    ]
    .concat();
    assert!(raw.send(&call));
    loop {
        match raw.next().expect("the connection stays open") {
            (HEADERS, _, of, _) if of == stream => return true,
            (RST_STREAM, _, of, _) if of == stream => return false,
            _ => {}
        }
    }
}

#[tokio::test]
async fn calls_over_a_unix_socket_are_answered_with_any_authority() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tollgate.sock");
    let _server = Server::start(PLANS, &["--listen", &format!("unix:{}", path.display())]);
    let grpc = ("content-type", "application/grpc");
    let answered = tokio::task::spawn_blocking(move || {
        let mut raw = Raw::connect_unix(&path);
        // The values that gRPC's core (Python, Ruby, C++, PHP), Java, Go and others send, and wrong ones.
        let authorities = [
            "tmp%2Fx.sock",
            "%2Ftmp%2Fx.sock",
            "/tmp/x.sock",
            "localhost",
            "a:b:c",
            "[",
            "@",
            "\u{7f}",
            "x",
        ];
        let literal = authorities.map(|authority| {
            frames::headers_with(frames::SHOULD_ALLOW, &[(":authority", authority), grpc])
        });
        // By its place in the table, and remembered; then what was remembered.
        let indexed = |field: &[u8]| {
            let head = frames::literal(":method", "POST");
            let rest = [(":scheme", "http"), (":path", frames::SHOULD_ALLOW), grpc];
            let rest = rest
                .iter()
                .flat_map(|(name, value)| frames::literal(name, value));
            // The regular field comes last, as it must.
            [head, field.to_vec(), rest.collect()].concat()
        };
        let path = b"tmp%2Fx.sock";
        // The same in the code of RFC 7541, appendix B.
        let coded = [0x4d, 0x35, 0xaa, 0x2c, 0x7e, 0x57, 0x41, 0xc9, 0xd7];
        let remembered = [
            indexed(&[&[0x41, u8::try_from(path.len()).unwrap()], path.as_slice()].concat()),
            indexed(&[0xbe]),
            indexed(
                &[
                    &[0x41, 0x80 | u8::try_from(coded.len()).unwrap()],
                    coded.as_slice(),
                ]
                .concat(),
            ),
            indexed(&[0xbe]),
            indexed(&[0xbf]),
        ];
        let calls = literal.into_iter().chain(remembered).zip((1..).step_by(2));
        calls
            .map(|(headers, stream)| is_answered(&mut raw, stream, &headers))
            .collect::<Vec<_>>()
    });
    let answered = answered.await.unwrap();
    assert!(answered.iter().all(|answered| *answered), "{answered:?}");
}
