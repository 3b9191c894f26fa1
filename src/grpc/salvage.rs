//! Messages of many requests of which one cannot be read: that request alone is refused, and the others are decided.
//!
//! protobuf decodes a message as a whole, so that one key that is no UTF-8 would fail all requests beside it. Where that
//! happens, and only there, the message is decoded once more with its requests as bytes, and then each of them by itself.

use std::any::Any;

use prost::Message;

use super::pb::{ShouldAllowBatchRequest, ShouldAllowRequest, ShouldAllowStreamRequest};

/// The plan of a request that could not be read: no plan has such a name, so nothing that a caller may mean is lost.
const UNREADABLE: &str = "\0";

/// What is told of such a request.
pub(super) const SENTENCE: &str = "the request is no valid protobuf, or its key or plan is no UTF-8";

/// [`ShouldAllowBatchRequest`], its requests not decoded.
#[derive(Clone, PartialEq, Message)]
struct Batch {
    #[prost(bytes = "vec", repeated, tag = "1")]
    requests: Vec<Vec<u8>>,
}

/// [`ShouldAllowStreamRequest`], its request not decoded.
#[derive(Clone, PartialEq, Message)]
struct Streamed {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(bytes = "vec", tag = "2")]
    request: Vec<u8>,
}

/// Decodes what has just failed to be decoded, if it is a message of many requests, or of one of a stream, and nothing else
/// is wrong with it. A request that cannot be read [is marked](is_unreadable).
#[cold]
pub(super) fn salvage<M: Message + Default + 'static>(bytes: &[u8]) -> Option<M> {
    let mut message = M::default();
    let known: &mut dyn Any = &mut message;
    if let Some(batch) = known.downcast_mut::<ShouldAllowBatchRequest>() {
        batch.requests = Batch::decode(bytes).ok()?.requests.iter().map(|request| read(request)).collect();
    } else if let Some(streamed) = known.downcast_mut::<ShouldAllowStreamRequest>() {
        let Streamed { id, request } = Streamed::decode(bytes).ok()?;
        (streamed.id, streamed.request) = (id, Some(read(&request)));
    } else {
        return None;
    }
    Some(message)
}

fn read(bytes: &[u8]) -> ShouldAllowRequest {
    let unreadable = |_| ShouldAllowRequest { plan: UNREADABLE.to_owned(), ..ShouldAllowRequest::default() };
    ShouldAllowRequest::decode(bytes).unwrap_or_else(unreadable)
}

/// Whether a request stands for one that could not be read.
pub(super) fn is_unreadable(request: &ShouldAllowRequest) -> bool {
    request.plan == UNREADABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(key: &str) -> ShouldAllowRequest {
        ShouldAllowRequest { key: key.to_owned(), plan: "p".to_owned(), ..ShouldAllowRequest::default() }
    }

    /// With the letters `~~` being two bytes that are no UTF-8.
    fn encoded(message: &impl Message) -> Vec<u8> {
        let mut bytes = message.encode_to_vec();
        while let Some(place) = bytes.windows(2).position(|pair| pair == b"~~") {
            bytes[place..place + 2].copy_from_slice(&[0xff, 0xfe]);
        }
        bytes
    }

    #[test]
    fn of_a_batch_only_what_cannot_be_read_is_marked() {
        let batch = ShouldAllowBatchRequest { requests: ["a", "~~", "b", "c~~"].map(request).to_vec() };
        let bytes = encoded(&batch);
        assert!(ShouldAllowBatchRequest::decode(bytes.as_slice()).is_err());
        let found: ShouldAllowBatchRequest = salvage(&bytes).unwrap();
        let marked: Vec<bool> = found.requests.iter().map(is_unreadable).collect();
        assert_eq!(marked, [false, true, false, true]);
        assert_eq!((&found.requests[0], &found.requests[2]), (&request("a"), &request("b")));
    }

    #[test]
    fn a_request_of_a_stream_keeps_its_id() {
        let streamed = ShouldAllowStreamRequest { id: 7, request: Some(request("~~")) };
        let found: ShouldAllowStreamRequest = salvage(&encoded(&streamed)).unwrap();
        assert_eq!((found.id, found.request.as_ref().map(is_unreadable)), (7, Some(true)));
    }

    #[test]
    fn what_is_no_such_message_stays_an_error() {
        assert!(salvage::<ShouldAllowRequest>(&encoded(&request("~~"))).is_none());
        assert!(salvage::<ShouldAllowBatchRequest>(&[0x0a, 9, 1]).is_none(), "it ends too early");
        assert!(salvage::<ShouldAllowStreamRequest>(&[0x08]).is_none(), "it ends too early");
    }

    #[test]
    fn fuzz_unreadable_messages() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            let whole = ShouldAllowBatchRequest::decode(bytes.as_slice());
            let Some(salvaged) = salvage::<ShouldAllowBatchRequest>(bytes) else { return assert!(whole.is_err()) };
            match whole {
                Ok(whole) => assert_eq!(salvaged, whole),
                Err(_) => assert!(salvaged.requests.iter().any(is_unreadable)),
            }
        });
    }
}
