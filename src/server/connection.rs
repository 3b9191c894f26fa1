//! Serves one HTTP/2 connection, from its preface to its end, through hyper with every bound set.

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

use super::admission::AdmissionPermit;
use super::pool::STREAMS_MAX;
use super::preface::PrefacedStream;
use super::socket::{Accepted, Socket};
use crate::tls::Protocol;

/// Longest time for the TLS handshake, if any, and the HTTP/2 preface, which every client sends at once. Port scans and the
/// health checks of load balancers never send it.
const PREFACE_WITHIN: Duration = Duration::from_secs(5);
/// The same once the server drains: its first bytes may still be on their way. A drain waits no longer for silent
/// connections.
const LAST_WORDS_WITHIN: Duration = Duration::from_millis(500);
/// Streams that a peer may make us reset before the connection is closed: hyper's default.
const LOCAL_RESETS_MAX: usize = 1024;
/// Streams that a peer may reset before we have looked at them; more count as a rapid reset attack. As many as may be open:
/// a client may cancel all its calls at once. A processor that was throttled then sees them in one burst.
const UNSEEN_RESETS_MAX: usize = STREAMS_MAX;
/// After this time without a frame, the peer is sent a PING. The connection is closed when no answer comes within the
/// second time.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEPALIVE_WITHIN: Duration = Duration::from_secs(10);
/// Largest headers of a call, in bytes. Ours need some 200; proxies add tokens and traces.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Flow control window of one stream, in bytes: a batch of 1,000 ordinary requests, so that it needs no second round trip.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Bytes of an answer that are passed to hyper at a time. Most of an answer that the client does not read thus stays where
/// it is counted.
pub(crate) const CHUNK_BYTES: usize = 16 << 10;
/// Bytes that hyper may buffer for one stream before the peer takes them: two chunks, so that one is ready when the other
/// is sent.
const UNSENT_BYTES_MAX: usize = 2 * CHUNK_BYTES;
/// Longest time from GOAWAY, sent because of age or a drain, to the end of the connection. A call takes at most 30 s: that
/// is the slowest possible reading, deciding and sending with the longest `store.deadline`.
const AGED_WITHIN: Duration = Duration::from_secs(30);
/// The same for a connection that is closed to make room. It is idle, so it only has to end calls that arrive at that
/// moment.
const LEFT_WITHIN: Duration = Duration::from_secs(1);

/// How to serve a connection.
pub(crate) struct ConnectionOptions<E, F> {
    /// Runs its streams.
    pub executor: E,
    /// Most streams that it may have open at once.
    pub streams: u32,
    /// Flow control window of the connection, in bytes.
    pub window: u32,
    /// Age at which the peer is sent GOAWAY; `None`: never.
    pub age: Option<Duration>,
    /// Set to true when GOAWAY is sent, so that its streams end.
    pub draining: watch::Sender<bool>,
    /// Its place, which it may be asked to give back.
    pub admission: AdmissionPermit,
    /// Returns whether reading must pause, because too many calls wait.
    pub busy: F,
}

/// Serves a connection until the peer closes it. Once it is old, must make room, or `stopping` is true, it ends after its
/// calls are answered.
///
/// A peer that has not sent the preface when `stopping` becomes true has [`LAST_WORDS_WITHIN`] to do so.
pub(crate) async fn serve<S, B, E, F>(
    accepted: Accepted,
    service: S,
    options: ConnectionOptions<E, F>,
    mut stopping: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
    E: Http2ServerConnExec<S::Future, B> + Clone,
    F: Fn() -> bool + Unpin,
{
    let ConnectionOptions { executor, streams, window, age, draining, admission, busy } = options;
    let mut reading_preface = pin!(read_preface(accepted, busy));
    let prefaced = tokio::select! {
        biased;
        prefaced = reading_preface.as_mut() => prefaced,
        () = admission.close_requested() => None,
        () = stopped(&mut stopping, None) => tokio::time::timeout(LAST_WORDS_WITHIN, reading_preface).await.ok().flatten(),
    };
    let Some(prefaced) = prefaced else { return };
    let mut connection = pin!(builder(executor, streams, window).serve_connection(TokioIo::new(prefaced), service));
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => ended,
        () = admission.close_requested() => {
            draining.send_replace(true);
            connection.as_mut().graceful_shutdown();
            let Ok(ended) = tokio::time::timeout(LEFT_WITHIN, connection).await else { return };
            ended
        }
        () = stopped(&mut stopping, age) => {
            draining.send_replace(true);
            connection.as_mut().graceful_shutdown();
            // What is unfinished after that is cut.
            let Ok(ended) = tokio::time::timeout(AGED_WITHIN, connection).await else { return };
            ended
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Waits until `stopping` is true or its sender is gone, or for `time_limit` if there is one.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>, time_limit: Option<Duration>) {
    let stopped = stopping.wait_for(|stopping| *stopping);
    // An error means that the time is over, or that the sender is gone, which also means stop.
    match time_limit {
        None => drop(stopped.await),
        Some(time_limit) => drop(tokio::time::timeout(time_limit, stopped).await),
    }
}

async fn read_preface<F: Fn() -> bool + Unpin>(accepted: Accepted, busy: F) -> Option<PrefacedStream<Socket, F>> {
    let reading_preface = async {
        let socket = Socket::open(accepted, Protocol::H2).await?;
        let has_host = !socket.is_unix();
        let prefaced = PrefacedStream::read_preface(socket, busy).await?;
        Some(if has_host { prefaced } else { prefaced.without_authority() })
    };
    tokio::time::timeout(PREFACE_WITHIN, reading_preface).await.ok()?
}

/// hyper's server with every bound set; see [`ConnectionOptions`].
pub(crate) fn builder<E: Clone>(executor: E, streams: u32, window: u32) -> Builder<E> {
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
        // gRPC clients ignore the header.
        .auto_date_header(false);
    builder
}
