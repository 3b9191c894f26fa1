//! The `overrides` list: what it means, and what a wrong one is told.

use super::*;
use tollgate_core::plan::{OverrideEffect, OverrideSubject, OverrideTable};

const PLANS: &str = "plans:
  free: { limits: [ { name: minute, quota: 100, window: 1m } ] }
  bucket: { limits: [ { name: b, quota: 100, window: 1m, algorithm: token_bucket }, { name: s, quota: 100, window: 1h, algorithm: token_bucket, burst: 100 } ] }
  none: { unlimited: true }
overrides:
";

fn with(entries: &str) -> Result<Config, ConfigErrors> {
    load(&format!("{PLANS}{entries}"))
}

#[track_caller]
fn assert_told(entries: &str, expected: &[&str]) {
    let errors = with(entries).unwrap_err().errors;
    let told: Vec<String> = errors
        .iter()
        .map(|error| format!("{} {}", error.path, error.message))
        .collect();
    assert_eq!(told, expected, "{entries}");
}

#[test]
fn overrides_are_part_of_the_plans() {
    let config = with(
        "  - { plan: free, key: acme, use_plan: none, expires: \"2099-01-01T00:00:00+01:00\", reason: \"trial: 812\" }
  - { plan: free, key_prefix: \"eu-\", quotas: [ { name: minute, quota: 300 } ] }\n",
    );
    let plans = config.unwrap().plans;
    let [first, second] = &plans.overrides()[..] else {
        panic!("{plans:?}");
    };
    assert_eq!(first.subject, OverrideSubject::Key("acme".into()));
    assert_eq!(first.effect, OverrideEffect::UsePlan("none".into()));
    assert_eq!(first.expires_at_us, Some(4_070_905_200_000_000));
    assert_eq!(&*first.reason, "trial: 812");
    assert_eq!(second.subject, OverrideSubject::Prefix("eu-".into()));
    // They are covered by the hash of the config.
    assert_ne!(plans.canonical(), with("").unwrap().plans.canonical());
}

/// A burst that no line states is the quota, also with another quota. One that is stated stays.
#[test]
fn a_burst_that_is_left_out_is_that_of_the_plan_where_it_states_one() {
    let config = with(
        "  - { plan: bucket, key: k, quotas: [ { name: b, quota: 300 }, { name: s, quota: 300 } ] }
  - { plan: bucket, key: l, quotas: [ { name: b, burst: 7 } ] }\n",
    );
    let plans = config.unwrap().plans;
    let table = OverrideTable::new(&plans, &[], 0);
    let bucket = plans.find("bucket").unwrap().0;
    let capacities = |key| {
        let limits = table.find(bucket, key).unwrap().plan.limits();
        [limits[0].capacity(), limits[1].capacity()]
    };
    assert_eq!((capacities("k"), capacities("l")), ([300, 100], [7, 100]));
}

/// Callers of a plan without slots do not reserve. From one with slots to another is what a customer with more of them needs.
#[test]
fn nobody_is_led_to_slots_that_does_not_reserve() {
    let slots = "plans:
  free: { limits: [ { quota: 100, window: 1m } ] }
  jobs: { limits: [ { quota: 5, algorithm: concurrency } ] }
  many: { limits: [ { quota: 50, algorithm: concurrency } ] }
overrides:
";
    let led = |entry: &str| load(&format!("{slots}  - {{ key: a, {entry} }}\n"));
    let errors = led("plan: free, use_plan: jobs").unwrap_err().errors;
    assert_eq!(errors.len(), 1, "{errors:?}");
    let told = format!("{} {}", errors[0].path, errors[0].message);
    let expected = "overrides[0].use_plan is \"jobs\", which has a concurrency limit and needs Reserve; \
        \"free\" has none, so name a plan without one";
    assert_eq!(told, expected);
    assert!(led("plan: jobs, use_plan: many").is_ok());
    assert!(led("plan: jobs, use_plan: free").is_ok());
}

#[test]
fn every_error_is_told_with_its_place() {
    assert_told(
        "  - { plan: free }
  - { plan: free, key: a, key_prefix: b, use_plan: none, quotas: [] }
  - { plan: fre, key: a, use_plan: nome }
  - { plan: free, key: \"\", use_plan: none, expires: tomorrow }
  - { key: a, use_plan: none }\n",
        &[
            "overrides[0] has no key and no key_prefix; write one",
            "overrides[0] has no effect; write use_plan or quotas",
            "overrides[1] has key and key_prefix; keep one",
            "overrides[1] has use_plan and quotas; keep one",
            "overrides[2].plan is \"fre\", which is not a plan of this config; did you mean \"free\"?",
            "overrides[2].use_plan is \"nome\", which is not a plan of this config; did you mean \"none\"?",
            "overrides[3].key is empty; it has 1 to 512 bytes",
            "overrides[3].expires is not a time; write it as \"2027-01-01T00:00:00Z\"",
            "overrides[4] has no plan; name the plan whose limits are other ones",
        ],
    );
    assert_told(
        "  - { plan: free, key: a, use_plan: free }
  - { plan: free, key: b, quotas: [ { name: hour, quota: 1 } ] }
  - { plan: free, key: c, quotas: [ { name: minute } ] }
  - { plan: free, key: d, quotas: [ { quota: 1, burst: 1 } ] }
  - { plan: none, key: e, quotas: [ { quota: 1 } ] }
  - { plan: bucket, key: f, quotas: [ { quota: 1 } ] }
  - { plan: free, key: a, use_plan: none }
  - { plan: free, key: g, quotas: [ { quota: 1 }, { name: minute, quota: 2 } ] }\n",
        &[
            "overrides[6] is of the same plan and key as overrides[0]",
            "overrides[0].use_plan is the plan itself; name another plan",
            "overrides[1].quotas[0].name is \"hour\", which is not a limit of plan \"free\"; it has \"minute\"",
            "overrides[2].quotas[0] has neither quota nor burst",
            "overrides[3].quotas[0].burst belongs to token_bucket only",
            "overrides[4].quotas need a plan with limits, which \"none\" is not; write use_plan",
            "overrides[5].quotas[0] has no name; plan \"bucket\" has \"b\", \"s\"",
            "overrides[7].quotas[1] is of limit \"minute\" like one before it; keep one",
        ],
    );
}

#[test]
fn there_are_so_many_and_no_more() {
    use std::fmt::Write as _;
    let entries = |count, field: &str| {
        (0..count).fold(String::new(), |mut text, index| {
            writeln!(
                text,
                "  - {{ plan: free, {field}: k{index}, use_plan: none }}"
            )
            .unwrap();
            text
        })
    };
    let most = entries(10_000, "key") + &entries(256, "key_prefix");
    assert_eq!(with(&most).unwrap().plans.overrides().len(), 10_256);
    assert_told(
        &entries(10_001, "key"),
        &["overrides has 10001 entries with key; at most 10000"],
    );
    assert_told(
        &entries(257, "key_prefix"),
        &["overrides has 257 entries with key_prefix; at most 256"],
    );
    assert_told(
        &entries(10_257, "key"),
        &["overrides has 10257 entries; at most 10000 with key and 256 with key_prefix"],
    );
}

#[test]
fn one_that_is_over_is_a_warning() {
    let past = "  - { plan: free, key: a, use_plan: none, expires: \"2020-01-01T00:00:00Z\" }\n";
    let warnings = with(past).unwrap().warnings;
    assert_eq!(
        warnings,
        ["overrides[0].expires is in the past, so it has no effect; remove it"]
    );
}
