//! The maths of limits: a limit, a state, the time and a cost in; readings and a new state out.
//!
//! Pure: no clock, log, lock, await or float in this module (`tests/tidy.rs` holds it to that). Time is microseconds since
//! 1970 on the store's clock. Every algorithm has a twin in Lua under `store/redis/script`, tied to it by `tests/parity.rs`.
//!
//! Rules that all algorithms keep, here and in Lua:
//! - A state is written by a charge, by a refund that gives something back, or by a clamp, and by nothing else: a denied
//!   request, a peek or a refund of what was never taken leaves no trace.
//! - Clamp: a state ahead of `now` (the clock stepped back) is read as if it were written at `now`, and a charging call
//!   writes that back even when it denies. Real time has passed since, so a clamp never frees a unit early.
//! - A refund takes back the newest units first, and no more than still count. So one that follows its charge undoes it, whatever
//!   was taken before, as though it had never been; only runs that the charge merged stay merged. To take the oldest first
//!   would keep what was used before counting for as long as others are charged and given back. The price: where it was an
//!   older unit that was meant, a newer one is taken for it. In any window no more passes than the limit's promise and what
//!   was refunded within it.
//! - An interval is half-open: what was taken at `t` is free again at `t + window`.

#![cfg_attr(
    not(test),
    deny(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a number that is encoded is converted by a check, so that it is never taken for another one"
    )
)]

mod aging;
#[cfg(test)]
mod cases;
mod fixed_window;
mod gcra;
mod runs;
mod sliding_counter;
mod sliding_log;
mod sliding_window;

use smallvec::SmallVec;

use crate::decision::LimitStatus;
use crate::key::Cost;
pub use crate::plan::Algorithm;
use crate::plan::Limit;

pub use aging::{denied_later, tells_one_cost};
pub use fixed_window::Window;
pub use gcra::Bucket;
pub use runs::Runs;
pub use sliding_counter::Counter;

/// What is remembered of one key for one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Of a `fixed_window`.
    Window(Window),
    /// Of a `token_bucket`.
    Bucket(Bucket),
    /// Of a `sliding_counter`.
    Counter(Counter),
    /// Of a `sliding_log` or a `sliding_window`; the only states that grow.
    Runs(Box<Runs>),
}

/// The smallest exact account of a state at one instant, from which every number of an answer is derived. Both stores
/// give their answers in this form, so that one code derives both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// `fixed_window`: units counted in the present window, and when it ends.
    Window {
        /// Units counted.
        count: u64,
        /// Time to the end of the window, 1 to `window_us`.
        ends_in_us: u64,
    },
    /// `token_bucket`: GCRA's `tat - now`, 0 when the bucket is full, and the rate that it drains at, which is not the limit's
    /// when a limit of a faster rate was charged last.
    Bucket {
        /// Debt in microseconds.
        backlog_us: u64,
        /// Microseconds of it that a unit is, at least 1.
        emission_us: u64,
    },
    /// `sliding_counter`: both counts and how far the present window has gone.
    Counter {
        /// Units counted in the present window.
        current: u64,
        /// Units counted in the window before.
        previous: u64,
        /// Time since the present window began, 0 to `window_us - 1`.
        elapsed_us: u64,
    },
    /// `sliding_log` and `sliding_window`.
    Log {
        /// Units that still count.
        used: u64,
        /// Time until the cost that was asked for could pass; 0 when it can now.
        frees_in_us: u64,
        /// Time until nothing counts any more.
        fresh_in_us: u64,
    },
}

/// What one key's limits said to one cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether every limit let the cost pass.
    pub fits: bool,
    /// A reading per limit: after the charge if there was one, else as it stands. Of a refund, a reading per limit after it,
    /// and then one per limit from before it; see [`Self::refunded`].
    pub readings: SmallVec<[Reading; 2]>,
}

/// Whether a call may take what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Charge the cost to every limit when all of them let it pass.
    Charge,
    /// Answer only; write nothing.
    Peek,
    /// Give the cost back to every limit, to each no more than it has counted. Always fits.
    Refund,
}

