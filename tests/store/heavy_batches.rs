//! Batches that are heavy for Redis: many plans of one count, many limits, all algorithms. No script call takes long, and others
//! are decided by Redis beside them.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate::algorithm::holds::HoldCall;
use tollgate::grpc::pb::hold_service_client::HoldServiceClient;
use tollgate::grpc::pb::{self, DecidedBy};
use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Anchor, HoldTerms, Limit, Plan, Rule};
use tollgate::store::{Check, Mode, RedisStore, Store, StoreDeadline, Subject};
use tonic::transport::Channel;

use crate::support::cluster::Cluster;
use crate::support::holds::{ask, reserve, settle};
use crate::support::preload::by_processor_time;
use crate::support::redis::Redis;
use crate::support::server::{Client, PATIENCE, Server, channel_to, request};
use crate::support::slow_calls::SlowCalls;

/// How long each lot is sent, unless `TOLLGATE_FLOOD_SECONDS` says otherwise.
const FLOOD_SECONDS: u64 = 3;
/// Share of others' decisions, in percent, that Redis makes on a machine that is busy with other tests.
const BY_STORE_MIN: usize = 90;

fn limit(window: usize, algorithm: &str) -> String {
    let burst = if algorithm == "token_bucket" {
        ", burst: 9"
    } else {
        ""
    };
    format!("{{ name: l{window}, quota: 10000, window: {window}s, algorithm: {algorithm}{burst} }}")
}

/// 250 plans of one limit, 16 plans of 8 limits, plans of all algorithms, and 16 plans of 8 limits that block, each lot with one
/// count; and a plan with a thousand holds.
fn config() -> String {
    let mut text =
        "plans:\n  light: { limits: [ { quota: 1000000000, window: 1d } ] }\n".to_owned();
    text.push_str(HELD);
    for plan in 0..250 {
        writeln!(
            text,
            "  many{plan}: {{ counts_as: many, limits: [ {} ] }}",
            limit(plan + 1, "fixed_window")
        )
        .unwrap();
    }
    for plan in 0..16 {
        let limits: Vec<String> = (0..8)
            .map(|index| limit(1 + plan * 8 + index, "token_bucket"))
            .collect();
        writeln!(
            text,
            "  wide{plan}: {{ counts_as: wide, limits: [ {} ] }}",
            limits.join(", ")
        )
        .unwrap();
    }
    for plan in 0..16 {
        let limits: Vec<String> = (0..8)
            .map(|index| {
                let window = 1 + plan * 8 + index;
                format!("{{ name: l{window}, quota: 10, window: {window}s, algorithm: token_bucket, block: 1m }}")
            })
            .collect();
        writeln!(
            text,
            "  blocked{plan}: {{ counts_as: blocked, limits: [ {} ] }}",
            limits.join(", ")
        )
        .unwrap();
    }
    let mut algorithms = Algorithm::EVERY.map(Algorithm::name).to_vec();
    algorithms.dedup();
    for plan in 0..20 {
        let limits: Vec<String> = (0..4)
            .map(|index| {
                limit(
                    1 + plan * 4 + index,
                    algorithms[(plan + index) % algorithms.len()],
                )
            })
            .collect();
        writeln!(
            text,
            "  mixed{plan}: {{ counts_as: mixed, limits: [ {} ] }}",
            limits.join(", ")
        )
        .unwrap();
    }
    text
}

/// Each lot and how many plans it has; none for that of holds.
const LOTS: [(&str, usize); 5] = [
    ("many", 250),
    ("wide", 16),
    ("mixed", 20),
    ("blocked", 16),
    ("held", 0),
];

/// A key of this plan may have a thousand open holds, of which some expire and some are settled.
const HELD: &str = "  held: { limits: [ { quota: 1000000000, window: 1h } ], holds: { ttl: 2s, max_open: 1000 } }\n";

/// The same request in the shard that all floods are of, and so in their slot of a Cluster.
fn in_shard(request: pb::ShouldAllowRequest) -> pb::ShouldAllowRequest {
    pb::ShouldAllowRequest {
        shard: "flooded".to_owned(),
        ..request
    }
}

/// Sends batches of 1,000 for one key until it is told to stop.
async fn flood(address: String, lot: &'static str, plans: usize, stop: Arc<AtomicBool>) {
    let mut client = Client::new(channel_to(&address).await);
    while !stop.load(Ordering::SeqCst) {
        let requests = (0..1_000)
            .map(|index| in_shard(request("k", &format!("{lot}{}", index % plans), None)))
            .collect();
        let answers = client
            .should_allow_batch(pb::ShouldAllowBatchRequest { requests })
            .await
            .unwrap()
            .into_inner();
        assert_eq!(answers.results.len(), 1_000);
    }
}

