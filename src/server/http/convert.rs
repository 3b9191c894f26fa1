//! Converts domain types to HTTP responses. Only this module knows both.

mod holds;

use std::sync::Arc;

use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

pub(super) use holds::{extended, not_extended};

use crate::limiter::{JointRefusal, Refusal};
use tollgate_core::decision::{DecidedBy, Decision, KeyStatus, LimitStatus, Outcome};
use tollgate_core::headers::{HeaderForm, retry_after_s};
use tollgate_core::joint::JointDecision;
use tollgate_core::plan::Plan;

/// Problem types of the draft.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
/// Wait suggested to a caller whom load or the store keeps from an answer, in seconds: the least that the header can express.
const RETRY_SOON_S: u64 = 1;
/// What a plan with a concurrency limit is asked by.
const RESERVE_PATH: &str = "POST /v1/reserve";

/// A content type and a text.
type Body = ([(HeaderName, &'static str); 1], String);

/// What a decision is answered with.
pub(super) struct HttpAnswer<'a> {
    decision: &'a Decision,
    plan: &'a Plan,
    form: HeaderForm,
    /// Members of the JSON beside those of the decision.
    more_members: Value,
}

impl<'a> HttpAnswer<'a> {
    pub(super) fn new(decision: &'a Decision, plan: &'a Plan, form: HeaderForm) -> Self {
        Self {
            decision,
            plan,
            form,
            more_members: json!({}),
        }
    }

    /// The response to an allowed request: only header fields, unless the caller wants JSON.
    pub(super) fn allowed(self, wants_json: bool) -> Response {
        let headers = headers(self.decision, self.plan, self.form);
        if wants_json {
            return (StatusCode::OK, headers, self.json()).into_response();
        }
        (StatusCode::OK, headers).into_response()
    }

    /// The response to a denied request, with the status that it asked for.
    pub(super) fn denied(self, status: StatusCode) -> Response {
        let decision = self.decision;
        let plan = self.plan;
        let mut problem = denial(decision, plan, status);
        problem["violated-policies"] = violated(decision).into();
        merge(&mut problem, decided(decision, plan));
        merge(&mut problem, self.more_members);
        (
            status,
            headers(decision, plan, self.form),
            body("application/problem+json", &problem),
        )
            .into_response()
    }

    /// The response to a call that is not a request to pass: where the key stands. There is nothing to send again, so no time for it.
    pub(super) fn told(self) -> Response {
        let mut headers = headers(self.decision, self.plan, self.form);
        headers.remove(RETRY_AFTER);
        (StatusCode::OK, headers, self.json()).into_response()
    }

    fn json(self) -> Body {
        let mut value = decided(self.decision, self.plan);
        merge(&mut value, self.more_members);
        body("application/json", &value)
    }
}

/// How a joint decision is answered.
pub(super) struct JointAnswer {
    /// The status of a denial.
    pub deny_status: StatusCode,
    /// Whether the caller wants JSON also where all may pass.
    pub wants_json: bool,
    pub form: HeaderForm,
}

impl JointAnswer {
    /// The response to requests that were decided together by these plans: that to the one that binds, and what each was told.
    pub(super) fn response(&self, joint: &JointDecision, plans: &[Arc<Plan>]) -> Response {
        let binding = &joint.decisions[joint.binding];
        let plan = &plans[joint.binding];
        let headers = headers(binding, plan, self.form);
        if joint.allowed() && !self.wants_json {
            return (StatusCode::OK, headers).into_response();
        }
        let each = joint.decisions.iter().zip(plans);
        let requests: Value = each
            .map(|(decision, plan)| decided(decision, plan))
            .collect();
        let (status, media, mut answer) = if joint.allowed() {
            (StatusCode::OK, "application/json", json!({}))
        } else {
            let mut problem = denial(binding, plan, self.deny_status);
            let mut violated: Vec<&str> = joint.decisions.iter().flat_map(violated).collect();
            violated.dedup();
            problem["violated-policies"] = violated.into();
            (self.deny_status, "application/problem+json", problem)
        };
        merge(&mut answer, decided(binding, plan));
        merge(
            &mut answer,
            json!({ "allowed": joint.allowed(), "binding": joint.binding, "requests": requests }),
        );
        (status, headers, body(media, &answer)).into_response()
    }
}

/// The problem that a denial is.
fn denial(decision: &Decision, plan: &Plan, status: StatusCode) -> Value {
    let (kind, title) = match decision.decided_by {
        DecidedBy::FailClosed => (
            REDUCED_CAPACITY,
            "the store could not decide, and the plan denies in that case",
        ),
        _ => (QUOTA_EXCEEDED, "the quota is used up"),
    };
    problem(kind, title, status, &detail(decision, plan))
}

/// The response to an invalid request, with a status that says in which way.
pub(super) fn bad_request(status: StatusCode, sentence: &str) -> Response {
    error(status, "the request is invalid", sentence)
}

/// The response to requests that got no joint decision, by the names of the requests.
pub(super) fn joint_refusal(refused: &JointRefusal, names: &[String]) -> Response {
    match &refused.refusal {
        Refusal::UnknownPlan(_) => {
            let name = |index: usize| names.get(index).cloned().unwrap_or_default();
            no_such_plan(&refused.sentence(name))
        }
        other => refusal(other),
    }
}

fn no_such_plan(sentence: &str) -> Response {
    error(StatusCode::NOT_FOUND, "there is no such plan", sentence)
}

/// The response to a method that a path has not.
pub(super) fn other_method(methods: &[Method]) -> Response {
    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
    let sentence = match names.split_last() {
        Some((last, others)) if !others.is_empty() => {
            format!("send {} or {last}", others.join(", "))
        }
        _ => format!("send {}", names.concat()),
    };
    let mut response = bad_request(StatusCode::METHOD_NOT_ALLOWED, &sentence);
    if let Ok(allow) = HeaderValue::try_from(names.join(",")) {
        response.headers_mut().insert(ALLOW, allow);
    }
    response
}

/// The response to a request that got no decision.
pub(super) fn refusal(refusal: &Refusal) -> Response {
    let sentence = refusal.to_string();
    match refusal {
        Refusal::UnknownPlan(_) => no_such_plan(&sentence),
        Refusal::Overloaded => {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            retry_soon(error(status, "the server is overloaded", &sentence))
        }
        Refusal::CallerDeadline => error(
            StatusCode::GATEWAY_TIMEOUT,
            "the caller's deadline passed",
            &sentence,
        ),
        Refusal::NeedsReserve(plan) => {
            let sentence = format!("plan {plan} has a concurrency limit: call {RESERVE_PATH}");
            error(StatusCode::BAD_REQUEST, "the plan needs a hold", &sentence)
        }
        Refusal::NothingToRecord(_) => {
            let title = "the plan counts no units";
            error(StatusCode::BAD_REQUEST, title, &sentence)
        }
        Refusal::Lease(_) => bad_request(StatusCode::BAD_REQUEST, &sentence),
        Refusal::KnownId(_) => {
            let title = "the request_id is known for another call";
            error(StatusCode::CONFLICT, title, &sentence)
        }
        Refusal::Unconfirmed(_) => unconfirmed(&sentence),
    }
}

/// The response to what the store did not confirm. It may be sent again, as its id is known if it was done.
fn unconfirmed(sentence: &str) -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let problem = problem(
        REDUCED_CAPACITY,
        "the store did not confirm",
        status,
        sentence,
    );
    let body = body("application/problem+json", &problem);
    retry_soon((status, no_store(), body).into_response())
}

fn retry_soon(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, RETRY_SOON_S.into());
    response
}

