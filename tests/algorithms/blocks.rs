//! Blocks in both stores against brute force: a model that keeps every charge, and for each limit when its block began.
//!
//! One history runs through the embedded store and through Redis, on one injected clock. It has charges, peeks, refunds and resets,
//! edits of quota and `block`, plans without `block` on the same counts, and clocks that step back. Both must give the same readings,
//! and the numbers that the model finds by trying: the first instant at which the request passes, and the key is fresh.

mod joint;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::Verdict;
use tollgate::key::Key;
use tollgate::plan::{Algorithm, Limit, Plan};
use tollgate::store::{Check, MemoryStore, Mode, Refund, Store, StoreDeadline, Subject};

use super::oracle::{Model, assert_first};
use crate::support::asks::{Ask, ask_in_order, charge_of, refund_of};
use crate::support::clock::{FakeClock, START_US};
use crate::support::clocked_store::store_on;
use crate::support::history::{Random, Times};
use crate::support::plans::{COUNTER, FIXED, LOG, WINDOW, ask, limit, plan, with_every_algorithm};
use crate::support::redis::Redis;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
/// Steps of each history, unless `TOLLGATE_BLOCK_STEPS` says otherwise.
const STEPS: u64 = 8_000;
const KEYS: u64 = 3;
const S: u64 = 1_000_000;
const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 1 };

/// One key by one limit.
struct Counted {
    model: Model,
    /// When its block began, and how long it lasts.
    block: Option<(u64, u64)>,
}

impl Counted {
    /// How long the block runs yet. One that began later than now was begun by a clock that stepped back: it begins now.
    fn left_us(&self, now_us: u64) -> u64 {
        self.block.map_or(0, |(begun_us, length_us)| {
            let ends_us = begun_us.min(now_us) + length_us;
            ends_us.saturating_sub(now_us)
        })
    }
}

#[derive(Default)]
struct World(HashMap<(String, Vec<u8>), Counted>);

/// What happened in a history, so that none is one-sided.
#[derive(Debug, Default)]
struct Seen {
    allowed: u64,
    denied: u64,
    begun: u64,
    /// Denials although units are free.
    blocked_alone: u64,
}

impl World {
    fn of(&mut self, key: &Key, limit: &Limit) -> &mut Counted {
        let name = (
            key.as_str().to_owned(),
            limit.fingerprint().bytes().to_vec(),
        );
        self.0.entry(name).or_insert_with(|| Counted {
            model: Model::new(),
            block: None,
        })
    }

    fn left_us(&mut self, check: &Check, limit: &Limit, now_us: u64) -> u64 {
        let left_us = self.of(&check.key, limit).left_us(now_us);
        if limit.block_us() > 0 { left_us } else { 0 }
    }

    /// Gives units back as the promises say.
    fn refund(&mut self, refund: &Refund, now_us: u64) {
        for limit in refund.plan.limits() {
            let model = &mut self.of(&refund.key, limit).model;
            model.clamp(limit, now_us);
            model.refund(limit, now_us, refund.units.units());
        }
    }

    /// Decides as the promises say. Returns whether the request passes, and which limits begin a block.
    fn decide(&mut self, check: &Check, now_us: u64, seen: &mut Seen) -> (bool, Vec<bool>) {
        let limits = check.plan.limits();
        let cost = check.cost.units();
        let lefts: Vec<u64> = limits
            .iter()
            .map(|limit| self.left_us(check, limit, now_us))
            .collect();
        let free: Vec<bool> = limits
            .iter()
            .map(|limit| self.of(&check.key, limit).model.fits(limit, now_us, cost))
            .collect();
        let fits = free.iter().all(|free| *free) && lefts.iter().all(|left_us| *left_us == 0);
        let mut begins = vec![false; limits.len()];
        if check.mode == Mode::Charge {
            for (index, limit) in limits.iter().enumerate() {
                let counted = self.of(&check.key, limit);
                counted.model.clamp(limit, now_us);
                if fits {
                    counted.model.charge(limit, now_us, cost);
                }
                if limit.block_us() == 0 {
                    continue;
                }
                if let Some((begun_us, _)) = &mut counted.block {
                    *begun_us = now_us.min(*begun_us);
                }
                if !fits && !free[index] && lefts[index] == 0 {
                    counted.block = Some((now_us, limit.block_us()));
                    begins[index] = true;
                }
            }
            if fits {
                // A block that has ended is gone with the next charge, whatever a clock does then.
                let of_key = self
                    .0
                    .iter_mut()
                    .filter(|((key, _), _)| key == check.key.as_str());
                of_key
                    .filter(|(_, counted)| counted.left_us(now_us) == 0)
                    .for_each(|(_, counted)| counted.block = None);
            }
            *(if fits {
                &mut seen.allowed
            } else {
                &mut seen.denied
            }) += 1;
            seen.begun += begins.iter().filter(|begins| **begins).count() as u64;
            seen.blocked_alone += u64::from(!fits && free.iter().all(|free| *free));
        }
        (fits, begins)
    }

