//! What a caller gets when its deadline passes before the store answers.

use super::*;

/// What a caller with this deadline gets from a store: one decision, then the first of a batch.
async fn decided_by_silent(
    store: impl Store,
    caller_us: u64,
    plan: &str,
) -> [Result<DecidedBy, Refusal>; 2] {
    let limiter = limiter(store);
    let caller = Some(CallerDeadline::new(Duration::from_micros(caller_us)));
    let alone = limiter
        .decide(request(plan, 1), caller)
        .await
        .map(|decision| decision.decided_by);
    let batch = limiter
        .decide_batch(vec![request(plan, 1), request("unlimited", 1)], caller)
        .await;
    let totals = limiter.totals();
    let blamed: u64 = totals.count(LimiterCounter::StoreErrors);
    assert_eq!(
        (
            totals.count(LimiterCounter::CallerDeadlines) + blamed,
            totals.waiting
        ),
        (2, 0),
        "each is counted once, as one or as the other"
    );
    assert_eq!(
        totals.store_durations.count(),
        blamed,
        "an abandoned call does not show how long the store takes"
    );
    [
        alone,
        batch
            .and_then(|answers| answers[0].clone())
            .map(|decision| decision.decided_by),
    ]
}

const SILENCE: [(&str, DecidedBy); 3] = [
    ("allow", DecidedBy::FailOpen),
    ("deny", DecidedBy::FailClosed),
    ("ten", DecidedBy::LocalFallback),
];

/// Answers only at its deadline.
struct Silent;

impl Store for Silent {
    async fn decide_batch(
        &self,
        checks: &[Check],
        deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        tokio::time::sleep(deadline.0).await;
        vec![Err(StoreError::Deadline(deadline.0)); checks.len()]
    }
}

#[tokio::test]
async fn a_caller_s_deadline_below_the_store_s_gets_no_policy_and_is_no_store_failure() {
    for (plan, by) in SILENCE {
        for short_us in [0, 1, 24_999] {
            assert_eq!(
                decided_by_silent(Silent, short_us, plan).await,
                [Err(Refusal::CallerDeadline), Err(Refusal::CallerDeadline)]
            );
        }
        // The store had its whole deadline, so it failed, whatever the caller's deadline.
        for long_us in [25_000, 1_000_000] {
            assert_eq!(
                decided_by_silent(Silent, long_us, plan).await,
                [Ok(by), Ok(by)]
            );
        }
    }
}

/// Both timers may have fired: the caller still waited for less than the store's deadline.
#[tokio::test]
async fn a_store_s_deadline_error_that_comes_first_is_still_later_than_a_shorter_caller_s_deadline()
{
    let early = || RecordsDeadline(Default::default());
    for (plan, by) in SILENCE {
        assert_eq!(
            decided_by_silent(early(), 24_999, plan).await,
            [Err(Refusal::CallerDeadline), Err(Refusal::CallerDeadline)]
        );
        assert_eq!(
            decided_by_silent(early(), 25_000, plan).await,
            [Ok(by), Ok(by)]
        );
    }
}

/// As with an open circuit breaker: an immediate error is answered by policy, if the caller has any time at all.
#[tokio::test]
async fn a_store_that_is_known_to_be_out_is_answered_by_policy_whatever_the_caller_s_deadline() {
    for (plan, by) in SILENCE {
        let out = || Broken(StoreError::Unreachable("gone".to_owned()));
        assert_eq!(decided_by_silent(out(), 1, plan).await, [Ok(by), Ok(by)]);
        assert_eq!(
            decided_by_silent(out(), 0, plan).await,
            [Err(Refusal::CallerDeadline), Err(Refusal::CallerDeadline)]
        );
    }
}

/// A full embedded store counts as a failing store.
#[tokio::test]
async fn a_caller_without_time_gets_no_policy_of_the_embedded_store_either() {
    let none = Some(CallerDeadline::new(Duration::ZERO));
    for answer in [Ok(()), Err(StoreError::Full)] {
        let answer = match answer {
            Ok(()) => healthy().decide(request("allow", 1), none).await,
            Err(error) => {
                limiter(Broken(error))
                    .decide(request("allow", 1), none)
                    .await
            }
        };
        assert_eq!(answer, Err(Refusal::CallerDeadline));
    }
    let decided = healthy()
        .decide(request("unlimited", 1), none)
        .await
        .unwrap();
    assert_eq!(
        decided.decided_by,
        DecidedBy::Plan,
        "what needs no store needs no time"
    );
}

#[tokio::test]
async fn the_store_is_given_its_own_deadline_whatever_the_caller_s_is() {
    for caller_ms in [None, Some(7), Some(1000)] {
        let limiter = limiter(RecordsDeadline(Default::default()));
        let _ = limiter
            .decide(
                request("ten", 1),
                caller_ms
                    .map(Duration::from_millis)
                    .map(CallerDeadline::new),
            )
            .await;
        assert_eq!(
            *limiter.store.0.lock().unwrap(),
            Some(StoreDeadline(SETTINGS.deadline)),
            "{caller_ms:?}"
        );
    }
}
