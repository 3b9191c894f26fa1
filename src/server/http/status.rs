//! The status page: what this replica enforces, who is limited, whether the store answers, and where a key stands.
//!
//! The page is one file. Its script asks for the figures once a second. They are rendered at most twice a second, however many
//! viewers there are, on the thread that answers probes. So viewers cost the workers, which decide, nothing. The same thread keeps
//! the history of the last quarter of an hour.

mod config_changes;
mod explain;
mod figures;
mod history;
mod page;
mod problems;
mod samples;
mod top;

use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{MissedTickBehavior, interval};

pub use config_changes::{ConfigChanges, ConfigOutcome};
pub use explain::ExplainKey;
use history::{Counts, History, POINT_EVERY};
use samples::Samples;

use super::rendering_cache::RenderingCache;
use super::{AppState, MetricSources};
use crate::grpc::TokenFile;
use crate::limiter::TopKeys;
use tollgate_store::clock::{Clock, SystemClock, monotonic};

/// How long figures are given to further viewers. Each asks once a second.
const FRESH_FOR: Duration = Duration::from_millis(500);
/// Maximum number of requests with a token that are checked at once. Each reads the file of the token on a thread of its own.
const TOKENS_CHECKED_MAX: usize = 4;

/// What the page needs beside the metrics.
pub struct StatusSources {
    /// The store's URL, without passwords.
    pub store: String,
    /// Explains a key.
    pub explain: ExplainKey,
    /// The token that viewers show to see keys in clear. `None`: they are hashes for everybody.
    pub token: Option<TokenFile>,
    /// The heaviest keys.
    pub top: TopKeys,
    /// The last changes of the config.
    pub config_changes: ConfigChanges,
}

/// The state of the page.
pub(super) struct StatusEndpoint {
    sources: StatusSources,
    started_at: Instant,
    /// The headers and the text of the page.
    page: page::StatusPage,
    /// Locked while figures are written.
    samples: Mutex<Samples>,
    history: std::sync::Mutex<History>,
    hashed: RenderingCache,
    clear: RenderingCache,
    tokens: Semaphore,
    explains: explain::Bounds,
}

/// How keys are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyDisplay {
    Hashed,
    Clear,
}

impl StatusEndpoint {
    pub(super) fn new(sources: StatusSources) -> Self {
        let cache = || RenderingCache::new(FRESH_FOR, 0);
        Self {
            sources,
            started_at: monotonic(),
            page: page::StatusPage::new(),
            samples: Mutex::default(),
            history: std::sync::Mutex::default(),
            hashed: cache(),
            clear: cache(),
            tokens: Semaphore::new(TOKENS_CHECKED_MAX),
            explains: explain::Bounds::default(),
        }
    }

    fn history(&self) -> MutexGuard<'_, History> {
        // A panic cannot leave it half-changed in a way that a picture shows.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How keys are shown to the sender of these headers. Errors: the answer to a token that does not count.
    async fn keys_for(&self, headers: &HeaderMap) -> Result<KeyDisplay, Response> {
        let Some(offered) = headers.get(AUTHORIZATION) else {
            return Ok(KeyDisplay::Hashed);
        };
        let Some(file) = &self.sources.token else {
            return Err(unauthorized(
                "keys are hashes for everybody here; status.keys: clear and listen.admin_token_file change that",
            ));
        };
        let Ok(_permit) = self.tokens.try_acquire() else {
            return Err(explain::busy());
        };
        match file.admits_bearer(offered.as_bytes()).await {
            Ok(true) => Ok(KeyDisplay::Clear),
            Ok(false) => Err(unauthorized("this is not the admin token")),
            Err(_) => Err(unauthorized("this server has no admin token at the moment")),
        }
    }
}

/// Adds a point to the history every so often, as long as the page is served.
pub(super) async fn keep_history(state: Weak<AppState>) {
    let mut ticks = interval(POINT_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(state) = state.upgrade() else { return };
        if let Some(status) = &state.status {
            let counts = Counts::read(&state.sources.limiter.totals());
            status
                .history()
                .add(monotonic(), SystemClock.now_us() / 1_000, counts);
        }
    }
}

/// The paths of the page. Each handler needs [`AppState::status`].
pub(super) fn routes() -> Router<Arc<AppState>> {
    Router::new()
        .route("/status", get(show_page))
        .route("/status/data", get(show_figures))
        .route("/status/explain", post(explain::answer))
}

async fn show_page(State(state): State<Arc<AppState>>) -> Response {
    let Some(status) = &state.status else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let policy = [
        (CONTENT_SECURITY_POLICY, status.page.policy.clone()),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (guarded("text/html; charset=utf-8"), policy, page::TEXT).into_response()
}

async fn show_figures(State(state): State<Arc<AppState>>, headers: HeaderMap) -> Response {
    let Some(status) = &state.status else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let keys = match status.keys_for(&headers).await {
        Ok(keys) => keys,
        Err(refused) => return refused,
    };
    (
        guarded("application/json"),
        figures(&state.sources, status, keys).await,
    )
        .into_response()
}

/// The figures, written anew or by another viewer a moment ago.
async fn figures(sources: &MetricSources, status: &StatusEndpoint, keys: KeyDisplay) -> Bytes {
    let cache = if keys == KeyDisplay::Clear {
        &status.clear
    } else {
        &status.hashed
    };
    // One viewer writes, and the others wait for that.
    let mut samples = status.samples.lock().await;
    if let Some(text) = cache.fresh(monotonic()) {
        return text;
    }
    let top = top::figures(&status.sources.top, keys).await;
    cache.text(monotonic(), || {
        figures::write(sources, status, &mut samples, (keys, top))
    })
}

/// Headers of every answer: no other site reads or embeds it, and no cache keeps it.
fn guarded(media: &'static str) -> [(HeaderName, &'static str); 4] {
    [
        (CONTENT_TYPE, media),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ]
}

fn unauthorized(sentence: &str) -> Response {
    let challenge = [(WWW_AUTHENTICATE, "Bearer")];
    (
        StatusCode::UNAUTHORIZED,
        guarded("application/json"),
        challenge,
        explain::error(sentence),
    )
        .into_response()
}
