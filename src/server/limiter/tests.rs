//! Policies and the deny cache without a network: stores that fail on purpose, and the embedded one.

mod caller_deadlines;
mod holds;
mod joint;
mod policies;
mod remembered;
mod shares;
mod stores;
mod totals;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate_store::StoreDeadline;

pub(super) use self::stores::{Broken, RecordsDeadline};
use super::*;
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::Outcome;
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::{Algorithm, Anchor, Limit, OnStoreFailure, PolicyAnswer, Rule};
use tollgate_store::JointFailure;
use tollgate_store::Verdict;
use tollgate_store::clock::monotonic;

pub(super) struct Clock0;

impl Clock for Clock0 {
    fn now_us(&self) -> u64 {
        1_000_000_000_000_000
    }
}

/// Time stands still until it is moved, by milliseconds.
struct StillClock(AtomicU64, Instant);

impl StillClock {
    fn start() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(0), monotonic()))
    }

    fn pass(&self, milliseconds: u64) {
        self.0.fetch_add(milliseconds, Ordering::SeqCst);
    }
}

impl Clock for StillClock {
    fn now_us(&self) -> u64 {
        1_000_000_000_000_000
    }

    fn monotonic(&self) -> Instant {
        self.1 + Duration::from_millis(self.0.load(Ordering::SeqCst))
    }
}

pub(super) const SETTINGS: LimiterSettings = LimiterSettings {
    deadline: Duration::from_millis(25),
    expected_replicas: 3,
    deny_cache_entries: 100,
};

pub(super) fn plan(name: &str, quota: u64) -> Plan {
    let fixed = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };
    let limit = Limit::new("minute", quota, Duration::from_secs(60), fixed).unwrap();
    Plan::new(name, Rule::limits([limit]))
}

pub(super) fn plans() -> PlanSet {
    let rule = |name: &str, rule| Plan {
        rule,
        ..plan(name, 1)
    };
    let policy = |name: &str, on_store_failure| Plan {
        on_store_failure,
        ..plan(name, 10)
    };
    [
        plan("ten", 10),
        Plan {
            shadow: true,
            ..plan("shadow", 10)
        },
        rule("unlimited", Rule::Unlimited),
        rule("blocked", Rule::Blocked),
        Plan {
            shadow: true,
            ..rule("shadow blocked", Rule::Blocked)
        },
        policy("allow", OnStoreFailure::Allow),
        policy("deny", OnStoreFailure::Deny),
        Plan {
            shadow: true,
            ..policy("shadow deny", OnStoreFailure::Deny)
        },
    ]
    .into_iter()
    .collect()
}

pub(super) fn limiter<S: Store>(store: S) -> Limiter<S> {
    Limiter::new(plans(), store, SETTINGS, Arc::new(Clock0))
}

pub(super) fn healthy() -> Limiter<MemoryStore> {
    limiter(MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)))
}

pub(super) fn broken() -> Limiter<Broken> {
    limiter(Broken(StoreError::Unreachable("gone".to_owned())))
}

pub(super) fn request(plan: &str, cost: u64) -> Check<String> {
    let key = Key::new("alice").unwrap();
    let cost = Cost::new(cost).unwrap();
    Check {
        key,
        plan: plan.to_owned(),
        cost,
        mode: Mode::Charge,
    }
}

pub(super) async fn check<S: Store>(
    limiter: &Limiter<S>,
    plan: &str,
    cost: u64,
) -> (Outcome, DecidedBy) {
    let decision = limiter.decide(request(plan, cost), None).await.unwrap();
    (decision.outcome, decision.decided_by)
}

#[tokio::test]
async fn the_store_decides_and_gives_the_numbers() {
    let limiter = healthy();
    let first = limiter.decide(request("ten", 7), None).await.unwrap();
    assert_eq!(
        (first.outcome, first.binding().unwrap().remaining),
        (Outcome::Allowed, 3)
    );
    assert_eq!(
        check(&limiter, "ten", 4).await,
        (Outcome::Denied, DecidedBy::Store)
    );
}

#[tokio::test]
async fn plans_without_limits_and_costs_that_never_fit_need_no_store() {
    let limiter = broken();
    assert_eq!(
        check(&limiter, "unlimited", u64::MAX).await,
        (Outcome::Allowed, DecidedBy::Plan)
    );
    assert_eq!(
        check(&limiter, "blocked", 1).await,
        (Outcome::Denied, DecidedBy::Plan)
    );
    assert_eq!(
        check(&limiter, "ten", 11).await,
        (Outcome::NeverFits, DecidedBy::Plan)
    );
    let never = limiter
        .decide(request("ten", u64::MAX), None)
        .await
        .unwrap()
        .binding()
        .unwrap()
        .clone();
    assert_eq!((never.limit, never.retry_after_us), (10, None));
}