fn error(status: StatusCode, title: &str, detail: &str) -> Response {
    error_with(status, (title, detail), json!({}))
}

/// A problem of no registered type, with members of its own.
fn error_with(status: StatusCode, (title, detail): (&str, &str), members: Value) -> Response {
    let mut problem = problem("about:blank", title, status, detail);
    merge(&mut problem, members);
    let body = body("application/problem+json", &problem);
    (status, no_store(), body).into_response()
}

/// A problem object. Source: RFC 9457.
fn problem(kind: &str, title: &str, status: StatusCode, detail: &str) -> Value {
    json!({ "type": kind, "title": title, "status": status.as_u16(), "detail": detail })
}

fn body(media: &'static str, value: &Value) -> Body {
    ([(CONTENT_TYPE, media)], format!("{value}\n"))
}

fn detail(decision: &Decision, plan: &Plan) -> String {
    let name = &plan.name;
    match (decision.outcome, retry_after_s(decision)) {
        (Outcome::NeverFits, _) => {
            format!("the cost is above what plan {name} ever gives at once; no wait will help")
        }
        (_, Some(seconds)) => format!("plan {name} gives this cost again in {seconds} s"),
        _ => format!("plan {name} denies this"),
    }
}

/// The decision by this plan as JSON fields, named as in the gRPC contract. Times are in microseconds.
fn decided(decision: &Decision, plan: &Plan) -> Value {
    let mut value = json!({
        "plan": &*plan.name,
        "allowed": decision.allowed(),
        "outcome": decision.outcome.as_str(),
        "decided_by": decision.decided_by.as_str(),
        "limits": decision.limits().iter().map(limit_status).collect::<Vec<_>>(),
    });
    if decision.overridden {
        value["overridden"] = true.into();
    }
    if let Some(binding) = decision.binding() {
        merge(
            &mut value,
            json!({ "limit_name": &*binding.name, "limit": binding.limit }),
        );
        merge(&mut value, numbers(&[("window_us", window(binding))]));
    }
    merge(&mut value, key_numbers(&decision.key_status()));
    value
}

