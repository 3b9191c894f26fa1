//! The heaviest keys of a limiter's decisions, and the bound on their memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::worker::SLOTS;
use super::*;
use crate::limiter::Limiter;
use crate::limiter::tests::{SETTINGS, plans};
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::{DecidedBy, Decision, Outcome};
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::{Plan, PlanSet, Rule};
use tollgate_store::clock::{Clock, monotonic};
use tollgate_store::{
    CAPACITY_DEFAULT, Check, GivenBack, MemoryStore, Refund, Store, StoreDeadline, StoreError,
    Verdict,
};

/// Time stands still until it is moved.
struct StillClock(AtomicU64, Instant);

impl Clock for StillClock {
    fn now_us(&self) -> u64 {
        1_000_000_000_000_000
    }

    fn monotonic(&self) -> Instant {
        self.1 + Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

/// A store that is not embedded, so that its denials are remembered.
struct Remote(MemoryStore);

impl Store for Remote {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        checks.iter().map(|check| self.0.decide(check)).collect()
    }

    async fn refund_batch(
        &self,
        refunds: &[Refund],
        _: StoreDeadline,
    ) -> Vec<Result<GivenBack, StoreError>> {
        refunds
            .iter()
            .map(|refund| self.0.give_back(refund))
            .collect()
    }
}

const SMALL: TopSettings = TopSettings {
    keys_max: 100,
    in_clear: false,
};

/// Two workers, their keys, and the clock.
fn workers(plans: PlanSet) -> ([Limiter<Remote>; 2], TopKeys, Arc<StillClock>) {
    workers_of(plans, SMALL)
}

fn workers_of(
    plans: PlanSet,
    settings: TopSettings,
) -> ([Limiter<Remote>; 2], TopKeys, Arc<StillClock>) {
    let clock = Arc::new(StillClock(AtomicU64::new(0), monotonic()));
    let limiter = Arc::new(Limiter::without_store(plans, SETTINGS, clock.clone()));
    limiter.count_keys(settings);
    let worker = || limiter.with_store(Remote(MemoryStore::new(CAPACITY_DEFAULT, clock.clone())));
    let workers = [worker(), worker()];
    (workers, TopKeys::new(limiter, TopStores::default()), clock)
}

fn check(key: &str, plan: &str, cost: u64) -> Check<String> {
    let key = Key::new(key).unwrap();
    let cost = Cost::new(cost).unwrap();
    Check {
        key,
        plan: plan.to_owned(),
        cost,
        mode: Mode::Charge,
    }
}

/// The counts of the heaviest keys, with the plan of each.
async fn counts(top: &TopKeys, plan: Option<&str>, by: TopBy) -> Vec<(String, u64)> {
    let answer = top
        .top(&TopQuery {
            plan: plan.map(str::to_owned),
            by,
            limit: 100,
        })
        .await
        .unwrap();
    assert!(answer.keys.iter().all(|key| key.error == 0) && answer.unlisted_max == 0);
    answer
        .keys
        .iter()
        .map(|key| (key.plan.to_string(), key.count))
        .collect()
}

#[tokio::test]
async fn denials_and_cost_of_all_workers_are_counted_for_a_minute() {
    let ([one, two], top, clock) = workers(plans());
    for worker in [&one, &two] {
        // Seven of ten are taken, so the next four are denied: by the store, and then from memory.
        for cost in [7, 4, 4, 4, 4] {
            worker
                .decide(check("alice", "ten", cost), None)
                .await
                .unwrap();
        }
        worker
            .decide_batch(
                vec![
                    check("bob", "ten", 2),
                    check("bob", "ten", 99),
                    check("al", "blocked", 1),
                ],
                None,
            )
            .await
            .unwrap();
    }
    assert!(one.totals().decided_by(DecidedBy::DenyCache) >= 4);
    let owned = |counts: &[(&str, u64)]| {
        counts
            .iter()
            .map(|(plan, count)| ((*plan).to_owned(), *count))
            .collect::<Vec<_>>()
    };
    let mut denials = counts(&top, None, TopBy::Denials).await;
    denials[1..].sort();
    assert_eq!(denials, owned(&[("ten", 8), ("blocked", 2), ("ten", 2)]));
    assert_eq!(
        counts(&top, Some("ten"), TopBy::Cost).await,
        owned(&[("ten", 14), ("ten", 4)])
    );
    for _ in 0..6 {
        clock.0.fetch_add(10, Ordering::SeqCst);
        assert!(!counts(&top, None, TopBy::Cost).await.is_empty());
        top.advance().await.unwrap();
    }
    assert_eq!(counts(&top, None, TopBy::Cost).await, []);
}

/// At the start, and after Redis lost its data, a replica takes the secret of the others, and counts anew.
#[tokio::test]
async fn the_window_begins_when_counts_are_lost_with_their_secret() {
    let ([worker, _], top, clock) = workers(plans());
    let seen = async || {
        let answer = top
            .top(&TopQuery {
                by: TopBy::Cost,
                limit: 9,
                ..TopQuery::default()
            })
            .await
            .unwrap();
        (answer.total, answer.window.as_secs())
    };
    worker.decide(check("alice", "ten", 3), None).await.unwrap();
    clock.0.fetch_add(5, Ordering::SeqCst);
    assert_eq!(seen().await, (3, 5));
    top.adopt(SMALL, Secret::random());
    assert_eq!(seen().await, (0, 0));
    worker.decide(check("alice", "ten", 2), None).await.unwrap();
    clock.0.fetch_add(4, Ordering::SeqCst);
    assert_eq!(seen().await, (2, 4));
}

#[tokio::test]
async fn peeks_and_refunds_do_not_count() {
    let ([worker, _], top, _) = workers(plans());
    worker
        .decide(check("alice", "ten", 10), None)
        .await
        .unwrap();
    worker
        .decide(
            Check {
                mode: Mode::Peek,
                ..check("alice", "ten", 1)
            },
            None,
        )
        .await
        .unwrap();
    worker
        .refund(Key::new("alice").unwrap(), "ten", Cost::ONE, None)
        .await
        .unwrap();
    assert_eq!(counts(&top, None, TopBy::Denials).await, []);
    assert_eq!(
        counts(&top, None, TopBy::Cost).await,
        [("ten".to_owned(), 10)]
    );
}

#[tokio::test]
async fn a_reload_that_moves_plans_keeps_their_keys() {
    let ([worker, _], top, _) = workers(plans());
    worker.decide(check("alice", "ten", 3), None).await.unwrap();
    let first = Plan::new("a", Rule::Unlimited);
    worker.reload(
        plans()
            .iter()
            .map(|plan| Plan::clone(plan))
            .chain([first])
            .collect(),
    );
    worker.decide(check("alice", "ten", 4), None).await.unwrap();
    assert_eq!(
        counts(&top, Some("ten"), TopBy::Cost).await,
        [("ten".to_owned(), 7)]
    );
    worker.reload([Plan::new("a", Rule::Unlimited)].into_iter().collect());
    assert_eq!(counts(&top, None, TopBy::Cost).await, []);
}

#[tokio::test]
async fn nothing_is_counted_unless_it_is_asked_for_and_an_unknown_plan_is_an_error() {
    let limiter = Arc::new(Limiter::without_store(
        plans(),
        SETTINGS,
        Arc::new(StillClock(AtomicU64::new(0), monotonic())),
    ));
    let off = TopKeys::new(limiter.clone(), TopStores::default());
    assert_eq!(off.top(&TopQuery::default()).await, Err(TopError::Off));
    limiter.count_keys(SMALL);
    let unknown = TopKeys::new(limiter, TopStores::default())
        .top(&TopQuery {
            plan: Some("tenn".to_owned()),
            ..TopQuery::default()
        })
        .await
        .unwrap_err();
    assert!(unknown.to_string().contains("ten"), "{unknown}");
}

/// Each key of the attack comes twice, so that it is known to come again, and many of them before the ones that matter.
#[tokio::test]
async fn the_heaviest_of_a_hundred_thousand_keys_are_shown_in_clear() {
    let ([worker, _], top, clock) = workers_of(
        plans(),
        TopSettings {
            keys_max: TOP_DEFAULT,
            in_clear: true,
        },
    );
    let ask = async |key: &str, plan: &str, cost: u64| {
        worker
            .decide(check(key, plan, cost), None)
            .await
            .map(|_| ())
    };
    for number in 0..100_000 {
        for _ in 0..2 {
            ask(&format!("2001:db8::{number}"), "blocked", 1)
                .await
                .unwrap();
            ask(&format!("2001:db8::{number}"), "unlimited", 1)
                .await
                .unwrap();
        }
        if number > 20_000 && number % 100 == 0 {
            ask("attacker", "blocked", 1).await.unwrap();
            ask("spender", "unlimited", 7).await.unwrap();
        }
        if number % 20_000 == 0 {
            clock.0.fetch_add(10, Ordering::SeqCst);
            top.advance().await.unwrap();
        }
    }
    for (by, name) in [(TopBy::Denials, "attacker"), (TopBy::Cost, "spender")] {
        let answer = top
            .top(&TopQuery {
                plan: None,
                by,
                limit: 1,
            })
            .await
            .unwrap();
        assert_eq!(
            answer.keys[0].key.as_deref(),
            Some(name),
            "{by:?}: {:?}",
            answer.keys
        );
    }
}

/// Six slots of denials and of cost, with as many plans, and keys as long, as there may be; of many keys that push each other out,
/// and of as many as there is room for, which all stay. Copies for an answer are apart.
#[test]
fn a_worker_takes_less_than_a_mebibyte() {
    let (allowed, denied) = [Outcome::Allowed, Outcome::Denied]
        .map(|it| Decision::uncounted(it, DecidedBy::Store, None))
        .into();
    let keys: Vec<Key> = (0..9_000u32)
        .map(|number| Key::new(format!("{number:0512}")).unwrap())
        .collect();
    // Short keys need more room for the map of names.
    let short: Vec<Key> = (0..2_190u32)
        .map(|number| Key::new(number.to_string()).unwrap())
        .collect();
    for (keys, plans) in [(&keys, 10_000), (&keys, 1), (&short, 30), (&short, 10_000)] {
        let numbered = || (0..keys.len() as u64).zip(keys).cycle().take(20_000);
        let measured = allocation_counter::measure(|| {
            let top = WorkerTop::new(
                TopSettings {
                    keys_max: TOP_MAX,
                    in_clear: true,
                },
                Secret::random(),
            );
            for _ in 0..2 * SLOTS {
                numbered().for_each(|(number, key)| {
                    top.record(number % plans, key, Cost::ONE, &allowed);
                    top.record(number % plans, key, Cost::ONE, &denied);
                });
                top.begin_slot();
            }
        });
        println!(
            "with {} keys of {plans} plans a worker takes {} bytes at most",
            keys.len(),
            measured.bytes_max
        );
        assert!(measured.bytes_max < 1 << 20, "{} bytes", measured.bytes_max);
    }
}
