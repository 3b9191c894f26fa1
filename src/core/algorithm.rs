//! The maths of limits. Input: a limit, a state, the time and a cost. Output: readings and a new state.
//!
//! This module is pure: it uses no clock, log, lock, await or float, which `tests/process/tidy.rs` checks. Time is in microseconds
//! since 1970 on the store's clock. Every algorithm has a twin in Lua under `store/redis/script`; `tests/algorithms/parity.rs` compares
//! the two.
//!
//! Rules that all algorithms keep, here and in Lua:
//! - Writes: only a charge, a refund that gives something back, and a clamp write a state. A denied request, a peek, and a
//!   refund of units that were never taken write nothing.
//! - Clamp: a state ahead of `now` means that the clock stepped back. It is read as if it had been written at `now`. A charging
//!   call writes the clamped state even when it denies. Real time has passed since, so a clamp never frees a unit early.
//! - Refund: it takes back the newest units first, and at most those that still count. A refund right after its charge
//!   therefore undoes that charge completely, except that runs which the charge merged stay merged. If the oldest units were
//!   taken first, earlier use would keep counting for as long as others are charged and given back. The price: when an older
//!   unit was meant, a newer one is taken for it. In any window, at most the limit's promise plus the units refunded within
//!   that window pass.
//! - Block: a limit with `block` denies for so long after its first denial. [`block`] has the rules. Such a denial writes, too.
//! - Hold: a charge that is remembered by an id, until it is settled or its lease ends. [`holds`] has the rules.
//! - Undo: it names the instant of a charge, and gives back its units where they still count, never more. [`undo`] has the rules.
//! - An interval is half-open: a unit taken at `t` is free again at `t + window`.

mod block;
#[cfg(test)]
mod cases;
mod denial_age;
mod fixed_window;
mod gcra;
pub mod holds;
mod readings;
mod refund;
mod releases;
mod runs;
mod sliding_counter;
mod sliding_log;
mod sliding_window;
mod undo;

use smallvec::SmallVec;

use crate::key::Cost;
pub use crate::plan::Algorithm;
use crate::plan::Limit;

pub use block::{Block, BlockReading, begins_block, blocks_at, decide_with_blocks};
pub use denial_age::{denial_at, tells_one_cost};
pub use fixed_window::Window;
pub use gcra::Bucket;
pub use refund::{GivenBack, refund};
pub use releases::{RELEASES_MAX, Release, release_costs, releases};
pub use runs::Runs;
pub use sliding_counter::Counter;
pub use undo::{undo, undo_instants};

/// Maximum number of units that a limit counts, where what has happened is charged beyond its quota. They fit the five bytes of a
/// count in Redis.
pub const UNITS_MAX: u64 = (1 << 40) - 1;
/// The same of a `sliding_log`, which keeps running totals modulo 2^17.
pub const LOG_UNITS_MAX: u64 = (1 << 17) - 1;

/// The stored state of one key for one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Of a `fixed_window`.
    Window(Window),
    /// Of a `token_bucket`.
    Bucket(Bucket),
    /// Of a `sliding_counter`.
    Counter(Counter),
    /// Of a `sliding_log` or a `sliding_window`. Only these states grow.
    Runs(Box<Runs>),
}

/// The smallest exact account of a state at one instant. Every number of an answer is derived from it. Both stores reply in
/// this form, so that the same code derives the numbers for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// `fixed_window`: units counted in the present window, and when it ends.
    Window {
        /// Units counted.
        count: u64,
        /// Time to the end of the window, 1 to `window_us`.
        ends_in_us: u64,
    },
    /// `fixed_window` of calendar windows.
    Calendar {
        /// Units counted.
        count: u64,
        /// Time until they are free again: to the end of the window, or of one that a clock which stepped back has left.
        ends_in_us: u64,
        /// Length of the calendar's present window.
        window_us: u64,
    },
    /// `token_bucket`: the debt and the rate at which it drains. That rate is not the limit's own when a limit with a faster
    /// rate was charged last.
    Bucket {
        /// Debt in microseconds: GCRA's `tat - now`; 0 when the bucket is full.
        backlog_us: u64,
        /// Microseconds of debt per unit, at least 1.
        emission_us: u64,
    },
    /// `sliding_counter`: the counts of two windows, and the time since the present one began.
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

