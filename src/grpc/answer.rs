//! Runs a call from its headers to the end of its answer: it is received, handled, and sent, and holds its permit
//! meanwhile.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Buf, Bytes, Frame, SizeHint};
use hyper::rt::Executor;
use hyper::{Request, Response};
use tokio::time::Sleep;
use tonic::Status;

use super::calls::{ByteReservation, CallPermit, ConnectionCallLimits, Sending, UnpolledCall};
use super::receive::{RequestBody, RequestReceiver};
use super::unary::AnswerBody;
use crate::server::connection::CHUNK_BYTES;

/// Longest time that a peer may take to read an answer, or the next message of a stream: as long as the limit for a missing
/// keepalive answer. Then the call ends, since its answer takes memory here.
const SENT_WITHIN: Duration = Duration::from_secs(10);

/// The future of a service's response.
pub(super) type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, Infallible>> + Send>>;

/// Handles complete requests.
pub(super) trait RequestHandler {
    /// Returns the future of the response.
    fn handle(&self, request: Request<RequestBody>) -> ResponseFuture;
}

/// A call until its response headers are ready.
pub(super) struct CallFuture<H> {
    state: State<H>,
    calls: Rc<ConnectionCallLimits>,
    /// `None` for a refused call, until the request is complete, and once the response is ready.
    permit: Option<CallPermit>,
    reservation: Option<ByteReservation>,
    unpolled: Option<UnpolledCall>,
    is_stream: bool,
}

#[expect(clippy::large_enum_variant, reason = "nearly every call is received first, so a box would be an allocation for each")]
enum State<H> {
    /// The request is incomplete. The handler gets it once it is complete.
    Receiving(RequestReceiver, H),
    Responding(ResponseFuture),
}

impl<H> CallFuture<H> {
    /// A call that `handler` handles once the request is complete.
    pub(super) fn after_request(receiver: RequestReceiver, handler: H, calls: Rc<ConnectionCallLimits>) -> Self {
        Self::new(State::Receiving(receiver, handler), calls, None, false)
    }

    /// The same call, if its answer is a stream, which lasts as long as the client likes.
    pub(super) fn answered_by_stream(self) -> Self {
        Self { is_stream: true, ..self }
    }

    /// A call that reads its request as a stream of messages.
    pub(super) fn stream(responding: ResponseFuture, calls: Rc<ConnectionCallLimits>, mut permit: CallPermit) -> Self {
        permit.begin();
        Self::new(State::Responding(responding), calls, Some(permit), true)
    }

    /// A call that gets `response` without its request being read.
    pub(super) fn immediate(response: Response<AnswerBody>, calls: Rc<ConnectionCallLimits>) -> Self {
        Self::new(State::Responding(Box::pin(std::future::ready(Ok(response)))), calls, None, false)
    }

    fn new(state: State<H>, calls: Rc<ConnectionCallLimits>, permit: Option<CallPermit>, is_stream: bool) -> Self {
        let unpolled = Some(calls.unpolled());
        Self { state, calls, permit, reservation: None, unpolled, is_stream }
    }
}

impl<H: RequestHandler + Unpin> Future for CallFuture<H> {
    type Output = Result<Response<SentBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.unpolled = None;
        let this = &mut *self;
        if let State::Receiving(receiver, handler) = &mut this.state {
            let responding = match ready!(receiver.poll(context)) {
                Ok((request, (permit, reservation))) => {
                    (this.permit, this.reservation) = (Some(permit), reservation);
                    if let Some(permit) = &mut this.permit {
                        permit.begin();
                    }
                    handler.handle(request)
                }
                Err(status) => Box::pin(std::future::ready(Ok(status.into_http()))),
            };
            this.state = State::Responding(responding);
        }
        let State::Responding(responding) = &mut this.state else { return Poll::Pending };
        let Ok(response) = ready!(responding.as_mut().poll(context));
        let permit = this.permit.take().filter(CallPermit::outlasts_answer);
        let (calls, reservation, is_stream) = (this.calls.clone(), this.reservation.take(), this.is_stream);
        Poll::Ready(Ok(response.map(|body| SentBody {
            body,
            rest: Bytes::new(),
            calls,
            _permit: permit,
            reservation,
            is_stream,
        })))
    }
}

