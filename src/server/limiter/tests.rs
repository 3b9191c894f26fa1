//! Policies and the deny cache without a network: stores that fail on purpose, and the embedded one.

mod holds;
mod joint;
mod policies;
mod shares;
mod stores;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tollgate_store::StoreDeadline;

pub(super) use self::stores::{Broken, RecordsDeadline};
use super::*;
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::Outcome;
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::{Algorithm, Anchor, Limit, OnStoreFailure, Rule};
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
    let (key, cost) = (Key::new("alice").unwrap(), Cost::new(cost).unwrap());
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

/// What a caller with this deadline gets from a store: one decision, then the first of a batch.
async fn decided_by_silent(
    store: impl Store,
    caller_us: u64,
    plan: &str,
) -> [Result<DecidedBy, Refusal>; 2] {
    let limiter = limiter(store);
    let caller = Some(CallerDeadline::new(Duration::from_micros(caller_us)));
    let alone = limiter
        .decide(request(plan, 1), caller)
        .await
        .map(|decision| decision.decided_by);
    let batch = limiter
        .decide_batch(vec![request(plan, 1), request("unlimited", 1)], caller)
        .await;
    let totals = limiter.totals();
    let blamed: u64 = totals.count(LimiterCounter::StoreErrors);
    assert_eq!(
        (
            totals.count(LimiterCounter::CallerDeadlines) + blamed,
            totals.waiting
        ),
        (2, 0),
        "each is counted once, as one or as the other"
    );
    assert_eq!(
        totals.store_durations.count(),
        blamed,
        "an abandoned call does not show how long the store takes"
    );
    [
        alone,
        batch
            .and_then(|answers| answers[0].clone())
            .map(|decision| decision.decided_by),
    ]
}

const SILENCE: [(&str, DecidedBy); 3] = [
    ("allow", DecidedBy::FailOpen),
    ("deny", DecidedBy::FailClosed),
    ("ten", DecidedBy::LocalFallback),
];

/// Answers only at its deadline.
struct Silent;

impl Store for Silent {
    async fn decide_batch(
        &self,
        checks: &[Check],
        deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        tokio::time::sleep(deadline.0).await;
        vec![Err(StoreError::Deadline(deadline.0)); checks.len()]
    }
}

#[tokio::test]
async fn a_caller_s_deadline_below_the_store_s_gets_no_policy_and_is_no_store_failure() {
    for (plan, by) in SILENCE {
        for short_us in [0, 1, 24_999] {
            assert_eq!(
                decided_by_silent(Silent, short_us, plan).await,
                [Err(Refusal::CallerDeadline), Err(Refusal::CallerDeadline)]
            );
        }
        // The store had its whole deadline, so it failed, whatever the caller's deadline.
        for long_us in [25_000, 1_000_000] {
            assert_eq!(
                decided_by_silent(Silent, long_us, plan).await,
                [Ok(by), Ok(by)]
            );
        }
    }
}

/// Both timers may have fired: the caller still waited for less than the store's deadline.
#[tokio::test]
async fn a_store_s_deadline_error_that_comes_first_is_still_later_than_a_shorter_caller_s_deadline()
{
    let early = || RecordsDeadline(Default::default());
    for (plan, by) in SILENCE {
        assert_eq!(
            decided_by_silent(early(), 24_999, plan).await,
            [Err(Refusal::CallerDeadline), Err(Refusal::CallerDeadline)]
        );
        assert_eq!(
            decided_by_silent(early(), 25_000, plan).await,
            [Ok(by), Ok(by)]
        );
    }
}

/// As with an open circuit breaker: an immediate error is answered by policy, if the caller has any time at all.
#[tokio::test]
async fn a_store_that_is_known_to_be_out_is_answered_by_policy_whatever_the_caller_s_deadline() {
    for (plan, by) in SILENCE {
        let out = || Broken(StoreError::Unreachable("gone".to_owned()));
        assert_eq!(decided_by_silent(out(), 1, plan).await, [Ok(by), Ok(by)]);
        assert_eq!(
            decided_by_silent(out(), 0, plan).await,
            [Err(Refusal::CallerDeadline), Err(Refusal::CallerDeadline)]
        );
    }
}

