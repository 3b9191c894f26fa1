//! Protobuf to and from bytes, as tonic's own codec does it, but a message that cannot be decoded is the caller's mistake.

use std::marker::PhantomData;

use hyper::body::Buf;
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use super::convert;
use super::receive::SMALL_BYTES_MAX;
use super::salvage::salvage;
use crate::limiter::BATCH_MAX;

/// What a call takes at once for a message that it has not received or written yet; a larger one takes what it needs. tonic's
/// own 8 KiB would be most of what a call costs.
const MESSAGE_BYTES: usize = 512;
/// Of answers that are sent as one: tonic's own bound.
const SENT_BYTES_MAX: usize = 32 << 10;

/// How many fields a message has, those within its fields not counted; `None` for what is no message.
///
/// Only a batch is large, and its fields are its requests. An empty one has two bytes here and 72 once it is decoded, so
/// they are counted first.
fn fields(mut message: &[u8]) -> Option<usize> {
    let mut fields = 0;
    while !message.is_empty() {
        let (tag, wire_type) = decode_key(&mut message).ok()?;
        skip_field(wire_type, tag, &mut message, DecodeContext::default()).ok()?;
        fields += 1;
    }
    Some(fields)
}

/// The codec of every method.
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = MessageDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::new(MESSAGE_BYTES, SENT_BYTES_MAX))
    }

    fn decoder(&mut self) -> Self::Decoder {
        MessageDecoder(PhantomData)
    }
}

/// Decodes one message. Errors: INVALID_ARGUMENT, where tonic's own decoder would claim an error of the server.
pub struct MessageDecoder<U>(PhantomData<U>);

impl<U: Message + Default + 'static> Decoder for MessageDecoder<U> {
    type Item = U;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(MESSAGE_BYTES, SENT_BYTES_MAX)
    }

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if buffer.remaining() > SMALL_BYTES_MAX
            && let Some(fields) = fields(buffer.chunk()).filter(|fields| *fields > BATCH_MAX)
        {
            return Err(convert::batch_size(fields));
        }
        // tonic has the whole message in one piece.
        let (message, bytes) = (buffer.chunk(), buffer.remaining());
        let decoded = U::decode(message).or_else(|error| salvage(message).ok_or(error));
        buffer.advance(bytes);
        decoded.map(Some).map_err(|error| {
            Status::invalid_argument(format!("the message is no valid protobuf of this method: {error}; strings are UTF-8"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::pb::{ShouldAllowBatchRequest, ShouldAllowRequest};

    #[test]
    fn requests_of_a_batch_are_counted_before_they_are_decoded() {
        for count in [0, 1, 1_000, 1_001, 300_000] {
            let request = ShouldAllowRequest { key: "k".into(), plan: "p".into(), cost: Some(1), ..Default::default() };
            let empty = ShouldAllowBatchRequest { requests: vec![ShouldAllowRequest::default(); count] };
            let filled = ShouldAllowBatchRequest { requests: vec![request; count] };
            assert_eq!([fields(&empty.encode_to_vec()), fields(&filled.encode_to_vec())], [Some(count); 2]);
        }
        assert_eq!(fields(&[0x0a, 9, 1]), None);
    }
}
