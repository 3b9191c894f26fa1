//! Blocks in both stores, step by step: when they begin and end, who sees them, what is written meanwhile, and how long keys are kept.

use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::Verdict;
use tollgate::plan::{Algorithm, Limit, Plan};
use tollgate::store::{CAPACITY_MIN, Check, MemoryStore, Refund, Store, StoreDeadline, Subject};

use crate::support::clock::{FakeClock, START_US};
use crate::support::clocked_store::ClockedStore;
use crate::support::cluster::Cluster;
use crate::support::plans::{ANCHORED, FIXED, LOG, ask, limit, peek, plan, refund};

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
const MINUTE: Duration = Duration::from_secs(60);
const BLOCK: Duration = Duration::from_secs(900);
const S: u64 = 1_000_000;

/// Both stores on one clock. What one says, the other must say.
struct Stores {
    redis: ClockedStore,
    memory: MemoryStore,
}

impl Stores {
    fn start() -> Self {
        let redis = ClockedStore::start();
        let memory = MemoryStore::new(1 << 24, Arc::new(redis.clock.clone()));
        Self { redis, memory }
    }

    fn at(&self, after_us: u64) {
        self.redis.clock.set(START_US + after_us);
    }

    async fn decide(&self, check: &Check) -> Verdict {
        let by_redis = self.redis.store.decide_one(check, PATIENCE).await.unwrap();
        assert_eq!(by_redis, self.memory.decide(check).unwrap());
        by_redis
    }

    /// How the key stands after it.
    async fn refund(&self, refund: &Refund) -> Verdict {
        let refunds = std::slice::from_ref(refund);
        let by_redis = self.redis.store.refund_batch(refunds, PATIENCE).await;
        assert_eq!(by_redis, self.memory.refund_batch(refunds, PATIENCE).await);
        by_redis[0].as_ref().unwrap().after.clone()
    }

    /// Whether it passes, and otherwise the wait.
    async fn wait_us(&self, check: &Check) -> Option<u64> {
        let verdict = self.decide(check).await;
        let statuses = verdict.statuses(check.plan.limits(), check.cost);
        let waits = statuses.iter().filter_map(|status| status.retry_after_us);
        waits.max().filter(|_| !verdict.fits)
    }

    fn value(&self) -> String {
        self.redis.redis.cli(&["--no-raw", "GET", "{group:key}"])
    }

    fn expires_in_ms(&self) -> u64 {
        self.redis
            .redis
            .cli(&["PTTL", "{group:key}"])
            .parse()
            .unwrap()
    }
}

fn blocking(algorithm: Algorithm, block: Duration) -> Arc<Plan> {
    plan(vec![limit(5, MINUTE, algorithm).with_block(block).unwrap()])
}

#[tokio::test]
async fn a_caller_that_hammers_each_millisecond_is_free_at_the_instant_that_its_first_denial_told()
{
    for algorithm in Algorithm::EVERY {
        let stores = Stores::start();
        let block = Duration::from_secs(2);
        let limit = limit(5, Duration::from_secs(1), algorithm).with_block(block);
        let ask = ask(&plan(vec![limit.unwrap()]), "key", 1);
        stores.at(0);
        for _ in 0..5 {
            assert_eq!(stores.wait_us(&ask).await, None);
        }
        assert_eq!(stores.wait_us(&ask).await, Some(2 * S), "{algorithm:?}");
        for ms in 1..2_000 {
            stores.at(1_000 * ms);
            let left_us = 2 * S - 1_000 * ms;
            assert_eq!(stores.wait_us(&ask).await, Some(left_us), "{algorithm:?}");
        }
        stores.at(2 * S - 1);
        assert_eq!(stores.wait_us(&ask).await, Some(1), "{algorithm:?}");
        stores.at(2 * S);
        assert_eq!(stores.wait_us(&ask).await, None, "{algorithm:?}");
    }
}

/// The example of the manual.
#[tokio::test]
async fn five_a_minute_block_for_a_quarter_of_an_hour() {
    let stores = Stores::start();
    let ask = ask(&blocking(ANCHORED, BLOCK), "key", 1);
    stores.at(0);
    for _ in 0..5 {
        assert_eq!(stores.wait_us(&ask).await, None);
    }
    for (at, wait) in [
        (10, Some(900)),
        (100, Some(810)),
        (909, Some(1)),
        (910, None),
        (911, None),
    ] {
        stores.at(at * S);
        assert_eq!(
            stores.wait_us(&ask).await,
            wait.map(|wait| wait * S),
            "at {at} s"
        );
    }
}

