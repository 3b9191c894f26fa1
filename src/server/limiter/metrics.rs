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

use std::ops::Range;
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

/// The metric of a counter, which has a count for each value of its label.
#[derive(Debug, Clone, Copy)]
pub struct CounterMetric {
    /// Its name.
    pub name: &'static str,
    /// What it counts, in one line.
    pub help: &'static str,
    /// Its label and the values; an empty label with one value where there is none.
    pub label: (&'static str, &'static [&'static str]),
}

/// The label of a counter that has none: one count.
const NO_LABEL: (&str, &[&str]) = ("", &[""]);

/// Makes [`LimiterCounter`] of one line for each: what it counts, its variant, and the name, help and label of its metric.
macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident: $name:literal, $help:literal, $label:expr;)*) => {
        /// What a limiter counts. A line of `counters!` and one call of [`Metrics::count`] are all that it takes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum LimiterCounter {
            $($(#[$doc])* $variant,)*
        }

        impl LimiterCounter {
            /// Every counter, in the order of the metrics.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            const METRICS: &[CounterMetric] = &[$(CounterMetric { name: $name, help: $help, label: $label },)*];
        }
    };
}

counters! {
    /// Requests answered without charging.
    Peeks: "tollgate_peeks_total", "Requests answered without charging.", NO_LABEL;
    /// Requests for a plan that is not in the config.
    UnknownPlans: "tollgate_unknown_plans_total", "Requests that name a plan that is not in the config.", NO_LABEL;
    /// Of these, requests that the default plan decided.
    ByDefaultPlan: "tollgate_default_plan_total",
        "Requests that name a plan that is not in the config, decided by default_plan.", NO_LABEL;
    /// Requests whose caller's deadline passed before the store answered. They are neither decisions nor failures of the store.
    CallerDeadlines: "tollgate_caller_deadlines_total",
        "Requests whose caller's deadline, shorter than store.deadline, passed before the store answered.", NO_LABEL;
    /// Descriptors of Envoy that no rule matches: those that passed, and those that did not.
    Unmatched: "tollgate_envoy_unmatched_total", "Descriptors of Envoy that no rule matches, by what they got.",
        ("outcome", &[Outcome::Allowed.as_str(), Outcome::Denied.as_str()]);
    /// Joint decisions, by [`JOINT_OUTCOMES`].
    Joint: "tollgate_joint_decisions_total",
        "Joint decisions by their outcome as a whole; their requests are in tollgate_decisions_total.",
        ("outcome", &[JOINT_OUTCOMES[0].as_str(), JOINT_OUTCOMES[1].as_str(), JOINT_OUTCOMES[2].as_str()]);
    /// Decisions in which an override took part, by [`OverrideSource::ALL`].
    Overridden: "tollgate_override_decisions_total", "Decisions in which an override took part, by who set it.",
        ("source", &[OverrideSource::Runtime.as_str(), OverrideSource::File.as_str()]);
    /// Requests that the store failed to decide, by [`StoreError::KINDS`].
    StoreErrors: "tollgate_store_errors_total", "Requests that the store could not decide, by kind of failure.",
        ("kind", &StoreError::KINDS);
}

impl LimiterCounter {
    /// Its metric.
    pub const fn metric(self) -> &'static CounterMetric {
        &Self::METRICS[self as usize]
    }

    /// The places of its counts among those of all.
    fn range(self) -> Range<usize> {
        FIRST[self as usize]..FIRST[self as usize + 1]
    }
}

/// Where the counts of each counter begin among those of all, and where the last ones end.
const FIRST: [usize; LimiterCounter::ALL.len() + 1] = {
    let mut first = [0; LimiterCounter::ALL.len() + 1];
    let mut counter = 0;
    while counter < LimiterCounter::ALL.len() {
        let (_, values) = LimiterCounter::METRICS[counter].label;
        first[counter + 1] = first[counter] + values.len();
        counter += 1;
    }
    first
};
/// Counts of all counters.
const COUNTS: usize = FIRST[LimiterCounter::ALL.len()];

/// What is counted for each plan, beside its decisions, by [`PlanCounters::count`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanCounter {
    /// Allowed requests that left their key near a limit; see [`tollgate_core::decision::NEAR_LIMIT`].
    NearLimit,
}

