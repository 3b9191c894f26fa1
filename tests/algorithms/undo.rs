//! Undos in Lua and in Rust are alike: random histories of charges, and of undos of any of them, early, late or twice. The states in
//! Rust are kept here, since the embedded store never undoes. All readings must be equal, before and after each undo.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::{State, Verdict, decide, undo, undo_instants};
use tollgate::plan::{Algorithm, Limit, Plan};
use tollgate::store::{Check, Mode, Store, StoreDeadline};

use crate::support::clock::{FakeClock, START_US};
use crate::support::clocked_store::store_on;
use crate::support::history::Random;
use crate::support::plans::{ANCHORED, BUCKET, COUNTER, FIXED, LOG, ask, limit, plan};
use crate::support::redis::Redis;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
/// Steps of each history, unless `TOLLGATE_UNDO_STEPS` says otherwise.
const STEPS: u64 = 4_000;
const KEYS: u64 = 3;
/// Charges that may still be undone. Older ones are forgotten.
const CHARGES_MAX: usize = 12;

/// States by key and fingerprint.
#[derive(Default)]
struct World(HashMap<(String, Vec<u8>), State>);

impl World {
    /// Runs something on the states of a check.
    fn with<T>(&mut self, check: &Check, run: impl FnOnce(&[Limit], &mut [State]) -> T) -> T {
        let limits = check.plan.limits();
        let name = |limit: &Limit| {
            let fingerprint = limit.fingerprint().bytes().to_vec();
            (check.key.as_str().to_owned(), fingerprint)
        };
        let state = |limit: &Limit| self.0.get(&name(limit)).cloned();
        let mut states: Vec<State> = limits
            .iter()
            .map(|limit| state(limit).unwrap_or_else(|| State::fresh(limit)))
            .collect();
        let result = run(limits, &mut states);
        self.0.extend(limits.iter().map(name).zip(states));
        result
    }

    fn decide(&mut self, check: &Check, now_us: u64) -> Verdict {
        self.with(check, |limits, states| {
            decide(limits, states, now_us, check.cost, check.mode)
        })
    }

    /// Undoes charges, the last one first. Returns how all stand after it, as the script tells it, and how many gave units back.
    fn undo(&mut self, charges: &[(Check, Vec<u64>)], now_us: u64) -> (Vec<Verdict>, u64) {
        let mut gave_back = 0;
        for (check, instants) in charges.iter().rev() {
            let given_back = self.with(check, |limits, states| {
                undo(limits, states, now_us, check.cost.units(), instants)
            });
            gave_back += u64::from(given_back.units().iter().any(|units| *units > 0));
        }
        let mut read = |check: &Check| {
            self.with(check, |limits, states| {
                undo(limits, &mut states.to_vec(), now_us, 0, &[]).after
            })
        };
        let after = charges.iter().map(|(check, _)| read(check)).collect();
        (after, gave_back)
    }
}

/// Plans of one count, of these algorithms and of several quotas.
fn plans(random: &mut Random, algorithms: &[Algorithm]) -> Vec<Arc<Plan>> {
    let one = |random: &mut Random, algorithm: Algorithm| {
        let quota = *random.pick(&[3, 8, 20, 300, 100_000]);
        let (quota, algorithm) = match algorithm {
            Algorithm::TokenBucket { .. } => {
                // A unit per microsecond at most.
                let burst = 1 + random.below(2 * quota);
                let quota = quota.min(3_000);
                (quota, Algorithm::TokenBucket { burst })
            }
            other => (quota, other),
        };
        limit(quota, Duration::from_millis(3), algorithm)
    };
    let several = |_| {
        plan(
            algorithms
                .iter()
                .map(|algorithm| one(random, *algorithm))
                .collect(),
        )
    };
    (0..6).map(several).collect()
}

/// Steps back are small, and only for one limit: beside others, Redis drops records that are fresh, and does not know them any more.
fn next_time(random: &mut Random, now_us: u64, steps_back: bool) -> u64 {
    match random.below(20) {
        0..=4 => now_us,
        5..=12 => now_us + random.below(50),
        13..=17 => now_us + random.below(1_000),
        18 => now_us + random.below(4_000),
        _ if steps_back => now_us - random.below(300),
        _ => now_us + 1,
    }
}

async fn check(algorithms: &[Algorithm], seed: u64) {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let mut random = Random(seed);
    let store = store_on(&redis, &clock);
    let mut world = World::default();
    let plans = plans(&mut random, algorithms);
    let mut charges: Vec<(Check, Vec<u64>)> = Vec::new();
    let mut now_us = START_US;
    let mut undone = 0;
    let mut gave_back = 0;
    let steps = std::env::var("TOLLGATE_UNDO_STEPS");
    let steps = steps.map_or(STEPS, |text| text.parse().unwrap());
    for step in 0..steps {
        now_us = next_time(&mut random, now_us, algorithms.len() == 1);
        clock.set(now_us);
        let place = format!("{algorithms:?}, seed {seed}, step {step} at {now_us}");
        if !charges.is_empty() && random.below(3) == 0 {
            let count = 1 + random.below(3);
            let chosen = (0..count).map(|_| {
                let index = random.below(charges.len() as u64) as usize;
                // Some stay, to be undone twice.
                if random.below(4) == 0 || charges.len() == 1 {
                    charges[index].clone()
                } else {
                    charges.remove(index)
                }
            });
            let chosen: Vec<_> = chosen.collect();
            let lua = store.undo(&chosen, PATIENCE).await;
            let (rust, gave) = world.undo(&chosen, now_us);
            assert_eq!(lua.unwrap(), rust, "{place}: {chosen:?}");
            undone += count;
            gave_back += gave;
            continue;
        }
        let plan = random.pick(&plans);
        let most = plan.limits().iter().map(Limit::capacity).min().unwrap();
        let cost = 1 + random.below(most.div_ceil(3));
        let check = ask(plan, &format!("key {}", random.below(KEYS)), cost);
        let lua = store.decide_one(&check, PATIENCE).await.unwrap();
        let rust = world.decide(&check, now_us);
        assert_eq!(lua, rust, "{place}: {check:?}");
        if rust.fits && check.mode == Mode::Charge {
            let instants = undo_instants(check.plan.limits(), &rust, now_us, cost);
            charges.push((check, instants.to_vec()));
            if charges.len() > CHARGES_MAX {
                charges.remove(0);
            }
        }
    }
    println!("{algorithms:?}: {undone} undos equal, {gave_back} of them gave back");
    assert!(
        gave_back > undone / 10 && gave_back < undone,
        "{gave_back} of {undone}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undos_of_one_algorithm_are_alike_in_lua_and_rust() {
    let all = Algorithm::EVERY
        .into_iter()
        .chain([Algorithm::SlidingWindow { precision: 5 }]);
    for (algorithm, seed) in all.zip(1..) {
        check(&[algorithm], seed).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn undos_of_several_limits_are_alike_in_lua_and_rust() {
    let window = Algorithm::SlidingWindow { precision: 5 };
    check(&[FIXED, COUNTER, BUCKET, window], 20).await;
    check(&[BUCKET, LOG, window, ANCHORED], 21).await;
}
