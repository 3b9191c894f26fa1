//! The cache beside the algorithms that its store would decide by: what it answers, until when, and what it holds.

use std::time::Duration;

use proptest::prelude::*;
use smallvec::SmallVec;

use super::*;
use crate::algorithm::{State, decide};
use crate::plan::{Algorithm, Anchor, Limit, OnStoreFailure, Rule};

const SECOND_US: u64 = 1_000_000;
const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 4 };
const ALL: [Algorithm; 6] = [
    Algorithm::FixedWindow { anchor: Anchor::Clock },
    Algorithm::FixedWindow { anchor: Anchor::FirstRequest },
    Algorithm::SlidingLog,
    Algorithm::SlidingWindow { precision: 2 },
    Algorithm::SlidingCounter,
    BUCKET,
];

/// A plan of four units per window and limit.
fn plan(limits: &[(Algorithm, u64)]) -> Arc<Plan> {
    plan_of(4, limits)
}

fn plan_of(quota: u64, limits: &[(Algorithm, u64)]) -> Arc<Plan> {
    let limit = |(algorithm, window_ms): &(Algorithm, u64)| {
        // A bucket of a faster rate shortens what others wait for, so a larger one is one of a larger burst.
        let (quota, algorithm) = match *algorithm {
            Algorithm::TokenBucket { .. } => (4, Algorithm::TokenBucket { burst: quota }),
            other => (quota, other),
        };
        Limit::new("limit", quota, Duration::from_millis(*window_ms), algorithm).unwrap()
    };
    Arc::new(Plan {
        name: "plan".into(),
        counts_as: "plan".into(),
        rule: Rule::Limits(limits.iter().map(limit).collect()),
        shadow: false,
        on_store_failure: OnStoreFailure::Local,
    })
}

fn ask(plan: &Arc<Plan>, key: &str, cost: u64) -> Ask {
    Ask { key: Key::new(key).unwrap(), plan: plan.clone(), cost: Cost::new(cost).unwrap(), mode: Mode::Charge }
}

/// A denial of `cost` by a bucket that takes this long to give it.
fn denied_for(wait_us: u64, limit: &Limit, cost: u64) -> Verdict {
    let emission_us = limit.emission_us();
    let backlog_us = limit.tolerance_us() + wait_us - cost * emission_us;
    Verdict { fits: false, readings: [Reading::Bucket { backlog_us, emission_us }].into_iter().collect() }
}

/// A cache that was told once, at time 0, that `plan` denies "key" a cost of 1 for so long.
fn told(plan: &Arc<Plan>, wait_us: u64) -> DenyCache {
    let cache = DenyCache::new(10);
    cache.note(&ask(plan, "key", 1), &denied_for(wait_us, &plan.limits()[0], 1), 0);
    cache
}

/// One key's counters, as a store keeps them, and the time there.
struct Counters {
    states: SmallVec<[State; 4]>,
    now_us: u64,
}

impl Counters {
    fn of(plan: &Plan) -> Self {
        Self { states: plan.limits().iter().map(State::fresh).collect(), now_us: 4_000_000_000_000_777 }
    }

    fn charge(&mut self, ask: &Ask) -> Verdict {
        decide(ask.plan.limits(), &mut self.states, self.now_us, ask.cost, Mode::Charge)
    }

    fn peek(&mut self, ask: &Ask) -> Verdict {
        decide(ask.plan.limits(), &mut self.states, self.now_us, ask.cost, Mode::Peek)
    }
}

#[test]
fn a_denial_holds_until_its_release_and_no_microsecond_longer() {
    for algorithm in ALL {
        let plan = plan(&[(algorithm, 1_000)]);
        let mut counters = Counters::of(&plan);
        let one = ask(&plan, "key", 1);
        let denied = (0..5).map(|_| counters.charge(&one)).last().unwrap();
        let wait_us = denied.wait_us(plan.limits(), 1);
        assert!(!denied.fits && wait_us > 1, "{algorithm:?}");
        // Clock-aligned counters can deny for longer than the cache holds.
        let (cache, until_us) = (DenyCache::new(10), wait_us.min(SECOND_US));
        cache.note(&one, &denied, 7);
        let last = cache.recall(&one, 7 + until_us - 1).unwrap();
        assert_eq!(last.wait_us(plan.limits(), 1), wait_us - until_us + 1, "{algorithm:?}");
        assert_eq!(cache.recall(&one, 7 + until_us), None, "{algorithm:?}");
        counters.now_us += wait_us - 1;
        assert!(!counters.peek(&one).fits, "{algorithm:?}");
        counters.now_us += 1;
        assert!(counters.peek(&one).fits, "{algorithm:?}");
    }
}

