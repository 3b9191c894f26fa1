//! Configs of released versions: each later version accepts them, with the same meaning.
//!
//! A file of `configs/` is never edited. Where a test here fails, an upgrade would stop servers or change their limits.

use std::path::Path;
use std::time::Duration;

use tollgate::config::{Config, Origin, Sources};
use tollgate::plan::{Algorithm, Anchor, OnStoreFailure, Plan, Rule};

use crate::support::server::tollgate;

const OF_0_1_0: &str = include_str!("configs/0.1.0.yaml");
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Name, quota, window and algorithm of each limit.
fn limits(plan: &Plan) -> Vec<(String, u64, Duration, Algorithm)> {
    let parts = |limit: &tollgate::plan::Limit| {
        (
            limit.name().to_string(),
            limit.quota(),
            Duration::from_micros(limit.window_us()),
            limit.algorithm(),
        )
    };
    plan.limits().iter().map(parts).collect()
}

#[test]
fn a_config_of_0_1_0_is_accepted_without_a_word() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/process/configs/0.1.0.yaml");
    let output = tollgate().arg("check").arg(file).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn plans_of_0_1_0_mean_what_they_meant() {
    let text = Some((Origin::Variable, OF_0_1_0.to_owned()));
    let plans = Config::load(Sources {
        text,
        ..Sources::default()
    })
    .unwrap()
    .plans;
    let names: Vec<&str> = plans.iter().map(|plan| &*plan.name).collect();
    assert_eq!(names, ["banned", "free", "internal", "login", "paid"]);
    assert_eq!(plans.default_plan().unwrap().1.name.to_string(), "free");
    let plan = |name| plans.get(name).unwrap();
    assert_eq!(
        limits(plan("free")),
        [("minute".to_owned(), 100, MINUTE, Algorithm::SlidingLog)]
    );
    let paid = [
        ("minute".to_owned(), 3_000, MINUTE, Algorithm::SlidingLog),
        (
            "rate".to_owned(),
            20_000,
            10 * MINUTE,
            Algorithm::TokenBucket { burst: 2_000 },
        ),
        (
            "day".to_owned(),
            1_000_000,
            DAY,
            Algorithm::FixedWindow {
                anchor: Anchor::Clock,
            },
        ),
        (
            "month".to_owned(),
            20_000_000,
            30 * DAY,
            Algorithm::SlidingWindow { precision: 32 },
        ),
    ];
    assert_eq!(limits(plan("paid")), paid);
    let first_request = Algorithm::FixedWindow {
        anchor: Anchor::FirstRequest,
    };
    assert_eq!(
        limits(plan("login")),
        [("fixed_window/1m".to_owned(), 5, MINUTE, first_request)]
    );
    assert!(
        matches!(plan("internal").rule, Rule::Unlimited)
            && matches!(plan("banned").rule, Rule::Blocked)
    );
    let policies = ["free", "login"].map(|name| plan(name).on_store_failure);
    assert_eq!(policies, [OnStoreFailure::Local, OnStoreFailure::Deny]);
    assert!(
        ["free", "paid"]
            .iter()
            .all(|name| &*plan(name).counts_as == "customer")
    );
}
