//! Compares the algorithms with a model that keeps every charge and counts all of them anew each time.
//!
//! Each history has times at the edges of windows, steps of the clock in both directions, costs up to the capacity, edits of the
//! quota, and refunds of up to three times the capacity. After each request the test compares the remaining units, the wait and
//! the time until the key is fresh. Both times must be equal to the microsecond.

mod refunds;

use proptest::prelude::*;
use tollgate::algorithm::{GivenBack, State, Verdict, decide, refund};
use tollgate::key::Cost;
use tollgate::plan::{Algorithm, Limit};
use tollgate::store::Mode;

use crate::support::clock::START_US;
use crate::support::history::{Random, Times};
use crate::support::plans::{Counting, counting, window_start_us, with_every_algorithm};

/// The state of one key for one limit.
#[derive(Clone)]
pub(super) struct Model {
    /// Time and units of every charge that may still count.
    charges: Vec<(u64, u64)>,
    /// Start of the window that was charged last, for algorithms with windows.
    start_us: u64,
    /// For a token bucket: the debt in microseconds, and the time at which it was that.
    debt: (u64, u64),
    /// For a token bucket: microseconds of debt per unit, at the rate of the last charge.
    unit_us: u64,
}

impl Model {
    pub(super) fn new() -> Self {
        Self {
            charges: Vec::new(),
            start_us: 0,
            debt: (0, 0),
            unit_us: 1,
        }
    }

    /// Units (for a token bucket: microseconds of debt) that count at `now_us`.
    pub(super) fn used(&self, limit: &Limit, now_us: u64) -> u64 {
        let mut seen = self.clone();
        seen.clamp(limit, now_us);
        let window_us = limit.window_us();
        let sum = |keep: &dyn Fn(u64) -> bool| {
            seen.charges
                .iter()
                .filter(|charge| keep(charge.0))
                .map(|charge| charge.1)
                .sum()
        };
        match counting(limit) {
            Counting::ClockWindow | Counting::OwnWindow => {
                sum(&|_| now_us < seen.start_us + window_us)
            }
            Counting::Instants => sum(&|at| at + window_us > now_us),
            Counting::TwoWindows => {
                let start_us = seen.window_of(limit, now_us);
                let current = sum(&|at| at == start_us);
                let previous = sum(&|at| at + window_us == start_us);
                current + (previous * (window_us - (now_us - start_us))).div_ceil(window_us)
            }
            Counting::Debt => (seen.debt.0 + seen.debt.1).saturating_sub(now_us),
        }
    }

    /// Start of a counter's window at `now_us`. Windows follow on the one that was charged last. Two windows after its start,
    /// they are aligned to the clock again.
    fn window_of(&self, limit: &Limit, now_us: u64) -> u64 {
        let passed = (now_us - self.start_us) / limit.window_us();
        if passed < 2 {
            self.start_us + passed * limit.window_us()
        } else {
            window_start_us(limit, now_us)
        }
    }

    pub(super) fn fits(&self, limit: &Limit, now_us: u64, cost: u64) -> bool {
        match limit.algorithm() {
            Algorithm::TokenBucket { burst } => {
                let mut seen = self.clone();
                seen.clamp(limit, now_us);
                let unit_us = seen.unit_us;
                seen.used(limit, now_us) + cost * unit_us <= burst * unit_us
            }
            _ => self.used(limit, now_us) + cost <= limit.quota(),
        }
    }

    pub(super) fn clamp(&mut self, limit: &Limit, now_us: u64) {
        self.clamp_times(limit, now_us);
        self.convert(limit, now_us, |own_us, unit_us| unit_us > own_us);
    }

    /// Takes back what lies ahead of a clock that stepped back. A bucket's debt keeps its rate.
    pub(super) fn clamp_times(&mut self, limit: &Limit, now_us: u64) {
        let ahead_us = self.start_us.saturating_sub(now_us);
        self.start_us -= ahead_us;
        // If the clock stepped back, a debt above one window is kept as it was. A smaller debt is limited to one window.
        let (debt, at_us) = self.debt;
        if at_us > now_us && debt > limit.window_us() {
            self.debt = (debt, now_us);
        } else if debt <= limit.window_us() && debt + at_us > now_us + limit.window_us() {
            self.debt = (limit.window_us(), now_us);
        }
        let counter = counting(limit) == Counting::TwoWindows;
        // A counter's charges carry the time of their window, which moves as a whole.
        self.charges.iter_mut().for_each(|charge| {
            charge.0 = if counter {
                charge.0 - ahead_us
            } else {
                charge.0.min(now_us)
            }
        });
    }

