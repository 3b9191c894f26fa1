//! A decision on a log takes a bounded time, whatever the quota, the costs, and the number of elements.
//!
//! The tests count the work of a call to Redis instead of its time: the elements kept, and the commands that the script ran.

use std::sync::Arc;
use std::time::Duration;

use tollgate::key::{Cost, Key};
use tollgate::plan::SLIDING_LOG_QUOTA_MAX;
use tollgate::store::{Check, MemoryStore, Refund, Store, StoreDeadline, StoreError, Subject};

use crate::support::clock::FakeClock;
use crate::support::clocked_store::ClockedStore;
use crate::support::plans::{FIXED, LOG, ask, limit, peek, plan, refund};
use crate::support::redis::Redis;

const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
/// Elements of a deep log: a search by halves reads 14 of so many.
const DEPTH: u64 = 10_000;

/// Elements of this key's log.
fn length(redis: &Redis, key: &str) -> u64 {
    redis
        .cli(&["LLEN", &format!("{{group:{key}}}log:3600000000")])
        .parse()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_takes_one_element_whatever_it_costs() {
    let fixture = ClockedStore::start();
    let plan = plan(vec![limit(SLIDING_LOG_QUOTA_MAX, HOUR, LOG)]);
    let keys: Vec<String> = (0..200).map(|key| key.to_string()).collect();
    let all = |cost| {
        keys.iter()
            .map(|key| ask(&plan, key, cost))
            .collect::<Vec<Check>>()
    };
    assert_eq!(fixture.decide(&all(SLIDING_LOG_QUOTA_MAX)).await, 200);
    assert_eq!(fixture.decide(&all(1)).await, 0);
    assert!(
        keys.iter().all(|key| length(&fixture.redis, key) == 2),
        "a header and a charge"
    );
    // As many elements as charges, also after a part of one was given back, and where the clock stepped back before all of them.
    let refunds = keys.iter().map(|key| refund(&plan, key, 70_000));
    fixture.refund(&refunds.collect::<Vec<_>>()).await;
    fixture.clock.advance(1);
    assert_eq!(fixture.decide(&all(50_000)).await, 200);
    assert!(keys.iter().all(|key| length(&fixture.redis, key) == 3));
    fixture
        .clock
        .set(crate::support::clock::START_US - 1_000_000);
    assert_eq!(fixture.decide(&all(20_001)).await, 0);
    assert!(keys.iter().all(|key| length(&fixture.redis, key) == 2));
    assert_eq!(fixture.decide(&all(20_000)).await, 200);
    assert!(keys.iter().all(|key| length(&fixture.redis, key) == 3));
}

/// Of a log that has many charges, where half of them no longer count: by costs that differ, so that none is answered by
/// what another one found, by peeks, refunds, and with the clock set back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_is_searched_in_few_steps() {
    let fixture = ClockedStore::start();
    let plan = plan(vec![limit(DEPTH, HOUR, LOG)]);
    for charge in 0..DEPTH {
        // Uneven, so that where a charge stands cannot be guessed.
        fixture.clock.advance(if charge % 7 == 0 {
            400_000 + charge
        } else {
            charge % 5
        });
        assert_eq!(fixture.decide(&[ask(&plan, "deep", 1)]).await, 1);
    }
    let after = DEPTH * 400_000 / 7;
    fixture.clock.advance(3_600_000_000 - after / 2);
    let used = DEPTH / 2;
    let costs = |make: &dyn Fn(u64) -> Check| {
        (0..100)
            .map(|step| make(used + 3_000 + step * 17))
            .collect::<Vec<Check>>()
    };
    let denied = costs(&|cost| ask(&plan, "deep", cost));
    let peeked = costs(&|cost| peek(&plan, "deep", cost));
    let refunds = (0..100).map(|step| refund(&plan, "deep", 1 + step % 9));
    let refunds: Vec<Refund> = refunds.collect();
    for (what, asks) in [
        ("denied", &denied),
        ("peeked", &peeked),
        ("refunded", &Vec::new()),
        ("denied, clock set back", &denied),
    ] {
        if what.ends_with("back") {
            fixture
                .clock
                .set(tollgate::clock::Clock::now_us(&fixture.clock) - 3_600_000_000);
        }
        let before = fixture.redis.ran("lindex") + fixture.redis.ran("lrange");
        if asks.is_empty() {
            fixture.refund(&refunds).await;
        } else {
            fixture.decide(asks).await;
        }
        let reads = fixture.redis.ran("lindex") + fixture.redis.ran("lrange") - before;
        println!("{what}: {reads} reads for 100 requests");
        // Twice the halves for each request, and for where what counts begins in each of a few calls.
        assert!(reads > 10 && reads <= 110 * 2 * 14, "{what}: {reads} reads");
    }
}

/// Gives each of so many keys a log of 1,000 charges: half of them are gone, and the others so uneven that their place cannot be guessed. So
/// are the units of the newest.
const UNEVEN: &str =
    "local now, window, gone, total, base = tonumber(ARGV[2]), 3600000000, 500, 0, nil
