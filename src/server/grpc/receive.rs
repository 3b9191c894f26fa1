//! Receives the whole request of a call before the call is handled, within a limit of bytes and a limit of time.
//!
//! Bytes of incomplete requests are held only here, where they are counted. A request that finds no room waits, and so does its
//! peer: no more of its window is given back.

mod inbound;

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use h2::RecvStream;
use hyper::Request;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::time::Sleep;
use tonic::Status;

use super::calls::{CallGrants, CallPermit, ConnectionCallLimits, Unfinished};
use super::convert;
use crate::transport::account::Charge;
pub(super) use inbound::InboundBody;

/// Longest time from the headers of a call to the end of its request, the wait for room included. A client sends both at once. The
/// largest batch takes this long at 100 KiB a second.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes before each gRPC message: the compression flag and the length. Source: gRPC over HTTP/2,
/// "Length-Prefixed-Message".
pub(super) const PREFIX_BYTES: usize = 5;
/// Assumed growth of a compressed message. Keys and plan names seldom compress better. A message that does is bounded by
/// the largest message and by the permits of large calls.
const DECOMPRESSED_GROWTH: usize = 16;
/// Messages up to this size need no reservation: the permit of the call covers them.
pub(super) const SMALL_BYTES_MAX: usize = 2 << 10;

/// What deciding and answering a request of a batch takes, in bytes, beside its own.
const ITEM_BYTES: usize = 800;
/// The fewest bytes of a request of a batch that can be decided: the shortest key and plan with their tags and lengths.
const ITEM_MESSAGE_BYTES: usize = 8;

/// How large a message may be, and what it takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageSize {
    /// Maximum number of bytes of the message.
    pub bytes_max: usize,
    /// Maximum number of parts of it that each are decided and answered.
    pub items_max: usize,
}

impl MessageSize {
    /// Bytes that a message takes with what it becomes; 0 for a small one, which the permit of its call covers.
    fn needed(self, message_bytes: usize) -> usize {
        let items = (message_bytes / ITEM_MESSAGE_BYTES).min(self.items_max);
        let needed = message_bytes + items * ITEM_BYTES;
        if needed > SMALL_BYTES_MAX { needed } else { 0 }
    }
}

/// A request that is being received.
pub(super) struct RequestReceiver {
    /// `None` once it was received completely.
    request: Option<Request<RecvStream>>,
    calls: Rc<ConnectionCallLimits>,
    size: MessageSize,
    /// The first piece, which mostly is the whole message. When a second piece comes, both are copied to `rest`.
    first: Bytes,
    /// Empty, or all pieces so far, the first included.
    rest: Vec<u8>,
    granted: ReceiveGrants,
    /// Bytes to reserve before more is read; `None` until the message's prefix is there.
    needed: Option<usize>,
    is_reserved: bool,
    /// What has arrived while nothing is reserved.
    unreserved: Option<Charge>,
    is_complete: bool,
    /// Bytes that were read and whose window was not given back.
    held_back: usize,
    /// Created when the call has to wait, so that most calls need none.
    timeout: Option<Pin<Box<Sleep>>>,
}

/// The permit and the reserved bytes of a request that is being received.
enum ReceiveGrants {
    /// The request has not waited yet. It has reserved bytes if its message is not small.
    Held(Option<CallGrants>),
    /// The request waits for more of its bytes. Another call may evict it and take its permit.
    Waiting(Rc<Unfinished>),
}

/// A complete request, with the permit and the reserved bytes of its call.
pub(super) type Received = (Request<RequestBody>, CallGrants);

impl RequestReceiver {
    /// Receives a request with one message of this size.
    pub(super) fn new(
        request: Request<RecvStream>,
        size: MessageSize,
        calls: Rc<ConnectionCallLimits>,
        permit: CallPermit,
    ) -> Self {
        Self {
            request: Some(request),
            calls,
            size,
            first: Bytes::new(),
            rest: Vec::new(),
            granted: ReceiveGrants::Held(Some((permit, None))),
            needed: None,
            is_reserved: false,
            unreserved: None,
            is_complete: false,
            held_back: 0,
            timeout: None,
        }
    }

    /// Keeps a reservation together with the call's permit.
    fn grant(&mut self, reservation: Charge) {
        match &mut self.granted {
            ReceiveGrants::Held(Some((_, reserved))) => *reserved = Some(reservation),
            ReceiveGrants::Held(None) => {}
            ReceiveGrants::Waiting(unfinished) => unfinished.add(reservation),
        }
    }

