//! Receives the whole request of a call before the call is handled, within a limit of bytes and a limit of time.
//!
//! Bytes of incomplete requests are held only here, so they take no more memory than was reserved for them.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Request;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tokio::time::Sleep;
use tonic::Status;

use super::calls::{ByteReservation, CallGrants, CallPermit, ConnectionCallLimits, Unfinished};
use super::convert;

/// Longest time from the headers of a call to the end of its request. A client sends both at once. The largest batch takes
/// this long at 100 KiB a second.
const RECEIVED_WITHIN: Duration = Duration::from_secs(10);
/// Bytes before each gRPC message: the compression flag and the length. Source: gRPC over HTTP/2,
/// "Length-Prefixed-Message".
pub(super) const PREFIX_BYTES: usize = 5;
/// Assumed growth of a compressed message. Keys and plan names seldom compress better. A message that does is bounded by
/// the largest message and by the permits of large calls.
const DECOMPRESSED_GROWTH: usize = 16;
/// Messages up to this size need no reservation: the permit of the call covers them.
pub(super) const SMALL_BYTES_MAX: usize = 2 << 10;

/// A request that is being received.
pub(super) struct RequestReceiver {
    /// `None` once it was received completely.
    request: Option<Request<Incoming>>,
    calls: Rc<ConnectionCallLimits>,
    message_bytes_max: usize,
    /// The first piece, which mostly is the whole message. When a second piece comes, both are copied to `rest`.
    first: Bytes,
    /// Empty, or all pieces so far, the first included.
    rest: Vec<u8>,
    granted: ReceiveGrants,
    /// Whether bytes were reserved for a message that is not small.
    is_reserved: bool,
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
    /// Receives a request with one message of at most `message_bytes_max` bytes.
    pub(super) fn new(
        request: Request<Incoming>,
        message_bytes_max: usize,
        calls: Rc<ConnectionCallLimits>,
        permit: CallPermit,
    ) -> Self {
        let (first, rest, granted) = (Bytes::new(), Vec::new(), ReceiveGrants::Held(Some((permit, None))));
        Self { request: Some(request), calls, message_bytes_max, first, rest, granted, is_reserved: false, timeout: None }
    }

    /// Adds a reservation that was made before.
    pub(super) fn with_reservation(mut self, reservation: ByteReservation) -> Self {
        self.grant(reservation);
        self.is_reserved = true;
        self
    }

    /// Keeps a reservation together with the call's permit.
    fn grant(&mut self, reservation: ByteReservation) {
        match &mut self.granted {
            ReceiveGrants::Held(Some((_, reserved))) => *reserved = Some(reservation),
            ReceiveGrants::Held(None) => {}
            ReceiveGrants::Waiting(unfinished) => unfinished.add(reservation),
        }
    }

    /// Returns the request when it is complete. Errors: it is too large, there are no bytes left for it, the call was
    /// evicted, or it took too long.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Received, Status>> {
        while let Some(request) = &mut self.request {
            let body = request.body_mut();
            let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(context) else { break };
            let ended = frame.is_none() || body.is_end_stream();
            match frame {
                Some(Ok(frame)) => self.add(frame)?,
                // The peer reset the stream, so the answer is not sent.
                Some(Err(_)) => return Poll::Ready(Err(Status::cancelled("the client cancelled the call"))),
                None => {}
            }
            if ended && let Some(request) = self.request.take() {
                return Poll::Ready(self.received(request));
            }
        }
        let waiting = match &mut self.granted {
            ReceiveGrants::Waiting(unfinished) => unfinished,
            ReceiveGrants::Held(granted) => {
                let Some((permit, reservation)) = granted.take() else { return Poll::Ready(Err(evicted())) };
                let unfinished = self.calls.wait(permit, reservation);
                self.granted = ReceiveGrants::Waiting(unfinished);
                return self.poll(context);
            }
        };
        if waiting.is_evicted(context.waker()) {
            return Poll::Ready(Err(evicted()));
        }
        let timeout = self.timeout.get_or_insert_with(|| Box::pin(tokio::time::sleep(RECEIVED_WITHIN)));
        ready!(timeout.as_mut().poll(context));
        Poll::Ready(Err(Status::deadline_exceeded(format!("the request did not arrive within {RECEIVED_WITHIN:?}"))))
    }

    fn add(&mut self, frame: Frame<Bytes>) -> Result<(), Status> {
        // gRPC requests have no trailers; any are ignored.
        let Ok(data) = frame.into_data() else { return Ok(()) };
        gather(&mut self.first, &mut self.rest, data, self.message_bytes_max)?;
        let bytes = bytes_needed(self.gathered(), self.message_bytes_max);
        if !self.is_reserved && bytes > SMALL_BYTES_MAX {
            let reservation = self.calls.reserve(bytes).ok_or_else(no_bytes_left)?;
            self.is_reserved = true;
            self.grant(reservation);
        }
        Ok(())
    }

    fn gathered(&self) -> &[u8] {
        if self.rest.is_empty() { &self.first } else { &self.rest }
    }

    fn received(&mut self, request: Request<Incoming>) -> Result<Received, Status> {
        let granted = match &mut self.granted {
            ReceiveGrants::Held(granted) => granted.take(),
            ReceiveGrants::Waiting(unfinished) => unfinished.release(),
        };
        let first = std::mem::take(&mut self.first);
        let whole = if self.rest.is_empty() { first } else { Bytes::from(std::mem::take(&mut self.rest)) };
        let granted = granted.ok_or_else(evicted)?;
        Ok((request.map(|_| RequestBody::Whole(Some(whole))), granted))
    }
}

