//! Sums of lists against brute force.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::limiter::top::slot::Slot;

/// What was counted of each plan and key, by brute force.
type Truth = HashMap<(u64, u64), u64>;

/// A stream of plan, key and weight, spread over slots and workers.
fn stream() -> impl Strategy<Value = Vec<(u64, u64, u64)>> {
    prop::collection::vec((0u64..6, 0u64..50, 1u64..9), 1..800)
}

/// The hash of a key under a plan. Different pairs have different ones.
fn hash(plan: u64, key: u64) -> u64 {
    plan << 32 | key
}

/// The sum of slots that counted this stream in turns, cut now and then, and the truth.
fn summary_of(stream: &[(u64, u64, u64)], slots: usize, k: usize) -> (Summary, Truth) {
    let mut truth = Truth::new();
    let mut counting = Vec::new();
    counting.resize_with(slots, || Slot::new(k));
    for (index, (plan, key, weight)) in stream.iter().enumerate() {
        counting[index % slots].count(*plan, hash(*plan, *key), *weight);
        *truth.entry((*plan, hash(*plan, *key))).or_default() += weight;
    }
    let mut summary = Summary::default();
    for (index, slot) in counting.iter().enumerate() {
        let mut part = Summary::default();
        part.add_slot(&slot.sealed());
        if index % 2 == 0 {
            part.cut(k, 2 * k);
        }
        summary.add(part);
    }
    (summary, truth)
}

proptest! {
    #[test]
    fn every_heavy_key_is_listed_and_counts_are_as_exact_as_promised(
        stream in stream(), slots in 1usize..5, k in 2usize..40,
    ) {
        let (mut summary, truth) = summary_of(&stream, slots, k);
        let total: u64 = truth.values().sum();
        prop_assert_eq!(summary.total, total);
        for cut in [false, true] {
            if cut {
                summary.cut(k, 2 * k);
            }
            for plan in [None, Some(0), Some(3), Some(99)] {
                let (keys, rest) = summary.heaviest(plan, usize::MAX);
                let listed: HashMap<(u64, u64), Heavy> = keys.iter().map(|key| ((key.plan, key.hash), *key)).collect();
                prop_assert!(rest <= total / k as u64, "{} of {}", rest, total);
                for (key, real) in truth.iter().filter(|((of, _), _)| plan.is_none_or(|plan| plan == *of)) {
                    match listed.get(key) {
                        Some(Heavy { count, error, .. }) => {
                            prop_assert!(real <= count && *count <= real + total / k as u64);
                            prop_assert!(count - error <= *real, "{} - {} > {}", count, error, real);
                        }
                        None => prop_assert!(*real <= rest, "a key with {} is missing, beyond {}", real, rest),
                    }
                }
            }
        }
    }

    #[test]
    fn a_plan_alone_is_as_exact_as_its_own_count_allows(stream in stream(), slots in 1usize..5, k in 2usize..40) {
        let (mut summary, truth) = summary_of(&stream, slots, k);
        summary.plans.values_mut().for_each(|plan| plan.cut(k));
        let mut totals = HashMap::<u64, u64>::new();
        truth.iter().for_each(|((plan, _), weight)| *totals.entry(*plan).or_default() += weight);
        // There is room for all six plans. Slots that were cut together are left out.
        prop_assume!(slots == 1 || 6 * 50 < k);
        for (plan, total) in totals {
            prop_assert_eq!(summary.plans[&plan].total, total);
        }
    }
}

#[test]
fn of_few_keys_every_count_is_exact() {
    let stream: Vec<_> = (0..100)
        .map(|number| (number % 3, number % 7, 1 + number % 2))
        .collect();
    let (summary, truth) = summary_of(&stream, 3, 900);
    let (keys, rest) = summary.heaviest(None, 1_000);
    assert_eq!((keys.len(), rest), (truth.len(), 0));
    assert!(
        keys.iter()
            .all(|key| key.error == 0 && truth[&(key.plan, key.hash)] == key.count)
    );
    let (keys, rest) = summary.heaviest(Some(1), 2);
    assert!(keys.len() == 2 && keys[0].count >= keys[1].count && rest <= keys[1].count && rest > 0);
}

#[test]
fn a_slot_is_bounded_whatever_the_number_of_plans_and_a_busy_plan_hides_no_quiet_one() {
    let mut slot = Slot::new(500);
    for number in 0..200_000u64 {
        slot.count(1, hash(1, number), 1);
        slot.count(2, hash(2, number % 10), 1);
    }
    let sealed = slot.sealed();
    let quiet = sealed.own.iter().find(|own| own.id == 2).unwrap();
    assert_eq!(
        (quiet.too_high, quiet.total, quiet.keys.len()),
        (0, 200_000, 10)
    );
    for number in 0..200_000u64 {
        slot.count(3 + number % 5_000, hash(3 + number % 5_000, number), 1);
    }
    let sealed = slot.sealed();
    let keys = sealed.own.iter().map(|own| own.keys.len()).sum::<usize>() + sealed.shared.len();
    assert!(keys <= crate::limiter::top::slot::SLOT_KEYS_MAX, "{keys}");
    assert_eq!(sealed.total, 600_000);
}
