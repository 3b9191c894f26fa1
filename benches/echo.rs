//! The bare server that costs are compared with: the same RPCs and messages, and no decision behind them.
//!
//! What it costs is what the wire costs by tonic's own server, on the accept loop and the workers of tollgate.

use tokio_stream::StreamExt;
use tollgate::grpc::WorkerService;
use tollgate::grpc::envoy::pb::config::core::v3::HeaderValue;
use tollgate::grpc::envoy::pb::service::ratelimit::v3 as rls;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit::Unit,
};
use tollgate::grpc::pb;
use tollgate::grpc::pb::hold_service_server::HoldService;
use tollgate::grpc::pb::rate_limit_service_server::RateLimitService;
use tonic::codegen::BoxStream;
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
        reset_after: Some(prost_types::Duration {
            seconds: 0,
            nanos: 4_000,
        }),
        decided_by: pb::DecidedBy::Store.into(),
        limits: Vec::new(),
        http_headers: Default::default(),
        window: Some(prost_types::Duration {
            seconds: 3_600,
            nanos: 0,
        }),
        more_after: None,
        plan: String::new(),
        overridden: false,
        is_repeated: false,
    }
}

fn result() -> pb::ShouldAllowResult {
    pb::ShouldAllowResult {
        result: Some(pb::should_allow_result::Result::Response(answer())),
    }
}

#[tonic::async_trait]
impl RateLimitService for Echo {
    async fn should_allow(
        &self,
        _: Request<pb::ShouldAllowRequest>,
    ) -> Result<Response<pb::ShouldAllowResponse>, Status> {
        Ok(Response::new(answer()))
    }

    async fn should_allow_batch(
        &self,
        request: Request<pb::ShouldAllowBatchRequest>,
    ) -> Result<Response<pb::ShouldAllowBatchResponse>, Status> {
        let results = request
            .into_inner()
            .requests
            .iter()
            .map(|_| result())
            .collect();
        Ok(Response::new(pb::ShouldAllowBatchResponse { results }))
    }

    async fn should_allow_stream(
        &self,
        request: Request<Streaming<pb::ShouldAllowStreamRequest>>,
    ) -> Result<Response<BoxStream<pb::ShouldAllowStreamResponse>>, Status> {
        let answers = request.into_inner().map(|received| {
            received.map(|request| pb::ShouldAllowStreamResponse {
                id: request.id,
                result: Some(result()),
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

#[tonic::async_trait]
impl HoldService for Echo {}

impl WorkerService for Echo {
    const UNARY_BY_TONIC: bool = true;
}

#[tonic::async_trait]
impl rls::rate_limit_service_server::RateLimitService for Echo {
    async fn should_rate_limit(
        &self,
        request: Request<rls::RateLimitRequest>,
    ) -> Result<Response<rls::RateLimitResponse>, Status> {
        let field = |key: &str, value: &str| HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let limit = RateLimit {
            requests_per_unit: 900_000_000,
            unit: Unit::Hour.into(),
            name: "token_bucket/1h".to_owned(),
        };
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(limit),
            limit_remaining: 899_999_999,
            duration_until_reset: Some(prost_types::Duration {
                seconds: 0,
                nanos: 4_000,
            }),
        };
        let fields = [
            field(
                "ratelimit-policy",
                "\"token_bucket/1h\";q=900000000;w=3600;tollgate-burst=900000000",
            ),
            field("ratelimit", "\"token_bucket/1h\";r=899999999"),
        ];
        Ok(Response::new(rls::RateLimitResponse {
            overall_code: Code::Ok.into(),
            statuses: vec![status; request.get_ref().descriptors.len()],
            response_headers_to_add: fields.into(),
            raw_body: Vec::new(),
        }))
    }
}
