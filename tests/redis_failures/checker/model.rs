//! A model of what a key has used. It keeps every charge and counts all of them anew each time. It shares no code with the
//! algorithms, except the numbers of a limit.
//!
//! Of a charge whose answer was lost, only the earliest and the latest time are known. So usage is a range; it is a single number
//! if the times of all charges are known.

use tollgate::plan::{Algorithm, Limit};

use super::history::Status;
use crate::support::plans::{Counting, counting, window_start_us};

/// The least and the most that a number may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub low: u64,
    pub high: u64,
}

#[derive(Clone)]
pub struct Model {
    limit: Limit,
    /// Charges, in their order, with the earliest and the latest time of each.
    charges: Vec<(Range, u64)>,
    /// For a `token_bucket`: when it is full again.
    full_at_us: Range,
    /// For a `fixed_window` that starts at the first request.
    anchored: AnchoredWindow,
}

#[derive(Clone, Copy)]
enum AnchoredWindow {
    /// No window has begun.
    Fresh,
    Known {
        start_us: Range,
        count: u64,
    },
    /// It is not known whether the last charge began a window. The next reading tells.
    Lost,
}

impl Range {
    pub fn exactly(value: u64) -> Self {
        Self {
            low: value,
            high: value,
        }
    }
}

impl Model {
    pub fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.clone(),
            charges: Vec::new(),
            full_at_us: Range::exactly(0),
            anchored: AnchoredWindow::Fresh,
        }
    }

    pub fn capacity(&self) -> u64 {
        self.limit.capacity()
    }

    /// Units in use at `now_us`, which must not be before the latest charge.
    pub fn used(&self, now_us: u64) -> Range {
        let window_us = self.limit.window_us();
        let sum = |since: &dyn Fn(u64) -> bool, late_us: u64| Range {
            low: self
                .charges
                .iter()
                .filter(|(at_us, _)| since(at_us.low))
                .map(|(_, cost)| cost)
                .sum(),
            high: self
                .charges
                .iter()
                .filter(|(at_us, _)| since(at_us.high + late_us))
                .map(|(_, cost)| cost)
                .sum(),
        };
        match counting(&self.limit) {
            Counting::OwnWindow => self.used_of_own_window(now_us),
            Counting::ClockWindow => {
                let start_us = window_start_us(&self.limit, now_us);
                sum(&|at_us| window_start_us(&self.limit, at_us) == start_us, 0)
            }
            Counting::Instants => sum(&|at_us| at_us + window_us > now_us, self.late_us()),
            Counting::TwoWindows => {
                let of = |at_us: &dyn Fn(Range) -> u64| self.estimate(now_us, at_us);
                Range {
                    low: of(&|at_us| at_us.low),
                    high: of(&|at_us| at_us.high),
                }
            }
            Counting::Debt => {
                let of = |full_at_us: u64| self.used_of_debt(full_at_us.saturating_sub(now_us));
                Range {
                    low: of(self.full_at_us.low),
                    high: of(self.full_at_us.high),
                }
            }
        }
    }

    /// How late a unit may be freed: 0 while every unit has a run of its own.
    pub fn late_us(&self) -> u64 {
        match self.limit.algorithm() {
            Algorithm::SlidingWindow { precision } if u64::from(precision) < self.limit.quota() => {
                self.limit.cell_us(precision)
            }
            _ => 0,
        }
    }

    /// Whether a denial of the cost agrees with the charges.
    pub fn may_deny(&self, now_us: u64, cost: u64) -> bool {
        self.used(now_us).high + cost > self.capacity()
    }

    /// Whether it agrees with the charges that the cost passes.
    pub fn may_pass(&self, now_us: u64, cost: u64) -> bool {
        self.used(now_us).low + cost <= self.capacity()
    }

    pub fn charge(&mut self, at_us: Range, cost: u64) {
        self.charge_anchored(at_us, cost);
        self.charges.push((at_us, cost));
        let debt_us = cost * self.limit.emission_us();
        let full = |before_us: u64, at_us: u64| before_us.max(at_us) + debt_us;
        self.full_at_us = Range {
            low: full(self.full_at_us.low, at_us.low),
            high: full(self.full_at_us.high, at_us.high),
        };
    }

    /// Time until the key is fresh; `None` if it is not known exactly.
    pub fn fresh_in_us(&self, now_us: u64) -> Option<u64> {
        let used = self.used(now_us);
        if used.low != used.high {
            return None;
        }
        let window_us = self.limit.window_us();
        let newest_us = self.charges.last().map(|(at_us, _)| *at_us);
        let until_us = match counting(&self.limit) {
            Counting::TwoWindows => return None,
            Counting::Debt => self.full_at_us,
            _ if used.high == 0 => return Some(0),
            Counting::OwnWindow => match self.anchored {
                AnchoredWindow::Known { start_us, .. } => Range {
                    low: start_us.low + window_us,
                    high: start_us.high + window_us,
                },
                _ => return None,
            },
            Counting::ClockWindow => {
                Range::exactly(window_start_us(&self.limit, now_us) + window_us)
            }
            Counting::Instants => newest_us.map(|at_us| Range {
                low: at_us.low + window_us,
                high: at_us.high + window_us,
            })?,
        };
        (until_us.low == until_us.high).then(|| until_us.low.saturating_sub(now_us))
    }

    /// Whether this wait for the cost agrees with the charges. Without a wait, the cost passes now.
    pub fn waits(&self, now_us: u64, cost: u64, wait_us: Option<u64>) -> bool {
        match wait_us {
            None => self.may_pass(now_us, cost),
            Some(0) => false,
            Some(wait_us) => {
                self.may_deny(now_us + wait_us - 1, cost) && self.may_pass(now_us + wait_us, cost)
            }
        }
    }

    /// Sets the anchored window to that of a reading, after an answer was lost.
    pub fn learn(&mut self, now_us: u64, reading: &Status) {
        if reading.reset_us > 0 {
            let start_us =
                Range::exactly((now_us + reading.reset_us).saturating_sub(self.limit.window_us()));
            self.anchored = AnchoredWindow::Known {
                start_us,
                count: self.capacity().saturating_sub(reading.remaining),
            };
        }
    }

    fn used_of_own_window(&self, now_us: u64) -> Range {
        let window_us = self.limit.window_us();
        match self.anchored {
            AnchoredWindow::Fresh => Range::exactly(0),
            AnchoredWindow::Known { start_us, count } if now_us < start_us.low + window_us => {
                Range::exactly(count)
            }
            AnchoredWindow::Known { start_us, .. } if now_us >= start_us.high + window_us => {
                Range::exactly(0)
            }
            AnchoredWindow::Known { count, .. } => Range {
                low: 0,
                high: count,
            },
            AnchoredWindow::Lost => Range {
                low: 0,
                high: self.capacity(),
            },
        }
    }

    fn charge_anchored(&mut self, at_us: Range, cost: u64) {
        let window_us = self.limit.window_us();
        self.anchored = match self.anchored {
            AnchoredWindow::Fresh => AnchoredWindow::Known {
                start_us: at_us,
                count: cost,
            },
            AnchoredWindow::Known { start_us, count } if at_us.high < start_us.low + window_us => {
                AnchoredWindow::Known {
                    start_us,
                    count: count + cost,
                }
            }
            AnchoredWindow::Known { start_us, .. } if at_us.low >= start_us.high + window_us => {
                AnchoredWindow::Known {
                    start_us: at_us,
                    count: cost,
                }
            }
            _ => AnchoredWindow::Lost,
        };
    }

    fn estimate(&self, now_us: u64, at_us: &dyn Fn(Range) -> u64) -> u64 {
        let window_us = self.limit.window_us();
        let index = now_us / window_us;
        let of = |wanted: u64| {
            let charges = self
                .charges
                .iter()
                .filter(|(range, _)| at_us(*range) / window_us == wanted);
            charges.map(|(_, cost)| cost).sum::<u64>()
        };
        of(index) + (of(index - 1) * (window_us - now_us % window_us)).div_ceil(window_us)
    }

    fn used_of_debt(&self, debt_us: u64) -> u64 {
        self.capacity()
            - self.limit.tolerance_us().saturating_sub(debt_us) / self.limit.emission_us()
    }
}
