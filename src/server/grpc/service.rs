//! The handlers: parse, decide, answer.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::TryFutureExt;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::Span;

use super::convert;
use super::drain::{self, DrainSignal};
use super::pb;
use super::pb::rate_limit_service_server::RateLimitService;
use super::receive::no_bytes_left;
use super::stream::DecidedBatch;
use super::{SharedMessage, WorkerService};
use super::{span, stream, unary};
use crate::limiter::{BATCH_MAX, CallerDeadline, Limiter, PlanSnapshot, RequestId};
use crate::trace;
use crate::transport::account::{Account, Charge};
use tollgate_core::algorithm::Mode;
use tollgate_core::headers::HeaderForm;
use tollgate_store::{Check, Store};

/// The return type of tonic's handlers.
pub(super) type ResponseFuture<'f, T> =
    Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'f>>;

/// `RateLimitService` over a limiter.
pub struct Service<S> {
    pub(super) limiter: Arc<Limiter<S>>,
    pub(super) header_form: HeaderForm,
}

impl<S> Clone for Service<S> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            header_form: self.header_form,
        }
    }
}

impl<S: Store> Service<S> {
    /// A service that asks `limiter`. Callers that ask for header fields get those of the default form.
    pub fn new(limiter: Arc<Limiter<S>>) -> Self {
        Self {
            limiter,
            header_form: HeaderForm::default(),
        }
    }

    /// Gives header fields of this form.
    pub fn with_header_form(self, header_form: HeaderForm) -> Self {
        Self {
            header_form,
            ..self
        }
    }

    /// The answer with header fields. A future of its own, so that other decisions do not allocate its state.
    async fn answer_with_headers(
        &self,
        check: Check<String>,
        caller: Option<CallerDeadline>,
        detailed: bool,
        span: Span,
    ) -> Result<Response<pb::ShouldAllowResponse>, Status> {
        let decided = self.limiter.decide_with_plan(check, caller).await;
        let (decision, plan) =
            decided.map_err(|refused| span::failed(&span, convert::refusal(&refused)))?;
        span::answered(&span, &decision);
        let http_headers = convert::http_headers(&decision, &plan, self.header_form);
        Ok(Response::new(pb::ShouldAllowResponse {
            http_headers,
            ..convert::response(&decision, detailed)
        }))
    }
}

impl<S: Store> Service<S> {
    /// Decides a request that may be sent again.
    async fn should_allow_with_id(
        &self,
        request: Request<pb::ShouldAllowRequest>,
        span: Span,
    ) -> Result<Response<pb::ShouldAllowResponse>, Status> {
        let decide = async {
            let caller = convert::caller_deadline(request.metadata())?;
            let request = request.into_inner();
            let asked = (request.detailed, request.http_headers);
            let id = RequestId::new(&request.request_id).map_err(Status::invalid_argument)?;
            let check = convert::check_request(request)?;
            span.record(trace::PLAN, &*check.plan);
            let decided = self.limiter.decide_with_id(check, id, caller).await;
            let (decision, plan) = decided.map_err(|refused| convert::refusal(&refused))?;
            span::answered(&span, &decision);
            Ok(Response::new(self.answer(&decision, &plan, asked)))
        };
        decide.await.map_err(|status| span::failed(&span, status))
    }

    async fn decide_joint(
        &self,
        request: Request<pb::ShouldAllowJointRequest>,
    ) -> Result<pb::ShouldAllowJointResponse, Status> {
        let caller = convert::caller_deadline(request.metadata())?;
        let account = request.extensions().get::<Arc<Account>>().cloned();
        let pb::ShouldAllowJointRequest {
            requests,
            peek,
            http_headers,
        } = request.into_inner();
        let _room = room_for_answers(&self.limiter, &requests, account.as_ref())?;
        let (checks, options) = convert::joint_checks(requests, peek)?;
        let decided = self.limiter.decide_joint(checks, caller).await;
        let (joint, plans) = decided.map_err(|refused| convert::joint_refusal(&refused))?;
        let mut response = convert::joint_response(&joint, &plans, &options, self.header_form);
        if http_headers {
            let binding = &joint.decisions[joint.binding];
            let plan = &plans[joint.binding];
            response.http_headers = convert::http_headers(binding, plan, self.header_form);
        }
        Ok(response)
    }
}

impl<S: Store> WorkerService for Service<S> {
    fn listed_plans(&self) -> Option<SharedMessage> {
        let encode = |snapshot: &PlanSnapshot, overrides_version| {
            let list = list_of(snapshot, overrides_version);
            unary::framed(&list).expect("a list of bounded plans is below 4 GiB")
        };
        let version = self.limiter.overrides_version();
        let encoded = self.limiter.snapshot().encoded(version, encode);
        Some(Box::pin(
            encoded.map_err(|error| Status::internal(error.to_string())),
        ))
    }

