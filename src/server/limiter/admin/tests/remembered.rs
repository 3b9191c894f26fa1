//! Denials that this process remembers, beside resets and refunds that are under way.

use super::*;

/// A clock that advances by one microsecond at each reading.
struct Ticking {
    readings: AtomicU64,
    began: Instant,
}

impl Clock for Ticking {
    fn now_us(&self) -> u64 {
        Clock0.now_us()
    }

    fn monotonic(&self) -> Instant {
        self.began + Duration::from_micros(self.readings.fetch_add(1, Ordering::SeqCst))
    }
}

/// A store whose counters are shared, as in Redis. It holds every answer back until a permit comes; a reset is not even begun
/// before.
struct Slow {
    counters: Arc<MemoryStore>,
    go: Arc<Semaphore>,
}

impl Store for Slow {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        let answers = checks
            .iter()
            .map(|check| self.counters.decide(check))
            .collect();
        self.go.acquire().await.unwrap().forget();
        answers
    }

    async fn refund_batch(
        &self,
        refunds: &[Refund],
        deadline: StoreDeadline,
    ) -> Vec<Result<GivenBack, StoreError>> {
        let given_back = self.counters.refund_batch(refunds, deadline).await;
        self.go.acquire().await.unwrap().forget();
        given_back
    }

    async fn reset(&self, subject: &Subject, deadline: StoreDeadline) -> Result<bool, StoreError> {
        self.go.acquire().await.unwrap().forget();
        self.counters.reset(subject, deadline).await
    }
}

/// An operator and a worker, each with its own store over the same counters.
struct Lab {
    operator: Limiter<Slow>,
    worker: Limiter<Slow>,
    /// Permits for the worker's answers.
    go: Arc<Semaphore>,
}

impl Lab {
    fn new() -> Self {
        let clock = Arc::new(Ticking {
            readings: AtomicU64::new(0),
            began: monotonic(),
        });
        let counters = Arc::new(MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)));
        let store = |permits| Slow {
            counters: counters.clone(),
            go: Arc::new(Semaphore::new(permits)),
        };
        let operator = Limiter::new(plans(), store(1_000), SETTINGS, clock);
        let worker = operator.with_store(store(0));
        let go = worker.store.go.clone();
        Self {
            operator,
            worker,
            go,
        }
    }

    async fn check(&self, cost: u64) -> (Outcome, DecidedBy) {
        self.go.add_permits(1);
        let answer = decide(&self.worker, request("ten", cost)).await;
        // A remembered answer used no permit.
        let _ = self
            .go
            .try_acquire()
            .map(tokio::sync::SemaphorePermit::forget);
        answer
    }

    async fn undo(&self, refund: bool) {
        if refund {
            self.operator
                .refund(key(), "ten", Cost::ONE, None)
                .await
                .unwrap();
        } else {
            self.operator.reset(key(), "ten", None).await.unwrap();
        }
    }
}

#[tokio::test]
async fn after_an_answered_reset_or_refund_no_remembered_denial_is_left() {
    for refund in [false, true] {
        let lab = Lab::new();
        assert_eq!(lab.check(10).await, (Outcome::Allowed, DecidedBy::Store));
        assert_eq!(lab.check(1).await, (Outcome::Denied, DecidedBy::Store));
        assert_eq!(lab.check(1).await, (Outcome::Denied, DecidedBy::DenyCache));
        lab.undo(refund).await;
        assert_eq!(
            lab.check(1).await,
            (Outcome::Allowed, DecidedBy::Store),
            "refund: {refund}"
        );
    }
}

/// The store denied before the reset, and its answer reaches the worker after it.
#[tokio::test]
async fn a_late_denial_is_answered_once_and_not_remembered() {
    for refund in [false, true] {
        let lab = Lab::new();
        assert_eq!(lab.check(10).await, (Outcome::Allowed, DecidedBy::Store));
        {
            let mut waiting = pin!(decide(&lab.worker, request("ten", 1)));
            assert!(futures_util::poll!(&mut waiting).is_pending());
            lab.undo(refund).await;
            lab.go.add_permits(1);
            assert_eq!(waiting.await, (Outcome::Denied, DecidedBy::Store));
        }
        assert_eq!(
            lab.check(1).await,
            (Outcome::Allowed, DecidedBy::Store),
            "refund: {refund}"
        );
        // Denials of later calls are remembered as usual.
        while lab.check(1).await.0 == Outcome::Allowed {}
        assert_eq!(lab.check(1).await, (Outcome::Denied, DecidedBy::DenyCache));
    }
}

/// The denial reaches the worker before the store carries out the reset, while the operator waits.
#[tokio::test]
async fn a_denial_noted_before_the_store_carried_out_the_reset_is_dropped() {
    let lab = Lab::new();
    assert_eq!(lab.check(10).await, (Outcome::Allowed, DecidedBy::Store));
    let permits = lab.operator.store.go.try_acquire_many(1_000).unwrap();
    let mut reset = pin!(lab.operator.reset(key(), "ten", None));
    assert!(futures_util::poll!(&mut reset).is_pending());
    assert_eq!(lab.check(1).await, (Outcome::Denied, DecidedBy::Store));
    assert_eq!(lab.check(1).await, (Outcome::Denied, DecidedBy::DenyCache));
    drop(permits);
    assert_eq!(reset.await, Ok(true));
    assert_eq!(lab.check(1).await, (Outcome::Allowed, DecidedBy::Store));
}
