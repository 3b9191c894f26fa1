//! Policies, without a network: a store that fails on purpose, and the embedded one.

mod shares;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::clock::monotonic;
use crate::plan::{Algorithm, Anchor, Limit};

pub(super) struct Clock0;

impl Clock for Clock0 {
    fn now_us(&self) -> u64 {
        1_000_000_000_000_000
    }
}

/// Answers each batch with this error.
pub(super) struct Broken(StoreError);

impl Store for Broken {
    async fn decide_batch(&self, asks: &[Ask], _deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        vec![Err(self.0.clone()); asks.len()]
    }
}

/// Remembers nothing and tells the deadline it was given.
struct TellsDeadline(std::sync::Mutex<Option<StoreDeadline>>);

impl Store for TellsDeadline {
    async fn decide_batch(&self, asks: &[Ask], deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        *self.0.lock().unwrap() = Some(deadline);
        vec![Err(StoreError::Deadline(deadline.0)); asks.len()]
    }
}

pub(super) const SETTINGS: Settings =
    Settings { deadline: Duration::from_millis(25), expected_replicas: 3, deny_cache_entries: 100 };

pub(super) fn plan(name: &str, quota: u64) -> Plan {
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

pub(super) fn plans() -> PlanSet {
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

pub(super) fn limiter<S: Store>(store: S) -> Limiter<S> {
    Limiter::new(plans(), store, SETTINGS, Arc::new(Clock0))
}

pub(super) fn healthy() -> Limiter<MemoryStore> {
    limiter(MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)))
}

pub(super) fn broken() -> Limiter<Broken> {
    limiter(Broken(StoreError::Unreachable("gone".to_owned())))
}

pub(super) fn question(plan: &str, cost: u64) -> Question {
    let (key, cost) = (Key::new("alice").unwrap(), Cost::new(cost).unwrap());
    Question { key, plan: plan.to_owned(), cost, mode: Mode::Charge }
}

pub(super) async fn ask<S: Store>(limiter: &Limiter<S>, plan: &str, cost: u64) -> (Outcome, DecidedBy) {
    let decision = limiter.decide(question(plan, cost), None).await.unwrap();
    (decision.outcome, decision.decided_by)
}

#[tokio::test]
async fn the_store_decides_and_tells_the_numbers() {
    let limiter = healthy();
    let first = limiter.decide(question("ten", 7), None).await.unwrap();
    assert_eq!((first.outcome, first.binding().unwrap().remaining), (Outcome::Allowed, 3));
    assert_eq!(ask(&limiter, "ten", 4).await, (Outcome::Denied, DecidedBy::Store));
}

#[tokio::test]
async fn plans_without_limits_and_costs_that_never_fit_need_no_store() {
    let limiter = broken();
    assert_eq!(ask(&limiter, "unlimited", u64::MAX).await, (Outcome::Allowed, DecidedBy::Plan));
    assert_eq!(ask(&limiter, "blocked", 1).await, (Outcome::Denied, DecidedBy::Plan));
    assert_eq!(ask(&limiter, "ten", 11).await, (Outcome::NeverFits, DecidedBy::Plan));
    let never = limiter.decide(question("ten", u64::MAX), None).await.unwrap().binding().unwrap().clone();
    assert_eq!((never.limit, never.retry_after_us), (10, None));
}

#[tokio::test]
async fn shadow_reports_every_no_and_says_yes() {
    let limiter = healthy();
    assert_eq!(ask(&limiter, "shadow", 10).await, (Outcome::Allowed, DecidedBy::Store));
    let denied = limiter.decide(question("shadow", 1), None).await.unwrap();
    assert!(denied.allowed() && denied.outcome == Outcome::ShadowDenied && denied.binding().unwrap().retry_after_us.is_some());
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
    let answers = healthy().decide_batch(questions, None).await.unwrap();
    let outcomes: Vec<Option<Outcome>> = answers.into_iter().map(|answer| answer.ok().map(|decision| decision.outcome)).collect();
    let expected = [Some(Outcome::Allowed), Some(Outcome::Allowed), None, Some(Outcome::Denied), Some(Outcome::Denied)];
    assert_eq!(outcomes, expected);
}

