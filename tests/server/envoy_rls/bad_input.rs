//! Bad input to the Rate Limit Service: what no proxy should send, and what a proxy's client may choose.

use tollgate::grpc::envoy::pb::service::ratelimit::v3::RateLimitRequest;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_response::Code as Limited;
use tollgate::grpc::pb::PeekRequest;
use tonic::Code;

use super::{address, ask, codes, descriptor, error, path, request, start};

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
    let (server, mut client) = start(&[]).await;
    for (request, code, part) in bad_requests() {
        let refused = error(&mut client, request).await;
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(part), "{refused}");
    }
    let large = request("edge", vec![path(&"x".repeat(1 << 20))]);
    assert_eq!(error(&mut client, large).await.code(), Code::OutOfRange);
    // What a client of the proxy chooses: nothing, what is not UTF-8, or a header field of any length.
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
            ..Default::default()
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
