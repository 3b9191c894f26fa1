//! Candidate plans: decided beside a live plan, counted apart, and never enforced.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::decision::LimitStatus;
use tollgate::key::{Cost, Key};
use tollgate::limiter::{Limiter, LimiterSettings};
use tollgate::plan::{Algorithm, Plan};
use tollgate::store::{Check, MemoryStore, Mode, RedisStore, Refund, Store, Verdict};

use crate::support::asks::refund_of;
use crate::support::clock::{FakeClock, START_US};
use crate::support::clocked_store::store_on;
use crate::support::cluster::Cluster;
use crate::support::history::{Random, Times};
use crate::support::http::{Scrape, get};
use crate::support::plans::{BUCKET, LOG, ask, limit, plan};
use crate::support::redis::Redis;
use crate::support::server::{PATIENCE, Server, decide, request};

const SETTINGS: LimiterSettings = LimiterSettings {
    deadline: Duration::from_secs(60),
    expected_replicas: 1,
    // It measures by a clock that the test does not set.
    deny_cache_entries: 0,
};
const KEYS: u64 = 4;

/// A live plan, its candidate, and the candidate as a live plan of other callers.
struct Plans {
    live: Arc<Plan>,
    with_candidate: Arc<Plan>,
    candidate: Arc<Plan>,
}

/// Random limits of any algorithm, often with the same fingerprints in both plans.
fn plans(random: &mut Random) -> Plans {
    let mut limits = || {
        let count = 1 + random.below(3);
        let mut limits = Vec::new();
        for window_ms in [3, 5, 60_000]
            .into_iter()
            .take(usize::try_from(count).unwrap())
        {
            let algorithm = match *random.pick(&Algorithm::EVERY) {
                Algorithm::TokenBucket { .. } => Algorithm::TokenBucket {
                    burst: 1 + random.below(9),
                },
                other => other,
            };
            limits.push(limit(
                1 + random.below(9),
                Duration::from_millis(window_ms),
                algorithm,
            ));
        }
        limits
    };
    let live = plan(limits());
    let named = Plan {
        name: "strict".into(),
        counts_as: "strict".into(),
        ..(*plan(limits())).clone()
    };
    let with_candidate = Plan {
        candidate: Some(Arc::new(named.as_candidate_of(&live))),
        ..(*live).clone()
    };
    Plans {
        live,
        with_candidate: Arc::new(with_candidate),
        candidate: Arc::new(named),
    }
}

/// Requests at one instant, by the live plan, and some by the candidate as a plan of its own.
fn requests(random: &mut Random, plans: &Plans, mode: Mode) -> Vec<Check> {
    let request = |random: &mut Random| {
        let plan = if random.below(5) == 0 {
            &plans.candidate
        } else {
            &plans.with_candidate
        };
        let most = plan
            .limits()
            .iter()
            .map(|limit| limit.capacity())
            .min()
            .unwrap();
        let key = random.below(KEYS);
        let cost = 1 + random.below(most);
        Check {
            mode,
            ..ask(plan, &format!("k{key}"), cost)
        }
    };
    (0..1 + random.below(24)).map(|_| request(random)).collect()
}

/// The same by two stores that know no candidates: one for the live plan, one that has the candidate in force.
struct Reference {
    live: MemoryStore,
    in_force: MemoryStore,
}

impl Reference {
    /// What the plan decides, and whether its candidate would let it pass, if that is to be known.
    fn decide(&self, plans: &Plans, check: &Check) -> (Verdict, Option<bool>) {
        let by = |store: &MemoryStore, plan: &Arc<Plan>| {
            let check = Check {
                plan: plan.clone(),
                ..check.clone()
            };
            store.decide(&check).unwrap()
        };
        if Arc::ptr_eq(&check.plan, &plans.candidate) {
            return (by(&self.live, &plans.candidate), None);
        }
        let verdict = by(&self.live, &plans.live);
        let fits = plans.candidate.never_fits(check.cost).is_none();
        let allowed = match check.mode {
            Mode::Charge => Some(fits && by(&self.in_force, &plans.candidate).fits),
            Mode::Peek => None,
        };
        (verdict, allowed)
    }

