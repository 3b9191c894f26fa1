//! Both ways of answering a unary call, compared.

use std::future::poll_fn;
use std::sync::Arc;

use tonic::codegen::Service as _;

use super::*;
use crate::grpc::WorkerService;
use crate::grpc::codec::BatchParts;
use crate::grpc::fuzz::service;
use crate::grpc::pb::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use crate::grpc::pb::{ShouldAllowBatchRequest, ShouldAllowRequest};

/// What a client gets: the status, the header fields, whether these end the answer, the bytes, and the trailers.
type Received = (u16, HeaderMap, bool, Vec<u8>, Option<HeaderMap>);

async fn received<B: HttpBody<Data = Bytes> + Unpin>(response: Response<B>) -> Received {
    let (parts, mut body) = response.into_parts();
    let ended = body.is_end_stream();
    let mut bytes = Vec::new();
    let mut trailers = None;
    assert_eq!(body.size_hint().exact(), ended.then_some(0));
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        match frame.into_data() {
            Ok(data) => bytes.extend(data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
        assert_eq!(body.is_end_stream(), trailers.is_some());
    }
    (parts.status.as_u16(), parts.headers, ended, bytes, trailers)
}

fn framed(message: &[u8]) -> Vec<u8> {
    [
        &[PLAIN][..],
        &u32::try_from(message.len()).unwrap().to_be_bytes(),
        message,
    ]
    .concat()
}

fn request(path: &str, bytes: &[u8]) -> Request<RequestBody> {
    let body = RequestBody::Whole(Some(Bytes::copy_from_slice(bytes)));
    Request::builder()
        .uri(format!("/tollgate.v1.RateLimitService/{path}"))
        .header("grpc-timeout", "10S")
        .body(body)
        .unwrap()
}

fn asked(plan: &str, key: &str) -> ShouldAllowRequest {
    ShouldAllowRequest {
        plan: plan.to_owned(),
        key: key.to_owned(),
        ..ShouldAllowRequest::default()
    }
}

/// What tonic's server answers to a request.
async fn by_tonic(request: Request<RequestBody>) -> Received {
    let mut server = RateLimitServiceServer::new(service());
    received(server.call(request).await.unwrap()).await
}

#[tokio::test]
async fn both_ways_give_the_same_answer() {
    let no_utf8 = [0x0a, 1, 0xff];
    let messages = [
        asked("unlimited", "k").encode_to_vec(),
        ShouldAllowRequest {
            detailed: true,
            http_headers: true,
            ..asked("unlimited", "k")
        }
        .encode_to_vec(),
        asked("p", "").encode_to_vec(),
        asked("a plan that is unknown: 100 %, é\n", "k").encode_to_vec(),
        asked("unlimited", &"k".repeat(2_000)).encode_to_vec(),
        Vec::new(),
        no_utf8.to_vec(),
        vec![0xff; 7],
    ];
    for message in messages {
        let bytes = framed(&message);
        let service = Arc::new(service());
        let plain = request("ShouldAllow", &bytes);
        assert!(is_plain(&plain));
        let own =
            call::<BatchParts, _, _, _>(
                plain,
                |asked| async move { service.should_allow(asked).await },
            );
        let own = received(own.await.unwrap()).await;
        assert_eq!(
            own,
            by_tonic(request("ShouldAllow", &bytes)).await,
            "{message:?}"
        );
    }
}

#[tokio::test]
async fn both_ways_give_the_same_answer_to_a_batch() {
    let filled = [1, 2, 1_000, 1_001].map(|count| vec![asked("unlimited", "k"); count]);
    for requests in filled.into_iter().chain([
        Vec::new(),
        vec![
            asked("unlimited", "k"),
            asked("unknown", "k"),
            asked("", ""),
        ],
    ]) {
        let bytes = framed(&ShouldAllowBatchRequest { requests }.encode_to_vec());
        let service = Arc::new(service());
        let plain = request("ShouldAllowBatch", &bytes);
        let own = call::<BatchParts, _, _, _>(plain, |asked| async move {
            service.should_allow_batch(asked).await
        });
        let own = received(own.await.unwrap()).await;
        assert_eq!(own, by_tonic(request("ShouldAllowBatch", &bytes)).await);
    }
}

#[tokio::test]
async fn both_ways_give_the_same_list_of_plans() {
    let listed = service().listed_plans().unwrap();
    let own = received(shared(listed).await.unwrap()).await;
    assert_eq!(own, by_tonic(request("ListPlans", &framed(&[]))).await);
    assert!(own.3.len() > PREFIX_BYTES);
}

#[test]
fn only_one_complete_message_that_is_not_compressed_is_plain() {
    let bytes = framed(&asked("p", "k").encode_to_vec());
    let with_encoding = |encoding: &'static str| {
        let mut request = request("ShouldAllow", &bytes);
        request
            .headers_mut()
            .insert(ENCODING, HeaderValue::from_static(encoding));
        request
    };
    assert!(is_plain(&request("ShouldAllow", &bytes)) && is_plain(&with_encoding("identity")));
    assert!(!is_plain(&with_encoding("gzip")) && !is_plain(&with_encoding("unknown")));
    for flag in 1..=255 {
        let compressed = [&[flag][..], &bytes[1..]].concat();
        assert!(!is_plain(&request("ShouldAllow", &compressed)), "{flag}");
    }
    for length in 0..bytes.len() {
        assert!(
            !is_plain(&request("ShouldAllow", &bytes[..length])),
            "{length}"
        );
    }
    assert!(!is_plain(&request(
        "ShouldAllow",
        &[&bytes[..], &[0]].concat()
    )));
    assert!(!is_plain(
        &request("ShouldAllow", &bytes).map(|_| RequestBody::Whole(None))
    ));
}
