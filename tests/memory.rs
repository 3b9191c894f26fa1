//! What a key costs in Redis, by Redis's own account of its memory: growth over many keys, tables and expiries included.

use std::sync::Arc;
use std::time::Duration;

use tollgate::plan::{Algorithm, Limit, Plan};
use tollgate::store::{Ask, RedisStore, Store, StoreDeadline};

use crate::support::clock::FakeClock;
use crate::support::plans::{ANCHORED, BUCKET, COUNTER, FIXED, LOG, WINDOW, ask, limit, plan};
use crate::support::redis::Redis;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
const HOUR: Duration = Duration::from_secs(3600);
/// So many that the connection's buffers, which come and go, are a byte or two of each.
const KEYS: u64 = 100_000;

struct Lab {
    redis: Redis,
    store: RedisStore,
    clock: FakeClock,
}

impl Lab {
    fn start() -> Self {
        let (redis, clock) = (Redis::start(), FakeClock::new());
        let store = RedisStore::with_injected_clock(&redis.url(), Arc::new(clock.clone())).unwrap();
        Self { redis, store, clock }
    }

    fn used(&self) -> u64 {
        let info = self.redis.cli(&["INFO", "memory"]);
        info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim().parse().unwrap()
    }

    async fn charge(&self, asks: &[Ask]) {
        for answer in self.store.decide_batch(asks, PATIENCE).await {
            assert!(answer.unwrap().fits);
        }
    }

    /// Bytes a key of 20 bytes for this plan, each charged once.
    async fn per_key(&self, plan: &Arc<Plan>) -> u64 {
        self.redis.cli(&["FLUSHALL"]);
        self.charge(&[ask(plan, "warm", 1)]).await;
        self.redis.cli(&["FLUSHALL"]);
        let before = self.used();
        for first in (0..KEYS).step_by(1000) {
            self.charge(&(first..first + 1000).map(|key| ask(plan, &format!("{key:020}"), 1)).collect::<Vec<_>>()).await;
        }
        (self.used() - before) / KEYS
    }
}

fn of(algorithms: &[Algorithm]) -> Arc<Plan> {
    let limits: Vec<Limit> = algorithms.iter().map(|algorithm| limit(20_000, HOUR, *algorithm)).collect();
    plan(limits)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_constant_size_costs_redis_what_the_documents_say() {
    let lab = Lab::start();
    for (name, algorithms, most) in [
        ("token_bucket", vec![BUCKET], 160),
        ("fixed_window on the clock", vec![FIXED], 160),
        ("fixed_window from the first request", vec![ANCHORED], 160),
        ("sliding_counter", vec![COUNTER], 160),
        ("two limits", vec![BUCKET, FIXED], 190),
        ("two limits, the largest", vec![FIXED, COUNTER], 190),
    ] {
        let algorithms: Vec<Algorithm> = algorithms;
        let bytes = lab.per_key(&of(&algorithms)).await;
        println!("{name}: {bytes} bytes a key");
        assert!(bytes <= most, "{name}: {bytes} bytes a key, above {most}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_and_a_full_sliding_window_cost_redis_what_the_documents_say() {
    let lab = Lab::start();
    let names = ["{group:full}log:3600000000", "{group:full}"];
    for ((name, algorithm, most), key) in
        [("sliding_log of 20,000", LOG, 210_000), ("sliding_window", WINDOW, 1_000)].into_iter().zip(names)
    {
        let plan = of(&[algorithm]);
        // Each at an instant of its own, which is what fills them most.
        for _ in 0..20_000 {
            lab.clock.advance(1_000);
            lab.charge(&[ask(&plan, "full", 1)]).await;
        }
        let bytes: u64 = lab.redis.cli(&["MEMORY", "USAGE", key, "SAMPLES", "0"]).parse().unwrap();
        println!("{name}: {bytes} bytes");
        assert!(bytes <= most, "{name}: {bytes} bytes, above {most}");
    }
}
