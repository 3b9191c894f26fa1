//! What each policy answers while the store cannot decide. What `local` grants, `shares` tests.

use super::*;

/// Plans of the same limit, each with the policy that it is named by.
fn of_every_policy() -> PlanSet {
    let plans = OnStoreFailure::ALL.map(|on_store_failure| Plan {
        on_store_failure,
        ..plan(on_store_failure.as_str(), 10)
    });
    plans.into_iter().collect()
}

/// What a policy states. One that counts allows a request on a fresh key, and says that it was decided in this way.
fn expected_answer(policy: OnStoreFailure, counted: DecidedBy) -> (Outcome, DecidedBy) {
    match policy.answer() {
        PolicyAnswer::Always(outcome, by) => (outcome, by),
        PolicyAnswer::Counted => (Outcome::Allowed, counted),
    }
}

async fn assert_each_answers(limiter: &Limiter<Broken>, counted: DecidedBy) {
    limiter.reload(of_every_policy());
    for policy in OnStoreFailure::ALL {
        let expected = expected_answer(policy, counted);
        let plan = policy.as_str();
        assert_eq!(check(limiter, plan, 1).await, expected, "{plan}");
    }
}

#[tokio::test]
async fn the_plan_s_policy_answers_when_the_store_cannot_decide() {
    let limiter = broken();
    assert_each_answers(&limiter, DecidedBy::LocalFallback).await;
    for policy in OnStoreFailure::ALL {
        let plan = policy.as_str();
        let says = match expected_answer(policy, DecidedBy::LocalFallback).0 {
            Outcome::Allowed => " is allowed",
            _ => " is denied",
        };
        let explained = limiter.explain(request(plan, 1).key, plan, None).await;
        let sentence = explained.unwrap().sentence();
        assert!(sentence.contains(says), "{plan}: {sentence}");
    }
}

#[tokio::test]
async fn a_full_embedded_store_allows_unless_the_plan_denies() {
    let limiter = limiter(Broken(StoreError::Full));
    assert_each_answers(&limiter, DecidedBy::FailOpen).await;
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
