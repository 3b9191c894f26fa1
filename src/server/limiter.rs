//! Turns key, plan and cost into a `Decision`. The limiter finds the plan, then uses a remembered denial that still holds, or
//! asks the store. When the store cannot decide, the plan's policy answers.
//!
//! This is the only place where a store's error becomes an answer. It knows neither the wire format nor Redis.

mod admin;
mod batch;
mod caller_deadline;
mod deny_cache;
mod envoy;
mod explain;
mod failure_log;
mod failure_policy;
mod find;
mod holds;
mod joint;
pub mod leases;
mod metrics;
mod overrides;
mod refusal;
mod registry;
mod snapshot;
mod store_call;
mod top;
mod uncounted;
mod unknown_plan_log;

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use admin::{AdminError, Refunded};
pub use caller_deadline::CallerDeadline;
use deny_cache::DenyCache;
pub use deny_cache::{DENY_CACHE_DEFAULT, DENY_CACHE_MAX};
pub use envoy::{Descriptor, DescriptorDecision, EnvoyDecisions, EnvoyRefusal};
pub use explain::{CandidateExplanation, Explanation, LimitExplanation};
use failure_log::FailureLog;
use failure_policy::fail_open;
use find::{CountedPlan, Found, FoundBy, note};
pub use holds::{Extended, REQUEST_ID_BYTES_MAX, Recorded, RequestId, Reserved, SettledHold};
pub use joint::JointRefusal;
pub use metrics::{
    BOUNDS_NS, CounterMetric, LimiterCounter, PlanCounter, Reloads, Timings, Totals,
};
use metrics::{BlockCounts, HoldCounts, WorkerPlans};
pub use metrics::{HOLD_EVENTS, HOLD_UNITS, HoldFigures, HoldStreamCount};
pub use overrides::{
    ListedOverride, NewOverride, OverrideFigures, OverrideList, OverrideQuery, OverrideRefusal,
    Overrides,
};
pub use refusal::Refusal;
use registry::{InForce, LimiterRegistry, WorkerState};
pub use snapshot::{Changes, PlanSnapshot};
use store_call::{StoreAnswer, counted};
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::{DecidedBy, Decision};
use tollgate_core::key::Key;
use tollgate_core::plan::{Plan, PlanSet, UnknownPlan};
use tollgate_store::clock::Clock;
use tollgate_store::{
    CAPACITY_DEFAULT, Check, MemoryStore, Outage, Store, StoreError, StoreRegistry, StoreState,
};
pub use top::{
    KeyHash, TOP_DEFAULT, TOP_MAX, TOP_MIN, TopAnswer, TopBy, TopError, TopKey, TopKeys, TopQuery,
    TopSettings, TopStores,
};
use uncounted::without_state;
use unknown_plan_log::UnknownPlanLog;

/// Maximum number of requests in one batch. Its answer stays well below a megabyte, and one caller cannot occupy the store for
/// long.
pub const BATCH_MAX: usize = 1_000;

/// How a limiter treats its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimiterSettings {
    /// Longest that a decision waits for the store.
    pub deadline: Duration,
    /// Replicas that share the quotas, at least 1. Each enforces one share while the store cannot decide. See
    /// [`Limiter::share_among`].
    pub expected_replicas: u64,
    /// Maximum number of denials to remember; their keys need no store call while they hold. 0 for none. An embedded store needs
    /// none.
    pub deny_cache_entries: usize,
}

/// Decides by the plans of a config, over one store. [`Self::reload`] replaces the plans. A decision or a batch that has begun
/// keeps the plans that it began with.
pub struct Limiter<S> {
    common: Arc<Common>,
    store: S,
    worker: Arc<WorkerState>,
}

/// State that all limiters of one process share, whatever their stores.
struct Common {
    settings: LimiterSettings,
    /// Counts at this replica's share while the store cannot decide.
    fallback: MemoryStore,
    failures: FailureLog,
    unknown_plans: UnknownPlanLog,
    clock: Arc<dyn Clock>,
    /// Origin of the deny cache's times.
    started: Instant,
    registry: Mutex<LimiterRegistry>,
    /// Held while what is in force is made anew, so that no change is lost. No decision waits for it.
    replacing: Mutex<()>,
    blocks: BlockCounts,
    holds: HoldCounts,
}

