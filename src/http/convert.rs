//! Converts domain types to HTTP responses. Only this module knows both.
//!
//! Header fields are those of draft-ietf-httpapi-ratelimit-headers-11: whole seconds, rounded up, so that no client returns
//! too early.

#![cfg_attr(
    not(test),
    deny(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a number that is encoded is converted by a check, so that it is never taken for another one"
    )
)]

use std::fmt::Write as _;

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::decision::{DecidedBy, Decision, LimitStatus, Outcome};
use crate::limiter::Refusal;
use crate::plan::{Algorithm, Limit, Plan};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// Problem types of the draft.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
/// Wait suggested to a caller refused because of overload, in seconds: the least that the header can express.
const RETRY_OVERLOADED_AFTER_S: u64 = 1;
const SECOND_US: u64 = 1_000_000;

/// The response to an allowed request: only header fields, unless the caller wants JSON.
pub(super) fn allowed(decision: &Decision, plan: &Plan, wants_json: bool) -> Response {
    let headers = headers(decision, plan);
    if wants_json {
        return (StatusCode::OK, headers, body("application/json", &decided(decision))).into_response();
    }
    (StatusCode::OK, headers).into_response()
}

/// The response to a denied request, with the status that it asked for.
pub(super) fn denied(decision: &Decision, plan: &Plan, status: StatusCode) -> Response {
    let mut headers = headers(decision, plan);
    if let Some(wait_us) = wait_us(decision) {
        headers.insert(RETRY_AFTER, wait_us.div_ceil(SECOND_US).max(1).into());
    }
    let (kind, title) = match decision.decided_by {
        DecidedBy::FailClosed => (REDUCED_CAPACITY, "the store could not decide, and the plan denies in that case"),
        _ => (QUOTA_EXCEEDED, "the quota is used up"),
    };
    let mut problem = problem(kind, title, status, &detail(decision, plan));
    problem["violated-policies"] = violated(decision).into();
    merge(&mut problem, decided(decision));
    (status, headers, body("application/problem+json", &problem)).into_response()
}

/// The response to an invalid request, with a status that says in which way.
pub(super) fn bad_request(status: StatusCode, sentence: &str) -> Response {
    error(status, "the request is invalid", sentence)
}

/// The response to a request that got no decision.
pub(super) fn refusal(refusal: &Refusal) -> Response {
    match refusal {
        Refusal::UnknownPlan(_) => error(StatusCode::NOT_FOUND, "there is no such plan", &refusal.to_string()),
        Refusal::Overloaded => {
            let mut response = error(StatusCode::SERVICE_UNAVAILABLE, "the server is overloaded", &refusal.to_string());
            response.headers_mut().insert(RETRY_AFTER, RETRY_OVERLOADED_AFTER_S.into());
            response
        }
        Refusal::CallerDeadline => error(StatusCode::GATEWAY_TIMEOUT, "the caller's deadline passed", &refusal.to_string()),
    }
}

fn error(status: StatusCode, title: &str, detail: &str) -> Response {
    (status, no_store(), body("application/problem+json", &problem("about:blank", title, status, detail))).into_response()
}

/// A problem object. Source: RFC 9457.
fn problem(kind: &str, title: &str, status: StatusCode, detail: &str) -> Value {
    json!({ "type": kind, "title": title, "status": status.as_u16(), "detail": detail })
}

fn body(media: &'static str, value: &Value) -> ([(HeaderName, &'static str); 1], String) {
    ([(CONTENT_TYPE, media)], format!("{value}\n"))
}

fn detail(decision: &Decision, plan: &Plan) -> String {
    let name = &plan.name;
    match (decision.outcome, wait_us(decision)) {
        (Outcome::NeverFits, _) => format!("the cost is above what plan {name} ever gives at once; no wait will help"),
        (_, Some(us)) => format!("plan {name} gives this cost again in {} s", us.div_ceil(SECOND_US).max(1)),
        _ => format!("plan {name} denies this"),
    }
}

