//! Any request of Envoy's callers gets a status for each of its descriptors, or an error with a text.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use prost::Message;
use tonic::Code;

use super::pb::extensions::common::ratelimit::v3::RateLimitDescriptor;
use super::pb::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use super::pb::service::ratelimit::v3::rate_limit_response::Code as Limited;
use super::*;
use crate::fuzz::fuzz;
use crate::limiter::{Descriptor, EnvoyRefusal, Limiter, LimiterSettings};
use tollgate_core::headers::HeaderForm;
use tollgate_core::plan::envoy::{
    DenialBody, DescriptorRule, Domain, EntryPattern, EnvoyRules, KeyTemplate, Unmatched,
};
use tollgate_core::plan::{Algorithm, Anchor, Limit, Plan, PlanSet, Rule};
use tollgate_store::clock::SystemClock;
use tollgate_store::{CAPACITY_MIN, MemoryStore};

const ENTRY_KEYS: [&str; 4] = ["a", "b", "c", ""];
const ENTRY_VALUES: [&[u8]; 6] = [b"", b"x", b"xy", b"z|\\", b"\xff\xfe", &[b'x'; 700]];
const DOMAINS: [&str; 5] = ["d", "e", "f", "g", ""];

/// Rules of every kind, with short names, which random bytes may hit.
fn plans() -> PlanSet {
    let limit = |name: &str, quota, algorithm| {
        Limit::new(name, quota, Duration::from_secs(10), algorithm).unwrap()
    };
    let few = vec![limit("few", 3, Algorithm::TokenBucket { burst: 3 })];
    let window = Algorithm::FixedWindow {
        anchor: Anchor::FirstRequest,
    };
    let two = vec![
        limit("a", 9, Algorithm::SlidingWindow { precision: 8 }),
        limit("b", 20, window),
    ];
    let rules = [
        ("few", Rule::limits(few)),
        ("two", Rule::limits(two)),
        ("all", Rule::Unlimited),
        ("none", Rule::Blocked),
    ];
    let plan = |(name, rule): (&str, Rule)| Plan {
        shadow: name == "two",
        ..Plan::new(name, rule)
    };
    let rule = |(entries, plan, key): (&[&str], &str, Option<&str>)| {
        let patterns: Vec<EntryPattern> = entries
            .iter()
            .map(|entry| EntryPattern::parse(entry).unwrap())
            .collect();
        let open = || KeyTemplate::for_open_values(&patterns);
        let key = key.map_or_else(open, |key| KeyTemplate::parse(key, &patterns).unwrap());
        DescriptorRule {
            patterns,
            plan: plan.into(),
            key,
            shard: None,
        }
    };
    let rules_of_d: [(&[&str], &str, Option<&str>); 5] = [
        (&["a"], "few", None),
        (&["a=x*"], "two", Some("p:{a}")),
        (&["a=xy"], "all", None),
        (&["a", "b"], "two", Some("{b}|{a}")),
        (&["a=x", "b"], "none", None),
    ];
    let domain = |unmatched, rules: Vec<DescriptorRule>| Domain::new(unmatched, rules).unwrap();
    let domains = [
        (
            "d".to_owned(),
            domain(Unmatched::Allow, rules_of_d.map(rule).into()),
        ),
        ("e".to_owned(), domain(Unmatched::Deny, Vec::new())),
        (
            "f".to_owned(),
            domain(Unmatched::Plan("few".into()), Vec::new()),
        ),
    ];
    rules
        .map(plan)
        .into_iter()
        .collect::<PlanSet>()
        .with_envoy(EnvoyRules::new(DenialBody::Text, domains))
}

/// Two limiters: one decides descriptors together, the other each by itself.
fn limiters() -> [(bool, Limiter<MemoryStore>); 2] {
    [true, false].map(|joint| (joint, limiter(joint)))
}

fn limiter(joint: bool) -> Limiter<MemoryStore> {
    let plans = plans();
    let rules = EnvoyRules::clone(plans.envoy()).with_joint(joint);
    let settings = LimiterSettings {
        deadline: Duration::from_secs(1),
        expected_replicas: 1,
        deny_cache_entries: 64,
    };
    let clock = Arc::new(SystemClock);
    Limiter::new(
        plans.with_envoy(rules),
        MemoryStore::new(CAPACITY_MIN, clock.clone()),
        settings,
        clock,
    )
}

