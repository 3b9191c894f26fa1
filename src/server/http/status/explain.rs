//! Explains a key to a viewer of the page, as `AdminService.Explain` does to operators.
//!
//! A check with `peek=true` tells as much of a key to anybody who reaches this listener, so no token is asked for. Each
//! explanation costs a read of the store. So few run at once, few are given in a second, and no other site can ask for one.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::guarded;
use crate::http::AppState;
use crate::limiter::{AdminError, Explanation, LimitExplanation, Limiter};
use tollgate_core::key::Key;
use tollgate_core::plan::{Plan, check_requested_name};
use tollgate_store::Store;
use tollgate_store::clock::monotonic;

/// Maximum number of explanations under way at once. The store takes a second at most for each.
const AT_ONCE_MAX: usize = 4;
/// Maximum number of explanations within [`PERIOD`], for all viewers together. People type a few; a script must use `/v1/check`.
const IN_A_PERIOD_MAX: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);
/// Maximum number of bytes of a request. The longest key, plan and shard, with each letter escaped as `\u0041`, take 3,840.
const BODY_BYTES_MAX: usize = 4 << 10;
/// Longest time for the body to arrive. Browsers send it at once, with the head.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// An explanation that is under way.
type Explaining = Pin<Box<dyn Future<Output = Result<Explanation, AdminError>> + Send>>;

/// Explains keys by a limiter whose store is not known here.
pub struct ExplainKey(Box<dyn Fn(Key, String) -> Explaining + Send + Sync>);

impl ExplainKey {
    /// Explains by this limiter, on the runtime of its store.
    pub fn new<S: Store>(limiter: Arc<Limiter<S>>) -> Self {
        Self(Box::new(move |key, plan| {
            let limiter = limiter.clone();
            Box::pin(async move { limiter.explain(key, &plan, None).await })
        }))
    }
}

/// Bounds the explanations of a process.
pub(super) struct Bounds {
    at_once: Semaphore,
    /// When the present period began, and the explanations in it.
    period: Mutex<Option<(Instant, u32)>>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            at_once: Semaphore::new(AT_ONCE_MAX),
            period: Mutex::default(),
        }
    }
}

impl Bounds {
    /// Counts an explanation at `now`. Whether it may be given.
    fn admit(&self, now: Instant) -> bool {
        let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
        let (began_at, count) = period
            .filter(|(began_at, _)| now.saturating_duration_since(*began_at) < PERIOD)
            .unwrap_or((now, 0));
        *period = Some((began_at, count.saturating_add(1)));
        count < IN_A_PERIOD_MAX
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainedSubject {
    key: String,
    plan: String,
    #[serde(default)]
    shard: String,
}

pub(super) async fn answer(State(state): State<Arc<AppState>>, request: Request) -> Response {
    let Some(status) = &state.status else {
        return StatusCode::NOT_FOUND.into_response();
    };
    if let Some(refused) = refuse(request.headers()) {
        return refused;
    }
    let (key, plan) = match subject(request).await {
        Ok(subject) => subject,
        Err(refused) => return refused,
    };
    let Ok(_permit) = status.explains.at_once.try_acquire() else {
        return busy();
    };
    if !status.explains.admit(monotonic()) {
        return busy();
    }
    response((status.sources.explain.0)(key, plan).await)
}

/// The answer to a sound request.
fn response(explained_key: Result<Explanation, AdminError>) -> Response {
    match explained_key {
        Ok(explanation) => (
            guarded("application/json"),
            format!("{}\n", explained(&explanation)),
        )
            .into_response(),
        Err(wrong @ AdminError::UnknownPlan(_)) => {
            refused(StatusCode::NOT_FOUND, &wrong.to_string())
        }
        Err(other) => refused(StatusCode::SERVICE_UNAVAILABLE, &other.to_string()),
    }
}

/// Another site can make a browser send a request, but not as JSON without asking first, which is not granted. Browsers tell,
/// too, which site a request comes from. Returns the answer to a request that was not made by this page.
fn refuse(headers: &HeaderMap) -> Option<Response> {
    let is_json = headers
        .get(CONTENT_TYPE)
        .and_then(|media| media.to_str().ok())
        .and_then(|media| media.split(';').next());
    if !is_json.is_some_and(|media| media.trim().eq_ignore_ascii_case("application/json")) {
        return Some(refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send an object with key and plan as application/json",
        ));
    }
    match headers.get("sec-fetch-site") {
        Some(site) if site != "same-origin" => Some(refused(
            StatusCode::FORBIDDEN,
            "another site made this request",
        )),
        _ => None,
    }
}

/// Reads key and plan. Errors: the answer to an invalid request.
async fn subject(request: Request) -> Result<(Key, String), Response> {
    let body = body(request).await?;
    let bad_request = |sentence: &str| refused(StatusCode::BAD_REQUEST, sentence);
    // serde would also accept a list of the fields in their order.
    let subject: Option<ExplainedSubject> = body
        .trim_ascii_start()
        .starts_with(b"{")
        .then(|| serde_json::from_slice(&body).ok())
        .flatten();
    let subject = subject.ok_or_else(|| {
        bad_request(
            "the body is not a JSON object with the texts key, plan and perhaps shard alone",
        )
    })?;
    let key = Key::new(subject.key).and_then(|key| key.in_shard(&subject.shard));
    let key = key.map_err(|error| bad_request(&error.to_string()))?;
    check_requested_name(&subject.plan).map_err(|error| bad_request(&error))?;
    Ok((key, subject.plan))
}

/// Reads the whole body. Errors: the answer to a body that is too long or too late.
async fn body(request: Request) -> Result<Bytes, Response> {
    let reading = axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX);
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(_)) => Err(refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            "the body was cut off, or has more than 4 KiB",
        )),
        Err(_) => Err(refused(
            StatusCode::REQUEST_TIMEOUT,
            "the body did not arrive within 5 s",
        )),
    }
}