    fn serves_envoy(&self) -> bool {
        self.limiter.serves_envoy()
    }
}

fn list_of(snapshot: &PlanSnapshot, overrides_version: u64) -> pb::ListPlansResponse {
    let plans = snapshot
        .plans()
        .iter()
        .map(|plan| convert::plan(plan))
        .collect();
    pb::ListPlansResponse {
        plans,
        config_hash: snapshot.config_hash().to_owned(),
        overrides_version,
    }
}

/// Counts what the answers to these requests take beside the decisions, until the result is dropped. Errors: there is no room for
/// it. That is found out before anything is charged to a key. It does not wait: what is reserved already must not wait for more.
fn room_for_answers<S>(
    limiter: &Limiter<S>,
    requests: &[pb::ShouldAllowRequest],
    account: Option<&Arc<Account>>,
) -> Result<Option<Charge>, Status> {
    let extra_bytes = convert::extra_answer_bytes(requests, limiter);
    match account {
        Some(account) if extra_bytes > 0 => {
            let room = account.reserve(extra_bytes).ok_or_else(no_bytes_left)?;
            Ok(Some(room))
        }
        _ => Ok(None),
    }
}

/// Returns one result per request, in the same order. Errors: the caller's deadline passed, which ends the whole call.
async fn decide_batch<S: Store>(
    limiter: &Limiter<S>,
    requests: Vec<pb::ShouldAllowRequest>,
    caller: Option<CallerDeadline>,
    form: HeaderForm,
) -> Result<Vec<pb::ShouldAllowResult>, Status> {
    let (mut parsed, checks) = convert::check_requests(requests);
    let has_id = |parsed: &Result<convert::AnswerOptions, Status>| {
        parsed.as_ref().is_ok_and(|options| options.id.is_some())
    };
    if parsed.iter().any(has_id) {
        let valid = parsed.iter_mut().filter_map(|parsed| parsed.as_mut().ok());
        let ids = valid.map(|options| options.id.take());
        let checks = checks.into_iter().zip(ids).collect();
        let decided = Box::pin(limiter.decide_in_turn(checks, caller)).await;
        let decided = decided.map_err(|refused| convert::refusal(&refused))?;
        return Ok(convert::results(&parsed, &decided, form));
    }
    let decided = limiter.decide_batch_with_plans(checks, caller).await;
    let decided = decided.map_err(|refused| convert::refusal(&refused))?;
    Ok(convert::results(&parsed, &decided, form))
}

#[tonic::async_trait]
impl<S: Store> RateLimitService for Service<S> {
    /// Not an async function: what is done before the store is asked thus stays out of the future, which is allocated for
    /// each decision.
    fn should_allow<'a, 'f>(
        &'a self,
        request: Request<pb::ShouldAllowRequest>,
    ) -> ResponseFuture<'f, pb::ShouldAllowResponse>
    where
        'a: 'f,
        Self: 'f,
    {
        let span = trace::grpc_call(
            "tollgate.v1.RateLimitService/ShouldAllow",
            request.metadata().as_ref(),
        );
        let caller = convert::caller_deadline(request.metadata());
        if !request.get_ref().request_id.is_empty() {
            return Box::pin(self.should_allow_with_id(request, span));
        }
        let pb::ShouldAllowRequest {
            detailed,
            http_headers,
            ..
        } = *request.get_ref();
        let (caller, check) = match caller
            .and_then(|caller| Ok((caller, convert::check_request(request.into_inner())?)))
        {
            Ok(asked) => asked,
            Err(status) => return Box::pin(std::future::ready(Err(span::failed(&span, status)))),
        };
        span.record(trace::PLAN, &*check.plan);
        if http_headers {
            return Box::pin(self.answer_with_headers(check, caller, detailed, span));
        }
        Box::pin(async move {
            let decision = self.limiter.decide(check, caller).await;
            let decision =
                decision.map_err(|refused| span::failed(&span, convert::refusal(&refused)))?;
            span::answered(&span, &decision);
            Ok(Response::new(convert::response(&decision, detailed)))
        })
    }

