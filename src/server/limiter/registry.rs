//! All limiters of a process: the plans and counters of each, and the replacement of the plans by a reload.
//!
//! A limiter decides by the plans in its own [`WorkerState`]. A reload replaces them in every worker. A decision under way keeps
//! the plans that it began with, so each decision is made by one snapshot as a whole. Counts of a replaced snapshot are added to
//! the totals once no decision holds it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::deny_cache::DenyCache;
use super::metrics::{CounterTotals, Metrics, Reloads, Totals, WorkerPlans};
use super::overrides::{OverrideFigures, RuntimeOverrides};
use super::top::{TopSource, WorkerTop};
use super::{Changes, PlanSnapshot, TopSettings};
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::Decision;
use tollgate_core::plan::{OverrideTable, PlanSet};
use tollgate_store::Check;

/// State of one limiter.
pub(super) struct WorkerState {
    pub(super) metrics: Metrics,
    /// Denials by this limiter's store; `None` when the deny cache is off.
    pub(super) denials: Option<DenyCache>,
    /// The heaviest keys; `None` when keys are not counted.
    pub(super) top: Option<Arc<WorkerTop>>,
    /// The plans to decide by, with this limiter's counters for them. The limiter reads them on its one thread, and a reload
    /// replaces them. The lock is held only to copy a pointer, and only a reload contends for it.
    worker_plans: Mutex<Arc<WorkerPlans>>,
}

impl WorkerState {
    fn new(
        worker_plans: WorkerPlans,
        denials: Option<DenyCache>,
        top: Option<Arc<WorkerTop>>,
    ) -> Self {
        Self {
            metrics: Metrics::default(),
            denials,
            top,
            worker_plans: Mutex::new(Arc::new(worker_plans)),
        }
    }

    /// Counts a decision by its key. Peeks and refunds are none.
    pub(super) fn count_key(
        &self,
        worker_plans: &WorkerPlans,
        plan: usize,
        check: &Check,
        decision: &Decision,
    ) {
        if let (Some(top), Mode::Charge) = (&self.top, check.mode) {
            top.record(
                worker_plans.snapshot.plan_id(plan),
                &check.key,
                check.cost,
                decision,
            );
        }
    }

    /// Counts by its key what has happened, whatever the limits said.
    pub(super) fn count_recorded(&self, worker_plans: &WorkerPlans, plan: usize, check: &Check) {
        if let Some(top) = &self.top {
            let plan = worker_plans.snapshot.plan_id(plan);
            top.record_cost(plan, &check.key, check.cost);
        }
    }

    /// The plans for decisions that begin now.
    pub(super) fn worker_plans(&self) -> Arc<WorkerPlans> {
        // A panic cannot leave a pointer half-written.
        self.worker_plans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Decides by these plans from now on, with their new counters. Returns the replaced plans and their counters.
    fn open(&self, worker_plans: WorkerPlans) -> Arc<WorkerPlans> {
        let new = Arc::new(worker_plans);
        std::mem::replace(
            &mut self
                .worker_plans
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
            new,
        )
    }
}

/// What limiters decide by. To make another one of thousands of plans or overrides takes milliseconds, so that is done beside the
/// registry's lock.
#[derive(Clone)]
pub(super) struct InForce {
    snapshot: Arc<PlanSnapshot>,
    replicas: u64,
    /// What is set at runtime.
    overrides: Arc<RuntimeOverrides>,
    /// The overrides in force among the plans of `snapshot`.
    override_table: Arc<OverrideTable>,
}

impl InForce {
    fn new(
        snapshot: Arc<PlanSnapshot>,
        replicas: u64,
        overrides: Arc<RuntimeOverrides>,
        now_us: u64,
    ) -> Self {
        let table = OverrideTable::new(snapshot.plans(), &overrides.entries, now_us);
        Self {
            snapshot,
            replicas,
            overrides,
            override_table: Arc::new(table),
        }
    }

    /// The same with these plans, and how they differ. `None`: they equal the present ones. `now_us` is a time of the store's clock,
    /// by which overrides expire.
    pub(super) fn with_plans(&self, plans: PlanSet, now_us: u64) -> (Option<Self>, Changes) {
        let (snapshot, changes) = self.snapshot.next(plans, self.replicas);
        let beside = snapshot.changed_beside_plans(&self.snapshot);
        if changes == Changes::default() && beside.is_empty() {
            return (None, changes);
        }
        let overrides = self.overrides.clone();
        let next = Self::new(Arc::new(snapshot), self.replicas, overrides, now_us);
        (Some(next), changes)
    }

    /// Makes the shares of this number of replicas.
    pub(super) fn share_among(&self, replicas: u64) {
        if self.replicas != replicas {
            self.snapshot.share_among(replicas);
        }
    }

    /// The same with these overrides.
    pub(super) fn with_overrides(&self, overrides: Arc<RuntimeOverrides>, now_us: u64) -> Self {
        Self::new(self.snapshot.clone(), self.replicas, overrides, now_us)
    }

