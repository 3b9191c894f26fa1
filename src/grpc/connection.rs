//! One connection, from its preface to its end: hyper, with every bound set.

use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::server::conn::http2::Builder;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tonic::body::Body;

use super::preface::Greeted;
use super::socket::{Accepted, Socket};

/// Longest that a connection may take to say the HTTP/2 preface, which every client sends at once. Port scans and the
/// health checks of load balancers never do.
const PREFACE_WITHIN: Duration = Duration::from_secs(5);
/// Streams that one connection may have open at once. More wait on the client's side.
const STREAMS_MAX: u32 = 1024;
/// Streams that a peer may make us reset before the connection is closed: hyper's own bound.
const LOCAL_RESETS_MAX: usize = 1024;
/// Streams that a peer may reset before we have looked at them; beyond, it is taken for a rapid reset attack. As many as
/// may be open: a client may give up all its calls at once, which a processor that was throttled then sees in one burst.
const UNSEEN_RESETS_MAX: usize = STREAMS_MAX as usize;
/// After this long without a sign of life a peer is asked for one, and dropped when none comes in time.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(10);
/// Largest headers of a call. Ours need some 200 bytes; proxies add tokens and traces.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// What may be under way unread on one stream: a batch of 1,000 ordinary requests, so that it needs no second flight.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// The same of one connection: what one peer can make us hold, unless its calls take it in.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

/// Serves a connection until the peer leaves, or, once `stopping` tells so, until its calls are answered; a peer that has
/// not spoken by then is dropped at once. Its streams run on `executor`.
pub(super) async fn serve<S, E>(accepted: Accepted, service: S, executor: E, mut stopping: watch::Receiver<()>)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    S::Future: 'static,
    E: Http2ServerConnExec<S::Future, Body> + Clone,
{
    let greeted = tokio::select! {
        biased;
        greeted = greet(accepted) => greeted,
        // An error means that the sender is gone, which is an end too.
        _ = stopping.changed() => None,
    };
    let Some(greeted) = greeted else { return };
    let mut connection = pin!(builder(executor).serve_connection(TokioIo::new(greeted), service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

async fn greet(accepted: Accepted) -> Option<Greeted<Socket>> {
    let socket = Socket::adopt(accepted).inspect_err(|error| tracing::warn!(%error, "cannot serve a connection")).ok()?;
    tokio::time::timeout(PREFACE_WITHIN, Greeted::greet(socket)).await.ok()?
}

fn builder<E: Clone>(executor: E) -> Builder<E> {
    let mut builder = Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_local_error_reset_streams(LOCAL_RESETS_MAX)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_WITHIN)
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        // No gRPC client looks at it.
        .auto_date_header(false);
    builder
}

/// Runs the streams of a connection on its own thread, each as a task of its own: a handler that panics ends its call only.
#[derive(Clone, Copy)]
pub(super) struct Local;

impl<F> Executor<F> for Local
where
    F: Future<Output: 'static> + 'static,
{
    fn execute(&self, stream: F) {
        tokio::task::spawn_local(stream);
    }
}
