//! Joint decisions in Redis: what is charged before a write that Redis refuses, many at once on shared names, and a Cluster.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::undo_instants;
use tollgate::clock::Clock;
use tollgate::key::Key;
use tollgate::plan::{Algorithm, Limit, Plan};
use tollgate::store::{
    Check, JointUndos, RedisStore, SharedStore, Store, StoreDeadline, StoreError, all_fit,
};

use crate::support::clocked_store::ClockedStore;
use crate::support::cluster::Cluster;
use crate::support::plans::{BUCKET, FIXED, LOG, ask, limit, peek, plan};
use crate::support::redis::Redis;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));

fn minute(algorithm: tollgate::plan::Algorithm) -> Limit {
    limit(5, Duration::from_secs(60), algorithm)
}

async fn store_on(url: &str) -> RedisStore {
    let store = RedisStore::connect(url, Duration::from_secs(10)).unwrap();
    assert!(store.connected(PATIENCE.0).await);
    store
}

/// Units that the key could take.
async fn left(store: &RedisStore, plan: &Arc<Plan>, key: &str) -> u64 {
    let verdict = store
        .decide_one(&peek(plan, key, 1), PATIENCE)
        .await
        .unwrap();
    let readings = verdict.readings.iter().zip(plan.limits());
    readings
        .map(|(reading, limit)| reading.remaining(limit))
        .min()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_charged_before_a_refused_write_is_given_back() {
    let redis = Redis::start();
    let store = store_on(&redis.url()).await;
    let garbage = plan(vec![minute(FIXED)]);
    redis.cli(&["RPUSH", "{group:garbage}", "not a state"]);
    redis.cli(&["EXPIRE", "{group:garbage}", "1000"]);
    let plans = Algorithm::EVERY
        .map(|algorithm| plan(vec![minute(algorithm)]))
        .into_iter()
        .chain([plan(vec![minute(FIXED), minute(LOG)])]);
    for (number, plan) in plans.enumerate() {
        for used in [0, 2] {
            let key = format!("key {number} {used}");
            for _ in 0..used {
                store
                    .decide_one(&ask(&plan, &key, 1), PATIENCE)
                    .await
                    .unwrap();
            }
            let pair = [ask(&plan, &key, 3), ask(&garbage, "garbage", 1)];
            let refused = store.decide_joint(&pair, PATIENCE).await.unwrap_err();
            assert!(
                matches!(refused.error, StoreError::Refused(_)) && refused.charged.is_none(),
                "{refused:?}"
            );
            assert_eq!(
                left(&store, &plan, &key).await,
                5 - used,
                "{:?}",
                plan.limits()
            );
        }
    }
}

/// An undo that fails has taken no unit of others, and can be made later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undo_whose_write_is_refused_changes_nothing() {
    let ClockedStore {
        redis,
        store,
        clock,
    } = ClockedStore::start();
    // No window ends meanwhile.
    let hour = |algorithm| limit(5, Duration::from_secs(3_600), algorithm);
    let plans = Algorithm::EVERY
        .map(|algorithm| plan(vec![hour(algorithm)]))
        .into_iter()
        .chain([plan(vec![hour(FIXED), hour(LOG)])]);
    let mut refused = BTreeMap::new();
    for (number, plan) in plans.enumerate() {
        let writes = ["set", "setrange", "del", "rpush", "ltrim", "pexpireat"];
        for (write, later) in writes
            .into_iter()
            .flat_map(|write| [(write, 0), (write, 2)])
        {
            let key = format!("key {number} {write} {later}");
            let charge = ask(&plan, &key, 2);
            let verdict = store.decide_one(&charge, PATIENCE).await.unwrap();
            let instants = undo_instants(plan.limits(), &verdict, clock.now_us(), 2).to_vec();
            clock.advance(1_000_000);
            for _ in 0..later {
                let charged = store.decide_one(&ask(&plan, &key, 1), PATIENCE).await;
                assert!(charged.unwrap().fits);
            }
            let undo = [(charge, instants)];
            redis.cli(&["ACL", "SETUSER", "default", &format!("-{write}")]);
            let undone = store.undo(&undo, PATIENCE).await;
            redis.cli(&["ACL", "SETUSER", "default", &format!("+{write}")]);
            let place = format!("{write}, {later}, {:?}", plan.limits());
            if let Err(error) = undone {
                assert!(matches!(error, StoreError::Refused(_)), "{place}: {error}");
                assert_eq!(left(&store, &plan, &key).await, 3 - later, "{place}");
                *refused.entry(write).or_insert(0) += 1;
                store.undo(&undo, PATIENCE).await.unwrap();
            }
            assert_eq!(left(&store, &plan, &key).await, 5 - later, "{place}");
        }
    }
    println!("refused: {refused:?}");
    assert!(refused.len() >= 4, "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_at_once_on_shared_names_pass_no_quota() {
    let redis = Redis::start();
    let stores = [store_on(&redis.url()).await, store_on(&redis.url()).await];
    let everybody = plan(vec![limit(100, Duration::from_secs(3_600), FIXED)]);
    let own = plan(vec![limit(3, Duration::from_secs(3_600), BUCKET)]);
    let joint = |number: usize| {
        let user = format!("user {}", number % 60);
        vec![ask(&own, &user, 1), ask(&everybody, "everybody", 1)]
    };
    let asked = (0..400).map(|number| {
        let store = stores[number % 2].clone();
        let checks = joint(number);
        async move {
            // Beside them, decisions on names that joint decisions use.
            let single = store.decide_one(&checks[0], PATIENCE);
            let (verdicts, single) = tokio::join!(store.decide_joint(&checks, PATIENCE), single);
            (all_fit(&checks, &verdicts.unwrap()), single.unwrap().fits)
        }
    });
    let tasks: Vec<_> = asked.map(tokio::spawn).collect();
    let mut passed = Vec::new();
    for task in tasks {
        passed.push(task.await.unwrap());
    }
    let joint_passed = passed.iter().filter(|passed| passed.0).count() as u64;
    let single_passed = passed.iter().filter(|passed| passed.1).count() as u64;
    assert!(joint_passed <= 100, "{joint_passed}");
    assert_eq!(
        left(&stores[0], &everybody, "everybody").await,
        100 - joint_passed
    );
    let mut users_left = 0;
    for user in 0..60 {
        users_left += left(&stores[0], &own, &format!("user {user}")).await;
    }
    // A burst of five for each.
    assert_eq!(joint_passed + single_passed, 300 - users_left);
    assert!(users_left == 0 || joint_passed == 100, "{users_left} left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_lies_on_one_node_of_a_cluster() {
    let cluster = Cluster::start();
    let store = store_on(&cluster.url()).await;
    let plans = [FIXED, LOG].map(|algorithm| plan(vec![minute(algorithm)]));
    let in_shard = |check: Check, shard: &str| Check {
        key: Key::new(check.key.as_str())
            .unwrap()
            .in_shard(shard)
            .unwrap(),
        ..check
    };
    for number in 0..30 {
        let shard = format!("customer {number}");
        let pair = [ask(&plans[0], "user", 2), ask(&plans[1], "organisation", 2)];
        let pair = pair.map(|check| in_shard(check, &shard));
        for passes in [true, true, false] {
            let verdicts = store.decide_joint(&pair, PATIENCE).await.unwrap();
            assert_eq!(all_fit(&pair, &verdicts), passes, "{shard}");
        }
    }
    // One call each, so that nothing is ever undone.
    assert_eq!(store.joint_undos(), JointUndos::default());
}