/// Reserves a hold, and settles it or leaves it to expire.
async fn hold_one(mut client: HoldServiceClient<Channel>, key: String, id: String, settles: bool) {
    let reserve = pb::ReserveRequest {
        key: key.clone(),
        plan: "held".to_owned(),
        request_id: id.clone(),
        shard: "flooded".to_owned(),
        ..Default::default()
    };
    client.reserve(reserve).await.unwrap();
    let settle = pb::SettleRequest {
        key,
        plan: "held".to_owned(),
        request_id: id,
        shard: "flooded".to_owned(),
        ..Default::default()
    };
    if settles {
        // It may be UNAVAILABLE, where Redis was too slow.
        let _ = client.settle(settle).await;
    }
}

/// Reserves holds of a few keys and settles two of three, until it is told to stop: so hundreds are open, and some expire.
async fn hold_and_settle(address: String, caller: usize, stop: Arc<AtomicBool>) {
    let client = HoldServiceClient::new(channel_to(&address).await);
    let mut first = 0;
    while !stop.load(Ordering::SeqCst) {
        let asked = (first..first + 60).map(|number| {
            let id = format!("{caller} {number}");
            tokio::spawn(hold_one(
                client.clone(),
                format!("k{}", number % 4),
                id,
                number % 3 > 0,
            ))
        });
        for answered in asked.collect::<Vec<_>>() {
            answered.await.unwrap();
        }
        first += 60;
    }
}

/// The tests of this file keep the whole machine busy, so only one of them runs at a time.
pub(super) static MACHINE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_batch_keeps_redis_busy_for_long_or_others_from_it() {
    let _machine = MACHINE.lock().await;
    let program = by_processor_time("redis-server");
    let redis = Redis::start_by("127.0.0.1", &program.each_ref().map(String::as_str), &[]);
    flood_all(&redis.url(), &[&redis]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_batch_keeps_a_cluster_busy_for_long_or_others_from_it() {
    let _machine = MACHINE.lock().await;
    let program = by_processor_time("redis-server");
    let cluster = Cluster::start_with(0, &program.each_ref().map(String::as_str), &[]);
    let nodes: Vec<&Redis> = cluster.nodes.iter().collect();
    flood_all(&cluster.url(), &nodes).await;
}

/// A Redis whose slow log has times of the processor, and a store on it.
async fn measured_store() -> (Redis, RedisStore) {
    let program = by_processor_time("redis-server");
    let redis = Redis::start_by("127.0.0.1", &program.each_ref().map(String::as_str), &[]);
    let store = RedisStore::connect(&redis.url(), PATIENCE).unwrap();
    assert!(store.connected(PATIENCE).await);
    (redis, store)
}

/// Sends all lots, one after another, to a server on this store.
async fn flood_all(url: &str, nodes: &[&Redis]) {
    let slow_calls: Vec<_> = nodes.iter().map(|redis| SlowCalls::of(redis)).collect();
    let flags = [
        "--store",
        url,
        "--set",
        "store.deadline=100ms",
        "--set",
        "workers=1",
        "--set",
        "deny_cache.entries=0",
    ];
    let server = Server::start(&config(), &flags);
    let mut client = server.client().await;
    server
        .wait_until_decided_by(DecidedBy::Store, "light")
        .await;
    let seconds = std::env::var("TOLLGATE_FLOOD_SECONDS");
    let time = Duration::from_secs(seconds.map_or(FLOOD_SECONDS, |text| text.parse().unwrap()));
    for (lot, plans) in LOTS {
        slow_calls.iter().for_each(SlowCalls::forget);
        let stop = Arc::<AtomicBool>::default();
        let floods: Vec<_> = (0..4)
            .map(|caller| {
                let address = server.address.clone();
                let stop = stop.clone();
                match plans {
                    0 => tokio::spawn(hold_and_settle(address, caller, stop)),
                    _ => tokio::spawn(flood(address, lot, plans, stop)),
                }
            })
            .collect();
        let (by_store, all) = ask_beside(&mut client, time).await;
        stop.store(true, Ordering::SeqCst);
        for flood in floods {
            tokio::time::timeout(PATIENCE, flood)
                .await
                .unwrap()
                .unwrap();
        }
        for (index, slow_calls) in slow_calls.iter().enumerate() {
            slow_calls.assert_short(&format!("{lot}, node {index}"));
        }
        println!("{lot}: {by_store} of {all} others by Redis");
        assert!(
            by_store * 100 >= all * BY_STORE_MIN,
            "{lot}: {by_store} of {all} by Redis"
        );
    }
}

/// Asks for single decisions of other keys, half of them in the slot of the floods. Returns how many Redis made, and how many there were.
async fn ask_beside(client: &mut Client, time: Duration) -> (usize, usize) {
    let began = Instant::now();
    let mut by_store = 0;
    let mut all = 0;
    while began.elapsed() < time {
        all += 1;
        let key = format!("beside{}", all % 50);
        let mut asked = request(&key, "light", None);
        if all % 2 == 0 {
            asked = in_shard(asked);
        }
        let answer = client.should_allow(asked).await.unwrap().into_inner();
        let decided_by = answer.decided_by();
        by_store += usize::from(decided_by == DecidedBy::Store);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    (by_store, all)
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
    let day = Duration::from_secs(86_400);
    let limit = Limit::new("l", 10_000, day, algorithm).unwrap();
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
