//! Joint decisions while the store cannot decide: each request by its plan's policy, and still all or none.

use super::*;
use tollgate_core::algorithm::Reading;
use tollgate_core::joint::JointDecision;
use tollgate_store::StoreDeadline;
use tollgate_store::{Charged, Settled};

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
    assert_eq!(
        totals.counts(LimiterCounter::Joint),
        [1, 2, 0],
        "a peek decides nothing"
    );
    // Each request of the four failed, of which `unreachable` is the second kind.
    assert_eq!(totals.counts(LimiterCounter::StoreErrors)[1], 8);
}

#[tokio::test]
async fn an_overloaded_store_decides_nothing() {
    let limiter = limiter(Broken(StoreError::Overloaded(1)));
    let checks = vec![request("ten", 1), request("allow", 1)];
    let refused = limiter.decide_joint(checks, None).await.unwrap_err();
    assert_eq!(refused.refusal, Refusal::Overloaded);
}

/// Decides joint decisions in ten milliseconds, and records what the candidates get.
struct SlowThenRecords(std::sync::Mutex<Option<StoreDeadline>>, Arc<StillClock>);

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
    ) -> Result<Vec<Verdict>, JointFailure> {
        self.1.pass(10);
        Ok(healthy().store.decide_joint(checks)?)
    }
}

/// What the candidates of a joint decision get, if they are asked.
async fn left_for_candidates(caller: Option<CallerDeadline>) -> Option<Duration> {
    let live = plan("live", 10);
    let candidate = plan("strict", 5).as_candidate_of(&live);
    let with_candidate = Plan {
        candidate: Some(Arc::new(candidate)),
        ..live
    };
    let plans = [with_candidate, plan("ten", 10)].into_iter().collect();
    let clock = StillClock::start();
    let store = SlowThenRecords(std::sync::Mutex::default(), clock.clone());
    let limiter = Limiter::new(plans, store, SETTINGS, clock);
    let checks = vec![request("live", 1), request("ten", 1)];
    let decided = limiter.decide_joint(checks, caller).await.unwrap();
    assert!(decided.0.allowed());
    let given = limiter.store.0.lock().unwrap();
    given.map(|StoreDeadline(left)| left)
}

#[tokio::test]
async fn candidates_get_what_is_left_of_the_store_s_time() {
    let left = left_for_candidates(None).await;
    assert_eq!(left, Some(Duration::from_millis(15)));
}

#[tokio::test]
async fn a_caller_whose_time_is_over_waits_for_no_candidate() {
    let caller = |ms| Some(CallerDeadline::new(Duration::from_millis(ms)));
    assert_eq!(left_for_candidates(caller(10)).await, None);
    assert!(left_for_candidates(caller(20)).await.is_some());
}

/// Charges all checks but the last, of which it does not know. What became of these charges is the last word.
struct HalfDone {
    error: StoreError,
    kept: Arc<std::sync::Mutex<Option<bool>>>,
}

impl HalfDone {
    fn new(error: StoreError) -> Self {
        Self {
            error,
            kept: Arc::default(),
        }
    }

