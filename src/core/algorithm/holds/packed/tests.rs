//! Packed holds against lists of them, for any numbers.

use proptest::prelude::*;

use super::*;
use crate::plan::Rule;

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        (0..u64::BITS).prop_map(|bit| 1 << bit),
        any::<u64>(),
        0..1_000_u64,
    ]
}

/// Ids, and holds of any numbers: what clocks that step may leave, too.
fn any_holds() -> impl Strategy<Value = Vec<(Vec<u8>, Hold)>> {
    let plan = Arc::new(Plan::new("p", Rule::Unlimited));
    let bucket = (any_number(), any_number()).prop_map(|(full_at_us, given_us)| ChargedBucket {
        full_at_us,
        given_us,
    });
    let buckets = proptest::collection::vec(bucket, 0..9);
    let numbers = (any_number(), any_number(), any_number(), buckets);
    let hold = numbers.prop_map(move |(cost, at_us, expires_us, buckets)| Hold {
        plan: plan.clone(),
        cost,
        at_us,
        expires_us,
        buckets: buckets.into(),
    });
    let id = proptest::collection::vec(any::<u8>(), 1..300);
    proptest::collection::vec((id, hold), 0..20)
}

fn packed(holds: &[(Vec<u8>, Hold)]) -> PackedHolds {
    let mut packed = PackedHolds::new(Arc::new(Plan::new("p", Rule::Unlimited)));
    holds.iter().for_each(|(id, hold)| packed.push(id, hold));
    packed
}

fn unpacked(packed: &PackedHolds) -> Vec<(Vec<u8>, Hold)> {
    let holds = packed.iter();
    holds
        .map(|hold| (hold.id().into(), hold.to_hold()))
        .collect()
}

proptest! {
    #[test]
    fn holds_are_unpacked_as_they_were_packed(holds in any_holds()) {
        let packed = packed(&holds);
        prop_assert_eq!(unpacked(&packed), holds.clone());
        for (noted, (_, hold)) in packed.iter().zip(&holds) {
            prop_assert_eq!((noted.cost(), noted.expires_us), (hold.cost, hold.expires_us));
        }
    }

    #[test]
    fn a_change_of_one_hold_leaves_the_others(
        (mut holds, at) in any_holds().prop_flat_map(|holds| {
            let last = holds.len().max(1);
            (Just(holds), 0..last)
        }),
        end_us in any_number(),
    ) {
        let mut packed = packed(&holds);
        let begins: Vec<usize> = packed.iter().map(|hold| hold.begin).collect();
        packed.end_by(end_us);
        holds.iter_mut().for_each(|(_, hold)| hold.expires_us = hold.expires_us.min(end_us));
        if let Some(begin) = begins.get(at) {
            packed.set_end(*begin, end_us / 2);
            holds[at].1.expires_us = end_us / 2;
            prop_assert_eq!(packed.remove(*begin), Some(holds.remove(at).1));
        }
        prop_assert_eq!(unpacked(&packed), holds.clone());
        let mut taken = Vec::new();
        let is_taken = |cost: u64| cost.is_multiple_of(2);
        packed.take_if(|hold| is_taken(hold.cost()), &mut taken);
        let taken = taken.into_iter().map(|(id, hold)| (id.into_vec(), hold));
        let (expected, kept): (Vec<_>, Vec<_>) =
            holds.into_iter().partition(|(_, hold)| is_taken(hold.cost));
        prop_assert_eq!(taken.collect::<Vec<_>>(), expected);
        prop_assert_eq!(unpacked(&packed), kept);
    }

    #[test]
    fn a_hold_takes_no_more_than_was_foretold(holds in any_holds()) {
        let mut packed = packed(&[]);
        let id = "i".repeat(64);
        for (_, hold) in holds {
            let hold = Hold { buckets: SmallVec::new(), ..hold };
            let most = packed.heap_bytes() + packed.growth_bytes(&id);
            packed.push(id.as_bytes(), &hold);
            prop_assert!(packed.heap_bytes() <= most);
        }
    }
}
