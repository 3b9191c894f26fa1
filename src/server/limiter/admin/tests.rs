//! Resets and refunds: store errors are returned, and remembered denials are dropped in time.

mod remembered;

use std::future::Future;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::Semaphore;

use super::*;
use crate::limiter::tests::{Clock0, SETTINGS, broken, healthy, plan, plans, request};
use tollgate_core::decision::{DecidedBy, Outcome};
use tollgate_store::clock::{Clock, monotonic};
use tollgate_store::{CAPACITY_DEFAULT, Check, GivenBack, MemoryStore, Refund, Verdict};

fn key() -> Key {
    request("ten", 1).key
}

async fn decide(limiter: &Limiter<impl Store>, request: Check<String>) -> (Outcome, DecidedBy) {
    let decision = limiter.decide(request, None).await.unwrap();
    (decision.outcome, decision.decided_by)
}

#[tokio::test]
async fn a_reset_forgets_usage_and_a_refund_gives_units_back() {
    let limiter = healthy();
    assert_eq!(limiter.reset(key(), "ten", None).await, Ok(false));
    decide(&limiter, request("ten", 7)).await;
    let refunded = limiter
        .refund(key(), "ten", Cost::new(4).unwrap(), None)
        .await
        .unwrap();
    assert_eq!(
        (
            refunded.units(),
            refunded.limits[0].0.remaining,
            refunded.limits[0].1
        ),
        (4, 7, 4)
    );
    let refunded = limiter
        .refund(key(), "ten", Cost::new(u64::MAX).unwrap(), None)
        .await
        .unwrap();
    assert_eq!((refunded.units(), refunded.limits[0].0.remaining), (3, 10));
    decide(&limiter, request("ten", 10)).await;
    assert_eq!(limiter.reset(key(), "ten", None).await, Ok(true));
    assert_eq!(
        decide(&limiter, request("ten", 10)).await.0,
        Outcome::Allowed
    );
}

#[tokio::test]
async fn a_plan_without_limits_and_an_unknown_plan_are_errors() {
    let limiter = healthy();
    for plan in ["unlimited", "blocked"] {
        let refused = AdminError::NothingCounted(plan.into());
        assert_eq!(limiter.reset(key(), plan, None).await, Err(refused.clone()));
        assert_eq!(
            limiter.refund(key(), plan, Cost::ONE, None).await,
            Err(refused)
        );
    }
    assert!(matches!(
        limiter.reset(key(), "tem", None).await,
        Err(AdminError::UnknownPlan(_))
    ));
    assert!(matches!(
        limiter.refund(key(), "tem", Cost::ONE, None).await,
        Err(AdminError::UnknownPlan(_))
    ));
}

/// This holds for every policy. Units counted locally meanwhile stay, since nothing was done.
#[tokio::test]
async fn a_store_that_fails_is_an_error() {
    let limiter = broken();
    assert_eq!(
        decide(&limiter, request("ten", 4)).await,
        (Outcome::Allowed, DecidedBy::LocalFallback)
    );
    for plan in ["ten", "allow", "deny"] {
        let refunded = limiter.refund(key(), plan, Cost::ONE, None).await;
        assert_eq!(
            refunded,
            Err(AdminError::Store(StoreError::Unreachable(
                "gone".to_owned()
            )))
        );
        assert!(matches!(
            limiter.reset(key(), plan, None).await,
            Err(AdminError::Store(StoreError::Refused(_)))
        ));
    }
    assert_eq!(
        decide(&limiter, request("ten", 1)).await,
        (Outcome::Denied, DecidedBy::LocalFallback)
    );
}

/// A store that decides and resets, and that can be made unreachable.
struct Shaky {
    counters: MemoryStore,
    down: std::sync::atomic::AtomicBool,
}

impl Store for Shaky {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        let lost = || Err(StoreError::Unreachable("gone".to_owned()));
        let down = self.down.load(Ordering::SeqCst);
        checks
            .iter()
            .map(|check| {
                if down {
                    lost()
                } else {
                    self.counters.decide(check)
                }
            })
            .collect()
    }

    async fn refund_batch(
        &self,
        refunds: &[Refund],
        deadline: StoreDeadline,
    ) -> Vec<Result<GivenBack, StoreError>> {
        if self.down.load(Ordering::SeqCst) {
            let gone = StoreError::Unreachable("gone".to_owned());
            return vec![Err(gone); refunds.len()];
        }
        self.counters.refund_batch(refunds, deadline).await
    }

    async fn reset(&self, subject: &Subject, deadline: StoreDeadline) -> Result<bool, StoreError> {
        self.counters.reset(subject, deadline).await
    }
}