/// What a caller that waits for so long is told of a store that never answers within its own deadline.
async fn told_by(store: impl Store, caller_us: u64, plan: &str) -> [Result<DecidedBy, Refusal>; 2] {
    let limiter = limiter(store);
    let caller = Some(CallerDeadline::new(Duration::from_micros(caller_us)));
    let alone = limiter.decide(question(plan, 1), caller).await.map(|decision| decision.decided_by);
    let batch = limiter.decide_batch(vec![question(plan, 1), question("unlimited", 1)], caller).await;
    let totals = limiter.totals();
    let blamed: u64 = totals.store_errors.iter().sum();
    assert_eq!((totals.callers_gone + blamed, totals.waiting), (2, 0), "each is noted once, as one or as the other");
    assert_eq!(totals.store_durations.count(), blamed, "what was given up tells nothing of how long the store takes");
    [alone, batch.and_then(|answers| answers[0].clone()).map(|decision| decision.decided_by)]
}

const SILENCE: [(&str, DecidedBy); 3] =
    [("allow", DecidedBy::FailOpen), ("deny", DecidedBy::FailClosed), ("ten", DecidedBy::LocalFallback)];

/// Answers nothing before its deadline.
struct Silent;

impl Store for Silent {
    async fn decide_batch(&self, asks: &[Ask], deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        tokio::time::sleep(deadline.0).await;
        vec![Err(StoreError::Deadline(deadline.0)); asks.len()]
    }
}

#[tokio::test]
async fn a_caller_s_deadline_below_the_store_s_gets_no_policy_and_blames_nobody() {
    for (plan, by) in SILENCE {
        for short_us in [0, 1, 24_999] {
            assert_eq!(told_by(Silent, short_us, plan).await, [Err(Refusal::CallerDeadline), Err(Refusal::CallerDeadline)]);
        }
        // The store had all its time: it failed, whoever asked.
        for long_us in [25_000, 1_000_000] {
            assert_eq!(told_by(Silent, long_us, plan).await, [Ok(by), Ok(by)]);
        }
    }
}

/// Both timers may be due when they are looked at: then too, less was waited than the store may take.
#[tokio::test]
async fn a_store_s_deadline_that_is_told_first_is_still_later_than_a_shorter_caller_s() {
    let early = || TellsDeadline(Default::default());
    for (plan, by) in SILENCE {
        assert_eq!(told_by(early(), 24_999, plan).await, [Err(Refusal::CallerDeadline), Err(Refusal::CallerDeadline)]);
        assert_eq!(told_by(early(), 25_000, plan).await, [Ok(by), Ok(by)]);
    }
}

/// As with an open breaker: what is known at once is told to those who have any time at all.
#[tokio::test]
async fn a_store_that_is_known_to_be_out_is_answered_for_by_policy_whatever_time_there_is() {
    for (plan, by) in SILENCE {
        let out = || Broken(StoreError::Unreachable("gone".to_owned()));
        assert_eq!(told_by(out(), 1, plan).await, [Ok(by), Ok(by)]);
        assert_eq!(told_by(out(), 0, plan).await, [Err(Refusal::CallerDeadline), Err(Refusal::CallerDeadline)]);
    }
}

/// A full embedded store is a store that fails.
#[tokio::test]
async fn a_caller_without_time_gets_no_policy_of_the_embedded_store_either() {
    let none = Some(CallerDeadline::new(Duration::ZERO));
    for answer in [Ok(()), Err(StoreError::Full)] {
        let told = match answer {
            Ok(()) => healthy().decide(question("allow", 1), none).await,
            Err(error) => limiter(Broken(error)).decide(question("allow", 1), none).await,
        };
        assert_eq!(told, Err(Refusal::CallerDeadline));
    }
    let decided = healthy().decide(question("unlimited", 1), none).await.unwrap();
    assert_eq!(decided.decided_by, DecidedBy::Plan, "what needs no store needs no time");
}