impl Limiter<()> {
    /// Creates the shared state for limiters made by [`Self::with_store`]; it decides nothing itself. `clock` gives the time of the
    /// local fallback, and measures how long denials hold.
    pub fn without_store(plans: PlanSet, settings: LimiterSettings, clock: Arc<dyn Clock>) -> Self {
        plans.find_present_windows(clock.now_us());
        let mut registry = LimiterRegistry::new(plans, settings.expected_replicas, clock.now_us());
        let worker = registry.add_worker(None);
        let fallback = MemoryStore::new(CAPACITY_DEFAULT, clock.clone());
        let failures = FailureLog::default();
        let unknown_plans = UnknownPlanLog::default();
        let started = clock.monotonic();
        let common = Common {
            settings,
            fallback,
            failures,
            unknown_plans,
            clock,
            started,
            registry: Mutex::new(registry),
            replacing: Mutex::default(),
            blocks: BlockCounts::default(),
            holds: HoldCounts::default(),
        };
        Self {
            common: Arc::new(common),
            store: (),
            worker,
        }
    }
}

impl<S> Limiter<S> {
    /// A limiter of the same plans over its own store, with its own deny cache for that store. All limiters of a process count
    /// together while stores cannot decide. So a replica of many workers still enforces one share.
    pub fn with_store<T: Store>(&self, store: T) -> Limiter<T> {
        let entries = self.common.settings.deny_cache_entries;
        let denials = (entries > 0 && !store.is_embedded()).then(|| DenyCache::new(entries));
        Limiter {
            common: self.common.clone(),
            store,
            worker: self.common.registry().add_worker(denials),
        }
    }

    /// Replaces the plans of this limiter and of all beside it, for decisions that have not begun. Usage of keys stays counted,
    /// in the store and in the fallback. It is stored by [`Plan::counts_as`], key and fingerprint of a limit.
    pub fn reload(&self, plans: PlanSet) -> Changes {
        plans.find_present_windows(self.common.clock.now_us());
        let now_us = self.overrides_now_us();
        self.common.blocks.keep_limits(&plans);
        self.common.holds.keep_plans(&plans);
        self.common.registry().taken_up();
        let mut changes = Changes::default();
        self.common.replace(|in_force| {
            let (next, changed) = in_force.with_plans(plans, now_us);
            changes = changed;
            next
        });
        changes
    }

    /// Sets the number of replicas that share the quotas while the store cannot decide, at least 1. Units already counted count
    /// against the new share. Takes a few milliseconds for thousands of plans, so do not call it on a thread that decides.
    pub fn share_among(&self, replicas: u64) {
        let _one_at_a_time = self.common.replacing();
        let in_force = self.common.registry().in_force().clone();
        in_force.share_among(replicas);
        self.common.registry().shared_among(replicas);
    }

    /// Counts a config that was rejected because it has errors.
    pub fn record_reload_failure(&self) {
        self.common.registry().refused();
    }

    /// Counts of all limiters of the same plans together, including limiters that were dropped.
    pub fn totals(&self) -> Totals {
        let mut totals = self.common.registry().totals();
        totals.blocks = self.common.blocks.totals();
        self.common.holds.add_to(&mut totals);
        totals
    }

    /// Whether the store decides: what its connections tell, and whether it refuses requests over them.
    pub fn store_state(&self, stores: &StoreRegistry) -> StoreState {
        let state = stores.state();
        let now = self.common.clock.monotonic();
        let Some(refusals) = self
            .common
            .failures
            .refusals(now)
            .filter(|_| state.decides())
        else {
            return state;
        };
        let age_us = u64::try_from(now.saturating_duration_since(refusals.since).as_micros())
            .unwrap_or(u64::MAX);
        let outage = Outage::new(
            self.common.clock.now_us().saturating_sub(age_us),
            &refusals.error,
        );
        StoreState::Refusing {
            embedded: state == StoreState::Embedded,
            outage,
        }
    }