#[tokio::test]
async fn the_first_denial_writes_thirteen_bytes_and_those_behind_it_write_nothing() {
    let stores = Stores::start();
    let ask = ask(&blocking(FIXED, BLOCK), "key", 5);
    stores.at(0);
    stores.decide(&ask).await;
    let length = || {
        stores
            .redis
            .redis
            .cli(&["STRLEN", "{group:key}"])
            .parse::<u64>()
            .unwrap()
    };
    let before = length();
    let expiry_ms = stores.expires_in_ms();
    assert!(stores.decide(&ask).await.block(0).begins);
    assert_eq!(length(), before + 13);
    // The key stays until the block ends: 840 s after its window would have let it go.
    assert!(stores.expires_in_ms() >= expiry_ms + 800_000);
    let value = stores.value();
    let expiry_ms = stores.expires_in_ms();
    for after_s in 1..900 {
        stores.at(after_s * S);
        let verdict = stores.decide(&ask).await;
        assert!(!verdict.fits && !verdict.block(0).begins);
    }
    assert_eq!(stores.value(), value);
    assert!(stores.expires_in_ms() <= expiry_ms);
    // The charge after it drops the record.
    stores.at(900 * S);
    assert!(stores.decide(&ask).await.fits);
    assert_eq!(length(), before);
}

/// The mark, the fingerprint, the end, and the length in milliseconds; then the window's own record.
#[tokio::test]
async fn a_block_is_stored_as_these_bytes() {
    let stores = Stores::start();
    let ask = ask(&blocking(FIXED, BLOCK), "key", 5);
    stores.at(0);
    stores.decide(&ask).await;
    stores.decide(&ask).await;
    let hex = "return (redis.call('GET', KEYS[1]):gsub('.', function(c) return ('%02x'):format(c:byte()) end))";
    let stored = stores.redis.redis.cli(&["EVAL", hex, "1", "{group:key}"]);
    let end = (START_US + 900 * S).to_le_bytes();
    let end: String = end[..7].iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(
        stored.starts_with(&format!("0e38{end}a0bb0d00")),
        "{stored}"
    );
    assert_eq!(stored.len(), 2 * (13 + 9));
}

#[tokio::test]
async fn a_peek_a_refund_and_another_limit_s_denial_begin_no_block() {
    let stores = Stores::start();
    let blocking = limit(5, MINUTE, ANCHORED).with_block(BLOCK).unwrap();
    let two = plan(vec![blocking.clone(), limit(3, MINUTE, FIXED)]);
    stores.at(0);
    assert_eq!(stores.wait_us(&ask(&two, "key", 3)).await, None);
    // The second limit denies. So would the first one deny three units, which it blocks for.
    let denied = stores.decide(&ask(&two, "key", 2)).await;
    assert_eq!((denied.fits, denied.blocks), (false, None));
    let one = plan(vec![blocking]);
    let peeked = stores.decide(&peek(&one, "key", 3)).await;
    assert_eq!((peeked.fits, peeked.blocks), (false, None));
    assert_eq!(stores.wait_us(&peek(&one, "key", 3)).await, Some(60 * S));
    stores.refund(&refund(&one, "key", 1)).await;
    stores.decide(&ask(&one, "key", 1)).await;
    assert!(stores.decide(&ask(&one, "key", 3)).await.block(0).begins);
}

#[tokio::test]
async fn a_block_outlives_refunds_and_larger_quotas_and_ends_with_a_reset() {
    let stores = Stores::start();
    let strict = blocking(FIXED, BLOCK);
    let larger = plan(vec![limit(500, MINUTE, FIXED).with_block(MINUTE).unwrap()]);
    stores.at(0);
    stores.decide(&ask(&strict, "key", 5)).await;
    stores.decide(&ask(&strict, "key", 1)).await;
    let refunded = stores.refund(&refund(&strict, "key", 5)).await;
    assert_eq!(refunded.block(0).left_us, 900 * S);
    stores.at(100 * S);
    // An edit of `block` holds for blocks to come.
    assert_eq!(stores.wait_us(&ask(&larger, "key", 1)).await, Some(800 * S));
    let subject = Subject {
        key: ask(&strict, "key", 1).key,
        counts_as: strict.counts_as.clone(),
        log_windows_us: Vec::new(),
    };
    assert!(stores.redis.store.reset(&subject, PATIENCE).await.unwrap());
    assert!(stores.memory.reset(&subject, PATIENCE).await.unwrap());
    assert_eq!(stores.wait_us(&ask(&strict, "key", 1)).await, None);
}

