//! Resets and refunds beside the policies: errors stay errors, and what this process remembers is dropped in time.

use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::Semaphore;

use super::*;
use crate::clock::{Clock, monotonic};
use crate::decision::{DecidedBy, Outcome};
use crate::limiter::Question;
use crate::limiter::tests::{Clock0, SETTINGS, broken, healthy, plan, plans, question};
use crate::store::{CAPACITY_DEFAULT, MemoryStore, Verdict};

fn key() -> Key {
    question("ten", 1).key
}

async fn decide(limiter: &Limiter<impl Store>, question: Question) -> (Outcome, DecidedBy) {
    let decision = limiter.decide(question, None).await.unwrap();
    (decision.outcome, decision.decided_by)
}

#[tokio::test]
async fn a_reset_and_a_refund_do_what_they_say() {
    let limiter = healthy();
    assert_eq!(limiter.reset(key(), "ten", None).await, Ok(false));
    decide(&limiter, question("ten", 7)).await;
    let refunded = limiter.refund(key(), "ten", Cost::new(4).unwrap(), None).await.unwrap();
    assert_eq!((refunded.units(), refunded.limits[0].0.remaining, refunded.limits[0].1), (4, 7, 4));
    let refunded = limiter.refund(key(), "ten", Cost::new(u64::MAX).unwrap(), None).await.unwrap();
    assert_eq!((refunded.units(), refunded.limits[0].0.remaining), (3, 10));
    decide(&limiter, question("ten", 10)).await;
    assert_eq!(limiter.reset(key(), "ten", None).await, Ok(true));
    assert_eq!(decide(&limiter, question("ten", 10)).await.0, Outcome::Allowed);
}

#[tokio::test]
async fn a_plan_that_counts_nothing_or_is_none_is_an_error() {
    let limiter = healthy();
    for plan in ["unlimited", "blocked"] {
        let refused = AdminError::NothingCounted(plan.into());
        assert_eq!(limiter.reset(key(), plan, None).await, Err(refused.clone()));
        assert_eq!(limiter.refund(key(), plan, Cost::ONE, None).await, Err(refused));
    }
    assert!(matches!(limiter.reset(key(), "tem", None).await, Err(AdminError::UnknownPlan(_))));
    assert!(matches!(limiter.refund(key(), "tem", Cost::ONE, None).await, Err(AdminError::UnknownPlan(_))));
}

/// Whatever the plan's policy is. And what was counted meanwhile stays, as nothing was done.
#[tokio::test]
async fn a_store_that_fails_is_an_error() {
    let limiter = broken();
    assert_eq!(decide(&limiter, question("ten", 4)).await, (Outcome::Allowed, DecidedBy::LocalFallback));
    for plan in ["ten", "allow", "deny"] {
        let refunded = limiter.refund(key(), plan, Cost::ONE, None).await;
        assert_eq!(refunded, Err(AdminError::Store(StoreError::Unreachable("gone".to_owned()))));
        assert!(matches!(limiter.reset(key(), plan, None).await, Err(AdminError::Store(StoreError::Refused(_)))));
    }
    assert_eq!(decide(&limiter, question("ten", 1)).await, (Outcome::Denied, DecidedBy::LocalFallback));
}

/// Decides and forgets as told, and can be out of reach.
struct Shaky {
    counters: MemoryStore,
    down: std::sync::atomic::AtomicBool,
}

impl Store for Shaky {
    async fn decide_batch(&self, asks: &[Ask], _deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        let lost = || Err(StoreError::Unreachable("gone".to_owned()));
        let down = self.down.load(Ordering::SeqCst);
        asks.iter().map(|ask| if down { lost() } else { self.counters.decide(ask) }).collect()
    }

    async fn reset(&self, subject: &Subject, deadline: StoreDeadline) -> Result<bool, StoreError> {
        self.counters.reset(subject, deadline).await
    }
}

#[tokio::test]
async fn a_reset_forgets_what_was_counted_here_and_a_refund_does_not() {
    let counters = MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0));
    let limiter = Limiter::new(plans(), Shaky { counters, down: true.into() }, SETTINGS, Arc::new(Clock0));
    let down = |down| limiter.store.down.store(down, Ordering::SeqCst);
    // A third of ten, rounded up.
    assert_eq!(decide(&limiter, question("ten", 4)).await, (Outcome::Allowed, DecidedBy::LocalFallback));
    down(false);
    assert_eq!(limiter.refund(key(), "ten", Cost::ONE, None).await.unwrap().units(), 0);
    down(true);
    assert_eq!(decide(&limiter, question("ten", 1)).await, (Outcome::Denied, DecidedBy::LocalFallback));
    assert_eq!(limiter.reset(key(), "ten", None).await, Ok(false));
    assert_eq!(decide(&limiter, question("ten", 4)).await, (Outcome::Allowed, DecidedBy::LocalFallback));
}

/// A clock of which each look is a microsecond later than the one before.
struct Ticking {
    looks: AtomicU64,
    began: Instant,
}

impl Clock for Ticking {
    fn now_us(&self) -> u64 {
        Clock0.now_us()
    }

    fn monotonic(&self) -> Instant {
        self.began + Duration::from_micros(self.looks.fetch_add(1, Ordering::SeqCst))
    }
}

/// Counts in one place, as Redis does, and lets nobody have an answer until it is let to; a reset is not even done before.
struct Slow {
    counters: Arc<MemoryStore>,
    go: Arc<Semaphore>,
}

