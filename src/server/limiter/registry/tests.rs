//! Reloads without a network: which limiters they reach, and what they leave alone.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;

use super::super::tests::{
    Clock0, broken, check, counted_for, healthy, limiter, plan, plans, request,
};
use super::*;
use crate::limiter::{Limiter, LimiterCounter, Refusal};
use tollgate_core::decision::{DecidedBy, Decision, Outcome};
use tollgate_core::key::Cost;
use tollgate_core::plan::Plan;
use tollgate_store::{
    CAPACITY_DEFAULT, Check, ConfiguredStore, MemoryStore, Store, StoreDeadline, StoreError,
    Verdict,
};

fn other_plans(edits: &[Plan]) -> PlanSet {
    let kept = plans()
        .iter()
        .filter(|plan| edits.iter().all(|edit| edit.name != plan.name))
        .cloned()
        .collect::<Vec<_>>();
    kept.into_iter()
        .chain(edits.iter().cloned().map(Arc::new))
        .collect()
}

/// To make a table of thousands of overrides takes milliseconds. A worker that answers for the metrics meanwhile has decisions to make.
#[test]
fn the_registry_is_free_while_what_is_in_force_is_made_anew() {
    let store = MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0));
    let limiter = limiter(ConfiguredStore::Memory(Arc::new(store)));
    let mut was_free = false;
    limiter.common.replace(|in_force| {
        was_free = limiter.common.registry.try_lock().is_ok();
        Some(in_force.clone())
    });
    assert!(was_free);
}

#[tokio::test]
async fn a_reload_reaches_every_limiter_and_usage_stays() {
    let store = ConfiguredStore::Memory(Arc::new(MemoryStore::new(
        CAPACITY_DEFAULT,
        Arc::new(Clock0),
    )));
    let one = limiter(store.clone());
    let other = one.with_store(store);
    assert_eq!(check(&one, "ten", 10).await.0, Outcome::Allowed);
    let changes = one.reload(other_plans(&[plan("ten", 12), plan("new", 1)]));
    assert_eq!(
        changes,
        Changes {
            added: 1,
            removed: 0,
            edited: 1
        }
    );
    assert_eq!(check(&other, "ten", 2).await.0, Outcome::Allowed);
    assert_eq!(check(&one, "ten", 1).await.0, Outcome::Denied);
    assert_eq!(check(&other, "new", 1).await.0, Outcome::Allowed);
    assert_eq!(
        counted_for(&one, "ten", Outcome::Allowed, DecidedBy::Store),
        2
    );
    assert_eq!(one.snapshot().config_hash(), other.snapshot().config_hash());
    assert_eq!(
        one.reload(plans()),
        Changes {
            added: 0,
            removed: 1,
            edited: 1
        }
    );
    assert!(matches!(
        other.decide(request("new", 1), None).await,
        Err(Refusal::UnknownPlan(_))
    ));
    // Decisions of a removed plan still count in the total over all plans.
    assert_eq!(one.totals().decided_by(DecidedBy::Store), 4);
    assert_eq!(one.reload(plans()), Changes::default());
}

#[tokio::test]
async fn the_local_share_is_that_of_the_plans_in_force_and_keeps_its_usage() {
    let limiter = broken();
    // A third of ten, rounded up.
    assert_eq!(
        check(&limiter, "ten", 4).await,
        (Outcome::Allowed, DecidedBy::LocalFallback)
    );
    assert_eq!(
        check(&limiter, "ten", 1).await,
        (Outcome::Denied, DecidedBy::LocalFallback)
    );
    limiter.reload(other_plans(&[plan("ten", 15)]));
    assert_eq!(
        check(&limiter, "ten", 1).await,
        (Outcome::Allowed, DecidedBy::LocalFallback)
    );
    assert_eq!(
        check(&limiter, "ten", 1).await,
        (Outcome::Denied, DecidedBy::LocalFallback)
    );
}

/// Denies everything for an hour.
struct Denies;

impl Store for Denies {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        let counters = MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0));
        let denied = |check: &Check| {
            let all = Check {
                cost: Cost::new(check.plan.limits()[0].quota()).unwrap(),
                ..check.clone()
            };
            counters.decide(&all).and_then(|_| counters.decide(check))
        };
        checks.iter().map(denied).collect()
    }
}

