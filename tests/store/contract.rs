//! The contract on `trait Store`, run against every store.

mod bounds;
mod edits;
#[macro_use]
mod fixture;
mod refunds;
mod resets;

use std::sync::Arc;
use std::time::Duration;

use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Plan};
use tollgate::store::{
    Check, ConfiguredStore, MemoryStore, RedisStore, Store, StoreDeadline, Subject, Verdict,
};

use crate::support::asks::{Ask, ask_in_order};
use crate::support::clock::FakeClock;
use crate::support::cluster::Cluster;
use crate::support::plans::{
    ANCHORED, BUCKET, COUNTER, FIXED, LOG, WINDOW, ask, every_but_the_bucket, limit, peek, plan,
    refund,
};
use crate::support::redis::{Redis, cli, other_make};
use edits::*;
use fixture::Fixture;
use refunds::*;
use resets::*;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const ALL: [Algorithm; Algorithm::EVERY.len()] = Algorithm::EVERY;
/// Uncommon windows, whose logs are listed in the index.
const ODD: Duration = Duration::from_secs(97);
const ODD_TOO: Duration = Duration::from_millis(4_321_000);

async fn a_limit_is_reached_exactly(fixture: Fixture) {
    for algorithm in ALL {
        let plan = plan(vec![limit(5, MINUTE, algorithm)]);
        for _ in 0..5 {
            assert!(fixture.fits(&plan, "reached", 1).await, "{algorithm:?}");
        }
        assert!(!fixture.fits(&plan, "reached", 1).await, "{algorithm:?}");
        assert_eq!(
            fixture.remaining(&plan, "reached").await,
            [0],
            "{algorithm:?}"
        );
        assert_eq!(
            fixture.remaining(&plan, "another").await,
            [5],
            "{algorithm:?}"
        );
    }
}

/// envoyproxy/ratelimit charges what it denies: of a limit of 100, 60 pass, 60 more are denied, and then 10 are too.
async fn denied_requests_never_consume(fixture: Fixture) {
    for algorithm in every_but_the_bucket() {
        let plan = plan(vec![limit(100, MINUTE, algorithm)]);
        assert!(fixture.fits(&plan, "consume", 60).await);
        assert!(!fixture.fits(&plan, "consume", 60).await);
        assert!(fixture.fits(&plan, "consume", 40).await, "{algorithm:?}");
        assert!(!fixture.fits(&plan, "consume", 1).await);
    }
}

async fn all_limits_are_charged_or_none(fixture: Fixture) {
    let two = vec![limit(33, MINUTE, FIXED), limit(2000, HOUR, FIXED)];
    let with_a_log = [&two[..], &[limit(50, MINUTE, LOG)]].concat();
    let the_last_denies = two.iter().cloned().rev().collect();
    let cases = [
        ("browse", two, &[0, 1967][..]),
        ("last", the_last_denies, &[1967, 0]),
        ("with a log", with_a_log, &[0, 1967, 17]),
    ];
    for (key, limits, remaining) in cases {
        let browse = plan(limits);
        for _ in 0..33 {
            assert!(fixture.fits(&browse, key, 1).await);
        }
        for _ in 0..20 {
            assert!(!fixture.fits(&browse, key, 1).await);
        }
        assert_eq!(fixture.remaining(&browse, key).await, remaining);
    }
}

async fn peeks_repeat_their_answer_after_the_clock_stepped_back(fixture: Fixture) {
    for algorithm in ALL {
        let plan = plan(vec![limit(5, MINUTE, algorithm)]);
        fixture.decide(ask(&plan, "peeked", 2)).await;
        fixture
            .clock
            .set(crate::support::clock::START_US - 1_000_000);
        // A bucket's debt is a point in time: a second more of it is not yet paid when the clock steps back by one.
        let remaining = if algorithm == BUCKET { 2 } else { 3 };
        for _ in 0..10 {
            assert_eq!(
                fixture.remaining(&plan, "peeked").await,
                [remaining],
                "{algorithm:?}"
            );
            assert_eq!(fixture.remaining(&plan, "never seen").await, [5]);
        }
        fixture.clock.set(crate::support::clock::START_US);
    }
}