#[test]
fn a_denial_is_held_for_a_second_at_most() {
    let plan = plan(&[(BUCKET, 3_600_000)]);
    let cache = told(&plan, 60 * SECOND_US);
    let one = ask(&plan, "key", 1);
    assert_eq!(cache.recall(&one, SECOND_US - 1).unwrap().wait_us(plan.limits(), 1), 59 * SECOND_US + 1);
    assert_eq!(cache.recall(&one, SECOND_US), None);
}

#[test]
fn only_its_own_key_plan_and_mode_are_denied() {
    let limits = [(BUCKET, 1_000)];
    let (mine, other) = (plan(&limits), plan(&limits));
    let cache = told(&mine, 1_000);
    assert!(cache.recall(&ask(&mine, "key", 1), 0).is_some());
    assert_eq!(cache.recall(&ask(&mine, "kez", 1), 0), None);
    // Equal in everything but its Arc, as the same plan is after a reload.
    assert_eq!(cache.recall(&ask(&other, "key", 1), 0), None);
    let peek = Ask { mode: Mode::Peek, ..ask(&mine, "key", 1) };
    assert_eq!(cache.recall(&peek, 0), None);
    cache.note(&Ask { key: Key::new("peeked").unwrap(), ..peek }, &denied_for(1_000, &mine.limits()[0], 1), 0);
    assert_eq!(cache.recall(&ask(&mine, "peeked", 1), 0), None);
}

#[test]
fn what_was_allowed_is_not_noted() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = DenyCache::new(10);
    let allowed = Verdict { fits: true, ..denied_for(1_000, &plan.limits()[0], 1) };
    cache.note(&ask(&plan, "key", 1), &allowed, 0);
    assert_eq!(cache.recall(&ask(&plan, "key", 1), 0), None);
}

#[test]
fn a_smaller_cost_that_fits_reaches_the_store_and_a_larger_one_waits_longer() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let (cache, mut counters) = (DenyCache::new(10), Counters::of(&plan));
    counters.charge(&ask(&plan, "key", 2));
    let three = ask(&plan, "key", 3);
    cache.note(&three, &counters.charge(&three), 0);
    assert_eq!(cache.recall(&ask(&plan, "key", 2), 0), None);
    assert_eq!(cache.recall(&three, 0).unwrap().wait_us(plan.limits(), 3), 250_000);
    assert_eq!(cache.recall(&ask(&plan, "key", 4), 0).unwrap().wait_us(plan.limits(), 4), 500_000);
}

#[test]
fn a_log_s_denial_answers_its_own_cost_and_each_cost_has_one() {
    let plan = plan(&[(Algorithm::SlidingLog, 1_000)]);
    let (cache, mut counters) = (DenyCache::new(10), Counters::of(&plan));
    for _ in 0..4 {
        counters.charge(&ask(&plan, "key", 1));
        counters.now_us += 1_000;
    }
    let (one, two) = (ask(&plan, "key", 1), ask(&plan, "key", 2));
    cache.note(&one, &counters.charge(&one), 0);
    assert_eq!(cache.recall(&two, 0), None);
    cache.note(&two, &counters.charge(&two), 0);
    assert_eq!(cache.recall(&one, 0).unwrap().wait_us(plan.limits(), 1), 996_000);
    assert_eq!(cache.recall(&two, 0).unwrap().wait_us(plan.limits(), 2), 997_000);
}

#[test]
fn a_newer_denial_takes_the_place_of_the_one_before() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = told(&plan, 1_000);
    cache.note(&ask(&plan, "key", 1), &denied_for(1_000, &plan.limits()[0], 1), 500);
    assert!(cache.recall(&ask(&plan, "key", 1), 1_499).is_some());
    assert_eq!(cache.table().entries.len(), 1);
}

#[test]
fn a_full_cache_forgets_one_that_is_over_before_one_that_holds() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = DenyCache::new(3);
    let note = |key: &str, wait_us, asked_us| {
        cache.note(&ask(&plan, key, 1), &denied_for(wait_us, &plan.limits()[0], 1), asked_us);
    };
    let held = |now_us: u64| -> Vec<&str> {
        ["a", "b", "c", "d", "e"].into_iter().filter(|key| cache.recall(&ask(&plan, key, 1), now_us).is_some()).collect()
    };
    note("a", 1_000, 0);
    note("b", 10, 0);
    note("c", 1_000, 0);
    assert_eq!(held(9), ["a", "b", "c"]);
    note("d", 1_000, 10);
    assert_eq!(held(10), ["a", "c", "d"]);
    note("e", 1_000, 10);
    let left = held(10);
    assert!(left.len() == 3 && left.contains(&"e"), "{left:?}");
}

