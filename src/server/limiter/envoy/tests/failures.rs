//! A store that is late, an overload, and a reload.

use super::*;

#[tokio::test]
async fn a_store_that_is_late_for_the_caller_is_replaced_by_policy_and_not_blamed() {
    let limiter = limiter_that(Answers::Never);
    let caller = Some(CallerDeadline::new(Duration::from_millis(20)));
    let descriptors = vec![
        described("ten", "al", 1),
        described("allow", "al", 1),
        described("deny", "al", 1),
        refund("ten", 1),
    ];
    let decided = limiter
        .decide_descriptors("allow", descriptors, caller)
        .await
        .unwrap();
    let told: Vec<_> = decided
        .decisions
        .iter()
        .map(|decided| (decided.decision.outcome, decided.decision.decided_by))
        .collect();
    let expected = [
        (Outcome::Allowed, DecidedBy::LocalFallback),
        (Outcome::Allowed, DecidedBy::FailOpen),
        (Outcome::Denied, DecidedBy::FailClosed),
        (Outcome::Allowed, DecidedBy::FailOpen),
    ];
    assert_eq!(told, expected);
    let totals = limiter.totals();
    assert_eq!(
        (
            totals.count(LimiterCounter::CallerDeadlines),
            totals.count(LimiterCounter::StoreErrors)
        ),
        (4, 0)
    );
    let none = Some(CallerDeadline::new(Duration::ZERO));
    let late = limiter
        .decide_descriptors("allow", vec![described("ten", "al", 1)], none)
        .await
        .unwrap_err();
    assert_eq!(late, EnvoyRefusal::Refused(Refusal::CallerDeadline));
}

#[tokio::test]
async fn an_overloaded_server_refuses_the_call_and_no_policy_answers() {
    let limiter = limiter_that(Answers::Overloaded);
    let refused = limiter
        .decide_descriptors("allow", vec![described("allow", "al", 1)], None)
        .await
        .unwrap_err();
    assert_eq!(refused, EnvoyRefusal::Refused(Refusal::Overloaded));
}

#[tokio::test]
async fn a_reload_takes_up_rules_with_the_plans_that_they_name() {
    let limiter = Limiter::new(
        plans(),
        MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)),
        SETTINGS,
        Arc::new(Clock0),
    );
    let unserved = limiter
        .decide_descriptors("allow", vec![described("ten", "al", 1)], None)
        .await
        .unwrap_err();
    assert_eq!(
        (unserved, limiter.serves_envoy()),
        (EnvoyRefusal::NotConfigured, false)
    );
    let hash = limiter.snapshot().config_hash().to_owned();
    limiter.reload(with_rules(plans()));
    assert!(limiter.serves_envoy() && limiter.snapshot().config_hash() != hash);
    assert_eq!(ask(&limiter, described("ten", "al", 1)).await, allowed(9));
    // Only the rules change, then only a plan: both are taken up.
    let other = Domain::new(
        Unmatched::Allow,
        vec![rule(&["plan=ten", "user"], "blocked")],
    )
    .unwrap();
    limiter.reload(plans().with_envoy(EnvoyRules::new(
        DenialBody::None,
        [("allow".to_owned(), other)],
    )));
    assert_eq!(
        ask(&limiter, described("ten", "al", 1)).await.0,
        Outcome::Denied
    );
    let edited: PlanSet = plans()
        .iter()
        .map(|of| {
            if &*of.name == "ten" {
                plan("ten", 5)
            } else {
                of.as_ref().clone()
            }
        })
        .collect();
    limiter.reload(with_rules(edited));
    assert_eq!(ask(&limiter, described("ten", "al", 1)).await, allowed(3));
}
