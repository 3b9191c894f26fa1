//! How the request of a call is received: whole, before anything is done with it, within a bound in bytes and one in time.
//!
//! What is received is held here and nowhere else, so what unfinished requests take is what was counted for them.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::Request;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tokio::time::Sleep;
use tonic::Status;

use super::calls::{CallSeat, ConnectionCalls, Granted, Room, Unfinished};
use super::convert;

/// Longest from the headers of a call to the end of its request. A client sends both at once; the largest batch takes this
/// long at 100 KiB a second.
const RECEIVED_WITHIN: Duration = Duration::from_secs(10);
/// Before each message of gRPC: whether it is compressed, and its length. Source: gRPC over HTTP/2, "Length-Prefixed-Message".
const PREFIX_BYTES: usize = 5;
/// What a compressed message is taken for: text of keys and plans seldom shrinks further. One that does is bounded as well,
/// by the largest message and by the seats of large calls.
const INFLATED_TIMES: usize = 16;
/// Up to so many bytes are paid for by the seat of their call.
pub(super) const SMALL_BYTES_MAX: usize = 2 << 10;

/// A request that is being received.
pub(super) struct Receiving {
    /// `None` once it was received.
    request: Option<Request<Incoming>>,
    calls: Rc<ConnectionCalls>,
    message_bytes_max: usize,
    /// What came first, which mostly is all of it, and what came after it.
    first: Bytes,
    rest: Vec<u8>,
    granted: Hold,
    /// Whether its message is not small, and paid for.
    has_room: bool,
    /// Made when there is something to wait for, so that most calls need none.
    late: Option<Pin<Box<Sleep>>>,
}

/// What was granted to a request.
enum Hold {
    /// It has not waited yet; the room is for one that is not small.
    Own(Option<Granted>),
    /// It waits, and may have to give way.
    Waiting(Rc<Unfinished>),
}

/// A request that was received, and what was granted to it.
pub(super) type Received = (Request<RequestBody>, Granted);

impl Receiving {
    /// Receives a request whose one message has no more than so many bytes.
    pub(super) fn new(request: Request<Incoming>, message_bytes_max: usize, calls: Rc<ConnectionCalls>, seat: CallSeat) -> Self {
        let (first, rest, granted) = (Bytes::new(), Vec::new(), Hold::Own(Some((seat, None))));
        Self { request: Some(request), calls, message_bytes_max, first, rest, granted, has_room: false, late: None }
    }

    /// Has this room already.
    pub(super) fn with_room(mut self, room: Room) -> Self {
        self.grant(room);
        self.has_room = true;
        self
    }

    fn grant(&mut self, room: Room) {
        match &mut self.granted {
            Hold::Own(Some((_, none))) => *none = Some(room),
            Hold::Own(None) => {}
            Hold::Waiting(unfinished) => unfinished.add(room),
        }
    }

    /// The request, once it is whole. Errors: it is too large, there is no room for it, or it did not come in time.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Received, Status>> {
        while let Some(request) = &mut self.request {
            let body = request.body_mut();
            let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(context) else { break };
            let ended = frame.is_none() || body.is_end_stream();
            match frame {
                Some(Ok(frame)) => self.take(frame)?,
                // The peer took it back: nobody hears the answer.
                Some(Err(_)) => return Poll::Ready(Err(Status::cancelled("the request was taken back"))),
                None => {}
            }
            if ended && let Some(request) = self.request.take() {
                return Poll::Ready(self.received(request));
            }
        }
        let waiting = match &mut self.granted {
            Hold::Waiting(unfinished) => unfinished,
            Hold::Own(granted) => {
                let Some((seat, room)) = granted.take() else { return Poll::Ready(Err(gave_way())) };
                let unfinished = self.calls.wait(seat, room);
                self.granted = Hold::Waiting(unfinished);
                return self.poll(context);
            }
        };
        if waiting.is_evicted(context.waker()) {
            return Poll::Ready(Err(gave_way()));
        }
        let late = self.late.get_or_insert_with(|| Box::pin(tokio::time::sleep(RECEIVED_WITHIN)));
        ready!(late.as_mut().poll(context));
        Poll::Ready(Err(Status::deadline_exceeded(format!("the request did not arrive within {RECEIVED_WITHIN:?}"))))
    }

    fn take(&mut self, frame: Frame<Bytes>) -> Result<(), Status> {
        // Trailers of a request mean nothing.
        let Ok(data) = frame.into_data() else { return Ok(()) };
        gather(&mut self.first, &mut self.rest, data, self.message_bytes_max)?;
        let bytes = room_needed(self.begin(), self.message_bytes_max);
        if !self.has_room && bytes > SMALL_BYTES_MAX {
            let room = self.calls.room(bytes).ok_or_else(no_room)?;
            self.has_room = true;
            self.grant(room);
        }
        Ok(())
    }

    fn begin(&self) -> &[u8] {
        if self.rest.is_empty() { &self.first } else { &self.rest }
    }

    fn received(&mut self, request: Request<Incoming>) -> Result<Received, Status> {
        let granted = match &mut self.granted {
            Hold::Own(granted) => granted.take(),
            Hold::Waiting(unfinished) => unfinished.release(),
        };
        let first = std::mem::take(&mut self.first);
        let whole = if self.rest.is_empty() { first } else { Bytes::from(std::mem::take(&mut self.rest)) };
        let granted = granted.ok_or_else(gave_way)?;
        Ok((request.map(|_| RequestBody::Whole(Some(whole))), granted))
    }
}

