//! What calls with an id cost Redis beside a ShouldAllow: CPU by its own account, at 48 calls in flight. Run by hand.

use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::holds::{HoldCall, IfUnknown};
use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, HoldTerms, Limit, Plan, Rule};
use tollgate::store::{Check, HoldCheck, Mode, RedisStore, Store, StoreDeadline};

use crate::support::plans::{FIXED, WINDOW};
use crate::support::redis::Redis;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
const IN_FLIGHT: u64 = 48;
/// Calls of each kind, and rounds of which the median is told.
const CALLS: u64 = 24_000;
const ROUNDS: u64 = 5;
const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 30_000_000 };

/// A kind of call: what it asks, for the call of this number.
type Kind = fn(&Arc<Plan>, Key, u64) -> Asked;

enum Asked {
    Plain(Check),
    WithId(HoldCheck),
}

fn plan(algorithm: Algorithm) -> Arc<Plan> {
    let limit = Limit::new("limit", 30_000_000, Duration::from_secs(60), algorithm).unwrap();
    let holds = HoldTerms {
        max_open: 1_000,
        ..HoldTerms::default()
    };
    Arc::new(Plan {
        holds: holds.into(),
        ..Plan::new("tokens", Rule::limits([limit]))
    })
}

fn with_id(plan: &Arc<Plan>, key: Key, number: u64, call: HoldCall) -> Asked {
    let id = format!("request {number:08}").into();
    let plan = plan.clone();
    Asked::WithId(HoldCheck {
        key,
        plan,
        id,
        call,
    })
}

const KINDS: [(&str, Kind); 3] = [
    ("ShouldAllow", |plan, key, _| {
        let cost = Cost::ONE;
        let mode = Mode::Charge;
        let plan = plan.clone();
        Asked::Plain(Check {
            key,
            plan,
            cost,
            mode,
        })
    }),
    ("Reserve", |plan, key, number| {
        let ttl_us = 60_000_000;
        with_id(plan, key, number, HoldCall::Reserve { cost: 20, ttl_us })
    }),
    ("Settle", |plan, key, number| {
        let actual = Some(7);
        let if_unknown = IfUnknown::Charge;
        with_id(plan, key, number, HoldCall::Settle { actual, if_unknown })
    }),
];

/// Sends the calls of these numbers, so many at a time. Returns microseconds of Redis a call, and calls a script call.
async fn send(
    (redis, store, plan): (&Redis, &RedisStore, &Arc<Plan>),
    kind: Kind,
    keys: u64,
    numbers: std::ops::Range<u64>,
) -> (f64, f64) {
    let before = redis.cpu_us();
    let ran = redis.ran("evalsha");
    let count = numbers.end - numbers.start;
    let senders = (0..IN_FLIGHT).map(|sender| {
        let store = store.clone();
        let plan = plan.clone();
        let numbers = numbers.clone();
        tokio::spawn(async move {
            // A hold is settled while as many others of its key are open as callers share it.
            for number in numbers.skip(sender as usize).step_by(IN_FLIGHT as usize) {
                let key = Key::new(format!("{:020}", number % keys)).unwrap();
                match kind(&plan, key, number) {
                    Asked::Plain(check) => {
                        assert!(store.decide_one(&check, PATIENCE).await.unwrap().fits);
                    }
                    Asked::WithId(check) => {
                        let verdict = store.decide_hold(&check, PATIENCE).await.unwrap();
                        assert!(verdict.view.verdict.fits);
                    }
                }
            }
        })
    });
    for sender in senders.collect::<Vec<_>>() {
        sender.await.unwrap();
    }
    let script_calls = redis.ran("evalsha") - ran;
    (
        (redis.cpu_us() - before) / count as f64,
        count as f64 / script_calls as f64,
    )
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The holds of a key are settled before more are taken: as many are open at once as `open` says.
async fn measure(algorithm: Algorithm, keys: u64, open: u64) {
    let redis = Redis::start();
    let store = RedisStore::connect(&redis.url(), PATIENCE.0).unwrap();
    assert!(store.connected(PATIENCE.0).await);
    let plan = plan(algorithm);
    let mut number = 0;
    let mut figures = KINDS.map(|_| (Vec::new(), Vec::new()));
    for round in 0..=ROUNDS {
        let mut sums = KINDS.map(|_| (0.0, 0.0));
        let part = (keys * open).min(CALLS);
        let parts = CALLS / part;
        for _ in 0..parts {
            for ((_, kind), sum) in KINDS.iter().zip(&mut sums) {
                let numbers = number..number + part;
                let (us, together) = send((&redis, &store, &plan), *kind, keys, numbers).await;
                (sum.0, sum.1) = (sum.0 + us, sum.1 + together);
            }
            number += part;
        }
        // The first round makes the keys.
        if round > 0 {
            for (figure, sum) in figures.iter_mut().zip(sums) {
                figure.0.push(sum.0 / parts as f64);
                figure.1.push(sum.1 / parts as f64);
            }
        }
    }
    let told = figures.map(|(us, together)| (median(us), median(together)));
    for ((name, _), (us, together)) in KINDS.iter().zip(told) {
        println!(
            "{algorithm:?}, {keys} keys, {open} open: {name} {us:.2} us, x {:.2}, {together:.0} a script call",
            us / told[0].0
        );
    }
}

#[tokio::test]
#[ignore = "by hand: it prints what calls with an id cost Redis; see CONTRIBUTING.md"]
async fn redis_has_so_much_work_with_a_reserve_and_a_settle() {
    for algorithm in [BUCKET, WINDOW, FIXED] {
        measure(algorithm, 12_000, 1).await;
        measure(algorithm, 12, 4).await;
        measure(algorithm, 12, 100).await;
    }
}
