//! The memory of a key in Redis, by Redis's own figures: the growth over many keys, with tables and expiries.

use std::sync::Arc;
use std::time::Duration;

use tollgate::plan::{Algorithm, Limit, Plan};
use tollgate::store::Check;

use crate::support::clocked_store::ClockedStore;
use crate::support::plans::{BUCKET, COUNTER, FIXED, LOG, WINDOW, ask, limit, plan};
use crate::support::redis::Redis;

const HOUR: Duration = Duration::from_secs(3600);
/// So many that the connection's buffers, which come and go, are a byte or two of each.
const KEYS: u64 = 100_000;

fn used(redis: &Redis) -> u64 {
    let info = redis.cli(&["INFO", "memory"]);
    info.lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

async fn charge(store: &ClockedStore, checks: &[Check]) {
    assert_eq!(store.decide(checks).await, checks.len());
}

/// Bytes a key of 20 bytes for this plan, each charged once.
async fn per_key(store: &ClockedStore, plan: &Arc<Plan>) -> u64 {
    store.redis.cli(&["FLUSHALL"]);
    charge(store, &[ask(plan, "warm", 1)]).await;
    store.redis.cli(&["FLUSHALL"]);
    let before = used(&store.redis);
    for first in (0..KEYS).step_by(1000) {
        charge(
            store,
            &(first..first + 1000)
                .map(|key| ask(plan, &format!("{key:020}"), 1))
                .collect::<Vec<_>>(),
        )
        .await;
    }
    (used(&store.redis) - before) / KEYS
}

fn of(algorithms: &[Algorithm]) -> Arc<Plan> {
    let limits: Vec<Limit> = algorithms
        .iter()
        .map(|algorithm| limit(20_000, HOUR, *algorithm))
        .collect();
    plan(limits)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_constant_size_costs_redis_what_the_documents_say() {
    let store = ClockedStore::start();
    let each = Algorithm::EVERY
        .into_iter()
        .filter(|algorithm| !algorithm.keeps_instants())
        .map(|algorithm| (format!("{algorithm:?}"), vec![algorithm], 160));
    let two = [
        ("two limits", vec![BUCKET, FIXED], 190),
        ("two limits, the largest", vec![FIXED, COUNTER], 190),
    ];
    let two = two.map(|(name, algorithms, most)| (name.to_owned(), algorithms, most));
    for (name, algorithms, most) in each.chain(two) {
        let bytes = per_key(&store, &of(&algorithms)).await;
        println!("{name}: {bytes} bytes a key");
        assert!(bytes <= most, "{name}: {bytes} bytes a key, above {most}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_and_a_full_sliding_window_cost_redis_what_the_documents_say() {
    let store = ClockedStore::start();
    let names = ["{group:full}log:3600000000", "{group:full}"];
    for ((name, algorithm, most), key) in [
        ("sliding_log of 20,000", LOG, 210_000),
        ("sliding_window", WINDOW, 1_000),
    ]
    .into_iter()
    .zip(names)
    {
        let plan = of(&[algorithm]);
        // Each at an instant of its own, which is what fills them most.
        for _ in 0..20_000 {
            store.clock.advance(1_000);
            charge(&store, &[ask(&plan, "full", 1)]).await;
        }
        let bytes: u64 = store
            .redis
            .cli(&["MEMORY", "USAGE", key, "SAMPLES", "0"])
            .parse()
            .unwrap();
        println!("{name}: {bytes} bytes");
        assert!(bytes <= most, "{name}: {bytes} bytes, above {most}");
    }
}
