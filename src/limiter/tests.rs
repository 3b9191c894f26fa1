//! Policies, without a network: a store that fails on purpose, and the embedded one.

use std::time::Duration;

use super::*;
use crate::plan::{Algorithm, Anchor, Limit};

struct Clock0;

impl Clock for Clock0 {
    fn now_us(&self) -> u64 {
        1_000_000_000_000_000
    }
}

/// Answers each batch with this error.
struct Broken(StoreError);

impl Store for Broken {
    async fn decide_batch(&self, asks: &[Ask], _deadline: Duration) -> Vec<Result<Verdict, StoreError>> {
        vec![Err(self.0.clone()); asks.len()]
    }
}

/// Remembers nothing and tells the deadline it was given.
struct TellsDeadline(std::sync::Mutex<Option<Duration>>);

impl Store for TellsDeadline {
    async fn decide_batch(&self, asks: &[Ask], deadline: Duration) -> Vec<Result<Verdict, StoreError>> {
        *self.0.lock().unwrap() = Some(deadline);
        vec![Err(StoreError::Deadline(deadline)); asks.len()]
    }
}

const SETTINGS: Settings = Settings { deadline: Duration::from_millis(25), expected_replicas: 3 };

fn plan(name: &str, quota: u64) -> Plan {
    let fixed = Algorithm::FixedWindow { anchor: Anchor::Clock };
    let limit = Limit::new("minute", quota, Duration::from_secs(60), fixed).unwrap();
    Plan {
        name: name.into(),
        counts_as: name.into(),
        rule: Rule::Limits(vec![limit]),
        shadow: false,
        on_store_failure: OnStoreFailure::Local,
    }
}

fn plans() -> PlanSet {
    let rule = |name: &str, rule| Plan { rule, ..plan(name, 1) };
    let policy = |name: &str, on_store_failure| Plan { on_store_failure, ..plan(name, 10) };
    [
        plan("ten", 10),
        Plan { shadow: true, ..plan("shadow", 10) },
        rule("unlimited", Rule::Unlimited),
        rule("blocked", Rule::Blocked),
        Plan { shadow: true, ..rule("shadow blocked", Rule::Blocked) },
        policy("allow", OnStoreFailure::Allow),
        policy("deny", OnStoreFailure::Deny),
        Plan { shadow: true, ..policy("shadow deny", OnStoreFailure::Deny) },
    ]
    .into_iter()
    .collect()
}

fn limiter<S: Store>(store: S) -> Limiter<S> {
    Limiter::new(plans(), store, SETTINGS, Arc::new(Clock0))
}

fn healthy() -> Limiter<MemoryStore> {
    limiter(MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)))
}

fn broken() -> Limiter<Broken> {
    limiter(Broken(StoreError::Unreachable("gone".to_owned())))
}

fn question(plan: &str, cost: u64) -> Question {
    let (key, cost) = (Key::new("alice").unwrap(), Cost::new(cost).unwrap());
    Question { key, plan: plan.to_owned(), cost, mode: Mode::Charge }
}

async fn ask<S: Store>(limiter: &Limiter<S>, plan: &str, cost: u64) -> (Outcome, DecidedBy) {
    let decision = limiter.decide(question(plan, cost), None).await.unwrap();
    (decision.outcome, decision.decided_by)
}

#[tokio::test]
async fn the_store_decides_and_tells_the_numbers() {
    let limiter = healthy();
    let first = limiter.decide(question("ten", 7), None).await.unwrap();
    assert_eq!((first.outcome, first.binding.unwrap().remaining), (Outcome::Allowed, 3));
    assert_eq!(ask(&limiter, "ten", 4).await, (Outcome::Denied, DecidedBy::Store));
}

#[tokio::test]
async fn plans_without_limits_and_costs_that_never_fit_need_no_store() {
    let limiter = broken();
    assert_eq!(ask(&limiter, "unlimited", u64::MAX).await, (Outcome::Allowed, DecidedBy::Plan));
    assert_eq!(ask(&limiter, "blocked", 1).await, (Outcome::Denied, DecidedBy::Plan));
    assert_eq!(ask(&limiter, "ten", 11).await, (Outcome::NeverFits, DecidedBy::Plan));
    let never = limiter.decide(question("ten", u64::MAX), None).await.unwrap().binding.unwrap();
    assert_eq!((never.limit, never.retry_after_us), (10, None));
}

