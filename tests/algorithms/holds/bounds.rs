//! What bounds holds: costs, leases, open holds, ids; and blocks that records begin.

use super::*;
use crate::support::holds::{reserve, settle};
use tollgate::algorithm::holds::{KnownCall, KnownId};

fn plan_of(limits: Vec<Limit>, slots: Option<u64>, holds: HoldTerms) -> Arc<Plan> {
    let concurrency = slots.map(|quota| Concurrency::new("concurrency", quota, 0).unwrap());
    Arc::new(Plan {
        holds: HoldTerms {
            concurrency,
            ..holds
        }
        .into(),
        ..Plan::new("plan", Rule::limits(limits))
    })
}

fn of_minute(quota: u64, algorithm: Algorithm) -> Limit {
    Limit::new("minute", quota, Duration::from_secs(60), algorithm).unwrap()
}

#[test]
fn a_mistake_of_a_record_blocks_a_bucket_for_a_window_more_at_most() {
    let bucket = of_minute(60, Algorithm::TokenBucket { burst: 60 });
    let mut subject = Subject::new(std::slice::from_ref(&bucket));
    let plan = plan_of(vec![bucket], None, HoldTerms::default());
    for _ in 0..3 {
        let cost = 1_000_000_000_000;
        let verdict = subject.call(&plan, START_US, ("", HoldCall::Record { cost }));
        let row = &verdict.view.statuses(&plan, Cost::ONE)[0];
        assert_eq!((row.remaining, row.reset_after_us), (0, 120 * S));
        assert_eq!(row.retry_after_us, Some(61 * S));
    }
}

#[test]
fn counts_are_bounded_and_a_full_one_is_not_lowered() {
    let cost = 1_000_000_000_000;
    for (algorithm, most) in [
        (FIXED, (1 << 40) - 1),
        (WINDOW, (1 << 40) - 1),
        (COUNTER, (1 << 40) - 1),
        (LOG, 131_071),
    ] {
        let limit = of_minute(10, algorithm);
        let mut subject = Subject::new(std::slice::from_ref(&limit));
        let plan = plan_of(vec![limit.clone()], None, HoldTerms::default());
        for _ in 0..3 {
            subject.call(&plan, START_US, ("", HoldCall::Record { cost }));
        }
        let read = test(plan.limits(), &subject.states, START_US, 1, Mode::Peek);
        assert_eq!(read.readings[0].used(&limit), most, "{algorithm:?}");
        // Where the counter's window before weighs with all of these, nothing overflows.
        let read = test(
            plan.limits(),
            &subject.states,
            START_US + 61 * S,
            1,
            Mode::Peek,
        );
        assert!(read.readings[0].used(&limit) <= most);
    }
}

#[test]
fn the_hold_after_the_last_that_may_be_open_is_denied_by_that_name() {
    let limit = of_minute(100_000, FIXED);
    let mut subject = Subject::new(std::slice::from_ref(&limit));
    let plan = plan_of(vec![limit], None, HoldTerms::default());
    for index in 0..256 {
        let id = format!("id {index}");
        let verdict = subject.call(&plan, START_US, (&id, reserve(1, 60)));
        assert!(verdict.view.verdict.fits);
    }
    let verdict = subject.call(&plan, START_US + S, ("one more", reserve(1, 60)));
    let decision = verdict.view.decision(&plan, Cost::ONE);
    let binding = decision.binding().unwrap();
    assert_eq!((&*binding.name, binding.limit), ("holds.max_open", 256));
    let key = decision.key_status();
    assert_eq!((key.remaining, key.retry_after_us), (Some(0), Some(59 * S)));
    assert_eq!(
        decision.limits().len(),
        1,
        "it is none of the plan's limits"
    );
    // A place is free at the end of a lease, and with a settle.
    let settled = subject.call(&plan, START_US + S, ("id 0", settle(0)));
    assert!(matches!(settled.event, HoldEvent::Settled(_)));
    let verdict = subject.call(&plan, START_US + S, ("one more", reserve(1, 60)));
    assert!(verdict.view.verdict.fits);
}

#[test]
fn the_last_ids_are_known_and_more_are_forgotten() {
    let limit = of_minute(100_000, FIXED);
    let terms = HoldTerms {
        max_ids: 10,
        ..HoldTerms::default()
    };
    let mut subject = Subject::new(std::slice::from_ref(&limit));
    let plan = plan_of(vec![limit], None, terms);
    for index in 0..1_000 {
        let id = format!("id {index}");
        subject.call(&plan, START_US, (&id, HoldCall::Charge { cost: 1 }));
    }
    assert_eq!(subject.notes.figures(START_US).known_ids, 10);
    for index in 0..1_000 {
        let id = format!("id {index}");
        let look = HoldCall::Extend { ttl_us: S };
        let verdict = subject.call(&plan, START_US, (&id, look));
        let is_known = matches!(verdict.event, HoldEvent::Refused(_));
        assert_eq!(is_known, index >= 990, "{index}");
    }
    assert!(subject.notes.heap_bytes() < 4_096);
}

