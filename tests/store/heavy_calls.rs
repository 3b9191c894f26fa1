//! Single calls that are heavy for Redis: full logs, many ids, many holds that end. None takes long.

use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::holds::HoldCall;
use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Anchor, HoldTerms, Limit, Plan, Rule};
use tollgate::store::{Check, Mode, RedisStore, Store, StoreDeadline, Subject};

use super::heavy_batches::MACHINE;
use crate::support::holds::{ask, reserve, settle};
use crate::support::preload::by_processor_time;
use crate::support::redis::Redis;
use crate::support::server::PATIENCE;
use crate::support::slow_calls::SlowCalls;

/// A Redis whose slow log has times of the processor, and a store on it.
async fn measured_store() -> (Redis, RedisStore) {
    let program = by_processor_time("redis-server");
    let redis = Redis::start_by("127.0.0.1", &program.each_ref().map(String::as_str), &[]);
    let store = RedisStore::connect(&redis.url(), PATIENCE).unwrap();
    assert!(store.connected(PATIENCE).await);
    (redis, store)
}

/// One slow call may be the machine's, so each of these is done so often.
const TIMES: u64 = 10;

/// A plan of four logs, of which a hold may give units back, and does when its lease ends if that is said.
fn four_logs(release_on_expiry: bool) -> Arc<Plan> {
    let hour = Duration::from_secs(3_600);
    let limits = (1..=4).map(|hours| {
        let log = Algorithm::SlidingLog;
        Limit::new(format!("{hours}h"), 1_000, hours * hour, log).unwrap()
    });
    let holds = HoldTerms {
        release_on_expiry,
        ..HoldTerms::default()
    };
    Arc::new(Plan {
        holds: holds.into(),
        ..Plan::new("four", Rule::limits(limits))
    })
}

/// Reserves 10 of the 1,000 units of a key for so many seconds, and then charges all others one by one.
async fn hold_and_fill(store: RedisStore, key: String, seconds: u64) {
    let deadline = StoreDeadline(PATIENCE);
    let held = ask(&four_logs(true), &key, ("held", reserve(10, seconds)));
    let held = store.decide_hold(&held, deadline).await.unwrap();
    assert!(held.view.verdict.fits);
    let charge = Check {
        key: Key::new(&*key).unwrap(),
        plan: four_logs(false),
        cost: Cost::ONE,
        mode: Mode::Charge,
    };
    for _ in 0..990 {
        assert!(store.decide_one(&charge, deadline).await.unwrap().fits);
    }
}

/// A give-back writes all charges behind its place anew, in each log: half a millisecond. What others give back waits for the next call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_under_four_full_logs_do_not_keep_redis_busy_for_long() {
    let _machine = MACHINE.lock().await;
    let (redis, store) = measured_store().await;
    // A hold that is settled, one whose lease has ended when a call looks; the units that are left are of both.
    let plan = four_logs(true);
    let ways = [(3_600, "held", settle(1)), (1, "next", reserve(1, 60))];
    for (seconds, id, call) in ways {
        let key = |number: u64| format!("{seconds} {number}");
        let filled = (0..TIMES)
            .map(|number| tokio::spawn(hold_and_fill(store.clone(), key(number), seconds)));
        for filled in filled.collect::<Vec<_>>() {
            filled.await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let slow_calls = SlowCalls::of(&redis);
        // Together, so that they are in one call as far as they may be.
        let given_back = (0..TIMES).map(|number| {
            let store = store.clone();
            let check = ask(&plan, &key(number), (id, call));
            tokio::spawn(async move { store.decide_hold(&check, StoreDeadline(PATIENCE)).await })
        });
        for given_back in given_back.collect::<Vec<_>>() {
            let verdict = given_back.await.unwrap().unwrap().view.verdict;
            let mut readings = verdict.readings.iter().zip(plan.limits());
            assert!(readings.all(|(reading, limit)| reading.used(limit) == 991));
        }
        slow_calls.assert_short(&format!("holds of {seconds} s under four logs"));
    }
}

/// Ids that ended once more leave gaps: here all that ended first, and the very first one last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_end_once_more_do_not_keep_redis_busy_for_long() {
    let _machine = MACHINE.lock().await;
    let (redis, store) = measured_store().await;
    let plan = ending(
        Algorithm::FixedWindow {
            anchor: Anchor::FirstRequest,
        },
        false,
    );
    let deadline = StoreDeadline(PATIENCE);
    let call = async |id: u64, call: HoldCall| {
        let check = ask(&plan, "k", (&format!("id {id:012}"), call));
        store.decide_hold(&check, deadline).await.unwrap()
    };
    for id in 0..ENDING {
        assert!(call(id, reserve(1, 5)).await.view.verdict.fits);
    }
    tokio::time::sleep(Duration::from_millis(5_100)).await;
    call(ENDING, reserve(1, 60)).await;
    let slow_calls = SlowCalls::of(&redis);
    for id in (0..ENDING).rev() {
        call(id, settle(1)).await;
    }
    slow_calls.assert_short("late settles");
    slow_calls.forget();
    for id in 0..ENDING {
        call(ENDING + 1 + id, reserve(1, 60)).await;
        call(ENDING + 1 + id, settle(1)).await;
    }
    slow_calls.assert_short("ids behind gaps");
}

