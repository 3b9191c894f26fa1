//! `tollgate simulate` against brute force: a model that remembers every charge decides the same requests, and every quota is
//! tried to find the smallest.

mod memory;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::plan::{Algorithm, Limit, Plan};
use tollgate::simulate::order::{Event, ReorderBuffer};
use tollgate::simulate::replay::{Replay, RequestSpacing, components};
use tollgate::simulate::report::{LogSummary, Report, VariantName};
use tollgate::store::MemoryStore;

use super::oracle::Model;
use crate::support::clock::{FakeClock, START_US};
use crate::support::history::Random;
use crate::support::plans::{COUNTER, FIXED, LOG, ask, plan, with_every_algorithm};

const WINDOW: Duration = Duration::from_secs(2);
const KEYS: u64 = 6;

/// One request: time, key and cost.
type Request = (u64, u64, u64);

/// Requests in order of time, with pauses, bursts and many at one instant.
fn requests(random: &mut Random) -> Vec<Request> {
    let mut at_us = START_US;
    let busy = 1 + random.below(4);
    let mut next = |_| {
        at_us += match random.below(12) {
            0 => random.below(5_000_000),
            1..=3 => 0,
            4..=6 => random.below(1_000),
            _ => random.below(400_000 / busy),
        };
        // The first keys make most of the requests.
        let key = random.below(KEYS).min(random.below(KEYS));
        (
            at_us,
            key,
            if random.below(6) == 0 {
                1 + random.below(4)
            } else {
                1
            },
        )
    };
    (0..160).map(&mut next).collect()
}

/// What each key is denied by these limits, of which every one is brute force.
fn denied_by_model(limits: &[Limit], requests: &[Request]) -> BTreeMap<u64, u64> {
    // With each model, when the block of its limit ends.
    let mut models: BTreeMap<u64, Vec<(Model, u64)>> = BTreeMap::new();
    let mut denied = BTreeMap::new();
    for (at_us, key, cost) in requests {
        let models = models
            .entry(*key)
            .or_insert_with(|| limits.iter().map(|_| (Model::new(), 0)).collect());
        let never_fits = limits.iter().any(|limit| *cost > limit.capacity());
        let free = |(limit, (model, _)): (&Limit, &(Model, u64))| model.fits(limit, *at_us, *cost);
        let free: Vec<bool> = limits.iter().zip(&*models).map(free).collect();
        let blocked = models.iter().any(|(_, ends_us)| ends_us > at_us);
        let fits = !never_fits && !blocked && free.iter().all(|free| *free);
        *denied.entry(*key).or_default() += u64::from(!fits);
        for ((limit, (model, ends_us)), free) in limits.iter().zip(models).zip(free) {
            model.clamp(limit, *at_us);
            if fits {
                model.charge(limit, *at_us, *cost);
            } else if !never_fits && !free && *ends_us <= *at_us && limit.block_us() > 0 {
                *ends_us = *at_us + limit.block_us();
            }
        }
    }
    denied
}

fn keys_denied(denied: &BTreeMap<u64, u64>) -> u64 {
    denied.values().filter(|denied| **denied > 0).count() as u64
}

fn replayed(limits: Vec<Limit>, requests: &[Request], spacing: RequestSpacing) -> Report {
    let variants = [vec![(plan(limits), spacing)]];
    // Two parts, as by two threads.
    let mut parts = [
        Replay::new(&variants, 100, usize::MAX),
        Replay::new(&variants, 100, usize::MAX),
    ];
    let mut order = ReorderBuffer::default();
    let mut record = |event: Event, key: &[u8]| {
        parts[usize::try_from(event.hash % 2).unwrap()]
            .record(&event, key)
            .unwrap()
    };
    for (at_us, key, cost) in requests {
        let event = Event {
            hash: *key,
            at_us: *at_us,
            even_us: 0,
            cost: *cost,
            plan: 0,
        };
        order.push(event, format!("k{key}").as_bytes());
        order.release(&mut record);
    }
    order.finish(&mut record);
    let variant = VariantName {
        config: "plans.yaml".to_owned(),
        spacing: None,
    };
    Report::new(
        LogSummary::default(),
        vec![variant],
        &["plan".to_owned()],
        &parts,
    )
}

