//! Joint decisions beside holds whose leases end: Redis decides as the embedded store does, which ends them in the decision.

use std::sync::Arc;
use std::time::Duration;

use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, HoldTerms, Limit, Plan, Rule};
use tollgate::store::{
    Check, MemoryStore, Mode, RedisStore, Store, StoreDeadline, Verdict, all_fit,
};

use crate::support::clock::FakeClock;
use crate::support::clocked_store::store_on;
use crate::support::history::Random;
use crate::support::holds::{ask, reserve};
use crate::support::plans::{FIXED, LOG, WINDOW};
use crate::support::redis::Redis;

const S: u64 = 1_000_000;
const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 10 };

fn shadow(plan: &Arc<Plan>) -> Arc<Plan> {
    Arc::new(Plan {
        shadow: true,
        ..Plan::clone(plan)
    })
}

fn plan(name: &str, algorithm: Algorithm, releases: bool, block: Option<Duration>) -> Arc<Plan> {
    let limit = Limit::new("limit", 10, Duration::from_secs(60), algorithm).unwrap();
    let limit = match block {
        Some(block) => limit.with_block(block).unwrap(),
        None => limit,
    };
    let holds = HoldTerms {
        release_on_expiry: releases,
        ..HoldTerms::default()
    };
    Arc::new(Plan {
        holds: holds.into(),
        ..Plan::new(name, Rule::limits([limit]))
    })
}

fn check(plan: &Arc<Plan>, key: &str, cost: u64) -> Check {
    Check {
        key: Key::new(key).unwrap(),
        plan: plan.clone(),
        cost: Cost::new(cost).unwrap(),
        mode: Mode::Charge,
    }
}

/// Both stores at one clock.
struct Both {
    clock: FakeClock,
    memory: MemoryStore,
    redis: RedisStore,
}

impl Both {
    fn start(redis: &Redis) -> Self {
        let clock = FakeClock::new();
        Self {
            memory: MemoryStore::new(1 << 24, Arc::new(clock.clone())),
            redis: store_on(redis, &clock),
            clock,
        }
    }

    async fn reserve(&self, plan: &Arc<Plan>, key: &str, id: &str, (cost, seconds): (u64, u64)) {
        let held = ask(plan, key, (id, reserve(cost, seconds)));
        let in_memory = self.memory.hold(&held).unwrap();
        let in_redis = self.redis.decide_hold(&held, PATIENCE).await.unwrap();
        assert_eq!(in_memory.event, in_redis.event, "{held:?}");
    }

    async fn jointly(&self, checks: &[Check]) -> Vec<Verdict> {
        let in_memory = self.memory.decide_joint(checks).unwrap();
        let in_redis = self.redis.decide_joint(checks, PATIENCE).await.unwrap();
        // One may have ended holds of a check that fits anyway, and the other not yet.
        let told = |verdicts: Vec<Verdict>| -> Vec<_> {
            let told = verdicts.into_iter().map(|verdict| {
                let readings = (!verdict.fits).then_some(verdict.readings);
                (verdict.fits, readings, verdict.release_in_us)
            });
            told.collect()
        };
        assert_eq!(told(in_memory), told(in_redis.clone()), "{checks:?}");
        in_redis
    }
}

#[tokio::test]
async fn a_hold_whose_lease_is_over_denies_no_joint_decision() {
    let redis = Redis::start();
    let both = Both::start(&redis);
    let held = plan("held", FIXED, true, None);
    let other = plan("other", FIXED, false, None);
    both.reserve(&held, "k", "a", (10, 5)).await;
    let checks = [check(&held, "k", 1), check(&other, "k", 1)];
    both.clock.advance(2 * S);
    let denied = both.jointly(&checks).await;
    assert!(!all_fit(&checks, &denied));
    assert_eq!(denied[0].release_in_us, 3 * S, "the lease ends first");
    both.clock.advance(3 * S);
    let allowed = both.jointly(&checks).await;
    assert!(all_fit(&checks, &allowed));
}

#[tokio::test]
async fn a_hold_whose_lease_is_over_begins_no_block_in_a_joint_decision() {
    let redis = Redis::start();
    let both = Both::start(&redis);
    let block = Some(Duration::from_secs(3_600));
    let held = plan("held", FIXED, true, block);
    let other = plan("other", FIXED, false, None);
    both.reserve(&held, "k", "a", (10, 5)).await;
    both.clock.advance(5 * S);
    let checks = [check(&held, "k", 1), check(&other, "k", 1)];
    let allowed = both.jointly(&checks).await;
    assert!(all_fit(&checks, &allowed));
    let checks = [check(&held, "k", 10), check(&other, "k", 1)];
    let denied = both.jointly(&checks).await;
    assert!(denied[0].blocks.as_ref().unwrap()[0].begins);
}

/// Charges, peeks, or both.
fn mode(random: &mut Random, kind: u64) -> Mode {
    match kind {
        0 => Mode::Peek,
        1 if random.below(3) == 0 => Mode::Peek,
        _ => Mode::Charge,
    }
}

#[tokio::test]
async fn joint_decisions_beside_holds_are_as_in_memory() {
    let redis = Redis::start();
    let block = Some(Duration::from_secs(20));
    // Redis ends holds before they deny where there are blocks or shadows, and those of a peek beside charges. A bucket then gets units
    // back sooner, so there is none.
    let cases = [
        (FIXED, None, false),
        (BUCKET, None, false),
        (LOG, None, false),
        (WINDOW, None, false),
        (FIXED, block, false),
        (FIXED, None, true),
    ];
    for (seed, (algorithm, block, has_shadow)) in (0..).zip(cases) {
        let both = Both::start(&redis);
        let mut random = Random(seed);
        let name = |part: &str| format!("{part}{seed}");
        let also = plan(&name("also"), FIXED, true, None);
        let plans = [
            plan(&name("held"), algorithm, true, block),
            plan(&name("kept"), algorithm, false, None),
            if has_shadow { shadow(&also) } else { also },
        ];
        let mut allowed = 0;
        for step in 0..400 {
            both.clock.advance(random.below(2 * S));
            let key = ["a", "b"][random.below(2) as usize];
            let some = |random: &mut Random| plans[random.below(3) as usize].clone();
            if random.below(3) == 0 {
                let held = (1 + random.below(8), 1 + random.below(6));
                both.reserve(&some(&mut random), key, &step.to_string(), held)
                    .await;
            } else {
                let count = 2 + random.below(2);
                let kind = random.below(4);
                let kind = kind + u64::from(algorithm == BUCKET && kind == 1);
                let checks = (0..count).map(|_| Check {
                    mode: mode(&mut random, kind),
                    ..check(&some(&mut random), key, 1 + random.below(3))
                });
                let checks: Vec<Check> = checks.collect();
                allowed += usize::from(all_fit(&checks, &both.jointly(&checks).await));
            }
        }
        assert!(
            (20..250).contains(&allowed),
            "seed {seed}: {allowed} allowed"
        );
    }
}
