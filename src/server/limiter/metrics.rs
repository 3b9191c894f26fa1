//! Counts of a limiter's own work: decisions by plan, outcome and decider, how long they waited, and the store calls.
//!
//! Every limiter, and so every worker, has its own counters. Only that limiter adds to them, with relaxed atomics and no lock,
//! so no worker waits for another. [`Totals`] adds them up for readers. The module knows no wire format.
//!
//! Decisions are counted in a [`WorkerPlans`], beside the plans that they are made by. A reload starts a new one; a decision
//! under way keeps the one that it began with.

mod blocks;
mod counters;
mod histogram;
mod holds;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{OverrideFigures, PlanSnapshot};
pub(super) use blocks::{BlockCounts, BlockTotals};
use counters::PlanCounters;
pub(super) use counters::{CounterTotals, WorkerPlans};
use histogram::Histogram;
pub use histogram::{BOUNDS_NS, Timings};
pub use holds::{HOLD_EVENTS, HOLD_UNITS, HoldFigures, HoldStreamCount};
pub(super) use holds::{HoldCounts, HoldTotals};
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::{DecidedBy, Decision, LimitStatus, Outcome};
use tollgate_core::plan::OverrideSource;
use tollgate_store::StoreError;

/// Makes [`LimiterCounter`] of one line for each: what it counts, its variant, and the name and help of its metric.
macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident: $name:literal, $help:literal;)*) => {
        /// What a limiter counts without a label. A line of `counters!` and one call of [`Metrics::count`] are all that it takes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum LimiterCounter {
            $($(#[$doc])* $variant,)*
        }

        impl LimiterCounter {
            /// Every counter, in the order of the metrics.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name of the metric, and its help.
            pub fn metric(self) -> (&'static str, &'static str) {
                match self {
                    $(Self::$variant => ($name, $help),)*
                }
            }
        }
    };
}

counters! {
    /// Requests answered without charging.
    Peeks: "tollgate_peeks_total", "Requests answered without charging.";
    /// Requests for a plan that is not in the config.
    UnknownPlans: "tollgate_unknown_plans_total", "Requests that name a plan that is not in the config.";
    /// Of these, requests that the default plan decided.
    ByDefaultPlan: "tollgate_default_plan_total",
        "Requests that name a plan that is not in the config, decided by default_plan.";
    /// Requests whose caller's deadline passed before the store answered. They are neither decisions nor failures of the store.
    CallerDeadlines: "tollgate_caller_deadlines_total",
        "Requests whose caller's deadline, shorter than store.deadline, passed before the store answered.";
}

/// Counts of one limiter. Aligned to two cache lines, which processors fetch together, so that it shares no line with another
/// limiter.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Metrics {
    counters: [AtomicU64; LimiterCounter::ALL.len()],
    /// Descriptors that no rule matches: those that passed, and those that did not.
    unmatched: [AtomicU64; 2],
    joint: [AtomicU64; JOINT_OUTCOMES.len()],
    /// Decisions in which an override took part, by [`OverrideSource::ALL`].
    by_override: [AtomicU64; OverrideSource::ALL.len()],
    durations: Histogram,
    store_durations: Histogram,
    store_errors: [AtomicU64; StoreError::KINDS.len()],
    /// Requests that wait for the store now.
    waiting: AtomicU64,
}

impl Metrics {
    /// Counts a decision by the plan of `counters`. A peek is counted as a peek only, and a refund not at all, since neither is
    /// a decision.
    pub(super) fn decided(
        &self,
        counters: PlanCounters<'_>,
        mode: Mode,
        decision: &Decision,
        took: Duration,
    ) {
        match mode {
            Mode::Charge => {
                counters.record(decision.outcome, decision.decided_by);
                let allowed = decision.outcome == Outcome::Allowed;
                if allowed && decision.limits().iter().any(LimitStatus::is_near) {
                    counters.record_near_limit();
                }
                if let Some(candidate_allowed) = decision.candidate_allowed {
                    counters.record_candidate(allowed, candidate_allowed);
                }
                self.durations.record(took);
            }
            Mode::Peek => self.count(LimiterCounter::Peeks, 1),
            Mode::Refund => {}
        }
    }

    /// Counts so many requests.
    pub(super) fn count(&self, counter: LimiterCounter, requests: usize) {
        add(&self.counters[counter as usize], requests as u64);
    }

    /// Counts a descriptor that no rule matches.
    pub(super) fn count_unmatched(&self, allowed: bool) {
        add(&self.unmatched[usize::from(!allowed)], 1);
    }