/// The limit with this quota. The burst of a `token_bucket` follows it unless it was another.
fn with(limit: &Limit, quota: u64) -> Option<Limit> {
    let algorithm = match limit.algorithm() {
        Algorithm::TokenBucket { burst } if burst == limit.quota() => {
            Algorithm::TokenBucket { burst: quota }
        }
        other => other,
    };
    Limit::new(
        "limit",
        quota,
        Duration::from_micros(limit.window_us()),
        algorithm,
    )
    .ok()
}

/// The smallest quota from 1 on that denies no key anything, if one up to a million does. A larger quota denies no more, so halving
/// finds it; a quota that a limit cannot have does what the next one does that it can have.
fn smallest_by_model(limit: &Limit, requests: &[Request]) -> Option<u64> {
    let valid = |quota: u64| (quota..).find_map(|quota| with(limit, quota));
    let does = |quota: u64| keys_denied(&denied_by_model(&[valid(quota).unwrap()], requests)) == 0;
    let mut denying = 0;
    let mut doing = 1;
    while !does(doing) {
        if doing > 1_000_000 {
            return None;
        }
        (denying, doing) = (doing, 2 * doing);
    }
    while doing - denying > 1 {
        let middle = u64::midpoint(denying, doing);
        if does(middle) {
            doing = middle
        } else {
            denying = middle
        }
    }
    valid(doing).map(|limit| limit.quota())
}

fn check(algorithm: Algorithm, seed: u64) {
    let mut random = Random(seed);
    let requests = requests(&mut random);
    let mut limits = vec![Limit::new("limit", 1 + random.below(12), WINDOW, algorithm).unwrap()];
    if let Algorithm::TokenBucket { .. } = algorithm {
        // As often as not with a burst that is the quota.
        let burst = if random.below(2) == 0 {
            4
        } else {
            1 + random.below(19)
        };
        limits = vec![Limit::new("limit", 4, WINDOW, Algorithm::TokenBucket { burst }).unwrap()];
    }
    if random.below(3) == 0 {
        let block = Duration::from_millis(1_000 + random.below(9_000));
        let blocking = limits
            .into_iter()
            .map(|limit| limit.with_block(block).unwrap());
        limits = blocking.collect();
    }
    let denied = denied_by_model(&limits, &requests);
    let report = replayed(limits.clone(), &requests, RequestSpacing::AsStamped);
    assert_eq!(report.denied, [denied.values().sum::<u64>()]);
    assert_eq!(
        (report.keys, report.keys_denied.as_slice()),
        (denied.len() as u64, [keys_denied(&denied)].as_slice())
    );
    let mut worst: Vec<(u64, String)> = denied
        .iter()
        .filter(|key| *key.1 > 0)
        .map(|(key, n)| (u64::MAX - n, format!("k{key}")))
        .collect();
    worst.sort();
    let found: Vec<(u64, String)> = report
        .worst
        .iter()
        .map(|worst| (u64::MAX - worst.denied[0], worst.key.clone()))
        .collect();
    assert_eq!(found, worst);
    // Of so few keys none may be denied anything.
    let smallest = smallest_by_model(&limits[0], &requests);
    assert_eq!(
        report.plans[0].variants[0][0].smallest, smallest,
        "{:?}",
        limits[0]
    );
}

macro_rules! replays {
    ($($name:ident: $algorithm:expr,)*) => {$(
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(60))]
            #[test]
            fn $name(seed in any::<u64>()) {
                check($algorithm, seed);
            }
        }
    )*};
}

mod a_replay_equals_brute_force {
    use super::*;
    with_every_algorithm!(replays);
    replays! {
        sliding_window_of_precision_3: Algorithm::SlidingWindow { precision: 3 },
    }
}

/// A denial by one limit charges nothing to the others; each limit's smallest quota is found as if it were alone.
#[test]
fn a_plan_of_several_limits_equals_brute_force() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let requests = requests(&mut random);
        let limit = |random: &mut Random, seconds, algorithm| {
            Limit::new(
                format!("{seconds}"),
                2 + random.below(12),
                Duration::from_secs(seconds),
                algorithm,
            )
            .unwrap()
        };
        let limits = vec![
            limit(&mut random, 2, LOG),
            limit(&mut random, 7, FIXED),
            limit(&mut random, 3, COUNTER),
        ];
        let denied = denied_by_model(&limits, &requests);
        let report = replayed(limits.clone(), &requests, RequestSpacing::AsStamped);
        assert_eq!(report.denied, [denied.values().sum::<u64>()]);
        for (limit, found) in limits.iter().zip(&report.plans[0].variants[0]) {
            let window = Duration::from_micros(limit.window_us());
            let of = |quota| {
                denied_by_model(
                    &[Limit::new("limit", quota, window, limit.algorithm()).unwrap()],
                    &requests,
                )
            };
            assert_eq!(
                found.smallest,
                (1..).find(|quota| keys_denied(&of(*quota)) == 0),
                "{limit:?}"
            );
        }
    }
}

