//! What happened in the last seconds: the counts of some moments ago, to compare the present ones with.
//!
//! A sample is taken when somebody looks at the page, so a page without viewers costs nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::limiter::{BOUNDS_NS, LimiterCounter, PlanSnapshot, Timings, Totals};
use tollgate_core::decision::{DecidedBy, Outcome};

/// Maximum span of the figures of "the last seconds", as long as somebody looks. Long enough for a rate of a few calls,
/// short enough to see a change.
const SPAN_MAX: Duration = Duration::from_secs(10);
/// Least time between two samples, and least span of a rate. Viewers ask once a second.
const SPACING: Duration = Duration::from_millis(900);

/// Decisions of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PlanCounts {
    pub allowed: u64,
    /// Denied or never fitting.
    pub denied: u64,
    /// Allowed although a plan in shadow mode would have denied.
    pub shadow_denied: u64,
    /// Of all of these, those that the plan's policy answered because the store could not decide.
    pub by_policy: u64,
}

impl PlanCounts {
    /// Counts of the plan at this index.
    pub(super) fn read(totals: &Totals, plan: usize) -> Self {
        let sum = |outcomes: &[Outcome], deciders: &[DecidedBy]| {
            let pairs = outcomes
                .iter()
                .flat_map(|outcome| deciders.iter().map(move |by| (*outcome, *by)));
            pairs
                .map(|(outcome, by)| totals.decisions(plan, outcome, by))
                .sum()
        };
        Self {
            allowed: sum(&[Outcome::Allowed], &DecidedBy::ALL),
            denied: sum(&[Outcome::Denied, Outcome::NeverFits], &DecidedBy::ALL),
            shadow_denied: sum(&[Outcome::ShadowDenied], &DecidedBy::ALL),
            by_policy: sum(
                &Outcome::ALL,
                &[
                    DecidedBy::FailOpen,
                    DecidedBy::FailClosed,
                    DecidedBy::LocalFallback,
                ],
            ),
        }
    }

    /// All decisions.
    pub(super) fn decisions(self) -> u64 {
        self.allowed + self.denied + self.shadow_denied
    }

    /// What was counted since `earlier`.
    fn counted_since(self, earlier: Self) -> Self {
        Self {
            allowed: self.allowed.saturating_sub(earlier.allowed),
            denied: self.denied.saturating_sub(earlier.denied),
            shadow_denied: self.shadow_denied.saturating_sub(earlier.shadow_denied),
            by_policy: self.by_policy.saturating_sub(earlier.by_policy),
        }
    }

    /// The sum of both.
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
            shadow_denied: self.shadow_denied + other.shadow_denied,
            by_policy: self.by_policy + other.by_policy,
        }
    }
}

/// The counts of one moment.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    at: Instant,
    /// The plans, in whose order `plans` is.
    pub snapshot: Arc<PlanSnapshot>,
    pub plans: Vec<PlanCounts>,
    pub durations: Timings,
    pub store_durations: Timings,
    /// Requests that the store failed to decide.
    pub store_errors: u64,
    /// Requests that name an unknown plan and got no decision.
    pub unknown_plans: u64,
}

impl Sample {
    pub(super) fn new(at: Instant, totals: &Totals) -> Self {
        let snapshot = totals.snapshot().clone();
        Self {
            at,
            plans: (0..snapshot.plans().len())
                .map(|plan| PlanCounts::read(totals, plan))
                .collect(),
            snapshot,
            durations: totals.durations.clone(),
            store_durations: totals.store_durations.clone(),
            store_errors: totals.count(LimiterCounter::StoreErrors),
            unknown_plans: totals
                .count(LimiterCounter::UnknownPlans)
                .saturating_sub(totals.count(LimiterCounter::ByDefaultPlan)),
        }
    }

    /// What was counted between `earlier`, a sample of the same plans, and this one.
    fn counted_since(&self, earlier: &Self) -> RecentActivity {
        RecentActivity {
            span: self.at.saturating_duration_since(earlier.at),
            plans: self
                .plans
                .iter()
                .zip(&earlier.plans)
                .map(|(now, then)| now.counted_since(*then))
                .collect(),
            durations: difference(&self.durations, &earlier.durations),
            store_durations: difference(&self.store_durations, &earlier.store_durations),
            store_errors: self.store_errors.saturating_sub(earlier.store_errors),
            unknown_plans: self.unknown_plans.saturating_sub(earlier.unknown_plans),
        }
    }
}

/// What happened within a span of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecentActivity {
    pub span: Duration,
    /// In the order of the plans.
    pub plans: Vec<PlanCounts>,
    pub durations: Timings,
    pub store_durations: Timings,
    pub store_errors: u64,
    pub unknown_plans: u64,
}

/// The samples of the last seconds, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Samples(VecDeque<Sample>);

