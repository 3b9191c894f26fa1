//! Decisions by plan, outcome and decider: [`WorkerPlans`] counts them between two reloads, [`CounterTotals`] adds them up.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::PlanCounter;
use crate::limiter::PlanSnapshot;
use tollgate_core::decision::{DecidedBy, Outcome};
use tollgate_core::plan::{OverrideTable, Plan};

/// Counters of decisions per plan.
const DECISIONS: usize = Outcome::ALL.len() * DecidedBy::ALL.len();
/// Index of the first counter of a candidate; see [`candidate_index`]. Those of [`PlanCounter`] stand before.
const CANDIDATE: usize = DECISIONS + PlanCounter::ALL.len();
/// Counters per plan; each takes 8 bytes.
const PER_PLAN: usize = CANDIDATE + 4;

/// The plans that one limiter decides by, and the counts of its decisions. Aligned like [`super::Metrics`]: each decision
/// changes the reference count beside it, and no other limiter may share that cache line.
#[repr(align(128))]
pub(in crate::limiter) struct WorkerPlans {
    pub(in crate::limiter) snapshot: Arc<PlanSnapshot>,
    /// The overrides in force among these plans.
    pub(in crate::limiter) overrides: Arc<OverrideTable>,
    /// [`PER_PLAN`] counters for each plan, in the order of the plans.
    counters: Box<[AtomicU64]>,
}

impl WorkerPlans {
    /// Creates the counters of a snapshot, all at zero.
    pub(in crate::limiter) fn new(
        snapshot: Arc<PlanSnapshot>,
        overrides: Arc<OverrideTable>,
    ) -> Self {
        let counters = (0..snapshot.plans().len() * PER_PLAN)
            .map(|_| AtomicU64::new(0))
            .collect();
        Self {
            snapshot,
            overrides,
            counters,
        }
    }

    /// The counters of the plan at this index.
    pub(in crate::limiter) fn counters(&self, plan: usize) -> PlanCounters<'_> {
        PlanCounters(&self.counters[plan * PER_PLAN..][..PER_PLAN])
    }
}

/// One plan's counters.
#[derive(Clone, Copy)]
pub(in crate::limiter) struct PlanCounters<'a>(&'a [AtomicU64]);