impl Store for Slow {
    async fn decide_batch(&self, asks: &[Ask], _deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        let answers = asks.iter().map(|ask| self.counters.decide(ask)).collect();
        self.go.acquire().await.unwrap().forget();
        answers
    }

    async fn reset(&self, subject: &Subject, deadline: StoreDeadline) -> Result<bool, StoreError> {
        self.go.acquire().await.unwrap().forget();
        self.counters.reset(subject, deadline).await
    }
}

/// An operator and a worker, each with a store of its own to the same counters.
struct Lab {
    operator: Limiter<Slow>,
    worker: Limiter<Slow>,
    /// What the worker's answers wait for.
    go: Arc<Semaphore>,
}

impl Lab {
    fn new() -> Self {
        let clock = Arc::new(Ticking { looks: AtomicU64::new(0), began: monotonic() });
        let counters = Arc::new(MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)));
        let store = |permits| Slow { counters: counters.clone(), go: Arc::new(Semaphore::new(permits)) };
        let operator = Limiter::new(plans(), store(1_000), SETTINGS, clock);
        let worker = operator.beside(store(0));
        let go = worker.store.go.clone();
        Self { operator, worker, go }
    }

    async fn ask(&self, cost: u64) -> (Outcome, DecidedBy) {
        self.go.add_permits(1);
        let answer = decide(&self.worker, question("ten", cost)).await;
        // An answer that was remembered took none.
        let _ = self.go.try_acquire().map(tokio::sync::SemaphorePermit::forget);
        answer
    }

    async fn undo(&self, refund: bool) {
        if refund {
            self.operator.refund(key(), "ten", Cost::ONE, None).await.unwrap();
        } else {
            self.operator.reset(key(), "ten", None).await.unwrap();
        }
    }
}

#[tokio::test]
async fn whoever_was_answered_is_denied_by_nobody_who_remembers() {
    for refund in [false, true] {
        let lab = Lab::new();
        assert_eq!(lab.ask(10).await, (Outcome::Allowed, DecidedBy::Store));
        assert_eq!(lab.ask(1).await, (Outcome::Denied, DecidedBy::Store));
        assert_eq!(lab.ask(1).await, (Outcome::Denied, DecidedBy::DenyCache));
        lab.undo(refund).await;
        assert_eq!(lab.ask(1).await, (Outcome::Allowed, DecidedBy::Store), "refund: {refund}");
    }
}

/// The store denied before it forgot; the worker hears so after.
#[tokio::test]
async fn a_denial_that_was_on_its_way_is_told_once_and_not_remembered() {
    for refund in [false, true] {
        let lab = Lab::new();
        assert_eq!(lab.ask(10).await, (Outcome::Allowed, DecidedBy::Store));
        {
            let mut waiting = pin!(decide(&lab.worker, question("ten", 1)));
            assert!(futures_util::poll!(&mut waiting).is_pending());
            lab.undo(refund).await;
            lab.go.add_permits(1);
            assert_eq!(waiting.await, (Outcome::Denied, DecidedBy::Store));
        }
        assert_eq!(lab.ask(1).await, (Outcome::Allowed, DecidedBy::Store), "refund: {refund}");
        // And what is asked for from then on is remembered as ever.
        while lab.ask(1).await.0 == Outcome::Allowed {}
        assert_eq!(lab.ask(1).await, (Outcome::Denied, DecidedBy::DenyCache));
    }
}

/// The worker hears of the denial before the store forgets, while the operator waits for that.
#[tokio::test]
async fn a_denial_that_was_noted_while_the_store_had_not_forgotten_yet_is_dropped() {
    let lab = Lab::new();
    assert_eq!(lab.ask(10).await, (Outcome::Allowed, DecidedBy::Store));
    let permits = lab.operator.store.go.try_acquire_many(1_000).unwrap();
    let mut reset = pin!(lab.operator.reset(key(), "ten", None));
    assert!(futures_util::poll!(&mut reset).is_pending());
    assert_eq!(lab.ask(1).await, (Outcome::Denied, DecidedBy::Store));
    assert_eq!(lab.ask(1).await, (Outcome::Denied, DecidedBy::DenyCache));
    drop(permits);
    assert_eq!(reset.await, Ok(true));
    assert_eq!(lab.ask(1).await, (Outcome::Allowed, DecidedBy::Store));
}

/// Tells what it was asked for.
struct Tells {
    subject: Mutex<Option<(Subject, StoreDeadline)>>,
}

impl Store for Tells {
    async fn decide_batch(&self, asks: &[Ask], deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        vec![Err(StoreError::Deadline(deadline.0)); asks.len()]
    }

    fn reset(&self, subject: &Subject, deadline: StoreDeadline) -> impl Future<Output = Result<bool, StoreError>> + Send {
        *self.subject.lock().unwrap() = Some((subject.clone(), deadline));
        std::future::ready(Ok(true))
    }
}

#[tokio::test]
async fn a_reset_is_of_all_plans_that_count_as_one_and_waits_a_second_at_most() {
    let one = Plan { counts_as: "one".into(), ..plan("a", 5) };
    let limiter = Limiter::new([one].into_iter().collect(), Tells { subject: Mutex::default() }, SETTINGS, Arc::new(Clock0));
    for caller in [None, Some(DEADLINE / 2), Some(2 * DEADLINE)] {
        assert_eq!(limiter.reset(key(), "a", caller.map(CallerDeadline::new)).await, Ok(true));
        let (subject, deadline) = limiter.store.subject.lock().unwrap().take().unwrap();
        assert_eq!((&*subject.counts_as, &subject.key, deadline), ("one", &key(), StoreDeadline(DEADLINE)));
    }
}