impl PlanCounter {
    /// Every counter, in the order of the metrics.
    pub const ALL: [Self; 1] = [Self::NearLimit];

    /// Name of the metric, and its help.
    pub fn metric(self) -> (&'static str, &'static str) {
        match self {
            Self::NearLimit => (
                "tollgate_near_limit_decisions_total",
                "Allowed requests after which less than a fifth of some limit was left, by plan.",
            ),
        }
    }
}

/// Counts of one limiter. Aligned to two cache lines, which processors fetch together, so that it shares no line with another
/// limiter.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Metrics {
    /// The counts of each counter; see [`FIRST`].
    counters: [AtomicU64; COUNTS],
    durations: Histogram,
    store_durations: Histogram,
    /// Requests that wait for the store now.
    waiting: AtomicU64,
}

impl Metrics {
    /// Counts a decision by the plan of `counters`. A peek is counted as a peek only, since it is not a decision.
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
                    counters.count(PlanCounter::NearLimit);
                }
                if let Some(candidate_allowed) = decision.candidate_allowed {
                    counters.record_candidate(allowed, candidate_allowed);
                }
                self.durations.record(took);
            }
            Mode::Peek => self.count(LimiterCounter::Peeks, 1),
        }
    }

    /// Counts so many requests.
    pub(super) fn count(&self, counter: LimiterCounter, requests: usize) {
        self.count_by(counter, 0, requests);
    }

    /// Counts so many requests under the value at this index of the counter's label.
    fn count_by(&self, counter: LimiterCounter, value: usize, requests: usize) {
        add(&self.counters[counter.range()][value], requests as u64);
    }

    /// Counts a descriptor that no rule matches.
    pub(super) fn count_unmatched(&self, allowed: bool) {
        self.count_by(LimiterCounter::Unmatched, usize::from(!allowed), 1);
    }

    /// Counts a joint decision.
    pub(super) fn count_joint(&self, outcome: Outcome) {
        let index = JOINT_OUTCOMES.iter().position(|other| *other == outcome);
        if let Some(index) = index {
            self.count_by(LimiterCounter::Joint, index, 1);
        }
    }

    /// Counts a decision in which an override from this source took part.
    pub(super) fn count_override(&self, source: OverrideSource) {
        self.count_by(LimiterCounter::Overridden, source as usize, 1);
    }

    /// Counts a request that the store failed to decide.
    pub(super) fn failed(&self, error: &StoreError) {
        self.count_by(LimiterCounter::StoreErrors, error.kind_index(), 1);
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
    counters: [u64; COUNTS],
    /// The overrides now.
    pub overrides: OverrideFigures,
    /// How long each decision waited for a store that is not embedded. A decision in a batch counts the wait of the batch. A
    /// decision without such a wait counts as zero: it takes less than the first bound, and the clock is not read.
    pub durations: Timings,
    /// How long each call took to a store that is not embedded. A call asks for one decision or for a batch.
    pub store_durations: Timings,
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
            counters: [0; COUNTS],
            overrides: OverrideFigures::default(),
            durations: Timings::default(),
            store_durations: Timings::default(),
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
            durations,
            store_durations,
            waiting,
        } = metrics;
        let counts = self.counters.iter_mut().zip(counters);
        for (total, counter) in counts.chain([(&mut self.waiting, waiting)]) {
            *total += counter.load(Ordering::Relaxed);
        }
        self.durations.add(durations);
        self.store_durations.add(store_durations);
    }

    /// What this counter has counted, over all values of its label.
    pub fn count(&self, counter: LimiterCounter) -> u64 {
        self.counts(counter).iter().sum()
    }

    /// The same for each value of its label.
    pub fn counts(&self, counter: LimiterCounter) -> &[u64] {
        &self.counters[counter.range()]
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

    /// What this counter has counted of the plan at this index.
    pub fn count_of_plan(&self, plan: usize, counter: PlanCounter) -> u64 {
        self.decisions.count_of_plan(plan, counter)
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
const JOINT_OUTCOMES: [Outcome; 3] = [Outcome::Allowed, Outcome::Denied, Outcome::NeverFits];

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
