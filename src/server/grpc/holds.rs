//! The handlers of `HoldService` and of `Record`: parse, ask the limiter, answer.

use std::sync::Arc;
use std::time::Duration;

use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::drain::DrainSignal;
use super::hold_stream::HoldStream;
use super::pb;
use super::pb::hold_service_server::HoldService;
use super::service::Service;
use super::{convert, span, stream};
use crate::limiter::{CallerDeadline, RequestId, Reserved};
use crate::trace;
use crate::transport::account::Account;
use tollgate_core::decision::Decision;
use tollgate_core::plan::Plan;
use tollgate_store::{Check, Store};

/// A reserve that was read.
pub(super) struct Stated {
    pub check: Check<String>,
    pub id: RequestId,
    pub ttl: Option<Duration>,
    /// Whether it asks for details, and for header fields.
    asked: (bool, bool),
}

impl Stated {
    /// Reads it. Errors: INVALID_ARGUMENT.
    pub(super) fn new(request: pb::ReserveRequest) -> Result<Self, Status> {
        let asked = (request.detailed, request.http_headers);
        let (check, id, ttl) = convert::reserve(request)?;
        Ok(Self {
            check,
            id,
            ttl,
            asked,
        })
    }
}

impl<S: Store> Service<S> {
    /// The answer to a decision, with what the request asked for beside it.
    pub(super) fn answer(
        &self,
        decision: &Decision,
        plan: &Plan,
        (detailed, http_headers): (bool, bool),
    ) -> pb::ShouldAllowResponse {
        let mut answer = convert::response(decision, detailed);
        if http_headers {
            answer.http_headers = convert::http_headers(decision, plan, self.header_form);
        }
        answer
    }

    async fn reserve_one(
        &self,
        request: Request<pb::ReserveRequest>,
    ) -> Result<pb::ReserveResponse, Status> {
        let caller = convert::caller_deadline(request.metadata())?;
        let stated = Stated::new(request.into_inner())?;
        let (_, response) = self.reserve_stated(stated, caller).await?;
        Ok(response)
    }

    /// Carries out a reserve that was read.
    pub(super) async fn reserve_stated(
        &self,
        stated: Stated,
        caller: Option<CallerDeadline>,
    ) -> Result<(Reserved, pb::ReserveResponse), Status> {
        let lease = (stated.id, stated.ttl);
        let reserved = self.limiter.reserve(stated.check, lease, caller).await;
        let reserved = reserved.map_err(|refused| convert::refusal(&refused))?;
        let answer = self.answer(&reserved.decision, &reserved.plan, stated.asked);
        let response = pb::ReserveResponse {
            is_repeated: answer.is_repeated,
            answer: Some(answer),
            held: reserved.expires_in_us.is_some(),
            expires_after: reserved.expires_in_us.map(convert::duration),
        };
        Ok((reserved, response))
    }

    async fn settle_one(
        &self,
        request: Request<pb::SettleRequest>,
    ) -> Result<pb::SettleResponse, Status> {
        let caller = convert::caller_deadline(request.metadata())?;
        let request = request.into_inner();
        let detailed = request.detailed;
        let asked = (false, request.http_headers);
        let (subject, settle) = convert::settle(request)?;
        let settled = self.limiter.settle(subject, settle, caller).await;
        let settled = settled.map_err(|refused| convert::refusal(&refused))?;
        let answer = self.answer(&settled.decision, &settled.plan, asked);
        Ok(convert::settled(&settled, answer, detailed))
    }

    async fn extend_one(
        &self,
        request: Request<pb::ExtendRequest>,
    ) -> Result<pb::ExtendResponse, Status> {
        let caller = convert::caller_deadline(request.metadata())?;
        let (subject, extend) = convert::extend(request.into_inner())?;
        let extended = self.limiter.extend(subject, extend, caller).await;
        let extended = extended.map_err(|refused| convert::refusal(&refused))?;
        Ok(convert::extended(extended))
    }

    pub(super) async fn record_one(
        &self,
        request: Request<pb::RecordRequest>,
    ) -> Result<pb::RecordResponse, Status> {
        let caller = convert::caller_deadline(request.metadata())?;
        let request = request.into_inner();
        let asked = (request.detailed, request.http_headers);
        let (check, id) = convert::record(request)?;
        let recorded = self.limiter.record(check, id, caller).await;
        let recorded = recorded.map_err(|refused| convert::refusal(&refused))?;
        let answer = self.answer(&recorded.decision, &recorded.plan, asked);
        Ok(pb::RecordResponse {
            is_repeated: answer.is_repeated,
            answer: Some(answer),
        })
    }
}

#[tonic::async_trait]
impl<S: Store> HoldService for Service<S> {
    async fn reserve(
        &self,
        request: Request<pb::ReserveRequest>,
    ) -> Result<Response<pb::ReserveResponse>, Status> {
        let method = "tollgate.v1.HoldService/Reserve";
        let span = trace::grpc_call(method, request.metadata().as_ref());
        span.record(trace::PLAN, &*request.get_ref().plan);
        let answered = self.reserve_one(request).await;
        let response = answered.map_err(|status| span::failed(&span, status))?;
        span::succeeded(&span);
        Ok(Response::new(response))
    }

    async fn settle(
        &self,
        request: Request<pb::SettleRequest>,
    ) -> Result<Response<pb::SettleResponse>, Status> {
        let method = "tollgate.v1.HoldService/Settle";
        let span = trace::grpc_call(method, request.metadata().as_ref());
        let answered = self.settle_one(request).await;
        let response = answered.map_err(|status| span::failed(&span, status))?;
        span::succeeded(&span);
        Ok(Response::new(response))
    }

    async fn extend(
        &self,
        request: Request<pb::ExtendRequest>,
    ) -> Result<Response<pb::ExtendResponse>, Status> {
        let method = "tollgate.v1.HoldService/Extend";
        let span = trace::grpc_call(method, request.metadata().as_ref());
        let answered = self.extend_one(request).await;
        let response = answered.map_err(|status| span::failed(&span, status))?;
        span::succeeded(&span);
        Ok(Response::new(response))
    }

    /// The caller's deadline is that of the stream as a whole.
    async fn hold(
        &self,
        request: Request<Streaming<pb::HoldRequest>>,
    ) -> Result<Response<BoxStream<pb::HoldResponse>>, Status> {
        let extensions = request.extensions();
        let drain = extensions.get::<DrainSignal>().cloned();
        let account = extensions.get::<Arc<Account>>().cloned();
        let caller = convert::caller_deadline(request.metadata())?;
        let answers = HoldStream::new(self.clone(), account, request.into_inner(), drain);
        let answers: BoxStream<pb::HoldResponse> = match caller {
            Some(caller) => Box::pin(stream::until_deadline(caller.left(), answers)),
            None => Box::pin(answers),
        };
        Ok(Response::new(answers))
    }
}