/// For limits of every pair of algorithms, and with either record first in the state.
async fn a_charge_under_one_limit_leaves_the_others_as_they_are(fixture: Fixture) {
    for (first, second) in ALL
        .into_iter()
        .flat_map(|first| ALL.map(|second| (first, second)))
    {
        let minute = limit(10, MINUTE, first);
        let hour = limit(20, HOUR, second);
        let both = plan(vec![minute.clone(), hour]);
        let key = format!("{first:?} {second:?}");
        assert!(fixture.fits(&both, &key, 4).await);
        let before = fixture.remaining(&both, &key).await;
        assert!(fixture.fits(&plan(vec![minute]), &key, 1).await);
        assert_eq!(
            fixture.remaining(&both, &key).await,
            [before[0] - 1, before[1]],
            "{key}"
        );
    }
}

/// Whatever stands in the state already: one limit alone must not take the record of another for its own.
async fn limits_of_other_fingerprints_count_apart(fixture: Fixture) {
    for (first, second) in ALL
        .into_iter()
        .flat_map(|first| ALL.map(|second| (first, second)))
    {
        let short = limit(5, HOUR, first);
        let long = limit(5, 2 * HOUR, second);
        let key = format!("{first:?} {second:?} apart");
        assert!(fixture.fits(&plan(vec![short.clone()]), &key, 3).await);
        assert!(
            fixture.fits(&plan(vec![long.clone()]), &key, 1).await,
            "{key}"
        );
        assert_eq!(
            fixture.remaining(&plan(vec![short, long]), &key).await,
            [2, 4],
            "{key}"
        );
    }
}

async fn one_key_several_times_in_a_batch_is_decided_in_order(fixture: Fixture) {
    for algorithm in ALL {
        let plan = plan(vec![limit(5, MINUTE, algorithm)]);
        let asks: Vec<Check> = [3, 4, 1, 1, 1]
            .into_iter()
            .map(|cost| ask(&plan, "batched", cost))
            .collect();
        let verdicts = fixture.store.decide_batch(&asks, PATIENCE).await;
        let fits: Vec<bool> = verdicts
            .into_iter()
            .map(|verdict| verdict.unwrap().fits)
            .collect();
        assert_eq!(fits, [true, false, true, true, false], "{algorithm:?}");
    }
}

async fn a_batch_larger_than_a_script_call_is_decided_in_order(fixture: Fixture) {
    let plan = plan(vec![limit(500, MINUTE, LOG)]);
    let asks: Vec<Check> = (0..1000).map(|_| ask(&plan, "large", 1)).collect();
    let verdicts = fixture.store.decide_batch(&asks, PATIENCE).await;
    let first_denied = verdicts
        .iter()
        .position(|verdict| !verdict.as_ref().unwrap().fits);
    assert_eq!((verdicts.len(), first_denied), (1000, Some(500)));
}

/// A limiter that reads a count and then increments it lets too many pass here: limitador let 1,029 to 1,124 of 1,000 pass.
async fn ten_at_once_on_a_limit_of_five_let_five_pass(fixture: Fixture) {
    for algorithm in ALL {
        let plan = plan(vec![limit(5, HOUR, algorithm)]);
        for round in 0..100 {
            let calls = (0..10).map(|_| {
                let store = fixture.store.clone();
                let ask = ask(&plan, &format!("raced {round}"), 1);
                tokio::spawn(async move { store.decide_one(&ask, PATIENCE).await.unwrap().fits })
            });
            let mut passed = 0;
            for call in calls.collect::<Vec<_>>() {
                passed += usize::from(call.await.unwrap());
            }
            assert_eq!(passed, 5, "{algorithm:?}, round {round}");
        }
    }
}

async fn groups_and_keys_do_not_collide(fixture: Fixture) {
    let of = |group: &str| {
        Arc::new(Plan {
            counts_as: group.into(),
            ..(*plan(vec![limit(1, MINUTE, FIXED)])).clone()
        })
    };
    for (group, key) in [
        ("a_b", "c"),
        ("a", "b_c"),
        ("a", "b}c"),
        ("a", "b%7Dc"),
        ("a", "{b"),
        ("a", "é\n\0"),
        ("a", ":"),
        ("a", "::"),
    ] {
        assert!(
            fixture.fits(&of(group), key, 1).await,
            "{group} {key:?} shares a counter"
        );
        assert!(!fixture.fits(&of(group), key, 1).await, "{group} {key:?}");
    }
}