/// What a call adds, the store makes room for before it. What the notes account for is no less than what the allocator gave.
#[test]
fn notes_grow_by_no_more_than_is_foretold_before_each_call() {
    let limits = [of_minute(1_000_000, BUCKET), of_minute(1_000_000, FIXED)];
    for seed in 0..8 {
        let mut random = Random(seed);
        let own_limits = if seed < 4 { &limits[..1] } else { &limits[..] };
        let plans: Vec<Arc<Plan>> = (0..2 * seed + 1)
            .map(|index| {
                let terms = HoldTerms {
                    release_on_expiry: index % 2 == 1,
                    max_open: 1_000,
                    max_ids: 200,
                    ..HoldTerms::default()
                };
                plan_of(own_limits.to_vec(), None, terms)
            })
            .collect();
        let mut subject = Subject::new(own_limits);
        let mut now_us = START_US;
        let mut asked = 0;
        for step in 0..4_000 {
            let id = format!("{:0>1$}", random.below(600), 1 + random.below(40) as usize);
            let plan = random.pick(&plans);
            // Now and then many leases end at once.
            now_us += if random.below(800) == 0 { 90 * S } else { 10 };
            let call = match random.below(8) {
                0..4 => reserve(1 + random.below(5_000), 60),
                4..6 => settle(random.below(9)),
                6 => HoldCall::Extend { ttl_us: 80 * S },
                _ => HoldCall::Charge { cost: 1 },
            };
            let most = subject.notes.heap_bytes() + subject.notes.growth_bytes(&id, plan);
            asked += allocation_counter::measure(|| drop(subject.call(plan, now_us, (&id, call))))
                .bytes_current;
            let bytes = subject.notes.heap_bytes();
            assert!(
                bytes <= most,
                "{seed}, {step}: {bytes} above {most}: {call:?}"
            );
            let on_heap = i64::try_from(bytes - size_of::<Notes>()).unwrap();
            assert!(
                asked <= on_heap,
                "{seed}, {step}: {on_heap} on the account, {asked} from the allocator"
            );
        }
    }
}

#[test]
fn a_lease_of_a_clock_that_stepped_back_ends_max_ttl_from_now() {
    let plan = plan_of(Vec::new(), Some(1), HoldTerms::default());
    let mut subject = Subject::new(&[]);
    let start_us = START_US + 3_600 * S;
    assert!(
        subject
            .call(&plan, start_us, ("a", reserve(1, 60)))
            .view
            .verdict
            .fits
    );
    let denied = subject.call(&plan, START_US, ("b", reserve(1, 60)));
    let decision = denied.view.decision(&plan, Cost::ONE);
    assert_eq!(decision.key_status().retry_after_us, Some(600 * S));
    let end_us = START_US + 600 * S;
    let fits = |subject: &mut Subject, at_us| {
        subject
            .call(&plan, at_us, ("b", reserve(1, 60)))
            .view
            .verdict
            .fits
    };
    assert!(!fits(&mut subject, end_us - 1) && fits(&mut subject, end_us));
}

#[test]
fn a_slot_is_free_exactly_at_the_end_of_its_lease() {
    let plan = plan_of(Vec::new(), Some(1), HoldTerms::default());
    let mut subject = Subject::new(&[]);
    subject.call(&plan, START_US, ("a", reserve(1, 30)));
    let mut fits = |at_us| {
        subject
            .call(&plan, at_us, ("b", reserve(1, 30)))
            .view
            .verdict
            .fits
    };
    assert!(!fits(START_US + 30 * S - 1) && fits(START_US + 30 * S));
}

#[test]
fn an_id_of_another_call_plan_or_cost_is_refused_and_changes_nothing() {
    let limit = of_minute(100, LOG);
    let mut subject = Subject::new(std::slice::from_ref(&limit));
    let plan = plan_of(vec![limit], None, HoldTerms::default());
    let other = Arc::new(Plan {
        name: "other".into(),
        ..(*plan).clone()
    });
    subject.call(&plan, START_US, ("held", reserve(5, 60)));
    subject.call(&plan, START_US, ("asked", HoldCall::Charge { cost: 2 }));
    subject.call(&plan, START_US, ("done", HoldCall::Record { cost: 3 }));
    let states = subject.states.clone();
    let known = |call, cost| KnownId {
        call,
        plan: plan.name.clone(),
        cost: Some(cost),
    };
    let extend = HoldCall::Extend { ttl_us: S };
    for (plan, id, ask, expected) in [
        (&plan, "held", reserve(6, 60), known(KnownCall::Reserve, 5)),
        (&other, "held", reserve(5, 60), known(KnownCall::Reserve, 5)),
        (&other, "held", settle(1), known(KnownCall::Reserve, 5)),
        (
            &plan,
            "held",
            HoldCall::Charge { cost: 5 },
            known(KnownCall::Reserve, 5),
        ),
        (
            &plan,
            "held",
            HoldCall::Record { cost: 5 },
            known(KnownCall::Reserve, 5),
        ),
        (
            &plan,
            "asked",
            reserve(2, 60),
            known(KnownCall::ShouldAllow, 2),
        ),
        (
            &plan,
            "asked",
            HoldCall::Charge { cost: 3 },
            known(KnownCall::ShouldAllow, 2),
        ),
        (&plan, "asked", settle(2), known(KnownCall::ShouldAllow, 2)),
        (
            &plan,
            "done",
            HoldCall::Record { cost: 4 },
            known(KnownCall::Record, 3),
        ),
        (&plan, "done", extend, known(KnownCall::Record, 3)),
    ] {
        let verdict = subject.call(plan, START_US, (id, ask));
        assert_eq!(verdict.event, HoldEvent::Refused(expected), "{id} {ask:?}");
        assert_eq!(subject.states, states);
    }
}

