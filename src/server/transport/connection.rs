//! Serves one HTTP/2 connection, from its preface to its end, with every bound set.
//!
//! h2 is used without hyper's server, which passes whole pieces of an answer to h2 however little the peer takes. What waits
//! there could be neither counted nor held back; see [`super::send`].

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use hyper::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Sleep;

use super::account::Account;
use super::admission::AdmissionPermit;
use super::pool::STREAMS_MAX;
use super::preface::PrefacedStream;
use super::send::Chunk;
use super::socket::{Accepted, Socket};
use crate::tls::Protocol;

/// Longest time for the TLS handshake, if any, and the HTTP/2 preface, which every client sends at once. Port scans and the
/// health checks of load balancers never send it.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same once the server drains: its first bytes may still be on their way. A drain waits no longer for silent
/// connections.
const DRAINING_PREFACE_TIMEOUT: Duration = Duration::from_millis(500);
/// Streams that a peer may make us reset before the connection is closed.
const LOCAL_RESETS_MAX: usize = 1024;
/// Streams that a peer may reset before we have looked at them; more count as a rapid reset attack. As many as may be open:
/// a client may cancel all its calls at once. A processor that was throttled then sees them in one burst.
const UNSEEN_RESETS_MAX: usize = STREAMS_MAX;
/// A peer that was silent for `KEEPALIVE_EVERY` (at most twice that) is sent a PING; the connection is closed if nothing comes
/// within `KEEPALIVE_TIMEOUT`.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest headers of a call, in bytes. Ours need some 200; proxies add tokens and traces.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Flow control window of one stream, in bytes: a batch of 1,000 ordinary requests, so that it needs no second round trip.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// Bytes of one answer that h2 holds at most: those that the peer allows to send and the socket has not taken.
pub(crate) const CHUNK_BYTES: usize = 16 << 10;
/// Longest time from GOAWAY, sent because of age or a drain, to the end of the connection. A call takes at most 30 s: that
/// is the slowest possible reading, deciding and sending with the longest `store.deadline`.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for a connection that is closed to make room. It is idle, so it only has to end calls that arrive at that
/// moment.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(1);

/// Begins the calls of a connection. `H` is what is held for an answer until the socket has taken it.
pub(crate) trait CallStarter<H> {
    /// Begins to answer a call. Must not wait.
    fn start(&self, request: Request<RecvStream>, respond: SendResponse<Chunk<H>>);
}

/// How to serve a connection.
pub(crate) struct ConnectionOptions<F> {
    /// Maximum number of streams that it may have open at once.
    pub streams: u32,
    /// Flow control window of the connection, in bytes.
    pub window: u32,
    /// Age at which the peer is sent GOAWAY; `None`: never.
    pub age: Option<Duration>,
    /// Set to true when GOAWAY is sent, so that its streams end.
    pub draining: watch::Sender<bool>,
    /// Its place, which it may be asked to give back.
    pub admission: AdmissionPermit,
    /// Counts what is kept for it.
    pub account: Arc<Account>,
    /// Returns whether reading must pause, because too many calls wait.
    pub busy: F,
}