/// The result of one cost against all limits of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether every limit let the cost pass.
    pub fits: bool,
    /// One reading per limit: after the charge if there was one, else the unchanged state.
    pub readings: SmallVec<[Reading; 2]>,
    /// Blocks after this request, one per limit. `None` when none runs.
    pub blocks: Option<Box<[BlockReading]>>,
    /// Where it does not fit: time until units of a hold come back, whose lease ends then; 0 where none do. No wait is longer.
    pub release_in_us: u64,
}

impl Verdict {
    /// What a plan answers that has no limit of units.
    pub fn passing_no_limit() -> Self {
        Self {
            fits: true,
            readings: SmallVec::new(),
            blocks: None,
            release_in_us: 0,
        }
    }
}

/// Whether a call may take what it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Charge the cost to every limit when all of them let it pass.
    Charge,
    /// Answer only; write nothing.
    Peek,
}

/// Decides one cost against all limits of a plan, all or nothing.
///
/// `states` belong to the key, in the order of `limits`. The `cost` must fit every limit's capacity;
/// [`crate::plan::Plan::never_fits`] rejects larger ones before.
pub fn decide(
    limits: &[Limit],
    states: &mut [State],
    now_us: u64,
    cost: Cost,
    mode: Mode,
) -> Verdict {
    let cost = cost.units();
    let mut verdict = read_all(limits, states, now_us, cost, mode);
    if mode == Mode::Charge {
        apply_charge(limits, states, now_us, cost, &mut verdict);
    }
    verdict
}

/// Charges a cost if the verdict says that it fits, and clamps the states in any case.
#[inline(always)]
fn apply_charge(
    limits: &[Limit],
    states: &mut [State],
    now_us: u64,
    cost: u64,
    verdict: &mut Verdict,
) {
    for ((limit, state), reading) in limits.iter().zip(states).zip(&mut verdict.readings) {
        state.clamp(limit, now_us);
        if verdict.fits {
            state.charge(limit, now_us, cost);
            *reading = state.read(limit, now_us, 0);
        }
    }
}

/// Tells whether a cost fits, as a charge or a peek reads the states, and changes nothing. `cost` must fit every limit's capacity.
pub fn test(limits: &[Limit], states: &[State], now_us: u64, cost: u64, mode: Mode) -> Verdict {
    read_all(limits, states, now_us, cost, mode)
}

// Always inlined, so that a decision has no call more than it needs.
#[inline(always)]
fn read_all(limits: &[Limit], states: &[State], now_us: u64, cost: u64, mode: Mode) -> Verdict {
    // A loop, because collecting one or two readings costs more than making them.
    let mut readings = SmallVec::<[Reading; 2]>::new();
    let mut fits = true;
    for (limit, state) in limits.iter().zip(states) {
        let reading = if mode == Mode::Peek {
            state.peek(limit, now_us, cost)
        } else {
            state.read(limit, now_us, cost)
        };
        fits &= reading.wait_us(limit, cost) == 0;
        readings.push(reading);
    }
    Verdict {
        fits,
        readings,
        blocks: None,
        release_in_us: 0,
    }
}

/// A placeholder left behind when a state is moved out.
impl Default for State {
    fn default() -> Self {
        Self::Bucket(Bucket::default())
    }
}

impl State {
    /// The state of a key that was never seen.
    #[inline]
    pub fn fresh(limit: &Limit) -> Self {
        match limit.algorithm() {
            Algorithm::FixedWindow { .. } => Self::Window(Window::default()),
            Algorithm::TokenBucket { .. } => Self::Bucket(Bucket::default()),
            Algorithm::SlidingCounter => Self::Counter(Counter::default()),
            Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => Self::Runs(Box::default()),
        }
    }

    /// When the state no longer counts anything, in microseconds since 1970.
    #[inline]
    pub fn fresh_at_us(&self, window_us: u64) -> u64 {
        match self {
            Self::Window(window) => window.fresh_at_us(window_us),
            Self::Bucket(bucket) => bucket.fresh_at_us(),
            Self::Counter(counter) => counter.fresh_at_us(window_us),
            Self::Runs(runs) => runs.fresh_at_us(window_us),
        }
    }

