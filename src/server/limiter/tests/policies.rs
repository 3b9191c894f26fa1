//! What each policy answers while the store cannot decide. What `local` grants, `shares` tests.

use super::*;

#[tokio::test]
async fn the_plan_s_policy_answers_when_the_store_cannot_decide() {
    let limiter = broken();
    assert_eq!(
        check(&limiter, "allow", 1).await,
        (Outcome::Allowed, DecidedBy::FailOpen)
    );
    assert_eq!(
        check(&limiter, "deny", 1).await,
        (Outcome::Denied, DecidedBy::FailClosed)
    );
}

#[tokio::test]
async fn a_full_embedded_store_allows_unless_the_plan_denies() {
    let limiter = limiter(Broken(StoreError::Full));
    assert_eq!(
        check(&limiter, "ten", 1).await,
        (Outcome::Allowed, DecidedBy::FailOpen)
    );
    assert_eq!(
        check(&limiter, "deny", 1).await,
        (Outcome::Denied, DecidedBy::FailClosed)
    );
}

#[tokio::test]
async fn a_flood_on_a_healthy_store_is_refused_and_opens_no_limit() {
    let limiter = limiter(Broken(StoreError::Overloaded(1)));
    for plan in ["ten", "allow", "deny"] {
        assert_eq!(
            limiter.decide(request(plan, 1), None).await,
            Err(Refusal::Overloaded)
        );
    }
}