/// To free a hash of so many fields takes Redis 30 ms, unless another thread does it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_of_a_key_of_many_ids_does_not_keep_redis_busy_for_long() {
    const FILL: &str = "for part = 1, 100 do
  local fields = {}
  for field = 1, 1000 do
    fields[2 * field - 1], fields[2 * field] = 'i' .. part .. ' ' .. field, string.rep('x', 60)
  end
  redis.call('HSET', KEYS[1], unpack(fields))
end
return redis.call('HLEN', KEYS[1])";
    let _machine = MACHINE.lock().await;
    let (redis, store) = measured_store().await;
    for number in 0..TIMES {
        let ids = format!("{{group:k{number}}}ids");
        assert_eq!(redis.cli(&["eval", FILL, "1", &ids]), "100000");
    }
    let slow_calls = SlowCalls::of(&redis);
    for number in 0..TIMES {
        let subject = Subject {
            key: Key::new(format!("k{number}")).unwrap(),
            counts_as: "group".into(),
            log_windows_us: Vec::new(),
        };
        assert!(
            store
                .reset(&subject, StoreDeadline(PATIENCE))
                .await
                .unwrap()
        );
    }
    assert_eq!(redis.cli(&["dbsize"]), "0");
    slow_calls.assert_short("resets");
}

/// Holds of a key that end at once.
const ENDING: u64 = 1_000;

/// A plan whose holds may be so many. Nothing of what it counts goes while a test runs.
fn ending(algorithm: Algorithm, releases: bool) -> Arc<Plan> {
    let name = format!("{algorithm:?} {releases}");
    // A unit of the bucket comes back in a minute.
    let week = Duration::from_secs(7 * 86_400);
    let limit = Limit::new("l", 10_000, week, algorithm).unwrap();
    let holds = HoldTerms {
        max_open: 1_000,
        release_on_expiry: releases,
        ..HoldTerms::default()
    };
    Arc::new(Plan {
        holds: holds.into(),
        ..Plan::new(name, Rule::limits([limit]))
    })
}

/// Holds may end for a call, a thousand of them: it is left to later ones then, as far as it takes long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_that_end_together_do_not_keep_redis_busy_for_long() {
    let _machine = MACHINE.lock().await;
    let (redis, store) = measured_store().await;
    let algorithms = Algorithm::EVERY.map(|algorithm| match algorithm {
        Algorithm::TokenBucket { .. } => Algorithm::TokenBucket { burst: 10_000 },
        other => other,
    });
    let plans: Vec<Arc<Plan>> = algorithms
        .into_iter()
        .flat_map(|algorithm| [ending(algorithm, false), ending(algorithm, true)])
        .collect();
    let reserve = |plan: &Arc<Plan>, id: u64| {
        let check = ask(plan, "k", (&format!("id {id:012}"), reserve(1, 3)));
        let store = store.clone();
        async move {
            let verdict = store.decide_hold(&check, StoreDeadline(PATIENCE)).await;
            verdict.unwrap()
        }
    };
    let mut ended = vec![0; plans.len()];
    for (plan, ended) in plans.iter().zip(&mut ended) {
        for first in (0..ENDING).step_by(50) {
            let asked = (first..first + 50).map(|id| tokio::spawn(reserve(plan, id)));
            for answered in asked.collect::<Vec<_>>() {
                *ended += answered.await.unwrap().ended.expired;
            }
        }
    }
    tokio::time::sleep(Duration::from_millis(3_100)).await;
    let slow_calls = SlowCalls::of(&redis);
    for (plan, mut ended) in plans.iter().zip(ended) {
        let next = reserve(plan, ENDING).await;
        ended += next.ended.expired;
        assert_eq!(ended, ENDING, "{}", plan.name);
        let used = next.view.verdict.readings[0].used(&plan.limits()[0]);
        // Of a bucket, what is gone since does not come back.
        let kept = match plan.holds.release_on_expiry {
            true => 1..=ENDING / 10,
            false => ENDING..=ENDING + 1,
        };
        assert!(kept.contains(&used), "{}: {used}", plan.name);
    }
    slow_calls.assert_short("holds that end");
}
