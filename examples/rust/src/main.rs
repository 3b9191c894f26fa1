//! An axum application that asks tollgate about each request under /api. README.md has the commands.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use pb::rate_limit_service_client::RateLimitServiceClient;
use pb::{PeekRequest, ShouldAllowRequest};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// The client, as build.rs makes it of proto/tollgate/v1/tollgate.proto.
mod pb {
    tonic::include_proto!("tollgate.v1");
}

const DEFAULT_PLAN: &str = "free";
/// Above tollgate's store.deadline (25 ms), so that the plan's policy answers when Redis fails.
const DEADLINE: Duration = Duration::from_millis(50);
/// The start waits so long for tollgate: a request that has to connect first would miss its deadline.
const START_WAIT: Duration = Duration::from_secs(10);
static FAIL_OPEN: AtomicU64 = AtomicU64::new(0);
static LOGGED_AT: AtomicU64 = AtomicU64::new(0);

type Tollgate = RateLimitServiceClient<Channel>;

/// A client whose channel never sends a call again: ShouldAllow charges.
async fn connect(address: &str) -> Result<Tollgate, Box<dyn Error>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?
        // Finds a tollgate that is gone without a word within 12 s.
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(2));
    let mut tollgate = Tollgate::new(endpoint.connect_lazy());
    let connected = async {
        loop {
            // Peek charges nothing. It also finds a default plan that is misspelt.
            let peek = PeekRequest { key: "start".to_owned(), plan: DEFAULT_PLAN.to_owned(), ..PeekRequest::default() };
            match tollgate.peek(peek).await {
                Err(status) if is_undecided(&status) => tokio::time::sleep(Duration::from_millis(100)).await,
                answer => return answer,
            }
        }
    };
    match in_time(START_WAIT, connected).await {
        Err(status) if is_undecided(&status) => eprintln!("tollgate at {address} does not answer, starting without: {status}"),
        answer => drop(answer?),
    }
    Ok(tollgate)
}

/// The answer to a call, which may have to connect first.
async fn in_time<T>(deadline: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    tokio::time::timeout(deadline, call).await.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")))
}

/// Whether no tollgate decided in time. Any other error means a wrong call, such as a misspelt plan, and must be seen. A call whose
/// connection ends is UNAVAILABLE elsewhere. tonic gives it another code, and the error of the connection as its source.
fn is_undecided(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded) || status.source().is_some()
}

async fn limit(State(mut tollgate): State<Tollgate>, peer: ConnectInfo<SocketAddr>, request: Request, next: Next) -> Response {
    let plan = header(&request, "x-plan").unwrap_or(DEFAULT_PLAN).to_owned();
    // Check the API key before this: each one that is made up has a quota of its own.
    let api_key = header(&request, "x-api-key").map(|api_key| format!("api-key:{api_key}"));
    let key = api_key.unwrap_or_else(|| format!("address:{}", peer.ip()));
    let question = ShouldAllowRequest { key, plan: plan.clone(), http_headers: true, ..ShouldAllowRequest::default() };
    let answer = match in_time(DEADLINE, tollgate.should_allow(question)).await {
        Ok(answer) => answer.into_inner(),
        Err(status) if is_undecided(&status) => {
            let_through(&status);
            return next.run(request).await;
        }
        Err(status) => {
            eprintln!("rate limit of plan {plan:?}: {status}");
            return (StatusCode::SERVICE_UNAVAILABLE, "the rate limit could not be checked\n").into_response();
        }
    };
    let mut response = match answer.allowed {
        true => next.run(request).await,
        false => (StatusCode::TOO_MANY_REQUESTS, "too many requests\n").into_response(),
    };
    response.headers_mut().extend(HeaderMap::try_from(&answer.http_headers).unwrap_or_default());
    response
}

fn header<'a>(request: &'a Request, name: &str) -> Option<&'a str> {
    request.headers().get(name)?.to_str().ok().filter(|value| !value.is_empty())
}

/// Counts each request, and logs one a second at most.
fn let_through(status: &Status) {
    FAIL_OPEN.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
    if LOGGED_AT.swap(now, Ordering::Relaxed) != now {
        eprintln!("tollgate did not decide, request let through: {status}");
    }
}

async fn metrics() -> String {
    format!("# TYPE rate_limit_fail_open_total counter\nrate_limit_fail_open_total {}\n", FAIL_OPEN.load(Ordering::Relaxed))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let variable = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    let tollgate = connect(&variable("TOLLGATE_ADDRESS", "127.0.0.1:50051")).await?;
    let api = Router::new().route("/hello", get(|| async { "hello\n" })).layer(from_fn_with_state(tollgate, limit));
    let application = Router::new().nest("/api", api).route("/metrics", get(metrics));
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{}", variable("PORT", "8000"))).await?;
    println!("listening on http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, application.into_make_service_with_connect_info::<SocketAddr>()).await?)
}