impl PlanCounters<'_> {
    pub(super) fn record(self, outcome: Outcome, by: DecidedBy) {
        self.0[index(outcome, by)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request.
    pub(in crate::limiter) fn count(self, counter: PlanCounter) {
        self.0[DECISIONS + counter as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what the plan and its candidate decided on one request.
    pub(super) fn record_candidate(self, allowed: bool, candidate_allowed: bool) {
        self.0[candidate_index(allowed, candidate_allowed)].fetch_add(1, Ordering::Relaxed);
    }
}

/// The sums of many [`WorkerPlans`], by the plans of one snapshot.
#[derive(Debug, Clone)]
pub(in crate::limiter) struct CounterTotals {
    snapshot: Arc<PlanSnapshot>,
    /// Laid out like [`WorkerPlans`]' counters.
    of_plans: Vec<u64>,
    /// Counts of all plans that are not in this snapshot, so that totals over all plans never fall.
    of_others: [u64; PER_PLAN],
}

impl Default for CounterTotals {
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl CounterTotals {
    /// All sums at zero.
    pub(in crate::limiter) fn new(snapshot: Arc<PlanSnapshot>) -> Self {
        let of_plans = vec![0; snapshot.plans().len() * PER_PLAN];
        Self {
            snapshot,
            of_plans,
            of_others: [0; PER_PLAN],
        }
    }

    /// Moves the sums to another snapshot: a plan keeps its sums by its name. A removed plan loses them, and starts at zero if
    /// it returns. Otherwise names that come and go would add up for ever.
    pub(in crate::limiter) fn moved_to(self, snapshot: Arc<PlanSnapshot>) -> Self {
        let mut counter_totals = Self {
            of_others: self.of_others,
            ..Self::new(snapshot)
        };
        counter_totals.add_counts(&self.snapshot, self.of_plans.into_iter());
        counter_totals
    }

    /// Adds the counts of a [`WorkerPlans`] of any snapshot.
    pub(in crate::limiter) fn add(&mut self, worker_plans: &WorkerPlans) {
        self.add_counts(
            &worker_plans.snapshot,
            worker_plans
                .counters
                .iter()
                .map(|counter| counter.load(Ordering::Relaxed)),
        );
    }

    fn add_counts(&mut self, snapshot: &PlanSnapshot, mut counts: impl Iterator<Item = u64>) {
        for plan in snapshot.plans().iter() {
            let name_of_candidate = |plan: &Plan| {
                plan.candidate
                    .as_ref()
                    .map(|candidate| candidate.name.clone())
            };
            let (counter_totals, same_candidate) =
                match self.snapshot.plans().find_if_any(&plan.name) {
                    Some((plan_index, own)) => (
                        &mut self.of_plans[plan_index * PER_PLAN..][..PER_PLAN],
                        name_of_candidate(own) == name_of_candidate(plan),
                    ),
                    None => (&mut self.of_others[..], false),
                };
            for (index, (sum, count)) in counter_totals.iter_mut().zip(counts.by_ref()).enumerate()
            {
                // The counts of another candidate are not this one's.
                *sum += if index < CANDIDATE || same_candidate {
                    count
                } else {
                    0
                };
            }
        }
    }

    pub(super) fn snapshot(&self) -> &Arc<PlanSnapshot> {
        &self.snapshot
    }

    pub(super) fn count(&self, plan: usize, outcome: Outcome, by: DecidedBy) -> u64 {
        self.of_plans[plan * PER_PLAN + index(outcome, by)]
    }

    pub(super) fn decided_by(&self, by: DecidedBy) -> u64 {
        Outcome::ALL
            .iter()
            .map(|outcome| self.count_all(*outcome, by))
            .sum()
    }

    pub(super) fn count_all(&self, outcome: Outcome, by: DecidedBy) -> u64 {
        let counter = index(outcome, by);
        self.of_plans
            .chunks_exact(PER_PLAN)
            .map(|counters| counters[counter])
            .sum::<u64>()
            + self.of_others[counter]
    }

    pub(super) fn count_of_plan(&self, plan: usize, counter: PlanCounter) -> u64 {
        self.of_plans[plan * PER_PLAN + DECISIONS + counter as usize]
    }

    pub(super) fn candidate_count(
        &self,
        plan: usize,
        allowed: bool,
        candidate_allowed: bool,
    ) -> u64 {
        self.of_plans[plan * PER_PLAN + candidate_index(allowed, candidate_allowed)]
    }
}

/// Index of a counter among those of its plan.
fn index(outcome: Outcome, by: DecidedBy) -> usize {
    outcome as usize * DecidedBy::ALL.len() + by as usize
}

/// Index of a counter of the candidate among those of its plan.
fn candidate_index(allowed: bool, candidate_allowed: bool) -> usize {
    CANDIDATE + 2 * usize::from(allowed) + usize::from(candidate_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::plan::Rule;

    fn snapshot(names: &[&str]) -> Arc<PlanSnapshot> {
        let plan = |name: &&str| Plan::new(*name, Rule::Unlimited);
        Arc::new(PlanSnapshot::new(names.iter().map(plan).collect(), 1))
    }

    impl WorkerPlans {
        /// Counters for this many plans.
        pub(in crate::limiter::metrics) fn with_plans(plans: usize) -> Self {
            let names: Vec<String> = (0..plans).map(|plan| plan.to_string()).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            Self::new(snapshot(&names), Arc::default())
        }
    }

    #[test]
    fn every_decision_has_a_counter_of_its_own_and_workers_add_up() {
        let plans = snapshot(&["a", "b", "c"]);
        let worker_plans = [
            WorkerPlans::new(plans.clone(), Arc::default()),
            WorkerPlans::new(plans.clone(), Arc::default()),
        ];
        let mut expected = Vec::new();
        for plan in 0..3 {
            for (outcome, by) in Outcome::ALL
                .iter()
                .flat_map(|outcome| DecidedBy::ALL.map(|by| (*outcome, by)))
            {
                let times = expected.len() + 1;
                (0..times)
                    .for_each(|index| worker_plans[index % 2].counters(plan).record(outcome, by));
                expected.push((plan, outcome, by, times as u64));
            }
        }
        let mut counter_totals = CounterTotals::new(plans);
        worker_plans
            .iter()
            .for_each(|worker_plans| counter_totals.add(worker_plans));
        for (plan, outcome, by, times) in &expected {
            assert_eq!(counter_totals.count(*plan, *outcome, *by), *times);
        }
        for by in DecidedBy::ALL {
            let of_it: u64 = expected
                .iter()
                .filter(|(_, _, other, _)| *other == by)
                .map(|(.., times)| times)
                .sum();
            assert_eq!(counter_totals.decided_by(by), of_it);
        }
    }

    #[test]
    fn counts_follow_their_plan_s_name_from_snapshot_to_snapshot() {
        let allowed = Outcome::Allowed;
        let by = DecidedBy::Store;
        let before = WorkerPlans::new(snapshot(&["b", "c"]), Arc::default());
        before.counters(0).record(allowed, by);
        (0..5).for_each(|_| before.counters(1).record(allowed, by));
        let mut counter_totals = CounterTotals::new(before.snapshot.clone());
        counter_totals.add(&before);
        // b is removed, and c is now the first plan.
        let mut counter_totals = counter_totals.moved_to(snapshot(&["c", "d"]));
        assert_eq!(
            (
                counter_totals.count(0, allowed, by),
                counter_totals.count(1, allowed, by),
                counter_totals.decided_by(by)
            ),
            (5, 0, 6)
        );
        // A request that began before the reload ends after it.
        before.counters(1).record(allowed, by);
        counter_totals.add(&before);
        assert_eq!(
            (
                counter_totals.count(0, allowed, by),
                counter_totals.decided_by(by)
            ),
            (11, 13)
        );
        let counter_totals = counter_totals.moved_to(snapshot(&["b"]));
        assert_eq!(
            (
                counter_totals.count(0, allowed, by),
                counter_totals.decided_by(by)
            ),
            (0, 13)
        );
    }

    #[test]
    fn counts_of_a_candidate_end_with_it() {
        let with = |candidate: &str| {
            let candidate = Some(Arc::new(Plan::new(candidate, Rule::Blocked)));
            Arc::new(PlanSnapshot::new(
                [Plan {
                    candidate,
                    ..Plan::new("a", Rule::Unlimited)
                }]
                .into_iter()
                .collect(),
                1,
            ))
        };
        let before = WorkerPlans::new(with("b"), Arc::default());
        before.counters(0).record_candidate(true, false);
        before.counters(0).count(PlanCounter::NearLimit);
        let mut counter_totals = CounterTotals::new(before.snapshot.clone());
        counter_totals.add(&before);
        let kept = counter_totals.clone().moved_to(with("b"));
        assert_eq!(
            (
                kept.candidate_count(0, true, false),
                kept.candidate_count(0, false, true)
            ),
            (1, 0)
        );
        let other = kept.moved_to(with("c"));
        assert_eq!(
            (
                other.candidate_count(0, true, false),
                other.count_of_plan(0, PlanCounter::NearLimit)
            ),
            (0, 1)
        );
    }
}