    async fn kept(&self) -> bool {
        loop {
            if let Some(kept) = *self.kept.lock().unwrap() {
                return kept;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Of a limit of ten a minute, so many are used.
fn used(count: u64) -> Option<Verdict> {
    let reading = Reading::Window {
        count,
        ends_in_us: 60_000_000,
    };
    Some(Verdict {
        fits: true,
        readings: [reading].into_iter().collect(),
        blocks: None,
        release_in_us: 0,
    })
}

impl Store for HalfDone {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        vec![Err(self.error.clone()); checks.len()]
    }

    async fn decide_joint(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Result<Vec<Verdict>, JointFailure> {
        let (charged, settled) = Charged::new();
        let told = checks.len() - 1;
        let open = 1;
        let of = move |count| [vec![used(count); told], vec![None; open]].concat();
        let kept = self.kept.clone();
        tokio::spawn(async move {
            let settled = settled.await;
            *kept.lock().unwrap() = Some(matches!(settled, Ok(Settled::Kept)));
            if let Ok(Settled::Undone(reply)) = settled {
                drop(reply.send(of(3)));
            }
        });
        Err(JointFailure {
            error: self.error.clone(),
            answered: of(4),
            charged: Some(charged),
        })
    }
}

fn gone() -> StoreError {
    StoreError::Unreachable("gone".to_owned())
}

#[tokio::test]
async fn what_the_store_charged_stays_where_the_policies_let_the_rest_pass() {
    for last in ["allow", "ten", "shadow deny"] {
        let limiter = limiter(HalfDone::new(gone()));
        let joint = ask(&limiter, &[("ten", 1), ("deny", 1), (last, 1)]).await;
        assert!(joint.allowed(), "{last}");
        assert!(limiter.store.kept().await, "{last}");
        let by: Vec<_> = joint.decisions.iter().map(|each| each.decided_by).collect();
        assert_eq!(by[..2], [DecidedBy::Store; 2]);
        assert_ne!(by[2], DecidedBy::Store);
        assert_eq!(joint.decisions[0].key_status().remaining, Some(6));
        // Only the request that the store did not decide has failed.
        assert_eq!(limiter.totals().counts(LimiterCounter::StoreErrors)[1], 1);
    }
}

#[tokio::test]
async fn what_the_store_charged_is_undone_where_a_policy_denies_the_rest() {
    // The share of ten is four.
    for last in [("deny", 1), ("ten", 5)] {
        let limiter = limiter(HalfDone::new(gone()));
        let joint = ask(&limiter, &[("ten", 1), ("allow", 1), last]).await;
        assert_eq!((joint.allowed(), joint.binding), (false, 2), "{last:?}");
        assert_eq!(joint.decisions[0].outcome, Outcome::OtherDenied);
        // The number after the undo.
        assert_eq!(joint.decisions[0].key_status().remaining, Some(7));
        assert!(!limiter.store.kept().await, "{last:?}");
    }
}

#[tokio::test]
async fn an_overload_midway_undoes_what_was_charged_and_decides_nothing() {
    let limiter = limiter(HalfDone::new(StoreError::Overloaded(1)));
    let checks = vec![request("ten", 1), request("allow", 1)];
    let refused = limiter.decide_joint(checks, None).await.unwrap_err();
    assert_eq!(refused.refusal, Refusal::Overloaded);
    assert!(!limiter.store.kept().await);
}

/// A part that denies, and parts behind it that could not be read.
struct DeniedHalfRead;

impl Store for DeniedHalfRead {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        vec![Err(gone()); checks.len()]
    }

    async fn decide_joint(
        &self,
        _checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Result<Vec<Verdict>, JointFailure> {
        let denied = used(10).map(|verdict| Verdict {
            fits: false,
            ..verdict
        });
        Err(JointFailure {
            error: StoreError::Overloaded(1),
            answered: vec![used(3), denied, None, None],
            charged: None,
        })
    }
}

#[tokio::test]
async fn a_denial_of_the_store_holds_whatever_the_policies_say_of_requests_that_it_did_not_reach() {
    let limiter = limiter(DeniedHalfRead);
    let requests = [("ten", 1), ("allow", 1), ("ten", 4), ("allow", 1)];
    let joint = ask(&limiter, &requests).await;
    assert_eq!(
        told(&joint),
        [
            (Outcome::OtherDenied, DecidedBy::Store),
            (Outcome::Denied, DecidedBy::Store),
            (Outcome::OtherDenied, DecidedBy::LocalFallback),
            (Outcome::OtherDenied, DecidedBy::FailOpen)
        ]
    );
    assert_eq!((joint.binding, joint.retry_after_us), (1, Some(60_000_000)));
    // Nothing was counted in this replica's memory either.
    assert_eq!(joint.decisions[2].key_status().remaining, Some(4));
}

/// What a plan without limits asks for is in no sum of those it counts as one with.
#[tokio::test]
async fn units_of_an_unlimited_plan_are_added_to_nothing() {
    let free = Plan {
        counts_as: "ten".into(),
        ..Plan::new("free", Rule::Unlimited)
    };
    let plans = [plan("ten", 10), free].into_iter().collect();
    let store = MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0));
    let limiter = Limiter::new(plans, store, SETTINGS, Arc::new(Clock0));
    let joint = ask(&limiter, &[("free", 10), ("ten", 10)]).await;
    assert_eq!((joint.outcome, joint.binding), (Outcome::Allowed, 1));
    assert_eq!(joint.decisions[1].key_status().remaining, Some(0));
}
