//! Rust and Lua decide alike. The tests compare the embedded store with Redis on one injected clock, over random histories. These
//! have times at edges, steps of the clock, edits of limits, refunds, and several limits to a plan. All readings must be equal.

use std::sync::Arc;
use std::time::Duration;

use tollgate::plan::{Algorithm, Limit, Plan, QUOTA_MAX};
use tollgate::store::{MemoryStore, Store, StoreDeadline};

use crate::support::asks::{Answer, Ask, ask_in_order};
use crate::support::clock::{FakeClock, START_US};
use crate::support::clocked_store::store_on;
use crate::support::history::{Random, Times};
use crate::support::plans::{
    BUCKET, COUNTER, LOG, WINDOW, ask, limit, peek, plan, refund, with_every_algorithm,
};
use crate::support::redis::Redis;

/// Least number of decisions compared per algorithm, unless `TOLLGATE_PARITY_DECISIONS` says otherwise. The last batch may exceed it.
const DECISIONS: usize = 60_000;
const BATCH: usize = 32;
const KEYS: u64 = 6;
const SEED: u64 = 0x7011_6a7e;
/// A deadline that no call here reaches.
const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));

/// Factors of quotas, so that counts have one to five bytes in Redis. Buckets get none, because a unit of a large quota would
/// take less than a microsecond.
const SCALES: [u64; 5] = [1, 1 << 6, 1 << 14, 1 << 22, 1 << 30];

/// Factors of a log's quotas, up to the largest, 100,000. That is more than half of 2^17, the modulus of a log's totals in Redis.
const LOG_SCALES: [u64; 2] = [1, 2_500];

fn decisions() -> usize {
    let decisions = std::env::var("TOLLGATE_PARITY_DECISIONS");
    decisions.map_or(DECISIONS, |text| text.parse().unwrap())
}

/// The parameters of a random history.
struct HistoryParameters {
    /// Algorithm and window, in milliseconds, of each limit.
    shapes: Vec<(Algorithm, u64)>,
    start_us: u64,
    decisions: usize,
    seed: u64,
}

impl HistoryParameters {
    fn of(shapes: &[(Algorithm, u64)]) -> Self {
        Self {
            shapes: shapes.to_vec(),
            start_us: START_US,
            decisions: decisions(),
            seed: SEED,
        }
    }
}

/// Twenty plans with these algorithms and windows, and different quotas. To change from one to another is like an edit of a plan.
fn plans(random: &mut Random, shapes: &[(Algorithm, u64)]) -> Vec<Arc<Plan>> {
    let edited = |random: &mut Random, (algorithm, window_ms): (Algorithm, u64)| {
        let scale = match algorithm {
            Algorithm::TokenBucket { .. } => 1,
            LOG if shapes.len() == 1 => *random.pick(&LOG_SCALES),
            _ if shapes.len() > 1 => 1,
            // A larger quota would be refused, because its product with the window has a bound.
            COUNTER if window_ms > 100 => *random.pick(&SCALES[..3]),
            _ => *random.pick(&SCALES),
        };
        let quota = scale * *random.pick(&[2, 3, 5, 8, 13, 20, 40]);
        let algorithm = match algorithm {
            Algorithm::TokenBucket { .. } => Algorithm::TokenBucket {
                burst: 1 + random.below(2 * quota),
            },
            other => other,
        };
        limit(quota, Duration::from_millis(window_ms), algorithm)
    };
    let subset = |random: &mut Random| -> Vec<Limit> {
        let mut limits: Vec<Limit> = shapes.iter().map(|shape| edited(random, *shape)).collect();
        while limits.len() > 1 && random.below(3) > 0 {
            let index = random.below(limits.len() as u64) as usize;
            // Each store drops a log that no plan has any more, but at different times: Redis by its expiry. The difference
            // shows if the clock then steps back. So logs are never left out here.
            if limits[index].algorithm() != LOG {
                limits.remove(index);
            }
        }
        if random.below(2) == 0 {
            limits.reverse();
        }
        limits
    };
    (0..20).map(|_| plan(subset(random))).collect()
}