/// Appends `data` to what was received before. Errors: the message is too large, or there is more than one.
fn gather(first: &mut Bytes, rest: &mut Vec<u8>, data: Bytes, message_bytes_max: usize) -> Result<(), Status> {
    if first.is_empty() {
        *first = data;
    } else {
        if rest.is_empty() {
            rest.extend_from_slice(first);
        }
        rest.extend_from_slice(&data);
    }
    let gathered = if rest.is_empty() { first.as_ref() } else { rest };
    match announced_bytes(gathered) {
        Some(bytes) if bytes > message_bytes_max => Err(too_large(bytes, message_bytes_max)),
        Some(bytes) if gathered.len() > PREFIX_BYTES + bytes => {
            Err(Status::invalid_argument("a call of this method takes one message only"))
        }
        _ => Ok(()),
    }
}

/// Length of a message, in bytes, as its prefix says; `None` until the prefix is complete.
pub(super) fn announced_bytes(prefix: &[u8]) -> Option<usize> {
    let length = prefix.get(1..PREFIX_BYTES)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(length)).ok()
}

/// Bytes that the message takes once it is decompressed, judged by its prefix.
fn bytes_needed(prefix: &[u8], message_bytes_max: usize) -> usize {
    let is_compressed = prefix.first().is_some_and(|flag| *flag != 0);
    let growth = if is_compressed { DECOMPRESSED_GROWTH } else { 1 };
    announced_bytes(prefix).map_or(0, |bytes| bytes.saturating_mul(growth).min(message_bytes_max))
}

fn too_large(bytes: usize, most: usize) -> Status {
    Status::out_of_range(format!("the message has {bytes} bytes; this method takes {most} at most"))
}

fn evicted() -> Status {
    convert::overloaded(
        "this server holds as many calls or bytes as it may, and this call waited longest for the rest of its request; try again",
    )
}

/// The status of a call for whose large message no bytes are left.
pub(super) fn no_bytes_left() -> Status {
    convert::overloaded("this server holds as many bytes of large messages as it may; try again in a moment")
}

/// The body of a request, as a service reads it.
pub(super) enum RequestBody {
    /// The complete message; `None` once it was read.
    Whole(Option<Bytes>),
    /// Messages that arrive one after another.
    Stream(Incoming),
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
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Stream(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Stream(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(pieces: &[&[u8]], most: usize) -> Result<Vec<u8>, tonic::Code> {
        let (mut first, mut rest) = (Bytes::new(), Vec::new());
        for piece in pieces {
            gather(&mut first, &mut rest, Bytes::copy_from_slice(piece), most).map_err(|status| status.code())?;
        }
        Ok(if rest.is_empty() { first.to_vec() } else { rest })
    }

    #[test]
    fn a_message_is_gathered_however_it_is_split_and_only_up_to_its_announced_length() {
        let message = [0, 0, 0, 0, 3, 1, 2, 3];
        for cut in 0..message.len() {
            for other in cut..message.len() {
                let pieces = [&message[..cut], &message[cut..other], &message[other..]];
                assert_eq!(gathered(&pieces, 3).unwrap(), message);
                assert_eq!(gathered(&pieces, 2), Err(tonic::Code::OutOfRange));
            }
        }
        assert_eq!(gathered(&[&message, &[0]], 3), Err(tonic::Code::InvalidArgument));
        // The prefix alone shows that a message is too large.
        assert_eq!(gathered(&[&[0, 0, 0x10], &[0, 1]], 1 << 20), Err(tonic::Code::OutOfRange));
    }

    #[test]
    fn a_compressed_message_reserves_bytes_for_what_it_may_become() {
        assert_eq!(bytes_needed(&[0, 0, 0, 4, 0], 1 << 20), 1024);
        assert_eq!(bytes_needed(&[1, 0, 0, 4, 0], 1 << 20), 16 << 10);
        assert_eq!(bytes_needed(&[1, 0, 4, 0, 0], 1 << 20), 1 << 20);
        assert_eq!(bytes_needed(&[0, 0, 0, 4], 1 << 20), 0);
    }
}