#[tokio::test]
async fn the_store_is_given_its_own_deadline_whoever_asks() {
    for caller_ms in [None, Some(7), Some(1000)] {
        let limiter = limiter(TellsDeadline(Default::default()));
        let _ = limiter.decide(question("ten", 1), caller_ms.map(Duration::from_millis).map(CallerDeadline::new)).await;
        assert_eq!(*limiter.store.0.lock().unwrap(), Some(StoreDeadline(SETTINGS.deadline)), "{caller_ms:?}");
    }
}

#[tokio::test]
async fn an_unknown_plan_is_an_error() {
    let Err(Refusal::UnknownPlan(unknown)) = healthy().decide(question("tne", 1), None).await else { panic!("it is known") };
    assert_eq!(unknown.nearest.as_deref(), Some("ten"));
    let told = healthy().decide_and_tell(question("tne", 1), None).await;
    assert!(matches!(told, Err(Refusal::UnknownPlan(UnknownPlan { nearest: Some(_), .. }))), "{told:?}");
    // A thousand names are not compared with all plans.
    let batch = healthy().decide_batch(vec![question("tne", 1), question("ten", 1)], None).await.unwrap();
    assert!(matches!(&batch[0], Err(Refusal::UnknownPlan(UnknownPlan { nearest: None, .. }))) && batch[1].is_ok(), "{batch:?}");
}

/// Decisions counted for a plan, all limiters together, that had this outcome from this decider.
pub(super) fn counted_for(limiter: &Limiter<impl Store>, plan: &str, outcome: Outcome, by: DecidedBy) -> u64 {
    let totals = limiter.totals();
    let (place, _) = totals.edition().plans().find(plan).unwrap();
    totals.decisions(place, outcome, by)
}

#[tokio::test]
async fn totals_are_of_all_limiters_those_that_are_gone_included() {
    let one = broken();
    let other = one.beside(MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)));
    ask(&one, "allow", 1).await;
    for _ in 0..3 {
        ask(&other, "allow", 4).await;
    }
    drop(other);
    assert_eq!(counted_for(&one, "allow", Outcome::Allowed, DecidedBy::FailOpen), 1);
    assert_eq!(counted_for(&one, "allow", Outcome::Allowed, DecidedBy::Store), 2);
    assert_eq!(counted_for(&one, "allow", Outcome::Denied, DecidedBy::Store), 1);
    let totals = one.totals();
    let unreachable = StoreError::Unreachable(String::new()).kind_index();
    assert_eq!((totals.durations.count(), totals.store_errors[unreachable], totals.store_errors.iter().sum()), (4, 1, 1));
    // The embedded store is not timed.
    assert_eq!(totals.store_durations.count(), 1);
}

#[tokio::test]
async fn of_a_batch_every_decision_is_counted_and_nothing_else() {
    let limiter = healthy();
    let mut questions = ["ten", "unlimited", "no such", "ten", "blocked"].map(|plan| question(plan, 6)).to_vec();
    questions.push(Question { mode: Mode::Peek, ..question("ten", 1) });
    limiter.decide_batch(questions, None).await.unwrap();
    assert_eq!(counted_for(&limiter, "ten", Outcome::Allowed, DecidedBy::Store), 1);
    assert_eq!(counted_for(&limiter, "ten", Outcome::Denied, DecidedBy::Store), 1);
    assert_eq!(counted_for(&limiter, "unlimited", Outcome::Allowed, DecidedBy::Plan), 1);
    assert_eq!(counted_for(&limiter, "blocked", Outcome::Denied, DecidedBy::Plan), 1);
    let totals = limiter.totals();
    assert_eq!((totals.durations.count(), totals.peeks, totals.unknown_plans), (4, 1, 1));
}

#[tokio::test]
async fn whoever_is_refused_got_no_decision() {
    let limiter = limiter(Broken(StoreError::Overloaded(1)));
    assert!(limiter.decide(question("ten", 1), None).await.is_err());
    limiter.decide_batch(vec![question("ten", 1), question("allow", 1)], None).await.unwrap();
    let totals = limiter.totals();
    let overloaded = totals.store_errors[StoreError::Overloaded(1).kind_index()];
    assert_eq!((totals.durations.count(), overloaded, totals.store_durations.count(), totals.waiting), (0, 3, 2, 0));
}

