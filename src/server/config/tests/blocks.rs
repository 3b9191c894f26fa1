//! The field `block` of limits: what it means, and what a wrong one is told.

use std::time::Duration;

use super::*;

fn with(limit: &str) -> String {
    format!("plans: {{ p: {{ limits: [ {limit} ] }} }}")
}

fn block_of(text: &str) -> Duration {
    let plans = load(text).unwrap().plans;
    Duration::from_micros(plans.get("p").unwrap().limits()[0].block_us())
}

#[test]
fn a_limit_of_any_kind_may_block() {
    for own in [
        "window: 1m",
        "window: month, zone: Asia/Tokyo",
        "window: 1m, algorithm: sliding_log",
        "window: 1m, algorithm: token_bucket, burst: 3",
    ] {
        for (text, seconds) in [("1s", 1), ("15m", 900), ("31d", 2_678_400)] {
            let text = with(&format!("{{ quota: 5, {own}, block: {text} }}"));
            assert_eq!(block_of(&text), Duration::from_secs(seconds));
        }
    }
    assert_eq!(block_of(&with("{ quota: 5, window: 1m }")), Duration::ZERO);
    assert_eq!(
        block_of(&with("{ quota: 5, window: 1m, block: 1500ms }")),
        Duration::from_millis(1_500)
    );
}

/// It runs there and denies nothing, so there is nothing to warn of.
#[test]
fn a_plan_in_shadow_mode_may_block() {
    let config =
        load("plans: { p: { shadow: true, limits: [ { quota: 5, window: 1m, block: 15m } ] } }")
            .unwrap();
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    assert!(config.plans.get("p").unwrap().has_blocks());
}

#[test]
fn a_wrong_block_is_told_with_its_path() {
    for (block, told) in [
        ("0s", "is 0s; write 1s to 31d"),
        ("500ms", "is 500ms; write 1s to 31d"),
        ("32d", "is 32d; write 1s to 31d"),
    ] {
        for own in ["window: 1m", "window: day"] {
            let text = with(&format!("{{ quota: 5, {own}, block: {block} }}"));
            assert_eq!(errors(&text), [format!("plans.p.limits[0].block {told}")]);
        }
    }
    let found = errors(&with("{ quota: 5, window: 1m, block: soon }"));
    assert!(
        found.len() == 1 && found[0].starts_with("plans.p.limits[0].block is \"soon\""),
        "{found:?}"
    );
    // All at once.
    let both = errors(
        "plans: { p: { limits: [ { quota: 5, window: 1m, block: 0s }, { quota: 5, window: 1h, block: 32d } ] } }",
    );
    assert_eq!(both.len(), 2, "{both:?}");
}

/// Else a replica with another `block` would say that it enforces the same plans.
#[test]
fn a_block_is_part_of_the_hash_of_the_config_and_survives_an_override() {
    let short = with("{ quota: 5, window: 1m, block: 1s }");
    let long = with("{ quota: 5, window: 1m, block: 2s }");
    assert_ne!(
        load(&short).unwrap().plans.canonical(),
        load(&long).unwrap().plans.canonical()
    );
    let limit = load(&long).unwrap().plans.get("p").unwrap().limits()[0].clone();
    for other in [
        limit.with_numbers(Some(7), None),
        limit.with_quota(7),
        Ok(limit.share(2)),
    ] {
        assert_eq!(other.unwrap().block_us(), 2_000_000);
    }
}