    /// A point in time in the deny cache's unit.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "microseconds of more than half a million years fit"
    )]
    fn monotonic_us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.common.started)
            .as_micros() as u64
    }

    /// The plans that are enforced now.
    pub fn snapshot(&self) -> Arc<PlanSnapshot> {
        self.worker.worker_plans().snapshot.clone()
    }
}

impl Common {
    /// Locked for no longer than it takes to copy pointers or to add counts; by a decision only where it gives units back.
    fn registry(&self) -> std::sync::MutexGuard<'_, LimiterRegistry> {
        // A panic cannot leave these lists half-written, since they only grow.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn replacing(&self) -> std::sync::MutexGuard<'_, ()> {
        // It guards nothing of its own.
        let guard = self.replacing.lock();
        guard.unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes every limiter decide by what `next` makes of what is in force, if it makes something of it. It may take milliseconds, and
    /// the registry is not locked meanwhile.
    fn replace(&self, next: impl FnOnce(&InForce) -> Option<InForce>) {
        let _one_at_a_time = self.replacing();
        let in_force = self.registry().in_force().clone();
        if let Some(next) = next(&in_force) {
            let before = self.registry().open_all(next);
            drop((before, in_force));
        }
    }
}

impl<S: Store> Limiter<S> {
    /// A single limiter over `store`; see [`Limiter::without_store`].
    pub fn new(plans: PlanSet, store: S, settings: LimiterSettings, clock: Arc<dyn Clock>) -> Self {
        Limiter::without_store(plans, settings, clock).with_store(store)
    }

    /// Decides one check. The store gets its own deadline, and after that the plan's policy answers. A caller with a shorter
    /// deadline is refused when that passes: [`Refusal::CallerDeadline`]. A refund is not a check; see [`Self::refund`].
    ///
    /// Uses the plans in force at the time of the call, not at the first poll of the future.
    pub fn decide(
        &self,
        check: Check<String>,
        caller: Option<CallerDeadline>,
    ) -> impl Future<Output = Result<Decision, Refusal>> {
        let worker_plans = self.worker.worker_plans();
        let found = self.find_or_suggest(&worker_plans, check);
        self.decide_check(worker_plans, found, caller)
    }

    /// Like [`Self::decide`], and also returns the plan that decided.
    pub async fn decide_with_plan(
        &self,
        check: Check<String>,
        caller: Option<CallerDeadline>,
    ) -> Result<(Decision, Arc<Plan>), Refusal> {
        let worker_plans = self.worker.worker_plans();
        let found = self.find_or_suggest(&worker_plans, check)?;
        let plan = found.check.plan.clone();
        let decision = self.decide_check(worker_plans, Ok(found), caller).await?;
        Ok((decision, plan))
    }

    /// Moves no large value, and awaits no future but the store's: its state is allocated for each decision.
    async fn decide_check(
        &self,
        worker_plans: Arc<WorkerPlans>,
        found: Result<Found, UnknownPlan>,
        caller: Option<CallerDeadline>,
    ) -> Result<Decision, Refusal> {
        let found = found.as_ref().map_err(Clone::clone)?;
        let plans = found.counted_in(&worker_plans);
        let check = &found.check;
        if check.plan.concurrency().is_some() {
            return Box::pin(self.peek_slots((plans, found), caller)).await;
        }
        let started_at = self.call_start();
        if let Some(decision) = self.decide_without_store(plans, check, started_at) {
            return Ok(decision);
        }
        // A guard beside the call, not a future around it: a wrapped future would be stored twice.
        let waiting = self.count_waiting(started_at, 1);
        let answer = match self.caller_limit(caller) {
            None if check.plan.candidate.is_none() => {
                StoreAnswer::alone(self.store.decide_one(check, self.store_deadline()).await)
            }
            limit => Box::pin(self.ask(std::slice::from_ref(check), limit))
                .await?
                .take(check),
        };
        let took = self.record_call_time(started_at);
        drop(waiting);
        self.decide_by_answer(plans, check, &answer, (started_at, took))
    }

    /// Decides and counts what needs no store; see [`Self::known`].
    #[inline]
    fn decide_without_store(
        &self,
        plans: CountedPlan<'_>,
        check: &Check,
        now: Option<Instant>,
    ) -> Option<Decision> {
        let mut decision = self.known(check, now)?;
        self.count(plans, check, &mut decision, Duration::ZERO);
        Some(decision)
    }