/// A store whose call is large.
struct Large;

/// Far more than what a limiter itself keeps of a call.
const LARGE: usize = 8192;

impl Store for Large {
    async fn decide_one(&self, ask: &Ask, deadline: StoreDeadline) -> Result<Verdict, StoreError> {
        self.decide_batch(std::slice::from_ref(ask), deadline).await.remove(0)
    }

    async fn decide_batch(&self, asks: &[Ask], _deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        let kept = [0_u8; LARGE];
        tokio::task::yield_now().await;
        vec![Err(StoreError::Refused(format!("{} bytes were kept", kept.len()))); asks.len()]
    }
}

/// Each decision under way is that much memory, which is written and moved.
#[tokio::test]
async fn a_call_to_the_store_is_there_once_in_a_decision() {
    let limiter = limiter(Large);
    let decision = limiter.decide(question("ten", 1), None);
    let batch = limiter.decide_batch(vec![question("ten", 1)], None);
    let bytes = (size_of_val(&decision), size_of_val(&batch));
    assert!(bytes.0 < 2 * LARGE && bytes.1 < 2 * LARGE, "{bytes:?}");
    assert!(bytes.0 > LARGE && bytes.1 > LARGE, "it is there at all: {bytes:?}");
    assert_eq!(decision.await.unwrap().decided_by, DecidedBy::LocalFallback);
}

/// A clock that the test moves, wall and monotonic time together.
struct Hand {
    passed_us: AtomicU64,
    began: Instant,
}

impl Hand {
    fn pass(&self, us: u64) {
        self.passed_us.fetch_add(us, Ordering::SeqCst);
    }
}