/// The body of an answer. It holds the call's permit and reservation until hyper has taken all of it.
pub(super) struct SentBody {
    body: AnswerBody,
    /// The rest of a frame that is larger than a chunk.
    rest: Bytes,
    calls: Rc<ConnectionCallLimits>,
    _permit: Option<CallPermit>,
    reservation: Option<ByteReservation>,
    is_stream: bool,
}

impl SentBody {
    /// The next chunk of `rest`. A copy: a part of it would keep all of it for as long as the peer leaves that part unread.
    fn chunk(&mut self) -> Frame<Bytes> {
        let chunk = Bytes::copy_from_slice(&self.rest[..self.rest.len().min(CHUNK_BYTES)]);
        self.rest.advance(chunk.len());
        if self.rest.is_empty() {
            self.rest = Bytes::new();
        }
        Frame::data(chunk)
    }

    fn cut(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_data() {
            Ok(data) if data.len() > CHUNK_BYTES => {
                // Replaces the reservation of the request, whose message is no longer held.
                self.reservation = None;
                self.reservation = Some(self.calls.reserve_unchecked(data.len()));
                self.rest = data;
                self.chunk()
            }
            Ok(data) => Frame::data(data),
            Err(trailers) => trailers,
        }
    }
}

impl HttpBody for SentBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = if self.rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            if polled.is_pending() {
                self.calls.note(Sending::Idle);
            }
            let frame = ready!(polled);
            frame.map(|frame| frame.map(|frame| self.cut(frame)))
        } else {
            Some(Ok(self.chunk()))
        };
        self.calls.note(if self.is_stream { Sending::Message } else { Sending::Part });
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Runs the calls of a connection on the thread of the worker. Each call is a task, so a handler that panics ends only its
/// call. Ends calls whose answer the peer does not read.
#[derive(Clone)]
pub(super) struct CallExecutor(pub(super) Rc<ConnectionCallLimits>);

impl<F> Executor<F> for CallExecutor
where
    F: Future<Output: 'static> + 'static,
{
    fn execute(&self, call: F) {
        tokio::task::spawn_local(run_with_send_timeout(call, self.0.clone()));
    }
}

/// Runs a call to its end. If the peer does not read what was passed to hyper within [`SENT_WITHIN`], the call is dropped,
/// which resets the stream.
async fn run_with_send_timeout<F: Future>(call: F, calls: Rc<ConnectionCallLimits>) {
    let mut call = pin!(call);
    // Created when there is something to wait for, so that most calls need none.
    let mut timeout: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|context| {
        // No other call is polled during this poll, so what is recorded belongs to this call.
        calls.note(Sending::Untouched);
        if call.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let waits = timeout.is_some();
        match calls.take_noted() {
            Sending::Idle => timeout = None,
            Sending::Part if waits => {}
            Sending::Part | Sending::Message => timeout = Some(Box::pin(tokio::time::sleep(SENT_WITHIN))),
            Sending::Untouched => {}
        }
        timeout.as_mut().map_or(Poll::Pending, |timeout| timeout.as_mut().poll(context))
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::task::noop_waker_ref;

    use super::*;
    use crate::grpc::calls::CallLimits;

    /// Bytes whose owner is counted while they are alive.
    struct Counted(Vec<u8>, #[expect(dead_code, reason = "counted")] Arc<()>);

    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    #[test]
    fn a_chunk_that_the_peer_leaves_unread_keeps_no_more_than_itself() {
        let (alive, calls) = (Arc::new(()), CallLimits::new(Arc::default()).connection(Arc::default()));
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(3 * CHUNK_BYTES + 1).collect();
        let body = AnswerBody::Message(Bytes::from_owner(Counted(bytes.clone(), alive.clone())));
        let mut sent = SentBody { body, rest: Bytes::new(), calls, _permit: None, reservation: None, is_stream: false };
        let mut chunks = Vec::new();
        while let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut sent).poll_frame(&mut Context::from_waker(noop_waker_ref()))
            && let Ok(chunk) = frame.into_data()
        {
            chunks.push(chunk);
        }
        assert_eq!(chunks.concat(), bytes);
        assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES));
        assert_eq!(Arc::strong_count(&alive), 1, "the chunks are alive, and the answer is not");
    }
}
