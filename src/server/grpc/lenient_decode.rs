//! Decodes messages of many requests of which one is malformed: only that request is refused, the others are decided.
//!
//! protobuf decodes a message as a whole. So one key that is not UTF-8 would fail all requests beside it. Only where that
//! happens, the message is decoded again with its requests as bytes, and then each request by itself.

use std::any::Any;

use prost::Message;

use super::pb::{ShouldAllowBatchRequest, ShouldAllowRequest, ShouldAllowStreamRequest};

/// The plan name that marks a malformed request. No plan can have this name, so no valid request is mistaken for a
/// malformed one.
const UNREADABLE: &str = "\0";

/// The error message for such a request.
pub(super) const ERROR_TEXT: &str =
    "the request is not valid protobuf, or its key or plan is not UTF-8";

/// [`ShouldAllowBatchRequest`] with its requests not decoded.
#[derive(Clone, PartialEq, Message)]
struct RawBatch {
    #[prost(bytes = "vec", repeated, tag = "1")]
    requests: Vec<Vec<u8>>,
}

/// [`ShouldAllowStreamRequest`] with its request not decoded.
#[derive(Clone, PartialEq, Message)]
struct RawStreamed {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(bytes = "vec", tag = "2")]
    request: Vec<u8>,
}

/// Decodes a message that the normal decoder refused. Works for batches and stream messages in which only requests are
/// malformed; these [are marked](is_unreadable). Returns `None` for all others.
#[cold]
pub(super) fn decode_leniently<M: Message + Default + 'static>(bytes: &[u8]) -> Option<M> {
    let mut message = M::default();
    let known: &mut dyn Any = &mut message;
    if let Some(batch) = known.downcast_mut::<ShouldAllowBatchRequest>() {
        batch.requests = RawBatch::decode(bytes)
            .ok()?
            .requests
            .iter()
            .map(|request| decode_or_mark(request))
            .collect();
    } else if let Some(streamed) = known.downcast_mut::<ShouldAllowStreamRequest>() {
        let RawStreamed { id, request } = RawStreamed::decode(bytes).ok()?;
        (streamed.id, streamed.request) = (id, Some(decode_or_mark(&request)));
    } else {
        return None;
    }
    Some(message)
}

fn decode_or_mark(bytes: &[u8]) -> ShouldAllowRequest {
    let unreadable = |_| ShouldAllowRequest {
        plan: UNREADABLE.to_owned(),
        ..ShouldAllowRequest::default()
    };
    ShouldAllowRequest::decode(bytes).unwrap_or_else(unreadable)
}

/// Whether this marks a malformed request.
pub(super) fn is_unreadable(request: &ShouldAllowRequest) -> bool {
    request.plan == UNREADABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: &str) -> ShouldAllowRequest {
        ShouldAllowRequest {
            key: key.to_owned(),
            plan: "p".to_owned(),
            ..ShouldAllowRequest::default()
        }
    }

    /// Encodes a message, with each `~~` replaced by two bytes that are not UTF-8.
    fn encoded(message: &impl Message) -> Vec<u8> {
        let mut bytes = message.encode_to_vec();
        while let Some(place) = bytes.windows(2).position(|pair| pair == b"~~") {
            bytes[place..place + 2].copy_from_slice(&[0xff, 0xfe]);
        }
        bytes
    }

    #[test]
    fn only_the_malformed_requests_of_a_batch_are_marked() {
        let batch = ShouldAllowBatchRequest {
            requests: ["a", "~~", "b", "c~~"].map(request).to_vec(),
        };
        let bytes = encoded(&batch);
        assert!(ShouldAllowBatchRequest::decode(bytes.as_slice()).is_err());
        let found: ShouldAllowBatchRequest = decode_leniently(&bytes).unwrap();
        let marked: Vec<bool> = found.requests.iter().map(is_unreadable).collect();
        assert_eq!(marked, [false, true, false, true]);
        assert_eq!(
            (&found.requests[0], &found.requests[2]),
            (&request("a"), &request("b"))
        );
    }

    #[test]
    fn a_request_of_a_stream_keeps_its_id() {
        let streamed = ShouldAllowStreamRequest {
            id: 7,
            request: Some(request("~~")),
        };
        let found: ShouldAllowStreamRequest = decode_leniently(&encoded(&streamed)).unwrap();
        assert_eq!(
            (found.id, found.request.as_ref().map(is_unreadable)),
            (7, Some(true))
        );
    }

    #[test]
    fn other_malformed_messages_stay_errors() {
        assert!(decode_leniently::<ShouldAllowRequest>(&encoded(&request("~~"))).is_none());
        assert!(
            decode_leniently::<ShouldAllowBatchRequest>(&[0x0a, 9, 1]).is_none(),
            "it ends too early"
        );
        assert!(
            decode_leniently::<ShouldAllowStreamRequest>(&[0x08]).is_none(),
            "it ends too early"
        );
    }

    #[test]
    fn fuzz_unreadable_messages() {
        crate::fuzz::fuzz!("messages", Vec<u8>, |bytes: &Vec<u8>| {
            let whole = ShouldAllowBatchRequest::decode(bytes.as_slice());
            let Some(lenient) = decode_leniently::<ShouldAllowBatchRequest>(bytes) else {
                return assert!(whole.is_err());
            };
            match whole {
                Ok(whole) => assert_eq!(lenient, whole),
                Err(_) => assert!(lenient.requests.iter().any(is_unreadable)),
            }
        });
    }
}
