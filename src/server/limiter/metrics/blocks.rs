//! Blocks that requests began, by plan and limit. They are rare beside decisions, so all limiters of a process share one map.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_core::decision::Decision;
use tollgate_core::plan::{Plan, PlanSet};

/// How many blocks began, by the names of plan and limit.
pub(in crate::limiter) type BlockTotals = HashMap<(Arc<str>, Arc<str>), u64>;

/// Counts begun blocks. Its names are those of plans, so the config bounds their number.
#[derive(Default)]
pub(in crate::limiter) struct BlockCounts(Mutex<BlockTotals>);

impl BlockCounts {
    /// Counts the blocks that a decision by this plan began.
    #[inline]
    pub(in crate::limiter) fn record(&self, plan: &Plan, decision: &Decision) {
        for limit in decision.begun_blocks() {
            let name = (plan.name.clone(), limit.clone());
            *self.lock().entry(name).or_default() += 1;
        }
    }

    /// Forgets the counts of plans that are gone.
    pub(in crate::limiter) fn keep_plans(&self, plans: &PlanSet) {
        self.lock()
            .retain(|(plan, _), _| plans.find_if_any(plan).is_some());
    }

    /// The counts since the start.
    pub(in crate::limiter) fn totals(&self) -> BlockTotals {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BlockTotals> {
        // A panic cannot leave a count half-written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
