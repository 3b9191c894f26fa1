//! The table of requests in docs/migrate/envoy-ratelimit.md: each is asked of a server with the converted example.

use tollgate::grpc::envoy::pb::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry,
};
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus,
};
use tollgate::grpc::envoy::pb::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tollgate::grpc::envoy::pb::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};

use super::convert;
use super::ratelimit_examples::EXAMPLES;
use crate::process::docs::table;
use crate::support::redis::Redis;
use crate::support::server::{Server, channel_to};

/// Parses a cell such as `` `key=value, user=al` 5; `key=other` 1 ``: descriptors with their hits.
fn descriptors(cell: &str) -> Vec<RateLimitDescriptor> {
    let entry = |text: &str| {
        let (key, value) = text.split_once('=').unwrap();
        Entry {
            key: key.as_bytes().into(),
            value: value.as_bytes().into(),
        }
    };
    let descriptor = |text: &str| {
        let (entries, hits) = text
            .trim()
            .strip_prefix('`')
            .unwrap()
            .split_once("` ")
            .unwrap();
        let hits_addend = Some(hits.parse().unwrap());
        RateLimitDescriptor {
            entries: entries.split(", ").map(entry).collect(),
            hits_addend,
            ..Default::default()
        }
    };
    cell.split(';').map(descriptor).collect()
}

/// Asks in one request, which a store decides at one instant: no window ends within it.
async fn ask(redis: &Redis, row: usize, example: &str, cell: &str) -> RateLimitResponse {
    let (_, _, text) = EXAMPLES
        .into_iter()
        .find(|(name, ..)| *name == example)
        .unwrap();
    let domain = text
        .lines()
        .find_map(|line| line.strip_prefix("domain: "))
        .unwrap();
    // Nothing is left of the rows before.
    let prefix = format!("store.key_prefix=row-{row}:");
    let flags = [
        "--store",
        &redis.url(),
        "--set",
        "store.deadline=10s",
        "--set",
        &prefix,
    ];
    let server = Server::start(&convert(text).1, &flags);
    let mut client = RateLimitServiceClient::new(channel_to(&server.address).await);
    let request = RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors(cell),
        hits_addend: 0,
    };
    client
        .should_rate_limit(request)
        .await
        .unwrap()
        .into_inner()
}

fn word(code: Code) -> &'static str {
    code.as_str_name()
}

fn words(statuses: &[DescriptorStatus]) -> String {
    statuses
        .iter()
        .map(|status| word(status.code()))
        .collect::<Vec<_>>()
        .join("; ")
}

#[tokio::test]
async fn every_request_of_the_table_is_answered_as_it_says() {
    let redis = Redis::start();
    let rows = table("docs/migrate/envoy-ratelimit.md", "example");
    for (place, row) in rows.iter().enumerate() {
        let [example, request, documented, ours] = &row[..] else {
            panic!("{row:?}")
        };
        let answer = ask(&redis, place, example, request).await;
        assert_eq!(
            &words(&answer.statuses),
            ours,
            "example {example}: {request}"
        );
        let overall = if ours.contains("OVER_LIMIT") {
            Code::OverLimit
        } else {
            Code::Ok
        };
        assert_eq!(
            answer.overall_code(),
            overall,
            "example {example}: {request}"
        );
        // The only difference: what has no counterpart was left out, with a warning.
        assert_eq!(
            ours != documented,
            request.contains("key_1") && request.contains("key_2"),
            "example {example}: {request}"
        );
        let unlimited = request.contains("ldap").then_some(u32::MAX);
        assert!(
            unlimited.is_none_or(|most| answer.statuses[0].limit_remaining == most),
            "{answer:?}"
        );
    }
    for (name, ..) in EXAMPLES {
        assert!(
            rows.iter().any(|row| row[0] == name),
            "the table has no request of example {name}"
        );
    }
}
