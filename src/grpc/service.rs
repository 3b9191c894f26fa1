//! The handlers: parse, decide, answer.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::convert;
use super::leaving::{self, Leaving};
use super::pb;
use super::pb::rate_limit_service_server::RateLimitService;
use super::{span, stream};
use crate::algorithm::Mode;
use crate::limiter::{BATCH_MAX, CallerDeadline, Limiter};
use crate::store::Store;
use crate::trace;

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
}

/// One result per request, same order. Errors: the caller's deadline passed, which ends the call as a whole.
async fn decide_batch<S: Store>(
    limiter: &Limiter<S>,
    requests: Vec<pb::ShouldAllowRequest>,
    caller: Option<CallerDeadline>,
) -> Result<Vec<pb::ShouldAllowResult>, Status> {
    let (parsed, questions) = convert::questions(requests);
    let decisions = limiter.decide_batch(questions, caller).await;
    Ok(convert::results(parsed, decisions.map_err(|refused| convert::refusal(&refused))?))
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
        let caller = convert::caller_deadline(request.metadata());
        let detailed = request.get_ref().detailed;
        let question = match convert::question(request.into_inner()) {
            Ok(question) => question,
            Err(status) => return Box::pin(std::future::ready(Err(span::failed(&span, status)))),
        };
        trace::plan(&span, &question.plan);
        Box::pin(async move {
            let decision = self.limiter.decide(question, caller).await;
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
        let caller = convert::caller_deadline(request.metadata());
        let requests = request.into_inner().requests;
        if !(1..=BATCH_MAX).contains(&requests.len()) {
            return Err(span::failed(&span, convert::batch_size(requests.len())));
        }
        let results = decide_batch(&self.limiter, requests, caller).await.map_err(|status| span::failed(&span, status))?;
        span::succeeded(&span);
        Ok(Response::new(pb::ShouldAllowBatchResponse { results }))
    }

    type ShouldAllowStreamStream = Pin<Box<dyn Stream<Item = Result<pb::ShouldAllowStreamResponse, Status>> + Send>>;

    async fn should_allow_stream(
        &self,
        request: Request<Streaming<pb::ShouldAllowStreamRequest>>,
    ) -> Result<Response<Self::ShouldAllowStreamStream>, Status> {
        let (limiter, leaving) = (self.limiter.clone(), request.extensions().get::<Leaving>().cloned());
        let caller = convert::caller_deadline(request.metadata());
        // Its deadline is the stream's, which ends with it; the requests in it have none of their own.
        let decide = move |requests: Vec<pb::ShouldAllowRequest>| {
            let limiter = limiter.clone();
            async move {
                let count = requests.len();
                let results = decide_batch(&limiter, requests, None).await;
                results.unwrap_or_else(|status| vec![convert::error_result(&status); count])
            }
        };
        let answers = leaving::until(leaving, request.into_inner(), |requests| stream::answers(requests, decide));
        Ok(Response::new(Box::pin(stream::until(caller.map(CallerDeadline::left), answers))))
    }

    async fn peek(&self, request: Request<pb::PeekRequest>) -> Result<Response<pb::PeekResponse>, Status> {
        let span = span::begin("tollgate.v1.RateLimitService/Peek", request.metadata());
        let caller = convert::caller_deadline(request.metadata());
        let pb::PeekRequest { key, plan, cost } = request.into_inner();
        let question = convert::question(pb::ShouldAllowRequest { key, plan, cost, detailed: true });
        let mut question = question.map_err(|status| span::failed(&span, status))?;
        question.mode = Mode::Peek;
        trace::plan(&span, &question.plan);
        let decision = self.limiter.decide(question, caller).await;
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
