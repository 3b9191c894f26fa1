//! A gRPC client on one connection, over bytes in and bytes out: makes calls, matches answers, counts them.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Instant;

use prost::Message;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::RateLimitResponse;
use tollgate::grpc::pb;

use super::connection::{Connection, Event};
use super::requests::{Requests, stream_head};
use super::{Kind, Load, STRIDE, Shared, Tally};

/// Bytes of a gRPC message's head: whether it is compressed, and its length.
const GRPC_HEAD: usize = 5;

/// Calls on one connection.
pub struct Caller {
    connection: Connection,
    requests: Rc<Requests>,
    turn: usize,
    in_flight: usize,
    left: u64,
    calls: Calls,
    shared: Rc<Shared>,
}

/// Calls under way.
struct Calls {
    kind: Kind,
    /// By stream; on a long stream, by the message's id.
    waiting: HashMap<u32, Call>,
    last_id: u32,
    /// Of a long stream: the message of which some bytes are still to come, and whether the server has ended it.
    body: Vec<u8>,
    stream: Stream,
}

/// The long stream of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    NotOpen,
    Open,
    /// Our side has ended.
    Closing,
    Closed,
}

struct Call {
    /// When it was sent, or should have been.
    due: Instant,
    /// The answer, as far as it has come.
    body: Vec<u8>,
}

impl Caller {
    /// The `index`th connection of a load.
    pub fn new(load: &Load, index: usize, requests: Rc<Requests>, shared: Rc<Shared>) -> Self {
        let calls = Calls {
            kind: load.kind,
            waiting: HashMap::new(),
            last_id: 0,
            body: Vec::new(),
            stream: Stream::NotOpen,
        };
        Self {
            connection: Connection::new(load.address(index), load.kind.path()),
            // Connections begin far from each other.
            turn: index * requests.len() / load.connections,
            requests,
            in_flight: load.in_flight,
            left: load.calls_max.unwrap_or(u64::MAX),
            calls,
            shared,
        }
    }

    /// The bytes to write. The writer removes those that it wrote.
    pub fn output(&mut self) -> &mut Vec<u8> {
        self.connection.output()
    }

    /// Closed loop: makes calls up to the number in flight, as of `now`.
    pub fn fill(&mut self, now: Instant) -> Result<(), String> {
        if self.shared.stopping.get() {
            self.left = 0;
        }
        while self.calls.waiting.len() < self.in_flight && self.start(now)? {}
        if self.left == 0 && self.calls.waiting.is_empty() && self.calls.stream == Stream::Open {
            self.connection.close();
            self.calls.stream = Stream::Closing;
        }
        Ok(())
    }

    /// Makes a call that is due at `due`; false when the server takes no more at the moment, or all calls are made.
    pub fn start(&mut self, due: Instant) -> Result<bool, String> {
        let request = self.requests.get(self.turn % self.requests.len());
        let id = match self.calls.kind {
            _ if self.left == 0 => return Ok(false),
            Kind::Unary | Kind::Batch(_) | Kind::Joint(_) | Kind::Envoy | Kind::Http => {
                if !self
                    .connection
                    .takes_call(self.calls.waiting.len(), request.len())
                {
                    return Ok(false);
                }
                self.connection.call(request)?
            }
            Kind::Stream => {
                if self.calls.stream == Stream::NotOpen && self.connection.takes_call(0, 0) {
                    self.connection.open()?;
                    self.calls.stream = Stream::Open;
                }
                let id = self.calls.last_id.wrapping_add(1);
                let mut message = stream_head(id, request.len());
                message.extend_from_slice(request);
                if self.calls.stream != Stream::Open
                    || !self.connection.takes_message(message.len())
                {
                    return Ok(false);
                }
                self.connection.push(&message);
                self.calls.last_id = id;
                id
            }
        };
        self.calls.waiting.insert(
            id,
            Call {
                due,
                body: Vec::new(),
            },
        );
        self.turn = self.turn.wrapping_add(STRIDE);
        self.left -= 1;
        Ok(true)
    }

