//! The calls that workers answer: `/v1/check` reads a check, asks the limiter, and answers.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use tracing::Span;

use super::body::{self, Media};
use super::call::{CallPath, ParameterNames};
use super::convert::{self, HttpAnswer};
use super::parameters::{JointChecks, ParameterFields, Parameters, RequestedChecks};
use super::subject::{CheckSettings, Subjects};
use crate::limiter::Limiter;
use crate::trace;
use tollgate_core::decision::Decision;
use tollgate_core::plan::Plan;
use tollgate_store::Store;

/// Maximum number of bytes of a body. The longest key, shard and plan, with each letter escaped as `\u0041`, take 3,840. Eight
/// requests whose keys are long need not fit.
const BODY_BYTES_MAX: usize = 8 << 10;

/// The endpoint of one worker: checks, and calls about holds.
pub(super) struct CheckEndpoint<S> {
    pub limiter: Arc<Limiter<S>>,
    pub settings: Arc<CheckSettings>,
}

impl<S: Store> CheckEndpoint<S> {
    /// Answers a call of a peer at this address; `None` on a Unix socket.
    pub(super) async fn serve(
        &self,
        call: CallPath,
        request: Request,
        peer: Option<IpAddr>,
    ) -> Response {
        if !call.methods().contains(request.method()) {
            return convert::other_method(call.methods());
        }
        let span = trace::http_call(call.path(), request.headers());
        let response = match call {
            CallPath::Check => self.check(request, peer, &span).await,
            // Its state is large, and that of a check is allocated for each.
            _ => Box::pin(self.answer_hold_call(call, (request, peer), &span)).await,
        };
        if !span.is_none() {
            span.record("http.route", call.path())
                .record("http.response.status_code", response.status().as_u16());
        }
        response
    }

    async fn check(&self, request: Request, peer: Option<IpAddr>, span: &Span) -> Response {
        let asks_in_json = request.method() == Method::POST
            && Media::from_headers(request.headers()) == Some(Media::Json);
        let wants_json = asks_in_json || wants_json(request.headers());
        match parameters(request, &self.settings, peer).await {
            Ok(parameters) => self.answer(parameters, wants_json, span).await,
            Err(refused) => refused,
        }
    }

    async fn answer(&self, parameters: Parameters, wants_json: bool, span: &Span) -> Response {
        let (check, id) = match parameters.asked {
            RequestedChecks::Single(check, id) => (check, id),
            RequestedChecks::Joint(joint) => {
                let deny_status = parameters.deny_status;
                let answering = self.answer_joint(joint, deny_status, wants_json, span);
                return answering.await;
            }
        };
        let has_id = id.is_some();
        let answer = match id {
            None => self.limiter.decide_with_plan(check, None).await,
            Some(id) => Box::pin(self.limiter.decide_with_id(check, id, None)).await,
        };
        let (decision, plan) = match answer {
            Ok(decided) => decided,
            Err(refused) => return convert::refusal(&refused),
        };
        tell(span, &decision, &plan);
        let answer = HttpAnswer::new(&decision, &plan, self.settings.headers);
        let answer = if has_id { answer.repeated() } else { answer };
        if decision.allowed() {
            answer.allowed(wants_json)
        } else {
            answer.denied(parameters.deny_status)
        }
    }

    async fn answer_joint(
        &self,
        JointChecks { checks, names }: JointChecks,
        deny_status: StatusCode,
        wants_json: bool,
        span: &Span,
    ) -> Response {
        let decided = Box::pin(self.limiter.decide_joint(checks, None)).await;
        if let Ok((joint, plans)) = &decided {
            let by = joint.decisions[joint.binding].decided_by.as_str();
            span.record(trace::PLAN, &*plans[joint.binding].name);
            trace::decided(span, joint.outcome.as_str(), by);
        }
        let answer = convert::JointAnswer {
            deny_status,
            wants_json,
            form: self.settings.headers,
        };
        match decided {
            Ok((joint, plans)) => answer.response(&joint, &plans),
            Err(refused) => convert::joint_refusal(&refused, &names),
        }
    }
}

/// Tells the span what was decided.
pub(super) fn tell(span: &Span, decision: &Decision, plan: &Plan) {
    span.record(trace::PLAN, &*plan.name);
    let outcome = decision.outcome.as_str();
    let by = decision.decided_by.as_str();
    trace::decided(span, outcome, by);
}

/// Reads the parameters from the query, and for a POST also from the body. Errors: the response to an invalid request.
async fn parameters(
    request: Request,
    settings: &CheckSettings,
    peer: Option<IpAddr>,
) -> Result<Parameters, Response> {
    let bad_request = |sentence: String| convert::bad_request(StatusCode::BAD_REQUEST, &sentence);
    let query = request.uri().query().unwrap_or_default();
    let of_query =
        ParameterFields::from_query(query, ParameterNames::for_check(&settings.subjects));
    if request.method() != Method::POST {
        return of_query
            .and_then(|fields| fields.check(settings, request.headers(), peer))
            .map_err(bad_request);
    }
    let headers = request.headers().clone();
    let of_body = fields(request, &settings.subjects).await?;
    let fields = of_query.and_then(|fields| fields.merged(of_body?));
    fields
        .and_then(|fields| fields.check(settings, &headers, peer))
        .map_err(bad_request)
}

/// Reads the parameters from the body; the inner error says what is wrong with them. Outer errors: the response to a body
/// that cannot be read.
async fn fields(
    request: Request,
    subjects: &Subjects,
) -> Result<Result<ParameterFields, String>, Response> {
    let media = Media::from_headers(request.headers());
    let names = ParameterNames::for_check(subjects);
    let bytes = body::read(request, BODY_BYTES_MAX).await?;
    match media {
        _ if bytes.is_empty() => Ok(Ok(ParameterFields::default())),
        Some(Media::Json) => Ok(ParameterFields::from_json(&bytes, names)),
        Some(Media::Form) => Ok(ParameterFields::from_form(&bytes, names)),
        None => Err(body::other_media(
            "send a body as application/json or application/x-www-form-urlencoded, or none",
        )),
    }
}

/// Whether `Accept` names JSON. `*/*` does not count, since most clients send it by default.
fn wants_json(headers: &HeaderMap) -> bool {
    let accepted = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut types = accepted
        .flat_map(|value| value.split(','))
        .filter_map(|range| range.split(';').next());
    types.any(|media| media.trim().eq_ignore_ascii_case("application/json"))
}