#[test]
fn fuzz_rate_limit_requests() {
    // A panic ends the test, and nothing sees the limiter after it.
    let limiters = AssertUnwindSafe(limiters());
    fuzz!("envoy_requests", Vec<u8>, |bytes: &Vec<u8>| {
        let counted = codec::count(bytes);
        if let Ok(request) = RateLimitRequest::decode(bytes.as_slice()) {
            let entries = request
                .descriptors
                .iter()
                .map(|descriptor| descriptor.entries.len())
                .sum();
            assert_eq!(
                counted,
                Some((request.descriptors.len(), entries)),
                "{request:?}"
            );
            for (joint, limiter) in limiters.iter() {
                assert_answered((*joint, limiter), request.clone());
            }
        }
    });
}

/// A descriptor: names and values of its entries, its hits, whether it gives them back, and a limit of its own.
type Parts = (Vec<(u8, u8)>, Option<u64>, bool, Option<(u32, i8)>);

#[test]
fn fuzz_fields_of_rate_limit_requests() {
    fn one_of<T: Copy>(choices: &[T], number: u8) -> T {
        choices[usize::from(number) % choices.len()]
    }
    let limiters = AssertUnwindSafe(limiters());
    bolero::check!()
        .with_type::<(u8, Vec<Parts>, u32)>()
        .for_each(|(domain, descriptors, hits_addend)| {
            let entry = |(name, value): &(u8, u8)| Entry {
                key: one_of(&ENTRY_KEYS, *name).into(),
                value: one_of(&ENTRY_VALUES, *value).into(),
            };
            let descriptor =
                |(entries, hits_addend, is_negative_hits, limit): &Parts| RateLimitDescriptor {
                    entries: entries.iter().map(entry).collect(),
                    limit: limit.map(|(requests_per_unit, unit)| RateLimitOverride {
                        requests_per_unit,
                        unit: i32::from(unit) % 9,
                    }),
                    hits_addend: *hits_addend,
                    is_negative_hits: *is_negative_hits,
                };
            for (joint, limiter) in limiters.iter() {
                let request = RateLimitRequest {
                    domain: one_of(&DOMAINS, *domain).to_owned(),
                    descriptors: descriptors.iter().map(descriptor).collect(),
                    hits_addend: *hits_addend,
                };
                assert_answered((*joint, limiter), request);
            }
        });
}

fn assert_answered((joint, limiter): (bool, &Limiter<MemoryStore>), request: RateLimitRequest) {
    let given = request.descriptors.clone();
    let nameless = given
        .iter()
        .any(|it| it.entries.is_empty() || it.entries.iter().any(|entry| entry.key.is_empty()));
    let (domain, descriptors) = match convert::descriptors(request) {
        Ok(parsed) => parsed,
        Err(status) => {
            return assert!(
                status.code() == Code::InvalidArgument && !status.message().is_empty(),
                "{status:?}"
            );
        }
    };
    assert!(
        !domain.is_empty() && !nameless && (1..=1_000).contains(&given.len()),
        "{given:?}"
    );
    let refunds: Vec<bool> = descriptors
        .iter()
        .map(|Descriptor { refunds, .. }| *refunds)
        .collect();
    let decided = limiter
        .decide_descriptors(&domain, descriptors, None)
        .now_or_never()
        .expect("the embedded store never waits");
    let decided = match decided {
        Ok(decided) => decided,
        Err(EnvoyRefusal::UnknownDomain(unknown)) => {
            return assert!(!DOMAINS[..3].contains(&&*unknown.name), "{unknown:?}");
        }
        Err(EnvoyRefusal::TooManyTogether(count)) => {
            return assert!(joint && (9..=given.len()).contains(&count), "{given:?}");
        }
        Err(refused) => panic!("{given:?}: {refused}"),
    };
    let response = convert::response(&decided, HeaderForm::Both);
    assert_statuses(&response, &refunds, &given);
}

/// Each descriptor has a status, and the whole response says the same as these do.
fn assert_statuses(response: &RateLimitResponse, refunds: &[bool], given: &[RateLimitDescriptor]) {
    let codes: Vec<Limited> = response
        .statuses
        .iter()
        .map(|status| status.code())
        .collect();
    assert_eq!(codes.len(), given.len());
    assert!(
        codes
            .iter()
            .all(|code| [Limited::Ok, Limited::OverLimit].contains(code)),
        "{codes:?}"
    );
    assert!(
        codes
            .iter()
            .zip(refunds)
            .all(|(code, refunds)| !*refunds || *code == Limited::Ok),
        "a refund was denied: {given:?}"
    );
    let over = codes.contains(&Limited::OverLimit);
    assert_eq!(
        (
            response.overall_code() == Limited::OverLimit,
            !response.raw_body.is_empty()
        ),
        (over, over),
        "{given:?}"
    );
    let is_text = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    assert!(
        response
            .response_headers_to_add
            .iter()
            .all(|field| is_text(&field.key) && is_text(&field.value)),
        "{response:?}"
    );
}