#[tokio::test]
async fn an_edited_plan_has_no_denials_and_one_that_stays_keeps_its_own() {
    let limiter = limiter(Denies);
    for plan in ["ten", "allow"] {
        assert_eq!(
            check(&limiter, plan, 1).await,
            (Outcome::Denied, DecidedBy::Store)
        );
        assert_eq!(
            check(&limiter, plan, 1).await,
            (Outcome::Denied, DecidedBy::DenyCache)
        );
    }
    limiter.reload(other_plans(&[plan("ten", 11)]));
    assert_eq!(
        check(&limiter, "ten", 1).await,
        (Outcome::Denied, DecidedBy::Store)
    );
    assert_eq!(
        check(&limiter, "allow", 1).await,
        (Outcome::Denied, DecidedBy::DenyCache)
    );
    // These plans equal the first ones, but earlier denials belong to another `Arc` of the plan.
    limiter.reload(plans());
    assert_eq!(
        check(&limiter, "ten", 1).await,
        (Outcome::Denied, DecidedBy::Store)
    );
}

/// A store that answers once the test lets it.
struct Waits {
    counters: MemoryStore,
    go: tokio::sync::Semaphore,
}

impl Store for Waits {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        self.go.acquire().await.unwrap().forget();
        checks
            .iter()
            .map(|check| self.counters.decide(check))
            .collect()
    }
}

#[tokio::test]
async fn a_decision_under_way_is_made_and_counted_by_the_plans_that_it_began_with() {
    let store = Waits {
        counters: MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)),
        go: tokio::sync::Semaphore::new(0),
    };
    let limiter = limiter(store);
    let mut waiting = std::pin::pin!(limiter.decide_with_plan(request("ten", 1), None));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    // "ten" now has another index, and after the next reload the index does not exist.
    limiter.reload(other_plans(&[plan("ten", 1), plan("before all others", 1)]));
    limiter.reload([plan("ten", 1)].into_iter().collect());
    limiter.store.go.add_permits(1);
    let (decision, plan) = waiting.await.unwrap();
    assert_eq!(
        (
            decision.binding().unwrap().remaining,
            plan.limits()[0].quota()
        ),
        (9, 10)
    );
    assert_eq!(
        counted_for(&limiter, "ten", Outcome::Allowed, DecidedBy::Store),
        1
    );
}

#[test]
fn a_batch_is_decided_by_one_snapshot_however_fast_they_change() {
    let limiter = healthy();
    let handle = limiter.with_store(Denies);
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for quota in (11..).take_while(|_| !done.load(Ordering::Relaxed)) {
                handle.reload(other_plans(&[plan("ten", quota)]));
            }
        });
        let _done = StopOnDrop(&done);
        let mut seen = HashSet::new();
        while seen.len() < 50 {
            let answers = decide_now(&limiter, vec![request("ten", 1); 1_000]);
            let quotas: HashSet<u64> = answers
                .into_iter()
                .map(|answer| answer.unwrap().binding().unwrap().limit)
                .collect();
            assert_eq!(quotas.len(), 1, "{quotas:?}");
            seen.extend(quotas);
        }
    });
}

/// Decides with a store in memory, which never waits.
fn decide_now(
    limiter: &Limiter<MemoryStore>,
    requests: Vec<Check<String>>,
) -> Vec<Result<Decision, Refusal>> {
    limiter
        .decide_batch(requests, None)
        .now_or_never()
        .expect("it does not wait")
        .unwrap()
}

/// Stops the thread that reloads when dropped, also by a panic.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn an_unknown_plan_is_decided_by_the_default_plan_where_there_is_one() {
    let limiter = healthy();
    let plans = limiter.snapshot().plans().clone();
    limiter.reload(plans.clone().with_default(Some("ten")).unwrap());
    let unknown = || request("no such plan", 4);
    assert_eq!(
        limiter
            .decide(unknown(), None)
            .await
            .unwrap()
            .key_status()
            .remaining,
        Some(6)
    );
    // An unknown plan counts as the default plan, in a batch too.
    let batch = limiter
        .decide_batch(vec![unknown(), request("ten", 1)], None)
        .await
        .unwrap();
    assert_eq!(
        batch
            .into_iter()
            .map(|answer| answer.unwrap().key_status().remaining.unwrap())
            .collect::<Vec<_>>(),
        [2, 1]
    );
    let (_, plan) = limiter.decide_with_plan(unknown(), None).await.unwrap();
    assert_eq!(&*plan.name, "ten");
    let totals = limiter.totals();
    assert_eq!(
        (
            totals.count(LimiterCounter::UnknownPlans),
            totals.count(LimiterCounter::ByDefaultPlan)
        ),
        (3, 3)
    );
    // A reload that only removes the default plan takes effect.
    let hash = limiter.snapshot().config_hash().to_owned();
    limiter.reload(plans);
    assert!(matches!(
        limiter.decide(unknown(), None).await,
        Err(Refusal::UnknownPlan(_))
    ));
    assert_ne!(limiter.snapshot().config_hash(), hash);
    assert_eq!(
        (
            limiter.totals().count(LimiterCounter::UnknownPlans),
            limiter.totals().count(LimiterCounter::ByDefaultPlan)
        ),
        (4, 3)
    );
}