    /// Counts a joint decision.
    pub(super) fn count_joint(&self, outcome: Outcome) {
        let index = JOINT_OUTCOMES.iter().position(|other| *other == outcome);
        if let Some(index) = index {
            add(&self.joint[index], 1);
        }
    }

    /// Counts a decision in which an override from this source took part.
    pub(super) fn count_override(&self, source: OverrideSource) {
        add(&self.by_override[source as usize], 1);
    }

    /// Counts a request that the store failed to decide.
    pub(super) fn failed(&self, error: &StoreError) {
        add(&self.store_errors[error.kind_index()], 1);
    }

    /// Records the duration of a store call, answered or not.
    pub(super) fn store_took(&self, took: Duration) {
        self.store_durations.record(took);
    }

    /// Counts requests as waiting for the store until the returned guard is dropped.
    pub(super) fn waiting(&self, requests: usize) -> impl Drop + '_ {
        let waiting = WaitingRequests {
            metrics: self,
            requests: requests as u64,
        };
        add(&self.waiting, waiting.requests);
        waiting
    }
}

struct WaitingRequests<'a> {
    metrics: &'a Metrics,
    requests: u64,
}

impl Drop for WaitingRequests<'_> {
    fn drop(&mut self) {
        self.metrics
            .waiting
            .fetch_sub(self.requests, Ordering::Relaxed);
    }
}

/// Reloads since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reloads {
    /// Configs whose plans were taken up, even if they changed nothing.
    pub taken_up: u64,
    /// Configs that were rejected because of errors; the plans stayed as they were.
    pub refused: u64,
    /// Whether the last one was rejected, so that the plans in force are not those of the file.
    pub last_refused: bool,
}

/// Counts of all limiters of a process since the start.
#[derive(Debug)]
pub struct Totals {
    decisions: CounterTotals,
    /// Reloads since the start.
    pub reloads: Reloads,
    counters: [u64; LimiterCounter::ALL.len()],
    /// Descriptors of Envoy that no rule matches: those that passed, and those that did not.
    pub unmatched: [u64; 2],
    /// Joint decisions, by [`JOINT_OUTCOMES`].
    pub joint: [u64; JOINT_OUTCOMES.len()],
    /// Decisions in which an override took part, by [`OverrideSource::ALL`].
    pub by_override: [u64; OverrideSource::ALL.len()],
    /// The overrides now.
    pub overrides: OverrideFigures,
    /// How long each decision waited for a store that is not embedded. A decision in a batch counts the wait of the batch. A
    /// decision without such a wait counts as zero: it takes less than the first bound, and the clock is not read.
    pub durations: Timings,
    /// How long each call took to a store that is not embedded. A call asks for one decision or for a batch.
    pub store_durations: Timings,
    /// Requests that the store failed to decide, by [`StoreError::KINDS`].
    pub store_errors: [u64; StoreError::KINDS.len()],
    /// Requests that wait now for a store that is not embedded.
    pub waiting: u64,
    /// Entries in the deny caches, including expired ones that were not replaced yet.
    pub deny_cache_entries: u64,
    /// Replicas that share the quotas while the store cannot decide.
    pub replicas: u64,
    pub(super) blocks: BlockTotals,
    pub(super) holds: HoldTotals,
    /// Streams of holds that are open now, and the holds on them.
    pub hold_streams: [u64; 2],
}

impl Totals {
    /// Totals of `decisions` and `reloads`, with all other counts at zero.
    pub(super) fn new(decisions: CounterTotals, reloads: Reloads) -> Self {
        Self {
            decisions,
            reloads,
            counters: Default::default(),
            unmatched: [0; 2],
            joint: [0; JOINT_OUTCOMES.len()],
            by_override: [0; OverrideSource::ALL.len()],
            overrides: OverrideFigures::default(),
            durations: Timings::default(),
            store_durations: Timings::default(),
            store_errors: Default::default(),
            waiting: 0,
            deny_cache_entries: 0,
            replicas: 1,
            blocks: BlockTotals::default(),
            holds: HoldTotals::default(),
            hold_streams: [0; 2],
        }
    }

    /// Adds the counts of a limiter, except its decisions.
    pub(super) fn add(&mut self, metrics: &Metrics) {
        // By their names, so that the compiler finds a count that is not added.
        let Metrics {
            counters,
            unmatched,
            joint,
            by_override,
            durations,
            store_durations,
            store_errors,
            waiting,
        } = metrics;
        let counts = self.store_errors.iter_mut().zip(store_errors);
        let counts = counts.chain(self.unmatched.iter_mut().zip(unmatched));
        let counts = counts.chain(self.joint.iter_mut().zip(joint));
        let counts = counts.chain(self.by_override.iter_mut().zip(by_override));
        let counts = counts.chain(self.counters.iter_mut().zip(counters));
        for (total, counter) in counts.chain([(&mut self.waiting, waiting)]) {
            *total += counter.load(Ordering::Relaxed);
        }
        self.durations.add(durations);
        self.store_durations.add(store_durations);
    }

