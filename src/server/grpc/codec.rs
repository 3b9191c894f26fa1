//! Encodes and decodes protobuf as tonic's own codec does, except that a message that cannot be decoded is the caller's
//! error.

use std::any::Any;
use std::marker::PhantomData;

use hyper::body::Buf;
use prost::Message;
use prost::bytes::BufMut;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::convert;
use super::lenient_decode::decode_leniently;
use super::pb::ShouldAllowBatchRequest;
use super::receive::SMALL_BYTES_MAX;
use crate::limiter::BATCH_MAX;

/// Bytes that a call allocates at first for a message to receive or to send; a larger message takes what it needs. tonic's
/// default of 8 KiB would be most of the memory of a call.
const MESSAGE_BYTES: usize = 512;
/// Bytes of answers that are sent together: tonic's default.
const SENT_BYTES_MAX: usize = 32 << 10;

/// Refuses messages of too many parts before they are decoded: an empty part has two bytes on the wire and some 120 once decoded.
pub(super) trait CheckParts {
    /// Counts the parts of an encoded `U`, for which it may make room in `decoded`. Errors: INVALID_ARGUMENT, when they are too many.
    /// Bytes that are not a message pass; decoding refuses them.
    fn check_parts<U: 'static>(message: &[u8], decoded: &mut U) -> Result<(), Status>;
}

/// For methods of which only a batch is large, and its fields are its requests. Answers to a client may have more parts.
pub struct BatchParts;

impl CheckParts for BatchParts {
    fn check_parts<U: 'static>(message: &[u8], decoded: &mut U) -> Result<(), Status> {
        let decoded: &mut dyn Any = decoded;
        let Some(batch) = decoded.downcast_mut::<ShouldAllowBatchRequest>() else {
            return Ok(());
        };
        let fields = count_fields(message).unwrap_or_default();
        if fields > BATCH_MAX {
            return Err(convert::batch_size(fields));
        }
        // A list that grows is copied again and again.
        batch.requests.reserve_exact(fields);
        Ok(())
    }
}

/// Number of top-level fields of a message; `None` for bytes that are not a message.
fn count_fields(mut message: &[u8]) -> Option<usize> {
    let mut fields = 0;
    while !message.is_empty() {
        let (tag, wire_type) = decode_key(&mut message).ok()?;
        skip_field(wire_type, tag, &mut message, DecodeContext::default()).ok()?;
        fields += 1;
    }
    Some(fields)
}

/// The codec of every method of tollgate's own services.
pub type Codec<T, U> = CheckedCodec<T, U, BatchParts>;

/// A codec whose decoder checks the parts of messages.
pub struct CheckedCodec<T, U, C>(PhantomData<(T, U, C)>);

impl<T, U, C> Default for CheckedCodec<T, U, C> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U, C> tonic::codec::Codec for CheckedCodec<T, U, C>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
    C: CheckParts + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = MessageEncoder<T>;
    type Decoder = MessageDecoder<U, C>;

    fn encoder(&mut self) -> Self::Encoder {
        MessageEncoder {
            encoded: Vec::new(),
            message: PhantomData,
        }
    }

    fn decoder(&mut self) -> Self::Decoder {
        MessageDecoder(PhantomData)
    }
}

/// Encodes messages as tonic's own encoder does, in fewer instructions. Writing a byte to a vector costs less than to
/// tonic's buffer. So the message is written to a vector and then copied as a whole.
pub struct MessageEncoder<T> {
    /// Buffer for one message, reused for the next message of a stream.
    encoded: Vec<u8>,
    message: PhantomData<T>,
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
        append(message, &mut self.encoded);
        buffer.put_slice(&self.encoded);
        // The encoder lives until the answer is sent. A peer that does not read must not keep a large answer here a second time.
        if self.encoded.capacity() > MESSAGE_BYTES {
            self.encoded = Vec::new();
        }
        Ok(())
    }
}

