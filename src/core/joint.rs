//! Joint decisions: several requests that all pass and are charged, or of which none is charged.
//!
//! Each request is tested with its cost and the costs of those before it that count for the same subject. So the same subject may
//! stand in it twice.

use smallvec::SmallVec;

use crate::decision::{Decision, LimitStatus, Outcome};
use crate::key::{Cost, Key};

/// Maximum number of requests of one joint decision.
pub const REQUESTS_MAX: usize = 8;

/// The units that the requests of a joint decision ask for, by who is counted: a key under a `counts_as`.
#[derive(Default)]
pub struct Sums<'a>(SmallVec<[(&'a str, &'a Key, Cost); 4]>);

impl<'a> Sums<'a> {
    /// What the next request is tested with: its cost, and the costs that were added for its subject. At most `u64::MAX`.
    pub fn tested_cost(&self, counts_as: &str, key: &Key, cost: Cost) -> Cost {
        let before = self.0.iter().find(|sum| (sum.0, sum.1) == (counts_as, key));
        let units = before.map_or(0, |(_, _, sum)| sum.units());
        Cost::new(units.saturating_add(cost.units())).unwrap_or(cost)
    }

    /// Adds the cost of a request. One under a plan in shadow mode is added only if it fits, since it is not charged otherwise.
    pub fn add(&mut self, counts_as: &'a str, key: &'a Key, cost: Cost) {
        let sum = self.tested_cost(counts_as, key, cost);
        self.0.retain(|sum| (sum.0, sum.1) != (counts_as, key));
        self.0.push((counts_as, key, sum));
    }
}

/// The decision on all requests together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JointDecision {
    /// Whether all may pass: allowed, denied or never fits.
    pub outcome: Outcome,
    /// Index of the request that binds. Of a denied whole: one that no wait helps, else the one with the longest wait. Of an allowed
    /// whole: the one whose binding limit has the least share left. Of equal ones the first.
    pub binding: usize,
    /// Time until all could pass together if nothing else happens. `None` when they may, and when no wait is known to help.
    pub retry_after_us: Option<u64>,
    /// The decision on each request, in their order.
    pub decisions: Vec<Decision>,
}

impl JointDecision {
    /// Joins at least one decision. Each says what the request was tested to be. Where one of them denies, those that could pass do
    /// not either.
    pub fn new(mut decisions: Vec<Decision>) -> Self {
        let denying = || decisions.iter().filter(|decision| !decision.allowed());
        let outcome = if denying().any(|decision| decision.outcome == Outcome::NeverFits) {
            Outcome::NeverFits
        } else if denying().next().is_some() {
            Outcome::Denied
        } else {
            Outcome::Allowed
        };
        if outcome == Outcome::Allowed {
            return Self {
                outcome,
                binding: least_share(&decisions),
                retry_after_us: None,
                decisions,
            };
        }
        let binding = longest_wait(&decisions);
        let retry_after_us = decisions[binding].key_status().retry_after_us;
        for decision in &mut decisions {
            if decision.allowed() {
                *decision = decision.clone().other_denied();
            }
        }
        Self {
            outcome,
            binding,
            retry_after_us,
            decisions,
        }
    }

    /// Whether all requests may pass.
    pub fn allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }
}

/// The request that denies longest. No wait is longer than one that does not help.
fn longest_wait(decisions: &[Decision]) -> usize {
    let wait_us = |decision: &Decision| decision.key_status().retry_after_us.unwrap_or(u64::MAX);
    let denying = decisions
        .iter()
        .enumerate()
        .filter(|(_, decision)| !decision.allowed());
    // Of equal ones, the first is the maximum of the reversed order.
    denying
        .rev()
        .max_by_key(|(_, decision)| wait_us(decision))
        .map_or(0, |(index, _)| index)
}