    async fn should_allow_batch(
        &self,
        request: Request<pb::ShouldAllowBatchRequest>,
    ) -> Result<Response<pb::ShouldAllowBatchResponse>, Status> {
        let span = trace::grpc_call(
            "tollgate.v1.RateLimitService/ShouldAllowBatch",
            request.metadata().as_ref(),
        );
        let caller = convert::caller_deadline(request.metadata())
            .map_err(|status| span::failed(&span, status))?;
        let account = request.extensions().get::<Arc<Account>>().cloned();
        let requests = request.into_inner().requests;
        if !(1..=BATCH_MAX).contains(&requests.len()) {
            return Err(span::failed(&span, convert::batch_size(requests.len())));
        }
        let _room = room_for_answers(&self.limiter, &requests, account.as_ref())
            .map_err(|status| span::failed(&span, status))?;
        let results = decide_batch(&self.limiter, requests, caller, self.header_form)
            .await
            .map_err(|status| span::failed(&span, status))?;
        span::succeeded(&span);
        Ok(Response::new(pb::ShouldAllowBatchResponse { results }))
    }

    async fn should_allow_joint(
        &self,
        request: Request<pb::ShouldAllowJointRequest>,
    ) -> Result<Response<pb::ShouldAllowJointResponse>, Status> {
        let span = trace::grpc_call(
            "tollgate.v1.RateLimitService/ShouldAllowJoint",
            request.metadata().as_ref(),
        );
        let answered = self.decide_joint(request).await;
        let response = answered.map_err(|status| span::failed(&span, status))?;
        span::succeeded(&span);
        Ok(Response::new(response))
    }

    async fn should_allow_stream(
        &self,
        request: Request<Streaming<pb::ShouldAllowStreamRequest>>,
    ) -> Result<Response<BoxStream<pb::ShouldAllowStreamResponse>>, Status> {
        let limiter = self.limiter.clone();
        let drain = request.extensions().get::<DrainSignal>().cloned();
        let form = self.header_form;
        let account = request.extensions().get::<Arc<Account>>().cloned();
        let caller = convert::caller_deadline(request.metadata())?;
        // The caller's deadline applies to the stream as a whole; the requests in it have none of their own.
        let decide = move |requests: Vec<pb::ShouldAllowRequest>| {
            let limiter = limiter.clone();
            let account = account.clone();
            async move {
                let count = requests.len();
                let (decided, kept) = match room_for_answers(&limiter, &requests, account.as_ref())
                {
                    Ok(kept) => (decide_batch(&limiter, requests, None, form).await, kept),
                    Err(refused) => (Err(refused), None),
                };
                let results =
                    decided.unwrap_or_else(|status| vec![convert::error_result(&status); count]);
                DecidedBatch { results, kept }
            }
        };
        let answers = drain::until_drain(drain, request.into_inner(), |requests| {
            stream::decide_in_batches(requests, decide)
        });
        let answers: BoxStream<pb::ShouldAllowStreamResponse> = match caller {
            Some(caller) => Box::pin(stream::until_deadline(caller.left(), answers)),
            None => Box::pin(answers),
        };
        Ok(Response::new(answers))
    }

    async fn peek(
        &self,
        request: Request<pb::PeekRequest>,
    ) -> Result<Response<pb::PeekResponse>, Status> {
        let span = trace::grpc_call(
            "tollgate.v1.RateLimitService/Peek",
            request.metadata().as_ref(),
        );
        let caller = convert::caller_deadline(request.metadata())
            .map_err(|status| span::failed(&span, status))?;
        let pb::PeekRequest {
            key,
            plan,
            cost,
            shard,
        } = request.into_inner();
        let check = convert::check_request(pb::ShouldAllowRequest {
            key,
            plan,
            cost,
            shard,
            ..Default::default()
        });
        let mut check = check.map_err(|status| span::failed(&span, status))?;
        check.mode = Mode::Peek;
        span.record(trace::PLAN, &*check.plan);
        let decision = self.limiter.decide(check, caller).await;
        let decision =
            decision.map_err(|refused| span::failed(&span, convert::refusal(&refused)))?;
        span::answered(&span, &decision);
        Ok(Response::new(pb::PeekResponse {
            answer: Some(convert::response(&decision, true)),
        }))
    }

    async fn record(
        &self,
        request: Request<pb::RecordRequest>,
    ) -> Result<Response<pb::RecordResponse>, Status> {
        let method = "tollgate.v1.RateLimitService/Record";
        let span = trace::grpc_call(method, request.metadata().as_ref());
        span.record(trace::PLAN, &*request.get_ref().plan);
        let answered = self.record_one(request).await;
        let response = answered.map_err(|status| span::failed(&span, status))?;
        span::succeeded(&span);
        Ok(Response::new(response))
    }

    async fn list_plans(
        &self,
        _: Request<pb::ListPlansRequest>,
    ) -> Result<Response<pb::ListPlansResponse>, Status> {
        Ok(Response::new(list_of(
            &self.limiter.snapshot(),
            self.limiter.overrides_version(),
        )))
    }
}

#[cfg(test)]
mod tests;
