//! Holds in Redis: what lies there, what it takes, what is refused and what is lost, and many callers at once.

mod refused;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::algorithm::holds::{
    HoldCall, HoldEvent, HoldState, HoldVerdict, SettleOutcome, Settlement,
};
use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Concurrency, HoldTerms, Limit, Plan, Rule};
use tollgate::store::{
    Check, HoldCheck, MemoryStore, Mode, RedisStore, Store, StoreDeadline, StoreError,
};

use crate::support::clock::{FakeClock, START_US};
use crate::support::clocked_store::store_on;
use crate::support::history::Random;
use crate::support::holds::{ask, reserve, settle};
use crate::support::plans::{FIXED, LOG, WINDOW};
use crate::support::redis::Redis;
use crate::support::wire::Wire;

const S: u64 = 1_000_000;
pub(super) const PATIENCE: StoreDeadline = StoreDeadline(Duration::from_secs(60));
const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 100_000 };

pub(super) fn plan(algorithms: &[Algorithm], slots: Option<u64>, max_open: u32) -> Arc<Plan> {
    let limit = |algorithm: &Algorithm| {
        let minute = Duration::from_secs(60);
        Limit::new(format!("{algorithm:?}"), 100_000, minute, *algorithm).unwrap()
    };
    let limits = algorithms.iter().map(limit);
    let holds = HoldTerms {
        max_ttl: Duration::from_secs(600),
        max_open,
        concurrency: slots.map(|quota| Concurrency::new("concurrency", quota, 0).unwrap()),
        ..HoldTerms::default()
    };
    Arc::new(Plan {
        counts_as: "group".into(),
        holds: holds.into(),
        ..Plan::new("tokens", Rule::limits(limits))
    })
}

fn check(plan: &Arc<Plan>, key: &str, mode: Mode) -> Check {
    Check {
        key: Key::new(key).unwrap(),
        plan: plan.clone(),
        cost: Cost::ONE,
        mode,
    }
}

async fn call(store: &RedisStore, check: &HoldCheck) -> HoldVerdict {
    store.decide_hold(check, PATIENCE).await.unwrap()
}

pub(super) fn settlement(verdict: HoldVerdict) -> Settlement {
    match verdict.event {
        HoldEvent::Settled(settlement) => settlement,
        other => panic!("{other:?}"),
    }
}

pub(super) fn is_held(verdict: &HoldVerdict) -> bool {
    matches!(
        verdict.event,
        HoldEvent::Decided {
            expires_in_us: Some(_)
        }
    )
}

pub(super) async fn used(store: &RedisStore, plan: &Arc<Plan>, key: &str) -> u64 {
    let peek = check(plan, key, Mode::Peek);
    let verdict = store.decide_one(&peek, PATIENCE).await.unwrap();
    verdict.readings[0].used(&plan.limits()[0])
}

/// By MEMORY USAGE, with a key of 20 bytes and ids of 16.
#[tokio::test]
async fn holds_take_220_bytes_for_the_first_and_60_for_each_more() {
    let redis = Redis::start();
    let store = RedisStore::connect(&redis.url(), PATIENCE.0).unwrap();
    let plan = plan(&[BUCKET], None, 256);
    let key = format!("{:020}", 7);
    let bytes = || {
        let usage = redis.cli(&["MEMORY", "USAGE", &format!("{{group:{key}}}holds")]);
        usage.trim().parse::<u64>().unwrap()
    };
    let mut first = 0;
    for index in 1..=256 {
        let id = format!("request {index:08}");
        assert!(is_held(
            &call(&store, &ask(&plan, &key, (&id, reserve(1, 600)))).await
        ));
        if index == 1 {
            first = bytes();
        }
        assert!(
            first <= 220 && bytes() <= first + 60 * (index - 1),
            "{index}: {} after {first}",
            bytes()
        );
    }
    println!(
        "{first} bytes for the first, {} for each more",
        (bytes() - first) / 255
    );
    assert_eq!(redis.keys_without_expiry(), "");
}