fn random_ask(random: &mut Random, plan: &Arc<Plan>, refunds: bool) -> Ask {
    let most = plan.limits().iter().map(Limit::capacity).min().unwrap();
    let cost = match random.below(6) {
        0 => most,
        1 => 1 + random.below(most),
        _ => most.div_ceil(8),
    };
    let key = format!("key {}", random.below(KEYS));
    match random.below(20) {
        0..=1 => peek(plan, &key, cost).into(),
        // Most refunds are of what a charge took, and some of more than can have been used.
        2..=6 if refunds => refund(plan, &key, cost).into(),
        7 if refunds => refund(plan, &key, *random.pick(&[2 * most, QUOTA_MAX])).into(),
        _ => ask(plan, &key, cost).into(),
    }
}

/// The random requests of one batch.
fn random_batch(random: &mut Random, plans: &[Arc<Plan>], plan: &Arc<Plan>) -> Vec<Ask> {
    let count = 1 + random.below(BATCH as u64) as usize;
    // Mostly requests of one plan. Sometimes of several plans with one `counts_as`, so that they share each key's usage.
    let mixed = random.below(4) == 0;
    let refunds = random.below(2) == 0;
    let mut asks: Vec<Ask> = (0..count)
        .map(|_| {
            let plan = if mixed { random.pick(plans) } else { plan };
            random_ask(random, plan, refunds)
        })
        .collect();
    // The script has a faster path for requests that differ only in their keys.
    if random.below(3) == 0 {
        let first = asks[0].clone();
        asks = (0..count)
            .map(|key| first.clone().with_key(&format!("key {key}")))
            .collect();
    }
    asks
}

async fn check(name: &str, parameters: HistoryParameters) {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let HistoryParameters {
        shapes,
        start_us,
        decisions: enough,
        seed,
    } = parameters;
    let shared = store_on(&redis, &clock);
    let embedded = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
    let mut random = Random(seed);
    let plans = plans(&mut random, &shapes);
    let mut plan = &plans[0];
    let mut times = Times::new(start_us, 1_000 * shapes[0].1);
    let mut decisions = 0;
    let mut allowed = 0;
    while decisions < enough {
        if random.below(4) == 0 {
            plan = random.pick(&plans);
        }
        let now_us = times.next(&mut random);
        clock.set(now_us);
        let asks = random_batch(&mut random, &plans, plan);
        let before = allowed;
        let from_redis = ask_in_order(&shared, &asks, PATIENCE).await;
        let from_memory = ask_in_order(&embedded, &asks, PATIENCE).await;
        for (index, (lua, rust)) in from_redis.iter().zip(&from_memory).enumerate() {
            assert_eq!(
                lua,
                rust,
                "{name}, seed {seed:#x}, decision {}, at {now_us}: {:?}",
                decisions + index,
                asks[index]
            );
            let fits = rust.as_ref().is_ok_and(Answer::fits);
            allowed += usize::from(!asks[index].is_refund() && fits);
        }
        if allowed > before {
            times.mark(now_us);
        }
        decisions += asks.len();
    }
    println!("{name}: {decisions} decisions equal, {allowed} of them allowed");
    assert!(
        allowed > decisions / 50 && allowed < decisions * 49 / 50,
        "the histories are one-sided: {allowed} of {decisions}"
    );
}

macro_rules! decides_alike {
    ($window_ms:expr; $($name:ident: $algorithm:expr,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let shapes = [($algorithm, $window_ms)];
            check(stringify!($name), HistoryParameters::of(&shapes)).await;
        }
    )*};
}

macro_rules! of_an_odd_window {
    ($($rows:tt)*) => { decides_alike! { 3; $($rows)* } };
}

mod decides_alike {
    use super::*;
    with_every_algorithm!(of_an_odd_window);
    of_an_odd_window! {
        sliding_window_of_precision_7: Algorithm::SlidingWindow { precision: 7 },
    }
}

macro_rules! of_a_common_window {
    ($($rows:tt)*) => { decides_alike! { 60_000; $($rows)* } };
}

mod with_a_common_window_decides_alike {
    use super::*;
    with_every_algorithm!(of_a_common_window);
}

