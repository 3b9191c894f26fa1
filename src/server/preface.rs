//! How a connection is read.
//!
//! The HTTP/2 preface is read before protocol state exists. So a peer that never speaks costs only a socket and a timer,
//! and counts as silent during a drain.
//!
//! The rest is read no faster than the worker's calls get their turn. The HTTP/2 code reads every connection that has bytes
//! before any call runs. Without this brake, many clients that send at once would all become calls in memory.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::authority::AuthorityBlank;

/// The first bytes of every HTTP/2 client. Source: RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose preface has been read. Reading from it yields the preface again, then the rest.
pub(super) struct PrefacedStream<S, F> {
    socket: S,
    /// The part of the preface that is still to be yielded.
    replay: &'static [u8],
    /// Returns whether too many calls wait for their turn; reading then pauses.
    busy: F,
    /// Present on Unix sockets, where the authority of requests is blanked.
    authority: Option<AuthorityBlank>,
}

impl<S: AsyncRead + Unpin, F: Fn() -> bool + Unpin> PrefacedStream<S, F> {
    /// Reads the preface. Returns `None` when the peer left or sent anything else. Dropping the future closes the
    /// connection.
    ///
    /// While `busy` returns true, nothing after the preface is read.
    pub(super) async fn read_preface(mut socket: S, busy: F) -> Option<Self> {
        let mut bytes = [0; PREFACE.len()];
        let mut read = ReadBuf::new(&mut bytes);
        while read.remaining() > 0 {
            let before = read.filled().len();
            poll_fn(|context| Pin::new(&mut socket).poll_read(context, &mut read)).await.ok()?;
            if read.filled().len() == before || !PREFACE.starts_with(read.filled()) {
                return None;
            }
        }
        Some(Self { socket, replay: PREFACE, busy, authority: None })
    }

    /// Blanks the authority of every request.
    pub(super) fn without_authority(self) -> Self {
        Self { authority: Some(AuthorityBlank::default()), ..self }
    }
}

impl<S: AsyncRead + Unpin, F: Fn() -> bool + Unpin> AsyncRead for PrefacedStream<S, F> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if (self.busy)() {
            // Waking itself puts this task behind the calls that wait for their turn.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.replay.is_empty() {
            let before = into.filled().len();
            let read = Pin::new(&mut self.socket).poll_read(context, into);
            if let Some(authority) = &mut self.authority {
                authority.pass(&mut into.filled_mut()[before..]);
            }
            return read;
        }
        let (now, later) = self.replay.split_at(self.replay.len().min(into.remaining()));
        into.put_slice(now);
        self.replay = later;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, F: Unpin> AsyncWrite for PrefacedStream<S, F> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A peer that sends these pieces, one at each read, and then closes.
    struct Sends(VecDeque<Vec<u8>>);

    impl AsyncRead for Sends {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
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
        PrefacedStream::read_preface(Sends(pieces.iter().map(|piece| piece.to_vec()).collect()), (|| false) as fn() -> bool).await
    }

    async fn read_to_the_end(prefaced: &mut PrefacedStream<Sends, fn() -> bool>) -> Vec<u8> {
        let mut read = Vec::new();
        loop {
            // Smaller than the preface, so that it takes several reads.
            let mut bytes = [0; 7];
            let mut piece = ReadBuf::new(&mut bytes);
            poll_fn(|context| Pin::new(&mut *prefaced).poll_read(context, &mut piece)).await.unwrap();
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
        for said in [b"".as_slice(), b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\nHost: tollgate\r\n\r\n", b"\x16\x03\x01"] {
            assert!(read_preface(&[said]).await.is_none(), "{said:?}");
        }
        assert!(read_preface(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", b"x"]).await.is_none());
    }
}
