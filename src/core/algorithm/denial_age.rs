//! Computes the numbers of a denial some time after its readings were taken, if the key was not used since. So a remembered
//! denial can be answered again with the numbers that the store would give then, without a store call.
//!
//! The numbers of windows, buckets and counters are exact to the microsecond, because their readings are their whole state. A
//! log's reading is valid for one cost only ([`tells_one_cost`]); its wait and its time until it is empty are exact. Units that
//! left the log meanwhile, too few to let that cost pass, are still counted as used. So `remaining` may be too small, never too
//! large, and it stays below the cost while the cost is denied.
//!
//! If the key was charged since, the true waits are longer and the true `remaining` is smaller. There is one exception: another
//! plan with the same `counts_as` has a bucket of a faster rate. After its charge the whole debt drains at that faster rate.

use super::{BlockReading, Reading, Verdict, begins_block};
use crate::key::Cost;
use crate::plan::Limit;

/// Whether a limit's readings give the wait of one cost only: the cost that they were read for.
#[inline]
pub fn tells_one_cost(limit: &Limit) -> bool {
    limit.algorithm().keeps_instants()
}

/// The verdict on `cost`, `elapsed_us` after `readings` and `blocks` were taken; `None` when the cost fits by then, or only a store
/// tells more: a calendar window has ended, and how long the next one is follows from the time; or the denial would begin a block.
///
/// `cost` must fit every limit's capacity. Where a limit [`tells_one_cost`], `cost` must be the one that the readings were read
/// for.
pub fn denial_at(
    limits: &[Limit],
    readings: &[Reading],
    blocks: Option<&[BlockReading]>,
    cost: Cost,
    elapsed_us: u64,
) -> Option<Verdict> {
    let cost = cost.units();
    let has_ended = |reading: &Reading| matches!(*reading, Reading::Calendar { ends_in_us, .. } if ends_in_us <= elapsed_us);
    if readings.iter().any(has_ended) {
        return None;
    }
    let aged = limits
        .iter()
        .zip(readings)
        .map(|(limit, reading)| reading.aged(limit, cost, elapsed_us))
        .collect();
    let mut verdict = Verdict {
        fits: false,
        readings: aged,
        blocks: None,
        release_in_us: 0,
    };
    if let Some(blocks) = blocks {
        verdict.tell_blocks(blocks.iter().map(|block| BlockReading {
            left_us: block.left_us.saturating_sub(elapsed_us),
            begins: false,
        }));
    }
    let begins = |(index, (limit, reading))| {
        begins_block(limit, reading, verdict.block(index).left_us, cost)
    };
    let mut each = limits.iter().zip(&verdict.readings).enumerate();
    if each.any(begins) {
        return None;
    }
    (verdict.wait_us(limits, cost) > 0).then_some(verdict)
}

impl Verdict {
    /// Time until every limit lets `cost` pass if nothing else happens; 0 when all do now.
    #[inline]
    pub fn wait_us(&self, limits: &[Limit], cost: u64) -> u64 {
        let waits = limits.iter().zip(&self.readings);
        let blocks = self.blocks.as_deref().unwrap_or_default().iter();
        waits
            .map(|(limit, reading)| reading.wait_us(limit, cost))
            .chain(blocks.map(|block| block.left_us))
            .max()
            .unwrap_or(0)
    }
}

impl Reading {
    /// The reading `elapsed_us` later, if the key was not used since. `cost` is the denied one.
    fn aged(&self, limit: &Limit, cost: u64, elapsed_us: u64) -> Self {
        match *self {
            Self::Window { count, ends_in_us } => window(limit, count, ends_in_us, elapsed_us),
            Self::Calendar {
                count,
                ends_in_us,
                window_us,
            } => Self::Calendar {
                count,
                ends_in_us: ends_in_us.saturating_sub(elapsed_us),
                window_us,
            },
            Self::Bucket {
                backlog_us,
                emission_us,
            } => Self::Bucket {
                backlog_us: backlog_us.saturating_sub(elapsed_us),
                emission_us,
            },
            Self::Counter {
                current,
                previous,
                elapsed_us: before_us,
            } => counter(limit, current, previous, before_us + elapsed_us),
            Self::Log { fresh_in_us, .. } if fresh_in_us <= elapsed_us => Self::Log {
                used: 0,
                frees_in_us: 0,
                fresh_in_us: 0,
            },
            Self::Log {
                used,
                frees_in_us,
                fresh_in_us,
            } => Self::Log {
                // After the wait the cost fits, so at least enough units for it have left.
                used: if frees_in_us <= elapsed_us {
                    used.min(limit.quota() - cost)
                } else {
                    used
                },
                frees_in_us: frees_in_us.saturating_sub(elapsed_us),
                fresh_in_us: fresh_in_us - elapsed_us,
            },
        }
    }
}

