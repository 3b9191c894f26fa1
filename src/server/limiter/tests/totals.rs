//! What all limiters of a process have counted together.

use super::*;

#[tokio::test]
async fn totals_cover_all_limiters_including_dropped_ones() {
    let one = broken();
    let other = one.with_store(MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)));
    check(&one, "allow", 1).await;
    for _ in 0..3 {
        check(&other, "allow", 4).await;
    }
    drop(other);
    assert_eq!(
        counted_for(&one, "allow", Outcome::Allowed, DecidedBy::FailOpen),
        1
    );
    assert_eq!(
        counted_for(&one, "allow", Outcome::Allowed, DecidedBy::Store),
        2
    );
    assert_eq!(
        counted_for(&one, "allow", Outcome::Denied, DecidedBy::Store),
        1
    );
    let totals = one.totals();
    let unreachable = StoreError::Unreachable(String::new()).kind_index();
    assert_eq!(
        (
            totals.durations.count(),
            totals.counts(LimiterCounter::StoreErrors)[unreachable],
            totals.count(LimiterCounter::StoreErrors)
        ),
        (4, 1, 1)
    );
    // Calls to an embedded store are not timed.
    assert_eq!(totals.store_durations.count(), 1);
}

#[tokio::test]
async fn every_decision_of_a_batch_is_counted_and_nothing_else() {
    let limiter = healthy();
    let mut requests = ["ten", "unlimited", "no such", "ten", "blocked"]
        .map(|plan| request(plan, 6))
        .to_vec();
    requests.push(Check {
        mode: Mode::Peek,
        ..request("ten", 1)
    });
    limiter.decide_batch(requests, None).await.unwrap();
    assert_eq!(
        counted_for(&limiter, "ten", Outcome::Allowed, DecidedBy::Store),
        1
    );
    assert_eq!(
        counted_for(&limiter, "ten", Outcome::Denied, DecidedBy::Store),
        1
    );
    assert_eq!(
        counted_for(&limiter, "unlimited", Outcome::Allowed, DecidedBy::Plan),
        1
    );
    assert_eq!(
        counted_for(&limiter, "blocked", Outcome::Denied, DecidedBy::Plan),
        1
    );
    let totals = limiter.totals();
    assert_eq!(
        (
            totals.durations.count(),
            totals.count(LimiterCounter::Peeks),
            totals.count(LimiterCounter::UnknownPlans)
        ),
        (4, 1, 1)
    );
}

#[tokio::test]
async fn a_refused_request_is_not_counted_as_a_decision() {
    let limiter = limiter(Broken(StoreError::Overloaded(1)));
    assert!(limiter.decide(request("ten", 1), None).await.is_err());
    limiter
        .decide_batch(vec![request("ten", 1), request("allow", 1)], None)
        .await
        .unwrap();
    let totals = limiter.totals();
    let overloaded =
        totals.counts(LimiterCounter::StoreErrors)[StoreError::Overloaded(1).kind_index()];
    assert_eq!(
        (
            totals.durations.count(),
            overloaded,
            totals.store_durations.count(),
            totals.waiting
        ),
        (0, 3, 2, 0)
    );
}