#[tokio::test]
async fn a_reset_forgets_local_counts_and_a_refund_does_not() {
    let counters = MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0));
    let limiter = Limiter::new(
        plans(),
        Shaky {
            counters,
            down: true.into(),
        },
        SETTINGS,
        Arc::new(Clock0),
    );
    let down = |down| limiter.store.down.store(down, Ordering::SeqCst);
    // A third of ten, rounded up.
    assert_eq!(
        decide(&limiter, request("ten", 4)).await,
        (Outcome::Allowed, DecidedBy::LocalFallback)
    );
    down(false);
    assert_eq!(
        limiter
            .refund(key(), "ten", Cost::ONE, None)
            .await
            .unwrap()
            .units(),
        0
    );
    down(true);
    assert_eq!(
        decide(&limiter, request("ten", 1)).await,
        (Outcome::Denied, DecidedBy::LocalFallback)
    );
    assert_eq!(limiter.reset(key(), "ten", None).await, Ok(false));
    assert_eq!(
        decide(&limiter, request("ten", 4)).await,
        (Outcome::Allowed, DecidedBy::LocalFallback)
    );
}

/// A store that records what it was asked for.
#[derive(Default)]
struct RecordsSubjects {
    subjects: Mutex<Vec<(Subject, StoreDeadline)>>,
}

impl Store for RecordsSubjects {
    async fn decide_batch(
        &self,
        checks: &[Check],
        deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        vec![Err(StoreError::Deadline(deadline.0)); checks.len()]
    }

    fn reset(
        &self,
        subject: &Subject,
        deadline: StoreDeadline,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        self.subjects
            .lock()
            .unwrap()
            .push((subject.clone(), deadline));
        std::future::ready(Ok(true))
    }
}

#[tokio::test]
async fn a_reset_covers_all_plans_of_one_counts_as_and_waits_a_second_at_most() {
    let one = Plan {
        counts_as: "one".into(),
        ..plan("a", 5)
    };
    let limiter = Limiter::new(
        [one].into_iter().collect(),
        RecordsSubjects::default(),
        SETTINGS,
        Arc::new(Clock0),
    );
    for caller in [None, Some(DEADLINE / 2), Some(2 * DEADLINE)] {
        assert_eq!(
            limiter
                .reset(key(), "a", caller.map(CallerDeadline::new))
                .await,
            Ok(true)
        );
        let subjects = std::mem::take(&mut *limiter.store.subjects.lock().unwrap());
        let [(subject, deadline)] = &subjects[..] else {
            panic!("{subjects:?}")
        };
        assert_eq!(
            (&*subject.counts_as, &subject.key, *deadline),
            ("one", &key(), StoreDeadline(DEADLINE))
        );
    }
}

/// So that Redis finds them without its list of logs.
#[tokio::test]
async fn a_reset_names_the_windows_of_the_logs_of_all_plans_that_count_as_one() {
    let log = |seconds| {
        Limit::new(
            "log",
            5,
            Duration::from_secs(seconds),
            Algorithm::SlidingLog,
        )
        .unwrap()
    };
    let with = |name, seconds: &[u64]| Plan {
        counts_as: "one".into(),
        rule: Rule::limits(seconds.iter().map(|seconds| log(*seconds))),
        ..plan(name, 5)
    };
    let tried = with("tried", &[53]);
    let other = Plan {
        counts_as: "other".into(),
        ..with("c", &[17])
    };
    let live = with("a", &[97, 60]);
    let live = Plan {
        candidate: Some(Arc::new(tried.as_candidate_of(&live))),
        ..live
    };
    let plans = [
        live,
        with("b", &[61]),
        other,
        Plan {
            counts_as: "one".into(),
            ..plan("d", 5)
        },
    ];
    let limiter = Limiter::new(
        plans.into_iter().collect(),
        RecordsSubjects::default(),
        SETTINGS,
        Arc::new(Clock0),
    );
    assert_eq!(limiter.reset(key(), "d", None).await, Ok(true));
    let subjects = limiter.store.subjects.lock().unwrap();
    let windows_s = |subject: &Subject| {
        subject
            .log_windows_us
            .iter()
            .map(|us| us / 1_000_000)
            .collect::<Vec<u64>>()
    };
    let mut told: Vec<_> = subjects
        .iter()
        .map(|(subject, _)| windows_s(subject))
        .collect();
    told.iter_mut().for_each(|windows| windows.sort_unstable());
    assert_eq!(told, [vec![60, 61, 97], vec![53]]);
}