/// Adds what came to what came before it.
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
    match announced(gathered) {
        Some(bytes) if bytes > message_bytes_max => Err(too_large(bytes, message_bytes_max)),
        Some(bytes) if gathered.len() > PREFIX_BYTES + bytes => {
            Err(Status::invalid_argument("a call of this method has one message"))
        }
        _ => Ok(()),
    }
}

/// Bytes of the message that begins so, as its prefix says, once that is there.
fn announced(begin: &[u8]) -> Option<usize> {
    let length = begin.get(1..PREFIX_BYTES)?.try_into().ok()?;
    usize::try_from(u32::from_be_bytes(length)).ok()
}

/// What a message that begins so takes once it is read.
fn room_needed(begin: &[u8], message_bytes_max: usize) -> usize {
    let is_compressed = begin.first().is_some_and(|flag| *flag != 0);
    let growth = if is_compressed { INFLATED_TIMES } else { 1 };
    announced(begin).map_or(0, |bytes| bytes.saturating_mul(growth).min(message_bytes_max))
}

fn too_large(bytes: usize, most: usize) -> Status {
    Status::out_of_range(format!("the message has {bytes} bytes; this method takes {most} at most"))
}

fn gave_way() -> Status {
    convert::overloaded("this server holds as many calls as it may, and this one has waited longest for its request; ask again")
}

/// There is no room for a large message.
pub(super) fn no_room() -> Status {
    convert::overloaded("this server holds as many bytes of large messages as it may; ask again in a moment")
}

/// A request as a service reads it.
pub(super) enum RequestBody {
    /// All of it is there; `None` once it was read.
    Whole(Option<Bytes>),
    /// Its messages come one after another.
    Stream(Incoming),
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
    fn a_message_is_gathered_however_it_is_cut_and_no_more_than_it_announced() {
        let message = [0, 0, 0, 0, 3, 1, 2, 3];
        for cut in 0..message.len() {
            for other in cut..message.len() {
                let pieces = [&message[..cut], &message[cut..other], &message[other..]];
                assert_eq!(gathered(&pieces, 3).unwrap(), message);
                assert_eq!(gathered(&pieces, 2), Err(tonic::Code::OutOfRange));
            }
        }
        assert_eq!(gathered(&[&message, &[0]], 3), Err(tonic::Code::InvalidArgument));
        // What is too large is known by its first bytes.
        assert_eq!(gathered(&[&[0, 0, 0x10], &[0, 1]], 1 << 20), Err(tonic::Code::OutOfRange));
    }

    #[test]
    fn a_compressed_message_takes_room_for_what_it_may_become() {
        assert_eq!(room_needed(&[0, 0, 0, 4, 0], 1 << 20), 1024);
        assert_eq!(room_needed(&[1, 0, 0, 4, 0], 1 << 20), 16 << 10);
        assert_eq!(room_needed(&[1, 0, 4, 0, 0], 1 << 20), 1 << 20);
        assert_eq!(room_needed(&[0, 0, 0, 4], 1 << 20), 0);
    }
}