    /// Compares the numbers of a verdict with those that the model has after the decision.
    fn check(
        &mut self,
        check: &Check,
        now_us: u64,
        verdict: &Verdict,
        expected: &(bool, Vec<bool>),
    ) {
        let limits = check.plan.limits();
        let cost = check.cost.units();
        let (fits, begins) = expected;
        assert_eq!(verdict.fits, *fits, "fits");
        for (index, status) in verdict.statuses(limits, check.cost).iter().enumerate() {
            let limit = &limits[index];
            let left_us = self.left_us(check, limit, now_us);
            let mut model = self.of(&check.key, limit).model.clone();
            // A peek reads a debt at the rate that it has.
            if check.mode == Mode::Peek {
                model.clamp_times(limit, now_us);
            } else {
                model.clamp(limit, now_us);
            }
            assert_eq!(
                (status.blocked_for_us, status.begins_block),
                (left_us, begins[index]),
                "{limit:?}"
            );
            let passes =
                |at_us: u64, units| at_us >= now_us + left_us && model.fits(limit, at_us, units);
            let most = (1..=limit.capacity())
                .rev()
                .find(|units| passes(now_us, *units));
            assert_eq!(
                status.remaining,
                most.unwrap_or(0),
                "remaining of {limit:?}"
            );
            assert_first(now_us, status.reset_after_us, "reset_after", |at_us| {
                at_us >= now_us + left_us && model.used(limit, at_us) == 0
            });
            let denies = !fits && !passes(now_us, cost);
            assert_eq!(status.retry_after_us.is_some(), denies, "{limit:?}");
            if let Some(wait_us) = status.retry_after_us {
                assert_first(now_us, wait_us, "retry_after", |at_us| passes(at_us, cost));
            }
        }
    }

    fn forget(&mut self, key: &str) {
        self.0.retain(|(other, _), _| other != key);
    }
}

/// Plans of one count, of these algorithms: with other quotas, bursts and blocks. Some have none.
fn plans(random: &mut Random, algorithms: &[Algorithm]) -> Vec<Arc<Plan>> {
    let one = |random: &mut Random, (place, algorithm): (usize, &Algorithm)| {
        // Divisors of the window, so that the interval of a token bucket is exact.
        let quota = *random.pick(&[2, 4, 5, 8, 10]);
        let algorithm = match algorithm {
            Algorithm::TokenBucket { .. } => Algorithm::TokenBucket {
                burst: 1 + random.below(2 * quota),
            },
            other => *other,
        };
        let limit = limit(quota, Duration::from_secs(2 + place as u64), algorithm);
        match random.below(3) {
            0 => limit,
            _ => limit
                .with_block(Duration::from_millis(
                    *random.pick(&[1_000, 1_500, 2_000, 7_000]),
                ))
                .unwrap(),
        }
    };
    (0..10)
        .map(|_| {
            plan(
                algorithms
                    .iter()
                    .enumerate()
                    .map(|shape| one(random, shape))
                    .collect(),
            )
        })
        .collect()
}

fn random_check(random: &mut Random, plan: &Arc<Plan>) -> Check {
    let most = plan.limits().iter().map(Limit::capacity).min().unwrap();
    let cost = match random.below(5) {
        0 => 1 + random.below(most),
        _ => 1,
    };
    let mode = match random.below(12) {
        0..=1 => Mode::Peek,
        _ => Mode::Charge,
    };
    Check {
        mode,
        ..ask(plan, &format!("key {}", random.below(KEYS)), cost)
    }
}

fn random_ask(random: &mut Random, plan: &Arc<Plan>) -> Ask {
    let check = random_check(random, plan);
    match random.below(12) {
        0 => refund_of(&check).into(),
        _ => check.into(),
    }
}

/// Times that go on. Beside other limits, and beside a log, each store drops what is fresh at another time, which steps back show.
fn next_time(random: &mut Random, now_us: u64) -> u64 {
    now_us
        + match random.below(12) {
            0..=3 => 0,
            4..=8 => random.below(S / 10),
            9..=10 => random.below(3 * S),
            _ => S,
        }
}