/// A full embedded store counts as a failing store.
#[tokio::test]
async fn a_caller_without_time_gets_no_policy_of_the_embedded_store_either() {
    let none = Some(CallerDeadline::new(Duration::ZERO));
    for answer in [Ok(()), Err(StoreError::Full)] {
        let answer = match answer {
            Ok(()) => healthy().decide(request("allow", 1), none).await,
            Err(error) => {
                limiter(Broken(error))
                    .decide(request("allow", 1), none)
                    .await
            }
        };
        assert_eq!(answer, Err(Refusal::CallerDeadline));
    }
    let decided = healthy()
        .decide(request("unlimited", 1), none)
        .await
        .unwrap();
    assert_eq!(
        decided.decided_by,
        DecidedBy::Plan,
        "what needs no store needs no time"
    );
}

#[tokio::test]
async fn the_store_is_given_its_own_deadline_whatever_the_caller_s_is() {
    for caller_ms in [None, Some(7), Some(1000)] {
        let limiter = limiter(RecordsDeadline(Default::default()));
        let _ = limiter
            .decide(
                request("ten", 1),
                caller_ms
                    .map(Duration::from_millis)
                    .map(CallerDeadline::new),
            )
            .await;
        assert_eq!(
            *limiter.store.0.lock().unwrap(),
            Some(StoreDeadline(SETTINGS.deadline)),
            "{caller_ms:?}"
        );
    }
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

/// Exact counters behind a slow network: a call takes `ONE_WAY_US` each way. Counts the checks that it gets.
struct Remote {
    counters: MemoryStore,
    clock: Arc<ManualClock>,
    checks: AtomicU64,
}

const ONE_WAY_US: u64 = 3_000;

impl Store for Remote {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        self.checks.fetch_add(checks.len() as u64, Ordering::SeqCst);
        self.clock.pass(ONE_WAY_US);
        let answers = checks
            .iter()
            .map(|check| self.counters.decide(check))
            .collect();
        self.clock.pass(ONE_WAY_US);
        answers
    }
}

fn remote(deny_cache_entries: usize) -> (Limiter<Remote>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock {
        passed_us: AtomicU64::new(0),
        began: monotonic(),
    });
    let counters = MemoryStore::new(CAPACITY_DEFAULT, clock.clone());
    let store = Remote {
        counters,
        clock: clock.clone(),
        checks: AtomicU64::new(0),
    };
    let bucket = |name: &str, shadow| {
        let limit = Limit::new(
            "rate",
            10,
            Duration::from_secs(1),
            Algorithm::TokenBucket { burst: 2 },
        )
        .unwrap();
        Plan {
            rule: Rule::limits([limit]),
            shadow,
            counts_as: "bucket".into(),
            ..plan(name, 1)
        }
    };
    let plans = [bucket("bucket", false), bucket("shadow bucket", true)]
        .into_iter()
        .collect();
    let settings = LimiterSettings {
        deny_cache_entries,
        ..SETTINGS
    };
    (Limiter::new(plans, store, settings, clock.clone()), clock)
}

fn store_checks(limiter: &Limiter<Remote>) -> u64 {
    limiter.store.checks.load(Ordering::SeqCst)
}