    /// Decides by the store's answer to a call that began at `at.0` and took `at.1`, and counts the decision. A store error is
    /// answered by the plan's policy.
    #[inline]
    fn decide_by_answer(
        &self,
        plans: CountedPlan<'_>,
        check: &Check,
        answer: &StoreAnswer,
        (started_at, took): (Option<Instant>, Duration),
    ) -> Result<Decision, Refusal> {
        let mut decided = self.answer(&plans.worker_plans.snapshot, check, started_at, answer);
        // In its place, since it is large.
        if let Ok(decision) = &mut decided {
            self.count(plans, check, decision, took);
        }
        decided
    }

    /// Counts a decision, if a plan of the config made it. Notes in it which plan that was.
    #[inline]
    fn count(
        &self,
        plans: CountedPlan<'_>,
        check: &Check,
        decision: &mut Decision,
        took: Duration,
    ) {
        let CountedPlan {
            worker_plans,
            index: Some(plan_index),
            found_by,
        } = plans
        else {
            return;
        };
        if found_by != FoundBy::default() {
            if let (Some(source), Mode::Charge) = (found_by.overridden, check.mode) {
                self.worker.metrics.count_override(source);
            }
            note(found_by, &check.plan, decision);
        }
        let counters = worker_plans.counters(plan_index);
        self.worker
            .metrics
            .decided(counters, check.mode, decision, took);
        if check.mode == Mode::Charge {
            self.common.blocks.record(&check.plan, decision);
        }
        self.worker
            .count_key(worker_plans, plan_index, check, decision);
    }

    /// What needs no store: a plan without limits, a cost that never fits, and a remembered denial that holds at `now`. Without
    /// `now`, no denial is looked up.
    fn known(&self, check: &Check, now: Option<Instant>) -> Option<Decision> {
        let plan = &check.plan;
        if let Some(decision) = without_state(plan, check.cost) {
            return Some(decision);
        }
        let verdict = self
            .denials_of(plan)?
            .lookup(check, self.monotonic_us(now?))?;
        Some(counted(check, &verdict, DecidedBy::DenyCache))
    }

    /// Where denials by this plan are remembered. Those of a plan with a candidate are not: the store must see each request, or
    /// the candidate's counts would be wrong. Nor are those of a plan that releases holds: units come back as leases end.
    fn denials_of(&self, plan: &Plan) -> Option<&DenyCache> {
        self.worker
            .denials
            .as_ref()
            .filter(|_| plan.candidate.is_none() && !plan.releases_holds())
    }

    /// Logs and counts that the store failed to answer a request. `subject` is the one key and plan that it was about, if it was one.
    #[cold]
    fn count_failure(&self, subject: Option<(&Key, &Plan)>, error: &StoreError) {
        let now = self.common.clock.monotonic();
        let subject = subject.map(|(key, plan)| || (plan.name.clone(), self.key_hash(key)));
        self.common.failures.log(error, now, subject);
        self.worker.metrics.failed(error);
    }

    /// The decision for a store call that began at `started_at`.
    #[inline]
    fn answer(
        &self,
        snapshot: &PlanSnapshot,
        check: &Check,
        started_at: Option<Instant>,
        answer: &StoreAnswer,
    ) -> Result<Decision, Refusal> {
        match &answer.verdict {
            Ok(verdict) => {
                self.common.failures.decided(&*self.common.clock);
                if let (Some(denials), Some(started_at)) =
                    (self.denials_of(&check.plan), started_at)
                {
                    denials.remember(check, verdict, self.monotonic_us(started_at));
                }
                let mut decision = counted(check, verdict, DecidedBy::Store);
                decision.candidate_allowed = answer.candidate_allowed;
                Ok(decision)
            }
            Err(error) => {
                self.count_failure(Some((&check.key, &check.plan)), error);
                match error {
                    // The store is healthy, so the policy for its failure does not apply: a flood must not open the limits.
                    StoreError::Overloaded(_) => Err(Refusal::Overloaded),
                    error => Ok(self.answer_without_store(snapshot, check, error)),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