#[tokio::test]
async fn shadow_mode_reports_every_denial_and_allows() {
    let limiter = healthy();
    assert_eq!(
        check(&limiter, "shadow", 10).await,
        (Outcome::Allowed, DecidedBy::Store)
    );
    let denied = limiter.decide(request("shadow", 1), None).await.unwrap();
    assert!(
        denied.allowed()
            && denied.outcome == Outcome::ShadowDenied
            && denied.binding().unwrap().retry_after_us.is_some()
    );
    assert_eq!(
        check(&limiter, "shadow", 11).await,
        (Outcome::ShadowDenied, DecidedBy::Plan)
    );
    assert_eq!(
        check(&limiter, "shadow blocked", 1).await,
        (Outcome::ShadowDenied, DecidedBy::Plan)
    );
    assert_eq!(
        check(&broken(), "shadow deny", 1).await,
        (Outcome::ShadowDenied, DecidedBy::FailClosed)
    );
}

#[tokio::test]
async fn a_batch_is_answered_in_its_order() {
    let requests = ["ten", "unlimited", "no such", "ten", "blocked"]
        .map(|plan| request(plan, 6))
        .to_vec();
    let answers = healthy().decide_batch(requests, None).await.unwrap();
    let outcomes: Vec<Option<Outcome>> = answers
        .into_iter()
        .map(|answer| answer.ok().map(|decision| decision.outcome))
        .collect();
    let expected = [
        Some(Outcome::Allowed),
        Some(Outcome::Allowed),
        None,
        Some(Outcome::Denied),
        Some(Outcome::Denied),
    ];
    assert_eq!(outcomes, expected);
}

#[tokio::test]
async fn an_unknown_plan_is_an_error() {
    let Err(Refusal::UnknownPlan(unknown)) = healthy().decide(request("tne", 1), None).await else {
        panic!("it is known")
    };
    assert_eq!(unknown.nearest.as_deref(), Some("ten"));
    let refused = healthy().decide_with_plan(request("tne", 1), None).await;
    assert!(
        matches!(
            refused,
            Err(Refusal::UnknownPlan(UnknownPlan {
                nearest: Some(_),
                ..
            }))
        ),
        "{refused:?}"
    );
    // A batch gets no suggestions: a thousand names are not compared with all plans.
    let batch = healthy()
        .decide_batch(vec![request("tne", 1), request("ten", 1)], None)
        .await
        .unwrap();
    assert!(
        matches!(
            &batch[0],
            Err(Refusal::UnknownPlan(UnknownPlan { nearest: None, .. }))
        ) && batch[1].is_ok(),
        "{batch:?}"
    );
}

/// Decisions with this outcome by this decider, counted for a plan over all limiters.
pub(super) fn counted_for(
    limiter: &Limiter<impl Store>,
    plan: &str,
    outcome: Outcome,
    by: DecidedBy,
) -> u64 {
    let totals = limiter.totals();
    let (plan_index, _) = totals.snapshot().plans().find(plan).unwrap();
    totals.decisions(plan_index, outcome, by)
}

/// A store whose future is large.
struct Large;

/// Far more than a limiter itself keeps for a call.
const LARGE: usize = 8192;

impl Store for Large {
    async fn decide_one(
        &self,
        check: &Check,
        deadline: StoreDeadline,
    ) -> Result<Verdict, StoreError> {
        self.decide_batch(std::slice::from_ref(check), deadline)
            .await
            .remove(0)
    }

    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        let kept = [0_u8; LARGE];
        tokio::task::yield_now().await;
        vec![
            Err(StoreError::Refused(format!(
                "{} bytes were kept",
                kept.len()
            )));
            checks.len()
        ]
    }
}

/// Each decision under way allocates that much memory, which is written and moved.
#[tokio::test]
async fn a_decision_holds_the_store_s_future_once() {
    let limiter = limiter(Large);
    let decision = limiter.decide(request("ten", 1), None);
    let batch = limiter.decide_batch(vec![request("ten", 1)], None);
    let bytes = (size_of_val(&decision), size_of_val(&batch));
    // That of a batch is boxed.
    assert!(bytes.0 < 2 * LARGE && bytes.1 < LARGE, "{bytes:?}");
    assert!(bytes.0 > LARGE, "it is there at all: {bytes:?}");
    assert_eq!(decision.await.unwrap().decided_by, DecidedBy::LocalFallback);
}

/// A clock that the test moves, wall and monotonic time together.
pub(super) struct ManualClock {
    pub(super) passed_us: AtomicU64,
    pub(super) began: Instant,
}

impl ManualClock {
    pub(super) fn pass(&self, us: u64) {
        self.passed_us.fetch_add(us, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_us(&self) -> u64 {
        Clock0.now_us() + self.passed_us.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Instant {
        self.began + Duration::from_micros(self.passed_us.load(Ordering::SeqCst))
    }
}