    /// Bytes of heap memory that the state uses.
    #[inline]
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Runs(runs) => runs.heap_bytes(),
            Self::Window(_) | Self::Bucket(_) | Self::Counter(_) => 0,
        }
    }

    /// The most bytes by which one charge may increase [`Self::heap_bytes`].
    #[inline]
    pub fn growth_bytes(&self) -> usize {
        match self {
            Self::Runs(runs) => runs.growth_bytes(),
            Self::Window(_) | Self::Bucket(_) | Self::Counter(_) => 0,
        }
    }

    /// Frees room for the next charge by giving up precision: some units will leave later than they could.
    pub fn merge_nearest(&mut self) {
        if let Self::Runs(runs) = self {
            runs.merge_nearest();
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

    /// As a peek reads it, which writes nothing.
    fn peek(&self, limit: &Limit, now_us: u64, cost: u64) -> Reading {
        match self {
            Self::Bucket(bucket) => bucket.peek(limit, now_us),
            _ => self.read(limit, now_us, cost),
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

    /// Charges what has happened, though the limit is passed. What a limit counts is bounded, and what would go above is dropped: so
    /// no mistake blocks a key for ever. What is counted already stays.
    fn charge_beyond(&mut self, limit: &Limit, now_us: u64, units: u64) {
        if let Self::Bucket(bucket) = self {
            return bucket.charge_beyond(limit, now_us, units);
        }
        let counted = match self.read(limit, now_us, 0) {
            Reading::Counter { current, .. } => current,
            reading => reading.counted(),
        };
        let most = match limit.algorithm() {
            Algorithm::SlidingLog => LOG_UNITS_MAX,
            _ => UNITS_MAX,
        };
        match units.min(most.saturating_sub(counted)) {
            0 => {}
            units => self.charge(limit, now_us, units),
        }
    }

    /// Gives back units of a charge of that instant, at their place; see [`holds`]. Returns how many. A bucket has its own way.
    fn give_back(&mut self, limit: &Limit, now_us: u64, units: u64, at_us: u64) -> u64 {
        let before = self.read(limit, now_us, 0).counted();
        match (&mut *self, limit.algorithm()) {
            (Self::Window(window), _) => window.undo(limit, now_us, units, at_us),
            (Self::Counter(counter), _) => counter.undo(limit, now_us, units, at_us),
            (Self::Runs(runs), Algorithm::SlidingWindow { .. }) => {
                sliding_window::give_back(runs, limit, (now_us, at_us), units);
            }
            (Self::Runs(runs), _) => sliding_log::undo(runs, limit, now_us, units, at_us),
            (Self::Bucket(_), _) => {}
        }
        before.saturating_sub(self.read(limit, now_us, 0).counted())
    }

    /// Gives units back. A state without units stays as it is. A state that loses its last unit becomes a fresh one.
    fn refund(&mut self, limit: &Limit, now_us: u64, units: u64) {
        match self {
            Self::Window(window) => window.refund(limit, now_us, units),
            Self::Bucket(bucket) => bucket.refund(limit, now_us, units),
            Self::Counter(counter) => counter.refund(limit, now_us, units),
            Self::Runs(runs) => runs.refund(limit, now_us, units),
        }
    }

    /// Gives back the units of a charge of that instant. A state without them stays as it is.
    fn undo(&mut self, limit: &Limit, now_us: u64, units: u64, instant_us: u64) {
        match (self, limit.algorithm()) {
            (Self::Window(window), _) => window.undo(limit, now_us, units, instant_us),
            (Self::Bucket(bucket), _) => bucket.undo(limit, now_us, units, instant_us),
            (Self::Counter(counter), _) => counter.undo(limit, now_us, units, instant_us),
            (Self::Runs(runs), Algorithm::SlidingWindow { precision }) => {
                sliding_window::undo(runs, limit, precision, (now_us, instant_us), units);
            }
            (Self::Runs(runs), _) => sliding_log::undo(runs, limit, now_us, units, instant_us),
        }
    }
}
