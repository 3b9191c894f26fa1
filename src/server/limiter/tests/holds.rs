//! Calls about holds, by a store that does something while it is asked.

use std::sync::atomic::AtomicUsize;
use tollgate_store::StoreDeadline;

use super::*;
use crate::limiter::TopSettings;
use tollgate_core::algorithm::holds::{HoldVerdict, IfUnknown};
use tollgate_store::HoldCheck;

/// What happens while the store is asked.
type Meanwhile = Box<dyn Fn() + Send + Sync>;

/// Not embedded. It fails with its error, if it has one.
struct Asked {
    store: MemoryStore,
    calls: Arc<AtomicUsize>,
    /// The deadline of the last call.
    given: Arc<std::sync::Mutex<Duration>>,
    meanwhile: Meanwhile,
    error: Option<StoreError>,
}

impl Store for Asked {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        checks
            .iter()
            .map(|check| self.store.decide(check))
            .collect()
    }

    async fn decide_hold(
        &self,
        check: &HoldCheck,
        deadline: StoreDeadline,
    ) -> Result<HoldVerdict, StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        *self.given.lock().unwrap() = deadline.0;
        (self.meanwhile)();
        match &self.error {
            Some(error) => Err(error.clone()),
            None => self.store.decide_hold(check, deadline).await,
        }
    }
}

/// A limiter that counts keys, what makes others beside it, its clock, and how often its store was asked.
struct Fixture {
    limiter: Limiter<Asked>,
    clock: Arc<StillClock>,
    calls: Arc<AtomicUsize>,
    given: Arc<std::sync::Mutex<Duration>>,
}

impl Fixture {
    /// `meanwhile` is what happens while the store is asked.
    fn new(
        meanwhile: impl Fn(&Limiter<()>, &StillClock) + Send + Sync + 'static,
        error: Option<StoreError>,
    ) -> Self {
        let clock = StillClock::start();
        let base = Limiter::without_store(plans(), SETTINGS, clock.clone());
        base.count_keys(TopSettings {
            keys_max: 100,
            in_clear: false,
        });
        let base = Arc::new(base);
        let calls = Arc::new(AtomicUsize::new(0));
        let given: Arc<std::sync::Mutex<Duration>> = Arc::default();
        let of_hook = base.clone();
        let clock_of_hook = clock.clone();
        let limiter = base.with_store(Asked {
            store: MemoryStore::new(CAPACITY_DEFAULT, clock.clone()),
            calls: calls.clone(),
            given: given.clone(),
            meanwhile: Box::new(move || meanwhile(&of_hook, &clock_of_hook)),
            error,
        });
        Self {
            limiter,
            clock,
            calls,
            given,
        }
    }

    async fn reserve(&self, id: &str) -> Result<crate::limiter::Reserved, Refusal> {
        let id = RequestId::new(id).unwrap();
        self.limiter
            .reserve(request("deny", 1), (id, None), None)
            .await
    }

    async fn settle(&self, id: &str) -> Result<crate::limiter::SettledHold, Refusal> {
        let asked = (Key::new("alice").unwrap(), "deny".to_owned());
        let id = RequestId::new(id).unwrap();
        let how = (id, None, IfUnknown::Ignore);
        self.limiter.settle(asked, how, None).await
    }

    /// Who decided each request of a batch of one key, each with an id; none where it was refused as one too many.
    async fn batch(
        &self,
        count: usize,
        caller: Option<CallerDeadline>,
    ) -> Option<Vec<Option<DecidedBy>>> {
        let checks = (0..count).map(|id| {
            let id = RequestId::new(&id.to_string()).unwrap();
            (request("deny", 1), Some(id))
        });
        let decided = self.limiter.decide_in_turn(checks.collect(), caller).await;
        let by = |decided: Result<(Decision, _), _>| match decided {
            Ok((decision, _)) => Some(decision.decided_by),
            Err(refused) => {
                assert_eq!(refused, Refusal::Overloaded);
                None
            }
        };
        Some(decided.ok()?.into_iter().map(by).collect())
    }
}

#[tokio::test]
async fn a_reload_to_fewer_plans_while_the_store_is_asked_loses_no_answer() {
    let to_one_plan = |base: &Limiter<()>, _: &StillClock| {
        base.reload([plan("ten", 10)].into_iter().collect());
    };
    let fixture = || Fixture::new(to_one_plan, None);
    let id = || RequestId::new("a").unwrap();
    let recorded = fixture()
        .limiter
        .record(request("deny", 3), Some(id()), None)
        .await;
    assert_eq!(recorded.unwrap().plan.name.as_ref(), "deny");
    let reserved = fixture().reserve("a").await.unwrap();
    assert_eq!(reserved.decision.outcome, Outcome::Allowed);
    let settled = fixture().settle("a").await.unwrap();
    assert_eq!(settled.plan.name.as_ref(), "deny");
}

