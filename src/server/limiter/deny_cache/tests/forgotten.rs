//! Keys whose denials are forgotten, as after a reset.

use super::*;

#[test]
fn no_denial_from_before_a_key_was_forgotten_holds() {
    let plan = plan(&[(BUCKET, 3_600_000)]);
    let remember = |cache: &DenyCache, key: &str, asked_us: u64| {
        cache.remember(
            &check(&plan, key, 1),
            &denied_for(60 * SECOND_US, &plan.limits()[0], 1),
            asked_us,
        );
    };
    let holds = |cache: &DenyCache, key: &str, now_us: u64| {
        cache.lookup(&check(&plan, key, 1), now_us).is_some()
    };
    let cache = DenyCache::new(10);
    remember(&cache, "key", 100);
    remember(&cache, "other", 100);
    cache.forget("plan", &Key::new("key").unwrap(), 200);
    assert!(!holds(&cache, "key", 201) && holds(&cache, "other", 201));
    // Asked for before the key was forgotten, and remembered after.
    remember(&cache, "key", 199);
    assert!(!holds(&cache, "key", 201));
    remember(&cache, "key", 200);
    assert!(!holds(&cache, "key", 201));
    remember(&cache, "key", 201);
    assert!(holds(&cache, "key", 201));
    // A second later no earlier denial could still hold, so the mark no longer matters.
    remember(&cache, "late", 200 + SECOND_US);
    assert!(holds(&cache, "late", 200 + SECOND_US) && !holds(&cache, "other", 200 + SECOND_US));
}

#[test]
fn a_key_is_forgotten_for_all_plans_of_one_counts_as_only() {
    let limits = [(BUCKET, 3_600_000)];
    let one = plan(&limits);
    let kin = plan(&limits);
    let stranger = Arc::new(Plan {
        counts_as: "stranger".into(),
        ..(*one).clone()
    });
    let cache = DenyCache::new(10);
    let all = [&one, &kin, &stranger];
    for plan in all {
        cache.remember(
            &check(plan, "key", 1),
            &denied_for(60 * SECOND_US, &plan.limits()[0], 1),
            7,
        );
    }
    cache.forget("plan", &Key::new("key").unwrap(), 8);
    assert_eq!(
        all.map(|plan| cache.lookup(&check(plan, "key", 1), 9).is_some()),
        [false, false, true]
    );
}

#[test]
fn every_cost_of_a_log_is_forgotten() {
    let plan = plan(&[(Algorithm::SlidingLog, 3_600_000)]);
    let cache = DenyCache::new(10);
    let mut counters = Counters::for_plan(&plan);
    counters.charge(&check(&plan, "key", 4));
    for cost in 1..=4 {
        let check = check(&plan, "key", cost);
        cache.remember(&check, &counters.charge(&check), 7);
        assert!(cache.lookup(&check, 8).is_some());
    }
    cache.forget("plan", &Key::new("key").unwrap(), 8);
    assert!((1..=4).all(|cost| cache.lookup(&check(&plan, "key", cost), 9).is_none()));
}
