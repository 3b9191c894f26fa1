//! Joint decisions of plans with blocks: both stores alike, and as their definition says. A block begins with a request that its limit
//! denies, whether the whole is allowed, as where its plan is in shadow mode, or denied. Those before it are decided without it.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate::key::Cost;
use tollgate::plan::{Algorithm, Limit, Plan};
use tollgate::store::{Check, MemoryStore, Mode, RedisStore, Store};

use super::{PATIENCE, Seen, World, next_time, plans, random_check, steps, told_on_panic};
use crate::support::clock::{FakeClock, START_US};
use crate::support::history::Random;
use crate::support::plans::{FIXED, LOG, WINDOW};
use crate::support::redis::Redis;

/// How one request of a joint decision was tested.
struct Tested {
    /// The request with the units that it was tested with.
    asked: Check,
    fits: bool,
    begins: Vec<bool>,
    never_fits: bool,
}

/// Tests requests one after another, each with the units and the blocks of those before it. Returns also whether all pass.
fn test(world: &mut World, checks: &[Check], now_us: u64) -> (Vec<Tested>, bool) {
    let charges = checks.iter().any(|check| check.mode == Mode::Charge);
    let mut sums = HashMap::<&str, u64>::new();
    let mut begun = HashMap::new();
    let mut tested = Vec::new();
    let mut all_pass = true;
    for check in checks {
        let key = check.key.as_str();
        let limits = check.plan.limits();
        let before = sums.get(key).copied().unwrap_or(0);
        let sum = before + check.cost.units();
        let capacity = limits.iter().map(Limit::capacity).min().unwrap();
        let asked = Check {
            cost: Cost::new(sum.min(capacity)).unwrap(),
            ..check.clone()
        };
        let name = |limit: &Limit| (key.to_owned(), limit.fingerprint().bytes().to_vec());
        let mut fits = sum <= capacity;
        let mut begins = Vec::new();
        for limit in limits {
            let free = world
                .of(&check.key, limit)
                .model
                .fits(limit, now_us, asked.cost.units());
            let blocked = world.left_us(check, limit, now_us) > 0
                || limit.block_us() > 0 && begun.contains_key(&name(limit));
            fits &= free && !blocked;
            begins.push(!free && !blocked && limit.block_us() > 0);
        }
        let may_begin = check.mode == Mode::Charge && sum <= capacity;
        for (begins, limit) in begins.iter_mut().zip(limits) {
            *begins &= may_begin;
            if *begins {
                begun.insert(name(limit), limit.block_us());
            }
        }
        if (fits || !check.plan.shadow) && (check.mode == Mode::Charge || !charges) {
            sums.insert(key, sum);
        }
        all_pass &= fits || check.plan.shadow;
        tested.push(Tested {
            asked,
            fits,
            begins,
            never_fits: sum > capacity,
        });
    }
    (tested, all_pass)
}

/// Takes over what a joint decision does: all charges, if all pass, and then the blocks that began.
fn apply(
    world: &mut World,
    checks: &[Check],
    (tested, all_pass): &(Vec<Tested>, bool),
    now_us: u64,
) {
    for (check, tested) in checks.iter().zip(tested) {
        if *all_pass && tested.fits && check.mode == Mode::Charge {
            world.decide(check, now_us, &mut Seen::default());
        }
    }
    for (check, tested) in checks.iter().zip(tested) {
        for (limit, begins) in check.plan.limits().iter().zip(&tested.begins) {
            if *begins {
                world.of(&check.key, limit).block = Some((now_us, limit.block_us()));
            }
        }
    }
}

#[expect(
    clippy::too_many_lines,
    reason = "one history, told from its beginning to its end"
)]
async fn history(url: &str, algorithms: &[Algorithm], seed: u64) {
    let clock = FakeClock::new();
    let mut random = Random(seed);
    let shared = RedisStore::with_injected_clock(url, Arc::new(clock.clone())).unwrap();
    assert!(shared.connected(PATIENCE.0).await);
    let embedded = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
    let mut world = World::default();
    // Half of the plans are in shadow mode.
    let shadowed = |(index, plan): (usize, &Arc<Plan>)| {
        Arc::new(Plan {
            shadow: index % 2 == 0,
            ..Plan::clone(plan)
        })
    };
    let plans: Vec<Arc<Plan>> = plans(&mut random, algorithms)
        .iter()
        .enumerate()
        .map(shadowed)
        .collect();
    let mut now_us = START_US;
    let mut begun = 0;
    let mut passed = 0;
    let mut shadow_begun = 0;
    let steps = steps() / 4;
    for step in 0..steps {
        now_us = next_time(&mut random, now_us);
        clock.set(now_us);
        let checks: Vec<Check> = (0..1 + random.below(5))
            .map(|_| {
                let plan = random.pick(&plans);
                random_check(&mut random, plan)
            })
            .collect();
        let lua = shared.decide_joint(&checks, PATIENCE).await.unwrap();
        let rust = embedded.decide_joint(&checks).unwrap();
        let place = format!("{algorithms:?}, seed {seed}, step {step}, at {now_us}: {checks:?}");
        assert_eq!(lua, rust, "{place}");
        let expected = test(&mut world, &checks, now_us);
        apply(&mut world, &checks, &expected, now_us);
        let (tested, all_pass) = &expected;
        for ((check, tested), verdict) in checks.iter().zip(tested).zip(&rust) {
            let found: Vec<bool> = (0..tested.begins.len())
                .map(|index| verdict.block(index).begins)
                .collect();
            assert_eq!(
                (verdict.fits, &found),
                (tested.fits, &tested.begins),
                "{check:?}, {place}"
            );
            if !*all_pass && !tested.never_fits && tested.asked.mode == Mode::Charge {
                // Nothing was charged, so all numbers are those after the decision.
                let expected = (tested.fits, tested.begins.clone());
                told_on_panic(&place, || {
                    world.check(&tested.asked, now_us, verdict, &expected)
                });
            }
            let count = tested.begins.iter().filter(|begins| **begins).count();
            begun += count;
            shadow_begun += if *all_pass { count } else { 0 };
        }
        passed += u64::from(*all_pass);
    }
    println!(
        "{algorithms:?}: {passed} of {steps} pass, {begun} blocks begun, {shadow_begun} of them where all pass"
    );
    assert!(
        passed > steps / 20 && begun > 30 && shadow_begun > 3,
        "the history is one-sided"
    );
}

#[tokio::test]
async fn joint_decisions_begin_blocks_by_their_definition_in_both_stores() {
    let each = Algorithm::EVERY.map(|algorithm| vec![algorithm]);
    let all = each.into_iter().chain([vec![FIXED, LOG, WINDOW]]);
    for (algorithms, seed) in all.zip(40..) {
        let redis = Redis::start();
        history(&redis.url(), &algorithms, seed).await;
    }
}
