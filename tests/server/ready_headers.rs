//! Header fields in answers over gRPC, from outside: the same ones that the check endpoint sends with the same decision.

use std::collections::BTreeMap;

use tokio_stream::StreamExt;
use tollgate::grpc::pb;

use crate::support::http::{Reply, get};
use crate::support::server::{Client, Server, request};

const PLANS: &str = "listen: { http: '127.0.0.1:0' }
plans:
  day: { limits: [ { name: day, quota: 5, window: 1d } ] }
  two: { limits: [ { name: day, quota: 9, window: 1d }, { name: bucket, quota: 60, window: 1h, algorithm: token_bucket, burst: 3 } ] }
  internal: { unlimited: true }
  banned: { blocked: true }
  shadow: { limits: [ { name: day, quota: 1, window: 1d } ], shadow: true }
default_plan: day
";

type Fields = BTreeMap<String, String>;

/// What a check's answer tells of limits.
fn fields(reply: &Reply) -> Fields {
    let own = [
        "cache-control",
        "content-type",
        "content-length",
        "connection",
        "date",
    ];
    reply
        .headers()
        .filter(|(name, _)| !own.contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn check(http: &str, key: &str, plan: &str, cost: u64, more: &str) -> Fields {
    fields(&get(
        http,
        &format!("/v1/check?key={key}&plan={plan}&cost={cost}{more}"),
    ))
}

fn wanting(key: &str, plan: &str, cost: u64) -> pb::ShouldAllowRequest {
    pb::ShouldAllowRequest {
        http_headers: true,
        ..request(key, plan, Some(cost))
    }
}

/// The fields that a gRPC answer has ready.
fn ready(answer: &pb::ShouldAllowResponse) -> Fields {
    answer
        .http_headers
        .iter()
        .map(|entry| (entry.key.clone(), entry.value.clone()))
        .collect()
}

fn response(result: Option<pb::ShouldAllowResult>) -> pb::ShouldAllowResponse {
    match result.unwrap().result {
        Some(pb::should_allow_result::Result::Response(response)) => response,
        other => panic!("{other:?}"),
    }
}

async fn alone(client: &mut Client, request: pb::ShouldAllowRequest) -> pb::ShouldAllowResponse {
    client.should_allow(request).await.unwrap().into_inner()
}

async fn in_a_batch(
    client: &mut Client,
    request: pb::ShouldAllowRequest,
) -> pb::ShouldAllowResponse {
    let without = pb::ShouldAllowRequest {
        key: "without".to_owned(),
        http_headers: false,
        ..request.clone()
    };
    let batch = pb::ShouldAllowBatchRequest {
        requests: vec![pb::ShouldAllowRequest::default(), without, request],
    };
    let mut results = client
        .should_allow_batch(batch)
        .await
        .unwrap()
        .into_inner()
        .results;
    assert!(response(Some(results.remove(1))).http_headers.is_empty());
    response(results.pop())
}

async fn on_a_stream(
    client: &mut Client,
    request: pb::ShouldAllowRequest,
) -> pb::ShouldAllowResponse {
    let request = pb::ShouldAllowStreamRequest {
        id: 1,
        request: Some(request),
    };
    let mut answers = client
        .should_allow_stream(tokio_stream::iter([request]))
        .await
        .unwrap()
        .into_inner();
    response(answers.next().await.unwrap().unwrap().result)
}

#[tokio::test]
async fn an_allowed_call_gets_the_fields_of_the_check_endpoint_when_it_asks_for_them() {
    let server = Server::start(PLANS, &[]);
    let mut client = server.client().await;
    let http = server.http();
    for (plan, known) in [
        ("day", 2),
        ("two", 2),
        ("nowhere", 2),
        ("internal", 0),
        ("shadow", 2),
    ] {
        // Each has a key of its own, as fresh as the others. None of these limits tells a time while it allows.
        let expected = check(&http, &format!("http-{plan}"), plan, 1, "");
        assert_eq!(expected.len(), known, "{expected:?}");
        let plain = alone(&mut client, request(&format!("plain-{plan}"), plan, None)).await;
        assert!(plain.allowed && plain.http_headers.is_empty(), "{plain:?}");
        assert_eq!(
            ready(&alone(&mut client, wanting(&format!("alone-{plan}"), plan, 1)).await),
            expected
        );
        assert_eq!(
            ready(&in_a_batch(&mut client, wanting(&format!("batch-{plan}"), plan, 1)).await),
            expected
        );
        assert_eq!(
            ready(&on_a_stream(&mut client, wanting(&format!("stream-{plan}"), plan, 1)).await),
            expected
        );
    }
}

#[tokio::test]
async fn a_denied_call_gets_the_fields_of_the_check_endpoint_with_retry_after() {
    let server = Server::start(PLANS, &[]);
    let mut client = server.client().await;
    let http = server.http();
    for (plan, first, cost, waits) in [
        ("day", 3, 3, true),
        ("two", 3, 2, true),
        ("day", 1, 6, false),
        ("banned", 1, 1, false),
    ] {
        let key = format!("{plan}-{cost}");
        check(&http, &key, plan, first, "");
        // A denial charges nothing, so what a peek tells before and after it is the same, unless a second has passed.
        loop {
            let before = check(&http, &key, plan, cost, "&peek=true");
            let answers = [
                alone(&mut client, wanting(&key, plan, cost)).await,
                in_a_batch(&mut client, wanting(&key, plan, cost)).await,
                on_a_stream(&mut client, wanting(&key, plan, cost)).await,
            ];
            if check(&http, &key, plan, cost, "&peek=true") != before {
                continue;
            }
            for answer in answers {
                assert!(
                    !answer.allowed && answer.retry_after.is_some() == waits,
                    "{answer:?}"
                );
                assert_eq!(ready(&answer), before);
                assert_eq!(before.contains_key("retry-after"), waits, "{answer:?}");
            }
            break;
        }
    }
}
