//! What became of holds, by plan. Only the embedded store keeps holds, yet, behind locks of its own, so one map is shared.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_core::algorithm::holds::{HoldCall, HoldEvent, HoldState, HoldVerdict, SettleOutcome};
use tollgate_core::plan::PlanSet;

/// What happens to holds, by the names of the label `event`.
pub const HOLD_EVENTS: [&str; 7] = [
    "reserved", "settled", "expired", "released", "extended", "repeated", "unknown",
];
/// Why units were counted or given back, by the names of the label `kind`.
pub const HOLD_UNITS: [&str; 3] = ["returned", "excess", "recorded"];

/// Counts of one plan, in the order of [`HOLD_EVENTS`] and [`HOLD_UNITS`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HoldFigures {
    /// Events.
    pub events: [u64; HOLD_EVENTS.len()],
    /// Units.
    pub units: [u64; HOLD_UNITS.len()],
}

/// The counts by the names of plans.
pub(in crate::limiter) type HoldTotals = HashMap<Arc<str>, HoldFigures>;

/// Counts what becomes of holds. Its names are those of plans, so the config bounds their number.
#[derive(Default)]
pub(in crate::limiter) struct HoldCounts(Mutex<HoldTotals>);

impl HoldCounts {
    /// Counts a call under this plan.
    pub(in crate::limiter) fn record(
        &self,
        plan: &Arc<str>,
        call: &HoldCall,
        verdict: &HoldVerdict,
    ) {
        let mut totals = self.lock();
        let figures = totals.entry(plan.clone()).or_default();
        let [
            reserved,
            settled,
            expired,
            released,
            extended,
            repeated,
            unknown,
        ] = &mut figures.events;
        let [returned, excess, recorded] = &mut figures.units;
        *expired += verdict.ended.expired;
        *released += verdict.ended.released;
        *returned += verdict.ended.units;
        match &verdict.event {
            HoldEvent::Decided { expires_in_us } => *reserved += u64::from(expires_in_us.is_some()),
            HoldEvent::Repeated { .. } => *repeated += 1,
            HoldEvent::Recorded => {
                if let HoldCall::Record { cost } = call {
                    *recorded += cost;
                }
            }
            HoldEvent::Settled(settlement) => {
                *match settlement.outcome {
                    SettleOutcome::Repeated => repeated,
                    SettleOutcome::Unknown => unknown,
                    SettleOutcome::Settled | SettleOutcome::Expired => settled,
                } += 1;
                *returned += settlement.returned.iter().max().copied().unwrap_or(0);
                *excess += settlement.excess;
            }
            HoldEvent::Extended { state, .. } => match state {
                HoldState::Open => *extended += 1,
                HoldState::Unknown => *unknown += 1,
                HoldState::Settled | HoldState::Expired => {}
            },
            HoldEvent::Peeked | HoldEvent::Refused(_) => {}
        }
    }

    /// Forgets the counts of plans that are gone.
    pub(in crate::limiter) fn keep_plans(&self, plans: &PlanSet) {
        self.lock()
            .retain(|plan, _| plans.find_if_any(plan).is_some());
    }

    /// The counts since the start.
    pub(in crate::limiter) fn totals(&self) -> HoldTotals {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, HoldTotals> {
        // A panic cannot leave a count half-written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