    /// How the key stands after a refund of what the check would charge.
    fn refund(&self, plans: &Plans, check: &Check) -> Verdict {
        let by = |store: &MemoryStore, plan: &Arc<Plan>| {
            let refund = Refund {
                plan: plan.clone(),
                ..refund_of(check)
            };
            store.give_back(&refund).unwrap().after
        };
        if Arc::ptr_eq(&check.plan, &plans.candidate) {
            return by(&self.live, &plans.candidate);
        }
        by(&self.in_force, &plans.candidate);
        by(&self.live, &plans.live)
    }
}

/// Checks of all modes by a limiter on this store. Returns how often the candidate alone denied.
async fn check(store: impl Store, clock: &FakeClock, seed: u64) -> usize {
    let memory = || MemoryStore::new(64 << 20, Arc::new(clock.clone()));
    let mut random = Random(seed);
    let plans = plans(&mut random);
    let reference = Reference {
        live: memory(),
        in_force: memory(),
    };
    let set = [&plans.with_candidate, &plans.candidate].map(|plan| (**plan).clone());
    let limiter = Limiter::new(
        set.into_iter().collect(),
        store,
        SETTINGS,
        Arc::new(clock.clone()),
    );
    let mut times = Times::new(START_US, 3_000);
    let mut denied = 0;
    for _ in 0..30 {
        let now_us = times.next(&mut random);
        clock.set(now_us);
        let mode = *random.pick(&[Mode::Charge, Mode::Charge, Mode::Charge, Mode::Peek]);
        let checks = requests(&mut random, &plans, mode);
        times.mark(now_us);
        if random.below(5) == 0 {
            for check in &checks {
                let expected = reference.refund(&plans, check);
                let limits = expected.statuses(check.plan.limits(), Cost::ONE).to_vec();
                let about = format!("seed {seed:#x}, refund of {check:?}");
                assert_eq!(refund(&limiter, check).await, limits, "{about}");
            }
            continue;
        }
        let found = decide_all(&limiter, &checks).await;
        for (check, (limits, by_candidate)) in checks.iter().zip(found) {
            let (verdict, candidate_allowed) = reference.decide(&plans, check);
            let about = format!("seed {seed:#x}, {check:?}");
            let expected = verdict.statuses(check.plan.limits(), check.cost);
            assert_eq!(limits, expected.to_vec(), "{about}");
            assert_eq!(by_candidate, candidate_allowed, "{about}");
            denied += usize::from(verdict.fits && candidate_allowed == Some(false));
        }
    }
    denied
}

type Standing = Vec<LimitStatus>;

/// The standing after a refund of what the check would charge.
async fn refund<S: Store>(limiter: &Limiter<S>, check: &Check) -> Standing {
    let Check {
        key, plan, cost, ..
    } = check;
    let refunded = limiter.refund(key.clone(), &plan.name, *cost, None).await;
    let limits = refunded.unwrap().limits.into_iter();
    limits.map(|(status, _)| status).collect()
}

