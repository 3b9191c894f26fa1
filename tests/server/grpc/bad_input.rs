//! Bad input over gRPC: each gets a status and a sentence, and of many requests only the bad one is refused.

use tokio_stream::StreamExt;
use tollgate::grpc::pb;
use tonic::Code;

use super::start;
use crate::support::server::{channel_to, decide, request};

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