    /// Converts the debt to the limit's own rate if `wanted` says so, given the unit at that rate and the debt's present unit.
    fn convert(&mut self, limit: &Limit, now_us: u64, wanted: impl Fn(u64, u64) -> bool) {
        let own_us = limit.window_us().div_ceil(limit.quota());
        let left_us = (self.debt.0 + self.debt.1).saturating_sub(now_us);
        if left_us > 0 && wanted(own_us, self.unit_us) {
            // Rounded up to a microsecond, so never in the caller's favour. A debt of few microseconds may stay as it is. Then
            // nothing is written, and the rate stays too, which matters when the clock steps back.
            let converted_us = (left_us * own_us).div_ceil(self.unit_us);
            if converted_us != left_us {
                self.debt = (converted_us, now_us);
                self.unit_us = own_us;
            }
        }
    }

    pub(super) fn charge(&mut self, limit: &Limit, now_us: u64, cost: u64) {
        let window_us = limit.window_us();
        let mut at_us = now_us;
        match counting(limit) {
            Counting::ClockWindow | Counting::OwnWindow if self.used(limit, now_us) == 0 => {
                self.charges.clear();
                self.start_us = window_start_us(limit, now_us);
            }
            Counting::ClockWindow | Counting::OwnWindow => {}
            Counting::Debt => {
                self.convert(limit, now_us, |own_us, unit_us| unit_us != own_us);
                self.unit_us = window_us.div_ceil(limit.quota());
                self.debt = (self.used(limit, now_us) + cost * self.unit_us, now_us);
            }
            Counting::TwoWindows => {
                self.start_us = self.window_of(limit, now_us);
                at_us = self.start_us;
                self.charges.retain(|charge| charge.0 + window_us >= at_us);
            }
            Counting::Instants => self.charges.retain(|charge| charge.0 + window_us > now_us),
        }
        self.charges.push((at_us, cost));
        if let Algorithm::SlidingWindow { precision } = limit.algorithm() {
            self.merge(window_us.div_ceil(u64::from(precision)), precision);
        }
    }

    /// Gives units back, the newest that count first. Returns how many.
    pub(super) fn refund(&mut self, limit: &Limit, now_us: u64, units: u64) -> u64 {
        if let Algorithm::TokenBucket { .. } = limit.algorithm() {
            let emission_us = self.unit_us;
            let debt_us = self.used(limit, now_us);
            let left_us = debt_us - debt_us.min(units * emission_us);
            self.debt = if debt_us == 0 {
                self.debt
            } else {
                (left_us, if left_us == 0 { 0 } else { now_us })
            };
            return (debt_us - left_us).div_ceil(emission_us);
        }
        let window_us = limit.window_us();
        let begin_us = match counting(limit) {
            Counting::ClockWindow | Counting::OwnWindow if now_us < self.start_us + window_us => 0,
            Counting::ClockWindow | Counting::OwnWindow => u64::MAX,
            Counting::TwoWindows => self.window_of(limit, now_us) - window_us,
            Counting::Instants | Counting::Debt => now_us - window_us + 1,
        };
        let mut left = units;
        for charge in self
            .charges
            .iter_mut()
            .rev()
            .filter(|charge| charge.0 >= begin_us)
        {
            let taken = left.min(charge.1);
            (charge.1, left) = (charge.1 - taken, left - taken);
        }
        if left < units {
            // A refund writes the state as a charge does. If no unit is left, the state is a fresh one.
            self.start_us = if counting(limit) == Counting::TwoWindows {
                begin_us + window_us
            } else {
                self.start_us
            };
            self.charges
                .retain(|charge| charge.1 > 0 && charge.0 >= begin_us);
            self.start_us = if self.charges.is_empty() {
                0
            } else {
                self.start_us
            };
        }
        units - left
    }

    /// With more than `precision` instants, merges the newest two if they share a cell. Else, with more than `precision + 1`,
    /// merges those of each cell into the cell's latest.
    fn merge(&mut self, cell_us: u64, precision: u8) {
        let mut instants: Vec<u64> = self.charges.iter().map(|charge| charge.0).collect();
        instants.dedup();
        if instants.len() <= usize::from(precision) {
            return;
        }
        let newest = instants[instants.len() - 1];
        let second = instants[instants.len() - 2];
        let only_newest = second / cell_us == newest / cell_us;
        if !only_newest && instants.len() == usize::from(precision) + 1 {
            return;
        }
        for index in 0..self.charges.len() {
            let at = self.charges[index].0;
            if !only_newest || at == second {
                self.charges[index].0 = instants
                    .iter()
                    .filter(|other| *other / cell_us == at / cell_us)
                    .max()
                    .copied()
                    .unwrap();
            }
        }
    }
}

/// Asserts that `holds` is true `wait_us` after `now_us`, and was false a microsecond before.
pub(super) fn assert_first(now_us: u64, wait_us: u64, what: &str, holds: impl Fn(u64) -> bool) {
    assert!(holds(now_us + wait_us), "{what} {wait_us}: not yet");
    assert!(
        wait_us == 0 || !holds(now_us + wait_us - 1),
        "{what} {wait_us}: a microsecond earlier already"
    );
}

/// What a request does to a key.
#[derive(Clone, Copy)]
enum Action {
    Decide(Mode),
    Refund,
}

