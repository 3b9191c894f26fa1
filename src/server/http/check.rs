//! `/v1/check`: reads a check, asks the limiter, and answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::RequestExt;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;
use tracing::Span;

use super::convert;
use super::parameters::{Asked, Fields, JointChecks, Parameters};
use super::subject::{CheckSettings, Subjects};
use crate::limiter::Limiter;
use crate::trace;
use tollgate_store::Store;

pub(super) const PATH: &str = "/v1/check";
/// Most bytes of a body. The longest key, shard and plan, with each letter escaped as `\u0041`, take 3,840. Eight requests whose keys
/// are long need not fit.
const BODY_BYTES_MAX: usize = 8 << 10;
/// Longest time for the body to arrive. Clients send it at once, with the head.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// The check endpoint of one worker.
pub(super) struct CheckEndpoint<S> {
    pub limiter: Arc<Limiter<S>>,
    pub settings: Arc<CheckSettings>,
}

impl<S: Store> CheckEndpoint<S> {
    /// Answers a request for [`PATH`] of a peer at this address; `None` on a Unix socket.
    pub(super) async fn serve(&self, request: Request, peer: Option<IpAddr>) -> Response {
        // HEAD charges as GET does, since proxies check with the method of their caller's request.
        if ![Method::GET, Method::HEAD, Method::POST].contains(request.method()) {
            let mut response =
                convert::bad_request(StatusCode::METHOD_NOT_ALLOWED, "send GET, HEAD or POST");
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET,HEAD,POST"));
            return response;
        }
        let span = trace::http_call(PATH, request.headers());
        let asks_in_json =
            request.method() == Method::POST && media_type(request.headers()) == Some(Media::Json);
        let wants_json = asks_in_json || wants_json(request.headers());
        let response = match parameters(request, &self.settings, peer).await {
            Ok(parameters) => self.answer(parameters, wants_json, &span).await,
            Err(refused) => refused,
        };
        if !span.is_none() {
            span.record("http.route", PATH)
                .record("http.response.status_code", response.status().as_u16());
        }
        response
    }

    async fn answer(&self, parameters: Parameters, wants_json: bool, span: &Span) -> Response {
        let form = self.settings.headers;
        let check = match parameters.asked {
            Asked::Single(check) => check,
            Asked::Joint(JointChecks { checks, names }) => {
                let decided = Box::pin(self.limiter.decide_joint(checks, None)).await;
                if let Ok((joint, plans)) = &decided {
                    let by = joint.decisions[joint.binding].decided_by.as_str();
                    span.record(trace::PLAN, &*plans[joint.binding].name);
                    trace::decided(span, joint.outcome.as_str(), by);
                }
                let answer = convert::JointAnswer {
                    deny_status: parameters.deny_status,
                    wants_json,
                    form,
                };
                return match decided {
                    Ok((joint, plans)) => answer.response(&joint, &plans),
                    Err(refused) => convert::joint_refusal(&refused, &names),
                };
            }
        };
        let answer = self.limiter.decide_with_plan(check, None).await;
        if let Ok((decision, plan)) = &answer {
            span.record(trace::PLAN, &*plan.name);
            trace::decided(
                span,
                decision.outcome.as_str(),
                decision.decided_by.as_str(),
            );
        }
        match answer {
            Ok((decision, plan)) if decision.allowed() => {
                convert::allowed(&decision, &plan, wants_json, form)
            }
            Ok((decision, plan)) => convert::denied(&decision, &plan, parameters.deny_status, form),
            Err(refusal) => convert::refusal(&refusal),
        }
    }
}

/// Reads the parameters from the query, and for a POST also from the body. Errors: the response to an invalid request.
async fn parameters(
    request: Request,
    settings: &CheckSettings,
    peer: Option<IpAddr>,
) -> Result<Parameters, Response> {
    let bad_request = |sentence: String| convert::bad_request(StatusCode::BAD_REQUEST, &sentence);
    let query = request.uri().query().unwrap_or_default();
    let of_query = Fields::from_query(query, &settings.subjects);
    if request.method() != Method::POST {
        return of_query
            .and_then(|fields| fields.check(settings, request.headers(), peer))
            .map_err(bad_request);
    }
    let headers = request.headers().clone();
    let of_body = body(request, &settings.subjects).await?;
    let fields = of_query.and_then(|fields| fields.merged(of_body?));
    fields
        .and_then(|fields| fields.check(settings, &headers, peer))
        .map_err(bad_request)
}

/// Reads the parameters from the body; the inner error says what is wrong with them. Outer errors: the response to a body
/// that cannot be read.
async fn body(
    mut request: Request,
    subjects: &Subjects,
) -> Result<Result<Fields, String>, Response> {
    let media = media_type(request.headers());
    DefaultBodyLimit::max(BODY_BYTES_MAX).apply(&mut request);
    let bytes = match tokio::time::timeout(BODY_TIMEOUT, request.extract::<Bytes, _>()).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(rejected)) if rejected.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let sentence =
                format!("the body has more than {BODY_BYTES_MAX} bytes; a check needs fewer");
            return Err(convert::bad_request(
                StatusCode::PAYLOAD_TOO_LARGE,
                &sentence,
            ));
        }
        Ok(Err(_)) => {
            return Err(convert::bad_request(
                StatusCode::BAD_REQUEST,
                "the body was cut off",
            ));
        }
        Err(_) => {
            let sentence = format!(
                "the body did not arrive within {} s",
                BODY_TIMEOUT.as_secs()
            );
            return Err(convert::bad_request(StatusCode::REQUEST_TIMEOUT, &sentence));
        }
    };
    match media {
        _ if bytes.is_empty() => Ok(Ok(Fields::default())),
        Some(Media::Json) => Ok(Fields::from_json(&bytes, subjects)),
        Some(Media::Form) => Ok(Fields::from_form(&bytes, subjects)),
        None => {
            let sentence =
                "send a body as application/json or application/x-www-form-urlencoded, or none";
            Err(convert::bad_request(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                sentence,
            ))
        }
    }
}

/// Content types of a body that a check accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Media {
    Json,
    Form,
}

/// The content type of the body, without its parameters such as `charset=utf-8`.
fn media_type(headers: &HeaderMap) -> Option<Media> {
    let media = headers
        .get(CONTENT_TYPE)?
        .to_str()
        .ok()?
        .split(';')
        .next()?
        .trim();
    let is = |known: &str| media.eq_ignore_ascii_case(known);
    match () {
        () if is("application/json") => Some(Media::Json),
        () if is("application/x-www-form-urlencoded") => Some(Media::Form),
        () => None,
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
