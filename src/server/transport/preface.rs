//! How a connection is read.
//!
//! The HTTP/2 preface is read before protocol state exists. So a peer that never speaks costs only a socket and a timer,
//! and counts as silent during a drain.
//!
//! The rest is read no faster than the worker's calls get their turn. The HTTP/2 code reads every connection that has bytes
//! before any call runs. Without this brake, many clients that send at once would all become calls in memory.
//!
//! A peer that does not take what is written is not read: each of its further calls would leave an answer in memory. A block of
//! header fields must end in time.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::account::{Account, Charge};
use super::authority::AuthorityBlank;
use super::header_block::HeaderBlockWatch;

/// The first bytes of every HTTP/2 client. Source: RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Longest time from the first to the last byte of a block of header fields. A client sends it at once.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(5);
/// What an unfinished block takes at worst, in bytes: 16 KiB of fields, by HTTP/2's way to count, in a table of their own.
const HEADER_BLOCK_BYTES: usize = 64 << 10;

/// A connection whose preface has been read. Reading from it yields the preface again, then the rest.
pub(super) struct PrefacedStream<S, F> {
    socket: S,
    /// The part of the preface that is still to be yielded.
    replay: &'static [u8],
    /// Returns whether too many calls wait for their first poll; reading then pauses.
    busy: F,
    /// Present on Unix sockets, where the authority of requests is blanked.
    authority: Option<AuthorityBlank>,
    account: Arc<Account>,
    header_blocks: HeaderBlockWatch,
    unfinished_block: Option<UnfinishedBlock>,
    /// Set when bytes have come.
    heard: Arc<AtomicBool>,
    /// Whether the peer has not taken what was last written.
    is_stalled: bool,
}

/// A block of header fields that has begun and not ended.
struct UnfinishedBlock {
    timeout: Pin<Box<Sleep>>,
    _charge: Charge,
}

impl<S: AsyncRead + Unpin, F: Fn() -> bool + Unpin> PrefacedStream<S, F> {
    /// Reads the preface. Returns `None` when the peer left or sent anything else. Dropping the future closes the
    /// connection.
    ///
    /// While `busy` returns true, nothing after the preface is read. The rest is read in the turns of `account`, which is charged for
    /// what h2 keeps unfinished.
    pub(super) async fn read_preface(
        mut socket: S,
        account: Arc<Account>,
        busy: F,
    ) -> Option<Self> {
        let mut bytes = [0; PREFACE.len()];
        let mut read = ReadBuf::new(&mut bytes);
        while read.remaining() > 0 {
            let before = read.filled().len();
            poll_fn(|context| Pin::new(&mut socket).poll_read(context, &mut read))
                .await
                .ok()?;
            if read.filled().len() == before || !PREFACE.starts_with(read.filled()) {
                return None;
            }
        }
        Some(Self {
            socket,
            replay: PREFACE,
            busy,
            authority: None,
            account,
            header_blocks: HeaderBlockWatch::default(),
            unfinished_block: None,
            heard: Arc::default(),
            is_stalled: false,
        })
    }

    /// Whether bytes have come since it was last set to false.
    pub(super) fn heard(&self) -> Arc<AtomicBool> {
        self.heard.clone()
    }

    /// Blanks the authority of every request.
    pub(super) fn without_authority(self) -> Self {
        Self {
            authority: Some(AuthorityBlank::default()),
            ..self
        }
    }

    /// Looks at bytes that were read.
    fn watch(&mut self, bytes: &mut [u8]) {
        if bytes.is_empty() {
            return;
        }
        self.heard.store(true, Ordering::Relaxed);
        if !self.header_blocks.pass(bytes) {
            self.unfinished_block = None;
        } else if self.unfinished_block.is_none() {
            let timeout = Box::pin(tokio::time::sleep(HEADERS_TIMEOUT));
            self.unfinished_block = Some(UnfinishedBlock {
                timeout,
                _charge: self.account.charge(HEADER_BLOCK_BYTES),
            });
        }
        if let Some(authority) = &mut self.authority {
            authority.pass(bytes);
        }
    }
}

impl<S, F> PrefacedStream<S, F> {
    /// Passes on the result of a write, and whether the peer took it.
    fn written<T>(&mut self, context: &Context<'_>, written: Poll<T>) -> Poll<T> {
        if std::mem::replace(&mut self.is_stalled, written.is_pending()) && written.is_ready() {
            // Reading was given up meanwhile, and the socket wakes nobody for it.
            context.waker().wake_by_ref();
        }
        written
    }
}

