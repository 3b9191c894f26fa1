//! `token_bucket`, by the generic cell rate algorithm (ITU-T I.371): at most `burst + rate * t` units in any interval `t`.
//!
//! Terms of GCRA:
//! - *emission interval*: the time in which one unit comes back;
//! - *tat* (theoretical arrival time): when the bucket will be full again, so `tat - now` is the debt;
//! - *tolerance*: the largest debt that a key may have, `burst` emission intervals.
//!
//! A debt is an amount of time. It gives a number of units only together with the rate at which it was charged. A bucket
//! therefore stores that rate beside the tat, as the quota; the window is part of the limit's fingerprint. A limit of another
//! rate reads the debt as units:
//! - A limit of a slower rate decides by the debt as it stands. The debt drains at its present rate until something is charged.
//! - A limit of a faster rate reads the debt converted to its own rate, so that an upgrade takes effect at once. A charging
//!   call writes the converted debt even when it denies, as it does with a clamp. A peek writes nothing. So it reads the debt as
//!   it stands, and its times are exact as long as nothing is charged: until then the debt drains at the rate that it has.
//! - A charge that fits leaves the whole debt at the charging limit's rate.
//!
//! A conversion is rounded up, by less than a microsecond of the new rate, so that no unit is free early. Only a charge that
//! fits converts back to a slower rate, so roundings do not add up while requests are denied.
//!
//! Only a debt above one window is stored with the time of its writing; a burst above the quota can cause such a debt. That
//! time distinguishes two cases: the clock stepped back, or a limit of the same window with a larger burst caused the debt. So
//! neither case blocks a key for long, and no debt is forgiven. Lua twin: `gcra.lua`.

use super::Reading;
use crate::plan::Limit;

/// One key's bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bucket {
    /// When the bucket is full again, in microseconds since 1970.
    pub tat_us: u64,
    /// When the tat was written, if the debt was above one window then; else 0.
    pub at_us: u64,
    /// Quota of the limit at whose rate the debt drains; 0 in a bucket that was never charged.
    pub quota: u64,
}

/// The debt of a key at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Debt {
    backlog_us: u64,
    /// Gives the rate at which the debt drains.
    quota: u64,
    emission_us: u64,
}

impl Bucket {
    fn new(limit: &Limit, now_us: u64, debt: Debt) -> Self {
        let at_us = if debt.backlog_us > limit.window_us() {
            now_us
        } else {
            0
        };
        Self {
            tat_us: now_us + debt.backlog_us,
            at_us,
            quota: debt.quota,
        }
    }

    pub(super) fn read(&self, limit: &Limit, now_us: u64) -> Reading {
        let Debt {
            backlog_us,
            emission_us,
            ..
        } = self.debt(limit, now_us);
        Reading::Bucket {
            backlog_us,
            emission_us,
        }
    }

    /// As a peek reads it: at the rate that the debt drains at while nothing is written.
    pub(super) fn peek(&self, limit: &Limit, now_us: u64) -> Reading {
        let Debt {
            backlog_us,
            emission_us,
            ..
        } = self.own_debt(limit, now_us);
        Reading::Bucket {
            backlog_us,
            emission_us,
        }
    }

    pub(super) fn clamp(&mut self, limit: &Limit, now_us: u64) {
        let debt = self.debt(limit, now_us);
        if self.tat_us > now_us + debt.backlog_us {
            *self = Self::new(limit, now_us, debt);
        }
    }

    pub(super) fn charge(&mut self, limit: &Limit, now_us: u64, cost: u64) {
        let debt = self.debt(limit, now_us).at_rate_of(limit);
        *self = Self::new(
            limit,
            now_us,
            Debt {
                backlog_us: debt.backlog_us + cost * limit.emission_us(),
                ..debt
            },
        );
    }

    /// Charges what has happened. The debt grows to the time of burst and quota at most, so no mistake blocks a key for longer than a
    /// window more. A greater debt stays as it is.
    pub(super) fn charge_beyond(&mut self, limit: &Limit, now_us: u64, units: u64) {
        let debt = self.debt(limit, now_us).at_rate_of(limit);
        let unit_us = limit.emission_us();
        let most = limit.capacity() + limit.quota();
        let charged_us = debt.backlog_us + units.min(most) * unit_us;
        let backlog_us = charged_us.min(most * unit_us).max(debt.backlog_us);
        *self = Self::new(limit, now_us, Debt { backlog_us, ..debt });
    }