    /// Returns the request when it is complete and there is room for it. Errors: it is too large, the call was evicted, or it took
    /// too long.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Received, Status>> {
        self.read(context)?;
        if self.poll_room(context).is_ready()
            && self.is_complete
            && let Some(request) = self.request.take()
        {
            return Poll::Ready(self.received(request));
        }
        let waiting = match &mut self.granted {
            ReceiveGrants::Waiting(unfinished) => unfinished,
            ReceiveGrants::Held(granted) => {
                let Some((permit, reservation)) = granted.take() else {
                    return Poll::Ready(Err(evicted()));
                };
                let unfinished = self.calls.wait(permit, reservation);
                self.granted = ReceiveGrants::Waiting(unfinished);
                return self.poll(context);
            }
        };
        if waiting.is_evicted(context.waker()) {
            return Poll::Ready(Err(evicted()));
        }
        let timeout = self
            .timeout
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(RECEIVE_TIMEOUT)));
        ready!(timeout.as_mut().poll(context));
        Poll::Ready(Err(if self.is_complete {
            no_bytes_left()
        } else {
            too_slow()
        }))
    }

    /// Reads all that has arrived.
    fn read(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        while !self.is_complete
            && let Some(request) = &mut self.request
        {
            match request.body_mut().poll_data(context) {
                Poll::Ready(Some(Ok(data))) => {
                    self.is_complete = request.body().is_end_stream();
                    self.add(data)?;
                }
                // The peer reset the stream, so the answer is not sent.
                Poll::Ready(Some(Err(_))) => {
                    return Err(Status::cancelled("the client cancelled the call"));
                }
                // gRPC requests have no trailers; any are ignored.
                Poll::Ready(None) => self.is_complete = true,
                Poll::Pending => return Ok(()),
            }
        }
        Ok(())
    }

    fn add(&mut self, data: Bytes) -> Result<(), Status> {
        self.held_back += data.len();
        gather(&mut self.first, &mut self.rest, data, self.size.bytes_max)?;
        if self.needed.is_none()
            && let Some(bytes) = bytes_needed(self.gathered(), self.size.bytes_max)
        {
            self.needed = Some(self.size.needed(bytes));
        }
        self.give_back_window();
        Ok(())
    }

    /// Ready when what the message needs is reserved, or when it needs nothing.
    fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let needed = self.needed.unwrap_or_default();
        if self.is_reserved || needed == 0 {
            return Poll::Ready(());
        }
        let Poll::Ready(reservation) = self.calls.poll_reserve(needed, context) else {
            let arrived = self.gathered().len();
            self.unreserved
                .get_or_insert_with(|| self.calls.account().charge(0))
                .resize(arrived);
            return Poll::Pending;
        };
        self.is_reserved = true;
        self.unreserved = None;
        self.grant(reservation);
        self.give_back_window();
        Poll::Ready(())
    }

    /// Lets the peer send more, unless there is no room for it. What comes without room is at most one window.
    fn give_back_window(&mut self) {
        let is_small = self.needed.is_none_or(|needed| needed == 0);
        if (self.is_reserved || is_small)
            && let Some(request) = &mut self.request
        {
            // Fails only when the stream is gone.
            let _ = request
                .body_mut()
                .flow_control()
                .release_capacity(std::mem::take(&mut self.held_back));
        }
    }

    fn gathered(&self) -> &[u8] {
        if self.rest.is_empty() {
            &self.first
        } else {
            &self.rest
        }
    }

    fn received(&mut self, request: Request<RecvStream>) -> Result<Received, Status> {
        let granted = match &mut self.granted {
            ReceiveGrants::Held(granted) => granted.take(),
            ReceiveGrants::Waiting(unfinished) => unfinished.release(),
        };
        let first = std::mem::take(&mut self.first);
        let whole = if self.rest.is_empty() {
            first
        } else {
            Bytes::from(std::mem::take(&mut self.rest))
        };
        let granted = granted.ok_or_else(evicted)?;
        Ok((request.map(|_| RequestBody::Whole(Some(whole))), granted))
    }
}

/// Appends `data` to what was received before. Errors: the message is too large, or there is more than one.
fn gather(
    first: &mut Bytes,
    rest: &mut Vec<u8>,
    data: Bytes,
    message_bytes_max: usize,
) -> Result<(), Status> {
    if first.is_empty() {
        *first = data;
    } else {
        if rest.is_empty() {
            rest.extend_from_slice(first);
        }
        rest.extend_from_slice(&data);
    }
    let gathered = if rest.is_empty() {
        first.as_ref()
    } else {
        rest
    };
    match announced_bytes(gathered) {
        Some(bytes) if bytes > message_bytes_max => Err(too_large(bytes, message_bytes_max)),
        Some(bytes) if gathered.len() > PREFIX_BYTES + bytes => Err(Status::invalid_argument(
            "a call of this method takes one message only",
        )),
        _ => Ok(()),
    }
}

/// Length of a message, in bytes, as its prefix says; `None` until the prefix is complete.
pub(super) fn announced_bytes(prefix: &[u8]) -> Option<usize> {
    let length = prefix.get(1..PREFIX_BYTES)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(length)).ok()
}

/// Bytes that the message takes once it is decompressed, judged by its prefix; `None` until the prefix is complete.
fn bytes_needed(prefix: &[u8], message_bytes_max: usize) -> Option<usize> {
    let is_compressed = prefix.first().is_some_and(|flag| *flag != 0);
    let growth = if is_compressed {
        DECOMPRESSED_GROWTH
    } else {
        1
    };
    announced_bytes(prefix).map(|bytes| bytes.saturating_mul(growth).min(message_bytes_max))
}

fn too_slow() -> Status {
    Status::deadline_exceeded(format!(
        "the request did not arrive within {RECEIVE_TIMEOUT:?}"
    ))
}

fn too_large(bytes: usize, most: usize) -> Status {
    Status::out_of_range(format!(
        "the message has {bytes} bytes; this method takes {most} at most"
    ))
}

fn evicted() -> Status {
    convert::overloaded(
        "this server holds as many calls or bytes as it may, and this call waited longest for the rest of its request; try again",
    )
}

/// The status of a call for whose large message no bytes are left.
pub(super) fn no_bytes_left() -> Status {
    convert::overloaded(
        "this server holds as many bytes of large messages as it may; try again in a moment",
    )
}

/// The body of a request, as a service reads it.
pub(super) enum RequestBody {
    /// The complete message; `None` once it was read.
    Whole(Option<Bytes>),
    /// Messages that arrive one after another.
    Stream(InboundBody),
}

impl RequestBody {
    /// The complete message with its prefix; empty if there is none.
    pub(super) fn into_bytes(self) -> Bytes {
        match self {
            Self::Whole(bytes) => bytes.unwrap_or_default(),
            Self::Stream(_) => Bytes::new(),
        }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(body) => body
                .poll_data(context)
                .map(|data| data.map(|data| data.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests;