    /// The same without overrides that have expired by this time of the store's clock. `None`: none has.
    pub(super) fn without_expired(&self, now_us: u64) -> Option<Self> {
        let next_us = self.override_table.next_expiry_us;
        let expires = next_us.is_some_and(|next_us| next_us <= now_us);
        expires.then(|| self.with_overrides(self.overrides.clone(), now_us))
    }
}

/// State of every limiter that was ever made. Limiters are never removed, so that counts only grow.
pub(super) struct LimiterRegistry {
    in_force: InForce,
    /// The store's time at some moment, and when that was. `None` before its first answer.
    pub(super) store_clock: Option<(u64, Instant)>,
    workers: Vec<Arc<WorkerState>>,
    /// Replaced plans. A decision under way may still count in their counters.
    closing: Vec<Arc<WorkerPlans>>,
    /// Sums of the counters of replaced plans that no decision holds any more.
    closed: CounterTotals,
    reloads: Reloads,
    /// How workers count keys, if they do, and by which secret keys are shown.
    top: TopSource,
}

impl LimiterRegistry {
    pub(super) fn new(plans: PlanSet, replicas: u64, now_us: u64) -> Self {
        let snapshot = Arc::new(PlanSnapshot::new(plans, replicas));
        let closed = CounterTotals::new(snapshot.clone());
        Self {
            in_force: InForce::new(snapshot, replicas, Arc::default(), now_us),
            store_clock: None,
            workers: Vec::new(),
            closing: Vec::new(),
            closed,
            reloads: Reloads::default(),
            top: TopSource::default(),
        }
    }

    /// Creates the state of one more limiter.
    pub(super) fn add_worker(&mut self, denials: Option<DenyCache>) -> Arc<WorkerState> {
        let top = self.top.worker().map(Arc::new);
        let worker = Arc::new(WorkerState::new(self.plans_of_worker(), denials, top));
        self.workers.push(worker.clone());
        worker
    }

    /// Makes limiters that are added from now on count keys.
    pub(super) fn count_keys(&mut self, settings: TopSettings) {
        self.top.settings = Some(settings);
    }

    /// The settings by which limiters count keys, if they do, and the secret by which those keys are hashed.
    pub(super) fn top(&mut self) -> &mut TopSource {
        &mut self.top
    }

    /// The state of every limiter.
    pub(super) fn workers(&self) -> Vec<Arc<WorkerState>> {
        self.workers.clone()
    }

    fn plans_of_worker(&self) -> WorkerPlans {
        let InForce {
            snapshot,
            override_table,
            ..
        } = &self.in_force;
        WorkerPlans::new(snapshot.clone(), override_table.clone())
    }

    /// What limiters decide by.
    pub(super) fn in_force(&self) -> &InForce {
        &self.in_force
    }

    /// The overrides that are set at runtime.
    pub(super) fn overrides(&self) -> &Arc<RuntimeOverrides> {
        &self.in_force.overrides
    }

    /// Makes every limiter decide by these from now on. Returns what they decided by, to be dropped without the lock.
    pub(super) fn open_all(&mut self, next: InForce) -> InForce {
        if !Arc::ptr_eq(&next.snapshot, &self.in_force.snapshot) {
            self.closed = std::mem::take(&mut self.closed).moved_to(next.snapshot.clone());
        }
        let before = std::mem::replace(&mut self.in_force, next);
        for worker in &self.workers {
            self.closing.push(worker.open(self.plans_of_worker()));
        }
        self.close();
        before
    }

    /// Counts a reload that was taken up.
    pub(super) fn taken_up(&mut self) {
        self.reloads.taken_up += 1;
        self.reloads.last_refused = false;
    }

    /// Notes among how many replicas the quotas are shared, as [`InForce::share_among`] has done.
    pub(super) fn shared_among(&mut self, replicas: u64) {
        self.in_force.replicas = replicas;
    }

    /// Counts a reload whose config was rejected. The plans stay.
    pub(super) fn refused(&mut self) {
        self.reloads.refused += 1;
        self.reloads.last_refused = true;
    }

    /// The counts of all limiters since the start, for the metrics.
    pub(super) fn totals(&mut self) -> Totals {
        self.close();
        let mut decisions = self.closed.clone();
        self.closing
            .iter()
            .for_each(|worker_plans| decisions.add(worker_plans));
        self.workers
            .iter()
            .for_each(|worker| decisions.add(&worker.worker_plans()));
        let mut totals = Totals::new(decisions, self.reloads);
        totals.replicas = self.in_force.replicas;
        totals.overrides = OverrideFigures::new(
            &self.in_force.overrides,
            &self.in_force.override_table,
            self.store_clock.map(|(_, at)| at),
        );
        for WorkerState {
            metrics, denials, ..
        } in self.workers.iter().map(AsRef::as_ref)
        {
            totals.add(metrics);
            totals.deny_cache_entries += denials
                .as_ref()
                .map_or(0, |denials| denials.entries() as u64);
        }
        totals
    }

    /// Adds the counters of replaced plans to `closed`, once no decision holds them. No new decision can take such plans, since
    /// no worker has them.
    fn close(&mut self) {
        for worker_plans in std::mem::take(&mut self.closing) {
            match Arc::try_unwrap(worker_plans) {
                Ok(worker_plans) => self.closed.add(&worker_plans),
                Err(worker_plans) => self.closing.push(worker_plans),
            }
        }
    }
}

#[cfg(test)]
mod tests;
