//! Counts the parts of the requests of Envoy's callers before they are decoded.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use tonic::Status;

use super::convert;
use crate::grpc::codec::{CheckParts, CheckedCodec};
use crate::limiter::BATCH_MAX;
use tollgate_core::plan::envoy::ENTRIES_MAX;

/// Maximum number of entries of all descriptors of a request: as many as rules can have entries, for each descriptor.
pub(super) const REQUEST_ENTRIES_MAX: usize = BATCH_MAX * ENTRIES_MAX;
/// Number of the field with the descriptors in a request, and of that with the entries in a descriptor.
const DESCRIPTORS: u32 = 2;
const ENTRIES: u32 = 1;

/// The codec of the service's method.
pub(crate) type EnvoyCodec<T, U> = CheckedCodec<T, U, DescriptorParts>;

/// For messages whose parts are descriptors and their entries.
pub(crate) struct DescriptorParts;

impl CheckParts for DescriptorParts {
    fn check_parts<U: 'static>(message: &[u8], _: &mut U) -> Result<(), Status> {
        count(message).map_or(Ok(()), |(descriptors, entries)| {
            convert::check_counts(descriptors, entries)
        })
    }
}

/// How many descriptors a request has, and how many entries these have together. `None` for bytes that are not a message. Also counts
/// the statuses of a response, which has them in the field where a request has descriptors.
pub(super) fn count(message: &[u8]) -> Option<(usize, usize)> {
    let mut descriptors = 0;
    let mut entries = 0;
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
fn for_each(
    mut message: &[u8],
    field: u32,
    mut visit: impl FnMut(&[u8]) -> Option<()>,
) -> Option<()> {
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
    use prost::Message;

    use super::*;
    use crate::grpc::envoy::pb::extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::Entry,
    };
    use crate::grpc::envoy::pb::service::ratelimit::v3::RateLimitRequest;

    #[test]
    fn descriptors_and_entries_are_counted_before_they_are_decoded() {
        for (descriptors, entries, filled) in [
            (0, 0, false),
            (1, 1, true),
            (3, 0, true),
            (2, 500, false),
            (1_000, 16, true),
        ] {
            let text = |text: &str| {
                if filled {
                    text.as_bytes().to_vec()
                } else {
                    Vec::new()
                }
            };
            let descriptor = RateLimitDescriptor {
                entries: vec![
                    Entry {
                        key: text("name"),
                        value: text("value")
                    };
                    entries
                ],
                hits_addend: Some(7),
                ..Default::default()
            };
            let request = RateLimitRequest {
                domain: "edge".into(),
                descriptors: vec![descriptor; descriptors],
                hits_addend: u32::MAX,
            };
            assert_eq!(
                count(&request.encode_to_vec()),
                Some((descriptors, descriptors * entries))
            );
        }
        for torn in [&[0x12, 9, 1][..], &[0x12], &[0x12, 2, 0x0a, 9], &[0xff]] {
            assert_eq!(count(torn), None, "{torn:?}");
        }
    }
}