#[tokio::test]
async fn the_wait_of_calls_about_holds_is_measured() {
    let seven_ms = |_: &Limiter<()>, clock: &StillClock| {
        clock.pass(7);
    };
    let fixture = Fixture::new(seven_ms, None);
    fixture.reserve("a").await.unwrap();
    fixture.settle("a").await.unwrap();
    let totals = fixture.limiter.totals();
    assert_eq!(
        (
            totals.store_durations.count(),
            totals.store_durations.sum_ns
        ),
        (2, 14_000_000)
    );
    assert_eq!(
        (totals.durations.count(), totals.durations.sum_ns),
        (1, 7_000_000),
        "a settle is no decision"
    );
    assert_eq!(totals.waiting, 0);
}

#[tokio::test]
async fn a_store_that_refuses_calls_about_holds_is_counted_and_told() {
    let refused = StoreError::Refused("NOPERM".to_owned());
    let fixture = Fixture::new(|_, _| {}, Some(refused.clone()));
    let settled = fixture.settle("a").await;
    assert_eq!(settled.err(), Some(Refusal::Unconfirmed(refused.clone())));
    let reserved = fixture.reserve("a").await.unwrap();
    assert_eq!(reserved.decision.decided_by, DecidedBy::FailClosed);
    let totals = fixture.limiter.totals();
    assert_eq!(totals.count(LimiterCounter::StoreErrors), 2);
    let now = fixture.clock.monotonic();
    let told = fixture.limiter.common.failures.refusals(now);
    assert_eq!(told.map(|told| told.error), Some(refused));
}

/// A settle that names another plan of the same count asks twice, within one deadline.
#[tokio::test]
async fn a_call_that_moves_to_another_plan_has_one_deadline() {
    let seven_ms = |_: &Limiter<()>, clock: &StillClock| clock.pass(7);
    let fixture = Fixture::new(seven_ms, None);
    let of_one_count = ["allow", "deny"].map(|name| Plan {
        counts_as: "one".into(),
        ..plan(name, 10)
    });
    fixture.limiter.reload(of_one_count.into_iter().collect());
    let held = (RequestId::new("a").unwrap(), None);
    let reserved = fixture.limiter.reserve(request("allow", 1), held, None);
    reserved.await.unwrap();
    let settled = fixture.settle("a").await.unwrap();
    assert_eq!(settled.plan.name.as_ref(), "allow");
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 3);
    let left = SETTINGS.deadline - Duration::from_millis(7);
    assert_eq!(*fixture.given.lock().unwrap(), left);
}

/// Else each of up to a thousand would wait for it.
#[tokio::test]
async fn a_batch_in_turn_asks_a_store_that_took_its_deadline_no_more() {
    let gone = Some(StoreError::Deadline(SETTINGS.deadline));
    let silent = |_: &Limiter<()>, clock: &StillClock| clock.pass(25);
    let fixture = Fixture::new(silent, gone);
    let by = fixture.batch(1_000, None).await.unwrap();
    assert_eq!(by, [Some(DecidedBy::FailClosed); 1_000]);
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 1);
    let errors = fixture.limiter.totals().count(LimiterCounter::StoreErrors);
    assert_eq!(errors, 1, "the others did not ask it");
}

/// One key's fault is not that of the others behind it.
#[tokio::test]
async fn a_batch_in_turn_goes_on_asking_a_store_that_refuses_at_once() {
    let refused = Some(StoreError::Refused("WRONGTYPE".to_owned()));
    let fixture = Fixture::new(|_, _| {}, refused);
    let by = fixture.batch(10, None).await.unwrap();
    assert_eq!(by, [Some(DecidedBy::FailClosed); 10]);
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 10);
}

#[tokio::test]
async fn a_batch_in_turn_ends_in_time_whatever_each_call_takes() {
    let slow = |_: &Limiter<()>, clock: &StillClock| clock.pass(20);
    let fixture = Fixture::new(slow, None);
    let by = fixture.batch(100, None).await.unwrap();
    // 50 calls take a second. The next one is the last that is asked: no policy answers for a store that is well.
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 51);
    assert_eq!(by[50..52], [Some(DecidedBy::Store), None]);

    // 200 ms of the caller are ten calls.
    let fixture = Fixture::new(slow, None);
    let caller = CallerDeadline::new(Duration::from_millis(200));
    assert_eq!(fixture.batch(100, Some(caller)).await, None);
    assert_eq!(fixture.calls.load(Ordering::SeqCst), 10);
}
