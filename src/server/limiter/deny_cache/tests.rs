//! The cache compared with the algorithms that its store would decide by: its answers, their end, and its memory.

mod forgotten;
mod room;

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use smallvec::SmallVec;

use super::*;
use tollgate_core::algorithm::{State, decide, refund};
use tollgate_core::plan::{Algorithm, Limit, Rule};

const SECOND_US: u64 = 1_000_000;
const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 4 };

/// A plan of four units per window and limit.
fn plan(limits: &[(Algorithm, u64)]) -> Arc<Plan> {
    plan_of(4, limits)
}

fn plan_of(quota: u64, limits: &[(Algorithm, u64)]) -> Arc<Plan> {
    let limit = |(algorithm, window_ms): &(Algorithm, u64)| {
        // A bucket of a faster rate shortens the waits of others, so the larger plan has a larger burst instead.
        let (quota, algorithm) = match *algorithm {
            Algorithm::TokenBucket { .. } => (4, Algorithm::TokenBucket { burst: quota }),
            other => (quota, other),
        };
        Limit::new("limit", quota, Duration::from_millis(*window_ms), algorithm).unwrap()
    };
    Arc::new(Plan::new("plan", Rule::limits(limits.iter().map(limit))))
}

fn check(plan: &Arc<Plan>, key: &str, cost: u64) -> Check {
    Check {
        key: Key::new(key).unwrap(),
        plan: plan.clone(),
        cost: Cost::new(cost).unwrap(),
        mode: Mode::Charge,
    }
}

/// A denial of `cost` by a bucket that needs this long until it fits.
fn denied_for(wait_us: u64, limit: &Limit, cost: u64) -> Verdict {
    let emission_us = limit.emission_us();
    let backlog_us = limit.tolerance_us() + wait_us - cost * emission_us;
    let readings = [Reading::Bucket {
        backlog_us,
        emission_us,
    }]
    .into_iter()
    .collect();
    Verdict {
        fits: false,
        readings,
        blocks: None,
        release_in_us: 0,
    }
}

/// A cache with one denial, remembered at time 0: `plan` denies "key" a cost of 1 for this long.
fn cache_with_denial(plan: &Arc<Plan>, wait_us: u64) -> DenyCache {
    let cache = DenyCache::new(10);
    cache.remember(
        &check(plan, "key", 1),
        &denied_for(wait_us, &plan.limits()[0], 1),
        0,
    );
    cache
}

/// The counters of one key, as a store keeps them, and the store's time.
struct Counters {
    states: SmallVec<[State; 4]>,
    now_us: u64,
}

impl Counters {
    fn for_plan(plan: &Plan) -> Self {
        Self {
            states: plan.limits().iter().map(State::fresh).collect(),
            now_us: 4_000_000_000_000_777,
        }
    }

    fn charge(&mut self, check: &Check) -> Verdict {
        decide(
            check.plan.limits(),
            &mut self.states,
            self.now_us,
            check.cost,
            Mode::Charge,
        )
    }

    fn peek(&mut self, check: &Check) -> Verdict {
        decide(
            check.plan.limits(),
            &mut self.states,
            self.now_us,
            check.cost,
            Mode::Peek,
        )
    }
}

#[test]
fn a_denial_holds_until_its_release_and_no_microsecond_longer() {
    for algorithm in Algorithm::EVERY {
        let plan = plan(&[(algorithm, 1_000)]);
        let mut counters = Counters::for_plan(&plan);
        let one = check(&plan, "key", 1);
        let denied = (0..5).map(|_| counters.charge(&one)).last().unwrap();
        let wait_us = denied.wait_us(plan.limits(), 1);
        assert!(!denied.fits && wait_us > 1, "{algorithm:?}");
        // Clock-aligned counters can deny for longer than the cache holds.
        let cache = DenyCache::new(10);
        let until_us = wait_us.min(SECOND_US);
        cache.remember(&one, &denied, 7);
        let last = cache.lookup(&one, 7 + until_us - 1).unwrap();
        assert_eq!(
            last.wait_us(plan.limits(), 1),
            wait_us - until_us + 1,
            "{algorithm:?}"
        );
        assert_eq!(cache.lookup(&one, 7 + until_us), None, "{algorithm:?}");
        counters.now_us += wait_us - 1;
        assert!(!counters.peek(&one).fits, "{algorithm:?}");
        counters.now_us += 1;
        assert!(counters.peek(&one).fits, "{algorithm:?}");
    }
}

