//! Refunds on Redis: those that wait no longer than decisions share script calls, as Envoy's do.

use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::store::{RedisStore, Refund, Store, StoreDeadline, StoreError};

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
            let refunds = std::slice::from_ref(&refund);
            let answers = store.refund_batch(refunds, StoreDeadline(DEADLINE)).await;
            let units = answers[0].as_ref().unwrap().units()[0];
            (refund, units)
        });
    }
    let given_back = given_back.join_all().await;
    let calls = redis.ran("evalsha") - before;
    for (refund, units) in given_back {
        assert_eq!(units, refund.units.units().min(3), "{refund:?}");
    }
    assert!(calls < KEYS as u64 / 4, "{calls} calls for {KEYS} refunds");
}

/// Who sends a batch must know what of it was given back: where not all have a place in the queue, nothing is.
#[tokio::test]
async fn a_batch_of_refunds_is_queued_whole_or_refused_whole() {
    let redis = Redis::start();
    let store = RedisStore::connect(&redis.url(), DEADLINE).unwrap();
    assert!(store.connected(DEADLINE).await);
    let plan = plan(vec![limit(1_000, Duration::from_secs(3_600), LOG)]);
    let charges: Vec<_> = (0..100).map(|n| ask(&plan, &n.to_string(), 2)).collect();
    for charged in store.decide_batch(&charges, StoreDeadline(DEADLINE)).await {
        assert!(charged.unwrap().fits);
    }
    let refunds = |count: usize| -> Vec<Refund> {
        let keys = (0..count).map(|n| (n % 100).to_string());
        keys.map(|key| refund(&plan, &key, 1)).collect()
    };
    let deadline = StoreDeadline(DEADLINE);
    // Until a call of refunds was answered, a full queue means a Redis that does not answer.
    for given_back in store.refund_batch(&refunds(100), deadline).await {
        assert_eq!(given_back.unwrap().units()[0], 1);
    }
    for too_many in [4_097, 5_000] {
        let answers = store.refund_batch(&refunds(too_many), deadline).await;
        assert_eq!(answers.len(), too_many);
        let refused = |answer| matches!(answer, &Err(StoreError::Overloaded(_)));
        assert!(answers.iter().all(refused), "{too_many} refunds");
    }
    let before = redis.ran("evalsha");
    let answers = store.refund_batch(&refunds(300), deadline).await;
    let calls = redis.ran("evalsha") - before;
    // Each key was charged 2 units, of which the refused batches gave none back.
    for (n, given_back) in (0..300_u64).zip(answers) {
        assert_eq!(given_back.unwrap().units()[0], u64::from(n < 100), "{n}");
    }
    assert!(calls < 300 / 4, "{calls} calls for 300 refunds");
}