    /// Requests counted so.
    pub fn count(&self, counter: LimiterCounter) -> u64 {
        self.counters[counter as usize]
    }

    /// The plans that are enforced now.
    pub fn snapshot(&self) -> &Arc<PlanSnapshot> {
        self.decisions.snapshot()
    }

    /// Decisions with this outcome by this decider, for the plan at this index of [`Self::snapshot`]. Decisions before a reload
    /// are included.
    pub fn decisions(&self, plan: usize, outcome: Outcome, decided_by: DecidedBy) -> u64 {
        self.decisions.count(plan, outcome, decided_by)
    }

    /// Allowed requests of the plan at this index that left their key near a limit; see [`tollgate_core::decision::NEAR_LIMIT`].
    pub fn near_limit(&self, plan: usize) -> u64 {
        self.decisions.near_limit(plan)
    }

    /// What became of the holds of this plan.
    pub fn holds(&self, plan: &str) -> HoldFigures {
        self.holds.get(plan).copied().unwrap_or_default()
    }

    /// Blocks that requests began, by the names of plan and limit.
    pub fn blocks(&self, plan: &Arc<str>, limit: &Arc<str>) -> u64 {
        let name = (plan.clone(), limit.clone());
        self.blocks.get(&name).copied().unwrap_or(0)
    }

    /// Requests that the plan at this index decided so, and its candidate so. A denial in shadow mode counts as a denial.
    pub fn candidate_decisions(&self, plan: usize, allowed: bool, candidate_allowed: bool) -> u64 {
        self.decisions
            .candidate_count(plan, allowed, candidate_allowed)
    }

    /// Decisions with this outcome by this decider, for all plans, including plans that were removed.
    pub fn all_decisions(&self, outcome: Outcome, decided_by: DecidedBy) -> u64 {
        self.decisions.count_all(outcome, decided_by)
    }

    /// Decisions by this decider, for all plans and outcomes, including plans that were removed.
    pub fn decided_by(&self, decided_by: DecidedBy) -> u64 {
        self.decisions.decided_by(decided_by)
    }
}

/// The outcomes that a joint decision may have as a whole.
pub const JOINT_OUTCOMES: [Outcome; 3] = [Outcome::Allowed, Outcome::Denied, Outcome::NeverFits];

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_micros(70);

    #[test]
    fn counting_allocates_nothing() {
        let (metrics, worker_plans) = (Metrics::default(), WorkerPlans::with_plans(1));
        let decision = Decision::uncounted(Outcome::Denied, DecidedBy::Store, None);
        let counted = allocation_counter::measure(|| {
            let _waiting = metrics.waiting(1);
            metrics.decided(worker_plans.counters(0), Mode::Charge, &decision, TOOK);
            metrics.store_took(TOOK);
            metrics.failed(&StoreError::Full);
        });
        assert_eq!(counted.count_total, 0);
    }

    #[test]
    fn a_decision_is_timed_and_a_peek_is_not_counted_as_a_decision() {
        let (metrics, worker_plans) = (Metrics::default(), WorkerPlans::with_plans(1));
        let decision = Decision::uncounted(Outcome::Allowed, DecidedBy::Store, None);
        metrics.decided(worker_plans.counters(0), Mode::Charge, &decision, TOOK);
        metrics.decided(worker_plans.counters(0), Mode::Peek, &decision, TOOK);
        let mut counter_totals = CounterTotals::default();
        counter_totals.add(&worker_plans);
        let mut totals = Totals::new(counter_totals, Reloads::default());
        totals.add(&metrics);
        assert_eq!(
            (
                totals.count(LimiterCounter::Peeks),
                totals.decided_by(DecidedBy::Store)
            ),
            (1, 1)
        );
        assert_eq!(
            (totals.durations.count(), totals.durations.sum_ns),
            (1, 70_000)
        );
    }

    #[test]
    fn a_dropped_guard_no_longer_counts_as_waiting() {
        let metrics = Metrics::default();
        let waiting = || metrics.waiting.load(Ordering::Relaxed);
        let (one, many) = (metrics.waiting(1), metrics.waiting(99));
        assert_eq!(waiting(), 100);
        drop(many);
        assert_eq!(waiting(), 1);
        drop(one);
        assert_eq!(waiting(), 0);
    }
}