async fn the_largest_numbers_are_exact(fixture: Fixture) {
    let year = tollgate::plan::WINDOW_MAX;
    let quota = tollgate::plan::QUOTA_MAX;
    for algorithm in [FIXED, ANCHORED, WINDOW] {
        let plan = plan(vec![limit(quota, year, algorithm)]);
        assert!(fixture.fits(&plan, "large", quota - 1).await);
        assert_eq!(
            fixture.remaining(&plan, "large").await,
            [1],
            "{algorithm:?}"
        );
        assert!(!fixture.fits(&plan, "large", 2).await);
        assert!(fixture.fits(&plan, "large", 1).await, "{algorithm:?}");
    }
    let log = plan(vec![limit(
        tollgate::plan::SLIDING_LOG_QUOTA_MAX,
        year,
        LOG,
    )]);
    assert!(
        fixture
            .fits(&log, "large", tollgate::plan::SLIDING_LOG_QUOTA_MAX)
            .await
    );
    assert!(!fixture.fits(&log, "large", 1).await);
    fixture.clock.advance(366 * 24 * 3600 * 1_000_000);
    assert!(
        fixture
            .fits(&log, "large", tollgate::plan::SLIDING_LOG_QUOTA_MAX)
            .await
    );
}

async fn full_at_the_end_of_a_minute_leaves_nothing_right_after_it(fixture: Fixture) {
    let end_us = crate::support::clock::START_US.next_multiple_of(60_000_000);
    for (algorithm, admitted) in [(LOG, 0), (WINDOW, 0), (FIXED, 100)] {
        let plan = plan(vec![limit(100, MINUTE, algorithm)]);
        let mut passed = [0, 0];
        for (half, at_us) in [end_us - 1, end_us].into_iter().enumerate() {
            fixture.clock.set(at_us);
            for _ in 0..100 {
                passed[half] += u64::from(fixture.fits(&plan, "minute", 1).await);
            }
        }
        assert_eq!(passed, [100, admitted], "{algorithm:?}");
    }
}

async fn a_counter_of_another_plan_weighs_on(fixture: Fixture) {
    let counter = limit(10, MINUTE, COUNTER);
    let hour = limit(20, HOUR, FIXED);
    let both = plan(vec![counter, hour.clone()]);
    let end_us = crate::support::clock::START_US.next_multiple_of(60_000_000);
    fixture.clock.set(end_us - 1);
    assert!(fixture.fits(&both, "weighs", 10).await);
    fixture.clock.set(end_us + 1);
    assert!(fixture.fits(&plan(vec![hour]), "weighs", 1).await);
    assert_eq!(fixture.remaining(&both, "weighs").await[0], 0);
}

async fn a_long_window_of_another_plan_stays(fixture: Fixture) {
    let month = limit(10, MINUTE * 60 * 24 * 30, ANCHORED);
    let minute = limit(20, MINUTE, FIXED);
    let both = plan(vec![month, minute.clone()]);
    assert!(fixture.fits(&both, "month", 10).await);
    fixture.clock.advance(29 * 24 * 3600 * 1_000_000);
    assert!(fixture.fits(&plan(vec![minute]), "month", 1).await);
    assert_eq!(fixture.remaining(&both, "month").await[0], 0);
}