local log = {}
for charge = 1, 1000 do
  local share = charge <= gone and 1 + 0.99 * 2 ^ (-40 * charge / gone)
    or 0.9 - 0.9 * 2 ^ (-40 * (1001 - charge) / (1000 - gone))
  local at = now - math.ceil(window * share)
  base, total = base or at, total + (charge <= 991 and 1 or 2 ^ (charge - 992))
  log[charge + 1] = struct.pack('<I6I2', at % 2 ^ 47, total)
end
log[1] = struct.pack('<I7I3', base, 0)
for key = 1, ARGV[1] do
  local name = '{group:' .. key .. '}log:3600000000'
  redis.call('RPUSH', name, unpack(log))
  redis.call('PEXPIRE', name, 3600000)
end
return total - gone";

/// The most that a call does for logs. Both what is gone and when a denied request would fit have to be searched for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_searches_a_bounded_number_of_logs_in_few_steps() {
    const KEYS: u64 = 320;
    let fixture = ClockedStore::start();
    let now = tollgate::clock::Clock::now_us(&fixture.clock).to_string();
    let used = fixture
        .redis
        .cli(&["eval", UNEVEN, "0", &KEYS.to_string(), &now]);
    let used: u64 = used.parse().unwrap();
    let plan = plan(vec![limit(used, HOUR, LOG)]);
    let checks: Vec<Check> = (1..=KEYS)
        .map(|key| ask(&plan, &key.to_string(), used / 10))
        .collect();
    let ran = || ["evalsha", "lindex", "lrange"].map(|command| fixture.redis.ran(command));
    let before = ran();
    assert_eq!(fixture.decide(&checks).await, 0);
    let [calls, single_reads, reads] = std::array::from_fn(|at| ran()[at] - before[at]);
    let reads = (single_reads + reads) / KEYS;
    println!("{calls} calls, {reads} reads a log");
    assert!(calls >= KEYS / 32, "{calls} calls");
    assert!((15..=25).contains(&reads), "{reads} reads a log");
}

/// By a config with as many windows: the work of one charge is bounded, and what is beyond it is charged nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_a_bounded_number_of_logs_of_uncommon_windows() {
    let fixture = ClockedStore::start();
    let window = |number: u64| Duration::from_millis(100_007 + number);
    let log_and_bucket = |number| {
        plan(vec![
            limit(5, window(number), LOG),
            limit(2_000, HOUR, FIXED),
        ])
    };
    let asks: Vec<Check> = (0..1_024)
        .map(|number| ask(&log_and_bucket(number), "many", 1))
        .collect();
    assert_eq!(fixture.decide(&asks).await, 1_024);
    let one_more = fixture
        .store
        .decide_one(
            &ask(&log_and_bucket(1_024), "many", 1),
            StoreDeadline(PATIENCE),
        )
        .await;
    assert!(
        matches!(&one_more, Err(StoreError::Refused(why)) if why.contains("1024 uncommon windows")),
        "{one_more:?}"
    );
    let left = fixture
        .store
        .decide_one(
            &peek(&log_and_bucket(0), "many", 1),
            StoreDeadline(PATIENCE),
        )
        .await
        .unwrap();
    let left = left
        .statuses(log_and_bucket(0).limits(), Cost::ONE)
        .into_iter()
        .map(|status| status.remaining);
    assert_eq!(left.collect::<Vec<u64>>(), [4, 976]);
    assert_eq!(
        fixture.redis.cli(&["EXISTS", "{group:many}log:101031000"]),
        "0"
    );
    // A Reset finds all logs.
    let subject = Subject {
        key: Key::new("many").unwrap(),
        counts_as: "group".into(),
        log_windows_us: Vec::new(),
    };
    assert_eq!(
        fixture.store.reset(&subject, StoreDeadline(PATIENCE)).await,
        Ok(true)
    );
    assert_eq!(fixture.redis.cli(&["KEYS", "{group:many}*"]), "");
}

/// In memory: the quickest of several rounds of decisions on a full log, by costs that are denied until nearly all of it has left.
fn quickest(charges: u64) -> Duration {
    let clock = FakeClock::new();
    let store = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
    let plan = plan(vec![limit(charges, HOUR, LOG)]);
    for _ in 0..charges {
        clock.advance(7);
        assert!(store.decide(&ask(&plan, "full", 1)).unwrap().fits);
    }
    let asks: Vec<Check> = (0..100)
        .map(|less| ask(&plan, "full", charges - less))
        .collect();
    let round = || {
        let began = tollgate::clock::monotonic();
        assert!(asks.iter().all(|ask| !store.decide(ask).unwrap().fits));
        began.elapsed()
    };
    (0..10).map(|_| round()).min().unwrap()
}

/// A hundred times as many charges took a hundred times as long, 0.3 ms a decision, when a look at a log went through it.
#[test]
fn a_full_log_of_the_embedded_store_is_decided_as_quickly_as_a_small_one() {
    let small = quickest(1_000);
    let large = quickest(SLIDING_LOG_QUOTA_MAX);
    println!("100 denials: {small:?} of 1,000 charges, {large:?} of 100,000");
    assert!(large < 20 * small, "{small:?}, {large:?}");
}