fn steps() -> u64 {
    let steps = std::env::var("TOLLGATE_BLOCK_STEPS");
    steps.map_or(STEPS, |text| text.parse().unwrap())
}

#[expect(
    clippy::too_many_lines,
    reason = "one history, told from its beginning to its end"
)]
async fn check(algorithms: &[Algorithm], steps_back: bool, seed: u64) {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let mut random = Random(seed);
    let shared = store_on(&redis, &clock);
    let embedded = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
    let mut world = World::default();
    let mut seen = Seen::default();
    let plans = plans(&mut random, algorithms);
    let mut plan = &plans[0];
    let mut times = Times::new(START_US, 2 * S);
    let mut now_us = START_US;
    let steps = steps();
    for step in 0..steps {
        if random.below(30) == 0 {
            plan = random.pick(&plans);
        }
        now_us = if steps_back {
            times.next(&mut random)
        } else {
            next_time(&mut random, now_us)
        };
        clock.set(now_us);
        // The embedded store drops what is fresh when a key begins anew, which steps back would show.
        if !steps_back && random.below(200) == 0 {
            let key = format!("key {}", random.below(KEYS));
            reset(&shared, &embedded, plan, &key).await;
            world.forget(&key);
        }
        // One at a time, or several in one call, which the script writes once.
        let count = if random.below(3) == 0 {
            1 + random.below(6)
        } else {
            1
        };
        let asks: Vec<Ask> = (0..count)
            .map(|_| {
                let plan = if random.below(8) == 0 {
                    random.pick(&plans)
                } else {
                    plan
                };
                random_ask(&mut random, plan)
            })
            .collect();
        let lua = ask_in_order(&shared, &asks, PATIENCE).await;
        let rust = ask_in_order(&embedded, &asks, PATIENCE).await;
        for (index, ask) in asks.iter().enumerate() {
            assert_eq!(
                lua[index], rust[index],
                "{algorithms:?}, seed {seed}, step {step}, at {now_us}: {ask:?}"
            );
            let (check, expected) = match ask {
                Ask::Decide(check) => (check.clone(), world.decide(check, now_us, &mut seen)),
                Ask::Refund(refund) => {
                    world.refund(refund, now_us);
                    let begins = vec![false; refund.plan.limits().len()];
                    (charge_of(refund), (true, begins))
                }
            };
            let verdict = rust[index].as_ref().unwrap().verdict();
            told_on_panic(
                &format!(
                    "{algorithms:?}, seed {seed}, step {step}, at {now_us}: {ask:?}, {verdict:?}"
                ),
                || {
                    // In a batch, only the last request of a key sees the world as it is now.
                    if asks[index + 1..]
                        .iter()
                        .all(|later| *later.key() != check.key)
                        || expected.0
                    {
                        world.check(&check, now_us, verdict, &expected);
                    }
                },
            );
            if expected.0 {
                times.mark(now_us);
            }
        }
    }
    println!("{algorithms:?}: {seen:?}");
    assert!(
        seen.allowed > steps / 20 && seen.begun > steps / 100 && seen.blocked_alone > steps / 200,
        "the history is one-sided: {seen:?}"
    );
}

/// Says where it was, if it fails.
fn told_on_panic(place: &str, run: impl FnOnce()) {
    if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        println!("{place}");
        std::panic::resume_unwind(panic);
    }
}

async fn reset(shared: &impl Store, embedded: &MemoryStore, plan: &Plan, key: &str) {
    let logs = plan
        .limits()
        .iter()
        .filter(|limit| limit.algorithm() == LOG);
    let subject = Subject {
        key: Key::new(key).unwrap(),
        counts_as: plan.counts_as.clone(),
        log_windows_us: logs.map(Limit::window_us).collect(),
    };
    shared.reset(&subject, PATIENCE).await.unwrap();
    embedded.reset(&subject, PATIENCE).await.unwrap();
}

macro_rules! histories {
    ($($name:ident: $algorithm:expr,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            check(&[$algorithm], $algorithm != LOG, 0xb10c).await;
        }
    )*};
}

mod blocks_as_brute_force {
    use super::*;
    with_every_algorithm!(histories);
    histories! {
        sliding_window_of_precision_20: Algorithm::SlidingWindow { precision: 20 },
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn several_limits() {
        check(&[FIXED, BUCKET, COUNTER, WINDOW], false, 0xb10c).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn several_limits_with_logs() {
        check(&[LOG, FIXED, WINDOW, LOG], false, 0xb10c).await;
    }
}
