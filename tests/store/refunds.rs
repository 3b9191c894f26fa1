//! Refunds on Redis: those that wait no longer than decisions share script calls, as Envoy's do.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::store::{RedisStore, Refund, Store, StoreDeadline};

use crate::support::plans::{LOG, ask, limit, plan, refund};
use crate::support::redis::Redis;

const DEADLINE: Duration = Duration::from_secs(10);
const KEYS: usize = 300;

/// What a proxy gives back is bounded as decisions are: it takes few calls, and each key gets its own units.
#[tokio::test]
async fn refunds_within_the_deadline_of_decisions_share_calls() {
    let redis = Redis::start();
    let store = RedisStore::connect(&redis.url(), DEADLINE).unwrap();
    assert!(store.connected(DEADLINE).await);
    let plan = plan(vec![limit(1_000, Duration::from_secs(3_600), LOG)]);
    let keys: Vec<String> = (0..KEYS).map(|key| format!("key {key}")).collect();
    let charges: Vec<_> = keys.iter().map(|key| ask(&plan, key, 3)).collect();
    for charged in store.decide_batch(&charges, StoreDeadline(DEADLINE)).await {
        assert!(charged.unwrap().fits);
    }
    let refunds: Vec<Refund> = (0..)
        .zip(&keys)
        .map(|(n, key)| refund(&plan, key, 1 + n % 4))
        .collect();
    let before = redis.ran("evalsha");
    let mut given_back = JoinSet::new();
    for refund in refunds {
        let store = store.clone();
        given_back.spawn(async move {
            let answer = store.refund(&refund, StoreDeadline(DEADLINE)).await;
            (refund, answer.unwrap().units()[0])
        });
    }
    let given_back = given_back.join_all().await;
    let calls = redis.ran("evalsha") - before;
    for (refund, units) in given_back {
        assert_eq!(units, refund.units.units().min(3), "{refund:?}");
    }
    assert!(calls < KEYS as u64 / 4, "{calls} calls for {KEYS} refunds");
}
