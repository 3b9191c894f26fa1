//! A call from its headers to the end of its answer: it is received, then answered, then sent, and holds its seat meanwhile.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::rt::Executor;
use hyper::{Request, Response};
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

use super::calls::{CallSeat, ConnectionCalls, Fresh, Room, Sending};
use super::receive::{Receiving, RequestBody};

/// Longest that a peer may take to read an answer, or the next message of a stream: as long as it may take for a sign of
/// life. Then the call ends, as its answer takes memory here.
const SENT_WITHIN: Duration = Duration::from_secs(10);
/// What is given away at once of an answer, so that most of one that is not read stays where it is counted.
pub(super) const CHUNK_BYTES: usize = 16 << 10;

/// The answer of a service.
pub(super) type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// What answers requests that were received.
pub(super) trait Handle {
    /// Begins to answer.
    fn handle(&self, request: Request<RequestBody>) -> Answering;
}

/// An answer in the making.
pub(super) struct Answer<H> {
    state: State<H>,
    calls: Rc<ConnectionCalls>,
    /// `None` for one that was refused, until the request is there, and once the answer is.
    seat: Option<CallSeat>,
    room: Option<Room>,
    fresh: Option<Fresh>,
    is_stream: bool,
}

#[expect(clippy::large_enum_variant, reason = "nearly every call is received first, so a box would be an allocation for each")]
enum State<H> {
    /// And what is to be done with the request.
    Receiving(Receiving, H),
    Answering(Answering),
}

impl<H> Answer<H> {
    /// Answers by `handler` once the request is there.
    pub(super) fn received(receiving: Receiving, handler: H, calls: Rc<ConnectionCalls>) -> Self {
        Self::new(State::Receiving(receiving, handler), calls, None, false)
    }

    /// Answers messages as they come.
    pub(super) fn stream(answering: Answering, calls: Rc<ConnectionCalls>, mut seat: CallSeat) -> Self {
        seat.begin();
        Self::new(State::Answering(answering), calls, Some(seat), true)
    }

    /// Answers without a look at the request.
    pub(super) fn at_once(response: Response<Body>, calls: Rc<ConnectionCalls>) -> Self {
        Self::new(State::Answering(Box::pin(std::future::ready(Ok(response)))), calls, None, false)
    }

    fn new(state: State<H>, calls: Rc<ConnectionCalls>, seat: Option<CallSeat>, is_stream: bool) -> Self {
        let fresh = Some(calls.fresh());
        Self { state, calls, seat, room: None, fresh, is_stream }
    }
}

impl<H: Handle + Unpin> Future for Answer<H> {
    type Output = Result<Response<SentBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.fresh = None;
        let me = &mut *self;
        if let State::Receiving(receiving, handler) = &mut me.state {
            let answering = match ready!(receiving.poll(context)) {
                Ok((request, (seat, room))) => {
                    (me.seat, me.room) = (Some(seat), room);
                    if let Some(seat) = &mut me.seat {
                        seat.begin();
                    }
                    handler.handle(request)
                }
                Err(status) => Box::pin(std::future::ready(Ok(status.into_http()))),
            };
            me.state = State::Answering(answering);
        }
        let State::Answering(answering) = &mut me.state else { return Poll::Pending };
        let Ok(response) = ready!(answering.as_mut().poll(context));
        let seat = me.seat.take().filter(CallSeat::outlasts_answer);
        let (calls, room, is_stream) = (me.calls.clone(), me.room.take(), me.is_stream);
        Poll::Ready(Ok(response.map(|body| SentBody { body, rest: Bytes::new(), calls, _seat: seat, room, is_stream })))
    }
}

/// The body of an answer, whose call has its seat and its room until all of it has been given away to be sent.
pub(super) struct SentBody {
    body: Body,
    /// Of what is larger than a chunk.
    rest: Bytes,
    calls: Rc<ConnectionCalls>,
    _seat: Option<CallSeat>,
    room: Option<Room>,
    is_stream: bool,
}

impl SentBody {
    /// The next chunk of what is there.
    fn chunk(&mut self) -> Frame<Bytes> {
        Frame::data(self.rest.split_to(self.rest.len().min(CHUNK_BYTES)))
    }

    fn cut(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        match frame.into_data() {
            Ok(data) if data.len() > CHUNK_BYTES => {
                // In place of what the request took, which is no more.
                self.room = None;
                self.room = Some(self.calls.room_anyhow(data.len()));
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

/// Runs the calls of a connection on its own thread, each as a task of its own: a handler that panics ends its call only. And
/// ends those whose answer is not read.
#[derive(Clone)]
pub(super) struct Tasks(pub(super) Rc<ConnectionCalls>);

impl<F> Executor<F> for Tasks
where
    F: Future<Output: 'static> + 'static,
{
    fn execute(&self, call: F) {
        tokio::task::spawn_local(sent_in_time(call, self.0.clone()));
    }
}

/// Runs a call to its end, or until an answer that it gave away was not read for too long: then the stream is reset.
async fn sent_in_time<F: Future>(call: F, calls: Rc<ConnectionCalls>) {
    let mut call = pin!(call);
    // Made when there is something to wait for, so that most calls need none.
    let mut late: Option<Pin<Box<Sleep>>> = None;
    poll_fn(|context| {
        // Nothing else has a turn meanwhile, so what is noted is this call's.
        calls.note(Sending::Untouched);
        if call.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let waits = late.is_some();
        match calls.noted() {
            Sending::Idle => late = None,
            Sending::Part if waits => {}
            Sending::Part | Sending::Message => late = Some(Box::pin(tokio::time::sleep(SENT_WITHIN))),
            Sending::Untouched => {}
        }
        late.as_mut().map_or(Poll::Pending, |late| late.as_mut().poll(context))
    })
    .await;
}