impl Samples {
    /// Takes up a sample. Returns what happened in the last seconds; `None` when there is nothing to compare with yet: nobody
    /// looked in the last seconds, or the plans were replaced in them.
    pub(super) fn add(&mut self, sample: &Sample) -> Option<RecentActivity> {
        let age = |other: &Sample| sample.at.saturating_duration_since(other.at);
        self.0.retain(|other| {
            Arc::ptr_eq(&other.snapshot, &sample.snapshot) && age(other) <= SPAN_MAX
        });
        let recent = self
            .0
            .front()
            .filter(|oldest| age(oldest) >= SPACING)
            .map(|oldest| sample.counted_since(oldest));
        if self
            .0
            .back()
            .is_none_or(|youngest| age(youngest) >= SPACING)
        {
            self.0.push_back(sample.clone());
        }
        recent
    }
}

/// What was timed between `then` and `now`.
pub(super) fn difference(now: &Timings, then: &Timings) -> Timings {
    let mut buckets = now.buckets;
    buckets
        .iter_mut()
        .zip(then.buckets)
        .for_each(|(now, then)| *now = now.saturating_sub(then));
    Timings {
        buckets,
        sum_ns: now.sum_ns.wrapping_sub(then.sum_ns),
    }
}

/// The upper bound, in microseconds, of the bucket that so many thousandths of the durations lie in or below. `None` without any,
/// or when it is above the last bound.
pub(super) fn percentile_us(timings: &Timings, permille: u64) -> Option<u64> {
    let rank = u128::from(timings.count()) * u128::from(permille);
    let mut within = 0;
    let reached = timings.buckets.iter().position(|count| {
        within += u128::from(*count) * 1_000;
        within >= rank && within > 0
    });
    reached
        .and_then(|bucket| BOUNDS_NS.get(bucket))
        .map(|bound_ns| bound_ns / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Limiter, LimiterSettings};
    use tollgate_core::plan::{Plan, Rule};
    use tollgate_store::clock::{SystemClock, monotonic};

    fn snapshot() -> Arc<PlanSnapshot> {
        let settings = LimiterSettings {
            deadline: Duration::ZERO,
            expected_replicas: 1,
            deny_cache_entries: 0,
        };
        let plans = [Plan::new("a", Rule::Unlimited)].into_iter().collect();
        Limiter::without_store(plans, settings, Arc::new(SystemClock)).snapshot()
    }

    fn sample(at: Instant, snapshot: &Arc<PlanSnapshot>, allowed: u64) -> Sample {
        let counts = PlanCounts {
            allowed,
            ..PlanCounts::default()
        };
        let durations = Timings::default();
        let store_durations = Timings::default();
        Sample {
            at,
            snapshot: snapshot.clone(),
            plans: vec![counts],
            durations,
            store_durations,
            store_errors: 0,
            unknown_plans: 0,
        }
    }

    #[test]
    fn rates_are_of_the_last_ten_seconds_and_of_the_same_plans() {
        let mut samples = Samples::default();
        let plans = snapshot();
        let start = monotonic();
        let mut add = |second: f64, plans: &Arc<PlanSnapshot>, allowed| {
            let recent = samples.add(&sample(
                start + Duration::from_secs_f64(second),
                plans,
                allowed,
            ));
            recent.map(|recent| (recent.span.as_millis(), recent.plans[0].allowed))
        };
        assert_eq!(add(0.0, &plans, 100), None);
        assert_eq!(add(0.5, &plans, 105), None, "too short for a rate");
        assert_eq!(add(1.0, &plans, 110), Some((1_000, 10)));
        for second in 2..=10 {
            assert_eq!(
                add(f64::from(second), &plans, 100 + 10 * second as u64).map(|(span, _)| span),
                Some(second as u128 * 1_000)
            );
        }
        assert_eq!(add(11.0, &plans, 300), Some((10_000, 190)));
        assert!(samples.0.len() <= 12);
        let mut add = |second: u64, plans: &Arc<PlanSnapshot>, allowed| {
            samples
                .add(&sample(start + Duration::from_secs(second), plans, allowed))
                .map(|recent| recent.plans[0].allowed)
        };
        let others = snapshot();
        assert_eq!(
            (add(12, &others, 7), add(13, &others, 9)),
            (None, Some(2)),
            "replaced plans have their own counts"
        );
        assert_eq!(
            (add(90, &others, 99), add(91, &others, 100)),
            (None, Some(1)),
            "nobody looked for a while"
        );
    }

    #[test]
    fn a_percentile_is_the_bound_of_its_bucket() {
        let mut timings = Timings::default();
        assert_eq!(percentile_us(&timings, 500), None);
        (
            timings.buckets[0],
            timings.buckets[2],
            timings.buckets[BOUNDS_NS.len()],
        ) = (90, 9, 1);
        assert_eq!(
            [500, 900, 901, 990].map(|permille| percentile_us(&timings, permille)),
            [Some(50), Some(50), Some(250), Some(250)]
        );
        assert_eq!(percentile_us(&timings, 991), None, "above the last bound");
    }
}
