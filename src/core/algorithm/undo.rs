//! The undo of a charge, where several charges were to be all or none, and a later one was denied.
//!
//! An undo names the instant of its charge. So unlike a refund it takes no unit of another charge:
//!
//! | algorithm | an undo gives back |
//! |---|---|
//! | `fixed_window` | the units, if the key's window is still that of the charge; else nothing, for they ended with it |
//! | `sliding_log`, `sliding_window` | the units at that instant, or from the run that took them up |
//! | `sliding_counter` | the units, from the window of that instant |
//! | `token_bucket` | the units, less the refill since the later of the charge and the end of the debt before it |
//!
//! A bucket without the charge would have been full from that later instant on, and then a refill is lost. So a bucket that was
//! charged meanwhile keeps at most the refill of the time between charge and undo. Where several charges of one bucket are undone
//! whose times overlap, the debt before one may go earlier than it knows. At most that refill is then given back too much.
//!
//! A state that has nothing of the charge any more stays as it is.

use smallvec::SmallVec;

use super::refund::give_back;
use super::{GivenBack, State, Verdict};
use crate::algorithm::Reading;
use crate::plan::Limit;

/// The instants by which [`undo`] undoes a charge of `cost`, one for each limit, in microseconds since 1970. `charged` is the
/// verdict of the charge, which was at `now_us`.
pub fn undo_instants(
    limits: &[Limit],
    charged: &Verdict,
    now_us: u64,
    cost: u64,
) -> SmallVec<[u64; 2]> {
    let instant = |(limit, reading): (&Limit, &Reading)| match *reading {
        // A charge leaves the whole debt at the limit's own rate.
        Reading::Bucket { backlog_us, .. } => {
            let charged_us = cost.saturating_mul(limit.emission_us());
            now_us.saturating_add(backlog_us.saturating_sub(charged_us))
        }
        Reading::Window { .. }
        | Reading::Calendar { .. }
        | Reading::Counter { .. }
        | Reading::Log { .. } => now_us,
    };
    limits.iter().zip(&charged.readings).map(instant).collect()
}