#[test]
fn denials_that_are_over_make_room_so_that_only_those_that_hold_take_memory() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = DenyCache::new(1_000_000);
    // A new key is denied every 10 us for 10 ms: a thousand hold at any time.
    for index in 0..200_000_u64 {
        cache.note(&ask(&plan, &index.to_string(), 1), &denied_for(10_000, &plan.limits()[0], 1), index * 10);
    }
    let table = cache.table();
    assert!((1_000..2_000).contains(&table.entries.len()), "{}", table.entries.len());
    assert_eq!(table.entries.len(), table.by_name.len());
}

#[test]
fn it_stays_within_its_entries_and_each_is_found() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = DenyCache::new(5_000);
    for index in 0..50_000 {
        cache.note(&ask(&plan, &index.to_string(), 1), &denied_for(SECOND_US, &plan.limits()[0], 1), 0);
        assert!(cache.recall(&ask(&plan, &index.to_string(), 1), 0).is_some());
    }
    let held = (0..50_000).filter(|index| cache.recall(&ask(&plan, &index.to_string(), 1), 0).is_some()).count();
    let table = cache.table();
    assert_eq!((held, table.entries.len(), table.by_name.len()), (5_000, 5_000, 5_000));
    assert!(table.entries.capacity() <= 5_000);
}

/// The figure that the documents give; what the allocator adds to a key is not in it.
#[test]
fn an_entry_takes_about_a_hundred_bytes_beside_its_key() {
    let plan = plan(&[(BUCKET, 1_000)]);
    let cache = DenyCache::new(DENY_CACHE_DEFAULT);
    let (mut most, mut last) = (0, 0);
    for index in 0..DENY_CACHE_DEFAULT {
        cache.note(&ask(&plan, &index.to_string(), 1), &denied_for(SECOND_US, &plan.limits()[0], 1), 0);
        let table = cache.table();
        let bytes = table.entries.capacity() * size_of::<Entry>() + table.by_name.allocation_size();
        last = bytes / table.entries.len();
        if index >= 1_000 {
            most = most.max(last);
        }
    }
    println!("bytes an entry beside its key: {last} when full, at most {most} on the way");
    assert!(last <= 92 && most <= 104, "{last}, {most}");
}

/// Any limits, and costs that are asked for with the time before each.
fn any_limits() -> impl Strategy<Value = Vec<(Algorithm, u64)>> {
    proptest::collection::vec((proptest::sample::select(&ALL), 1..5_u64), 1..4)
}

#[test]
fn a_forgotten_key_is_denied_by_nothing_that_was_asked_until_then() {
    let plan = plan(&[(BUCKET, 3_600_000)]);
    let note = |cache: &DenyCache, key: &str, asked_us: u64| {
        cache.note(&ask(&plan, key, 1), &denied_for(60 * SECOND_US, &plan.limits()[0], 1), asked_us);
    };
    let holds = |cache: &DenyCache, key: &str, now_us: u64| cache.recall(&ask(&plan, key, 1), now_us).is_some();
    let cache = DenyCache::new(10);
    note(&cache, "key", 100);
    note(&cache, "other", 100);
    cache.forget("plan", &Key::new("key").unwrap(), 200);
    assert!(!holds(&cache, "key", 201) && holds(&cache, "other", 201));
    // Asked for before, and back only now.
    note(&cache, "key", 199);
    assert!(!holds(&cache, "key", 201));
    note(&cache, "key", 200);
    assert!(!holds(&cache, "key", 201));
    note(&cache, "key", 201);
    assert!(holds(&cache, "key", 201));
    // A second later there is nothing left that it could matter for, and what was noted before is over.
    note(&cache, "late", 200 + SECOND_US);
    assert!(holds(&cache, "late", 200 + SECOND_US) && !holds(&cache, "other", 200 + SECOND_US));
}

#[test]
fn only_plans_that_count_as_one_are_forgotten_together() {
    let limits = [(BUCKET, 3_600_000)];
    let (one, kin) = (plan(&limits), plan(&limits));
    let stranger = Arc::new(Plan { counts_as: "stranger".into(), ..(*one).clone() });
    let cache = DenyCache::new(10);
    let all = [&one, &kin, &stranger];
    for plan in all {
        cache.note(&ask(plan, "key", 1), &denied_for(60 * SECOND_US, &plan.limits()[0], 1), 7);
    }
    cache.forget("plan", &Key::new("key").unwrap(), 8);
    assert_eq!(all.map(|plan| cache.recall(&ask(plan, "key", 1), 9).is_some()), [false, false, true]);
}

