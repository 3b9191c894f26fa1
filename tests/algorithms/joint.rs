//! Joint decisions against a brute force, which decides them by their definition: it tries the requests one after another on a copy
//! of the world, and takes the copy if all of them pass.
//!
//! The same history runs through limiters over the embedded store and over two stores on one Redis, on one injected clock, joint and
//! single decisions mixed. Every field must be equal.

mod world;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate::algorithm::{State, decide, test};
use tollgate::decision::{DecidedBy, Decision, LimitStatus, Outcome};
use tollgate::joint::{JointDecision, REQUESTS_MAX};
use tollgate::key::{Cost, Key};
use tollgate::limiter::{Limiter, LimiterSettings};
use tollgate::plan::{Algorithm, Limit, Plan, PlanSet, Rule};
use tollgate::store::{Check, MemoryStore, Mode, RedisStore, Store};

use crate::support::clock::{FakeClock, START_US};
use crate::support::cluster::Cluster;
use crate::support::history::{Random, Times};
use crate::support::plans::{COARSE, COUNTER, FIXED, LOG, WINDOW, every_but_the_bucket};
use crate::support::redis::{Redis, other_make};
use world::{Told, World};

/// Decisions of each history, unless `TOLLGATE_JOINT_DECISIONS` says otherwise.
const DECISIONS: u64 = 6_000;
const KEYS: u64 = 4;
const SHARDS: [&str; 3] = ["", "", "acme"];

/// The states of a subject by the fingerprints of limits.
type Subject = HashMap<Vec<u8>, State>;

thread_local! {
    /// The time of the history.
    static NOW: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

fn now_us() -> u64 {
    NOW.with(std::cell::Cell::get)
}

/// What is known of each check without the store, by the units of those before that no state decides; and whether the store is asked
/// about a charge. Where it is asked about peeks alone, they add up.
fn known_outcomes(plans: &PlanSet, checks: &[Check<String>]) -> (Vec<Option<Outcome>>, bool) {
    let plan = |check: &Check<String>| plans.get(&check.plan).unwrap().clone();
    let counts = |check: &Check<String>| !plan(check).limits().is_empty();
    let is_charge = |check: &Check<String>| check.mode == Mode::Charge && counts(check);
    let charges = checks.iter().any(is_charge);
    let mut before: HashMap<(String, Key), u64> = HashMap::new();
    let mut known = Vec::new();
    for check in checks {
        let name = (plan(check).counts_as.to_string(), check.key.clone());
        let units = before.entry(name).or_default();
        let sum = Cost::new(*units + check.cost.units()).unwrap();
        known.push(without_state(&plan(check), sum));
        if counts(check) && !plan(check).shadow && (is_charge(check) || !charges) {
            *units += check.cost.units();
        }
    }
    let mut pairs = checks.iter().zip(&known);
    let asked = pairs.any(|(check, known)| is_charge(check) && known.is_none());
    (known, asked)
}

/// What a plan tells without a state, if it does.
fn without_state(plan: &Plan, cost: Cost) -> Option<Outcome> {
    let denied = |outcome| {
        if plan.shadow {
            Outcome::ShadowDenied
        } else {
            outcome
        }
    };
    match plan.rule {
        Rule::Unlimited => Some(Outcome::Allowed),
        Rule::Blocked => Some(denied(Outcome::Denied)),
        Rule::Limits(_) => plan.never_fits(cost).map(|_| denied(Outcome::NeverFits)),
    }
}

/// The request that binds, by looking at all pairs.
fn binding(told: &[Told], allowed: bool) -> usize {
    let wait = |each: &Told| {
        each.limits
            .iter()
            .filter_map(|limit| limit.retry_after_us)
            .max()
    };
    // That of the limit that binds: in shadow mode the one that would deny longest, else the one with the least.
    let share = |each: &Told| {
        let longest = wait(each);
        let binds = |limit: &&LimitStatus| limit.retry_after_us == longest;
        let mut shares = each
            .limits
            .iter()
            .filter(binds)
            .map(|limit| limit.remaining as f64 / limit.capacity as f64);
        match longest {
            // Those without limits come last.
            _ if each.limits.is_empty() => 2.0,
            Some(_) => shares.next().unwrap_or(1.0),
            None => shares.fold(1.0, f64::min),
        }
    };
    let denies = |each: &Told| matches!(each.outcome, Outcome::Denied | Outcome::NeverFits);
    let mut found = None;
    for (index, each) in told.iter().enumerate() {
        let is_better = match found.map(|found: usize| &told[found]) {
            _ if !allowed && !denies(each) => false,
            None => true,
            Some(best) if allowed => share(each) < share(best),
            Some(best) => match (wait(each), wait(best)) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(mine), Some(others)) => mine > others,
            },
        };
        if is_better {
            found = Some(index);
        }
    }
    found.unwrap_or(0)
}

