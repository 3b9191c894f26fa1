//! A reload, without a network: whom it reaches, and what it leaves alone.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;

use super::super::tests::{Clock0, ask, broken, counted_for, healthy, limiter, plan, plans, question};
use super::*;
use crate::decision::{DecidedBy, Decision, Outcome};
use crate::key::Cost;
use crate::limiter::{Limiter, Question, Refusal};
use crate::plan::Plan;
use crate::store::{Ask, CAPACITY_DEFAULT, MemoryStore, Store, StoreDeadline, StoreError, Verdict};

fn other_plans(edits: &[Plan]) -> PlanSet {
    let kept = plans().iter().filter(|plan| edits.iter().all(|edit| edit.name != plan.name)).cloned().collect::<Vec<_>>();
    kept.into_iter().chain(edits.iter().cloned().map(Arc::new)).collect()
}

#[tokio::test]
async fn a_reload_is_for_every_limiter_and_usage_stays() {
    let store = Arc::new(MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)));
    let one = limiter(store.clone());
    let other = one.beside(store);
    assert_eq!(ask(&one, "ten", 10).await.0, Outcome::Allowed);
    let changes = one.reload(other_plans(&[plan("ten", 12), plan("new", 1)]));
    assert_eq!(changes, Changes { added: 1, removed: 0, edited: 1 });
    assert_eq!(ask(&other, "ten", 2).await.0, Outcome::Allowed);
    assert_eq!(ask(&one, "ten", 1).await.0, Outcome::Denied);
    assert_eq!(ask(&other, "new", 1).await.0, Outcome::Allowed);
    assert_eq!(counted_for(&one, "ten", Outcome::Allowed, DecidedBy::Store), 2);
    assert_eq!(one.edition().config_hash(), other.edition().config_hash());
    assert_eq!(one.reload(plans()), Changes { added: 0, removed: 1, edited: 1 });
    assert!(matches!(other.decide(question("new", 1), None).await, Err(Refusal::UnknownPlan(_))));
    // What was counted for a plan that is gone is still told among all.
    assert_eq!(one.totals().decided_by(DecidedBy::Store), 4);
    assert_eq!(one.reload(plans()), Changes::default());
}

#[tokio::test]
async fn the_local_share_is_that_of_the_plans_in_force_and_keeps_its_usage() {
    let limiter = broken();
    // A third of ten, rounded up.
    assert_eq!(ask(&limiter, "ten", 4).await, (Outcome::Allowed, DecidedBy::LocalFallback));
    assert_eq!(ask(&limiter, "ten", 1).await, (Outcome::Denied, DecidedBy::LocalFallback));
    limiter.reload(other_plans(&[plan("ten", 15)]));
    assert_eq!(ask(&limiter, "ten", 1).await, (Outcome::Allowed, DecidedBy::LocalFallback));
    assert_eq!(ask(&limiter, "ten", 1).await, (Outcome::Denied, DecidedBy::LocalFallback));
}

/// Denies everything for an hour.
struct Denies;

impl Store for Denies {
    async fn decide_batch(&self, asks: &[Ask], _deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        let counters = MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0));
        let denied = |ask: &Ask| {
            let all = Ask { cost: Cost::new(ask.plan.limits()[0].quota()).unwrap(), ..ask.clone() };
            counters.decide(&all).and_then(|_| counters.decide(ask))
        };
        asks.iter().map(denied).collect()
    }
}

#[tokio::test]
async fn an_edited_plan_has_no_denials_and_one_that_stays_keeps_its_own() {
    let limiter = limiter(Denies);
    for plan in ["ten", "allow"] {
        assert_eq!(ask(&limiter, plan, 1).await, (Outcome::Denied, DecidedBy::Store));
        assert_eq!(ask(&limiter, plan, 1).await, (Outcome::Denied, DecidedBy::DenyCache));
    }
    limiter.reload(other_plans(&[plan("ten", 11)]));
    assert_eq!(ask(&limiter, "ten", 1).await, (Outcome::Denied, DecidedBy::Store));
    assert_eq!(ask(&limiter, "allow", 1).await, (Outcome::Denied, DecidedBy::DenyCache));
    // The first edition again, as far as it says; what was remembered then was by another plan of that name.
    limiter.reload(plans());
    assert_eq!(ask(&limiter, "ten", 1).await, (Outcome::Denied, DecidedBy::Store));
}

