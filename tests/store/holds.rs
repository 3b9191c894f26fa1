//! Holds in the embedded store: it answers as the maths alone, forgets with a reset, knows refunds, and accounts for what it keeps.

use std::sync::Arc;
use std::time::Duration;

use allocation_counter::measure;
use tollgate::algorithm::holds::{
    HoldCall, HoldEvent, HoldKey, HoldVerdict, Notes, call, end_holds,
};
use tollgate::algorithm::{Block, State, blocks_at, decide_with_blocks, refund, test};
use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Concurrency, HoldTerms, Limit, Plan, Rule};
use tollgate::store::{Check, HoldCheck, MemoryStore, Mode, Refund, Verdict};

use crate::support::asks::refund_of;
use crate::support::clock::{FakeClock, START_US};
use crate::support::history::Random;
use crate::support::holds::{ask, reserve, settle};
use crate::support::plans::{FIXED, LOG, WINDOW};

const S: u64 = 1_000_000;
const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 12 };

fn limit(seconds: u64, quota: u64, algorithm: Algorithm) -> Limit {
    let window = Duration::from_secs(seconds);
    Limit::new(format!("{seconds}"), quota, window, algorithm).unwrap()
}

fn plan(name: &str, limits: &[Limit], slots: Option<u64>, releases: bool) -> Arc<Plan> {
    let holds = HoldTerms {
        max_ttl: Duration::from_secs(600),
        release_on_expiry: releases,
        remember: Duration::from_secs(3),
        max_open: 6,
        concurrency: slots.map(|quota| Concurrency::new("concurrency", quota, 0).unwrap()),
        ..HoldTerms::default()
    };
    Arc::new(Plan {
        counts_as: "group".into(),
        holds: holds.into(),
        ..Plan::new(name, Rule::limits(limits.iter().cloned()))
    })
}

fn check(plan: &Arc<Plan>, key: &str, (cost, mode): (u64, Mode)) -> Check {
    Check {
        key: Key::new(key).unwrap(),
        plan: plan.clone(),
        cost: Cost::new(cost).unwrap(),
        mode,
    }
}

/// A key by the maths alone.
struct Alone {
    states: Vec<State>,
    blocks: Vec<Block>,
    notes: Notes,
}

impl Alone {
    fn new(limits: &[Limit]) -> Self {
        Self {
            states: limits.iter().map(State::fresh).collect(),
            blocks: vec![Block::default(); limits.len()],
            notes: Notes::default(),
        }
    }

    fn key(&mut self) -> HoldKey<'_> {
        HoldKey {
            states: &mut self.states,
            blocks: &mut self.blocks,
            notes: &mut self.notes,
        }
    }

    fn hold(&mut self, check: &HoldCheck, now_us: u64) -> HoldVerdict {
        call(&check.plan, self.key(), now_us, (&check.id, check.call))
    }

    fn decide(&mut self, check: &Check, now_us: u64) -> (bool, Vec<u64>) {
        let plan = &check.plan;
        let cost = check.cost;
        let fits = test(
            plan.limits(),
            &self.states,
            now_us,
            cost.units(),
            check.mode,
        )
        .fits;
        if check.mode == Mode::Charge && !fits && self.notes.has_units_due(plan, now_us) {
            end_holds(plan, self.key(), now_us);
        }
        let key = (&mut self.states[..], &mut self.blocks[..]);
        let verdict = decide_with_blocks(plan.limits(), key, now_us, cost, check.mode);
        (verdict.fits, remaining(&verdict, plan.limits()))
    }

    /// Returns what remains after it.
    fn refund(&mut self, given_back: &Refund, now_us: u64) -> Vec<u64> {
        let limits = given_back.plan.limits();
        let before = self.states.clone();
        let mut after = refund(limits, &mut self.states, now_us, given_back.units).after;
        after.tell_blocks(blocks_at(limits, &self.blocks, now_us));
        let states = (&before[..], &self.states[..]);
        self.notes.note_refund(limits, states, now_us);
        remaining(&after, limits)
    }
}

