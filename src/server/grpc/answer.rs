//! Runs a call from its headers to the end of its answer: it is received, handled, and sent, and holds its permit
//! meanwhile.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use h2::server::SendResponse;
use hyper::{Request, Response};

use super::calls::{CallPermit, ConnectionCallLimits, UnpolledCall};
use super::receive::{InboundBody, RequestBody, RequestReceiver};
use super::unary::AnswerBody;
use crate::transport::account::{Account, Charge};
use crate::transport::connection::CHUNK_BYTES;
use crate::transport::send::{Chunk, SendHold, Sending};

/// Pieces of answers up to this size are not charged: the permit of the call covers them, until the socket has taken them.
const SMALL_ANSWER_BYTES: usize = 512;

/// The future of a service's response.
pub(super) type AnswerFuture =
    Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, Infallible>> + Send>>;

/// Handles complete requests.
pub(super) trait RequestHandler {
    /// Returns the future of the response.
    fn handle(&self, request: Request<RequestBody>) -> AnswerFuture;
}

/// A call until its response headers are ready.
pub(super) struct CallFuture<H> {
    state: CallState<H>,
    calls: Rc<ConnectionCallLimits>,
    /// `None` for a refused call, until the request is complete, and once the response is ready.
    permit: Option<CallPermit>,
    /// What is reserved for the request and its answer, until the answer is made.
    reservation: Option<Charge>,
    unpolled: Option<UnpolledCall>,
    is_stream: bool,
    /// The requests of a stream.
    inbound: Option<InboundBody>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly every call is received first, so a box would be an allocation for each"
)]
enum CallState<H> {
    /// The request is incomplete. The handler gets it once it is complete.
    Receiving(RequestReceiver, H),
    Responding(AnswerFuture),
}

impl<H> CallFuture<H> {
    /// A call that `handler` handles once the request is complete.
    pub(super) fn after_request(
        receiver: RequestReceiver,
        handler: H,
        calls: Rc<ConnectionCallLimits>,
    ) -> Self {
        Self::new(CallState::Receiving(receiver, handler), calls, None)
    }

    /// The same call, if its answer is a stream, which lasts as long as the client likes.
    pub(super) fn answered_by_stream(self) -> Self {
        Self {
            is_stream: true,
            ..self
        }
    }

    /// A call that reads its request as a stream of messages.
    pub(super) fn stream(
        responding: AnswerFuture,
        inbound: InboundBody,
        calls: Rc<ConnectionCallLimits>,
        mut permit: CallPermit,
    ) -> Self {
        permit.begin();
        Self {
            is_stream: true,
            inbound: Some(inbound),
            ..Self::new(CallState::Responding(responding), calls, Some(permit))
        }
    }

    /// A call that gets `response` without its request being read.
    pub(super) fn immediate(
        response: Response<AnswerBody>,
        calls: Rc<ConnectionCallLimits>,
    ) -> Self {
        Self::new(
            CallState::Responding(Box::pin(std::future::ready(Ok(response)))),
            calls,
            None,
        )
    }

    fn new(
        state: CallState<H>,
        calls: Rc<ConnectionCallLimits>,
        permit: Option<CallPermit>,
    ) -> Self {
        let unpolled = Some(calls.unpolled());
        Self {
            state,
            calls,
            permit,
            reservation: None,
            unpolled,
            is_stream: false,
            inbound: None,
        }
    }
}

impl<H: RequestHandler> CallFuture<H> {
    fn poll_response(&mut self, context: &mut Context<'_>) -> Poll<Response<AnswerBody>> {
        self.unpolled = None;
        if let CallState::Receiving(receiver, handler) = &mut self.state {
            let responding = match ready!(receiver.poll(context)) {
                Ok((request, (permit, reservation))) => {
                    (self.permit, self.reservation) = (Some(permit), reservation);
                    if let Some(permit) = &mut self.permit {
                        permit.begin();
                    }
                    handler.handle(request)
                }
                Err(status) => Box::pin(std::future::ready(Ok(status.into_http()))),
            };
            self.state = CallState::Responding(responding);
        }
        let CallState::Responding(responding) = &mut self.state else {
            return Poll::Pending;
        };
        responding
            .as_mut()
            .poll(context)
            .map(|Ok(response)| response)
    }

    /// What is held for the answer from now on.
    fn hold(&mut self, answer: &AnswerBody) -> AnswerHold {
        AnswerHold {
            account: self.calls.account().clone(),
            permit: self.permit.take(),
            reservation: self.reservation.take(),
            is_stream: self.is_stream,
            is_shared: matches!(answer, AnswerBody::Shared(_)),
        }
    }
}

/// What is held for an answer: the call's permit, until its last byte is gone, and a charge for each large piece.
struct AnswerHold {
    account: Arc<Account>,
    permit: Option<CallPermit>,
    /// Of the request and what it became, until the first piece is made.
    reservation: Option<Charge>,
    is_stream: bool,
    /// Whether other answers have the same bytes. Then only what h2 is given is kept for this one.
    is_shared: bool,
}

/// What goes with the last byte of a piece of an answer.
pub(super) struct HeldByPiece {
    _charge: Option<Charge>,
    _permit: Option<CallPermit>,
}

impl SendHold for AnswerHold {
    type Held = HeldByPiece;

    fn account(&self) -> &Account {
        &self.account
    }

    fn hold(&mut self, bytes: usize, is_last: bool) -> Option<HeldByPiece> {
        let reservation = self.reservation.take();
        let bytes = if self.is_shared {
            bytes.min(CHUNK_BYTES)
        } else {
            bytes
        };
        let charge = (bytes > SMALL_ANSWER_BYTES).then(|| match reservation {
            Some(mut charge) => {
                charge.resize(bytes);
                charge
            }
            None => self.account.charge(bytes),
        });
        // A stream needs its permit for what it reads, too.
        let permit = if is_last && !self.is_stream {
            self.permit.take()
        } else {
            None
        };
        (charge.is_some() || permit.is_some()).then_some(HeldByPiece {
            _charge: charge,
            _permit: permit,
        })
    }
}

/// Begins to run a call on the thread of the worker. Each call is a task, so a handler that panics ends only its call.
pub(super) fn spawn<H: RequestHandler + 'static>(
    call: CallFuture<H>,
    respond: SendResponse<Chunk<HeldByPiece>>,
) {
    tokio::task::spawn_local(run(call, respond));
}

/// Runs a call to its end. Dropping the future resets its stream, unless all was sent.
async fn run<H: RequestHandler>(
    mut call: CallFuture<H>,
    mut respond: SendResponse<Chunk<HeldByPiece>>,
) {
    let inbound = call.inbound.take();
    let account = call.calls.account().clone();
    let read = |context: &mut Context<'_>| inbound.iter().for_each(|inbound| inbound.read(context));
    let response = poll_fn(|context| {
        let _measured = account.turn().measure();
        if let Poll::Ready(response) = call.poll_response(context) {
            return Poll::Ready(Some(response));
        }
        read(context);
        // Ready when the peer has reset the stream, or the connection has ended.
        respond.poll_reset(context).map(|_| None)
    });
    let Some(response) = response.await else {
        return;
    };
    let hold = call.hold(response.body());
    let is_stream = call.is_stream;
    drop(call);
    let Some(mut sending) = Sending::begin(&mut respond, response, hold, is_stream) else {
        return;
    };
    poll_fn(|context| {
        let _measured = account.turn().measure();
        let sent = sending.poll(context);
        if sent.is_pending() {
            read(context);
        }
        sent
    })
    .await;
}