/// Decides one cost against all limits of a plan, all or nothing.
///
/// `states` are the key's, in the order of `limits`. `cost` fits every limit's capacity ([`crate::plan::Plan::never_fits`]
/// says no to others before), unless it is refunded.
pub fn decide(limits: &[Limit], states: &mut [State], now_us: u64, cost: Cost, mode: Mode) -> Verdict {
    let cost = cost.units();
    if mode == Mode::Refund {
        return refund(limits, states, now_us, cost);
    }
    // One by one: to collect one or two costs more than to make them.
    let (mut readings, mut fits) = (SmallVec::<[Reading; 2]>::new(), true);
    for (limit, state) in limits.iter().zip(&*states) {
        let reading = state.read(limit, now_us, cost);
        fits &= reading.wait_us(limit, cost) == 0;
        readings.push(reading);
    }
    if mode == Mode::Charge {
        for ((limit, state), reading) in limits.iter().zip(states).zip(&mut readings) {
            state.clamp(limit, now_us);
            if fits {
                state.charge(limit, now_us, cost);
                *reading = state.read(limit, now_us, 0);
            }
        }
    }
    Verdict { fits, readings }
}

// Apart from the others, which are on the way of every request.
#[cold]
fn refund(limits: &[Limit], states: &mut [State], now_us: u64, cost: u64) -> Verdict {
    let before: SmallVec<[Reading; 2]> = limits.iter().zip(&*states).map(|(limit, state)| state.read(limit, now_us, 0)).collect();
    let after = limits.iter().zip(states).map(|(limit, state)| {
        state.refund(limit, now_us, cost);
        state.read(limit, now_us, 0)
    });
    Verdict { fits: true, readings: after.chain(before).collect() }
}

impl Verdict {
    /// Units that each limit gave back, if this is of a refund.
    pub fn refunded(&self, limits: &[Limit]) -> SmallVec<[u64; 2]> {
        let (after, before) = self.readings.split_at(limits.len().min(self.readings.len()));
        before.iter().zip(after).map(|(before, after)| before.counted().saturating_sub(after.counted())).collect()
    }

    /// Where the key stands in each limit, for an answer to `cost`.
    pub fn statuses(&self, limits: &[Limit], cost: Cost) -> SmallVec<[LimitStatus; 2]> {
        let mut statuses = SmallVec::new();
        for (limit, reading) in limits.iter().zip(&self.readings) {
            statuses.push(self.status(limit, reading, cost));
        }
        statuses
    }

    fn status(&self, limit: &Limit, reading: &Reading, cost: Cost) -> LimitStatus {
        let wait_us = if self.fits { 0 } else { reading.wait_us(limit, cost.units()) };
        LimitStatus {
            name: limit.name().clone(),
            limit: limit.quota(),
            window_us: limit.window_us(),
            frees_at_once: matches!(limit.algorithm(), Algorithm::FixedWindow { .. }),
            capacity: limit.capacity(),
            remaining: reading.remaining(limit),
            retry_after_us: (wait_us > 0).then_some(wait_us),
            reset_after_us: reading.fresh_in_us(limit),
        }
    }
}

impl Reading {
    /// Time until `cost` could pass, nothing else happening; 0 when it can now. For a log, of the cost it was read for.
    pub fn wait_us(&self, limit: &Limit, cost: u64) -> u64 {
        match *self {
            Self::Window { count, ends_in_us } => fixed_window::wait_us(limit, count, ends_in_us, cost),
            Self::Bucket { backlog_us, emission_us } => gcra::wait_us(limit, backlog_us, emission_us, cost),
            Self::Counter { current, previous, elapsed_us } => {
                sliding_counter::wait_us(limit, current, previous, elapsed_us, cost)
            }
            Self::Log { frees_in_us, .. } => frees_in_us,
        }
    }

    /// Units that a refund could give back: a bucket's that are not wholly back yet, a counter's of both windows at their full
    /// number.
    fn counted(&self) -> u64 {
        match *self {
            Self::Window { count, .. } => count,
            Self::Bucket { backlog_us, emission_us } => backlog_us.div_ceil(emission_us),
            Self::Counter { current, previous, .. } => current + previous,
            Self::Log { used, .. } => used,
        }
    }

    /// Units that a request could take right now.
    pub fn remaining(&self, limit: &Limit) -> u64 {
        match *self {
            Self::Window { count, .. } => limit.quota().saturating_sub(count),
            Self::Bucket { backlog_us, emission_us } => gcra::remaining(limit, backlog_us, emission_us),
            Self::Counter { current, previous, elapsed_us } => {
                limit.quota().saturating_sub(sliding_counter::used(limit, current, previous, elapsed_us))
            }
            Self::Log { used, .. } => limit.quota().saturating_sub(used),
        }
    }

