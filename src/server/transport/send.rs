//! Sends an answer over an HTTP/2 stream, no faster than the peer takes it.
//!
//! h2 gets only what the peer allows to send now. The rest stays here. What is held for an answer, such as its place in an account,
//! goes with the last of its bytes. So it is given back when the socket has taken them, or when the stream or connection has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::server::SendResponse;
use h2::{Reason, SendStream};
use hyper::Response;
use hyper::body::{Body, Buf, Bytes};
use tokio::time::Sleep;

use super::account::Account;
use super::connection::CHUNK_BYTES;

/// Longest time that a peer may take to read an answer, or the next message of a stream: as long as the limit for a missing
/// keepalive answer. Then the call ends, since its answer takes memory here. When the peer took nothing of any answer meanwhile,
/// the connection ends.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of an answer, and what is held until they are gone.
pub(crate) struct Chunk<H> {
    bytes: Bytes,
    _held: Option<H>,
}

impl<H> Buf for Chunk<H> {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}

/// What is held for an answer.
pub(crate) trait SendHold {
    type Held;

    /// The account of the connection.
    fn account(&self) -> &Account;

    /// Returns what to hold for so many bytes of an answer that come next. `is_last`: whether it is the last
    /// piece. Each piece of an answer that is not endless counts as the last, since most such answers have one piece.
    fn hold(&mut self, bytes: usize, is_last: bool) -> Option<Self::Held>;
}

/// Holds nothing for an answer.
impl SendHold for Arc<Account> {
    type Held = ();

    fn account(&self) -> &Account {
        self
    }

    fn hold(&mut self, _: usize, _: bool) -> Option<()> {
        None
    }
}

/// An answer that is being sent. Dropping it resets its stream, unless all was sent.
pub(crate) struct Sending<B, H: SendHold> {
    stream: SendStream<Chunk<H::Held>>,
    body: B,
    hold: H,
    /// The rest of a piece of the body, and what is held for the piece.
    rest: Bytes,
    held: Option<H::Held>,
    /// Whether the time limit is for each piece of the body, in place of the whole.
    is_endless: bool,
    /// Created when the peer does not take what is there, so that most answers need none.
    timeout: Option<Timeout>,
}

struct Timeout {
    sleep: Pin<Box<Sleep>>,
    /// Pieces of answers that the peer had taken when it began.
    taken: usize,
}

impl<B, H> Sending<B, H>
where
    B: Body<Data = Bytes> + Unpin,
    H: SendHold,
{
    /// Sends the head of an answer. `None` when nothing comes after it, or when the stream is gone.
    pub(crate) fn begin(
        respond: &mut SendResponse<Chunk<H::Held>>,
        response: Response<B>,
        hold: H,
        is_endless: bool,
    ) -> Option<Self> {
        let (head, body) = response.into_parts();
        let is_whole = body.is_end_stream();
        let sent = respond.send_response(Response::from_parts(head, ()), is_whole);
        let stream = sent
            .inspect_err(|_| respond.send_reset(Reason::INTERNAL_ERROR))
            .ok()
            .filter(|_| !is_whole)?;
        Some(Self {
            stream,
            body,
            hold,
            rest: Bytes::new(),
            held: None,
            is_endless,
            timeout: None,
        })
    }

    /// Ready when all was sent, or when the answer is of no more use.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let step = if self.rest.is_empty() {
                self.poll_body(context)
            } else {
                self.poll_chunk(context)
            };
            if let SendStep::End = ready!(step) {
                return Poll::Ready(());
            }
        }
    }

    /// Takes the next piece of the body.
    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<SendStep> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            // The peer has taken all that there is.
            self.timeout = None;
            return self.stream.poll_reset(context).map(|_| SendStep::End);
        };
        // h2 refuses what is passed to it when the stream is gone. That is the end, too.
        match frame.map(|frame| frame.map(|frame| frame.into_data())) {
            Some(Ok(Ok(data))) => {
                let is_last = self.body.is_end_stream();
                self.held = self.hold.hold(data.len(), is_last || !self.is_endless);
                self.rest = data;
                if self.is_endless {
                    self.timeout = None;
                }
                if !(self.rest.is_empty() && is_last) {
                    return Poll::Ready(SendStep::Next);
                }
                let _ = self.send(Bytes::new(), true);
            }
            Some(Ok(Err(frame))) => {
                let _ = frame
                    .into_trailers()
                    .map(|trailers| self.stream.send_trailers(trailers));
            }
            Some(Err(_)) => self.stream.send_reset(Reason::INTERNAL_ERROR),
            None => {
                let _ = self.send(Bytes::new(), true);
            }
        }
        Poll::Ready(SendStep::End)
    }

    /// Passes on as much of the rest as the peer allows.
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<SendStep> {
        self.stream
            .reserve_capacity(self.rest.len().min(CHUNK_BYTES));
        while self.stream.capacity() == 0 {
            match self.stream.poll_capacity(context) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(SendStep::End),
                Poll::Pending => {
                    let account = self.hold.account();
                    let timeout = self.timeout.get_or_insert_with(|| Timeout::new(account));
                    ready!(timeout.sleep.as_mut().poll(context));
                    if timeout.taken == account.taken() {
                        account.close();
                    }
                    return Poll::Ready(SendStep::End);
                }
            }
        }
        let bytes = self
            .rest
            .split_to(self.stream.capacity().min(self.rest.len()));
        let ends = self.rest.is_empty() && self.body.is_end_stream();
        let sent = self.send(bytes, ends);
        Poll::Ready(if ends || sent.is_err() {
            SendStep::End
        } else {
            SendStep::Next
        })
    }

    fn send(&mut self, bytes: Bytes, ends: bool) -> Result<(), h2::Error> {
        self.hold.account().count_taken();
        let held = if self.rest.is_empty() {
            self.held.take()
        } else {
            None
        };
        self.stream.send_data(Chunk { bytes, _held: held }, ends)
    }
}

impl Timeout {
    fn new(account: &Account) -> Self {
        Self {
            sleep: Box::pin(tokio::time::sleep(SEND_TIMEOUT)),
            taken: account.taken(),
        }
    }
}

/// How to go on.
enum SendStep {
    Next,
    /// All was sent, or the peer takes no more.
    End,
}
