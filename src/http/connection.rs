//! Serves one HTTP/1 connection through hyper, with every bound set.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;

use super::progress::{IDLE_WITHIN, Progress, Step, TrackedBody, TrackedSocket};
use crate::server::{Accepted, AdmissionPermit, Socket, stopped};
use crate::tls::Protocol;

/// Longest time for the TLS handshake, if there is one.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// Most bytes of a request's head. The longest key, with each byte escaped, takes 1,536; proxies add cookies and tokens.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Serves a connection until the peer closes it or takes too long. Once `stopping` is true, it ends after the current
/// answer.
pub(super) async fn serve(accepted: Accepted, admission: AdmissionPermit, router: Router, mut stopping: watch::Receiver<bool>) {
    let opened = tokio::select! {
        biased;
        opened = tokio::time::timeout(OPEN_WITHIN, Socket::open(accepted, Protocol::Http1)) => opened,
        () = admission.close_requested() => Ok(None),
        () = stopped(&mut stopping) => Ok(None),
    };
    let Ok(Some(socket)) = opened else { return };
    let progress = Arc::new(Progress::new(admission.usage()));
    let (router, seen) = (TowerToHyperService::new(router), progress.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        seen.note(Step::Answer);
        let (answer, seen) = (router.call(request), seen.clone());
        async move { Ok::<_, Infallible>(answer.await?.map(|body| TrackedBody::new(body, seen))) }
    });
    let io = TokioIo::new(TrackedSocket::new(socket, progress.clone()));
    let mut connection = pin!(builder().serve_connection(io, service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        step = progress.overdue() => return tracing::debug!(?step, "HTTP connection took too long"),
        // Only idle connections are asked to close, so nothing is lost.
        () = admission.close_requested() => return,
        () = stopped(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "HTTP connection ended");
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    // [`Progress`] enforces the shorter limits.
    builder.timer(TokioTimer::new()).header_read_timeout(IDLE_WITHIN).max_buf_size(HEAD_BYTES_MAX);
    builder
}