#[test]
fn every_cost_of_a_log_is_forgotten() {
    let plan = plan(&[(Algorithm::SlidingLog, 3_600_000)]);
    let (cache, mut counters) = (DenyCache::new(10), Counters::of(&plan));
    counters.charge(&ask(&plan, "key", 4));
    for cost in 1..=4 {
        let ask = ask(&plan, "key", cost);
        cache.note(&ask, &counters.charge(&ask), 7);
        assert!(cache.recall(&ask, 8).is_some());
    }
    cache.forget("plan", &Key::new("key").unwrap(), 8);
    assert!((1..=4).all(|cost| cache.recall(&ask(&plan, "key", cost), 9).is_none()));
}

#[test]
fn too_many_forgotten_keys_are_all_keys_and_take_no_more_room() {
    let plan = plan(&[(BUCKET, 3_600_000)]);
    let cache = told(&plan, 60 * SECOND_US);
    for number in 0..FORGOTTEN_MAX as u64 {
        cache.forget("plan", &Key::new(format!("other {number}")).unwrap(), 10 + number);
        assert!(cache.recall(&ask(&plan, "key", 1), 10 + number).is_some());
    }
    let last_us = 10 + FORGOTTEN_MAX as u64;
    cache.forget("plan", &Key::new("one too many").unwrap(), last_us);
    assert_eq!(cache.recall(&ask(&plan, "key", 1), last_us + 1), None);
    assert!(cache.table().forgotten.at_us.len() <= FORGOTTEN_MAX);
    cache.note(&ask(&plan, "key", 1), &denied_for(60 * SECOND_US, &plan.limits()[0], 1), last_us + 1);
    assert!(cache.recall(&ask(&plan, "key", 1), last_us + 2).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// As below, and now and then the store is told to forget the key or gives units back, while an answer to an earlier ask
    /// is still on its way.
    #[test]
    fn what_was_forgotten_is_denied_by_the_store_alone(
        limits in any_limits(),
        requests in proptest::collection::vec((0..700_u64, 1..5_u64, 0..8_u64), 1..80),
    ) {
        let plan = plan(&limits);
        let (cache, mut counters) = (DenyCache::new(10), Counters::of(&plan));
        let start_us = counters.now_us;
        let mut on_its_way = None;
        for (step_us, cost, what) in requests {
            counters.now_us += step_us;
            let now_us = counters.now_us - start_us;
            let ask = ask(&plan, "key", cost);
            if cache.recall(&ask, now_us).is_some() {
                prop_assert!(!counters.peek(&ask).fits);
            }
            match what {
                0..=1 => {
                    if what == 0 {
                        counters = Counters { now_us: counters.now_us, ..Counters::of(&plan) };
                    } else {
                        decide(plan.limits(), &mut counters.states, counters.now_us, ask.cost, Mode::Refund);
                    }
                    cache.forget("plan", &ask.key, now_us);
                }
                2 => on_its_way = Some((counters.charge(&ask), ask, now_us)),
                3 => if let Some((answer, ask, asked_us)) = on_its_way.take() {
                    cache.note(&ask, &answer, asked_us);
                },
                _ => cache.note(&ask, &counters.charge(&ask), now_us),
            }
        }
    }

    /// Whoever else is granted units meanwhile, by this plan or by a larger one that shares its count: while the cache
    /// denies, so does the store, and for at least as long as the cache says.
    #[test]
    fn the_cache_denies_only_what_the_store_denies(
        limits in any_limits(),
        requests in proptest::collection::vec((0..700_u64, 1..5_u64, 1..9_u64, any::<bool>()), 1..80),
    ) {
        let (mine, larger) = (plan(&limits), plan_of(8, &limits));
        let (cache, mut counters) = (DenyCache::new(10), Counters::of(&mine));
        let start_us = counters.now_us;
        for (step_us, cost, others_cost, elsewhere) in requests {
            counters.now_us += step_us;
            let now_us = counters.now_us - start_us;
            let mine = ask(&mine, "key", cost);
            let truth = counters.peek(&mine);
            if let Some(told) = cache.recall(&mine, now_us) {
                prop_assert!(!truth.fits);
                prop_assert!(told.wait_us(mine.plan.limits(), cost) <= truth.wait_us(mine.plan.limits(), cost));
            }
            if elsewhere {
                counters.charge(&ask(&larger, "key", others_cost.min(larger.never_fits_above())));
            } else {
                // Asked a little before it is decided, as over a network.
                cache.note(&mine, &counters.charge(&mine), now_us.saturating_sub(step_us / 2));
            }
        }
    }
}

impl Plan {
    /// The largest cost that can ever pass.
    fn never_fits_above(&self) -> u64 {
        self.limits().iter().map(Limit::capacity).min().unwrap()
    }
}
