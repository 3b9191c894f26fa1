//! Decodes the requests of Envoy's callers, whose parts are counted before they are decoded: an empty entry has two bytes on the
//! wire and 48 once decoded.

use std::marker::PhantomData;

use hyper::body::Buf;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, Decoder};

use super::convert;
use crate::grpc::codec::{MessageDecoder, MessageEncoder};
use crate::grpc::receive::SMALL_BYTES_MAX;
use crate::limiter::BATCH_MAX;
use crate::plan::envoy::ENTRIES_MAX;

/// Most entries of all descriptors of a request: as many as rules can have entries, for each descriptor.
pub(super) const REQUEST_ENTRIES_MAX: usize = BATCH_MAX * ENTRIES_MAX;
/// Number of the field with the descriptors in a request, and of that with the entries in a descriptor.
const DESCRIPTORS: u32 = 2;
const ENTRIES: u32 = 1;

/// The codec of the service's method.
pub(crate) struct Codec<T, U>(PhantomData<(T, U)>);

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
    type Decoder = CountingDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        MessageEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        CountingDecoder(MessageDecoder::default())
    }
}

/// Decodes one message. Errors: INVALID_ARGUMENT.
pub(crate) struct CountingDecoder<U>(MessageDecoder<U>);

impl<U: Message + Default + 'static> Decoder for CountingDecoder<U> {
    type Item = U;
    type Error = Status;

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        if buffer.remaining() > SMALL_BYTES_MAX
            && let Some((descriptors, entries)) = count(buffer.chunk())
        {
            convert::check_counts(descriptors, entries)?;
        }
        self.0.decode_counted(buffer)
    }
}

/// The numbers of descriptors and of all their entries; `None` for bytes that are no message. Of a response, it is the number of
/// statuses, which is as small.
pub(super) fn count(message: &[u8]) -> Option<(usize, usize)> {
    let (mut descriptors, mut entries) = (0, 0);
    for_each(message, DESCRIPTORS, |descriptor| {
        descriptors += 1;
        for_each(descriptor, ENTRIES, |_| {
            entries += 1;
            Some(())
        })
    })?;
    Some((descriptors, entries))
}

/// Calls `visit` with each message in this field.
fn for_each(mut message: &[u8], field: u32, mut visit: impl FnMut(&[u8]) -> Option<()>) -> Option<()> {
    while !message.is_empty() {
        let (tag, wire_type) = decode_key(&mut message).ok()?;
        if (tag, wire_type) == (field, WireType::LengthDelimited) {
            let bytes = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
            visit(message.split_off(..bytes)?)?;
        } else {
            skip_field(wire_type, tag, &mut message, DecodeContext::default()).ok()?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::envoy::pb::extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry};
    use crate::grpc::envoy::pb::service::ratelimit::v3::RateLimitRequest;

    #[test]
    fn descriptors_and_entries_are_counted_before_they_are_decoded() {
        for (descriptors, entries, filled) in [(0, 0, false), (1, 1, true), (3, 0, true), (2, 500, false), (1_000, 16, true)] {
            let text = |text: &str| if filled { text.as_bytes().to_vec() } else { Vec::new() };
            let descriptor = RateLimitDescriptor {
                entries: vec![Entry { key: text("name"), value: text("value") }; entries],
                hits_addend: Some(7),
                ..Default::default()
            };
            let request =
                RateLimitRequest { domain: "edge".into(), descriptors: vec![descriptor; descriptors], hits_addend: u32::MAX };
            assert_eq!(count(&request.encode_to_vec()), Some((descriptors, descriptors * entries)));
        }
        for torn in [&[0x12, 9, 1][..], &[0x12], &[0x12, 2, 0x0a, 9], &[0xff]] {
            assert_eq!(count(torn), None, "{torn:?}");
        }
    }
}