/// Appends the encoded message. `Message::encode` would measure all of it before, to see whether it fits; a vector grows as needed.
pub(super) fn append(message: &impl Message, encoded: &mut Vec<u8>) {
    message.encode_raw(encoded);
}

/// Decodes one message. Errors: INVALID_ARGUMENT, where tonic's own decoder would report an internal error.
pub struct MessageDecoder<U, C>(PhantomData<(U, C)>);

impl<U: Message + Default + 'static, C: CheckParts> Decoder for MessageDecoder<U, C> {
    type Item = U;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(MESSAGE_BYTES, SENT_BYTES_MAX)
    }

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // tonic passes the whole message in one piece.
        let decoded = decode::<U, C>(buffer.chunk());
        buffer.advance(buffer.remaining());
        decoded.map(Some)
    }
}

/// See [`MessageDecoder`].
pub(super) fn decode<U: Message + Default + 'static, C: CheckParts>(
    message: &[u8],
) -> Result<U, Status> {
    let mut decoded = U::default();
    if message.len() > SMALL_BYTES_MAX {
        C::check_parts(message, &mut decoded)?;
    }
    decoded
        .merge(message)
        .map(|()| decoded)
        .or_else(|error| decode_leniently(message).ok_or(error))
        .map_err(|error| {
            Status::invalid_argument(format!(
                "the message is not valid protobuf for this method: {error}; strings must be UTF-8"
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::pb::{ListPlansResponse, Plan, ShouldAllowRequest};

    #[test]
    fn an_encoder_keeps_no_large_message() {
        let mut encoder = MessageEncoder {
            encoded: Vec::new(),
            message: PhantomData,
        };
        for (key_bytes, kept) in [(1, MESSAGE_BYTES), (100_000, 0), (1, MESSAGE_BYTES)] {
            let request = ShouldAllowRequest {
                key: "k".repeat(key_bytes),
                ..Default::default()
            };
            let mut written = Vec::new();
            encoder.write(&request, &mut written).unwrap();
            assert_eq!(
                (written, encoder.encoded.capacity()),
                (request.encode_to_vec(), kept)
            );
        }
    }

    #[test]
    fn requests_of_a_batch_are_counted_before_they_are_decoded() {
        for count in [0, 1, 1_000, 1_001, 300_000] {
            let request = ShouldAllowRequest {
                key: "k".into(),
                plan: "p".into(),
                cost: Some(1),
                ..Default::default()
            };
            let empty = ShouldAllowBatchRequest {
                requests: vec![ShouldAllowRequest::default(); count],
            };
            let filled = ShouldAllowBatchRequest {
                requests: vec![request; count],
            };
            assert_eq!(
                [
                    count_fields(&empty.encode_to_vec()),
                    count_fields(&filled.encode_to_vec())
                ],
                [Some(count); 2]
            );
            if (100..=BATCH_MAX).contains(&count) {
                let decoded =
                    decode::<ShouldAllowBatchRequest, BatchParts>(&filled.encode_to_vec());
                let decoded = decoded.unwrap();
                assert_eq!(decoded, filled);
                assert_eq!(
                    decoded.requests.capacity(),
                    count,
                    "there is room for all at once"
                );
            }
        }
        assert_eq!(count_fields(&[0x0a, 9, 1]), None);
    }

    #[test]
    fn an_answer_to_a_client_has_as_many_parts_as_there_are() {
        let answer = ListPlansResponse {
            plans: vec![Plan::default(); 10_000],
            ..Default::default()
        };
        let decoded = decode::<ListPlansResponse, BatchParts>(&answer.encode_to_vec());
        assert_eq!(decoded.unwrap(), answer);
        let batch = ShouldAllowBatchRequest {
            requests: vec![ShouldAllowRequest::default(); 10_000],
        };
        assert!(decode::<ShouldAllowBatchRequest, BatchParts>(&batch.encode_to_vec()).is_err());
    }
}