/// Plans of these algorithms: some count together, some are in shadow mode, and some have no limits.
fn plans(random: &mut Random, algorithms: &[Algorithm]) -> PlanSet {
    let limit = |random: &mut Random, algorithm: Algorithm| {
        let quota = *random.pick(&[4, 5, 8, 10, 20]);
        let algorithm = match algorithm {
            Algorithm::TokenBucket { .. } => Algorithm::TokenBucket {
                burst: 1 + random.below(2 * quota),
            },
            other => other,
        };
        let name = format!("{algorithm:?}");
        Limit::new(name, quota, Duration::from_millis(2), algorithm).unwrap()
    };
    let mut made = vec![
        Plan::new("unlimited", Rule::Unlimited),
        Plan::new("blocked", Rule::Blocked),
    ];
    for number in 0..10 {
        let count = 1 + random.below(2).min(algorithms.len() as u64 - 1);
        let first = random.below(algorithms.len() as u64) as usize;
        let chosen =
            (0..count as usize).map(|index| algorithms[(first + index) % algorithms.len()]);
        let limits: Vec<_> = chosen.map(|algorithm| limit(random, algorithm)).collect();
        made.push(Plan {
            counts_as: format!("group{}", number % 4).into(),
            shadow: random.below(6) == 0,
            ..Plan::new(format!("plan{number}"), Rule::limits(limits))
        });
    }
    made.into_iter().collect()
}

fn random_checks(random: &mut Random, plans: &PlanSet) -> Vec<Check<String>> {
    let count = if random.below(3) == 0 {
        1
    } else {
        1 + random.below(REQUESTS_MAX as u64)
    };
    let mode = if random.below(8) == 0 {
        Mode::Peek
    } else {
        Mode::Charge
    };
    let has_peeks = mode == Mode::Charge && random.below(4) == 0;
    let counted: Vec<&Arc<Plan>> = plans
        .iter()
        .filter(|plan| !plan.limits().is_empty())
        .collect();
    let mut checks: Vec<Check<String>> = Vec::new();
    for _ in 0..count {
        if !checks.is_empty() && random.below(6) == 0 {
            let same = random.pick(&checks).clone();
            checks.push(same);
            continue;
        }
        let plan = match random.below(40) {
            0 => "unlimited".to_owned(),
            1 => "blocked".to_owned(),
            _ => random.pick(&counted).name.to_string(),
        };
        let cost = if random.below(4) == 0 {
            1 + random.below(9)
        } else {
            1
        };
        let key = Key::new(format!("key{}", random.below(KEYS))).unwrap();
        checks.push(Check {
            key: key.in_shard(random.pick::<&str>(&SHARDS)).unwrap(),
            plan,
            cost: Cost::new(cost).unwrap(),
            mode: if has_peeks && random.below(3) == 0 {
                Mode::Peek
            } else {
                mode
            },
        });
    }
    checks
}

/// Keys are not shown otherwise.
fn described(checks: &[Check<String>]) -> String {
    let each = checks.iter().map(|check| {
        let key = &check.key;
        let cost = check.cost.units();
        format!(
            "{} {}/{} {cost} {:?}",
            check.plan,
            key.shard(),
            key.as_str(),
            check.mode
        )
    });
    each.collect::<Vec<_>>().join(", ")
}

fn told(decision: &Decision) -> Told {
    Told {
        outcome: decision.outcome,
        limits: decision.limits().to_vec(),
    }
}

fn limiter<S: Store>(plans: &PlanSet, store: S, clock: &FakeClock) -> Limiter<S> {
    let settings = LimiterSettings {
        deadline: Duration::from_secs(60),
        expected_replicas: 1,
        deny_cache_entries: 0,
    };
    Limiter::new(plans.clone(), store, settings, Arc::new(clock.clone()))
}

async fn ask<S: Store>(limiter: &Limiter<S>, checks: &[Check<String>]) -> JointDecision {
    limiter.decide_joint(checks.to_vec(), None).await.unwrap().0
}

fn assert_equal(found: &JointDecision, expected: &[Told], passes: bool, place: &str) {
    let by_policy =
        |each: &Decision| !matches!(each.decided_by, DecidedBy::Store | DecidedBy::Plan);
    assert!(!found.decisions.iter().any(by_policy), "{place}: {found:?}");
    let each: Vec<Told> = found.decisions.iter().map(told).collect();
    assert_eq!(each, expected, "{place}");
    assert_eq!(found.allowed(), passes, "{place}");
    assert_eq!(
        found.binding,
        binding(expected, passes),
        "{place}: {expected:?}"
    );
    let limits = expected[found.binding].limits.iter();
    let wait_us = limits.filter_map(|limit| limit.retry_after_us).max();
    assert_eq!(found.retry_after_us, wait_us.filter(|_| !passes), "{place}");
}

