//! What a limiter counts of its own work: decisions by plan, outcome and decider, how long they waited, what the store cost.
//!
//! Every limiter, and so every worker, has a tally of its own: plain counters that it alone adds to, without order and
//! without a lock, so no worker ever waits for another's. Whoever wants to know adds them up ([`Totals`]). Knows no wire.

mod histogram;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::algorithm::Mode;
use crate::decision::{DecidedBy, Decision, Outcome};
use crate::store::StoreError;
use histogram::Histogram;
pub use histogram::{BOUNDS_NS, Timings};

/// Counters of one plan, 192 bytes.
const PER_PLAN: usize = Outcome::ALL.len() * DecidedBy::ALL.len();

/// Counts of one limiter. Aligned to two cache lines, which processors fetch together, so that it shares none with another's.
#[repr(align(128))]
pub(super) struct Tally {
    /// [`PER_PLAN`] of each plan, in the order of the plans; see [`place`].
    decisions: Box<[AtomicU64]>,
    peeks: AtomicU64,
    unknown_plans: AtomicU64,
    durations: Histogram,
    store_durations: Histogram,
    store_errors: [AtomicU64; StoreError::KINDS.len()],
    /// Questions that wait for the store.
    waiting: AtomicU64,
}

impl Tally {
    /// A tally of nothing, for so many plans.
    pub(super) fn new(plans: usize) -> Self {
        Self {
            decisions: (0..plans * PER_PLAN).map(|_| AtomicU64::new(0)).collect(),
            peeks: AtomicU64::new(0),
            unknown_plans: AtomicU64::new(0),
            durations: Histogram::default(),
            store_durations: Histogram::default(),
            store_errors: Default::default(),
            waiting: AtomicU64::new(0),
        }
    }

    /// Notes a decision by the plan at `plan`. A peek decides nothing, so it is noted as one and no more.
    pub(super) fn decided(&self, plan: usize, mode: Mode, decision: &Decision, took: Duration) {
        match mode {
            Mode::Charge => {
                add(&self.decisions[place(plan, decision.outcome, decision.decided_by)], 1);
                self.durations.note(took);
            }
            Mode::Peek => add(&self.peeks, 1),
        }
    }

    /// Notes a question about a plan that there is not.
    pub(super) fn unknown_plan(&self) {
        add(&self.unknown_plans, 1);
    }

    /// Notes a question that the store's failure left without its answer.
    pub(super) fn failed(&self, error: &StoreError) {
        add(&self.store_errors[error.kind_index()], 1);
    }

    /// Notes a call to the store, answered or not.
    pub(super) fn store_took(&self, took: Duration) {
        self.store_durations.note(took);
    }

    /// Notes that so many questions wait for the store, until what is returned is dropped.
    pub(super) fn waiting(&self, questions: usize) -> impl Drop + '_ {
        let waiting = Waiting { tally: self, questions: questions as u64 };
        add(&self.waiting, waiting.questions);
        waiting
    }
}

struct Waiting<'a> {
    tally: &'a Tally,
    questions: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.tally.waiting.fetch_sub(self.questions, Ordering::Relaxed);
    }
}

/// Counts of all limiters of a process, since each began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Totals {
    decisions: Vec<u64>,
    /// Questions that were answered without charging.
    pub peeks: u64,
    /// Questions about a plan that is not in the config.
    pub unknown_plans: u64,
    /// How long each decision waited for a store that is not embedded; of one in a batch, the batch. Zero without such a
    /// wait: then a decision takes less than the first bound, and the clock is not looked at.
    pub durations: Timings,
    /// How long each call to a store that is not embedded took; a call asks for one decision or a batch.
    pub store_durations: Timings,
    /// Questions that the store could not decide, by [`StoreError::KINDS`].
    pub store_errors: [u64; StoreError::KINDS.len()],
    /// Questions that wait for a store that is not embedded.
    pub waiting: u64,
    /// Denials that the deny caches hold, those that are over and not yet replaced included.
    pub deny_cache_entries: u64,
}

impl Totals {
    pub(super) fn new(plans: usize) -> Self {
        Self {
            decisions: vec![0; plans * PER_PLAN],
            peeks: 0,
            unknown_plans: 0,
            durations: Timings::default(),
            store_durations: Timings::default(),
            store_errors: Default::default(),
            waiting: 0,
            deny_cache_entries: 0,
        }
    }

