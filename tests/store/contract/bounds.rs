//! What the embedded store holds, and what it drops: within its capacity, and no key that counts.

use std::sync::Arc;

use super::{FakeClock, HOUR, MINUTE};
use crate::support::plans::{COUNTER, FIXED, LOG, WINDOW, ask, limit, peek, plan};
use tollgate::key::{Cost, Key};
use tollgate::plan::Plan;
use tollgate::store::{MemoryStore, StoreError};

fn small() -> (MemoryStore, FakeClock) {
    let clock = FakeClock::new();
    (
        MemoryStore::new(tollgate::store::CAPACITY_MIN, Arc::new(clock.clone())),
        clock,
    )
}

/// In gubernator, 60,000 other keys evict the state of a denied key, so an attacker can free itself.
#[test]
fn a_flood_of_keys_frees_no_denied_one_and_stays_within_the_capacity() {
    let (store, _clock) = small();
    let plan = plan(vec![limit(3, HOUR, WINDOW)]);
    assert!(store.decide(&ask(&plan, "blocked", 3)).unwrap().fits);
    assert!(store.decide(&ask(&plan, "half used", 1)).unwrap().fits);
    let mut refused = 0;
    for index in 0..100_000 {
        let answer = store.decide(&ask(&plan, &format!("junk {index}"), 1));
        refused += usize::from(answer == Err(StoreError::Full));
        assert!(store.bytes() <= tollgate::store::CAPACITY_MIN as usize);
    }
    assert!(refused > 50_000, "only {refused} were refused");
    assert!(
        !store.decide(&ask(&plan, "blocked", 1)).unwrap().fits,
        "a denied key was freed"
    );
    assert!(
        !store.decide(&ask(&plan, "half used", 3)).unwrap().fits,
        "a live key was forgotten"
    );
}

#[test]
fn fresh_entries_make_room() {
    let (store, clock) = small();
    let plan = plan(vec![limit(3, MINUTE, FIXED)]);
    let flood = |from: u64| {
        (from..from + 50_000)
            .filter(|index| store.decide(&ask(&plan, &index.to_string(), 1)).is_ok())
            .count()
    };
    let first = flood(0);
    assert!(first > 3_000 && flood(50_000) == 0, "{first} fit");
    clock.advance(120_000_000);
    assert!(flood(100_000) >= first * 9 / 10);
    assert!(store.bytes() <= tollgate::store::CAPACITY_MIN as usize);
}

/// Alone or among others, a log that has no room left keeps counting: late, never early, and within the capacity.
#[test]
fn a_log_that_has_no_room_left_is_decided_all_the_same() {
    for junk in [0, 20_000] {
        let (store, clock) = small();
        let log = plan(vec![limit(20_000, HOUR, LOG)]);
        let short = plan(vec![limit(3, HOUR, FIXED)]);
        store.decide(&ask(&log, "log", 1)).unwrap();
        for index in 0..junk {
            // Refused or not, it must not count for the log.
            let _ = store.decide(&ask(&short, &format!("junk {index}"), 1));
        }
        for taken in 1..20_000 {
            clock.advance(1_000);
            assert!(
                store.decide(&ask(&log, "log", 1)).unwrap().fits,
                "after {taken}"
            );
            assert!(store.bytes() <= tollgate::store::CAPACITY_MIN as usize);
        }
        assert!(!store.decide(&ask(&log, "log", 1)).unwrap().fits);
    }
}

#[test]
fn memory_is_given_back_when_the_windows_end() {
    let (store, clock) = small();
    let plan = plan(vec![limit(3, MINUTE, FIXED)]);
    for index in 0..2_000 {
        store
            .decide(&ask(&plan, &format!("early {index}"), 1))
            .unwrap();
    }
    clock.advance(120_000_000);
    for index in 0..2_000 {
        store
            .decide(&ask(&plan, &format!("late {index}"), 1))
            .unwrap();
    }
    assert!(store.len() < 2_200, "{} keys are held", store.len());
}

fn left(store: &MemoryStore, plan: &Arc<Plan>, key: &str) -> Vec<u64> {
    let verdict = store.decide(&peek(plan, key, 1)).unwrap();
    verdict
        .statuses(plan.limits(), Cost::ONE)
        .iter()
        .map(|status| status.remaining)
        .collect()
}

#[test]
fn an_entry_charged_again_is_not_swept() {
    let (store, clock) = small();
    let plan = plan(vec![limit(5, MINUTE, WINDOW)]);
    store.decide(&ask(&plan, "used", 1)).unwrap();
    clock.advance(30_000_000);
    store.decide(&ask(&plan, "used", 1)).unwrap();
    clock.advance(31_000_000);
    for index in 0..500 {
        store
            .decide(&ask(&plan, &format!("other {index}"), 1))
            .unwrap();
    }
    assert_eq!(left(&store, &plan, "used"), [4]);
}

#[test]
fn a_peek_holds_no_key() {
    let (store, _clock) = small();
    let plan = plan(vec![limit(5, MINUTE, WINDOW)]);
    store.decide(&peek(&plan, "never seen", 1)).unwrap();
    assert_eq!(store.len(), 0);
}

#[test]
fn a_log_that_filled_the_store_counts_aafter_its_window() {
    let (store, clock) = small();
    let plan = plan(vec![limit(100_000, HOUR, LOG)]);
    for _ in 0..100_000 {
        clock.advance(1);
        store.decide(&ask(&plan, "log", 1)).unwrap();
    }
    clock.advance(3_700_000_000);
    assert!(store.decide(&ask(&plan, "log", 1)).unwrap().fits);
    assert_eq!(left(&store, &plan, "log"), [99_999]);
}

/// Keys that come, go by a reset, and come again: what is kept is what was not reset, and no room is lost.
#[test]
fn resets_among_charges_lose_no_room_and_no_other_key() {
    let clock = FakeClock::new();
    let store = MemoryStore::new(tollgate::store::CAPACITY_MIN, Arc::new(clock.clone()));
    let plans = [
        plan(vec![limit(5, HOUR, WINDOW)]),
        plan(vec![limit(5, MINUTE, FIXED), limit(9, HOUR, COUNTER)]),
    ];
    let mut random = crate::support::history::Random(7);
    let mut used = std::collections::HashMap::<u64, u64>::new();
    for _ in 0..100_000 {
        clock.advance(random.below(1_000));
        let number = random.below(1_500);
        let plan = &plans[number as usize % 2];
        let key = number.to_string();
        if random.below(3) == 0 {
            assert_eq!(
                store.forget("group", &Key::new(key).unwrap()),
                used.remove(&number).is_some()
            );
        } else if store.decide(&ask(plan, &key, 1)).unwrap().fits {
            *used.entry(number).or_default() += 1;
        }
    }
    assert_eq!(store.len(), used.len());
    assert!(store.bytes() <= tollgate::store::CAPACITY_MIN as usize);
}