    /// Gives back whole units of a charge: at most so many, and as many as fit in `left_us`, which is what the charge owes yet.
    /// Returns them, and their time. Under a faster rate than that of the limit a unit takes less time.
    pub(super) fn settle(
        &mut self,
        limit: &Limit,
        now_us: u64,
        units: u64,
        left_us: u64,
    ) -> (u64, u64) {
        let debt = self.debt(limit, now_us);
        let unit_us = limit.emission_us().min(debt.emission_us);
        let units = units.min(left_us.min(debt.backlog_us) / unit_us);
        let given_us = units * unit_us;
        match debt.backlog_us - given_us {
            _ if units == 0 => {}
            0 => *self = Self::default(),
            backlog_us => *self = Self::new(limit, now_us, Debt { backlog_us, ..debt }),
        }
        (units, given_us)
    }

    /// Gives units back; a unit that is only partly back counts as one. The rate stays as it is.
    pub(super) fn refund(&mut self, limit: &Limit, now_us: u64, units: u64) {
        self.give_back(limit, now_us, units, 0);
    }

    /// Gives units of a charge back, less what has come back of them since `since_us`: the later of the charge and the end of
    /// the debt before it. So what was charged after it counts in full.
    pub(super) fn undo(&mut self, limit: &Limit, now_us: u64, units: u64, since_us: u64) {
        self.give_back(limit, now_us, units, now_us.saturating_sub(since_us));
    }

    /// Gives units back, less a debt that has drained already.
    fn give_back(&mut self, limit: &Limit, now_us: u64, units: u64, drained_us: u64) {
        let debt = self.debt(limit, now_us);
        let given_us = units
            .saturating_mul(debt.emission_us)
            .saturating_sub(drained_us);
        match debt.backlog_us.saturating_sub(given_us) {
            _ if debt.backlog_us == 0 || given_us == 0 => {}
            0 => *self = Self::default(),
            backlog_us => *self = Self::new(limit, now_us, Debt { backlog_us, ..debt }),
        }
    }

    pub(super) fn fresh_at_us(&self) -> u64 {
        self.tat_us
    }

    /// The debt that `limit` reads at `now_us`: at its own rate, or at the bucket's rate if that one is faster.
    fn debt(&self, limit: &Limit, now_us: u64) -> Debt {
        let debt = self.own_debt(limit, now_us);
        if debt.emission_us > limit.emission_us() {
            debt.at_rate_of(limit)
        } else {
            debt
        }
    }

    /// The debt at `now_us`, at the bucket's rate.
    fn own_debt(&self, limit: &Limit, now_us: u64) -> Debt {
        let backlog_us = self.backlog_us(limit, now_us);
        if self.quota == 0 || backlog_us == 0 {
            return Debt {
                backlog_us,
                quota: limit.quota(),
                emission_us: limit.emission_us(),
            };
        }
        Debt {
            backlog_us,
            quota: self.quota,
            emission_us: limit.window_us().div_ceil(self.quota),
        }
    }

    /// The debt at `now_us`. When the clock stepped back, at most the debt at the time of writing, if that is known.
    fn backlog_us(&self, limit: &Limit, now_us: u64) -> u64 {
        match self.at_us {
            0 => self.tat_us.saturating_sub(now_us).min(limit.window_us()),
            at_us => self.tat_us.saturating_sub(now_us.max(at_us)),
        }
    }
}

impl Debt {
    /// The same number of units at the rate of `limit`.
    fn at_rate_of(self, limit: &Limit) -> Self {
        let quota = limit.quota();
        let emission_us = limit.emission_us();
        if emission_us == self.emission_us {
            return Self { quota, ..self };
        }
        let converted = (u128::from(self.backlog_us) * u128::from(emission_us))
            .div_ceil(u128::from(self.emission_us));
        // A charged debt is within the limit's tolerance. A debt that is not charged is converted to a faster rate only, which
        // makes it smaller.
        Self {
            backlog_us: u64::try_from(converted).unwrap_or(u64::MAX),
            quota,
            emission_us,
        }
    }
}

/// Time until a debt, at `emission_us` per unit, leaves room for `cost`.
pub(super) fn wait_us(limit: &Limit, backlog_us: u64, emission_us: u64, cost: u64) -> u64 {
    match limit.capacity().checked_sub(cost) {
        Some(others) => backlog_us.saturating_sub(others.saturating_mul(emission_us)),
        None => backlog_us.saturating_add((cost - limit.capacity()).saturating_mul(emission_us)),
    }
}

pub(super) fn remaining(limit: &Limit, backlog_us: u64, emission_us: u64) -> u64 {
    limit
        .capacity()
        .saturating_sub(backlog_us.div_ceil(emission_us))
}

#[cfg(test)]
mod tests;
