//! The handlers: parse, decide, answer.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::convert;
use super::drain::{self, DrainSignal};
use super::pb;
use super::pb::rate_limit_service_server::RateLimitService;
use super::{span, stream};
use crate::algorithm::Mode;
use crate::limiter::{BATCH_MAX, CallerDeadline, Limiter};
use crate::store::Store;
use crate::trace;

/// The return type of tonic's handlers.
type ResponseFuture<'f, T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'f>>;

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
    /// A service that asks `limiter`.
    pub fn new(limiter: Arc<Limiter<S>>) -> Self {
        Self { limiter }
    }
}

/// Returns one result per request, in the same order. Errors: the caller's deadline passed, which ends the whole call.
async fn decide_batch<S: Store>(
    limiter: &Limiter<S>,
    requests: Vec<pb::ShouldAllowRequest>,
    caller: Option<CallerDeadline>,
) -> Result<Vec<pb::ShouldAllowResult>, Status> {
    let (parsed, checks) = convert::check_requests(requests);
    let decisions = limiter.decide_batch(checks, caller).await;
    Ok(convert::results(parsed, decisions.map_err(|refused| convert::refusal(&refused))?))
}

#[tonic::async_trait]
impl<S: Store> RateLimitService for Service<S> {
    /// Not an async function: what is done before the store is asked thus stays out of the future, which is allocated for
    /// each decision.
    fn should_allow<'a, 'f>(&'a self, request: Request<pb::ShouldAllowRequest>) -> ResponseFuture<'f, pb::ShouldAllowResponse>
    where
        'a: 'f,
        Self: 'f,
    {
        let span = span::begin("tollgate.v1.RateLimitService/ShouldAllow", request.metadata());
        let caller = convert::caller_deadline(request.metadata());
        let detailed = request.get_ref().detailed;
        let check = match convert::check_request(request.into_inner()) {
            Ok(check) => check,
            Err(status) => return Box::pin(std::future::ready(Err(span::failed(&span, status)))),
        };
        trace::plan(&span, &check.plan);
        Box::pin(async move {
            let decision = self.limiter.decide(check, caller).await;
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
        let (limiter, drain) = (self.limiter.clone(), request.extensions().get::<DrainSignal>().cloned());
        let caller = convert::caller_deadline(request.metadata());
        // The caller's deadline applies to the stream as a whole; the requests in it have none of their own.
        let decide = move |requests: Vec<pb::ShouldAllowRequest>| {
            let limiter = limiter.clone();
            async move {
                let count = requests.len();
                let results = decide_batch(&limiter, requests, None).await;
                results.unwrap_or_else(|status| vec![convert::error_result(&status); count])
            }
        };
        let answers = drain::until_drain(drain, request.into_inner(), |requests| stream::decide_in_batches(requests, decide));
        Ok(Response::new(Box::pin(stream::until_deadline(caller.map(CallerDeadline::left), answers))))
    }

    async fn peek(&self, request: Request<pb::PeekRequest>) -> Result<Response<pb::PeekResponse>, Status> {
        let span = span::begin("tollgate.v1.RateLimitService/Peek", request.metadata());
        let caller = convert::caller_deadline(request.metadata());
        let pb::PeekRequest { key, plan, cost } = request.into_inner();
        let check = convert::check_request(pb::ShouldAllowRequest { key, plan, cost, detailed: true });
        let mut check = check.map_err(|status| span::failed(&span, status))?;
        check.mode = Mode::Peek;
        trace::plan(&span, &check.plan);
        let decision = self.limiter.decide(check, caller).await;
        let decision = decision.map_err(|refused| span::failed(&span, convert::refusal(&refused)))?;
        span::answered(&span, &decision);
        Ok(Response::new(pb::PeekResponse { answer: Some(convert::response(decision, true)) }))
    }

    async fn list_plans(&self, _: Request<pb::ListPlansRequest>) -> Result<Response<pb::ListPlansResponse>, Status> {
        let snapshot = self.limiter.snapshot();
        let plans = snapshot.plans().iter().map(|plan| convert::plan(plan)).collect();
        Ok(Response::new(pb::ListPlansResponse { plans, config_hash: snapshot.config_hash().to_owned() }))
    }
}
