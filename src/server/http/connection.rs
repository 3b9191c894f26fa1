//! Serves one HTTP/1 connection through hyper, with every bound set.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::call::CallPath;
use super::check::CheckEndpoint;
use super::host;
use super::progress::{ConnectionProgress, TrackedBody};
use super::tracked::{TrackedRequestBody, TrackedSocket};
use crate::tls::Protocol;
use crate::transport::{Accepted, AdmissionPermit, Socket, wait_until_stopped};
use tollgate_store::Store;

/// Longest time for the TLS handshake, if there is one.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of a request's head. The longest key, with each byte escaped, takes 1,536; proxies add cookies and
/// tokens.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// What connections of one worker, or of the listener of metrics, are answered by.
pub(super) struct HttpEndpoint<S> {
    /// `None` on the listener of metrics alone, where its paths are unknown.
    pub check: Option<CheckEndpoint<S>>,
    /// All other paths.
    pub router: Router,
    /// The runtime of those paths. They may take milliseconds, and would hold up the decisions of the worker.
    pub main: Handle,
}

impl<S: Store> HttpEndpoint<S> {
    async fn answer(&self, request: Request, peer: Option<IpAddr>) -> Response {
        if let Some(refused) = host::refuse(&request) {
            return refused;
        }
        if let Some(check) = &self.check
            && let Some(call) = CallPath::from_path(request.uri().path())
        {
            return check.serve(call, request, peer).await;
        }
        let answering = self
            .main
            .spawn(TowerToHyperService::new(self.router.clone()).call(request));
        match answering.await {
            Ok(Ok(response)) => response,
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

/// Serves a connection on the current runtime until the peer closes it or takes too long. Once `stopping` is true, it ends after
/// the current answer.
pub(super) async fn serve<S: Store>(
    accepted: Accepted,
    admission: AdmissionPermit,
    endpoint: Arc<HttpEndpoint<S>>,
    mut stopping: watch::Receiver<bool>,
) {
    let peer = accepted.peer_address();
    let opened = tokio::select! {
        biased;
        opened = tokio::time::timeout(OPEN_TIMEOUT, Socket::open(accepted, Protocol::Http1)) => opened,
        () = admission.close_requested() => Ok(None),
        () = wait_until_stopped(&mut stopping, None) => Ok(None),
    };
    let Ok(Some(socket)) = opened else { return };
    let progress = Arc::new(ConnectionProgress::new(admission.usage()));
    let seen = progress.clone();
    let service = service_fn(move |request: axum::http::Request<Incoming>| {
        seen.begin_answer(!request.body().is_end_stream());
        let endpoint = endpoint.clone();
        let seen = seen.clone();
        let request = request.map(|body| Body::new(TrackedRequestBody::new(body, seen.clone())));
        async move {
            let response = endpoint.answer(request, peer).await;
            Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, seen)))
        }
    });
    let io = TokioIo::new(TrackedSocket::new(socket, progress.clone()));
    let mut connection = pin!(builder().serve_connection(io, service));
    let mut is_stopping = false;
    let ended = loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => break ended,
            step = progress.overdue() => return tracing::debug!(?step, "HTTP connection took too long"),
            // Only idle connections are asked to close, so nothing is lost.
            () = admission.close_requested() => return,
            () = wait_until_stopped(&mut stopping, None), if !is_stopping => {
                connection.as_mut().graceful_shutdown();
                is_stopping = true;
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "HTTP connection ended");
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    // [`ConnectionProgress`] limits the time of every step, so that no request needs a timer of its own.
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_buf_size(HEAD_BYTES_MAX);
    builder
}