async fn a_key_expires_once_it_is_fresh_and_not_long_after(fixture: Fixture) {
    let Some(redis) = fixture.redis.as_ref() else {
        return;
    };
    let mut plans: Vec<Arc<Plan>> = ALL
        .iter()
        .map(|algorithm| plan(vec![limit(70, MINUTE, *algorithm)]))
        .collect();
    plans.push(plan(vec![limit(90, HOUR, FIXED), limit(70, MINUTE, FIXED)]));
    plans.push(plan(vec![limit(70, ODD, LOG)]));
    // An eighth of the window, two milliseconds for rounding.
    let slack_us = |plan: &Plan| {
        plan.limits()
            .iter()
            .map(|limit| limit.window_us())
            .max()
            .unwrap()
            / 8
            + 2_000
    };
    for (index, plan) in plans.iter().enumerate() {
        let key = format!("k{index}");
        // Charges of which some leave the expiry as it was and some do not.
        for step_us in [
            1_234_567,
            0,
            1,
            2_500_000,
            7_500_000,
            7_499_999,
            40_000_000,
            200_000_000,
            5,
        ] {
            fixture.clock.advance(step_us);
            let now_us = tollgate::clock::Clock::now_us(&fixture.clock);
            let verdict = fixture.decide(ask(plan, &key, 1)).await;
            let statuses = verdict.statuses(plan.limits(), Cost::ONE);
            let fresh_us = now_us
                + statuses
                    .iter()
                    .map(|status| status.reset_after_us)
                    .max()
                    .unwrap();
            let names = redis.cli(&["KEYS", &format!("*{key}*")]);
            assert_ne!(names, "");
            for name in names.lines() {
                let expires_us: u64 =
                    redis.cli(&["PEXPIRETIME", name]).parse::<u64>().unwrap() * 1000;
                assert!(
                    expires_us > fresh_us && expires_us <= fresh_us + slack_us(plan),
                    "{name}: {expires_us} {fresh_us}"
                );
            }
        }
    }
}

async fn a_peek_changes_no_byte(fixture: Fixture) {
    for algorithm in ALL {
        let plan = plan(vec![limit(5, MINUTE, algorithm)]);
        fixture
            .decide(ask(&plan, &format!("{algorithm:?}"), 2))
            .await;
    }
    let before = fixture.kept();
    assert!(
        fixture.ports.is_empty() || before.contains("group"),
        "{before}"
    );
    fixture
        .clock
        .set(crate::support::clock::START_US - 120_000_000);
    for algorithm in ALL {
        let plan = plan(vec![limit(5, MINUTE, algorithm)]);
        fixture
            .decide(peek(&plan, &format!("{algorithm:?}"), 1))
            .await;
        assert_eq!(fixture.kept(), before, "{algorithm:?}");
    }
}

every_store_keeps! {
    a_limit_is_reached_exactly,
    denied_requests_never_consume,
    all_limits_are_charged_or_none,
    peeks_repeat_their_answer_after_the_clock_stepped_back,
    edits_keep_the_usage,
    an_empty_bucket_stays_empty_after_a_change_of_its_rate,
    buckets_of_one_count_grant_one_burst_at_one_instant,
    a_refund_to_a_bucket_is_in_units_after_a_change_of_its_rate,
    other_limits_of_a_plan_come_and_go_without_a_reset,
    a_charge_under_one_limit_leaves_the_others_as_they_are,
    limits_of_other_fingerprints_count_apart,
    one_key_several_times_in_a_batch_is_decided_in_order,
    a_batch_larger_than_a_script_call_is_decided_in_order,
    ten_at_once_on_a_limit_of_five_let_five_pass,
    groups_and_keys_do_not_collide,
    the_largest_numbers_are_exact,
    full_at_the_end_of_a_minute_leaves_nothing_right_after_it,
    a_counter_of_another_plan_weighs_on,
    a_long_window_of_another_plan_stays,
    a_key_expires_once_it_is_fresh_and_not_long_after,
    a_peek_changes_no_byte,
    a_refund_gives_back_what_was_taken_and_no_more,
    a_refund_of_nothing_leaves_nothing_and_changes_nothing,
    a_full_refund_leaves_no_key_in_redis,
    a_refund_reaches_each_limit_by_what_it_counted,
    refunds_among_charges_are_done_in_order,
    a_lowered_quota_is_refunded_from_where_it_stands,
    a_reset_key_is_as_fresh_and_no_other_is,
    a_reset_forgets_every_fingerprint_that_the_key_had,
    a_reset_forgets_every_log_whenever_it_began,
    the_index_of_logs_is_there_for_as_long_as_its_logs,
}
