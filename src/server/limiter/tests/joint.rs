//! Joint decisions while the store cannot decide: each request by its plan's policy, and still all or none.

use super::*;
use tollgate_core::joint::JointDecision;

async fn ask<S: Store>(limiter: &Limiter<S>, requests: &[(&str, u64)]) -> JointDecision {
    let checks = requests.iter().map(|(plan, cost)| request(plan, *cost));
    let decided = limiter.decide_joint(checks.collect(), None).await;
    decided.unwrap().0
}

fn told(joint: &JointDecision) -> Vec<(Outcome, DecidedBy)> {
    let decisions = joint.decisions.iter();
    decisions
        .map(|decision| (decision.outcome, decision.decided_by))
        .collect()
}

#[tokio::test]
async fn a_plan_that_fails_closed_denies_the_whole_and_nothing_is_counted() {
    let limiter = broken();
    let denied = ask(&limiter, &[("allow", 1), ("ten", 1), ("deny", 1)]).await;
    assert_eq!(
        told(&denied),
        [
            (Outcome::OtherDenied, DecidedBy::FailOpen),
            (Outcome::OtherDenied, DecidedBy::LocalFallback),
            (Outcome::Denied, DecidedBy::FailClosed)
        ]
    );
    assert_eq!((denied.binding, denied.retry_after_us), (2, None));
    // Ten for three replicas are four for this one, and all four are left.
    let allowed = ask(&limiter, &[("allow", 1), ("shadow deny", 1), ("ten", 4)]).await;
    assert_eq!(
        told(&allowed),
        [
            (Outcome::Allowed, DecidedBy::FailOpen),
            (Outcome::ShadowDenied, DecidedBy::FailClosed),
            (Outcome::Allowed, DecidedBy::LocalFallback)
        ]
    );
    assert_eq!(allowed.decisions[2].key_status().remaining, Some(0));
}

#[tokio::test]
async fn what_is_counted_locally_is_counted_for_all_or_none() {
    let limiter = broken();
    let other = Check {
        key: Key::new("bob").unwrap(),
        ..request("ten", 1)
    };
    let pair = || vec![other.clone(), request("ten", 3)];
    let first = limiter.decide_joint(pair(), None).await.unwrap().0;
    assert!(first.allowed(), "{first:?}");
    let second = limiter.decide_joint(pair(), None).await.unwrap().0;
    assert_eq!(
        told(&second),
        [
            (Outcome::OtherDenied, DecidedBy::LocalFallback),
            (Outcome::Denied, DecidedBy::LocalFallback)
        ]
    );
    assert_eq!(second.decisions[0].key_status().remaining, Some(3));
    // More than a share denies, since it could pass once the store is back; nothing is counted for the other either.
    let above = ask(&limiter, &[("shadow", 1), ("ten", 5)]).await;
    assert_eq!(
        told(&above),
        [
            (Outcome::OtherDenied, DecidedBy::LocalFallback),
            (Outcome::Denied, DecidedBy::LocalFallback)
        ]
    );
    let peeks = pair().into_iter().map(|check| Check {
        mode: Mode::Peek,
        ..check
    });
    let peeked = limiter.decide_joint(peeks.collect(), None).await.unwrap().0;
    assert!(!peeked.allowed());
    let totals = limiter.totals();
    assert_eq!(totals.joint, [1, 2, 0], "a peek decides nothing");
    // Each request of the four failed, of which `unreachable` is the second kind.
    assert_eq!(totals.store_errors[1], 8);
}

#[tokio::test]
async fn an_overloaded_store_decides_nothing() {
    let limiter = limiter(Broken(StoreError::Overloaded(1)));
    let checks = vec![request("ten", 1), request("allow", 1)];
    let refused = limiter.decide_joint(checks, None).await.unwrap_err();
    assert_eq!(refused.refusal, Refusal::Overloaded);
}

/// Decides joint decisions by half of the deadline, and records what the candidates get.
struct SlowThenRecords(std::sync::Mutex<Option<StoreDeadline>>);

impl Store for SlowThenRecords {
    async fn decide_batch(
        &self,
        checks: &[Check],
        deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        *self.0.lock().unwrap() = Some(deadline);
        vec![Err(StoreError::Deadline(deadline.0)); checks.len()]
    }

    async fn decide_joint(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Result<Vec<Verdict>, StoreError> {
        tokio::time::sleep(Duration::from_millis(10)).await;
        healthy().store.decide_joint(checks)
    }
}

#[tokio::test]
async fn candidates_get_what_is_left_of_the_store_s_time() {
    let live = plan("live", 10);
    let candidate = plan("strict", 5).as_candidate_of(&live);
    let with_candidate = Plan {
        candidate: Some(Arc::new(candidate)),
        ..live
    };
    let plans = [with_candidate, plan("ten", 10)].into_iter().collect();
    let store = SlowThenRecords(std::sync::Mutex::default());
    let limiter = Limiter::new(plans, store, SETTINGS, Arc::new(Clock0));
    assert!(ask(&limiter, &[("live", 1), ("ten", 1)]).await.allowed());
    let given = limiter.store.0.lock().unwrap().expect("it was asked").0;
    assert!(given <= Duration::from_millis(15), "{given:?}");
}