/// The request whose binding limit has the least share left. Requests without limits come last.
fn least_share(decisions: &[Decision]) -> usize {
    let share = |(index, decision): (usize, &Decision)| {
        let status = decision.limits().iter().zip(decision.binding()).next();
        let parts =
            |status: &LimitStatus| (u128::from(status.remaining), u128::from(status.capacity));
        status.map(|(_, status)| (index, parts(status)))
    };
    let all = decisions.iter().enumerate().filter_map(share);
    all.min_by(|(_, a), (_, b)| (a.0 * b.1).cmp(&(b.0 * a.1)))
        .map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::DecidedBy;

    fn decision(outcome: Outcome, remaining: u64, quota: u64, wait_us: Option<u64>) -> Decision {
        let status = LimitStatus {
            name: "limit".into(),
            limit: quota,
            window_us: 1_000_000,
            frees_at_once: false,
            capacity: quota,
            remaining,
            retry_after_us: wait_us,
            reset_after_us: 0,
            blocked_for_us: 0,
            begins_block: false,
            first_end_us: 0,
        };
        Decision::counted(outcome, DecidedBy::Store, [status].into_iter().collect())
    }

    fn by_plan(outcome: Outcome) -> Decision {
        Decision::uncounted(outcome, DecidedBy::Plan, None)
    }

    #[test]
    fn the_least_share_binds_where_all_pass_and_a_request_without_limits_is_last() {
        let allowed = |remaining, quota| decision(Outcome::Allowed, remaining, quota, None);
        let joint = JointDecision::new(vec![
            by_plan(Outcome::Allowed),
            allowed(2, 100),
            allowed(0, 10),
            allowed(0, 5),
        ]);
        assert_eq!(
            (joint.outcome, joint.binding, joint.retry_after_us),
            (Outcome::Allowed, 2, None)
        );
        let unlimited = JointDecision::new(vec![by_plan(Outcome::Allowed), allowed(5, 6)]);
        assert_eq!(unlimited.binding, 1);
        let fresh = JointDecision::new(vec![by_plan(Outcome::Allowed), allowed(6, 6)]);
        assert_eq!(fresh.binding, 1);
    }

    #[test]
    fn the_longest_wait_binds_where_one_denies_and_all_others_say_so() {
        let denied = |wait_us| decision(Outcome::Denied, 0, 9, wait_us);
        let joint = JointDecision::new(vec![
            decision(Outcome::Allowed, 3, 9, None),
            denied(Some(7)),
            denied(Some(8)),
            denied(Some(8)),
            decision(Outcome::ShadowDenied, 0, 9, Some(99)),
        ]);
        assert_eq!(
            (joint.outcome, joint.binding, joint.retry_after_us),
            (Outcome::Denied, 2, Some(8))
        );
        let outcomes: Vec<_> = joint.decisions.iter().map(|each| each.outcome).collect();
        assert_eq!(outcomes[1..4], [Outcome::Denied; 3]);
        assert_eq!([outcomes[0], outcomes[4]], [Outcome::OtherDenied; 2]);
        assert!(joint.decisions.iter().all(|each| !each.allowed()));
        assert_eq!(joint.decisions[4].key_status().retry_after_us, None);
    }

    #[test]
    fn what_no_wait_helps_binds_before_any_wait() {
        let never = by_plan(Outcome::NeverFits);
        let denied = decision(Outcome::Denied, 0, 9, Some(7));
        let blocked = by_plan(Outcome::Denied);
        let joint = JointDecision::new(vec![denied.clone(), blocked, never]);
        assert_eq!(
            (joint.outcome, joint.binding, joint.retry_after_us),
            (Outcome::NeverFits, 1, None)
        );
        assert!(!joint.allowed());
    }

    #[test]
    fn a_request_is_tested_with_those_before_it_of_the_same_subject() {
        let alice = Key::new("alice").unwrap();
        let bob = Key::new("bob").unwrap();
        let cost = |units| Cost::new(units).unwrap();
        let mut sums = Sums::default();
        sums.add("free", &alice, cost(3));
        sums.add("free", &alice, cost(4));
        assert_eq!(sums.tested_cost("free", &alice, cost(5)), cost(12));
        assert_eq!(sums.tested_cost("free", &bob, cost(5)), cost(5));
        assert_eq!(sums.tested_cost("paid", &alice, cost(5)), cost(5));
        assert_eq!(
            sums.tested_cost("free", &alice, cost(u64::MAX)),
            cost(u64::MAX)
        );
    }
}
