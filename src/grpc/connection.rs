//! One connection, from its preface to its end: hyper, with every bound set.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::server::conn::http2::Builder;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;

use super::admission::Visit;
use super::answer::CHUNK_BYTES;
use super::crew::STREAMS_MAX;
use super::preface::Greeted;
use super::socket::{Accepted, Socket};
use crate::tls::Protocol;

/// Longest that a connection may take to shake hands, if it has to, and to say the HTTP/2 preface, which every client sends
/// at once. Port scans and the health checks of load balancers never do.
const PREFACE_WITHIN: Duration = Duration::from_secs(5);
/// The same once the server is to end, for one whose first words may be on their way: that is all it waits for silent ones.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(500);
/// Streams that a peer may make us reset before the connection is closed: hyper's own bound.
const LOCAL_RESETS_MAX: usize = 1024;
/// Streams that a peer may reset before we have looked at them; beyond, it is taken for a rapid reset attack. As many as
/// may be open: a client may give up all its calls at once, which a processor that was throttled then sees in one burst.
const UNSEEN_RESETS_MAX: usize = STREAMS_MAX;
/// After this long without a sign of life a peer is asked for one, and dropped when none comes in time.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(10);
/// Largest headers of a call. Ours need some 200 bytes; proxies add tokens and traces.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// What may be under way unread on one stream: a batch of 1,000 ordinary requests, so that it needs no second flight.
pub(super) const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// What is given away to be sent on one stream before the peer has taken it: two chunks, so that one is there when the other
/// is taken.
const UNSENT_BYTES_MAX: usize = 2 * CHUNK_BYTES;
/// Longest from when a connection was told to go away, since it is old, to its end. A call that is received, decided and
/// sent as slowly as may be takes 30 s with the longest `store.deadline`.
const AGED_WITHIN: Duration = Duration::from_secs(30);
/// The same of one that makes room for another. It does nothing, so it has nothing to end but what is just coming.
const LEFT_WITHIN: Duration = Duration::from_secs(1);

/// How a connection is served.
pub(super) struct Manners<E, F> {
    /// What its streams run on.
    pub executor: E,
    /// Streams that it may have open at once.
    pub streams: u32,
    /// Bytes that may be under way unread.
    pub window: u32,
    /// After how long it is told to go away, if it is.
    pub age: Option<Duration>,
    /// Is told true when it is.
    pub leave: watch::Sender<bool>,
    /// Its place, which it may have to give back.
    pub visit: Visit,
    /// Whether it is better not to read on now.
    pub busy: F,
}

/// Serves a connection until the peer leaves or, once it is old or `stopping` is true, until its calls are answered; a peer
/// that has not spoken by then has a moment more.
pub(super) async fn serve<S, B, E, F>(accepted: Accepted, service: S, manners: Manners<E, F>, mut stopping: watch::Receiver<bool>)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
    E: Http2ServerConnExec<S::Future, B> + Clone,
    F: Fn() -> bool + Unpin,
{
    let Manners { executor, streams, window, age, leave, visit, busy } = manners;
    let mut greeting = pin!(greet(accepted, busy));
    let greeted = tokio::select! {
        biased;
        greeted = greeting.as_mut() => greeted,
        () = visit.must_leave() => None,
        () = stopped(&mut stopping) => tokio::time::timeout(LAST_WORDS_WITHIN, greeting).await.ok().flatten(),
    };
    let Some(greeted) = greeted else { return };
    let mut connection = pin!(builder(executor, streams, window).serve_connection(TokioIo::new(greeted), service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = visit.must_leave() => {
            leave.send_replace(true);
            connection.as_mut().graceful_shutdown();
            let Ok(ended) = tokio::time::timeout(LEFT_WITHIN, connection).await else { return };
            ended
        }
        () = due(&mut stopping, age) => {
            leave.send_replace(true);
            connection.as_mut().graceful_shutdown();
            // Beyond it, what is left is cut.
            let Ok(ended) = tokio::time::timeout(AGED_WITHIN, connection).await else { return };
            ended
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Waits until it is true, or nobody is left who could say so.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is an end too.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

async fn due(stopping: &mut watch::Receiver<bool>, age: Option<Duration>) {
    match age {
        None => stopped(stopping).await,
        Some(age) => {
            let _ = tokio::time::timeout(age, stopped(stopping)).await;
        }
    }
}

async fn greet<F: Fn() -> bool + Unpin>(accepted: Accepted, busy: F) -> Option<Greeted<Socket, F>> {
    let greeting = async {
        let socket = Socket::open(accepted, Protocol::H2).await?;
        let has_host = !socket.is_unix();
        let greeted = Greeted::greet(socket, busy).await?;
        Some(if has_host { greeted } else { greeted.without_authority() })
    };
    tokio::time::timeout(PREFACE_WITHIN, greeting).await.ok()?
}

fn builder<E: Clone>(executor: E, streams: u32, window: u32) -> Builder<E> {
    let mut builder = Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_local_error_reset_streams(LOCAL_RESETS_MAX)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .keep_alive_interval(KEEPALIVE_EVERY)
        .keep_alive_timeout(KEEPALIVE_WITHIN)
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(window)
        .max_send_buf_size(UNSENT_BYTES_MAX)
        // No gRPC client looks at it.
        .auto_date_header(false);
    builder
}