#[test]
fn a_denial_is_held_for_a_second_at_most() {
    let plan = plan(&[(BUCKET, 3_600_000)]);
    let cache = cache_with_denial(&plan, 60 * SECOND_US);
    let one = check(&plan, "key", 1);
    assert_eq!(
        cache
            .lookup(&one, SECOND_US - 1)
            .unwrap()
            .wait_us(plan.limits(), 1),
        59 * SECOND_US + 1
    );
    assert_eq!(cache.lookup(&one, SECOND_US), None);
}

#[test]
fn only_its_own_key_plan_and_mode_are_denied() {
    let limits = [(BUCKET, 1_000)];
    let mine = plan(&limits);
    let other = plan(&limits);
    let cache = cache_with_denial(&mine, 1_000);
    assert!(cache.lookup(&check(&mine, "key", 1), 0).is_some());
    assert_eq!(cache.lookup(&check(&mine, "kez", 1), 0), None);
    // Equal in everything but its `Arc`, like an equal plan after a reload.
    assert_eq!(cache.lookup(&check(&other, "key", 1), 0), None);
    let peek = Check {
        mode: Mode::Peek,
        ..check(&mine, "key", 1)
    };
    assert_eq!(cache.lookup(&peek, 0), None);
    cache.remember(
        &Check {
            key: Key::new("peeked").unwrap(),
            ..peek
        },
        &denied_for(1_000, &mine.limits()[0], 1),
        0,
    );
    assert_eq!(cache.lookup(&check(&mine, "peeked", 1), 0), None);
}

#[test]
fn an_allowed_request_is_not_noted() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = DenyCache::new(10);
    let allowed = Verdict {
        fits: true,
        ..denied_for(1_000, &plan.limits()[0], 1)
    };
    cache.remember(&check(&plan, "key", 1), &allowed, 0);
    assert_eq!(cache.lookup(&check(&plan, "key", 1), 0), None);
}

#[test]
fn a_smaller_cost_that_fits_reaches_the_store_and_a_larger_one_waits_longer() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = DenyCache::new(10);
    let mut counters = Counters::for_plan(&plan);
    counters.charge(&check(&plan, "key", 2));
    let three = check(&plan, "key", 3);
    cache.remember(&three, &counters.charge(&three), 0);
    assert_eq!(cache.lookup(&check(&plan, "key", 2), 0), None);
    assert_eq!(
        cache.lookup(&three, 0).unwrap().wait_us(plan.limits(), 3),
        250_000
    );
    assert_eq!(
        cache
            .lookup(&check(&plan, "key", 4), 0)
            .unwrap()
            .wait_us(plan.limits(), 4),
        500_000
    );
}

#[test]
fn a_log_s_denial_answers_its_own_cost_and_each_cost_has_one() {
    let plan = plan(&[(Algorithm::SlidingLog, 1_000)]);
    let cache = DenyCache::new(10);
    let mut counters = Counters::for_plan(&plan);
    for _ in 0..4 {
        counters.charge(&check(&plan, "key", 1));
        counters.now_us += 1_000;
    }
    let one = check(&plan, "key", 1);
    let two = check(&plan, "key", 2);
    cache.remember(&one, &counters.charge(&one), 0);
    assert_eq!(cache.lookup(&two, 0), None);
    cache.remember(&two, &counters.charge(&two), 0);
    assert_eq!(
        cache.lookup(&one, 0).unwrap().wait_us(plan.limits(), 1),
        996_000
    );
    assert_eq!(
        cache.lookup(&two, 0).unwrap().wait_us(plan.limits(), 2),
        997_000
    );
}

