//! What an explanation says: of every policy and outcome, and that it changes nothing.

use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tollgate_core::decision::Outcome;

use super::*;
use crate::limiter::tests::{
    Broken, Clock0, ManualClock, SETTINGS, broken, check, healthy, plans, request,
};
use tollgate_core::plan::{Algorithm, Anchor, Concurrency, HoldTerms, Limit, Rule};
use tollgate_store::clock::Clock;
use tollgate_store::{CAPACITY_DEFAULT, MemoryStore};

fn key() -> Key {
    request("ten", 1).key
}

#[tokio::test]
async fn an_explanation_tells_the_next_decision_and_charges_nothing() {
    let limiter = healthy();
    check(&limiter, "ten", 7).await;
    for _ in 0..3 {
        let explained = limiter.explain(key(), "ten", None).await.unwrap();
        assert_eq!(
            (explained.next.outcome, explained.next.decided_by),
            (Outcome::Allowed, DecidedBy::Store)
        );
        assert_eq!(
            (
                explained.limits[0].used,
                explained.limits[0].status.remaining
            ),
            (7, 3)
        );
        assert_eq!(explained.limits[0].releases.len(), 1);
        assert_eq!(
            (
                explained.limits[0].releases[0].units,
                explained.redis_names.len()
            ),
            (10, 0)
        );
        let sentence = "The next request of cost 1 is allowed: in limit minute, which binds, 7 of 10 units are used and 3 can be taken now.";
        assert_eq!(explained.sentence(), sentence);
    }
    check(&limiter, "ten", 3).await;
    let denied = limiter.explain(key(), "ten", None).await.unwrap();
    assert_eq!(denied.next.outcome, Outcome::Denied);
    let begin = "The next request of cost 1 is denied by limit minute: 10 of 10 units are used, and it could pass in ";
    assert!(
        denied.sentence().starts_with(begin),
        "{}",
        denied.sentence()
    );
    check(&limiter, "shadow", 10).await;
    let shadow = limiter.explain(key(), "shadow", None).await.unwrap();
    assert!(
        shadow
            .sentence()
            .ends_with("; it passes all the same, because the plan is in shadow mode."),
        "{}",
        shadow.sentence()
    );
}

/// Units that came back during a block can be taken at its end.
#[tokio::test]
async fn a_blocked_limit_whose_units_are_back_tells_when_its_block_ends() {
    let clock = Arc::new(ManualClock {
        passed_us: AtomicU64::new(0),
        began: Clock0.monotonic(),
    });
    let algorithm = Algorithm::FixedWindow {
        anchor: Anchor::FirstRequest,
    };
    let limit = Limit::new("minute", 3, Duration::from_secs(60), algorithm).unwrap();
    let limit = limit.with_block(Duration::from_secs(600)).unwrap();
    let plans = [Plan::new("login", Rule::limits([limit]))]
        .into_iter()
        .collect();
    let store = MemoryStore::new(CAPACITY_DEFAULT, clock.clone());
    let limiter = Limiter::new(plans, store, SETTINGS, clock.clone());
    for _ in 0..4 {
        check(&limiter, "login", 1).await;
    }
    for passed_s in [0, 200, 100] {
        clock.pass(passed_s * 1_000_000);
        let explained = limiter.explain(key(), "login", None).await.unwrap();
        let limit = &explained.limits[0];
        assert_eq!(limit.releases.len(), 1, "{limit:?}");
        let release = limit.releases[0];
        assert_eq!(
            (release.units, release.after_us),
            (3, limit.status.blocked_for_us)
        );
    }
}

/// Without the store, a plan of slots alone is counted nowhere.
#[tokio::test]
async fn a_plan_of_slots_is_explained_without_the_store() {
    let slots = Plan {
        holds: Arc::new(HoldTerms {
            concurrency: Some(Concurrency::new("jobs", 2, 0).unwrap()),
            ..HoldTerms::default()
        }),
        ..Plan::new("jobs", Rule::Limits(Box::default()))
    };
    let store = Broken(StoreError::Unreachable("gone".to_owned()));
    let plans = [slots].into_iter().collect();
    let limiter = Limiter::new(plans, store, SETTINGS, Arc::new(Clock0));
    let sentence = limiter
        .explain(key(), "jobs", None)
        .await
        .unwrap()
        .sentence();
    let end = "the next request is allowed, because a replica counts no slots in its own memory.";
    assert!(sentence.ends_with(end), "{sentence}");
}

#[tokio::test]
async fn a_plan_without_limits_is_explained_and_an_unknown_one_is_an_error() {
    let limiter = healthy();
    for (plan, sentence) in [
        (
            "unlimited",
            "Plan unlimited is unlimited, so every request is allowed and nothing is counted.",
        ),
        (
            "blocked",
            "Plan blocked is blocked, so every request is denied and nothing is counted.",
        ),
    ] {
        let explained = limiter.explain(key(), plan, None).await.unwrap();
        assert_eq!(
            (explained.sentence().as_str(), explained.limits.len()),
            (sentence, 0)
        );
    }
    assert!(matches!(
        limiter.explain(key(), "tem", None).await,
        Err(AdminError::UnknownPlan(_))
    ));
    limiter.reload(plans().with_default(Some("ten")).unwrap());
    assert_eq!(
        &*limiter.explain(key(), "tem", None).await.unwrap().plan.name,
        "ten"
    );
}

#[tokio::test]
async fn a_store_that_fails_is_explained_by_the_policy() {
    let limiter = broken();
    check(&limiter, "ten", 1).await;
    for (plan, by, words) in [
        (
            "ten",
            DecidedBy::LocalFallback,
            "against its share of the quota: the next request of cost 1 is allowed",
        ),
        (
            "allow",
            DecidedBy::FailOpen,
            "is allowed, because the plan says on_store_failure: allow.",
        ),
        (
            "deny",
            DecidedBy::FailClosed,
            "is denied, because the plan says on_store_failure: deny.",
        ),
    ] {
        let explained = limiter.explain(key(), plan, None).await.unwrap();
        assert_eq!(explained.next.decided_by, by);
        let sentence = explained.sentence();
        assert!(
            sentence.starts_with("The store did not decide (the store is out of reach: gone), so "),
            "{sentence}"
        );
        assert!(sentence.contains(words), "{sentence}");
    }
    // The share of three replicas is 4, of which 1 was taken above.
    let local = limiter.explain(key(), "ten", None).await.unwrap();
    assert_eq!(
        (local.limits[0].used, local.limits[0].status.remaining),
        (1, 3)
    );
    assert_eq!(
        check(&limiter, "ten", 3).await,
        (Outcome::Allowed, DecidedBy::LocalFallback)
    );
}
