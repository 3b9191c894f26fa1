//! What became of holds, by plan. A call about holds costs a store more than a lock, so all workers share one map.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Totals;
use tollgate_core::algorithm::holds::{
    EndedHolds, HoldCall, HoldEvent, HoldState, HoldVerdict, SettleOutcome,
};
use tollgate_core::plan::PlanSet;

/// What happens to holds, by the names of the label `event`.
pub const HOLD_EVENTS: [&str; 8] = [
    "reserved", "settled", "expired", "released", "extended", "repeated", "unknown", "lost",
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

/// Streams of holds that are open now, and the holds on them.
#[derive(Default)]
struct HoldStreams {
    streams: AtomicU64,
    holds: AtomicU64,
}

impl HoldStreams {
    /// Streams, and holds.
    fn counts(&self) -> [u64; 2] {
        [&self.streams, &self.holds].map(|count| count.load(Ordering::Relaxed))
    }
}

/// Counts one stream and its holds, until it is dropped.
pub struct HoldStreamCount {
    of_all: Arc<HoldStreams>,
    holds: u64,
}

impl HoldStreamCount {
    fn new(of_all: Arc<HoldStreams>) -> Self {
        of_all.streams.fetch_add(1, Ordering::Relaxed);
        Self { of_all, holds: 0 }
    }

    /// Tells how many holds it has now.
    pub fn set(&mut self, holds: usize) {
        let before = self.holds;
        let holds = u64::try_from(holds).unwrap_or(u64::MAX);
        let all = &self.of_all.holds;
        if holds >= before {
            all.fetch_add(holds - before, Ordering::Relaxed);
        } else {
            all.fetch_sub(before - holds, Ordering::Relaxed);
        }
        self.holds = holds;
    }
}

impl Drop for HoldStreamCount {
    fn drop(&mut self) {
        self.set(0);
        self.of_all.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts what becomes of holds. Its names are those of plans, so the config bounds their number.
#[derive(Default)]
pub(in crate::limiter) struct HoldCounts {
    totals: Mutex<HoldTotals>,
    streams: Arc<HoldStreams>,
}

impl HoldCounts {
    /// Counts a call under this plan.
    pub(in crate::limiter) fn record(
        &self,
        plan: &Arc<str>,
        call: &HoldCall,
        verdict: &HoldVerdict,
    ) {
        self.record_ended(plan, verdict.ended);
        let mut totals = self.lock();
        let figures = totals.entry(plan.clone()).or_default();
        let [reserved, settled, _, _, extended, repeated, unknown, _] = &mut figures.events;
        let [returned, excess, recorded] = &mut figures.units;
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

    /// Counts what ended with a call.
    pub(in crate::limiter) fn record_ended(&self, plan: &Arc<str>, ended: EndedHolds) {
        if ended == EndedHolds::default() {
            return;
        }
        let mut totals = self.lock();
        let figures = totals.entry(plan.clone()).or_default();
        let [_, _, expired, released, ..] = &mut figures.events;
        let [returned, ..] = &mut figures.units;
        *expired += ended.expired;
        *released += ended.released;
        *returned += ended.units;
    }

    /// Counts a hold that is no longer its stream's.
    pub(in crate::limiter) fn record_lost(&self, plan: &Arc<str>) {
        let mut totals = self.lock();
        let figures = totals.entry(plan.clone()).or_default();
        let [.., lost] = &mut figures.events;
        *lost += 1;
    }

    /// Forgets the counts of plans that are gone.
    pub(in crate::limiter) fn keep_plans(&self, plans: &PlanSet) {
        self.lock()
            .retain(|plan, _| plans.find_if_any(plan).is_some());
    }

    /// Counts a stream of holds that begins.
    pub(in crate::limiter) fn stream(&self) -> HoldStreamCount {
        HoldStreamCount::new(self.streams.clone())
    }

    /// Adds the counts since the start, and the streams that are open now.
    pub(in crate::limiter) fn add_to(&self, totals: &mut Totals) {
        totals.holds = self.lock().clone();
        totals.hold_streams = self.streams.counts();
    }

    fn lock(&self) -> MutexGuard<'_, HoldTotals> {
        // A panic cannot leave a count half-written.
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
