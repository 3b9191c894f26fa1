//! Decisions by plan, outcome and decider, from one reload to the next ([`Ledger`]), and added up over them ([`Sums`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::decision::{DecidedBy, Outcome};
use crate::limiter::Edition;

/// Counters of one plan, 192 bytes.
const PER_PLAN: usize = Outcome::ALL.len() * DecidedBy::ALL.len();

/// What one limiter decides by, and what it decided by that. Aligned as a tally is: each decision of its worker counts who
/// holds it, and no other's may share that cache line.
#[repr(align(128))]
pub(in crate::limiter) struct Ledger {
    pub(in crate::limiter) edition: Arc<Edition>,
    /// [`PER_PLAN`] of each plan, in the order of the plans; see [`index`].
    counters: Box<[AtomicU64]>,
}

impl Ledger {
    /// A ledger of nothing.
    pub(in crate::limiter) fn new(edition: Arc<Edition>) -> Self {
        let counters = (0..edition.plans().len() * PER_PLAN).map(|_| AtomicU64::new(0)).collect();
        Self { edition, counters }
    }

    /// Where decisions by the plan at this place are noted.
    pub(in crate::limiter) fn page(&self, plan: usize) -> Page<'_> {
        Page(&self.counters[plan * PER_PLAN..][..PER_PLAN])
    }
}

/// One plan's counters.
#[derive(Clone, Copy)]
pub(in crate::limiter) struct Page<'a>(&'a [AtomicU64]);

impl Page<'_> {
    pub(super) fn note(self, outcome: Outcome, by: DecidedBy) {
        self.0[index(outcome, by)].fetch_add(1, Ordering::Relaxed);
    }
}

/// What ledgers have come to, by the plans of one edition.
#[derive(Debug, Clone, Default)]
pub(in crate::limiter) struct Sums {
    edition: Arc<Edition>,
    /// As a ledger's counters.
    of_plans: Vec<u64>,
    /// Of all plans that this edition does not have, so that what is told of all plans together only grows.
    of_others: [u64; PER_PLAN],
}

impl Sums {
    /// Nothing yet.
    pub(in crate::limiter) fn new(edition: Arc<Edition>) -> Self {
        let of_plans = vec![0; edition.plans().len() * PER_PLAN];
        Self { edition, of_plans, of_others: [0; PER_PLAN] }
    }

    /// The same sums under the plans of another edition: each plan keeps its own by its name. One that is gone loses them,
    /// and should it return begins anew, lest names that come and go add up for ever.
    pub(in crate::limiter) fn under(self, edition: Arc<Edition>) -> Self {
        let mut sums = Self { of_others: self.of_others, ..Self::new(edition) };
        sums.add_counts(&self.edition, self.of_plans.into_iter());
        sums
    }

    /// Adds a ledger of whatever edition.
    pub(in crate::limiter) fn add(&mut self, ledger: &Ledger) {
        self.add_counts(&ledger.edition, ledger.counters.iter().map(|counter| counter.load(Ordering::Relaxed)));
    }

    fn add_counts(&mut self, edition: &Edition, mut counts: impl Iterator<Item = u64>) {
        for plan in edition.plans().iter() {
            let sums = match self.edition.plans().find_if_any(&plan.name) {
                Some((place, _)) => &mut self.of_plans[place * PER_PLAN..][..PER_PLAN],
                None => &mut self.of_others,
            };
            sums.iter_mut().zip(counts.by_ref()).for_each(|(sum, count)| *sum += count);
        }
    }

    pub(super) fn edition(&self) -> &Arc<Edition> {
        &self.edition
    }

    pub(super) fn of(&self, plan: usize, outcome: Outcome, by: DecidedBy) -> u64 {
        self.of_plans[plan * PER_PLAN + index(outcome, by)]
    }

    pub(super) fn by(&self, by: DecidedBy) -> u64 {
        let of_it = |sums: &[u64]| sums.iter().skip(by as usize).step_by(DecidedBy::ALL.len()).sum::<u64>();
        of_it(&self.of_plans) + of_it(&self.of_others)
    }
}

/// The place of a counter among those of its plan.
fn index(outcome: Outcome, by: DecidedBy) -> usize {
    outcome as usize * DecidedBy::ALL.len() + by as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{OnStoreFailure, Plan, Rule};

    fn edition(names: &[&str]) -> Arc<Edition> {
        let plan = |name: &&str| Plan {
            name: (*name).into(),
            counts_as: (*name).into(),
            rule: Rule::Unlimited,
            shadow: false,
            on_store_failure: OnStoreFailure::Local,
        };
        Arc::new(Edition::new(names.iter().map(plan).collect(), 1))
    }

    impl Ledger {
        /// Of so many plans.
        pub(in crate::limiter::tally) fn of(plans: usize) -> Self {
            let names: Vec<String> = (0..plans).map(|plan| plan.to_string()).collect();
            Self::new(edition(&names.iter().map(String::as_str).collect::<Vec<_>>()))
        }
    }

    #[test]
    fn every_decision_has_a_counter_of_its_own_and_ledgers_add_up() {
        let plans = edition(&["a", "b", "c"]);
        let ledgers = [Ledger::new(plans.clone()), Ledger::new(plans.clone())];
        let mut expected = Vec::new();
        for plan in 0..3 {
            for (outcome, by) in Outcome::ALL.iter().flat_map(|outcome| DecidedBy::ALL.map(|by| (*outcome, by))) {
                let times = expected.len() + 1;
                (0..times).for_each(|turn| ledgers[turn % 2].page(plan).note(outcome, by));
                expected.push((plan, outcome, by, times as u64));
            }
        }
        let mut sums = Sums::new(plans);
        ledgers.iter().for_each(|ledger| sums.add(ledger));
        for (plan, outcome, by, times) in &expected {
            assert_eq!(sums.of(*plan, *outcome, *by), *times);
        }
        for by in DecidedBy::ALL {
            let of_it: u64 = expected.iter().filter(|(_, _, other, _)| *other == by).map(|(.., times)| times).sum();
            assert_eq!(sums.by(by), of_it);
        }
    }

    #[test]
    fn counts_follow_their_plan_s_name_from_edition_to_edition() {
        let (allowed, by) = (Outcome::Allowed, DecidedBy::Store);
        let before = Ledger::new(edition(&["b", "c"]));
        before.page(0).note(allowed, by);
        (0..5).for_each(|_| before.page(1).note(allowed, by));
        let mut sums = Sums::new(before.edition.clone());
        sums.add(&before);
        // b is gone, and c is no longer the second.
        let mut sums = sums.under(edition(&["c", "d"]));
        assert_eq!((sums.of(0, allowed, by), sums.of(1, allowed, by), sums.by(by)), (5, 0, 6));
        // A call that had begun before the reload ends after it.
        before.page(1).note(allowed, by);
        sums.add(&before);
        assert_eq!((sums.of(0, allowed, by), sums.by(by)), (11, 13));
        let sums = sums.under(edition(&["b"]));
        assert_eq!((sums.of(0, allowed, by), sums.by(by)), (0, 13));
    }
}