fn window(limit: &Limit, count: u64, ends_in_us: u64, elapsed_us: u64) -> Reading {
    match ends_in_us.checked_sub(elapsed_us) {
        Some(left_us @ 1..) => Reading::Window {
            count,
            ends_in_us: left_us,
        },
        // The next window has no units, so its end appears in no answer.
        _ => Reading::Window {
            count: 0,
            ends_in_us: limit.window_us(),
        },
    }
}

/// `since_us` is the time since the window that holds `current` began.
fn counter(limit: &Limit, current: u64, previous: u64, since_us: u64) -> Reading {
    let elapsed_us = since_us % limit.window_us();
    match since_us / limit.window_us() {
        0 => Reading::Counter {
            current,
            previous,
            elapsed_us,
        },
        1 => Reading::Counter {
            current: 0,
            previous: current,
            elapsed_us,
        },
        _ => Reading::Counter {
            current: 0,
            previous: 0,
            elapsed_us,
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use smallvec::SmallVec;

    use super::*;
    use crate::algorithm::{Algorithm, Block, Mode, State, decide, decide_with_blocks};

    /// Start time of the histories: not a multiple of their windows.
    const START_US: u64 = 4_000_000_000_000_777;

    fn any_limit() -> impl Strategy<Value = Limit> {
        let algorithm = (proptest::sample::select(&Algorithm::EVERY[..]), 1..12_u64).prop_map(
            |(algorithm, burst)| match algorithm {
                Algorithm::TokenBucket { .. } => Algorithm::TokenBucket { burst },
                other => other,
            },
        );
        (1..9_u64, 1..4_u64, algorithm).prop_map(|(quota, window_ms, algorithm)| {
            Limit::new(
                "limit",
                quota,
                std::time::Duration::from_millis(window_ms),
                algorithm,
            )
            .unwrap()
        })
    }

    /// Requests: the time step before each, which is sometimes negative, and the cost.
    fn any_history() -> impl Strategy<Value = Vec<(i64, u64)>> {
        let step = prop_oneof![8 => 0..900_i64, 2 => 0..5_000_i64, 1 => -2_000..0_i64];
        proptest::collection::vec((step, 1..9_u64), 1..40)
    }

    /// All numbers that a caller receives.
    fn numbers(verdict: &Verdict, limits: &[Limit], cost: Cost) -> Vec<(u64, Option<u64>, u64)> {
        let statuses = verdict.statuses(limits, cost);
        statuses
            .iter()
            .map(|status| {
                (
                    status.remaining,
                    status.retry_after_us,
                    status.reset_after_us,
                )
            })
            .collect()
    }

    /// Times to compare after a denial: around each end that its readings give, and one at random.
    fn edges(limits: &[Limit], denied: &Verdict, random_us: u64) -> Vec<u64> {
        let ends = limits
            .iter()
            .zip(&denied.readings)
            .flat_map(|(limit, reading)| {
                let costs = (1..=limit.capacity())
                    .filter(|_| !tells_one_cost(limit))
                    .map(|cost| reading.wait_us(limit, cost));
                let fresh_us = reading.fresh_in_us(limit);
                costs
                    .chain([reading.wait_us(limit, 1), fresh_us, fresh_us / 2, random_us])
                    .collect::<Vec<_>>()
            });
        ends.flat_map(|end_us| [end_us.saturating_sub(1), end_us, end_us + 1])
            .collect()
    }

    /// Compares every denial of the history with the algorithm, at every edge and for every cost that its readings are valid
    /// for.
    fn check(limits: &[Limit], history: Vec<(i64, u64)>, random_us: u64) {
        let cost_max = limits.iter().map(Limit::capacity).min().unwrap();
        let one_cost = limits.iter().any(tells_one_cost);
        let mut states: SmallVec<[State; 4]> = limits.iter().map(State::fresh).collect();
        let mut now_us = START_US;
        for (step_us, cost) in history {
            now_us = now_us.saturating_add_signed(step_us);
            let cost = Cost::new(cost.min(cost_max)).unwrap();
            let verdict = decide(limits, &mut states, now_us, cost, Mode::Charge);
            let costs = if one_cost {
                cost.units()..=cost.units()
            } else {
                1..=cost_max
            };
            for elapsed_us in edges(limits, &verdict, random_us)
                .into_iter()
                .filter(|_| !verdict.fits)
            {
                let compare = |cost| {
                    compare(
                        limits,
                        &mut states,
                        (now_us, elapsed_us),
                        &verdict,
                        Cost::new(cost).unwrap(),
                    )
                };
                costs.clone().for_each(compare);
            }
        }
    }

    /// Compares the denial of `now_us`, aged by `elapsed_us`, with the algorithm's own answer at that time.
    fn compare(
        limits: &[Limit],
        states: &mut [State],
        (now_us, elapsed_us): (u64, u64),
        denied: &Verdict,
        cost: Cost,
    ) {
        let expected = decide(limits, states, now_us + elapsed_us, cost, Mode::Peek);
        let aged = denial_at(limits, &denied.readings, None, cost, elapsed_us);
        assert_eq!(
            aged.is_none(),
            expected.fits,
            "{cost:?} {elapsed_us} us after {denied:?}"
        );
        let Some(aged) = aged else { return };
        let aged = numbers(&aged, limits, cost);
        let expected = numbers(&expected, limits, cost);
        for (limit, (aged, expected)) in limits.iter().zip(aged.iter().zip(&expected)) {
            assert_eq!((aged.1, aged.2), (expected.1, expected.2), "{limit:?}");
            let passes = aged.1.is_none();
            if tells_one_cost(limit) {
                assert!(
                    aged.0 <= expected.0 && (aged.0 >= cost.units()) == passes,
                    "{limit:?}: {aged:?} of {expected:?}"
                );
                let exact = aged.2 == 0 || (cost == Cost::ONE && !passes);
                assert!(
                    !exact || aged.0 == expected.0,
                    "{limit:?}: {aged:?} of {expected:?}"
                );
            } else {
                assert_eq!(aged.0, expected.0, "{limit:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        #[test]
        fn an_aged_denial_has_the_numbers_of_the_state_at_that_time(
            limits in proptest::collection::vec(any_limit(), 1..4),
            history in any_history(),
            random_us in 0..12_000_u64,
        ) {
            check(&limits, history, random_us);
        }

        /// Blocks that end at any time, of limits of which some have `block`. Where the store would begin one, nothing is told.
        #[test]
        fn an_aged_denial_tells_blocks_as_the_store_would_and_leaves_it_to_begin_them(
            limits in proptest::collection::vec((any_limit(), any::<bool>()), 1..4),
            charges in 1..9_u64,
            ends_us in proptest::collection::vec(0..6_000_u64, 3),
            elapsed_us in 0..9_000_u64,
        ) {
            let second = std::time::Duration::from_secs(1);
            let blocking = |(limit, blocks): (Limit, bool)| if blocks { limit.with_block(second).unwrap() } else { limit };
            let limits: Vec<Limit> = limits.into_iter().map(blocking).collect();
            let mut states: Vec<State> = limits.iter().map(State::fresh).collect();
            for _ in 0..charges {
                decide(&limits, &mut states, START_US, Cost::ONE, Mode::Charge);
            }
            let block = |end_us: &u64| Block { end_us: START_US + end_us, length_us: 1_000_000 };
            let mut blocks: Vec<Block> = ends_us.iter().take(limits.len()).map(block).collect();
            let denied = decide_with_blocks(&limits, (&mut states, &mut blocks), START_US, Cost::ONE, Mode::Charge);
            if !denied.fits {
                let aged = denial_at(&limits, &denied.readings, denied.blocks.as_deref(), Cost::ONE, elapsed_us);
                let beside = (&mut states[..], &mut blocks[..]);
                let expected = decide_with_blocks(&limits, beside, START_US + elapsed_us, Cost::ONE, Mode::Charge);
                let begins = expected.begun_blocks().next().is_some();
                prop_assert_eq!(aged.is_none(), expected.fits || begins);
                if let Some(aged) = aged {
                    let told = |verdict: &Verdict| -> Vec<_> {
                        let statuses = verdict.statuses(&limits, Cost::ONE).into_iter();
                        statuses.map(|status| (status.retry_after_us, status.reset_after_us, status.blocked_for_us)).collect()
                    };
                    prop_assert_eq!(told(&aged), told(&expected));
                }
            }
        }

        #[test]
        fn one_limit_alone_ages_as_its_state(limit in any_limit(), history in any_history(), random_us in 0..12_000_u64) {
            check(&[limit], history, random_us);
        }
    }
}
