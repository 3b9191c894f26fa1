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

    /// Forgets the counts of limits that are gone.
    pub(in crate::limiter) fn keep_limits(&self, plans: &PlanSet) {
        let limits = |plan: &str| {
            plans
                .find_if_any(plan)
                .map_or(&[][..], |(_, plan)| plan.limits())
        };
        self.lock()
            .retain(|(plan, name), _| limits(plan).iter().any(|limit| limit.name() == name));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tollgate_core::decision::{DecidedBy, Decision, LimitStatus, Outcome};
    use tollgate_core::plan::{Algorithm, Limit, Rule};

    fn plan(limit: &str) -> Plan {
        let limit = Limit::new(limit, 1, Duration::from_secs(1), Algorithm::SlidingCounter);
        Plan::new("p", Rule::limits([limit.unwrap()]))
    }

    #[test]
    fn the_count_of_a_limit_that_is_renamed_is_forgotten() {
        let status = LimitStatus {
            name: "old".into(),
            limit: 1,
            window_us: 1_000_000,
            frees_at_once: false,
            capacity: 1,
            remaining: 0,
            retry_after_us: Some(1),
            reset_after_us: 1,
            blocked_for_us: 1,
            begins_block: true,
            first_end_us: 0,
        };
        let statuses = [status].into_iter().collect();
        let denied = Decision::counted(Outcome::Denied, DecidedBy::Store, statuses);
        let counts = BlockCounts::default();
        counts.record(&plan("old"), &denied);
        counts.keep_limits(&[plan("old")].into_iter().collect());
        assert_eq!(counts.totals().values().sum::<u64>(), 1);
        counts.keep_limits(&[plan("new")].into_iter().collect());
        assert!(counts.totals().is_empty());
    }
}
