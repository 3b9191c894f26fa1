//! What is remembered of denials, and what asks the store all the same.

use super::*;

/// Exact counters behind a slow network: a call takes `ONE_WAY_US` each way. Counts the checks that it gets.
struct Remote {
    counters: MemoryStore,
    clock: Arc<ManualClock>,
    checks: AtomicU64,
}

const ONE_WAY_US: u64 = 3_000;

impl Store for Remote {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        self.checks.fetch_add(checks.len() as u64, Ordering::SeqCst);
        self.clock.pass(ONE_WAY_US);
        let answers = checks
            .iter()
            .map(|check| self.counters.decide(check))
            .collect();
        self.clock.pass(ONE_WAY_US);
        answers
    }
}

fn remote(deny_cache_entries: usize) -> (Limiter<Remote>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock {
        passed_us: AtomicU64::new(0),
        began: monotonic(),
    });
    let counters = MemoryStore::new(CAPACITY_DEFAULT, clock.clone());
    let store = Remote {
        counters,
        clock: clock.clone(),
        checks: AtomicU64::new(0),
    };
    let bucket = |name: &str, shadow| {
        let limit = Limit::new(
            "rate",
            10,
            Duration::from_secs(1),
            Algorithm::TokenBucket { burst: 2 },
        )
        .unwrap();
        Plan {
            rule: Rule::limits([limit]),
            shadow,
            counts_as: "bucket".into(),
            ..plan(name, 1)
        }
    };
    let plans = [bucket("bucket", false), bucket("shadow bucket", true)]
        .into_iter()
        .collect();
    let settings = LimiterSettings {
        deny_cache_entries,
        ..SETTINGS
    };
    (Limiter::new(plans, store, settings, clock.clone()), clock)
}

fn store_checks(limiter: &Limiter<Remote>) -> u64 {
    limiter.store.checks.load(Ordering::SeqCst)
}

/// The bucket's two units are taken 6 ms apart, 3 ms into each call. One unit comes back every 100 ms.
#[tokio::test]
async fn a_denial_is_remembered_until_its_release_counted_from_the_start_of_the_call() {
    let (limiter, clock) = remote(100);
    for _ in 0..2 {
        assert_eq!(
            check(&limiter, "bucket", 1).await,
            (Outcome::Allowed, DecidedBy::Store)
        );
    }
    let denied = limiter.decide(request("bucket", 1), None).await.unwrap();
    // Decided at 15 ms. The units taken at 3 ms and 9 ms leave a debt whose next unit is back at 103 ms.
    assert_eq!(denied.binding().unwrap().retry_after_us, Some(88_000));
    let remembered = limiter.decide(request("bucket", 1), None).await.unwrap();
    assert_eq!(
        (remembered.outcome, remembered.decided_by),
        (Outcome::Denied, DecidedBy::DenyCache)
    );
    // At 18 ms, 6 ms after the call began. The wait is too short by the 3 ms of the way there, and by no more.
    let binding = remembered.binding().unwrap();
    assert_eq!(
        (binding.retry_after_us, binding.remaining),
        (Some(82_000), 0)
    );
    assert_eq!(binding.reset_after_us, 182_000);
    // The call that was denied began at 12 ms, so the denial is remembered until 100 ms.
    clock.pass(82_000 - 1);
    assert_eq!(check(&limiter, "bucket", 1).await.1, DecidedBy::DenyCache);
    assert_eq!(store_checks(&limiter), 3);
    clock.pass(1);
    assert_eq!(
        check(&limiter, "bucket", 1).await,
        (Outcome::Allowed, DecidedBy::Store)
    );
}

#[tokio::test]
async fn a_peek_asks_the_store_and_a_shadow_plan_remembers_a_shadow_denial() {
    let (limiter, _clock) = remote(100);
    for plan in ["bucket", "bucket", "bucket", "shadow bucket"] {
        check(&limiter, plan, 1).await;
    }
    let peek = Check {
        mode: Mode::Peek,
        ..request("bucket", 1)
    };
    assert_eq!(
        limiter.decide(peek, None).await.unwrap().decided_by,
        DecidedBy::Store
    );
    assert_eq!(
        check(&limiter, "bucket", 1).await,
        (Outcome::Denied, DecidedBy::DenyCache)
    );
    assert_eq!(
        check(&limiter, "shadow bucket", 1).await,
        (Outcome::ShadowDenied, DecidedBy::DenyCache)
    );
    assert_eq!(
        check(&limiter, "bucket", 3).await,
        (Outcome::NeverFits, DecidedBy::Plan)
    );
}

#[tokio::test]
async fn a_batch_sends_the_store_only_requests_without_a_remembered_denial() {
    let (limiter, _clock) = remote(100);
    check(&limiter, "bucket", 1).await;
    assert_eq!(
        check(&limiter, "bucket", 2).await,
        (Outcome::Denied, DecidedBy::Store)
    );
    let answers = limiter
        .decide_batch(
            [1, 2, 1, 2].map(|cost| request("bucket", cost)).to_vec(),
            None,
        )
        .await
        .unwrap();
    let answers: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.map(|it| (it.outcome, it.decided_by)).unwrap())
        .collect();
    let remembered = (Outcome::Denied, DecidedBy::DenyCache);
    let expected = [
        (Outcome::Allowed, DecidedBy::Store),
        remembered,
        (Outcome::Denied, DecidedBy::Store),
        remembered,
    ];
    assert_eq!(answers, expected);
    assert_eq!(store_checks(&limiter), 4);
    // The batch's own denial is remembered too.
    assert_eq!(check(&limiter, "bucket", 1).await, remembered);
}

#[tokio::test]
async fn without_a_cache_and_with_an_embedded_store_no_denial_is_remembered() {
    let (limiter, _clock) = remote(0);
    for _ in 0..5 {
        assert_eq!(check(&limiter, "bucket", 1).await.1, DecidedBy::Store);
    }
    assert_eq!(store_checks(&limiter), 5);
    let embedded = healthy();
    for _ in 0..12 {
        assert_eq!(check(&embedded, "ten", 1).await.1, DecidedBy::Store);
    }
}

#[tokio::test]
async fn only_denials_by_the_store_are_remembered() {
    for (plan, by) in [
        ("deny", DecidedBy::FailClosed),
        ("ten", DecidedBy::LocalFallback),
    ] {
        let limiter = broken();
        for _ in 0..6 {
            assert_eq!(check(&limiter, plan, 1).await.1, by);
        }
    }
}
