//! Where a key stands, as the rows and numbers of an answer.

use smallvec::SmallVec;

use super::{KeyView, Slots};
use crate::algorithm::Verdict;
use crate::decision::{DecidedBy, Decision, LimitStatus, Outcome};
use crate::key::Cost;
use crate::plan::{Concurrency, Limit, Plan};

/// The name that stands for a limit where too many holds are open.
const MAX_OPEN: &str = "holds.max_open";

impl KeyView {
    /// The standing for this cost, by limits and slots. That too many holds are open, until the first lease of the plan ends, is told
    /// where nothing else denies.
    pub fn told(
        limits: &[Limit],
        cost: u64,
        verdict: Verdict,
        (slots, full_for_us): (Option<Slots>, Option<u64>),
    ) -> Self {
        let slots = slots.map(|slots| match verdict.fits {
            true => Slots {
                wait_us: 0,
                ..slots
            },
            false => slots,
        });
        let mut readings = limits.iter().zip(&verdict.readings);
        let others_fit = readings.all(|(limit, reading)| reading.wait_us(limit, cost) == 0)
            && verdict.blocks.is_none()
            && slots.is_none_or(|slots| slots.wait_us == 0);
        let full_for_us = full_for_us.filter(|_| !verdict.fits && others_fit);
        Self {
            verdict,
            slots,
            full_for_us,
        }
    }

    /// The decision on a request of this cost that the store made.
    pub fn decision(&self, plan: &Plan, cost: Cost) -> Decision {
        let outcome = if self.verdict.fits {
            Outcome::Allowed
        } else {
            Outcome::Denied
        };
        let rows = self.statuses(plan, cost);
        let decision = Decision::counted(outcome, DecidedBy::Store, rows);
        let decision = decision.with_slots(self.slots.is_some());
        match self.full_for_us {
            None => decision,
            Some(wait_us) => decision.full(full(plan, wait_us)),
        }
    }

    /// The standing in each limit of the plan, in the order of the config.
    pub fn statuses(&self, plan: &Plan, cost: Cost) -> SmallVec<[LimitStatus; 2]> {
        let mut rows = self.verdict.statuses(plan.limits(), cost);
        if let (Some(slots), Some(limit)) = (self.slots, plan.concurrency()) {
            let row = slots.status(limit, self.verdict.fits);
            rows.insert(limit.place().min(rows.len()), row);
        }
        rows
    }
}

impl Slots {
    fn status(self, limit: &Concurrency, fits: bool) -> LimitStatus {
        LimitStatus {
            remaining: u64::from(limit.quota().saturating_sub(self.open)),
            retry_after_us: (!fits && self.wait_us > 0).then_some(self.wait_us),
            reset_after_us: self.last_end_us,
            first_end_us: self.first_end_us,
            ..row(limit.name().clone(), limit.quota())
        }
    }
}

fn full(plan: &Plan, wait_us: u64) -> LimitStatus {
    LimitStatus {
        retry_after_us: Some(wait_us),
        reset_after_us: wait_us,
        ..row(MAX_OPEN.into(), plan.holds.max_open)
    }
}

/// A row without a window, of which nothing is left.
fn row(name: std::sync::Arc<str>, limit: u32) -> LimitStatus {
    LimitStatus {
        name,
        limit: limit.into(),
        window_us: 0,
        frees_at_once: false,
        capacity: limit.into(),
        remaining: 0,
        retry_after_us: None,
        reset_after_us: 0,
        blocked_for_us: 0,
        begins_block: false,
        first_end_us: 0,
    }
}
