//! Fuzz targets: any text is a valid config, or gives errors with sentences.

use super::*;
use crate::config::edits::{Edit, edited};
use crate::fuzz::fuzz;
use tollgate_store::StoreTarget;

#[path = "../../../tests/support/hostile.rs"]
#[allow(unreachable_pub, reason = "shared with the suites")]
mod hostile;

/// Any hostile input is a valid config, or gives errors that each name a place and repeat no secret.
#[test]
fn fuzz_hostile_configs() {
    bolero::check!().with_type::<u64>().for_each(|seed| {
        let hostile::Hostile {
            kind,
            bytes,
            set,
            environment,
        } = hostile::hostile(*seed);
        let text = (
            Origin::StandardInput,
            String::from_utf8_lossy(&bytes).into_owned(),
        );
        let sources = Sources {
            text: Some(text),
            environment,
            flags: set.iter().map(|text| Flag::for_set(text)).collect(),
            ..Sources::default()
        };
        let loaded = Config::load(sources);
        if let Err(errors) = &loaded {
            for error in &errors.errors {
                let message = error.to_string();
                let placed = !error.path.is_empty() || error.place.is_some();
                assert!(
                    placed || concerns_the_whole_config(&error.message),
                    "{kind}, seed {seed}: {message}"
                );
                assert!(
                    !message.contains(char::is_control) && message.len() < 4_096,
                    "{kind}, seed {seed}: {message:?}"
                );
                assert!(
                    kind == "random signs" || !message.contains(hostile::SECRET),
                    "{kind}, seed {seed}: {message}"
                );
            }
            assert!(errors.in_one_line().len() < 10_000);
        }
        check_result(loaded);
    });
}

fn concerns_the_whole_config(message: &str) -> bool {
    ["is empty; ", "is not UTF-8: line ", "has more than "]
        .iter()
        .any(|begin| message.starts_with(begin))
}

fn load(text: String) -> Result<Config, ConfigErrors> {
    Config::from_sources(&Sources::default(), Ok(text))
}

#[test]
fn fuzz_files() {
    fuzz!("config_files", Vec<u8>, |bytes: &Vec<u8>| {
        check_result(load(String::from_utf8_lossy(bytes).into_owned()));
    });
}

/// Random edits of the example with all words that have a meaning.
#[test]
fn fuzz_edits_of_the_example() {
    const WORDS: [&str; 40] = [
        "plans:",
        "limits:",
        "quota:",
        "window:",
        "algorithm:",
        "burst:",
        "precision:",
        "anchor:",
        "name:",
        "store:",
        "listen:",
        "url:",
        "deadline:",
        "workers:",
        "deny_cache:",
        "entries:",
        "shadow:",
        "counts_as:",
        "on_store_failure:",
        "unlimited:",
        "sliding_log",
        "token_bucket",
        "first_request",
        "true",
        "0",
        "-1",
        "18446744073709551616",
        "1e9",
        "366d",
        "1ms",
        "10s",
        "\"\"",
        "[",
        "]",
        "{",
        "}",
        "- ",
        "\n  ",
        ", ",
        "null",
    ];
    fuzz!("config_edits", Vec<Edit>, |edits: &Vec<Edit>| check_result(
        load(edited(EXAMPLE, edits, &WORDS))
    ));
}

/// What the next target edits: a valid config with what companies have for their customers.
const CUSTOMERS: &str = r#"
plans:
  free: { limits: [ { name: minute, quota: 100, window: 1m } ], counts_as: customer }
  budget: { limits: [ { quota: 1000, window: month, zone: Europe/Berlin, starts: 15 }, { quota: 9, window: week, starts: sunday } ] }
  address: { limits: [ { name: b, quota: 50, window: 1m, algorithm: token_bucket, burst: 9 } ] }
overrides:
  - { plan: free, key: acme, use_plan: budget, expires: "2999-01-01T00:00:00Z", reason: trial }
  - { plan: address, key_prefix: "eu-", quotas: [ { name: b, quota: 300, burst: 40 } ] }
check:
  subjects:
    - { key: ["header:x-api-key"], plan: ["header:x-plan", "default:free"], cost: ["param:cost"], shard: ["header:x-org"], optional: true }
    - { key: ["client_address"], plan: ["default:address"] }
envoy:
  joint: true
  domains:
    edge:
      unmatched: deny
      rules:
        - { descriptor: ["org", "user"], plan: free, key: "{user}", shard: "{org}" }
"#;

/// Random edits of that config with all words that have a meaning in it.
#[test]
fn fuzz_edits_for_customers() {
    const WORDS: [&str; 44] = [
        "overrides:",
        "plan:",
        "key:",
        "key_prefix:",
        "use_plan:",
        "quotas:",
        "quota:",
        "burst:",
        "name:",
        "expires:",
        "reason:",
        "window:",
        "zone:",
        "starts:",
        "day",
        "week",
        "month",
        "UTC",
        "Europe/Berlin",
        "sunday",
        "28",
        "29",
        "check:",
        "subjects:",
        "cost:",
        "shard:",
        "optional:",
        "param:peek",
        "param:u",
        "client_address",
        "default:",
        "envoy:",
        "joint:",
        "unmatched:",
        "true",
        "{org}",
        "\"2999-01-01T00:00:00Z\"",
        "18446744073709551616",
        "-1",
        "[",
        "]",
        "{",
        "}",
        "\n  - ",
    ];
    assert!(load(CUSTOMERS.to_owned()).is_ok());
    fuzz!("customer_edits", Vec<Edit>, |edits: &Vec<Edit>| {
        check_result(load(edited(CUSTOMERS, edits, &WORDS)))
    });
}

fn check_result(loaded: Result<Config, ConfigErrors>) {
    match loaded {
        Ok(config) => {
            assert!((1..=10_000).contains(&config.plans.len()) && !config.listen.grpc.is_empty())
        }
        Err(errors) => {
            assert!(
                !errors.errors.is_empty()
                    && errors.errors.iter().all(|error| !error.message.is_empty())
            );
            assert!(
                !errors.in_one_line().contains('\n'),
                "{}",
                errors.in_one_line()
            );
        }
    }
}

#[test]
fn fuzz_urls_of_stores() {
    const SCHEMES: [&str; 9] = [
        "redis",
        "rediss",
        "redis-cluster",
        "redis-sentinel",
        "rediss-cluster",
        "redis+unix",
        "valkey",
        "http",
        "canary",
    ];
    const WORDS: [&str; 16] = [
        "host", ":6379", ":99999", ":", "/", "0", "256", "?", "node=", "=", "&", "[::1]", "%", "é",
        ",", "#",
    ];
    fuzz!("store_urls", (u8, bool, Vec<u8>), |(
        scheme,
        separated,
        bytes,
    ): &(
        u8,
        bool,
        Vec<u8>
    )| {
        let scheme = SCHEMES[usize::from(*scheme) % SCHEMES.len()];
        let rest: String = bytes
            .iter()
            .map(|byte| WORDS[usize::from(*byte) % WORDS.len()])
            .collect();
        let text = format!(
            "{scheme}{}canary:canary@{rest}",
            if *separated { "://" } else { ":" }
        );
        let message = match StoreTarget::parse(&text) {
            Ok(url) => format!("{url} {url:?}"),
            Err(sentence) => sentence,
        };
        assert!(!message.contains("canary"), "{text}: {message}");
    });
}
