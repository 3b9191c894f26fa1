//! What is a gRPC call and what is not: methods, content types and compressed messages, against the real binary.

use tollgate::grpc::pb;
use tonic::Code;
use tonic::codec::CompressionEncoding;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::support::frames::{self, DATA, END_HEADERS, END_STREAM, HEADERS, Raw, frame};
use crate::support::server::{Client, Server, channel_to, decide, request};

const PLANS: &str = "plans: { p: { limits: [ { name: day, quota: 10, window: 1d } ] } }\n";

/// The headers that answer a call with this method and content type, as they are coded on a new connection.
fn answered(address: &str, method: &str, content: &str) -> Vec<u8> {
    let fields = [
        (":method", method),
        (":scheme", "http"),
        (":path", frames::SHOULD_ALLOW),
        (":authority", "localhost"),
        ("content-type", content),
        ("te", "trailers"),
    ];
    let headers: Vec<u8> = fields
        .iter()
        .flat_map(|(name, value)| frames::literal(name, value))
        .collect();
    let mut raw = Raw::connect(address, &[]);
    raw.send(
        &[
            frame(HEADERS, END_HEADERS, 1, &headers),
            frame(DATA, END_STREAM, 1, frames::ASK),
        ]
        .concat(),
    );
    loop {
        let (kind, _, _, payload) = raw.next().expect("the call is answered");
        if kind == HEADERS {
            return payload;
        }
    }
}

#[tokio::test]
async fn a_request_that_is_no_grpc_call_is_refused_and_charges_nothing() {
    /// `:status: 200`, which the static table has whole.
    const OK: u8 = 0x88;
    let server = Server::start(PLANS, &[]);
    let address = server.address.clone();
    tokio::task::spawn_blocking(move || {
        // Both begin with a literal `:status`; its Huffman code tells 405 from 415.
        let [method, content] = [("GET", "application/grpc"), ("POST", "text/html")]
            .map(|(m, c)| answered(&address, m, c)[..4].to_vec());
        assert!(
            method != content && method[0] != OK && content[0] != OK,
            "{method:?} {content:?}"
        );
        for other in ["PUT", "HEAD", "DELETE"] {
            assert_eq!(
                answered(&address, other, "application/grpc")[..4],
                method,
                "{other}"
            );
        }
        for other in [
            "application/json",
            "application/grpc+json",
            "application/grpc-web",
            "application/grpcx",
        ] {
            assert_eq!(answered(&address, "POST", other)[..4], content, "{other}");
        }
        for grpc in ["application/grpc", "application/grpc+proto"] {
            assert_eq!(answered(&address, "POST", grpc)[0], OK, "{grpc}");
        }
    })
    .await
    .unwrap();
    // Of 10, the two calls took 2.
    let mut client = server.client().await;
    assert_eq!(decide(&mut client, "k", "p").await.remaining, Some(7));
}

#[tokio::test]
async fn compressed_calls_are_served_and_none_inflates_beyond_the_bound() {
    let server = Server::start(PLANS, &[]);
    let channel = channel_to(&server.address).await;
    let mut client = Client::new(channel.clone()).send_compressed(CompressionEncoding::Gzip);
    assert!(decide(&mut client, "k", "p").await.allowed);
    let requests = (0..3).map(|_| request("k", "p", None)).collect();
    let results = client
        .should_allow_batch(pb::ShouldAllowBatchRequest { requests })
        .await
        .unwrap()
        .into_inner()
        .results;
    assert_eq!(results.len(), 3);
    let asked = pb::ShouldAllowStreamRequest {
        id: 7,
        request: Some(request("k", "p", None)),
    };
    let mut answers = client
        .should_allow_stream(tokio_stream::once(asked))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap().id, 7);
    let mut health = HealthClient::new(channel).send_compressed(CompressionEncoding::Gzip);
    assert!(health.check(HealthCheckRequest::default()).await.is_ok());
    // 64 MiB of one letter are sent as 64 KiB.
    let request = request(&"a".repeat(64 << 20), "p", None);
    let huge = client
        .should_allow_batch(pb::ShouldAllowBatchRequest {
            requests: vec![request.clone()],
        })
        .await
        .unwrap_err();
    assert_eq!(huge.code(), Code::OutOfRange, "{huge:?}");
    assert!(
        huge.message()
            .starts_with("the message is too large: size limit"),
        "{huge:?}"
    );
    // Alone it is too large as it is, and so is a key of 100 KiB once it is decompressed.
    for request in [
        request.clone(),
        self::request(&"a".repeat(100 << 10), "p", None),
    ] {
        let huge = client.should_allow(request.clone()).await.unwrap_err();
        assert_eq!(huge.code(), Code::OutOfRange, "{huge:?}");
        let asked = pb::ShouldAllowStreamRequest {
            id: 8,
            request: Some(request),
        };
        let mut answers = client
            .should_allow_stream(tokio_stream::once(asked))
            .await
            .unwrap()
            .into_inner();
        let huge = answers.message().await.unwrap_err();
        assert_eq!(huge.code(), Code::OutOfRange, "{huge:?}");
    }
    assert_eq!(decide(&mut client, "k", "p").await.remaining, Some(4));
}