#[test]
fn five_recorded_failures_begin_the_block_and_a_settle_within_what_was_held_begins_none() {
    let block = Duration::from_secs(3_600);
    let limit = of_minute(5, FIXED).with_block(block).unwrap();
    let plan = plan_of(vec![limit.clone()], None, HoldTerms::default());
    let mut subject = Subject::new(std::slice::from_ref(&limit));
    for failures in 1..=5 {
        let verdict = subject.call(&plan, START_US, ("", HoldCall::Record { cost: 1 }));
        let row = &verdict.view.statuses(&plan, Cost::ONE)[0];
        let blocked = (row.blocked_for_us, row.begins_block);
        assert_eq!(
            blocked,
            if failures == 5 {
                (3_600 * S, true)
            } else {
                (0, false)
            }
        );
    }
    let mut subject = Subject::new(&[limit]);
    subject.call(&plan, START_US, ("a", reserve(4, 60)));
    for (actual, begins) in [(4, false), (4, false)] {
        let verdict = subject.call(&plan, START_US, ("a", settle(actual)));
        assert_eq!(verdict.view.verdict.blocks.is_some(), begins);
    }
    subject.call(&plan, START_US, ("b", reserve(1, 60)));
    let verdict = subject.call(&plan, START_US, ("b", settle(3)));
    assert!(
        verdict.view.verdict.blocks.is_some(),
        "the excess uses it up"
    );
}

#[test]
fn limits_that_were_edited_give_nothing_back_and_a_quota_may_change() {
    let bucket = |quota| of_minute(quota, Algorithm::TokenBucket { burst: 100 });
    for (before, after, returned) in [
        (
            vec![of_minute(10, FIXED)],
            vec![of_minute(20, FIXED)],
            vec![5],
        ),
        (
            vec![of_minute(10, FIXED)],
            vec![of_minute(10, ANCHORED)],
            vec![0],
        ),
        (
            vec![of_minute(10, FIXED)],
            vec![of_minute(10, FIXED), of_minute(10, LOG)],
            vec![0, 0],
        ),
        (vec![bucket(60)], vec![bucket(60)], vec![5]),
        (vec![bucket(60)], vec![bucket(30)], vec![0]),
    ] {
        let mut subject = Subject::new(&after);
        let before = plan_of(before, None, HoldTerms::default());
        let after = plan_of(after, None, HoldTerms::default());
        subject.call(&before, START_US, ("a", reserve(6, 60)));
        let verdict = subject.call(&after, START_US, ("a", settle(1)));
        let HoldEvent::Settled(settlement) = verdict.event else {
            panic!("{verdict:?}")
        };
        assert_eq!(settlement.returned.to_vec(), returned, "{after:?}");
    }
}

#[test]
fn a_denial_by_a_plan_that_releases_waits_for_the_first_lease_at_most() {
    let limit = of_minute(10, LOG);
    let terms = HoldTerms {
        release_on_expiry: true,
        ..HoldTerms::default()
    };
    let mut subject = Subject::new(std::slice::from_ref(&limit));
    let plan = plan_of(vec![limit], None, terms);
    subject.call(&plan, START_US, ("a", reserve(10, 20)));
    let denied = subject.call(&plan, START_US, ("b", reserve(1, 20)));
    let decision = denied.view.decision(&plan, Cost::ONE);
    assert_eq!(decision.key_status().retry_after_us, Some(20 * S));
    assert!(!subject.request(&plan, START_US + 20 * S - 1, 10));
    assert!(subject.request(&plan, START_US + 20 * S, 10));
}

#[test]
fn the_units_of_a_plan_and_not_its_slots_are_what_remains() {
    let limit = of_minute(100, FIXED);
    let mut subject = Subject::new(std::slice::from_ref(&limit));
    let plan = plan_of(vec![limit], Some(2), HoldTerms::default());
    for (id, remaining, more) in [
        ("a", Some(99), true),
        ("b", Some(0), true),
        ("c", Some(0), false),
    ] {
        let verdict = subject.call(&plan, START_US, (id, reserve(1, 60)));
        assert_eq!(verdict.view.verdict.fits, more);
        let decision = verdict.view.decision(&plan, Cost::ONE);
        assert_eq!(decision.key_status().remaining, remaining, "{id}");
        let row = &decision.limits()[0];
        assert_eq!((&*row.name, row.window_us), ("concurrency", 0));
        assert_eq!(row.retry_after_us.is_some(), !more);
    }
}