/// Two limiters over stores of their own.
async fn replicas(url: &str, plans: &PlanSet, clock: &FakeClock) -> [Limiter<RedisStore>; 2] {
    let store = || RedisStore::with_injected_clock(url, Arc::new(clock.clone())).unwrap();
    let stores = [store(), store()];
    for store in &stores {
        assert!(store.connected(Duration::from_secs(60)).await);
    }
    stores.map(|store| limiter(plans, store, clock))
}

async fn check_history(url: &str, algorithms: &[Algorithm], seed: u64) {
    let mut random = Random(seed);
    let clock = FakeClock::new();
    let plans = plans(&mut random, algorithms);
    let embedded = limiter(
        &plans,
        MemoryStore::new(1 << 28, Arc::new(clock.clone())),
        &clock,
    );
    let replicas = replicas(url, &plans, &clock).await;
    let mut world = World::default();
    let mut times = Times::new(START_US, 2_000);
    let mut decided = 0;
    let mut joint = 0;
    let mut allowed = 0;
    let mut now_us = 0;
    let enough = std::env::var("TOLLGATE_JOINT_DECISIONS");
    let enough = enough.map_or(DECISIONS, |text| text.parse().unwrap());
    while decided < enough {
        // A clock that steps back would count again what one store has dropped and another has not.
        now_us = times.next(&mut random).max(now_us);
        clock.set(now_us);
        NOW.with(|now| now.set(now_us));
        let checks = random_checks(&mut random, &plans);
        let (expected, passes) = world.decide_one_or_joint(&plans, &checks);
        let replica = &replicas[random.below(2) as usize];
        let place = format!(
            "seed {seed:#x}, decision {decided} at {now_us}: {}",
            described(&checks)
        );
        assert_equal(
            &ask(&embedded, &checks).await,
            &expected,
            passes,
            &format!("embedded, {place}"),
        );
        assert_equal(
            &ask(replica, &checks).await,
            &expected,
            passes,
            &format!("redis, {place}"),
        );
        if passes {
            times.mark(now_us);
        }
        joint += u64::from(checks.len() > 1);
        allowed += u64::from(passes && checks.len() > 1);
        decided += checks.len() as u64;
    }
    println!(
        "{algorithms:?}: {decided} requests, {joint} joint decisions, {allowed} of them allowed"
    );
    assert!(
        allowed > joint / 20 && allowed < joint * 19 / 20,
        "the history is one-sided: {allowed} of {joint}"
    );
}

#[tokio::test]
async fn joint_decisions_of_one_algorithm_equal_brute_force_in_both_stores() {
    for (index, algorithm) in Algorithm::EVERY.into_iter().enumerate() {
        let redis = Redis::start();
        check_history(&redis.url(), &[algorithm], index as u64).await;
    }
}

#[tokio::test]
async fn joint_decisions_of_mixed_algorithms_equal_brute_force_in_both_stores() {
    let redis = Redis::start();
    check_history(&redis.url(), &Algorithm::EVERY, 7).await;
}

/// The names of most decisions lie in several slots, so their charges are undone where a later one denies. All happens at one instant,
/// so nothing shows of it. What is left out here shows: a charge may convert a bucket's debt to another rate, or merge runs.
#[tokio::test]
async fn joint_decisions_over_several_slots_of_a_cluster_equal_brute_force() {
    let cluster = Cluster::start_with(0, &["redis-server"], &[]);
    let each = every_but_the_bucket().filter(|it| *it != COARSE);
    for (algorithm, seed) in each.zip(20..) {
        cluster
            .nodes
            .iter()
            .for_each(|node| drop(node.cli(&["FLUSHALL"])));
        check_history(&cluster.url(), &[algorithm], seed).await;
    }
    cluster
        .nodes
        .iter()
        .for_each(|node| drop(node.cli(&["FLUSHALL"])));
    check_history(&cluster.url(), &[FIXED, COUNTER, LOG, WINDOW], 30).await;
}

#[tokio::test]
async fn joint_decisions_equal_brute_force_on_other_makes_of_redis() {
    for make in [("redis-6.2", "Redis server v=6.2"), ("valkey", "Valkey")] {
        let program = other_make(make.0, make.1);
        let redis = Redis::start_by("127.0.0.1", &[&program], &[]);
        check_history(&redis.url(), &Algorithm::EVERY, 8).await;
    }
}
