//! How a connection is read. The first bytes of HTTP/2 apart from the rest, so that a peer that never speaks costs a socket
//! and a timer but no protocol state, and can be told from one that does. And no faster than the calls of its worker are
//! looked at: HTTP/2 is read before its calls have their turn, from every connection that has something to say, so that a
//! crowd which speaks at once would turn into as many calls in memory.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::authority::AuthorityBlank;

/// What every HTTP/2 client says first. Source: RFC 9113, section 3.4.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose preface has been read, and which reads as if it had not.
pub(super) struct Greeted<S, F> {
    socket: S,
    /// What is still to be read again.
    again: &'static [u8],
    /// Whether too many calls have had no turn.
    busy: F,
    /// Where requests name no host.
    authority: Option<AuthorityBlank>,
}

impl<S: AsyncRead + Unpin, F: Fn() -> bool + Unpin> Greeted<S, F> {
    /// Reads the preface; `None` when the peer left or said something else. Dropping the future closes the connection. What
    /// follows is not read while `busy` says so.
    pub(super) async fn greet(mut socket: S, busy: F) -> Option<Self> {
        let mut bytes = [0; PREFACE.len()];
        let mut said = ReadBuf::new(&mut bytes);
        while said.remaining() > 0 {
            let before = said.filled().len();
            poll_fn(|context| Pin::new(&mut socket).poll_read(context, &mut said)).await.ok()?;
            if said.filled().len() == before || !PREFACE.starts_with(said.filled()) {
                return None;
            }
        }
        Some(Self { socket, again: PREFACE, busy, authority: None })
    }

    /// Has the authority of every request blanked.
    pub(super) fn without_authority(self) -> Self {
        Self { authority: Some(AuthorityBlank::default()), ..self }
    }
}

impl<S: AsyncRead + Unpin, F: Fn() -> bool + Unpin> AsyncRead for Greeted<S, F> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if (self.busy)() {
            // Behind those that wait for their turn.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.again.is_empty() {
            let before = into.filled().len();
            let read = Pin::new(&mut self.socket).poll_read(context, into);
            if let Some(authority) = &mut self.authority {
                authority.pass(&mut into.filled_mut()[before..]);
            }
            return read;
        }
        let (now, later) = self.again.split_at(self.again.len().min(into.remaining()));
        into.put_slice(now);
        self.again = later;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, F: Unpin> AsyncWrite for Greeted<S, F> {
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

    /// A peer that says these pieces, one at each read, and then leaves.
    struct Says(VecDeque<Vec<u8>>);

    impl AsyncRead for Says {
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

    async fn greet(pieces: &[&[u8]]) -> Option<Greeted<Says, fn() -> bool>> {
        Greeted::greet(Says(pieces.iter().map(|piece| piece.to_vec()).collect()), (|| false) as fn() -> bool).await
    }

    async fn read_to_the_end(greeted: &mut Greeted<Says, fn() -> bool>) -> Vec<u8> {
        let mut heard = Vec::new();
        loop {
            // Smaller than the preface, so that it takes several reads.
            let mut bytes = [0; 7];
            let mut piece = ReadBuf::new(&mut bytes);
            poll_fn(|context| Pin::new(&mut *greeted).poll_read(context, &mut piece)).await.unwrap();
            if piece.filled().is_empty() {
                return heard;
            }
            heard.extend_from_slice(piece.filled());
        }
    }

    #[tokio::test]
    async fn what_was_read_is_read_again_however_it_came() {
        let whole = [PREFACE, b"frames"].concat();
        for cut in 1..whole.len() {
            let mut greeted = greet(&[&whole[..cut], &whole[cut..]]).await.unwrap();
            let heard = read_to_the_end(&mut greeted).await;
            assert_eq!(heard, whole, "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn whoever_leaves_or_speaks_another_protocol_is_no_peer() {
        for said in [b"".as_slice(), b"PRI * HTTP/2.0\r\n", b"GET / HTTP/1.1\r\nHost: tollgate\r\n\r\n", b"\x16\x03\x01"] {
            assert!(greet(&[said]).await.is_none(), "{said:?}");
        }
        assert!(greet(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", b"x"]).await.is_none());
    }
}