/// The standings after each check, and what the candidate says.
async fn decide_all<S: Store>(
    limiter: &Limiter<S>,
    checks: &[Check],
) -> Vec<(Standing, Option<bool>)> {
    let named = |check: &Check| Check {
        key: check.key.clone(),
        plan: check.plan.name.to_string(),
        cost: check.cost,
        mode: check.mode,
    };
    let decisions = match checks {
        [single] => vec![limiter.decide(named(single), None).await],
        checks => limiter
            .decide_batch(checks.iter().map(named).collect(), None)
            .await
            .unwrap(),
    };
    decisions
        .into_iter()
        .map(Result::unwrap)
        .map(|decision| (decision.limits().into(), decision.candidate_allowed))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn in_memory_a_candidate_decides_as_if_it_were_in_force_and_changes_nothing(seed in any::<u64>()) {
        let clock = FakeClock::new();
        let store = MemoryStore::new(64 << 20, Arc::new(clock.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(check(store, &clock, seed));
    }
}

/// Over random plans, each beginning on an empty store.
async fn check_on(store: &RedisStore, clock: &FakeClock, flush: impl Fn()) {
    let mut denied = 0;
    for seed in 0..60 {
        denied += check(store.clone(), clock, 0x00CA_4D1D + seed).await;
        flush();
    }
    assert!(denied > 100, "the candidate alone denied {denied} only");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_redis_a_candidate_decides_as_if_it_were_in_force_and_changes_nothing() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    check_on(&store_on(&redis, &clock), &clock, || {
        drop(redis.cli(&["FLUSHALL"]))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_cluster_a_candidate_decides_as_if_it_were_in_force_and_changes_nothing() {
    let cluster = Cluster::start();
    let clock = FakeClock::new();
    let store = RedisStore::with_injected_clock(&cluster.url(), Arc::new(clock.clone())).unwrap();
    assert!(store.connected(PATIENCE).await);
    let flush = || {
        cluster
            .nodes
            .iter()
            .for_each(|node| drop(node.cli(&["FLUSHALL"])))
    };
    check_on(&store, &clock, flush).await;
}

/// A live plan and its candidate are decided by one script call, whatever their state lies in.
#[tokio::test]
async fn a_live_plan_and_its_candidate_take_one_script_call() {
    let redis = Redis::start();
    let clock = FakeClock::new();
    let store = store_on(&redis, &clock);
    let minute = Duration::from_secs(60);
    let live = plan(vec![limit(5, minute, BUCKET), limit(9, minute, LOG)]);
    let strict = Plan {
        name: "strict".into(),
        ..(*plan(vec![limit(1, minute, BUCKET), limit(1, minute, LOG)])).clone()
    };
    let plan = Plan {
        name: "live".into(),
        candidate: Some(Arc::new(strict.as_candidate_of(&live))),
        ..(*live).clone()
    };
    let limiter = Limiter::new(
        [plan].into_iter().collect(),
        store,
        SETTINGS,
        Arc::new(clock),
    );
    let ask = |key| Check {
        key: Key::new(key).unwrap(),
        plan: "live".to_owned(),
        cost: Cost::ONE,
        mode: Mode::Charge,
    };
    limiter.decide(ask("first"), None).await.unwrap();
    redis.cli(&["CONFIG", "RESETSTAT"]);
    for by_candidate in [true, false] {
        let decision = limiter.decide(ask("k"), None).await.unwrap();
        assert_eq!(
            (decision.allowed(), decision.candidate_allowed),
            (true, Some(by_candidate))
        );
    }
    assert_eq!(redis.ran("evalsha"), 2);
    let mut names: Vec<String> = redis
        .cli(&["KEYS", "*:k}*"])
        .lines()
        .map(str::to_owned)
        .collect();
    names.sort();
    let expected = [
        "{group:k}",
        "{group:k}candidate:strict:",
        "{group:k}candidate:strict:log:60000000",
        "{group:k}log:60000000",
    ];
    assert_eq!(names, expected);
}

const CONFIG: &str = "
store: { deadline: 10s, expected_replicas: 1 }
listen: { http: 127.0.0.1:0 }
plans:
  free: { limits: [ { quota: 8, window: 1d, algorithm: fixed_window } ], candidate: strict }
  quiet: { limits: [ { quota: 2, window: 1d, algorithm: fixed_window } ], candidate: strict, shadow: true }
  strict: { limits: [ { quota: 5, window: 1d, algorithm: fixed_window } ] }
";

/// Requests by key, so many that some keys are denied by both plans, some by the candidate, and some by none.
const REQUESTS: [(&str, u64); 4] = [("a", 3), ("b", 5), ("c", 7), ("d", 40)];

fn sample(plan: &str, outcome: &str, by_candidate: &str) -> String {
    format!(
        "tollgate_candidate_decisions_total{{plan=\"{plan}\",candidate=\"strict\",outcome=\"{outcome}\",candidate_outcome=\"{by_candidate}\"}}"
    )
}

async fn tells_how_many_the_candidate_would_deny(flags: &[&str]) {
    let server = Server::start(CONFIG, flags);
    let mut client = server.client().await;
    for (key, count) in REQUESTS {
        let mut allowed = 0;
        for _ in 0..count {
            allowed += u64::from(decide(&mut client, key, "free").await.allowed);
        }
        assert_eq!(allowed, count.min(8), "{key}");
        // The plan of that name, used live, has its own count.
        assert!(decide(&mut client, key, "strict").await.allowed);
    }
    // One that fits the live plan and never the candidate, and one that asks only.
    assert!(
        client
            .should_allow(request("e", "free", Some(6)))
            .await
            .unwrap()
            .into_inner()
            .allowed
    );
    assert!(get(&server.http(), "/v1/check?key=f&plan=free&peek=true").status < 500);
    for _ in 0..4 {
        assert!(decide(&mut client, "s", "quiet").await.allowed);
    }
    let scrape = Scrape::of(&server.http());
    let expected = |keep: fn(u64, u64) -> u64| {
        REQUESTS
            .iter()
            .map(|(_, count)| keep(*count, 0))
            .sum::<u64>() as f64
    };
    assert_eq!(
        scrape.value(&sample("free", "allowed", "allowed")),
        expected(|count, _| count.min(5))
    );
    assert_eq!(
        scrape.value(&sample("free", "allowed", "denied")),
        expected(|count, _| count.min(8) - count.min(5)) + 1.0
    );
    assert_eq!(
        scrape.value(&sample("free", "denied", "denied")),
        expected(|count, _| count - count.min(8))
    );
    assert_eq!(scrape.value(&sample("free", "denied", "allowed")), 0.0);
    // A denial in shadow mode is one here.
    assert_eq!(scrape.value(&sample("quiet", "allowed", "allowed")), 2.0);
    assert_eq!(scrape.value(&sample("quiet", "denied", "allowed")), 2.0);
    // Each request is counted once, under its live plan.
    assert_eq!(
        scrape
            .decisions()
            .iter()
            .filter(|(words, _)| words.starts_with("strict"))
            .map(|(_, count)| count)
            .sum::<f64>(),
        4.0
    );
}

#[tokio::test]
async fn a_candidate_that_would_deny_more_is_told_by_the_metric_and_denies_nobody_in_memory() {
    tells_how_many_the_candidate_would_deny(&[]).await;
}

/// Denials of the live plan are not remembered, or the candidate would miss requests.
#[tokio::test]
async fn a_candidate_that_would_deny_more_is_told_by_the_metric_and_denies_nobody_on_redis() {
    let redis = Redis::start();
    tells_how_many_the_candidate_would_deny(&["--store", &redis.url()]).await;
}

#[tokio::test]
async fn without_redis_the_policy_answers_and_the_candidate_is_not_counted() {
    let mut redis = Redis::start();
    let config = CONFIG.replace("deadline: 10s", "deadline: 25ms");
    let server = Server::start(&config, &["--store", &redis.url()]);
    let mut client = server.client().await;
    assert!(decide(&mut client, "k", "free").await.allowed);
    redis.kill();
    let mut allowed = 0;
    for _ in 0..20 {
        allowed += u64::from(decide(&mut client, "k", "free").await.allowed);
    }
    // This replica's share is the whole quota.
    assert_eq!(allowed, 8);
    let scrape = Scrape::of(&server.http());
    let all: f64 = [
        ("allowed", "allowed"),
        ("allowed", "denied"),
        ("denied", "allowed"),
        ("denied", "denied"),
    ]
    .map(|(outcome, by_candidate)| scrape.value(&sample("free", outcome, by_candidate)))
    .iter()
    .sum();
    assert_eq!(all, 1.0);
}