/// What is fresh makes room for others. An entry whose block runs is not, although its window has ended.
#[test]
fn a_block_outlives_its_window_in_an_embedded_store_that_is_full() {
    let clock = FakeClock::new();
    let memory = MemoryStore::new(CAPACITY_MIN, Arc::new(clock.clone()));
    let second = limit(5, Duration::from_secs(1), FIXED);
    let blocks = plan(vec![second.clone().with_block(BLOCK).unwrap()]);
    let others = plan(vec![second]);
    memory.decide(&ask(&blocks, "key", 5)).unwrap();
    assert!(
        memory
            .decide(&ask(&blocks, "key", 1))
            .unwrap()
            .block(0)
            .begins
    );
    for other in 0..100_000 {
        clock.set(START_US + 10 * S + 1_000 * other);
        memory.decide(&ask(&others, &other.to_string(), 1)).unwrap();
    }
    let verdict = memory.decide(&ask(&blocks, "key", 1)).unwrap();
    assert!(!verdict.fits && verdict.block(0).left_us > 700 * S);
}

#[tokio::test]
async fn fault_94_a_plan_without_block_does_not_look_and_finds_it_again_when_it_returns() {
    for algorithm in [ANCHORED, LOG] {
        let stores = Stores::start();
        let with = blocking(algorithm, BLOCK);
        let without = plan(vec![limit(5, MINUTE, algorithm)]);
        let other = plan(vec![limit(5, 2 * MINUTE, algorithm)]);
        stores.at(0);
        stores.decide(&ask(&with, "key", 5)).await;
        stores.decide(&ask(&with, "key", 1)).await;
        stores.at(60 * S);
        for free in [&without, &other] {
            let verdict = stores.decide(&ask(free, "key", 1)).await;
            assert_eq!(
                (verdict.fits, verdict.blocks),
                (true, None),
                "{algorithm:?}"
            );
        }
        // Its own denials are as ever.
        assert_eq!(stores.wait_us(&ask(&without, "key", 5)).await, Some(60 * S));
        stores.at(400 * S);
        assert_eq!(
            stores.wait_us(&ask(&with, "key", 1)).await,
            Some(500 * S),
            "{algorithm:?}"
        );
        stores.at(900 * S);
        assert_eq!(
            stores.wait_us(&ask(&with, "key", 1)).await,
            None,
            "{algorithm:?}"
        );
    }
}

#[tokio::test]
async fn fault_95_a_clock_that_steps_back_prolongs_no_block_beyond_its_length() {
    for algorithm in Algorithm::EVERY {
        let stores = Stores::start();
        let ask = ask(&blocking(algorithm, BLOCK), "key", 1);
        stores.at(10_000 * S);
        for _ in 0..6 {
            stores.decide(&ask).await;
        }
        // A peek tells it, and the first charge has it so.
        stores.at(1_000 * S);
        assert_eq!(
            stores.wait_us(&peek(&ask.plan, "key", 1)).await,
            Some(900 * S),
            "{algorithm:?}"
        );
        assert_eq!(stores.wait_us(&ask).await, Some(900 * S), "{algorithm:?}");
        stores.at(1_500 * S);
        assert_eq!(stores.wait_us(&ask).await, Some(400 * S), "{algorithm:?}");
        stores.at(1_900 * S);
        assert_eq!(stores.wait_us(&ask).await, None, "{algorithm:?}");
    }
}

/// What a joint decision charges in one slot is undone where another slot denies. The block that began there stays, and no slot behind
/// it begins one.
#[tokio::test]
async fn over_several_slots_the_first_one_that_denies_begins_its_blocks() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let clock = FakeClock::new();
    clock.set(START_US);
    let url = cluster.url();
    let store =
        tollgate::store::RedisStore::with_injected_clock(&url, Arc::new(clock.clone())).unwrap();
    assert!(store.connected(PATIENCE.0).await);
    let plan = blocking(FIXED, BLOCK);
    // By their names: a is charged, b denies, c is not reached.
    for (key, cost) in [("b", 5), ("c", 5)] {
        store
            .decide_one(&ask(&plan, key, cost), PATIENCE)
            .await
            .unwrap();
    }
    let checks = ["c", "b", "a"].map(|key| ask(&plan, key, 1));
    let verdicts = store.decide_joint(&checks, PATIENCE).await.unwrap();
    let told: Vec<_> = verdicts
        .iter()
        .map(|verdict| (verdict.fits, verdict.block(0).left_us))
        .collect();
    assert_eq!(told, [(false, 0), (false, 900 * S), (true, 0)]);
    let left = |verdict: Verdict, limits: &[Limit]| verdict.readings[0].remaining(&limits[0]);
    let peeked = store
        .decide_one(&peek(&plan, "a", 1), PATIENCE)
        .await
        .unwrap();
    assert_eq!(left(peeked, plan.limits()), 5);
    clock.set(START_US + 60 * S);
    let answers = store.decide_batch(&checks, PATIENCE).await;
    let fits: Vec<bool> = answers
        .into_iter()
        .map(|answer| answer.unwrap().fits)
        .collect();
    assert_eq!(fits, [true, false, true]);
}