#[tokio::test]
async fn shadow_reports_every_no_and_says_yes() {
    let limiter = healthy();
    assert_eq!(ask(&limiter, "shadow", 10).await, (Outcome::Allowed, DecidedBy::Store));
    let denied = limiter.decide(question("shadow", 1), None).await.unwrap();
    assert!(denied.allowed() && denied.outcome == Outcome::ShadowDenied && denied.binding.unwrap().retry_after_us.is_some());
    assert_eq!(ask(&limiter, "shadow", 11).await, (Outcome::ShadowDenied, DecidedBy::Plan));
    assert_eq!(ask(&limiter, "shadow blocked", 1).await, (Outcome::ShadowDenied, DecidedBy::Plan));
    assert_eq!(ask(&broken(), "shadow deny", 1).await, (Outcome::ShadowDenied, DecidedBy::FailClosed));
}

#[tokio::test]
async fn a_store_that_cannot_decide_is_answered_for_by_the_plan() {
    let limiter = broken();
    assert_eq!(ask(&limiter, "allow", 1).await, (Outcome::Allowed, DecidedBy::FailOpen));
    assert_eq!(ask(&limiter, "deny", 1).await, (Outcome::Denied, DecidedBy::FailClosed));
}

#[tokio::test]
async fn local_counts_a_share_rounded_up() {
    let limiter = broken();
    for _ in 0..4 {
        assert_eq!(ask(&limiter, "ten", 1).await, (Outcome::Allowed, DecidedBy::LocalFallback));
    }
    assert_eq!(ask(&limiter, "ten", 1).await, (Outcome::Denied, DecidedBy::LocalFallback));
    assert_eq!(ask(&limiter, "ten", 5).await, (Outcome::Denied, DecidedBy::LocalFallback));
}

#[tokio::test]
async fn a_full_embedded_store_allows_unless_the_plan_denies() {
    let limiter = limiter(Broken(StoreError::Full));
    assert_eq!(ask(&limiter, "ten", 1).await, (Outcome::Allowed, DecidedBy::FailOpen));
    assert_eq!(ask(&limiter, "deny", 1).await, (Outcome::Denied, DecidedBy::FailClosed));
}

#[tokio::test]
async fn a_flood_on_a_healthy_store_is_refused_and_opens_no_limit() {
    let limiter = limiter(Broken(StoreError::Overloaded(1)));
    for plan in ["ten", "allow", "deny"] {
        assert_eq!(limiter.decide(question(plan, 1), None).await, Err(Refusal::Overloaded));
    }
}

#[tokio::test]
async fn a_batch_is_answered_in_its_order() {
    let questions = ["ten", "unlimited", "no such", "ten", "blocked"].map(|plan| question(plan, 6)).to_vec();
    let answers = healthy().decide_batch(questions, None).await;
    let outcomes: Vec<Option<Outcome>> = answers.into_iter().map(|answer| answer.ok().map(|decision| decision.outcome)).collect();
    let expected = [Some(Outcome::Allowed), Some(Outcome::Allowed), None, Some(Outcome::Denied), Some(Outcome::Denied)];
    assert_eq!(outcomes, expected);
}

#[tokio::test]
async fn the_store_is_given_the_shorter_of_both_deadlines() {
    for (patience_ms, given_ms) in [(None, 25), (Some(7), 7), (Some(1000), 25), (Some(0), 0)] {
        let limiter = limiter(TellsDeadline(Default::default()));
        limiter.decide(question("ten", 1), patience_ms.map(Duration::from_millis)).await.unwrap();
        assert_eq!(*limiter.store.0.lock().unwrap(), Some(Duration::from_millis(given_ms)));
    }
}

#[tokio::test]
async fn an_unknown_plan_is_an_error() {
    let Err(Refusal::UnknownPlan(unknown)) = healthy().decide(question("tne", 1), None).await else { panic!("it is known") };
    assert_eq!(unknown.nearest.as_deref(), Some("ten"));
}

#[tokio::test]
async fn limiters_beside_each_other_count_one_share_when_their_stores_fail() {
    let one = broken();
    let other = one.beside(Broken(StoreError::Deadline(Duration::from_millis(25))));
    // A third of ten, rounded up.
    for limiter in [&one, &other, &one, &other] {
        assert_eq!(ask(limiter, "ten", 1).await, (Outcome::Allowed, DecidedBy::LocalFallback));
    }
    for limiter in [&one, &other] {
        assert_eq!(ask(limiter, "ten", 1).await, (Outcome::Denied, DecidedBy::LocalFallback));
    }
    assert_eq!(one.config_hash(), other.config_hash());
}