#[test]
fn a_newer_denial_takes_the_place_of_the_one_before() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = cache_with_denial(&plan, 1_000);
    cache.remember(
        &check(&plan, "key", 1),
        &denied_for(1_000, &plan.limits()[0], 1),
        500,
    );
    assert!(cache.lookup(&check(&plan, "key", 1), 1_499).is_some());
    assert_eq!(cache.table().entries.len(), 1);
}

/// Any limits, for requests with any cost and time step.
fn any_limits() -> impl Strategy<Value = Vec<(Algorithm, u64)>> {
    proptest::collection::vec(
        (proptest::sample::select(&Algorithm::EVERY[..]), 1..5_u64),
        1..4,
    )
}

proptest! {
    // Failures are kept beside this file, as those of tests/ are.
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        ..ProptestConfig::with_cases(3000)
    })]

    /// Like the test below, with resets and refunds in the store while the answer to an earlier call is still on its way.
    #[test]
    fn a_forgotten_key_is_denied_by_the_store_alone(
        limits in any_limits(),
        requests in proptest::collection::vec((0..700_u64, 1..5_u64, 0..8_u64), 1..80),
    ) {
        let plan = plan(&limits);
        let cache = DenyCache::new(10);
        let mut counters = Counters::for_plan(&plan);
        let start_us = counters.now_us;
        let mut on_its_way = None;
        for (step_us, cost, what) in requests {
            counters.now_us += step_us;
            let now_us = counters.now_us - start_us;
            let check = check(&plan, "key", cost);
            if cache.lookup(&check, now_us).is_some() {
                prop_assert!(!counters.peek(&check).fits);
            }
            match what {
                0..=1 => {
                    if what == 0 {
                        counters = Counters { now_us: counters.now_us, ..Counters::for_plan(&plan) };
                    } else {
                        refund(plan.limits(), &mut counters.states, counters.now_us, check.cost);
                    }
                    cache.forget("plan", &check.key, now_us);
                }
                2 => on_its_way = Some((counters.charge(&check), check, now_us)),
                3 => if let Some((answer, check, asked_us)) = on_its_way.take() {
                    cache.remember(&check, &answer, asked_us);
                },
                _ => cache.remember(&check, &counters.charge(&check), now_us),
            }
        }
    }

    /// Others are granted units meanwhile, by this plan or by a larger one that counts together with it. While the cache
    /// denies, the store denies too, for at least as long as the cache says.
    #[test]
    fn the_cache_denies_only_what_the_store_denies(
        limits in any_limits(),
        requests in proptest::collection::vec((0..700_u64, 1..5_u64, 1..9_u64, any::<bool>()), 1..80),
    ) {
        let mine = plan(&limits);
        let larger = plan_of(8, &limits);
        let cache = DenyCache::new(10);
        let mut counters = Counters::for_plan(&mine);
        let start_us = counters.now_us;
        for (step_us, cost, others_cost, elsewhere) in requests {
            counters.now_us += step_us;
            let now_us = counters.now_us - start_us;
            let mine = check(&mine, "key", cost);
            let expected = counters.peek(&mine);
            if let Some(remembered) = cache.lookup(&mine, now_us) {
                prop_assert!(!expected.fits);
                prop_assert!(remembered.wait_us(mine.plan.limits(), cost) <= expected.wait_us(mine.plan.limits(), cost));
            }
            if elsewhere {
                counters.charge(&check(&larger, "key", others_cost.min(never_fits_above(&larger))));
            } else {
                // The store was asked a little before it decided, as over a network.
                cache.remember(&mine, &counters.charge(&mine), now_us.saturating_sub(step_us / 2));
            }
        }
    }
}

/// The largest cost that fits.
fn never_fits_above(plan: &Plan) -> u64 {
    plan.limits().iter().map(Limit::capacity).min().unwrap()
}
