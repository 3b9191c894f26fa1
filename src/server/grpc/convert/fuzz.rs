//! Any bytes as a message give a valid check or an error with a text.

use prost::Message;
use tonic::metadata::MetadataMap;

use super::*;
use crate::fuzz::fuzz;
use tollgate_core::key::{KEY_BYTES_MAX, SHARD_BYTES_MAX};
use tollgate_core::plan::NAME_BYTES_MAX;

#[test]
fn fuzz_requests() {
    fuzz!("requests", Vec<u8>, |bytes: &Vec<u8>| {
        if let Ok(request) = pb::ShouldAllowRequest::decode(bytes.as_slice()) {
            assert_checked(request);
        }
        if let Ok(batch) = pb::ShouldAllowBatchRequest::decode(bytes.as_slice()) {
            let count = batch.requests.len();
            let (parsed, checks) = check_requests(batch.requests);
            assert_eq!(
                (
                    parsed.len(),
                    parsed.iter().filter(|parsed| parsed.is_ok()).count()
                ),
                (count, checks.len())
            );
        }
    });
}

#[test]
fn fuzz_fields_of_requests() {
    let sizes = [
        0,
        1,
        2,
        KEY_BYTES_MAX - 1,
        KEY_BYTES_MAX,
        KEY_BYTES_MAX + 1,
        NAME_BYTES_MAX,
        NAME_BYTES_MAX + 1,
    ];
    bolero::check!()
        .with_type::<(u8, u8, u8, Option<u64>, bool, char)>()
        .for_each(|(key, shard, plan, cost, detailed, letter)| {
            let text = |size: &u8| {
                letter
                    .to_string()
                    .repeat(sizes[usize::from(*size) % sizes.len()] / letter.len_utf8())
            };
            assert_checked(pb::ShouldAllowRequest {
                key: text(key),
                plan: text(plan),
                cost: *cost,
                detailed: *detailed,
                http_headers: *detailed,
                shard: text(shard),
                request_id: String::new(),
            });
        });
}

fn assert_checked(request: pb::ShouldAllowRequest) {
    let key = request.key.clone();
    let plan = request.plan.clone();
    let cost = request.cost;
    let shard = request.shard.clone();
    let valid = shard.len() <= SHARD_BYTES_MAX
        && (1..=KEY_BYTES_MAX).contains(&key.len())
        && (1..=NAME_BYTES_MAX).contains(&plan.len())
        && cost != Some(0);
    match check_request(request) {
        Ok(check) => assert!(
            valid
                && (check.key.as_str(), check.key.shard()) == (&*key, &*shard)
                && check.plan == plan,
            "{key:?} {plan:?} {cost:?}"
        ),
        Err(status) => assert!(
            !valid && status.code() == Code::InvalidArgument && !status.message().is_empty(),
            "{status:?}"
        ),
    }
}

#[test]
fn fuzz_deadlines() {
    const LETTERS: &[u8] = b"0123456789HMSmun -+x";
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        let text: String = bytes
            .iter()
            .map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]))
            .collect();
        let mut metadata = MetadataMap::new();
        if let Ok(value) = text.parse() {
            metadata.insert("grpc-timeout", value);
        }
        // The longest deadline that `grpc-timeout` can express.
        match caller_deadline(&metadata) {
            Ok(caller) => assert!(
                caller.is_none_or(|caller| caller.left() <= Duration::from_secs(99_999_999 * 3600)),
                "{text}"
            ),
            Err(status) => assert_eq!(status.code(), Code::InvalidArgument, "{text}"),
        }
    });
}