/// Units that each limit has left.
fn remaining(verdict: &Verdict, limits: &[Limit]) -> Vec<u64> {
    let statuses = verdict.statuses(limits, Cost::ONE);
    statuses.iter().map(|status| status.remaining).collect()
}

fn random_call(random: &mut Random) -> HoldCall {
    let cost = 1 + random.below(3);
    let seconds = 1 + random.below(4);
    match random.below(8) {
        0..=2 => reserve(cost, seconds),
        3..=4 => settle(random.below(5)),
        5 => HoldCall::Record { cost },
        6 => HoldCall::Extend {
            ttl_us: seconds * S,
        },
        _ => HoldCall::Charge { cost },
    }
}

#[test]
fn the_embedded_store_answers_as_the_maths_alone() {
    for (seed, algorithms) in [
        &[FIXED][..],
        &[LOG],
        &[BUCKET],
        &[WINDOW, BUCKET],
        &[LOG, FIXED],
    ]
    .into_iter()
    .enumerate()
    {
        let mut random = Random(seed as u64);
        let clock = FakeClock::new();
        let store = MemoryStore::new(1 << 24, Arc::new(clock.clone()));
        let mut limits: Vec<Limit> = (2..)
            .zip(algorithms)
            .map(|(seconds, algorithm)| limit(seconds, 12, *algorithm))
            .collect();
        limits[0] = limits[0]
            .clone()
            .with_block(Duration::from_secs(1))
            .unwrap();
        let plans = [
            plan("slots", &limits, Some(3), false),
            plan("releases", &limits, None, true),
        ];
        let mut alone = Alone::new(&limits);
        let mut now_us = START_US;
        for step in 0..4_000 {
            now_us += random.below(S / 3);
            clock.set(now_us);
            let plan = random.pick(&plans);
            if random.below(5) == 0 && plan.concurrency().is_none() {
                let check = check(plan, "key", (1 + random.below(3), Mode::Charge));
                if random.below(3) == 0 {
                    let refund = refund_of(&check);
                    let expected = alone.refund(&refund, now_us);
                    let after = store.give_back(&refund).unwrap().after;
                    assert_eq!(remaining(&after, &limits), expected, "{step}: {refund:?}");
                    continue;
                }
                let expected = alone.decide(&check, now_us);
                let verdict = store.decide(&check).unwrap();
                let found = (verdict.fits, remaining(&verdict, &limits));
                assert_eq!(found, expected, "{step}: {check:?}");
                continue;
            }
            let id = format!("id {}", random.below(8));
            let check = ask(plan, "key", (&id, random_call(&mut random)));
            let expected = alone.hold(&check, now_us);
            assert_eq!(
                store.hold(&check),
                Ok(expected),
                "{seed}, {step}: {check:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_reset_drops_holds_and_ids() {
    let clock = FakeClock::new();
    let store = MemoryStore::new(1 << 24, Arc::new(clock));
    let plan = plan("jobs", &[], Some(1), false);
    let fits = |id: &str| {
        let check = ask(&plan, "key", (id, reserve(1, 60)));
        store.hold(&check).unwrap().view.verdict.fits
    };
    assert!(fits("a") && !fits("b"));
    assert_eq!(store.len(), 1);
    assert!(store.forget("group", &Key::new("key").unwrap()));
    assert_eq!(store.len(), 0);
    let figures = store.figures(&Key::new("key").unwrap(), &plan);
    assert_eq!((figures.open, figures.known_ids), (0, 0));
    assert!(fits("b"));
}

#[test]
fn a_look_writes_nothing_and_a_denied_reserve_makes_no_key() {
    let clock = FakeClock::new();
    let store = MemoryStore::new(1 << 24, Arc::new(clock.clone()));
    let limits = [limit(60, 10, LOG)];
    let look = HoldCall::Peek { cost: 1 };
    let slots = plan("slots", &limits, Some(1), true);
    let looked = |store: &MemoryStore| {
        let verdict = store.hold(&ask(&slots, "key", ("", look))).unwrap();
        let statuses = verdict.view.statuses(&slots, Cost::ONE);
        (verdict.view.verdict.fits, statuses[1].remaining)
    };
    assert_eq!((looked(&store), store.len()), ((true, 10), 0));
    store
        .hold(&ask(&slots, "key", ("a", reserve(10, 2))))
        .unwrap();
    assert_eq!(looked(&store), (false, 0));
    clock.advance(2 * S);
    // As a reserve would meet it: the lease is over.
    assert_eq!(looked(&store), (true, 10));
    let figures = store.figures(&Key::new("key").unwrap(), &slots);
    assert_eq!((figures.open, figures.known_ids), (0, 1));
    let late = store.hold(&ask(&slots, "key", ("a", settle(3)))).unwrap();
    let HoldEvent::Settled(settlement) = late.event else {
        panic!("{late:?}")
    };
    assert_eq!((late.ended.units, settlement.excess), (10, 3));
}

/// Keys of which each measurement has as many: the more, the less weighs what a store takes without any.
const KEYS: usize = 20_000;
const IDS_A_KEY: u64 = 9;

/// Bytes that the store accounts for, for one key more with what `calls` does, over many keys. They are no less than what it asked of
/// the allocator.
fn bytes_a_key(calls: impl Fn(&MemoryStore, &str)) -> usize {
    let mut filled = None;
    let mut account = 0;
    let taken = measure(|| {
        let store = MemoryStore::new(1 << 28, Arc::new(FakeClock::new()));
        (0..KEYS).for_each(|index| calls(&store, &format!("customer {index:011}")));
        account = store.bytes();
        filled = Some(store);
    });
    let asked = usize::try_from(taken.bytes_current).unwrap();
    assert!(
        asked <= account,
        "{account} on the account, {asked} from the allocator"
    );
    account / KEYS
}

/// What is reserved of each key, and then settled: ids of 16 bytes.
fn reserved(store: &MemoryStore, (plan, key): (&Arc<Plan>, &str), (ids, settled): (u64, u64)) {
    for index in 0..ids {
        let id = format!("request {index:08}");
        let check = ask(plan, key, (&id, reserve(2_000, 60)));
        assert!(store.hold(&check).unwrap().view.verdict.fits);
    }
    for index in 0..settled {
        let id = format!("request {index:08}");
        let check = ask(plan, key, (&id, settle(740)));
        assert!(store.hold(&check).is_ok());
    }
}

#[test]
fn a_hold_takes_220_bytes_for_the_first_and_60_for_each_more_and_a_key_without_takes_nothing() {
    let bucket = Algorithm::TokenBucket { burst: 1_000_000 };
    for algorithm in [FIXED, bucket] {
        let limits = [limit(60, 1_000_000, algorithm)];
        let plan = plan("tokens", &limits, None, false);
        let plan = Arc::new(Plan {
            holds: HoldTerms::default().into(),
            ..(*plan).clone()
        });
        let none = bytes_a_key(|store, key| {
            let check = check(&plan, key, (1, Mode::Charge));
            assert!(store.decide(&check).unwrap().fits);
        });
        let of_holds = |ids, settled| {
            bytes_a_key(|store, key| reserved(store, (&plan, key), (ids, settled))) - none
        };
        let first = of_holds(1, 0);
        let many = of_holds(IDS_A_KEY, 0);
        let more = (many - first) / (IDS_A_KEY as usize - 1);
        println!(
            "{algorithm:?}: {none} bytes without, {first} for the first, {more} each more; {} with an id that ended, {} with {IDS_A_KEY}",
            of_holds(1, 1),
            of_holds(IDS_A_KEY, IDS_A_KEY),
        );
        assert!(first <= 220, "{algorithm:?}: {first}");
        assert!(more <= 60, "{algorithm:?}: {more}");
    }
}