    /// Time until the key is as fresh, nothing else happening; 0 when it is.
    pub fn fresh_in_us(&self, limit: &Limit) -> u64 {
        match *self {
            Self::Window { count, ends_in_us } => {
                if count == 0 {
                    0
                } else {
                    ends_in_us
                }
            }
            Self::Bucket { backlog_us, .. } => backlog_us,
            Self::Counter { current, previous, elapsed_us } => sliding_counter::fresh_in_us(limit, current, previous, elapsed_us),
            Self::Log { fresh_in_us, .. } => fresh_in_us,
        }
    }
}

/// A placeholder for a state that was moved out.
impl Default for State {
    fn default() -> Self {
        Self::Bucket(Bucket::default())
    }
}

impl State {
    /// The state of a key that was never seen.
    pub fn fresh(limit: &Limit) -> Self {
        match limit.algorithm() {
            Algorithm::FixedWindow { .. } => Self::Window(Window::default()),
            Algorithm::TokenBucket { .. } => Self::Bucket(Bucket::default()),
            Algorithm::SlidingCounter => Self::Counter(Counter::default()),
            Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => Self::Runs(Box::default()),
        }
    }

    /// When the state counts nothing any more, in microseconds since 1970.
    pub fn fresh_at_us(&self, window_us: u64) -> u64 {
        match self {
            Self::Window(window) => window.fresh_at_us(window_us),
            Self::Bucket(bucket) => bucket.fresh_at_us(),
            Self::Counter(counter) => counter.fresh_at_us(window_us),
            Self::Runs(runs) => runs.fresh_at_us(window_us),
        }
    }

    /// Bytes that the state holds beside its own size.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Runs(runs) => runs.heap_bytes(),
            Self::Window(_) | Self::Bucket(_) | Self::Counter(_) => 0,
        }
    }

    /// Bytes more that [`Self::heap_bytes`] may say after one charge.
    pub fn growth_bytes(&self) -> usize {
        match self {
            Self::Runs(runs) => runs.growth_bytes(),
            Self::Window(_) | Self::Bucket(_) | Self::Counter(_) => 0,
        }
    }

    /// Gives up precision so that the next charge needs no more bytes: some units will leave later than they could.
    pub fn make_place(&mut self) {
        if let Self::Runs(runs) = self {
            runs.make_place();
        }
    }

    fn read(&self, limit: &Limit, now_us: u64, cost: u64) -> Reading {
        match self {
            Self::Window(window) => window.read(limit, now_us),
            Self::Bucket(bucket) => bucket.read(limit, now_us),
            Self::Counter(counter) => counter.read(limit, now_us),
            Self::Runs(runs) => runs.read(limit, now_us, cost),
        }
    }

    fn clamp(&mut self, limit: &Limit, now_us: u64) {
        match self {
            Self::Window(window) => window.clamp(limit, now_us),
            Self::Bucket(bucket) => bucket.clamp(limit, now_us),
            Self::Counter(counter) => counter.clamp(limit, now_us),
            Self::Runs(runs) => runs.clamp(now_us),
        }
    }

    fn charge(&mut self, limit: &Limit, now_us: u64, cost: u64) {
        match (self, limit.algorithm()) {
            (Self::Window(window), _) => window.charge(limit, now_us, cost),
            (Self::Bucket(bucket), _) => bucket.charge(limit, now_us, cost),
            (Self::Counter(counter), _) => counter.charge(limit, now_us, cost),
            (Self::Runs(runs), Algorithm::SlidingWindow { precision }) => {
                sliding_window::charge(runs, limit, precision, now_us, cost);
            }
            (Self::Runs(runs), _) => sliding_log::charge(runs, limit, now_us, cost),
        }
    }

    /// Gives units back; a state that counts none is left as it is, and one that counts none any more is a fresh one.
    fn refund(&mut self, limit: &Limit, now_us: u64, units: u64) {
        match self {
            Self::Window(window) => window.refund(limit, now_us, units),
            Self::Bucket(bucket) => bucket.refund(limit, now_us, units),
            Self::Counter(counter) => counter.refund(limit, now_us, units),
            Self::Runs(runs) => runs.refund(limit, now_us, units),
        }
    }
}
