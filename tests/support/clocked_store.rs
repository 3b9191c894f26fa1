//! A store on a Redis of the test's own, which decides by a clock that the test sets.

use std::sync::Arc;
use std::time::Duration;

use tollgate::store::{Check, RedisStore, Refund, Store, StoreDeadline};

use super::clock::FakeClock;
use super::redis::Redis;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));

/// A store on this Redis that decides by this clock.
pub fn store_on(redis: &Redis, clock: &FakeClock) -> RedisStore {
    RedisStore::with_injected_clock(&redis.url(), Arc::new(clock.clone())).unwrap()
}

pub struct ClockedStore {
    pub redis: Redis,
    pub store: RedisStore,
    pub clock: FakeClock,
}

impl ClockedStore {
    pub fn start() -> Self {
        let redis = Redis::start();
        let clock = FakeClock::new();
        Self {
            store: store_on(&redis, &clock),
            redis,
            clock,
        }
    }

    /// Makes refunds, one after another.
    pub async fn refund(&self, refunds: &[Refund]) {
        for given_back in self.store.refund_batch(refunds, PATIENCE).await {
            given_back.unwrap();
        }
    }

    /// Decides the checks, all of which must be decided. Returns how many fit.
    pub async fn decide(&self, checks: &[Check]) -> usize {
        let verdicts = self.store.decide_batch(checks, PATIENCE).await;
        verdicts
            .into_iter()
            .filter(|verdict| verdict.as_ref().unwrap().fits)
            .count()
    }
}
