//! The Redis script: it decides any mixture of requests as if they came one after another, and refuses a malformed call.

mod garbled;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tollgate::plan::{Algorithm, Plan};
use tollgate::store::{Check, MemoryStore, RedisStore, Store, StoreDeadline};

use crate::support::asks::{Ask, ask_in_order};
use crate::support::clock::FakeClock;
use crate::support::clocked_store::store_on;
use crate::support::history::Random;
use crate::support::plans::{BUCKET, COUNTER, FIXED, LOG, WINDOW, ask, limit, peek, plan, refund};
use crate::support::redis::Redis;
use crate::support::tap::Tap;
use crate::support::wire::Wire;

const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
/// More plans than a byte can count.
const PLANS: u64 = 300;

async fn decides_as_serially(plans: &[Arc<Plan>], keys: u64, batches: u64) {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let shared = store_on(&redis, &clock);
    let serial = MemoryStore::new(1 << 30, Arc::new(clock.clone()));
    let mut random = Random(plans.len() as u64 + keys);
    for batch in 0..batches {
        clock.advance(random.below(3_000_000));
        let one = |_| {
            let plan = random.pick(plans).clone();
            let key = format!("key {}", random.below(keys));
            let most = plan
                .limits()
                .iter()
                .map(tollgate::plan::Limit::capacity)
                .min()
                .unwrap();
            let cost = 1 + random.below(most);
            match random.below(8) {
                0 => peek(&plan, &key, cost).into(),
                1 => refund(&plan, &key, cost).into(),
                _ => ask(&plan, &key, cost).into(),
            }
        };
        let mut asks: Vec<Ask> = (0..1_000).map(one).collect();
        if batch % 2 == 0 {
            // Each plan stands in a row of its own, all of one key.
            asks.extend(plans.iter().map(|plan| Ask::Decide(ask(plan, "key 0", 1))));
        }
        let from_redis = ask_in_order(&shared, &asks, PATIENCE).await;
        let expected = ask_in_order(&serial, &asks, PATIENCE).await;
        for (index, (found, expected)) in from_redis.iter().zip(&expected).enumerate() {
            assert_eq!(
                found, expected,
                "batch {batch}, request {index}: {:?}",
                asks[index]
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_plans_of_one_key_than_a_byte_counts_are_decided_as_one_after_another() {
    let kinds = [
        FIXED,
        BUCKET,
        COUNTER,
        WINDOW,
        Algorithm::SlidingWindow { precision: 5 },
    ];
    let of = |index: u64| {
        limit(
            2 + index % 7,
            Duration::from_secs(1 + index % 3),
            kinds[(index % 5) as usize],
        )
    };
    let plans: Vec<_> = (0..PLANS).map(|index| plan(vec![of(index)])).collect();
    for keys in [1, 3, 100] {
        decides_as_serially(&plans, keys, 20).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_logs_of_one_key_than_a_byte_counts_are_decided_as_one_after_another() {
    let log = |index: u64| limit(3, Duration::from_millis(2_000 + index), LOG);
    let plans: Vec<_> = (0..PLANS)
        .map(|index| match index % 3 {
            0 => plan(vec![log(index)]),
            1 => plan(vec![
                log(index),
                limit(9, Duration::from_secs(1), FIXED),
                log(PLANS + index),
            ]),
            _ => plan((0..8).map(|other| log(8 * index + other)).collect()),
        })
        .collect();
    for keys in [1, 40] {
        decides_as_serially(&plans, keys, 10).await;
    }
}

/// Has a store decide `asks`. Returns the arguments of the store's call, and a connection on which to send variants of it.
async fn captured(redis: &Redis, asks: &[Check]) -> (Vec<Vec<u8>>, Wire) {
    let tap = Tap::before(redis.port);
    let store = RedisStore::connect(&tap.url(), Duration::from_secs(10)).unwrap();
    assert!(store.connected(PATIENCE.0).await);
    assert!(
        store
            .decide_batch(asks, PATIENCE)
            .await
            .iter()
            .all(Result::is_ok)
    );
    let call = tap.commands("EVALSHA").pop().unwrap();
    (call, Wire::to(redis))
}

/// The call of these checks, which are decided together.
async fn captured_joint(redis: &Redis, asks: &[Check]) -> Vec<Vec<u8>> {
    let tap = Tap::before(redis.port);
    let store = RedisStore::connect(&tap.url(), Duration::from_secs(10)).unwrap();
    assert!(store.connected(PATIENCE.0).await);
    let verdicts = store.decide_joint(asks, PATIENCE).await.unwrap();
    assert!(verdicts.iter().all(|verdict| verdict.fits));
    tap.commands("EVALSHA").pop().unwrap()
}

fn cpu_us(redis: &Redis) -> u64 {
    let info = redis.cli(&["INFO", "cpu"]);
    let seconds = |name: &str| -> f64 {
        info.lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    ((seconds("used_cpu_sys:") + seconds("used_cpu_user:")) * 1e6) as u64
}

/// Each name stands in the decision once, and each plan has one limit, which is not a log of an uncommon window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn common_joint_decisions_take_the_short_way() {
    let needs_general =
        async |before: &[Check], asks: &[Check]| needs(GENERAL_WAY, before, asks, true).await;
    let of = |algorithm, quota, window_ms| {
        plan(vec![limit(
            quota,
            Duration::from_millis(window_ms),
            algorithm,
        )])
    };
    for algorithm in [
        FIXED,
        BUCKET,
        COUNTER,
        WINDOW,
        Algorithm::SlidingWindow { precision: 5 },
        LOG,
    ] {
        let other_ms = if algorithm == LOG { 30_000 } else { 61_500 };
        let [common, uncommon] =
            [60_000, other_ms].map(|window_ms| of(algorithm, 1_000, window_ms));
        let denies = of(FIXED, 1, 60_000);
        let asks = [
            ask(&common, "a", 1),
            ask(&uncommon, "b", 2),
            ask(&denies, "c", 1),
        ];
        let before = |times: usize| vec![asks[..2].to_vec(); times].concat();
        for times in 0..3 {
            assert!(
                !needs_general(&before(times), &asks).await,
                "{algorithm:?} after {times}"
            );
        }
        let full = [before(1), vec![asks[2].clone()]].concat();
        assert!(
            !needs_general(&full, &asks).await,
            "{algorithm:?}, of which another one is denied"
        );
        assert!(
            !needs_general(&[], &full).await,
            "{algorithm:?}, nothing was there before"
        );
        let twice = [asks[0].clone(), asks[0].clone()];
        assert!(
            needs_general(&[], &twice).await,
            "{algorithm:?}: sums are the general way's"
        );
    }
    let log = of(LOG, 1_000, 61_500);
    assert!(
        needs_general(&[], &[ask(&log, "a", 1), ask(&log, "b", 1)]).await,
        "logs of an uncommon window"
    );
}

/// Text of the script that makes functions which few calls need.
const GENERAL_WAY: &str = "decide_group, limits_of, joint_functions = (function()";
const LOG_FUNCTIONS: &str = "log = log or (function()";

async fn needs_the_general_way(before: &[Check], asks: &[Check]) -> bool {
    needs(GENERAL_WAY, before, asks, false).await
}

/// Whether the call of `asks`, after `before`, makes the functions that this text of the script makes. To find out, the test
/// replaces the text by an error. The call is a joint decision or a batch.
async fn needs(made: &str, before: &[Check], asks: &[Check], jointly: bool) -> bool {
    let redis = Redis::start();
    let tap = Tap::before(redis.port);
    let store = RedisStore::connect(&tap.url(), Duration::from_secs(10)).unwrap();
    assert!(store.connected(PATIENCE.0).await);
    for ask in before {
        store.decide_one(ask, PATIENCE).await.unwrap();
    }
    if jointly {
        store.decide_joint(asks, PATIENCE).await.unwrap();
    } else {
        store.decide_batch(asks, PATIENCE).await;
    }
    let text = String::from_utf8(tap.commands("SCRIPT").pop().unwrap().pop().unwrap()).unwrap();
    assert!(text.contains(made));
    let broken = text.replace(
        made,
        &made.replace("(function", "error('made') or (function"),
    );
    // Not by redis-cli: an argument of a process has 128 KiB at most.
    let load = [b"LOAD".to_vec(), broken.into_bytes()];
    let (_, sha) = Wire::to(&redis).call("SCRIPT", &load);
    let mut call = tap.commands("EVALSHA").pop().unwrap();
    call[0] = sha.trim_ascii().to_vec();
    let (kind, contents) = Wire::to(&redis).call("EVALSHA", &call);
    assert!(
        kind == b'$' || contents.windows(4).any(|word| word == b"made"),
        "{:?}",
        String::from_utf8_lossy(&contents)
    );
    kind != b'$'
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(
    clippy::too_many_lines,
    reason = "laid out by rustfmt's defaults and not yet split"
)]
async fn common_requests_take_the_short_way() {
    let hour = Duration::from_secs(3_600);
    let of = |quota, algorithm| limit(quota, Duration::from_secs(60), algorithm);
    let one = |algorithm| plan(vec![of(1_000, algorithm)]);
    let a = of(1_000, FIXED);
    let b = limit(2_000, hour, FIXED);
    let c = of(500, BUCKET);
    let two = plan(vec![a.clone(), b.clone()]);
    let reversed = plan(vec![b.clone(), a.clone()]);
    let one_denies = plan(vec![b.clone(), of(1, FIXED)]);
    let uncommon = |algorithm| plan(vec![limit(1_000, Duration::from_millis(61_500), algorithm)]);
    let charge = |plan: &Arc<Plan>| ask(plan, "key", 1);
    let times = |plan: &Arc<Plan>, count| vec![charge(plan); count];
    for algorithm in [
        FIXED,
        BUCKET,
        COUNTER,
        WINDOW,
        Algorithm::SlidingWindow { precision: 5 },
        LOG,
    ] {
        let plan = one(algorithm);
        for before in 0..3 {
            assert!(
                !needs_the_general_way(&times(&plan, before), &times(&plan, 1)).await,
                "{algorithm:?} after {before}"
            );
        }
        assert!(
            !needs_the_general_way(&[], &[peek(&plan, "key", 1)]).await,
            "a peek of {algorithm:?}"
        );
        assert!(
            !needs_the_general_way(&times(&plan, 3), &[peek(&plan, "key", 1)]).await,
            "a peek of {algorithm:?} after 3"
        );
        assert!(
            !needs_the_general_way(&[], &times(&plan, 20)).await,
            "{algorithm:?}, a key several times"
        );
        let plan = uncommon(algorithm);
        assert!(
            !needs_the_general_way(&times(&plan, 2), &times(&plan, 1)).await,
            "{algorithm:?} of an uncommon window"
        );
        assert!(
            !needs_the_general_way(&times(&plan, 2), &times(&plan, 5)).await,
            "{algorithm:?} of an uncommon window, several"
        );
    }
    for algorithm in [
        FIXED,
        Algorithm::TokenBucket { burst: 2 },
        COUNTER,
        WINDOW,
        LOG,
    ] {
        let denies = plan(vec![of(2, algorithm)]);
        assert!(
            !needs_the_general_way(&times(&denies, 2), &times(&denies, 3)).await,
            "{algorithm:?} that denies"
        );
    }
    let merges = plan(vec![of(1_000, Algorithm::SlidingWindow { precision: 2 })]);
    assert!(
        !needs_the_general_way(&times(&merges, 2), &times(&merges, 1)).await,
        "runs that are merged"
    );
    assert!(
        !needs_the_general_way(
            &times(&two, 1),
            &[peek(&two, "key", 1), charge(&two), peek(&two, "key", 1)]
        )
        .await,
        "peeks between"
    );
    assert!(
        !needs_the_general_way(&times(&one_denies, 1), &times(&one_denies, 1)).await,
        "one of two limits denies"
    );
    assert!(
        !needs_the_general_way(&times(&one_denies, 1), &times(&one_denies, 4)).await,
        "one of two denies several"
    );
    assert!(
        !needs_the_general_way(&times(&two, 1), &times(&reversed, 1)).await,
        "limits in another order"
    );
    // A plan with one more limit, in front. Its first charge adds a record; later charges find all records in their order.
    let more = plan(vec![c, a, b]);
    assert!(
        !needs_the_general_way(&[charge(&two), charge(&more)], &times(&more, 1)).await,
        "a limit more"
    );
    assert!(
        !needs_the_general_way(&[charge(&two), charge(&more)], &times(&more, 6)).await,
        "a limit more, several"
    );
    assert!(
        needs_the_general_way(&times(&two, 1), &[charge(&two), charge(&more)]).await,
        "two plans need it; otherwise the test proves nothing"
    );
}

/// To make the functions that search a log would double the cost of a call for one name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn common_calls_of_a_log_create_no_function() {
    let of = |quota, window| plan(vec![limit(quota, window, LOG)]);
    let wide = of(1_000, Duration::from_secs(60));
    let full = of(2, Duration::from_secs(60));
    let charge = |plan: &Arc<Plan>| ask(plan, "key", 1);
    for before in 0..4 {
        let before = vec![charge(&wide); before];
        assert!(
            !needs(LOG_FUNCTIONS, &before, &[charge(&wide)], false).await,
            "a charge after {}",
            before.len()
        );
        assert!(
            !needs(LOG_FUNCTIONS, &before, &[peek(&wide, "key", 1)], false).await,
            "a peek after {}",
            before.len()
        );
    }
    assert!(
        !needs(
            LOG_FUNCTIONS,
            &[charge(&full), charge(&full)],
            &[charge(&full)],
            false
        )
        .await,
        "a denial"
    );
    let others = ["b", "c"].map(|key| ask(&wide, key, 1));
    assert!(
        !needs(LOG_FUNCTIONS, &others, &others, true).await,
        "a joint decision"
    );
    // Another cost waits for a later charge to leave, which must be searched for.
    let two = ask(&full, "key", 2);
    assert!(
        needs(
            LOG_FUNCTIONS,
            &[charge(&full), charge(&full)],
            &[two],
            false
        )
        .await,
        "a search needs them; otherwise the test proves nothing"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_have_one_order_whatever_the_order_of_limits() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let store = store_on(&redis, &clock);
    let limits = [FIXED, BUCKET, WINDOW, COUNTER]
        .map(|algorithm| limit(100, Duration::from_secs(60), algorithm));
    let mut random = Random(7);
    let mut seen = Vec::new();
    for key in 0..40 {
        let key = key.to_string();
        // Some of the limits first, in any order, then the others, then all: each is charged twice.
        let mut order = limits.to_vec();
        order.sort_by_cached_key(|_| random.next());
        let (some, others) = order.split_at(random.below(4) as usize);
        let mut all = limits.to_vec();
        all.sort_by_cached_key(|_| random.next());
        for limits in [some.to_vec(), others.to_vec(), all] {
            let fits = limits.is_empty()
                || store
                    .decide_one(&ask(&plan(limits), &key, 1), PATIENCE)
                    .await
                    .unwrap()
                    .fits;
            assert!(fits);
        }
        seen.push(redis.cli(&["--no-raw", "GET", &format!("{{group:{key}}}")]));
    }
    seen.dedup();
    assert_eq!(seen.len(), 1, "{seen:?}");
}

/// Redis compiles each file of the script alone. So editors and checkers can parse each one.
#[test]
fn every_file_of_the_script_is_lua_by_itself() {
    let redis = Redis::start();
    let compile = |text: &str| {
        redis.cli(&[
            "EVAL",
            "local made, why = loadstring(ARGV[1]) return made and 'sound' or why",
            "0",
            text,
        ])
    };
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "lua") {
                assert_eq!(
                    compile(&std::fs::read_to_string(&path).unwrap()),
                    "sound",
                    "{}",
                    path.display()
                );
                files += 1;
            }
        }
    }
    assert!(files > 15, "{files} files found");
    assert!(
        compile("if true then").contains("'end' expected"),
        "a file that is cut would be taken for a sound one"
    );
}