/// Has the state and the model carry a request out. Returns how the key stands after it.
fn carry_out(
    limit: &Limit,
    states: &mut [State],
    model: &mut Model,
    (now_us, cost, action): (u64, Cost, Action),
) -> Verdict {
    let limits = std::slice::from_ref(limit);
    let units = cost.units();
    let Action::Decide(mode) = action else {
        let given_back = refund(limits, states, now_us, cost);
        model.clamp(limit, now_us);
        let back = model.refund(limit, now_us, units);
        assert_eq!(given_back.units()[0], back, "{:?}", model.charges);
        return given_back.after;
    };
    let expected = model.fits(limit, now_us, units);
    let verdict = decide(limits, states, now_us, cost, mode);
    assert_eq!(
        verdict.fits, expected,
        "cost {cost:?} at {now_us}, model holds {:?}",
        model.charges
    );
    if mode == Mode::Charge {
        model.clamp(limit, now_us);
        if verdict.fits {
            model.charge(limit, now_us, units);
        }
    }
    verdict
}

fn check_request(
    limit: &Limit,
    state: &mut State,
    model: &mut Model,
    (now_us, cost, action): (u64, u64, Action),
) -> bool {
    let limits = std::slice::from_ref(limit);
    let states = std::slice::from_mut(state);
    let cost = Cost::new(cost).unwrap();
    let verdict = carry_out(limit, states, model, (now_us, cost, action));
    // A peek reads a state ahead of the clock as clamped, and does not write it. Its times are those of the clamped state, and of a
    // debt at the rate that it has.
    let model = &mut model.clone();
    let is_peek = matches!(action, Action::Decide(Mode::Peek));
    if is_peek {
        model.clamp_times(limit, now_us)
    } else {
        model.clamp(limit, now_us)
    }
    let status = verdict.statuses(limits, cost)[0].clone();
    let most = (1..=limit.capacity())
        .rev()
        .find(|units| model.fits(limit, now_us, *units))
        .unwrap_or(0);
    assert_eq!(status.remaining, most, "remaining");
    assert_first(now_us, status.reset_after_us, "reset_after", |at_us| {
        model.used(limit, at_us) == 0
    });
    assert_eq!(status.retry_after_us.is_some(), !verdict.fits);
    let wait_us = status.retry_after_us.unwrap_or(0);
    if wait_us > 0 {
        assert_first(now_us, wait_us, "retry_after", |at_us| {
            model.fits(limit, at_us, cost.units())
        });
        if is_peek {
            return verdict.fits;
        }
        assert_first(now_us, wait_us, "retry_after of the state", |at_us| {
            decide(limits, &mut [states[0].clone()], at_us, cost, Mode::Peek).fits
        });
    }
    verdict.fits
}

fn check_history(algorithm: Algorithm, seed: u64) {
    let mut random = Random(seed);
    let window = std::time::Duration::from_millis(1 + random.below(4));
    let mut limit = edited(&mut random, window, algorithm);
    let mut state = State::fresh(&limit);
    let mut model = Model::new();
    let mut times = Times::new(START_US, limit.window_us());
    for _ in 0..80 {
        if random.below(25) == 0 {
            limit = edited(&mut random, window, algorithm);
        }
        let now_us = times.next(&mut random);
        let cost = match random.below(6) {
            0 => limit.capacity(),
            1 => 1 + random.below(limit.capacity()),
            _ => 1,
        };
        let action = match random.below(7) {
            0 => Action::Decide(Mode::Peek),
            1 => Action::Refund,
            _ => Action::Decide(Mode::Charge),
        };
        let refunds_more = matches!(action, Action::Refund) && random.below(4) == 0;
        let cost = if refunds_more { 3 * cost } else { cost };
        if check_request(&limit, &mut state, &mut model, (now_us, cost, action)) {
            times.mark(now_us);
        }
    }
}

/// A limit of this algorithm and window with a random quota and burst, as after an edit of the config.
fn edited(random: &mut Random, window: std::time::Duration, algorithm: Algorithm) -> Limit {
    // Divisors of a millisecond, so that a token bucket's interval is exact.
    let quota = *random.pick(&[1, 2, 4, 5, 8, 10, 20]);
    let algorithm = match algorithm {
        Algorithm::TokenBucket { .. } => Algorithm::TokenBucket {
            burst: 1 + random.below(2 * quota),
        },
        other => other,
    };
    Limit::new("limit", quota, window, algorithm).unwrap()
}

macro_rules! histories {
    ($($name:ident: $algorithm:expr,)*) => {$(
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(1500))]
            #[test]
            fn $name(seed in any::<u64>()) {
                check_history($algorithm, seed);
            }
        }
    )*};
}

mod equals_brute_force {
    use super::*;
    with_every_algorithm!(histories);
    histories! {
        sliding_window_of_precision_5: Algorithm::SlidingWindow { precision: 5 },
    }
}