/// Every algorithm but the log, whose states are elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_of_several_limits_in_one_value_decide_alike() {
    let algorithms = Algorithm::EVERY.into_iter().filter(|it| *it != LOG);
    let shapes: Vec<(Algorithm, u64)> = algorithms.zip(3..).collect();
    check("one value", HistoryParameters::of(&shapes)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_of_several_limits_decide_alike() {
    let more = [LOG, Algorithm::SlidingWindow { precision: 3 }];
    let algorithms = Algorithm::EVERY.into_iter().chain(more);
    let shapes: Vec<(Algorithm, u64)> = algorithms.zip(2..).collect();
    check("several limits", HistoryParameters::of(&shapes)).await;
}

const DAY_MS: u64 = 24 * 3_600_000;

/// Redis keeps a log's times modulo 2^47 microseconds. These histories begin just before a multiple of that and cross it in both
/// directions. Those with windows of a year cross several multiples.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_decides_alike_where_its_times_wrap() {
    let wrap_us = ((START_US >> 47) + 1) << 47;
    for (seed, window_ms, windows, decisions) in (0..4).flat_map(|seed| {
        [
            (seed, 3, 20, decisions() / 12),
            (seed, DAY_MS, 3, decisions() / 12),
            (seed, 366 * DAY_MS, 0, decisions() / 30),
        ]
    }) {
        let start_us = wrap_us - windows * window_ms * 1_000;
        let parameters = HistoryParameters {
            start_us,
            decisions,
            seed,
            ..HistoryParameters::of(&[(LOG, window_ms)])
        };
        check("times that wrap", parameters).await;
    }
}

/// The emission intervals go from a microsecond to a year, so their conversions need more digits than a Lua number has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stores_decide_alike_after_a_change_of_a_bucket_s_rate() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let shared = store_on(&redis, &clock);
    let embedded = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
    let mut random = Random(SEED);
    let mut now_us = START_US;
    let mut allowed = 0;
    for window in [
        tollgate::plan::WINDOW_MAX,
        Duration::from_secs(86_400),
        Duration::from_secs(3_600),
    ] {
        let limits = std::iter::repeat_with(|| {
            let quota = 1 + (random.next() >> (24 + random.below(40)));
            let burst = 1 + random.below(20);
            Limit::new("limit", quota, window, Algorithm::TokenBucket { burst })
        });
        let plans: Vec<Arc<Plan>> = limits
            .filter_map(|limit| limit.ok().map(|limit| plan(vec![limit])))
            .take(60)
            .collect();
        for decision in 0..10_000 {
            now_us += random.next() >> (24 + random.below(40));
            clock.set(now_us);
            let plan = random.pick(&plans);
            let ask = random_ask(&mut random, plan, true).with_key("rates");
            let lua = ask.by_store(&shared, PATIENCE).await;
            let rust = ask.by_memory(&embedded);
            assert_eq!(lua, rust, "decision {decision}, at {now_us}: {ask:?}");
            allowed += usize::from(ask.is_charge() && rust.is_ok_and(|answer| answer.fits()));
        }
    }
    assert!(allowed > 2_000 && allowed < 20_000, "{allowed} allowed");
}

/// Windows get more charges than they keep runs, so that neighbouring runs are merged. Sometimes a pause of a window follows. Where
/// a charge changes a full window's last run only, the script writes parts of a state; other limits stand before and behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_sliding_windows_decide_alike() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let shared = store_on(&redis, &clock);
    let embedded = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
    let a_minute = || limit(150, Duration::from_secs(60), WINDOW);
    let an_hour = |algorithm| limit(8_000, Duration::from_secs(3_600), algorithm);
    let plans = [
        vec![a_minute()],
        vec![a_minute(), an_hour(WINDOW)],
        vec![a_minute(), an_hour(BUCKET)],
        vec![a_minute(), an_hour(COUNTER)],
        vec![
            an_hour(WINDOW),
            limit(
                120,
                Duration::from_secs(60),
                Algorithm::SlidingWindow { precision: 30 },
            ),
        ],
    ];
    for (number, limits) in plans.into_iter().enumerate() {
        let plan = plan(limits);
        let mut random = Random(SEED);
        let mut now_us = START_US;
        let mut allowed = 0;
        for decision in 0..8_000 {
            now_us += match random.below(400) {
                0 => 60_000_000,
                // Less than a cell of the window, and often nothing.
                _ => random.below(6) * 150_000,
            };
            clock.set(now_us);
            let asks = [ask(&plan, &format!("key {number}"), 1 + random.below(2))];
            let lua = shared.decide_batch(&asks, PATIENCE).await;
            let rust = embedded.decide_batch(&asks, PATIENCE).await;
            assert_eq!(lua, rust, "plan {number}, decision {decision}, at {now_us}");
            allowed += usize::from(rust[0].as_ref().is_ok_and(|verdict| verdict.fits));
        }
        assert!(
            allowed > 2_700 && allowed < 7_700,
            "plan {number}: {allowed} allowed"
        );
    }
}