    pub(super) fn add(&mut self, tally: &Tally) {
        let counters = self.decisions.iter_mut().zip(&tally.decisions);
        let errors = self.store_errors.iter_mut().zip(&tally.store_errors);
        let others = [
            (&mut self.peeks, &tally.peeks),
            (&mut self.unknown_plans, &tally.unknown_plans),
            (&mut self.waiting, &tally.waiting),
        ];
        for (total, counter) in counters.chain(errors).chain(others) {
            *total += counter.load(Ordering::Relaxed);
        }
        self.durations.add(&tally.durations);
        self.store_durations.add(&tally.store_durations);
    }

    /// Decisions by the plan at this place of the plan set that had this outcome from this decider.
    pub fn decisions(&self, plan: usize, outcome: Outcome, decided_by: DecidedBy) -> u64 {
        self.decisions[place(plan, outcome, decided_by)]
    }

    /// Decisions by this decider, of every plan and outcome.
    pub fn decided_by(&self, decided_by: DecidedBy) -> u64 {
        self.decisions.iter().skip(decided_by as usize).step_by(DecidedBy::ALL.len()).sum()
    }
}

fn place(plan: usize, outcome: Outcome, decided_by: DecidedBy) -> usize {
    plan * PER_PLAN + outcome as usize * DecidedBy::ALL.len() + decided_by as usize
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_micros(70);

    #[test]
    fn every_decision_has_a_counter_of_its_own_and_tallies_add_up() {
        let (plans, mut expected) = (3, Vec::new());
        let tallies = [Tally::new(plans), Tally::new(plans)];
        let mut times = 0;
        for plan in 0..plans {
            for outcome in Outcome::ALL {
                for by in DecidedBy::ALL {
                    times += 1;
                    let decision = Decision::uncounted(outcome, by, None);
                    (0..times).for_each(|turn| tallies[turn % 2].decided(plan, Mode::Charge, &decision, TOOK));
                    expected.push((plan, outcome, by, times as u64));
                }
            }
        }
        let mut totals = Totals::new(plans);
        tallies.iter().for_each(|tally| totals.add(tally));
        for (plan, outcome, by, times) in &expected {
            assert_eq!(totals.decisions(*plan, *outcome, *by), *times);
        }
        let all: u64 = expected.iter().map(|(.., times)| times).sum();
        assert_eq!(totals.durations.count(), all);
        assert_eq!(totals.durations.sum_ns, all * 70_000);
        for by in DecidedBy::ALL {
            let of_it: u64 = expected.iter().filter(|(_, _, other, _)| *other == by).map(|(.., times)| times).sum();
            assert_eq!(totals.decided_by(by), of_it);
        }
    }

    #[test]
    fn counting_allocates_nothing() {
        let (tally, decision) = (Tally::new(1), Decision::uncounted(Outcome::Denied, DecidedBy::Store, None));
        let counted = allocation_counter::measure(|| {
            let _waiting = tally.waiting(1);
            tally.decided(0, Mode::Charge, &decision, TOOK);
            tally.store_took(TOOK);
            tally.failed(&StoreError::Full);
        });
        assert_eq!(counted.count_total, 0);
    }

    #[test]
    fn a_peek_is_no_decision() {
        let tally = Tally::new(1);
        tally.decided(0, Mode::Peek, &Decision::uncounted(Outcome::Allowed, DecidedBy::Store, None), TOOK);
        let mut totals = Totals::new(1);
        totals.add(&tally);
        assert_eq!((totals.peeks, totals.decided_by(DecidedBy::Store), totals.durations.count()), (1, 0, 0));
    }

    #[test]
    fn whoever_stops_waiting_waits_no_more() {
        let tally = Tally::new(0);
        let waiting = || tally.waiting.load(Ordering::Relaxed);
        let (one, many) = (tally.waiting(1), tally.waiting(99));
        assert_eq!(waiting(), 100);
        drop(many);
        assert_eq!(waiting(), 1);
        drop(one);
        assert_eq!(waiting(), 0);
    }
}
