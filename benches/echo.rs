//! The bare server that costs are compared with: the same RPCs and messages, and no decision behind them.
//!
//! What it costs is what the wire costs. It must be served just as tollgate is served.

use std::pin::Pin;

use tokio_stream::{Stream, StreamExt};
use tollgate::grpc::pb;
use tollgate::grpc::pb::rate_limit_service_server::RateLimitService;
use tonic::{Request, Response, Status, Streaming};

/// Answers everything with the same message, as long as a usual one of tollgate's.
pub struct Echo;

fn answer() -> pb::ShouldAllowResponse {
    pb::ShouldAllowResponse {
        allowed: true,
        outcome: pb::Outcome::Allowed.into(),
        limit_name: "token_bucket/1h".to_owned(),
        limit: Some(900_000_000),
        remaining: Some(899_999_999),
        retry_after: None,
        reset_after: Some(prost_types::Duration { seconds: 0, nanos: 4_000 }),
        decided_by: pb::DecidedBy::Store.into(),
        limits: Vec::new(),
        http_headers: Default::default(),
        window: Some(prost_types::Duration { seconds: 3_600, nanos: 0 }),
        more_after: None,
    }
}

fn result() -> pb::ShouldAllowResult {
    pb::ShouldAllowResult { result: Some(pb::should_allow_result::Result::Response(answer())) }
}

#[tonic::async_trait]
impl RateLimitService for Echo {
    async fn should_allow(&self, _: Request<pb::ShouldAllowRequest>) -> Result<Response<pb::ShouldAllowResponse>, Status> {
        Ok(Response::new(answer()))
    }

    async fn should_allow_batch(
        &self,
        request: Request<pb::ShouldAllowBatchRequest>,
    ) -> Result<Response<pb::ShouldAllowBatchResponse>, Status> {
        let results = request.into_inner().requests.iter().map(|_| result()).collect();
        Ok(Response::new(pb::ShouldAllowBatchResponse { results }))
    }

    type ShouldAllowStreamStream = Pin<Box<dyn Stream<Item = Result<pb::ShouldAllowStreamResponse, Status>> + Send>>;

    async fn should_allow_stream(
        &self,
        request: Request<Streaming<pb::ShouldAllowStreamRequest>>,
    ) -> Result<Response<Self::ShouldAllowStreamStream>, Status> {
        let answers = request
            .into_inner()
            .map(|received| received.map(|request| pb::ShouldAllowStreamResponse { id: request.id, result: Some(result()) }));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn peek(&self, _: Request<pb::PeekRequest>) -> Result<Response<pb::PeekResponse>, Status> {
        Ok(Response::new(pb::PeekResponse { answer: Some(answer()) }))
    }

    async fn list_plans(&self, _: Request<pb::ListPlansRequest>) -> Result<Response<pb::ListPlansResponse>, Status> {
        Ok(Response::new(pb::ListPlansResponse::default()))
    }
}