/// Plans of one `counts_as` are decided as a store decides them, where a limit of one finds what the other counted.
#[test]
#[expect(
    clippy::too_many_lines,
    reason = "one history, told from its beginning to its end"
)]
fn plans_that_share_one_count_are_decided_as_by_a_store() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let algorithm = *random.pick(&Algorithm::EVERY);
        let limit = |random: &mut Random, seconds, algorithm| {
            let quota = 2 + random.below(12);
            let window = Duration::from_secs(seconds);
            let algorithm = if let Algorithm::TokenBucket { .. } = algorithm {
                Algorithm::TokenBucket { burst: quota }
            } else {
                algorithm
            };
            let limit = Limit::new(format!("{seconds}"), quota, window, algorithm).unwrap();
            match random.below(3) {
                0 => limit
                    .with_block(Duration::from_secs(1 + random.below(9)))
                    .unwrap(),
                _ => limit,
            }
        };
        let first = vec![
            limit(&mut random, 2, algorithm),
            limit(&mut random, 7, FIXED),
        ];
        let second = vec![
            limit(&mut random, 3, COUNTER),
            limit(&mut random, 2, algorithm),
        ];
        let alone = Arc::new(Plan {
            counts_as: "alone".into(),
            ..(*plan(vec![limit(&mut random, 2, LOG)])).clone()
        });
        let plans = [plan(first), plan(second), alone];
        let clock = FakeClock::new();
        let store = MemoryStore::new(64 << 20, Arc::new(clock.clone()));
        let variants = plans
            .clone()
            .map(|plan| vec![(plan, RequestSpacing::AsStamped)]);
        assert_eq!(components(&variants, &[]), [0, 0, 2]);
        let mut replay = Replay::new(&variants, 100, usize::MAX);
        let mut expected = 0;
        for (at_us, key, cost) in requests(&mut random) {
            let plan = usize::try_from(random.below(3)).unwrap();
            clock.set(at_us);
            let check = ask(&plans[plan], &format!("k{key}"), cost);
            let denies =
                plans[plan].never_fits(check.cost).is_some() || !store.decide(&check).unwrap().fits;
            expected += u64::from(denies);
            replay
                .record(
                    &Event {
                        hash: key,
                        at_us,
                        even_us: 0,
                        cost,
                        plan,
                    },
                    b"key",
                )
                .unwrap();
        }
        let names = ["a", "b", "c"].map(str::to_owned);
        let variant = VariantName {
            config: "plans.yaml".to_owned(),
            spacing: None,
        };
        let report = Report::new(LogSummary::default(), vec![variant], &names, &[replay]);
        assert_eq!(report.denied, [expected], "seed {seed}");
    }
}

/// Counters that are fresh again are dropped, and must not be missed.
#[test]
fn a_sweep_changes_nothing() {
    let limit = Limit::new("limit", 3, Duration::from_secs(1), LOG).unwrap();
    let variants = [vec![(plan(vec![limit]), RequestSpacing::AsStamped)]];
    let mut replay = Replay::new(&variants, 1_000_000, usize::MAX);
    let mut denied = 0;
    // Two hundred thousand keys of four requests each, of which every fourth is one too many.
    for round in 0..200_u64 {
        for request in 0..4_000 {
            let event = Event {
                hash: round * 1_000 + request % 1_000,
                at_us: START_US + round * 500_000 + request,
                even_us: 0,
                cost: 1,
                plan: 0,
            };
            replay.record(&event, b"key").unwrap();
            denied += u64::from(request >= 3_000);
        }
    }
    let variant = VariantName {
        config: "plans.yaml".to_owned(),
        spacing: None,
    };
    let report = Report::new(
        LogSummary::default(),
        vec![variant],
        &["plan".to_owned()],
        &[replay],
    );
    assert_eq!(
        (report.denied[0], report.keys, report.keys_denied[0]),
        (denied, 200_000, 200_000)
    );
    assert_eq!(report.plans[0].variants[0][0].smallest, Some(4));
}