/// The bucket's two units are taken 6 ms apart, 3 ms into each call. One unit comes back every 100 ms.
#[tokio::test]
async fn a_denial_is_remembered_until_its_release_counted_from_the_start_of_the_call() {
    let (limiter, clock) = remote(100);
    for _ in 0..2 {
        assert_eq!(
            check(&limiter, "bucket", 1).await,
            (Outcome::Allowed, DecidedBy::Store)
        );
    }
    let denied = limiter.decide(request("bucket", 1), None).await.unwrap();
    // Decided at 15 ms. The units taken at 3 ms and 9 ms leave a debt whose next unit is back at 103 ms.
    assert_eq!(denied.binding().unwrap().retry_after_us, Some(88_000));
    let remembered = limiter.decide(request("bucket", 1), None).await.unwrap();
    assert_eq!(
        (remembered.outcome, remembered.decided_by),
        (Outcome::Denied, DecidedBy::DenyCache)
    );
    // At 18 ms, 6 ms after the call began. The wait is too short by the 3 ms of the way there, and by no more.
    let binding = remembered.binding().unwrap();
    assert_eq!(
        (binding.retry_after_us, binding.remaining),
        (Some(82_000), 0)
    );
    assert_eq!(binding.reset_after_us, 182_000);
    // The call that was denied began at 12 ms, so the denial is remembered until 100 ms.
    clock.pass(82_000 - 1);
    assert_eq!(check(&limiter, "bucket", 1).await.1, DecidedBy::DenyCache);
    assert_eq!(store_checks(&limiter), 3);
    clock.pass(1);
    assert_eq!(
        check(&limiter, "bucket", 1).await,
        (Outcome::Allowed, DecidedBy::Store)
    );
}

#[tokio::test]
async fn a_peek_asks_the_store_and_a_shadow_plan_remembers_a_shadow_denial() {
    let (limiter, _clock) = remote(100);
    for plan in ["bucket", "bucket", "bucket", "shadow bucket"] {
        check(&limiter, plan, 1).await;
    }
    let peek = Check {
        mode: Mode::Peek,
        ..request("bucket", 1)
    };
    assert_eq!(
        limiter.decide(peek, None).await.unwrap().decided_by,
        DecidedBy::Store
    );
    assert_eq!(
        check(&limiter, "bucket", 1).await,
        (Outcome::Denied, DecidedBy::DenyCache)
    );
    assert_eq!(
        check(&limiter, "shadow bucket", 1).await,
        (Outcome::ShadowDenied, DecidedBy::DenyCache)
    );
    assert_eq!(
        check(&limiter, "bucket", 3).await,
        (Outcome::NeverFits, DecidedBy::Plan)
    );
}

#[tokio::test]
async fn a_batch_sends_the_store_only_requests_without_a_remembered_denial() {
    let (limiter, _clock) = remote(100);
    check(&limiter, "bucket", 1).await;
    assert_eq!(
        check(&limiter, "bucket", 2).await,
        (Outcome::Denied, DecidedBy::Store)
    );
    let answers = limiter
        .decide_batch(
            [1, 2, 1, 2].map(|cost| request("bucket", cost)).to_vec(),
            None,
        )
        .await
        .unwrap();
    let answers: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.map(|it| (it.outcome, it.decided_by)).unwrap())
        .collect();
    let remembered = (Outcome::Denied, DecidedBy::DenyCache);
    let expected = [
        (Outcome::Allowed, DecidedBy::Store),
        remembered,
        (Outcome::Denied, DecidedBy::Store),
        remembered,
    ];
    assert_eq!(answers, expected);
    assert_eq!(store_checks(&limiter), 4);
    // The batch's own denial is remembered too.
    assert_eq!(check(&limiter, "bucket", 1).await, remembered);
}

#[tokio::test]
async fn without_a_cache_and_with_an_embedded_store_no_denial_is_remembered() {
    let (limiter, _clock) = remote(0);
    for _ in 0..5 {
        assert_eq!(check(&limiter, "bucket", 1).await.1, DecidedBy::Store);
    }
    assert_eq!(store_checks(&limiter), 5);
    let embedded = healthy();
    for _ in 0..12 {
        assert_eq!(check(&embedded, "ten", 1).await.1, DecidedBy::Store);
    }
}

#[tokio::test]
async fn only_denials_by_the_store_are_remembered() {
    for (plan, by) in [
        ("deny", DecidedBy::FailClosed),
        ("ten", DecidedBy::LocalFallback),
    ] {
        let limiter = broken();
        for _ in 0..6 {
            assert_eq!(check(&limiter, plan, 1).await.1, by);
        }
    }
}