/// Serves a connection until the peer closes it. Once it is old, must make room, or `stopping` is true, it ends after its
/// calls are answered. It is cut when its account says so.
///
/// A peer that has not sent the preface when `stopping` becomes true has [`DRAINING_PREFACE_TIMEOUT`] to do so.
pub(crate) async fn serve<H, F>(
    accepted: Accepted,
    calls: impl CallStarter<H>,
    options: ConnectionOptions<F>,
    mut stopping: watch::Receiver<bool>,
) where
    F: Fn() -> bool + Unpin,
{
    let ConnectionOptions {
        streams,
        window,
        age,
        draining,
        admission,
        account,
        busy,
    } = options;
    let mut opening = Box::pin(open(accepted, streams, window, account.clone(), busy));
    let opened = tokio::select! {
        biased;
        opened = opening.as_mut() => opened,
        () = admission.close_requested() => None,
        () = wait_until_stopped(&mut stopping, None) => tokio::time::timeout(DRAINING_PREFACE_TIMEOUT, opening.as_mut()).await.ok().flatten(),
    };
    drop(opening);
    let Some(mut connection) = opened else { return };
    let ended = tokio::select! {
        biased;
        ended = connection.run(&calls) => ended,
        () = account.close_requested() => return,
        () = admission.close_requested() => {
            draining.send_replace(true);
            connection.leave(&calls, EVICTION_TIMEOUT).await
        }
        () = wait_until_stopped(&mut stopping, age) => {
            draining.send_replace(true);
            tokio::select! {
                ended = connection.leave(&calls, GOAWAY_TIMEOUT) => ended,
                () = account.close_requested() => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Waits until `stopping` is true or its sender is gone, or for `time_limit` if there is one.
pub(crate) async fn wait_until_stopped(
    stopping: &mut watch::Receiver<bool>,
    time_limit: Option<Duration>,
) {
    let stopped = stopping.wait_for(|stopping| *stopping);
    // An error means that the time is over, or that the sender is gone, which also means stop.
    match time_limit {
        None => drop(stopped.await),
        Some(time_limit) => drop(tokio::time::timeout(time_limit, stopped).await),
    }
}

/// Reads the preface and sends the settings. `None` when that fails or takes too long.
async fn open<H, F: Fn() -> bool + Unpin>(
    accepted: Accepted,
    streams: u32,
    window: u32,
    account: Arc<Account>,
    busy: F,
) -> Option<H2Connection<PrefacedStream<Socket, F>, H>> {
    let opening = async {
        let socket = Socket::open(accepted, Protocol::H2).await?;
        let has_host = !socket.is_unix();
        let prefaced = PrefacedStream::read_preface(socket, account.clone(), busy).await?;
        let prefaced = if has_host {
            prefaced
        } else {
            prefaced.without_authority()
        };
        let heard = prefaced.heard();
        H2Connection::open(prefaced, account, streams, window, heard)
            .await
            .ok()
    };
    tokio::time::timeout(PREFACE_TIMEOUT, opening).await.ok()?
}

/// An HTTP/2 connection that takes calls.
pub(crate) struct H2Connection<T, H> {
    connection: Connection<T, Chunk<H>>,
    account: Arc<Account>,
    keepalive: KeepAlive,
}

impl<T: AsyncRead + AsyncWrite + Unpin, H> H2Connection<T, H> {
    /// Exchanges settings over `stream`, which sets `heard` whenever bytes have come.
    pub(crate) async fn open(
        stream: T,
        account: Arc<Account>,
        streams: u32,
        window: u32,
        heard: Arc<AtomicBool>,
    ) -> Result<Self, h2::Error> {
        let mut builder = Builder::new();
        builder
            .max_concurrent_streams(streams)
            .max_local_error_reset_streams(Some(LOCAL_RESETS_MAX))
            .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
            .max_header_list_size(HEADER_BYTES_MAX)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(window)
            .max_send_buffer_size(CHUNK_BYTES);
        let mut connection = builder.handshake(stream).await?;
        let keepalive = KeepAlive::new(connection.ping_pong(), heard);
        Ok(Self {
            connection,
            account,
            keepalive,
        })
    }

    /// Serves until the connection has ended, and all its calls with it.
    pub(crate) async fn run(&mut self, calls: &impl CallStarter<H>) -> Result<(), h2::Error> {
        poll_fn(|context| self.poll(calls, context)).await
    }

    fn poll(
        &mut self,
        calls: &impl CallStarter<H>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), h2::Error>> {
        let _measured = self.account.turn().measure();
        if self.keepalive.poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        while let Some(accepted) = ready!(self.connection.poll_accept(context)) {
            let (request, respond) = accepted?;
            calls.start(request, respond);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes no more calls, answers those that were taken, and ends. What is unfinished after `time_limit` is cut.
    async fn leave(
        &mut self,
        calls: &impl CallStarter<H>,
        time_limit: Duration,
    ) -> Result<(), h2::Error> {
        self.connection.graceful_shutdown();
        tokio::time::timeout(time_limit, self.run(calls))
            .await
            .unwrap_or(Ok(()))
    }
}

/// Finds out whether a silent peer is still there.
struct KeepAlive {
    /// `None` if somebody else sends PINGs, which does not happen.
    ping_pong: Option<PingPong>,
    /// Set when bytes have come.
    heard: Arc<AtomicBool>,
    next: Pin<Box<Sleep>>,
    /// Whether a PING was sent and nothing came since.
    is_asked: bool,
}

impl KeepAlive {
    fn new(ping_pong: Option<PingPong>, heard: Arc<AtomicBool>) -> Self {
        Self {
            ping_pong,
            heard,
            next: Box::pin(tokio::time::sleep(KEEPALIVE_EVERY)),
            is_asked: false,
        }
    }

    /// Ready when the peer does not answer.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(ping_pong) = &mut self.ping_pong else {
            return Poll::Pending;
        };
        while self.next.as_mut().poll(context).is_ready() {
            let wait = if self.heard.swap(false, Ordering::Relaxed) {
                self.is_asked = false;
                KEEPALIVE_EVERY
            } else if std::mem::replace(&mut self.is_asked, true) {
                return Poll::Ready(());
            } else {
                // Takes the answer to the PING before, without which no other is sent. An error means that the connection ends.
                let _ = ping_pong.poll_pong(context);
                let _ = ping_pong.send_ping(Ping::opaque());
                KEEPALIVE_TIMEOUT
            };
            self.next.set(tokio::time::sleep(wait));
        }
        Poll::Pending
    }
}
