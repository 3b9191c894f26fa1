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

/// State of every limiter that was ever made. Limiters are never removed, so that counts only grow.
pub(super) struct LimiterRegistry {
    snapshot: Arc<PlanSnapshot>,
    replicas: u64,
    /// What is set at runtime.
    overrides: Arc<RuntimeOverrides>,
    /// The store's time at some moment, and when that was. `None` before its first answer.
    pub(super) store_clock: Option<(u64, Instant)>,
    /// The overrides in force among the plans of `snapshot`.
    override_table: Arc<OverrideTable>,
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
        let override_table = Arc::new(OverrideTable::new(&plans, &[], now_us));
        let snapshot = Arc::new(PlanSnapshot::new(plans, replicas));
        let closed = CounterTotals::new(snapshot.clone());
        Self {
            snapshot,
            replicas,
            overrides: Arc::default(),
            store_clock: None,
            override_table,
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

    /// How limiters count keys, if they do, and by which secret keys are shown.
    pub(super) fn top(&mut self) -> &mut TopSource {
        &mut self.top
    }

    /// The state of every limiter.
    pub(super) fn workers(&self) -> Vec<Arc<WorkerState>> {
        self.workers.clone()
    }

    fn plans_of_worker(&self) -> WorkerPlans {
        WorkerPlans::new(self.snapshot.clone(), self.override_table.clone())
    }

    /// Makes every limiter decide by these plans from now on. Does nothing when they equal the present ones. `now_us` is a time of
    /// the store's clock, by which overrides expire.
    pub(super) fn replace_plans(&mut self, plans: PlanSet, now_us: u64) -> Changes {
        self.reloads.taken_up += 1;
        self.reloads.last_refused = false;
        let (snapshot, changes) = self.snapshot.next(plans, self.replicas);
        if changes == Changes::default() && snapshot.finds_as(&self.snapshot) {
            return changes;
        }
        self.snapshot = Arc::new(snapshot);
        self.closed = std::mem::take(&mut self.closed).moved_to(self.snapshot.clone());
        self.open_all(now_us);
        changes
    }

    /// Makes every limiter decide by these overrides from now on.
    pub(super) fn replace_overrides(&mut self, overrides: Arc<RuntimeOverrides>, now_us: u64) {
        self.overrides = overrides;
        self.open_all(now_us);
    }

    /// Passes over what has expired by now.
    pub(super) fn expire_overrides(&mut self, now_us: u64) {
        let next_us = self.override_table.next_expiry_us;
        if next_us.is_some_and(|next_us| next_us <= now_us) {
            self.open_all(now_us);
        }
    }

    /// The overrides that are set at runtime.
    pub(super) fn overrides(&self) -> &Arc<RuntimeOverrides> {
        &self.overrides
    }

    /// Makes every limiter decide by the present plans and overrides.
    fn open_all(&mut self, now_us: u64) {
        let entries = &self.overrides.entries;
        self.override_table = Arc::new(OverrideTable::new(self.snapshot.plans(), entries, now_us));
        for worker in &self.workers {
            self.closing.push(worker.open(self.plans_of_worker()));
        }
        self.close();
    }

    /// Sets the number of replicas that share the quotas. Plans and counts stay.
    pub(super) fn share_among(&mut self, replicas: u64) {
        if self.replicas != replicas {
            self.replicas = replicas;
            self.snapshot.share_among(replicas);
        }
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
        totals.replicas = self.replicas;
        totals.overrides = OverrideFigures::new(
            &self.overrides,
            &self.override_table,
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
