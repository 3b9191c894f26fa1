//! Hits that are given back, and those that take nothing.

use super::*;

#[tokio::test]
async fn no_units_ask_without_taking_and_units_are_given_back() {
    let limiter = limiter();
    assert_eq!(ask(&limiter, described("ten", "al", 0)).await, allowed(10));
    assert_eq!(ask(&limiter, described("ten", "al", 9)).await, allowed(1));
    assert_eq!(ask(&limiter, refund("ten", 4)).await, allowed(5));
    assert_eq!(ask(&limiter, described("ten", "al", 5)).await, allowed(0));
    assert_eq!(
        ask(&limiter, described("ten", "al", 0)).await,
        (Outcome::Denied, DecidedBy::Store, Some(0))
    );
    assert_eq!(
        ask(&limiter, refund("ten", u64::MAX)).await,
        allowed(10),
        "never above full"
    );
    assert_eq!(ask(&limiter, refund("ten", 0)).await.0, Outcome::Allowed);
    for plan in ["unlimited", "blocked", "no such plan"] {
        assert_eq!(
            ask(&limiter, refund(plan, 1)).await.0,
            Outcome::Allowed,
            "{plan}"
        );
    }
    let decided = limiter
        .decide_descriptors("allow", vec![refund("blocked", 1)], None)
        .await
        .unwrap();
    assert!(decided.allowed() && decided.binding().is_none());
    assert_eq!(limiter.totals().count(LimiterCounter::Peeks), 2 + 1);
}

#[tokio::test]
async fn a_denial_that_is_remembered_is_forgotten_when_units_are_given_back() {
    let limiter = limiter();
    assert_eq!(ask(&limiter, described("ten", "al", 10)).await, allowed(0));
    assert_eq!(
        ask(&limiter, described("ten", "al", 1)).await.1,
        DecidedBy::Store
    );
    assert_eq!(
        ask(&limiter, described("ten", "al", 1)).await.1,
        DecidedBy::DenyCache
    );
    assert_eq!(ask(&limiter, refund("ten", 2)).await, allowed(2));
    assert_eq!(ask(&limiter, described("ten", "al", 2)).await, allowed(0));
}