/// Answers once it is let to.
struct Waits {
    counters: MemoryStore,
    go: tokio::sync::Semaphore,
}

impl Store for Waits {
    async fn decide_batch(&self, asks: &[Ask], _deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        self.go.acquire().await.unwrap().forget();
        asks.iter().map(|ask| self.counters.decide(ask)).collect()
    }
}

#[tokio::test]
async fn what_is_under_way_is_decided_and_counted_by_the_plans_that_it_began_with() {
    let store = Waits { counters: MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)), go: tokio::sync::Semaphore::new(0) };
    let limiter = limiter(store);
    let mut waiting = std::pin::pin!(limiter.decide_and_tell(question("ten", 1), None));
    assert!(futures_util::poll!(&mut waiting).is_pending());
    // The place of "ten" in the order of the names is another one now, and later there is none.
    limiter.reload(other_plans(&[plan("ten", 1), plan("before all others", 1)]));
    limiter.reload([plan("ten", 1)].into_iter().collect());
    limiter.store.go.add_permits(1);
    let (decision, plan) = waiting.await.unwrap();
    assert_eq!((decision.binding().unwrap().remaining, plan.limits()[0].quota()), (9, 10));
    assert_eq!(counted_for(&limiter, "ten", Outcome::Allowed, DecidedBy::Store), 1);
}

#[test]
fn a_batch_is_decided_by_one_edition_however_fast_they_change() {
    let limiter = healthy();
    let (handle, done) = (limiter.beside(Denies), AtomicBool::new(false));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for quota in (11..).take_while(|_| !done.load(Ordering::Relaxed)) {
                handle.reload(other_plans(&[plan("ten", quota)]));
            }
        });
        let _done = Done(&done);
        let mut editions = HashSet::new();
        while editions.len() < 50 {
            let answers = decide_now(&limiter, vec![question("ten", 1); 1_000]);
            let quotas: HashSet<u64> = answers.into_iter().map(|answer| answer.unwrap().binding().unwrap().limit).collect();
            assert_eq!(quotas.len(), 1, "{quotas:?}");
            editions.extend(quotas);
        }
    });
}

/// A store in memory keeps nobody waiting.
fn decide_now(limiter: &Limiter<MemoryStore>, questions: Vec<Question>) -> Vec<Result<Decision, Refusal>> {
    limiter.decide_batch(questions, None).now_or_never().expect("it does not wait").unwrap()
}

/// Ends the other thread, also when this one panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn an_unknown_plan_is_decided_by_the_default_plan_where_there_is_one() {
    let limiter = healthy();
    let plans = limiter.edition().plans().clone();
    limiter.reload(plans.clone().with_default(Some("ten")).unwrap());
    let unknown = || question("no such plan", 4);
    assert_eq!(limiter.decide(unknown(), None).await.unwrap().remaining(), Some(6));
    // It counts as the default plan does, in a batch too.
    let batch = limiter.decide_batch(vec![unknown(), question("ten", 1)], None).await.unwrap();
    assert_eq!(batch.into_iter().map(|answer| answer.unwrap().remaining().unwrap()).collect::<Vec<_>>(), [2, 1]);
    let (_, plan) = limiter.decide_and_tell(unknown(), None).await.unwrap();
    assert_eq!(&*plan.name, "ten");
    let totals = limiter.totals();
    assert_eq!((totals.unknown_plans, totals.by_default_plan), (3, 3));
    // A reload that changes nothing else takes it away again.
    let hash = limiter.edition().config_hash().to_owned();
    limiter.reload(plans);
    assert!(matches!(limiter.decide(unknown(), None).await, Err(Refusal::UnknownPlan(_))));
    assert_ne!(limiter.edition().config_hash(), hash);
    assert_eq!((limiter.totals().unknown_plans, limiter.totals().by_default_plan), (4, 3));
}
