//! Many requests in one call: batches and streams answer each request by itself.

use tokio_stream::StreamExt;
use tollgate::grpc::pb;
use tonic::Code;

use super::start;
use crate::support::server::request;

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
    let mut ids = Vec::new();
    let mut allowed = 0;
    let mut errors = 0;
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