/// The decision in the words of the gRPC contract. Times are in microseconds.
fn decided(decision: &Decision) -> Value {
    let mut value = json!({
        "allowed": decision.allowed(),
        "outcome": decision.outcome.word(),
        "decided_by": decision.decided_by.word(),
        "limits": decision.limits().iter().map(limit_status).collect::<Vec<_>>(),
    });
    if let Some(binding) = decision.binding() {
        merge(&mut value, json!({ "limit_name": &*binding.name, "limit": binding.limit, "window_us": binding.window_us }));
    }
    let state = [
        ("remaining", decision.remaining()),
        ("retry_after_us", decision.retry_after_us()),
        ("reset_after_us", decision.reset_after_us()),
        ("more_after_us", decision.more_after_us()),
    ];
    merge(&mut value, numbers(&state));
    value
}

/// An object of the numbers that are known.
fn numbers(fields: &[(&str, Option<u64>)]) -> Value {
    fields.iter().filter_map(|(name, number)| Some(((*name).to_owned(), Value::from((*number)?)))).collect()
}

fn limit_status(status: &LimitStatus) -> Value {
    let mut value = json!({
        "limit_name": &*status.name,
        "limit": status.limit,
        "window_us": status.window_us,
        "remaining": status.remaining,
        "reset_after_us": status.reset_after_us,
    });
    merge(&mut value, numbers(&[("retry_after_us", status.retry_after_us), ("more_after_us", status.more_after_us())]));
    value
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}

fn violated(decision: &Decision) -> Vec<&str> {
    let denying = decision.limits().iter().filter(|status| status.retry_after_us.is_some());
    let mut names: Vec<&str> = denying.map(|status| &*status.name).collect();
    if names.is_empty() && decision.outcome == Outcome::NeverFits {
        names.extend(decision.binding().map(|status| &*status.name));
    }
    names
}

fn wait_us(decision: &Decision) -> Option<u64> {
    decision.retry_after_us()
}

/// Headers of every decision: each limit's policy and, if the request was counted, the state of each limit.
fn headers(decision: &Decision, plan: &Plan) -> HeaderMap {
    let mut headers = no_store();
    let policies: Vec<String> = plan.limits().iter().map(policy).collect();
    let states = decision.limits().iter().map(limit_state).collect();
    for (name, items) in [(RATE_LIMIT_POLICY, policies), (RATE_LIMIT, states)] {
        // The config refuses names that no header can hold. If one came nevertheless, only the header would be missing.
        if let Some(value) = HeaderValue::from_str(&items.join(", ")).ok().filter(|_| !items.is_empty()) {
            headers.insert(name, value);
        }
    }
    headers
}

/// An answer is valid only at the moment it was given. Source for denials: RFC 6585, section 4.
fn no_store() -> HeaderMap {
    HeaderMap::from_iter([(CACHE_CONTROL, HeaderValue::from_static("no-store"))])
}

/// `"name";q=100;w=60`. `w` is left out if the window is no whole number of seconds, since the field has no fractions.
fn policy(limit: &Limit) -> String {
    let mut text = format!("{};q={}", quoted(limit.name()), limit.quota());
    // Writing to a String cannot fail.
    if limit.window_us().is_multiple_of(SECOND_US) {
        let _ = write!(text, ";w={}", limit.window_us() / SECOND_US);
    }
    if let Algorithm::TokenBucket { burst } = limit.algorithm() {
        let _ = write!(text, ";tollgate-burst={burst}");
    }
    text
}

/// `"name";r=0;t=30`. `t` is the time until there is more, and is left out while that is unknown. It is known for a denial,
/// and for a fixed window, where it is the end of the window.
fn limit_state(status: &LimitStatus) -> String {
    let mut text = format!("{};r={}", quoted(&status.name), status.remaining);
    if let Some(us) = status.more_after_us() {
        let _ = write!(text, ";t={}", us.div_ceil(SECOND_US));
    }
    text
}

