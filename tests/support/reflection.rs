//! What the contract has: its methods, and its services by a client of gRPC reflection.

use prost::Message;
use prost_types::FileDescriptorSet;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tollgate::grpc::pb;
use tonic::transport::Channel;
use tonic_reflection::pb::v1;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;

use crate::support::server::PATIENCE;

/// Paths of all methods for callers, such as `/tollgate.v1.RateLimitService/Peek`.
pub fn methods() -> Vec<String> {
    let descriptors = FileDescriptorSet::decode(pb::FILE_DESCRIPTOR_SET).unwrap();
    let mut paths = Vec::new();
    for file in &descriptors.file {
        for service in &file.service {
            let methods = service.method.iter();
            let paths_of_service = methods
                .map(|method| format!("/{}.{}/{}", file.package(), service.name(), method.name()));
            paths.extend(paths_of_service);
        }
    }
    assert!(paths.len() >= 10, "{paths:?}");
    paths
}

/// Names of the services that a listener's reflection lists.
pub async fn services(channel: Channel) -> Vec<String> {
    let list = v1::server_reflection_request::MessageRequest::ListServices(String::new());
    let ask = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(list),
    };
    // As grpcurl does: a request after the answer to the one before, and the end of the stream after the last.
    let (asks, asked) = mpsc::channel(1);
    let mut client = ServerReflectionClient::new(channel);
    let requests = ReceiverStream::new(asked);
    let called = client.server_reflection_info(requests).await;
    let mut answers = called.unwrap().into_inner();
    let mut listed = None;
    for _ in 0..2 {
        asks.send(ask.clone()).await.unwrap();
        let answer = timeout(PATIENCE, answers.next()).await;
        listed = answer
            .expect("an answer comes")
            .unwrap()
            .unwrap()
            .message_response;
    }
    drop(asks);
    let end = timeout(PATIENCE, answers.next()).await;
    assert!(end.expect("the stream ends").is_none());
    let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(listed)) =
        listed
    else {
        panic!("no list")
    };
    let mut names: Vec<String> = listed
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    names.sort();
    names
}
