//! One HTTP/1 connection: hyper, with every bound set.

use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::watch;

use crate::grpc::{Accepted, Socket, stopped};
use crate::tls::Protocol;

/// Longest that a handshake may take, where there is one.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
/// Longest from one answer, or from the start, to the end of the next request's head. A proxy keeps idle connections for a
/// minute (nginx, by default) and should be the one that closes them, lest it sends a request into one that just closed.
const HEAD_WITHIN: Duration = Duration::from_secs(65);
/// Most bytes of a request's head: the longest key, each byte escaped, takes 1,536 of them; proxies add cookies and tokens.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Serves a connection until the peer leaves, or, once `stopping` is true, until what is under way is answered.
pub(super) async fn serve(accepted: Accepted, router: Router, mut stopping: watch::Receiver<bool>) {
    let opened = tokio::select! {
        biased;
        opened = tokio::time::timeout(OPEN_WITHIN, Socket::open(accepted, Protocol::Http1)) => opened,
        () = stopped(&mut stopping) => Ok(None),
    };
    let Ok(Some(socket)) = opened else { return };
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(builder().serve_connection(TokioIo::new(socket), service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
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
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN).max_buf_size(HEAD_BYTES_MAX);
    builder
}