fn key_numbers(key: &KeyStatus) -> Value {
    numbers(&[
        ("remaining", key.remaining),
        ("retry_after_us", key.retry_after_us),
        ("reset_after_us", key.reset_after_us),
        ("more_after_us", key.more_after_us),
    ])
}

/// A JSON object with those of the fields whose number is known.
fn numbers(fields: &[(&str, Option<u64>)]) -> Value {
    fields
        .iter()
        .filter_map(|(name, number)| Some(((*name).to_owned(), Value::from((*number)?))))
        .collect()
}

fn limit_status(status: &LimitStatus) -> Value {
    let mut value = json!({
        "limit_name": &*status.name,
        "limit": status.limit,
        "remaining": status.remaining,
        "reset_after_us": status.reset_after_us,
    });
    merge(
        &mut value,
        numbers(&[
            ("window_us", window(status)),
            ("retry_after_us", status.retry_after_us),
            ("more_after_us", status.more_after_us()),
            (
                "blocked_for_us",
                Some(status.blocked_for_us).filter(|left_us| *left_us > 0),
            ),
        ]),
    );
    value
}

/// A concurrency limit has none.
fn window(status: &LimitStatus) -> Option<u64> {
    Some(status.window_us).filter(|window_us| *window_us > 0)
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}

/// Names of the limits that denied the request.
fn violated(decision: &Decision) -> Vec<&str> {
    let denying = decision
        .limits()
        .iter()
        .filter(|status| status.retry_after_us.is_some());
    let mut names: Vec<&str> = denying.map(|status| &*status.name).collect();
    if names.is_empty() {
        // A cost that never fits has no wait, and the status for too many open holds is of no limit of the plan. Then the binding one
        // is named.
        let never_fits = decision.outcome == Outcome::NeverFits;
        let denies = |status: &&LimitStatus| never_fits || status.retry_after_us.is_some();
        let binding = decision.binding().filter(denies);
        names.extend(binding.map(|status| &*status.name));
    }
    names
}

/// Headers of every decision.
fn headers(decision: &Decision, plan: &Plan, form: HeaderForm) -> HeaderMap {
    let mut headers = no_store();
    for (name, value) in tollgate_core::headers::headers(decision, plan, form) {
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    }
    headers
}

/// An answer is valid only at the moment it was given. Source for denials: RFC 6585, section 4.
fn no_store() -> HeaderMap {
    HeaderMap::from_iter([(CACHE_CONTROL, HeaderValue::from_static("no-store"))])
}

#[cfg(test)]
mod tests;