    /// Handles the bytes that were read at `now`. Errors: the connection cannot be used any more.
    pub fn receive(&mut self, bytes: &[u8], now: Instant) -> Result<(), String> {
        let Self {
            connection,
            calls,
            shared,
            ..
        } = self;
        let mut tally = shared.tally.borrow_mut();
        connection.receive(bytes, |event| match (event, calls.kind) {
            (Event::Data(_, payload), Kind::Stream) => calls.stream_data(payload, now, &mut tally),
            (Event::Data(stream, payload), _) => {
                calls.data(stream, payload);
                Ok(())
            }
            (Event::Ended(_), Kind::Stream) => calls.stream_ended(),
            (Event::Ended(stream), _) => {
                calls.ended(stream, now, &mut tally);
                Ok(())
            }
        })
    }

    /// Whether all calls are made and answered.
    pub fn finished(&self) -> bool {
        let open = matches!(self.calls.stream, Stream::Open | Stream::Closing);
        self.left == 0 && self.calls.waiting.is_empty() && !open
    }
}

impl Calls {
    fn data(&mut self, stream: u32, payload: &[u8]) {
        if let Some(call) = self.waiting.get_mut(&stream) {
            call.body.extend_from_slice(payload);
        }
    }

    /// An answer is whole when its stream has ended; one that ended without a message was an error's trailers alone.
    fn ended(&mut self, stream: u32, now: Instant, tally: &mut Tally) {
        let Some(call) = self.waiting.remove(&stream) else {
            return;
        };
        tally.took(now - call.due);
        let Some(message) = take_message(&mut &call.body[..]) else {
            tally.failed(|| "an error status: the call ended without a message".to_owned());
            return;
        };
        match self.kind {
            Kind::Batch(size) => match pb::ShouldAllowBatchResponse::decode(message) {
                Ok(batch) if batch.results.len() == size => {
                    batch
                        .results
                        .iter()
                        .for_each(|result| tally.result(Some(result)));
                }
                Ok(batch) => {
                    tally.failed(|| format!("{} results to a batch of {size}", batch.results.len()))
                }
                Err(error) => tally.failed(|| error.to_string()),
            },
            // It counts as one decision: the answer to its first request, which is that of the whole.
            Kind::Joint(size) => match pb::ShouldAllowJointResponse::decode(message) {
                Ok(joint) if joint.responses.len() == size => tally.response(&joint.responses[0]),
                Ok(joint) => tally
                    .failed(|| format!("{} responses to {size} requests", joint.responses.len())),
                Err(error) => tally.failed(|| error.to_string()),
            },
            Kind::Envoy => match RateLimitResponse::decode(message) {
                Ok(response) => tally.envoy(&response),
                Err(error) => tally.failed(|| error.to_string()),
            },
            Kind::Unary | Kind::Stream | Kind::Http => {
                match pb::ShouldAllowResponse::decode(message) {
                    Ok(response) => tally.response(&response),
                    Err(error) => tally.failed(|| error.to_string()),
                }
            }
        }
    }

    fn stream_data(
        &mut self,
        payload: &[u8],
        now: Instant,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let mut joined = std::mem::take(&mut self.body);
        let mut rest = payload;
        if !joined.is_empty() {
            joined.extend_from_slice(payload);
            rest = &joined;
        }
        while let Some(message) = take_message(&mut rest) {
            let answer = pb::ShouldAllowStreamResponse::decode(message)
                .map_err(|error| error.to_string())?;
            let id = u32::try_from(answer.id).unwrap_or(0);
            let call = self.waiting.remove(&id).ok_or_else(|| {
                format!("an answer has the id {}, which no request had", answer.id)
            })?;
            tally.took(now - call.due);
            tally.result(answer.result.as_ref());
        }
        self.body = rest.to_vec();
        Ok(())
    }

    fn stream_ended(&mut self) -> Result<(), String> {
        if self.stream != Stream::Closing {
            return Err(format!(
                "the server ended the stream with {} calls in flight",
                self.waiting.len()
            ));
        }
        self.stream = Stream::Closed;
        Ok(())
    }
}

/// Takes the first gRPC message off `bytes`; `None` when it is not whole yet.
fn take_message<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_first_chunk::<GRPC_HEAD>()?;
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    let (message, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(message)
}