/// Undoes a charge of `cost` that fitted every limit. `instants` are those of [`undo_instants`]; a limit without one keeps its units.
pub fn undo(
    limits: &[Limit],
    states: &mut [State],
    now_us: u64,
    cost: u64,
    instants: &[u64],
) -> GivenBack {
    let mut instants = instants.iter();
    give_back(limits, states, now_us, |limit, state| {
        if let Some(instant_us) = instants.next() {
            state.undo(limit, now_us, cost, *instant_us);
        }
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Mode, decide};
    use crate::key::Cost;
    use crate::plan::{Algorithm, Anchor};

    const WINDOW_US: u64 = 10_000;
    const QUOTA: u64 = 20;
    const FIXED: Algorithm = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };

    /// What happens next, and after which time.
    #[derive(Debug, Clone)]
    enum Step {
        /// A charge that stays.
        Charge(u64),
        /// A charge that is undone later.
        Try(u64),
        /// One of those is undone, by this index.
        Undo(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
        let after_us =
            prop_oneof![4 => Just(0_u64), 8 => 1..400_u64, 2 => 400..3_000_u64, 1 => 0..25_000_u64];
        let cost = prop_oneof![4 => 1..4_u64, 1 => 1..=QUOTA];
        let step = prop_oneof![
            3 => cost.clone().prop_map(Step::Charge),
            3 => cost.prop_map(Step::Try),
            3 => (0..8_usize).prop_map(Step::Undo),
        ];
        prop::collection::vec((after_us, step), 1..80)
    }

    /// A key under one limit.
    struct Subject {
        limit: Limit,
        states: [State; 1],
        now_us: u64,
    }

    /// A charge that is to be undone.
    struct Trial {
        cost: u64,
        at_us: u64,
        instants: SmallVec<[u64; 2]>,
    }

    impl Subject {
        fn new(algorithm: Algorithm) -> Self {
            let limit =
                Limit::new("l", QUOTA, Duration::from_micros(WINDOW_US), algorithm).unwrap();
            Self {
                states: [State::fresh(&limit)],
                limit,
                now_us: 4_000_000_000,
            }
        }

        fn decide(&mut self, cost: u64, mode: Mode) -> Verdict {
            let limits = std::slice::from_ref(&self.limit);
            let cost = Cost::new(cost).unwrap();
            decide(limits, &mut self.states, self.now_us, cost, mode)
        }

        fn charge(&mut self, cost: u64) -> bool {
            self.decide(cost, Mode::Charge).fits
        }

        /// A charge that is to be undone, if it fits.
        fn trial(&mut self, cost: u64) -> Option<Trial> {
            let charged = self.decide(cost, Mode::Charge);
            let limits = std::slice::from_ref(&self.limit);
            let instants = undo_instants(limits, &charged, self.now_us, cost);
            charged.fits.then_some(Trial {
                cost,
                at_us: self.now_us,
                instants,
            })
        }

        /// Undoes it. Returns how many units came back.
        fn undo(&mut self, trial: &Trial) -> u64 {
            let limits = std::slice::from_ref(&self.limit);
            let now_us = self.now_us;
            let instants = &trial.instants;
            undo(limits, &mut self.states, now_us, trial.cost, instants).units()[0]
        }

        fn reading(&mut self) -> Reading {
            self.decide(1, Mode::Peek).readings[0]
        }

        fn used(&mut self) -> u64 {
            self.reading().used(&self.limit.clone())
        }
    }

    /// Runs steps on a key, and the charges that stay on a twin, which never sees the others. What a key lets pass, its twin lets pass
    /// too. `check` looks at both after each step, with the trials that are not undone yet.
    fn run(
        [algorithm, of_twin]: [Algorithm; 2],
        steps: Vec<(u64, Step)>,
        check: impl Fn(&mut Subject, &mut Subject, &[Trial]) -> Result<(), TestCaseError>,
    ) -> Result<(), TestCaseError> {
        let mut key = Subject::new(algorithm);
        let mut twin = Subject::new(of_twin);
        let mut trials = Vec::new();
        for (after_us, step) in steps {
            key.now_us += after_us;
            twin.now_us += after_us;
            match step {
                Step::Charge(cost) => {
                    if key.charge(cost) {
                        prop_assert!(twin.charge(cost), "the quota is passed");
                    }
                }
                Step::Try(cost) => trials.extend(key.trial(cost)),
                Step::Undo(index) if index < trials.len() => {
                    let trial = trials.remove(index);
                    let back = key.undo(&trial);
                    prop_assert!(back <= trial.cost, "{back} of {} came back", trial.cost);
                }
                Step::Undo(_) => {}
            }
            check(&mut key, &mut twin, &trials)?;
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_fixed_window_counts_as_if_the_undone_were_never_charged(steps in steps()) {
            run([FIXED; 2], steps, |key, twin, trials| {
                let window = |at_us: u64| at_us / WINDOW_US;
                let now_us = key.now_us;
                let present = trials.iter().filter(|trial| window(trial.at_us) == window(now_us));
                let left: u64 = present.map(|trial| trial.cost).sum();
                prop_assert_eq!(key.used(), twin.used() + left);
                Ok(())
            })?;
        }

        #[test]
        fn a_sliding_counter_counts_as_if_the_undone_were_never_charged(steps in steps()) {
            run([Algorithm::SlidingCounter; 2], steps, |key, twin, trials| {
                prop_assert!(key.used() >= twin.used());
                if trials.is_empty() {
                    prop_assert_eq!(key.used(), twin.used());
                }
                Ok(())
            })?;
        }

        #[test]
        fn a_sliding_log_counts_as_if_the_undone_were_never_charged(steps in steps()) {
            run([Algorithm::SlidingLog; 2], steps, |key, twin, trials| {
                let live = trials.iter().filter(|trial| trial.at_us + WINDOW_US > key.now_us);
                let left: u64 = live.map(|trial| trial.cost).sum();
                prop_assert_eq!(key.used(), twin.used() + left);
                if trials.is_empty() {
                    prop_assert_eq!(key.reading(), twin.reading());
                }
                Ok(())
            })?;
        }

        /// Its runs may be merged by charges that are undone. So units may leave late, but none early.
        #[test]
        fn a_sliding_window_frees_no_unit_early(steps in steps(), precision in 2_u8..9) {
            let window = Algorithm::SlidingWindow { precision };
            run([window, Algorithm::SlidingLog], steps, |key, twin, trials| {
                let live = trials.iter().filter(|trial| trial.at_us + WINDOW_US > key.now_us);
                let left: u64 = live.map(|trial| trial.cost).sum();
                prop_assert!(key.used() >= twin.used() + left);
                Ok(())
            })?;
        }

        /// As many runs as it keeps exactly.
        #[test]
        fn a_sliding_window_of_few_runs_counts_as_if_the_undone_were_never_charged(steps in steps()) {
            let window = Algorithm::SlidingWindow { precision: 64 };
            run([window, Algorithm::SlidingLog], steps, |key, twin, trials| {
                if trials.is_empty() {
                    prop_assert_eq!(key.reading(), twin.reading());
                }
                Ok(())
            })?;
        }

        /// A window begins with a charge also where that is undone later. In each, no more pass than the quota.
        #[test]
        fn a_window_from_the_first_request_passes_no_quota(steps in steps()) {
            let algorithm = Algorithm::FixedWindow { anchor: Anchor::FirstRequest };
            let mut key = Subject::new(algorithm);
            let mut trials = Vec::new();
            let mut passed = (0, 0);
            for (after_us, step) in steps {
                key.now_us += after_us;
                match step {
                    Step::Charge(cost) => if key.charge(cost) {
                        let Reading::Window { ends_in_us, .. } = key.reading() else { panic!("no window") };
                        let end_us = key.now_us + ends_in_us;
                        passed = (end_us, if passed.0 == end_us { passed.1 + cost } else { cost });
                        prop_assert!(passed.1 <= QUOTA);
                    },
                    Step::Try(cost) => trials.extend(key.trial(cost)),
                    Step::Undo(index) if index < trials.len() => {
                        let trial: Trial = trials.remove(index);
                        prop_assert!(key.undo(&trial) <= trial.cost);
                    }
                    Step::Undo(_) => {}
                }
                let kept = if passed.0 > key.now_us { passed.1 } else { 0 };
                prop_assert!(key.used() >= kept);
                if trials.is_empty() {
                    prop_assert_eq!(key.used(), kept);
                }
            }
        }

        /// Where no two trials overlap, the bound holds in any interval: the debt is never below that without them. Of each trial at
        /// most the refill of its own time is left.
        #[test]
        fn a_bucket_owes_at_least_what_was_charged_and_at_most_a_trial_s_time_more(steps in steps(), burst in 1..40_u64) {
            let algorithm = Algorithm::TokenBucket { burst };
            let mut key = Subject::new(algorithm);
            let mut twin = Subject::new(algorithm);
            let backlog = |subject: &mut Subject| match subject.reading() {
                Reading::Bucket { backlog_us, .. } => backlog_us,
                other => panic!("{other:?}"),
            };
            // The trial under way, and how much more the key owed before it.
            let mut trial: Option<(Trial, u64)> = None;
            for (after_us, step) in steps {
                key.now_us += after_us;
                twin.now_us += after_us;
                match (step, &trial) {
                    (Step::Charge(cost), _) => if key.charge(cost.min(burst)) {
                        prop_assert!(twin.charge(cost.min(burst)), "the bound is passed");
                    },
                    (Step::Try(cost), None) => {
                        let more_us = backlog(&mut key) - backlog(&mut twin);
                        trial = key.trial(cost.min(burst)).map(|trial| (trial, more_us));
                    }
                    (_, Some((ended, more_us))) => {
                        key.undo(ended);
                        let left_us = backlog(&mut key) - backlog(&mut twin);
                        prop_assert!(left_us <= more_us + key.now_us - ended.at_us, "{left_us} us are left");
                        trial = None;
                    }
                    (Step::Undo(_), None) => {}
                }
                prop_assert!(backlog(&mut key) >= backlog(&mut twin));
            }
        }

        /// Trials that overlap may give back the refill of one trial's time too much.
        #[test]
        fn a_bucket_of_trials_that_overlap_passes_its_bound_by_a_trial_s_time_at_most(steps in steps(), burst in 1..40_u64) {
            let mut key = Subject::new(Algorithm::TokenBucket { burst });
            let emission_us = key.limit.emission_us();
            let mut longest_us = 0;
            let mut trials = Vec::<Trial>::new();
            // When the debt of the charges that stay would end.
            let mut tat_us = 0;
            for (after_us, step) in steps {
                key.now_us += after_us;
                match step {
                    Step::Charge(cost) => if key.charge(cost.min(burst)) {
                        tat_us = key.now_us.max(tat_us) + cost.min(burst) * emission_us;
                        let trials = trials.iter().map(|trial| key.now_us - trial.at_us);
                        longest_us = trials.fold(longest_us, u64::max);
                        prop_assert!(tat_us - key.now_us <= burst * emission_us + longest_us);
                    },
                    Step::Try(cost) => trials.extend(key.trial(cost.min(burst))),
                    Step::Undo(index) if index < trials.len() => {
                        let trial = trials.remove(index);
                        longest_us = longest_us.max(key.now_us - trial.at_us);
                        prop_assert!(key.undo(&trial) <= trial.cost);
                    }
                    Step::Undo(_) => {}
                }
            }
        }
    }

    /// 10 units of a millisecond each, as in the table above.
    #[test]
    fn an_undo_of_a_bucket_leaves_the_refill_that_would_have_been_lost() {
        let mut key = Subject::new(Algorithm::TokenBucket { burst: QUOTA });
        let emission_us = key.limit.emission_us();
        let trial = key.trial(10).unwrap();
        key.now_us += 4 * emission_us;
        assert!(key.charge(1));
        // A full bucket gets no refill, so the unit counts in full.
        assert_eq!(key.undo(&trial), 6);
        assert_eq!(key.used(), 1);
        // Its debt was not over, so all comes back.
        let trial = key.trial(10).unwrap();
        key.now_us += 1;
        key.undo(&trial);
        let left = Reading::Bucket {
            backlog_us: emission_us - 1,
            emission_us,
        };
        assert_eq!(key.reading(), left);
    }

    #[test]
    fn an_undo_without_an_instant_gives_nothing_back() {
        let mut key = Subject::new(FIXED);
        let trial = key.trial(3).unwrap();
        key.undo(&Trial {
            instants: SmallVec::new(),
            ..trial
        });
        assert_eq!(key.used(), 3);
    }
}
