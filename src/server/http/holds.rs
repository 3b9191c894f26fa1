//! `/v1/reserve`, `/v1/settle`, `/v1/extend` and `/v1/record`: reads the JSON of a call, asks the limiter, and answers.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use tracing::Span;

use super::body::{self, Media};
use super::call::{CallPath, ParameterNames};
use super::check::{CheckEndpoint, tell};
use super::convert::{self, HttpAnswer};
use super::parameters::{HoldParameters, ParameterFields};
use crate::limiter::{Refusal, RequestId};
use tollgate_core::algorithm::holds::HoldState;
use tollgate_store::Store;

/// Maximum number of bytes of a body. The longest key, plan, shard and id take 704, and some letters are escaped.
const BODY_BYTES_MAX: usize = 4 << 10;

impl<S: Store> CheckEndpoint<S> {
    /// Answers a call about a hold, or a record, of a peer.
    pub(super) async fn answer_hold_call(
        &self,
        call: CallPath,
        asked: (Request, Option<IpAddr>),
        span: &Span,
    ) -> Response {
        let parameters = match self.hold_parameters(call, asked).await {
            Ok(parameters) => parameters,
            Err(refused) => return refused,
        };
        let answered = match (call, parameters.id.clone()) {
            (CallPath::Reserve, Some(id)) => self.reserve(parameters, id, span).await,
            (CallPath::Settle, Some(id)) => self.settle(parameters, id, span).await,
            (CallPath::Extend, Some(id)) => self.extend(parameters, id).await,
            (_, id) => self.record(parameters, id, span).await,
        };
        answered.unwrap_or_else(|refused| convert::refusal(&refused))
    }

    /// Reads the parameters. Errors: the response to an invalid request.
    async fn hold_parameters(
        &self,
        call: CallPath,
        (request, peer): (Request, Option<IpAddr>),
    ) -> Result<HoldParameters, Response> {
        let settings = &self.settings;
        let names = ParameterNames {
            call,
            subjects: Some(&settings.subjects),
        };
        let query = request.uri().query().unwrap_or_default();
        let of_query = ParameterFields::from_query(query, names.in_query());
        let headers = request.headers().clone();
        let media = Media::from_headers(request.headers());
        if media != Some(Media::Json) {
            return Err(body::other_media("send a body as application/json"));
        }
        let bytes = body::read(request, BODY_BYTES_MAX).await?;
        let fields =
            of_query.and_then(|fields| fields.merged(ParameterFields::from_json(&bytes, names)?));
        fields
            .and_then(|fields| fields.hold(call, settings, (&headers, peer)))
            .map_err(|sentence| convert::bad_request(StatusCode::BAD_REQUEST, &sentence))
    }

    async fn reserve(
        &self,
        asked: HoldParameters,
        id: RequestId,
        span: &Span,
    ) -> Result<Response, Refusal> {
        let told = id.clone();
        let reserved = self.limiter.reserve(asked.check, (id, asked.ttl), None);
        let reserved = reserved.await?;
        tell(span, &reserved.decision, &reserved.plan);
        let answer = HttpAnswer::new(&reserved.decision, &reserved.plan, self.settings.headers);
        let answer = answer.reserved(&reserved, &told);
        Ok(if reserved.decision.allowed() {
            answer.allowed(true)
        } else {
            answer.denied(asked.deny_status)
        })
    }

    async fn settle(
        &self,
        asked: HoldParameters,
        id: RequestId,
        span: &Span,
    ) -> Result<Response, Refusal> {
        let told = id.clone();
        let subject = (asked.check.key, asked.check.plan);
        let settle = (id, asked.actual, asked.if_unknown);
        let settled = self.limiter.settle(subject, settle, None).await?;
        tell(span, &settled.decision, &settled.plan);
        let answer = HttpAnswer::new(&settled.decision, &settled.plan, self.settings.headers);
        Ok(answer.settled(&settled, &told).told())
    }

    async fn extend(&self, asked: HoldParameters, id: RequestId) -> Result<Response, Refusal> {
        let told = id.clone();
        let subject = (asked.check.key, asked.check.plan);
        let extended = self.limiter.extend(subject, (id, asked.ttl), None).await?;
        Ok(match extended.state {
            HoldState::Open => convert::extended(extended, &told),
            _ => convert::not_extended(extended, &told),
        })
    }

    async fn record(
        &self,
        asked: HoldParameters,
        id: Option<RequestId>,
        span: &Span,
    ) -> Result<Response, Refusal> {
        let recorded = self.limiter.record(asked.check, id, None).await?;
        tell(span, &recorded.decision, &recorded.plan);
        let answer = HttpAnswer::new(&recorded.decision, &recorded.plan, self.settings.headers);
        Ok(answer.repeated().told())
    }
}
