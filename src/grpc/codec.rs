//! Encodes and decodes protobuf as tonic's own codec does, except that a message that cannot be decoded is the caller's
//! error.

use std::marker::PhantomData;

use hyper::body::Buf;
use prost::Message;
use prost::bytes::BufMut;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::convert;
use super::lenient_decode::decode_leniently;
use super::receive::SMALL_BYTES_MAX;
use crate::limiter::BATCH_MAX;

/// Bytes that a call allocates at first for a message to receive or to send; a larger message takes what it needs. tonic's
/// default of 8 KiB would be most of the memory of a call.
const MESSAGE_BYTES: usize = 512;
/// Bytes of answers that are sent together: tonic's default.
const SENT_BYTES_MAX: usize = 32 << 10;

/// Number of top-level fields of a message; `None` for bytes that are no message.
///
/// Only a batch is large, and its fields are its requests. An empty request has two bytes on the wire and 72 once decoded.
/// So requests are counted before they are decoded.
fn count_fields(mut message: &[u8]) -> Option<usize> {
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
    type Encoder = MessageEncoder<T>;
    type Decoder = MessageDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        MessageEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        MessageDecoder::default()
    }
}

/// Encodes messages as tonic's own encoder does, in fewer instructions. Writing a byte to a vector costs less than to
/// tonic's buffer. So the message is written to a vector and then copied as a whole.
pub struct MessageEncoder<T> {
    /// Buffer for one message, reused for the next message of a stream.
    encoded: Vec<u8>,
    message: PhantomData<T>,
}

impl<T> Default for MessageEncoder<T> {
    fn default() -> Self {
        Self { encoded: Vec::new(), message: PhantomData }
    }
}

impl<T: Message + 'static> Encoder for MessageEncoder<T> {
    type Item = T;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(MESSAGE_BYTES, SENT_BYTES_MAX)
    }

    fn encode(&mut self, message: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        self.write(&message, buffer)
    }
}

impl<T: Message> MessageEncoder<T> {
    fn write(&mut self, message: &T, buffer: &mut impl BufMut) -> Result<(), Status> {
        self.encoded.clear();
        self.encoded.reserve(MESSAGE_BYTES);
        // Cannot fail: a vector grows as needed.
        message.encode(&mut self.encoded).map_err(|error| Status::internal(error.to_string()))?;
        buffer.put_slice(&self.encoded);
        // The encoder lives until the answer is sent. A peer that does not read must not keep a large answer here a second time.
        if self.encoded.capacity() > MESSAGE_BYTES {
            self.encoded = Vec::new();
        }
        Ok(())
    }
}

/// Decodes one message. Errors: INVALID_ARGUMENT, where tonic's own decoder would report an internal error.
pub struct MessageDecoder<U>(PhantomData<U>);

impl<U> Default for MessageDecoder<U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<U: Message + Default + 'static> Decoder for MessageDecoder<U> {
    type Item = U;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(MESSAGE_BYTES, SENT_BYTES_MAX)
    }

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if buffer.remaining() > SMALL_BYTES_MAX
            && let Some(fields) = count_fields(buffer.chunk()).filter(|fields| *fields > BATCH_MAX)
        {
            return Err(convert::batch_size(fields));
        }
        self.decode_counted(buffer)
    }
}

impl<U: Message + Default + 'static> MessageDecoder<U> {
    /// Decodes a message whose parts are few enough.
    pub(super) fn decode_counted(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic passes the whole message in one piece.
        let (message, bytes) = (buffer.chunk(), buffer.remaining());
        let decoded = U::decode(message).or_else(|error| decode_leniently(message).ok_or(error));
        buffer.advance(bytes);
        decoded.map(Some).map_err(|error| {
            Status::invalid_argument(format!("the message is no valid protobuf for this method: {error}; strings must be UTF-8"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::pb::{ShouldAllowBatchRequest, ShouldAllowRequest};

    #[test]
    fn an_encoder_keeps_no_large_message() {
        let mut encoder = MessageEncoder { encoded: Vec::new(), message: PhantomData };
        for (key_bytes, kept) in [(1, MESSAGE_BYTES), (100_000, 0), (1, MESSAGE_BYTES)] {
            let request = ShouldAllowRequest { key: "k".repeat(key_bytes), ..Default::default() };
            let mut written = Vec::new();
            encoder.write(&request, &mut written).unwrap();
            assert_eq!((written, encoder.encoded.capacity()), (request.encode_to_vec(), kept));
        }
    }

    #[test]
    fn requests_of_a_batch_are_counted_before_they_are_decoded() {
        for count in [0, 1, 1_000, 1_001, 300_000] {
            let request = ShouldAllowRequest { key: "k".into(), plan: "p".into(), cost: Some(1), ..Default::default() };
            let empty = ShouldAllowBatchRequest { requests: vec![ShouldAllowRequest::default(); count] };
            let filled = ShouldAllowBatchRequest { requests: vec![request; count] };
            assert_eq!([count_fields(&empty.encode_to_vec()), count_fields(&filled.encode_to_vec())], [Some(count); 2]);
        }
        assert_eq!(count_fields(&[0x0a, 9, 1]), None);
    }
}