/// The explanation as JSON fields, named as in the gRPC contract. Names in Redis are for operators alone.
fn explained(explanation: &Explanation) -> Value {
    let Explanation {
        key_hash,
        plan,
        next,
        workers_denying,
        ..
    } = explanation;
    let candidate = explanation.candidate.as_ref().map(|candidate| {
        let limits = explained_limits(&candidate.plan, &candidate.limits);
        json!({ "plan": &*candidate.plan.name, "allowed": candidate.allowed, "limits": limits })
    });
    json!({
        "sentence": explanation.sentence(),
        "key_hash": key_hash.to_string(),
        "plan": &*plan.name,
        "counts_as": &*plan.counts_as,
        "overridden": explanation.applied_override.is_some(),
        "outcome": next.outcome.as_str(),
        "decided_by": next.decided_by.as_str(),
        "workers_denying": workers_denying,
        "limits": explained_limits(plan, &explanation.limits),
        "candidate": candidate,
    })
}

fn explained_limits(plan: &Plan, limits: &[LimitExplanation]) -> Vec<Value> {
    let explained = plan
        .limits()
        .iter()
        .zip(limits)
        .map(|(limit, explained)| {
            let releases = explained.releases.iter();
            json!({
                "limit_name": &**limit.name(),
                "quota": limit.quota(),
                "window_us": explained.status.window_us,
                "algorithm": limit.algorithm().name(),
                "used": explained.used,
                "capacity": explained.status.capacity,
                "remaining": explained.status.remaining,
                "blocked_for_us": Some(explained.status.blocked_for_us).filter(|left_us| *left_us > 0),
                "releases": releases.map(|release| json!({ "units": release.units, "after_us": release.after_us })).collect::<Vec<_>>(),
            })
        });
    explained.collect()
}

/// The answer while too many ask.
pub(super) fn busy() -> Response {
    let mut response = refused(
        StatusCode::TOO_MANY_REQUESTS,
        "too many requests for the status page at once; try again in a second",
    );
    response.headers_mut().insert(RETRY_AFTER, 1.into());
    response
}

fn refused(status: StatusCode, sentence: &str) -> Response {
    (status, guarded("application/json"), error(sentence)).into_response()
}

/// A sentence for people, as the body of an error.
pub(super) fn error(sentence: &str) -> String {
    format!("{}\n", json!({ "error": sentence }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_explanations_are_given_in_a_second() {
        let bounds = Bounds::default();
        let start = monotonic();
        assert!((0..IN_A_PERIOD_MAX).all(|_| bounds.admit(start)));
        assert!(!bounds.admit(start) && !bounds.admit(start + PERIOD / 2));
        assert!(bounds.admit(start + PERIOD));
    }

    #[test]
    fn a_request_that_another_site_could_make_is_refused() {
        let of = |media: Option<&'static str>, site: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            media.map(|media| headers.insert(CONTENT_TYPE, media.parse().unwrap()));
            site.map(|site| headers.insert("sec-fetch-site", site.parse().unwrap()));
            refuse(&headers).map(|refused| refused.status().as_u16())
        };
        assert_eq!(of(Some("application/json"), None), None);
        assert_eq!(
            of(Some("application/JSON; charset=utf-8"), Some("same-origin")),
            None
        );
        for media in [
            None,
            Some("text/plain"),
            Some("application/x-www-form-urlencoded"),
            Some("multipart/form-data"),
        ] {
            assert_eq!(of(media, None), Some(415), "{media:?}");
        }
        for site in ["cross-site", "same-site", "none"] {
            assert_eq!(
                of(Some("application/json"), Some(site)),
                Some(403),
                "{site}"
            );
        }
    }
}