impl Clock for Hand {
    fn now_us(&self) -> u64 {
        Clock0.now_us() + self.passed_us.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Instant {
        self.began + Duration::from_micros(self.passed_us.load(Ordering::SeqCst))
    }
}

/// Exact counters at the end of a slow way: a call takes this long to get there and as long to come back. Counts asks.
struct Remote {
    counters: MemoryStore,
    clock: Arc<Hand>,
    asked: AtomicU64,
}

const ONE_WAY_US: u64 = 3_000;

impl Store for Remote {
    async fn decide_batch(&self, asks: &[Ask], _deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        self.asked.fetch_add(asks.len() as u64, Ordering::SeqCst);
        self.clock.pass(ONE_WAY_US);
        let answers = asks.iter().map(|ask| self.counters.decide(ask)).collect();
        self.clock.pass(ONE_WAY_US);
        answers
    }
}

fn remote(deny_cache_entries: usize) -> (Limiter<Remote>, Arc<Hand>) {
    let clock = Arc::new(Hand { passed_us: AtomicU64::new(0), began: monotonic() });
    let counters = MemoryStore::new(CAPACITY_DEFAULT, clock.clone());
    let store = Remote { counters, clock: clock.clone(), asked: AtomicU64::new(0) };
    let bucket = |name: &str, shadow| {
        let limit = Limit::new("rate", 10, Duration::from_secs(1), Algorithm::TokenBucket { burst: 2 }).unwrap();
        Plan { rule: Rule::Limits(vec![limit]), shadow, counts_as: "bucket".into(), ..plan(name, 1) }
    };
    let plans = [bucket("bucket", false), bucket("shadow bucket", true)].into_iter().collect();
    let settings = Settings { deny_cache_entries, ..SETTINGS };
    (Limiter::new(plans, store, settings, clock.clone()), clock)
}

fn asked(limiter: &Limiter<Remote>) -> u64 {
    limiter.store.asked.load(Ordering::SeqCst)
}

/// The bucket's two units are taken 6 ms apart, 3 ms into each call; a unit comes back every 100 ms.
#[tokio::test]
async fn a_denial_is_recalled_until_its_release_counted_from_when_it_was_asked_for() {
    let (limiter, clock) = remote(100);
    for _ in 0..2 {
        assert_eq!(ask(&limiter, "bucket", 1).await, (Outcome::Allowed, DecidedBy::Store));
    }
    let denied = limiter.decide(question("bucket", 1), None).await.unwrap();
    // Decided at 15 ms: a bucket emptied at 3 ms and again by one more, so that the next unit is there at 103 ms.
    assert_eq!(denied.binding().unwrap().retry_after_us, Some(88_000));
    let recalled = limiter.decide(question("bucket", 1), None).await.unwrap();
    assert_eq!((recalled.outcome, recalled.decided_by), (Outcome::Denied, DecidedBy::DenyCache));
    // At 18 ms, 6 ms after it was asked for: too short by the 3 ms of the way there, and by no more.
    let binding = recalled.binding().unwrap();
    assert_eq!((binding.retry_after_us, binding.remaining), (Some(82_000), 0));
    assert_eq!(binding.reset_after_us, 182_000);
    // The denial was asked for at 12 ms, so it is recalled until 100 ms.
    clock.pass(82_000 - 1);
    assert_eq!(ask(&limiter, "bucket", 1).await.1, DecidedBy::DenyCache);
    assert_eq!(asked(&limiter), 3);
    clock.pass(1);
    assert_eq!(ask(&limiter, "bucket", 1).await, (Outcome::Allowed, DecidedBy::Store));
}

#[tokio::test]
async fn a_peek_asks_the_store_and_a_shadow_plan_recalls_a_shadow_denial() {
    let (limiter, _clock) = remote(100);
    for plan in ["bucket", "bucket", "bucket", "shadow bucket"] {
        ask(&limiter, plan, 1).await;
    }
    let peek = Question { mode: Mode::Peek, ..question("bucket", 1) };
    assert_eq!(limiter.decide(peek, None).await.unwrap().decided_by, DecidedBy::Store);
    assert_eq!(ask(&limiter, "bucket", 1).await, (Outcome::Denied, DecidedBy::DenyCache));
    assert_eq!(ask(&limiter, "shadow bucket", 1).await, (Outcome::ShadowDenied, DecidedBy::DenyCache));
    assert_eq!(ask(&limiter, "bucket", 3).await, (Outcome::NeverFits, DecidedBy::Plan));
}

#[tokio::test]
async fn of_a_batch_only_what_is_not_denied_already_is_asked_for() {
    let (limiter, _clock) = remote(100);
    ask(&limiter, "bucket", 1).await;
    assert_eq!(ask(&limiter, "bucket", 2).await, (Outcome::Denied, DecidedBy::Store));
    let answers = limiter.decide_batch([1, 2, 1, 2].map(|cost| question("bucket", cost)).to_vec(), None).await.unwrap();
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.map(|it| (it.outcome, it.decided_by)).unwrap()).collect();
    let recalled = (Outcome::Denied, DecidedBy::DenyCache);
    let expected = [(Outcome::Allowed, DecidedBy::Store), recalled, (Outcome::Denied, DecidedBy::Store), recalled];
    assert_eq!(answers, expected);
    assert_eq!(asked(&limiter), 4);
    // The batch's own denial is recalled too.
    assert_eq!(ask(&limiter, "bucket", 1).await, recalled);
}

#[tokio::test]
async fn no_cache_recalls_nothing_and_neither_is_an_embedded_store_s_denial() {
    let (limiter, _clock) = remote(0);
    for _ in 0..5 {
        assert_eq!(ask(&limiter, "bucket", 1).await.1, DecidedBy::Store);
    }
    assert_eq!(asked(&limiter), 5);
    let embedded = healthy();
    for _ in 0..12 {
        assert_eq!(ask(&embedded, "ten", 1).await.1, DecidedBy::Store);
    }
}

#[tokio::test]
async fn what_was_not_decided_by_the_store_is_not_remembered() {
    for (plan, by) in [("deny", DecidedBy::FailClosed), ("ten", DecidedBy::LocalFallback)] {
        let limiter = broken();
        for _ in 0..6 {
            assert_eq!(ask(&limiter, plan, 1).await.1, by);
        }
    }
}
