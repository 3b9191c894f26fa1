//! What a limiter counts of its own work: decisions by plan, outcome and decider, how long they waited, what the store cost.
//!
//! Every limiter, and so every worker, has a tally of its own: plain counters that it alone adds to, without order and
//! without a lock, so no worker ever waits for another's. Whoever wants to know adds them up ([`Totals`]). Knows no wire.
//!
//! Decisions are counted in a [`Ledger`], beside the plans that they are made by: a reload opens another, and a decision
//! under way keeps the one that it began with.

mod histogram;
mod ledger;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Edition;
use crate::algorithm::Mode;
use crate::decision::{DecidedBy, Decision, Outcome};
use crate::store::StoreError;
use histogram::Histogram;
pub use histogram::{BOUNDS_NS, Timings};
use ledger::Page;
pub(super) use ledger::{Ledger, Sums};

/// Counts of one limiter. Aligned to two cache lines, which processors fetch together, so that it shares none with another's.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Tally {
    peeks: AtomicU64,
    unknown_plans: AtomicU64,
    /// Of those, the ones that the default plan decided.
    by_default_plan: AtomicU64,
    callers_gone: AtomicU64,
    durations: Histogram,
    store_durations: Histogram,
    store_errors: [AtomicU64; StoreError::KINDS.len()],
    /// Questions that wait for the store.
    waiting: AtomicU64,
}

impl Tally {
    /// Notes a decision by the plan of this page. A peek decides nothing, so it is noted as one and no more, and no refund is.
    pub(super) fn decided(&self, page: Page<'_>, mode: Mode, decision: &Decision, took: Duration) {
        match mode {
            Mode::Charge => {
                page.note(decision.outcome, decision.decided_by);
                self.durations.note(took);
            }
            Mode::Peek => add(&self.peeks, 1),
            Mode::Refund => {}
        }
    }

    /// Notes a question about a plan that there is not, and whether the default plan decides it.
    pub(super) fn unknown_plan(&self, by_default_plan: bool) {
        add(&self.unknown_plans, 1);
        add(&self.by_default_plan, u64::from(by_default_plan));
    }

    /// Notes questions whose caller's deadline passed before the store answered.
    pub(super) fn caller_gone(&self, questions: usize) {
        add(&self.callers_gone, questions as u64);
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

/// Configs that came after the one of the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reloads {
    /// Those whose plans are or were enforced, also when none was new.
    pub taken_up: u64,
    /// Those that left the plans as they were, since something in them was wrong.
    pub refused: u64,
    /// Whether the last was one of these, so that what is enforced is not what its file says.
    pub last_refused: bool,
}

/// Counts of all limiters of a process, since each began.
#[derive(Debug)]
pub struct Totals {
    decisions: Sums,
    /// Configs since the start.
    pub reloads: Reloads,
    /// Questions that were answered without charging.
    pub peeks: u64,
    /// Questions about a plan that is not in the config.
    pub unknown_plans: u64,
    /// Of those, the ones that the default plan decided.
    pub by_default_plan: u64,
    /// Questions whose caller's deadline passed before the store answered: no decisions, and no failures of the store.
    pub callers_gone: u64,
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
    /// Replicas that share the quotas while the store cannot decide.
    pub replicas: u64,
}

impl Totals {
    /// These, and nothing else yet.
    pub(super) fn new(decisions: Sums, reloads: Reloads) -> Self {
        Self {
            decisions,
            reloads,
            peeks: 0,
            unknown_plans: 0,
            by_default_plan: 0,
            callers_gone: 0,
            durations: Timings::default(),
            store_durations: Timings::default(),
            store_errors: Default::default(),
            waiting: 0,
            deny_cache_entries: 0,
            replicas: 1,
        }
    }

    /// Adds a limiter's counts, all but its decisions.
    pub(super) fn add(&mut self, tally: &Tally) {
        let errors = self.store_errors.iter_mut().zip(&tally.store_errors);
        let others = [
            (&mut self.peeks, &tally.peeks),
            (&mut self.unknown_plans, &tally.unknown_plans),
            (&mut self.by_default_plan, &tally.by_default_plan),
            (&mut self.callers_gone, &tally.callers_gone),
            (&mut self.waiting, &tally.waiting),
        ];
        for (total, counter) in errors.chain(others) {
            *total += counter.load(Ordering::Relaxed);
        }
        self.durations.add(&tally.durations);
        self.store_durations.add(&tally.store_durations);
    }

    /// What is enforced now.
    pub fn edition(&self) -> &Arc<Edition> {
        self.decisions.edition()
    }

    /// Decisions by the plan at this place of [`Self::edition`]'s that had this outcome from this decider, those before a
    /// reload included.
    pub fn decisions(&self, plan: usize, outcome: Outcome, decided_by: DecidedBy) -> u64 {
        self.decisions.of(plan, outcome, decided_by)
    }

    /// Decisions by this decider, of every plan and outcome, plans that are gone included.
    pub fn decided_by(&self, decided_by: DecidedBy) -> u64 {
        self.decisions.by(decided_by)
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_micros(70);

    #[test]
    fn counting_allocates_nothing() {
        let (tally, ledger) = (Tally::default(), Ledger::of(1));
        let decision = Decision::uncounted(Outcome::Denied, DecidedBy::Store, None);
        let counted = allocation_counter::measure(|| {
            let _waiting = tally.waiting(1);
            tally.decided(ledger.page(0), Mode::Charge, &decision, TOOK);
            tally.store_took(TOOK);
            tally.failed(&StoreError::Full);
        });
        assert_eq!(counted.count_total, 0);
    }

    #[test]
    fn a_decision_is_timed_and_a_peek_is_no_decision() {
        let (tally, ledger) = (Tally::default(), Ledger::of(1));
        let decision = Decision::uncounted(Outcome::Allowed, DecidedBy::Store, None);
        tally.decided(ledger.page(0), Mode::Charge, &decision, TOOK);
        tally.decided(ledger.page(0), Mode::Peek, &decision, TOOK);
        let mut sums = Sums::default();
        sums.add(&ledger);
        let mut totals = Totals::new(sums, Reloads::default());
        totals.add(&tally);
        assert_eq!((totals.peeks, totals.decided_by(DecidedBy::Store)), (1, 1));
        assert_eq!((totals.durations.count(), totals.durations.sum_ns), (1, 70_000));
    }

    #[test]
    fn whoever_stops_waiting_waits_no_more() {
        let tally = Tally::default();
        let waiting = || tally.waiting.load(Ordering::Relaxed);
        let (one, many) = (tally.waiting(1), tally.waiting(99));
        assert_eq!(waiting(), 100);
        drop(many);
        assert_eq!(waiting(), 1);
        drop(one);
        assert_eq!(waiting(), 0);
    }
}