/// A string of structured fields. Source: RFC 9651, section 4.1.6.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Anchor, OnStoreFailure, Rule};
    use smallvec::smallvec;
    use std::time::Duration;

    const FIXED: Algorithm = Algorithm::FixedWindow { anchor: Anchor::Clock };

    fn plan(limits: &[(&str, u64, Duration, Algorithm)]) -> Plan {
        let limits =
            limits.iter().map(|(name, quota, window, algorithm)| Limit::new(*name, *quota, *window, *algorithm).unwrap());
        Plan {
            name: "p".into(),
            counts_as: "p".into(),
            rule: Rule::Limits(limits.collect()),
            shadow: false,
            on_store_failure: OnStoreFailure::Local,
        }
    }

    fn status(name: &str, remaining: u64, retry_after_us: Option<u64>, reset_after_us: u64) -> LimitStatus {
        let (window_us, frees_at_once) = (60_000_000, name != "b");
        LimitStatus {
            name: name.into(),
            limit: 10,
            window_us,
            frees_at_once,
            capacity: 10,
            remaining,
            retry_after_us,
            reset_after_us,
        }
    }

    fn header(headers: &HeaderMap, name: &str) -> Option<String> {
        headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn seconds_are_rounded_up_and_retry_after_is_the_longest_wait() {
        let plan = plan(&[("minute", 10, Duration::from_secs(60), FIXED), ("hour", 100, Duration::from_secs(3600), FIXED)]);
        let limits = smallvec![status("minute", 0, Some(1_000_001), 1_000_001), status("hour", 7, None, 1)];
        let decision = Decision::counted(Outcome::Denied, DecidedBy::Store, limits);
        let response = denied(&decision, &plan, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        let headers = response.headers();
        assert_eq!(header(headers, "retry-after").as_deref(), Some("2"));
        assert_eq!(header(headers, "ratelimit").as_deref(), Some("\"minute\";r=0;t=2, \"hour\";r=7;t=1"));
        assert_eq!(header(headers, "ratelimit-policy").as_deref(), Some("\"minute\";q=10;w=60, \"hour\";q=100;w=3600"));
        assert_eq!(header(headers, "cache-control").as_deref(), Some("no-store"));
        assert_eq!(violated(&decision), ["minute"]);
    }

    #[test]
    fn unknown_values_are_left_out() {
        let bucket = Algorithm::TokenBucket { burst: 5 };
        let plan = plan(&[("a", 10, Duration::from_millis(1500), FIXED), ("b", 10, Duration::from_secs(1), bucket)]);
        let counted = Decision::counted(
            Outcome::Allowed,
            DecidedBy::Store,
            smallvec![status("a", 9, None, 1_500_000), status("b", 4, None, 100_000)],
        );
        let headers = headers(&counted, &plan);
        assert_eq!(header(&headers, "ratelimit-policy").as_deref(), Some("\"a\";q=10, \"b\";q=10;w=1;tollgate-burst=5"));
        assert_eq!(header(&headers, "ratelimit").as_deref(), Some("\"a\";r=9;t=2, \"b\";r=4"));
        let open = Decision::uncounted(Outcome::Allowed, DecidedBy::FailOpen, None);
        let response = allowed(&open, &plan, false);
        assert_eq!(header(response.headers(), "ratelimit"), None);
        assert!(header(response.headers(), "ratelimit-policy").is_some());
    }

    #[test]
    fn a_name_that_a_header_cannot_hold_still_gives_an_answer() {
        assert_eq!(quoted("a\"b\\c"), "\"a\\\"b\\\\c\"");
        let plan = plan(&[("line\nbreak", 10, Duration::from_secs(1), FIXED)]);
        let decision = Decision::uncounted(Outcome::Denied, DecidedBy::FailClosed, None);
        let response = denied(&decision, &plan, StatusCode::FORBIDDEN);
        assert_eq!((response.status().as_u16(), header(response.headers(), "ratelimit-policy")), (403, None));
    }
}