#[tokio::test]
async fn a_lease_ends_to_the_microsecond_and_slots_are_never_too_many() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let store = store_on(&redis, &clock);
    let jobs = plan(&[], Some(2), 2);
    let of = |id: &str, seconds| ask(&jobs, "key", (id, reserve(1, seconds)));
    assert!(is_held(&call(&store, &of("a", 2)).await) && is_held(&call(&store, &of("b", 3)).await));
    for _ in 0..2 {
        let denied = call(&store, &of("c", 1)).await;
        assert!(!denied.view.verdict.fits && denied.view.slots.unwrap().wait_us == 2 * S);
    }
    clock.advance(2 * S - 1);
    let denied = call(&store, &of("c", 1)).await;
    assert_eq!(
        (is_held(&denied), denied.view.slots.unwrap().wait_us),
        (false, 1)
    );
    clock.advance(1);
    assert!(is_held(&call(&store, &of("c", 1)).await));
}

#[tokio::test]
async fn fault_97_a_lease_that_a_clock_which_stepped_back_left_ends_the_longest_lease_from_then() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let store = store_on(&redis, &clock);
    let jobs = plan(&[], Some(1), 1);
    let of = |id: &str| ask(&jobs, "key", (id, reserve(1, 600)));
    assert!(is_held(&call(&store, &of("a")).await));
    clock.set(START_US - 3_600 * S);
    let denied = call(&store, &of("b")).await;
    assert_eq!(
        (is_held(&denied), denied.view.slots.unwrap().wait_us),
        (false, 600 * S)
    );
    clock.advance(600 * S);
    assert!(is_held(&call(&store, &of("b")).await));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_callers_of_three_replicas_get_five_slots() {
    let redis = Redis::start();
    let replicas: Vec<RedisStore> = (0..3)
        .map(|_| RedisStore::connect(&redis.url(), PATIENCE.0).unwrap())
        .collect();
    let jobs = plan(&[], Some(5), 256);
    let taken = Arc::new(AtomicU64::new(0));
    let callers = (0..60).map(|caller| {
        let store = replicas[caller % 3].clone();
        let jobs = jobs.clone();
        let taken = taken.clone();
        tokio::spawn(async move {
            let check = ask(&jobs, "key", (&format!("{caller}"), reserve(1, 60)));
            if is_held(&call(&store, &check).await) {
                taken.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    assert_eq!(taken.load(Ordering::SeqCst), 5);
}

/// One caller: reserves, uses, and settles; a third of the answers is lost, and the call is sent again, to any replica. Returns what
/// it used, by key.
async fn caller(
    (number, calls): (u64, u64),
    replicas: Vec<RedisStore>,
    plan: Arc<Plan>,
) -> HashMap<u64, u64> {
    let mut random = Random(number);
    let mut sums = HashMap::new();
    for index in 0..calls {
        let key = random.below(4);
        let id = format!("{number} {index}");
        let name = format!("key {key}");
        let mut sent = async |call: HoldCall| {
            let check = ask(&plan, &name, (&id, call));
            for _ in 0..5 {
                let answer = replicas[random.below(3) as usize]
                    .decide_hold(&check, PATIENCE)
                    .await;
                if random.below(3) > 0 {
                    return (answer.unwrap(), random.below(2_001));
                }
            }
            let last = replicas[random.below(3) as usize]
                .decide_hold(&check, PATIENCE)
                .await;
            (last.unwrap(), random.below(2_001))
        };
        let (reserved, actual) = sent(reserve(2_000, 60)).await;
        if !reserved.view.verdict.fits {
            continue;
        }
        sent(settle(actual)).await;
        *sums.entry(key).or_default() += actual;
    }
    sums
}

/// The whole: `TOLLGATE_HOLD_CALLERS=200 TOLLGATE_HOLD_CALLS=50`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_counted_at_the_end_is_what_was_used_though_a_third_of_the_answers_is_lost() {
    let of = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let callers = of("TOLLGATE_HOLD_CALLERS", 60);
    let calls = of("TOLLGATE_HOLD_CALLS", 8);
    let redis = Redis::start();
    let replicas: Vec<RedisStore> = (0..3)
        .map(|_| RedisStore::connect(&redis.url(), PATIENCE.0).unwrap())
        .collect();
    let tokens = plan(&[WINDOW], None, 1_000);
    let minute = Limit::new("minute", 100_000, Duration::from_secs(60), WINDOW).unwrap();
    let tokens = Arc::new(Plan {
        rule: Rule::limits([minute]),
        ..(*tokens).clone()
    });
    let tasks: Vec<_> = (0..callers)
        .map(|number| tokio::spawn(caller((number, calls), replicas.clone(), tokens.clone())))
        .collect();
    let mut sums = HashMap::<u64, u64>::new();
    for task in tasks {
        for (key, sum) in task.await.unwrap() {
            *sums.entry(key).or_default() += sum;
        }
    }
    for (key, sum) in &sums {
        let counted = used(&replicas[0], &tokens, &format!("key {key}")).await;
        assert_eq!(counted, *sum, "key {key}");
        assert!(counted <= 100_000, "{counted}");
    }
    println!("{callers} callers, {calls} calls each: {sums:?}");
}

/// What a settle gave back to a bucket is not given back by one that comes later, though other charges have come since: 1,000 units
/// drain in 600 ms.
/// Ids that are no longer recent lie in a HASH, by parts. What a part says of an id goes with the part, what is said of it since stays.
#[tokio::test]
async fn an_id_that_was_forgotten_and_has_ended_anew_is_known_as_long_as_at_first() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let store = store_on(&redis, &clock);
    let plan = plan(&[BUCKET], None, 256);
    let use_ids = async |name: &str, numbers: std::ops::Range<u32>| {
        for number in numbers {
            let id = format!("{name} {number}");
            let reserved = call(&store, &ask(&plan, "key", (&id, reserve(2, 60)))).await;
            assert!(is_held(&reserved), "{id}: {reserved:?}");
            let settled = call(&store, &ask(&plan, "key", (&id, settle(1)))).await;
            assert_eq!(settlement(settled).outcome, SettleOutcome::Settled);
        }
    };
    // Two halves of a part, of which one is remembered for longer.
    use_ids("first", 0..8).await;
    clock.advance(300 * S);
    use_ids("first", 8..16).await;
    use_ids("other", 0..16).await;
    clock.advance(301 * S);
    use_ids("first", 0..1).await;
    use_ids("other", 16..31).await;
    clock.advance(300 * S);
    // Moves the recent ids, and forgets the rest of the part.
    use_ids("other", 31..33).await;
    let again = call(&store, &ask(&plan, "key", ("first 0", reserve(2, 60)))).await;
    assert!(
        matches!(again.event, HoldEvent::Repeated { .. }),
        "{again:?}"
    );
}

/// A sixth run has no place in a window of four cells, so a reserve merges the runs of each cell.
#[tokio::test]
async fn a_reserve_that_merges_runs_of_a_window_loses_no_unit() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let store = store_on(&redis, &clock);
    let precise = Algorithm::SlidingWindow { precision: 4 };
    let limit = Limit::new("precise", 12, Duration::from_secs(2), precise).unwrap();
    let precise = Arc::new(Plan {
        holds: HoldTerms::default().into(),
        ..Plan::new("precise", Rule::limits([limit]))
    });
    let second = START_US - START_US % S;
    // Three runs stand in the first cell of half a second, one in the next one, and one in that behind it.
    for (at_ms, cost) in [(100, 1), (200, 3), (300, 3), (900, 3), (1_034, 1)] {
        clock.set(second + at_ms * 1_000);
        let id = format!("at {at_ms}");
        call(
            &store,
            &ask(&precise, "key", (&id, HoldCall::Record { cost })),
        )
        .await;
    }
    clock.set(second + 2_070 * 1_000);
    assert_eq!(used(&store, &precise, "key").await, 11);
    let sixth = ask(&precise, "key", ("sixth", reserve(1, 60)));
    assert!(is_held(&call(&store, &sixth).await));
    // All but the last have left.
    clock.set(second + 3_500 * 1_000);
    let check = check(&precise, "key", Mode::Charge);
    for expected in 2..=4 {
        assert!(store.decide_one(&check, PATIENCE).await.unwrap().fits);
        assert_eq!(used(&store, &precise, "key").await, expected);
    }
}

#[tokio::test]
async fn what_another_settle_gave_back_to_a_bucket_does_not_come_back_again() {
    for algorithms in [&[BUCKET][..], &[BUCKET, WINDOW]] {
        let redis = Redis::start();
        let clock = FakeClock::new();
        let store = store_on(&redis, &clock);
        let plan = plan(algorithms, None, 4);
        for id in ["a", "b"] {
            assert!(is_held(
                &call(&store, &ask(&plan, "key", (id, reserve(1_000, 60)))).await
            ));
        }
        let first = call(&store, &ask(&plan, "key", ("a", settle(0)))).await;
        assert_eq!(settlement(first).returned[0], 1_000);
        call(&store, &ask(&plan, "key", ("c", reserve(1_000, 60)))).await;
        clock.advance(900_000);
        let second = call(&store, &ask(&plan, "key", ("b", settle(0)))).await;
        assert_eq!(settlement(second).returned[0], 0, "{algorithms:?}");
    }
}

/// The answers to this call about eight keys at once.
async fn of_each_key(
    store: &RedisStore,
    plan: &Arc<Plan>,
    (id, asked): (&str, HoldCall),
) -> Vec<HoldVerdict> {
    let calls = (0..8).map(|key| {
        let store = store.clone();
        let check = ask(plan, &format!("key {key}"), (id, asked));
        tokio::spawn(async move { call(&store, &check).await })
    });
    let mut answers = Vec::new();
    for answered in calls.collect::<Vec<_>>() {
        answers.push(answered.await.unwrap());
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_has_much_to_do_leaves_requests_to_the_next_one() {
    let redis = Redis::start();
    let store = RedisStore::connect(&redis.url(), PATIENCE.0).unwrap();
    assert!(store.connected(PATIENCE.0).await);
    let plan = plan(&[FIXED], None, 1_000);
    for id in 0..600 {
        let reserved = of_each_key(&store, &plan, (&id.to_string(), reserve(1, 500))).await;
        assert!(reserved.iter().all(is_held));
    }
    let before = redis.ran("evalsha");
    let extend = HoldCall::Extend { ttl_us: 550 * S };
    for verdict in of_each_key(&store, &plan, ("7", extend)).await {
        let is_open = matches!(
            verdict.event,
            HoldEvent::Extended {
                state: HoldState::Open,
                expires_in_us: Some(_)
            }
        );
        assert!(is_open, "{:?}", verdict.event);
    }
    let calls = redis.ran("evalsha") - before;
    assert!(calls > 2, "{calls}: one for the first, and too few beside");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_a_thousand_holds_of_all_plans_that_share_its_count() {
    let redis = Redis::start();
    let clock = Arc::new(FakeClock::new());
    let store = RedisStore::with_injected_clock(&redis.url(), clock.clone()).unwrap();
    assert!(store.connected(PATIENCE.0).await);
    let embedded = MemoryStore::new(1 << 24, clock.clone());
    let terms = HoldTerms {
        release_on_expiry: true,
        ..(*plan(&[FIXED], None, 1_000).holds).clone()
    };
    let [first, second] = ["first", "second"].map(|name| {
        Arc::new(Plan {
            name: name.into(),
            holds: terms.clone().into(),
            ..(*plan(&[FIXED], None, 1)).clone()
        })
    });
    let expected = |held: &HoldVerdict, full_for_us: Option<u64>| {
        assert_eq!(is_held(held), full_for_us.is_none(), "{held:?}");
        assert_eq!(held.view.full_for_us, full_for_us);
    };
    for (plan, count) in [(&first, 600), (&second, 400)] {
        for id in 0..count {
            let check = ask(plan, "k", (&format!("{} {id}", plan.name), reserve(1, 60)));
            expected(&call(&store, &check).await, None);
            expected(&embedded.hold(&check).unwrap(), None);
        }
        clock.advance(S);
    }
    // The first lease ends 58 seconds from now; then all have, and only those of this plan are over.
    for (after_us, full_for_us) in [(0, Some(58 * S)), (58 * S, Some(S)), (S, None)] {
        clock.advance(after_us);
        for (key, full_for_us) in [("k", full_for_us), ("another", None)] {
            let check = ask(&second, key, (&after_us.to_string(), reserve(1, 60)));
            expected(&call(&store, &check).await, full_for_us);
            expected(&embedded.hold(&check).unwrap(), full_for_us);
        }
    }
}

#[tokio::test]
async fn fault_98_a_settle_without_counters_returns_nothing_and_another_type_refuses_it() {
    for algorithm in [BUCKET, WINDOW] {
        let redis = Redis::start();
        let clock = FakeClock::new();
        let store = store_on(&redis, &clock);
        let plan = plan(&[algorithm], None, 4);
        for id in ["a", "b"] {
            call(&store, &ask(&plan, "bad", (id, reserve(5, 5)))).await;
        }
        redis.cli(&["DEL", "{group:bad}"]);
        let gone = settlement(call(&store, &ask(&plan, "bad", ("a", settle(0)))).await);
        assert_eq!((gone.held, &gone.returned[..]), (5, &[0][..]));
        redis.cli(&["SADD", "{group:bad}", "hello"]);
        let ask = ask(&plan, "bad", ("b", settle(0)));
        let refused = store.decide_hold(&ask, PATIENCE).await;
        assert!(matches!(refused, Err(StoreError::Refused(_))));
        redis.cli(&["DEL", "{group:bad}"]);
        let again = settlement(call(&store, &ask).await);
        assert_eq!(again.outcome, SettleOutcome::Settled);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_96_a_settle_while_redis_is_away_is_an_error_and_charges_what_was_used_once_data_is_lost()
 {
    let mut redis = Redis::start();
    let store = RedisStore::connect(&redis.url(), Duration::from_millis(200)).unwrap();
    let plan = plan(&[LOG], None, 4);
    let patience = StoreDeadline(Duration::from_millis(500));
    assert!(store.connected(Duration::from_secs(10)).await);
    let held = store
        .decide_hold(&ask(&plan, "key", ("a", reserve(2_000, 60))), patience)
        .await;
    assert!(is_held(&held.unwrap()));
    redis.kill();
    let check = ask(&plan, "key", ("a", settle(740)));
    let away = store.decide_hold(&check, patience).await;
    assert!(
        matches!(
            away,
            Err(StoreError::Unreachable(_) | StoreError::NotSent(_) | StoreError::Deadline(_))
        ),
        "{away:?}"
    );
    redis.restart();
    assert!(store.connected(Duration::from_secs(10)).await);
    let first = settlement(call(&store, &check).await);
    let again = settlement(call(&store, &check).await);
    assert_eq!((first.outcome, first.excess), (SettleOutcome::Unknown, 740));
    assert_eq!((again.outcome, again.excess), (SettleOutcome::Repeated, 0));
    assert_eq!(used(&store, &plan, "key").await, 740);
}
