//! The handlers: parse, decide, answer.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::convert;
use super::leaving::{self, Leaving};
use super::pb;
use super::pb::rate_limit_service_server::RateLimitService;
use super::span;
use crate::algorithm::Mode;
use crate::limiter::{BATCH_MAX, Limiter};
use crate::store::Store;
use crate::trace;

/// Requests of one stream that are decided at once. Beyond, none is read until an answer has been taken, so neither a
/// flood nor a slow reader costs memory.
const STREAM_IN_FLIGHT: usize = 64;

/// What tonic's handlers return.
type Answering<'f, T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'f>>;

/// `RateLimitService` over a limiter.
pub struct Service<S> {
    limiter: Arc<Limiter<S>>,
}

impl<S> Clone for Service<S> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone() }
    }
}

impl<S: Store> Service<S> {
    /// Answers by `limiter`.
    pub fn new(limiter: Arc<Limiter<S>>) -> Self {
        Self { limiter }
    }

    async fn decide_one(&self, request: pb::ShouldAllowRequest) -> pb::ShouldAllowResult {
        let detailed = request.detailed;
        match convert::question(request) {
            Ok(question) => convert::result(self.limiter.decide(question, None).await, detailed),
            Err(status) => convert::error_result(&status),
        }
    }
}

#[tonic::async_trait]
impl<S: Store> RateLimitService for Service<S> {
    /// Not async itself: what is done before the store is asked is no part of the future that waits for it, which is
    /// allocated for each decision.
    fn should_allow<'a, 'f>(&'a self, request: Request<pb::ShouldAllowRequest>) -> Answering<'f, pb::ShouldAllowResponse>
    where
        'a: 'f,
        Self: 'f,
    {
        let span = span::begin("tollgate.v1.RateLimitService/ShouldAllow", request.metadata());
        let patience = convert::patience(request.metadata());
        let detailed = request.get_ref().detailed;
        let question = match convert::question(request.into_inner()) {
            Ok(question) => question,
            Err(status) => return Box::pin(std::future::ready(Err(span::failed(&span, status)))),
        };
        trace::plan(&span, &question.plan);
        Box::pin(async move {
            let decision = self.limiter.decide(question, patience).await;
            let decision = decision.map_err(|refused| span::failed(&span, convert::refusal(&refused)))?;
            span::answered(&span, &decision);
            Ok(Response::new(convert::response(decision, detailed)))
        })
    }

    async fn should_allow_batch(
        &self,
        request: Request<pb::ShouldAllowBatchRequest>,
    ) -> Result<Response<pb::ShouldAllowBatchResponse>, Status> {
        let span = span::begin("tollgate.v1.RateLimitService/ShouldAllowBatch", request.metadata());
        let patience = convert::patience(request.metadata());
        let requests = request.into_inner().requests;
        if !(1..=BATCH_MAX).contains(&requests.len()) {
            return Err(span::failed(&span, convert::batch_size(requests.len())));
        }
        let (parsed, questions) = convert::questions(requests);
        let decisions = self.limiter.decide_batch(questions, patience).await;
        span::succeeded(&span);
        Ok(Response::new(pb::ShouldAllowBatchResponse { results: convert::results(parsed, decisions) }))
    }

    type ShouldAllowStreamStream = Pin<Box<dyn Stream<Item = Result<pb::ShouldAllowStreamResponse, Status>> + Send>>;

    async fn should_allow_stream(
        &self,
        request: Request<Streaming<pb::ShouldAllowStreamRequest>>,
    ) -> Result<Response<Self::ShouldAllowStreamStream>, Status> {
        let (service, leaving) = (self.clone(), request.extensions().get::<Leaving>().cloned());
        let answers = leaving::until(leaving, request.into_inner(), |requests| {
            let answers = requests.map(move |received| {
                let service = service.clone();
                async move {
                    let pb::ShouldAllowStreamRequest { id, request } = received?;
                    let result = service.decide_one(request.unwrap_or_default()).await;
                    Ok(pb::ShouldAllowStreamResponse { id, result: Some(result) })
                }
            });
            answers.buffer_unordered(STREAM_IN_FLIGHT)
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn peek(&self, request: Request<pb::PeekRequest>) -> Result<Response<pb::PeekResponse>, Status> {
        let span = span::begin("tollgate.v1.RateLimitService/Peek", request.metadata());
        let patience = convert::patience(request.metadata());
        let pb::PeekRequest { key, plan, cost } = request.into_inner();
        let question = convert::question(pb::ShouldAllowRequest { key, plan, cost, detailed: true });
        let mut question = question.map_err(|status| span::failed(&span, status))?;
        question.mode = Mode::Peek;
        trace::plan(&span, &question.plan);
        let decision = self.limiter.decide(question, patience).await;
        let decision = decision.map_err(|refused| span::failed(&span, convert::refusal(&refused)))?;
        span::answered(&span, &decision);
        Ok(Response::new(pb::PeekResponse { answer: Some(convert::response(decision, true)) }))
    }

    async fn list_plans(&self, _: Request<pb::ListPlansRequest>) -> Result<Response<pb::ListPlansResponse>, Status> {
        let edition = self.limiter.edition();
        let plans = edition.plans().iter().map(|plan| convert::plan(plan)).collect();
        Ok(Response::new(pb::ListPlansResponse { plans, config_hash: edition.config_hash().to_owned() }))
    }
}