impl<S: AsyncRead + Unpin, F: Fn() -> bool + Unpin> AsyncRead for PrefacedStream<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if (self.busy)() {
            // Waking itself puts this task behind the calls that wait for their turn.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let has_turn = self.account.turn().poll_ready(context).is_ready();
        if !has_turn && self.unfinished_block.is_none() {
            return Poll::Pending;
        }
        if self.replay.is_empty() {
            if let Some(block) = &mut self.unfinished_block
                && block.timeout.as_mut().poll(context).is_ready()
            {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if self.is_stalled {
                // `written` wakes the task.
                return Poll::Pending;
            }
            let before = into.filled().len();
            // A block that has begun is read to its end, without a wait and no further: it is charged for while it is unfinished.
            let read = if has_turn {
                Pin::new(&mut self.socket).poll_read(context, into)
            } else {
                let bytes = self.header_blocks.bytes_to_read();
                poll_read_piece(&mut self.socket, context, into, bytes)
            };
            self.watch(&mut into.filled_mut()[before..]);
            return read;
        }
        let (now, later) = self
            .replay
            .split_at(self.replay.len().min(into.remaining()));
        into.put_slice(now);
        self.replay = later;
        Poll::Ready(Ok(()))
    }
}

/// Reads at most this number of bytes.
fn poll_read_piece(
    socket: &mut (impl AsyncRead + Unpin),
    context: &mut Context<'_>,
    into: &mut ReadBuf<'_>,
    bytes: usize,
) -> Poll<io::Result<()>> {
    let bytes = bytes.min(into.remaining());
    let mut piece = ReadBuf::new(into.initialize_unfilled_to(bytes));
    let read = Pin::new(socket).poll_read(context, &mut piece);
    let read_bytes = piece.filled().len();
    into.advance(read_bytes);
    read
}

impl<S: AsyncWrite + Unpin, F: Unpin> AsyncWrite for PrefacedStream<S, F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(context, bytes);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.socket).poll_flush(context);
        self.written(context, written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::transport::account::WorkerAccount;

    /// A peer that sends these pieces, one at each read, and then closes.
    struct Sends(VecDeque<Vec<u8>>);

    impl AsyncRead for Sends {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(mut piece) = self.0.pop_front() {
                let later = piece.split_off(piece.len().min(into.remaining()));
                into.put_slice(&piece);
                if !later.is_empty() {
                    self.0.push_front(later);
                }
            }
            Poll::Ready(Ok(()))
        }
    }

    async fn read_preface(pieces: &[&[u8]]) -> Option<PrefacedStream<Sends, fn() -> bool>> {
        let sends = Sends(pieces.iter().map(|piece| piece.to_vec()).collect());
        PrefacedStream::read_preface(
            sends,
            WorkerAccount::default().open(),
            (|| false) as fn() -> bool,
        )
        .await
    }

    async fn read_to_the_end(prefaced: &mut PrefacedStream<Sends, fn() -> bool>) -> Vec<u8> {
        let mut read = Vec::new();
        loop {
            // Smaller than the preface, so that it takes several reads.
            let mut bytes = [0; 7];
            let mut piece = ReadBuf::new(&mut bytes);
            poll_fn(|context| Pin::new(&mut *prefaced).poll_read(context, &mut piece))
                .await
                .unwrap();
            if piece.filled().is_empty() {
                return read;
            }
            read.extend_from_slice(piece.filled());
        }
    }

    #[tokio::test]
    async fn the_preface_is_yielded_again_however_it_was_split() {
        let whole = [PREFACE, b"frames"].concat();
        for cut in 1..whole.len() {
            let mut prefaced = read_preface(&[&whole[..cut], &whole[cut..]]).await.unwrap();
            let read = read_to_the_end(&mut prefaced).await;
            assert_eq!(read, whole, "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn a_peer_that_leaves_or_speaks_another_protocol_is_dropped() {
        for said in [
            b"".as_slice(),
            b"PRI * HTTP/2.0\r\n",
            b"GET / HTTP/1.1\r\nHost: tollgate\r\n\r\n",
            b"\x16\x03\x01",
        ] {
            assert!(read_preface(&[said]).await.is_none(), "{said:?}");
        }
        assert!(
            read_preface(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", b"x"])
                .await
                .is_none()
        );
    }
}
