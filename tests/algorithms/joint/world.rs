//! The brute force: it tries requests on a copy of the world, and takes the copy if all pass.

use super::*;

/// What is counted, and by which plans.
#[derive(Clone, Default)]
pub(super) struct World(pub(super) HashMap<(String, Key), Subject>);

/// What a request was told.
#[derive(Debug, PartialEq)]
pub(super) struct Told {
    pub(super) outcome: Outcome,
    pub(super) limits: Vec<LimitStatus>,
}

impl World {
    /// What each request is told, alone or jointly, and whether the whole passes.
    pub(super) fn decide_one_or_joint(
        &mut self,
        plans: &PlanSet,
        checks: &[Check<String>],
    ) -> (Vec<Told>, bool) {
        let [check] = checks else {
            return self.decide_joint(plans, checks);
        };
        let plan = plans.get(&check.plan).unwrap().clone();
        let told = self.decide(&plan, check, check.cost, check.mode);
        let passes = matches!(told.outcome, Outcome::Allowed | Outcome::ShadowDenied);
        (vec![told], passes)
    }

    /// Decides one request alone.
    pub(super) fn decide(
        &mut self,
        plan: &Plan,
        check: &Check<String>,
        cost: Cost,
        mode: Mode,
    ) -> Told {
        let limits = plan.limits();
        if let Some(outcome) = without_state(plan, cost) {
            return Told {
                outcome,
                limits: Vec::new(),
            };
        }
        let mut states = self.states(plan, check);
        let verdict = decide(limits, &mut states, now_us(), cost, mode);
        let name = (plan.counts_as.to_string(), check.key.clone());
        let subject = self.0.entry(name).or_default();
        for (limit, state) in limits.iter().zip(states) {
            subject.insert(limit.fingerprint().bytes().to_vec(), state);
        }
        let outcome = match (verdict.fits, plan.shadow) {
            (true, _) => Outcome::Allowed,
            (false, false) => Outcome::Denied,
            (false, true) => Outcome::ShadowDenied,
        };
        Told {
            outcome,
            limits: verdict.statuses(limits, cost).to_vec(),
        }
    }

    pub(super) fn states(&self, plan: &Plan, check: &Check<String>) -> Vec<State> {
        let name = (plan.counts_as.to_string(), check.key.clone());
        let subject = self.0.get(&name);
        let state = |limit: &Limit| {
            let fingerprint = limit.fingerprint().bytes().to_vec();
            let stored = subject.and_then(|subject| subject.get(&fingerprint));
            stored.cloned().unwrap_or_else(|| State::fresh(limit))
        };
        plan.limits().iter().map(state).collect()
    }

    /// Decides requests together.
    pub(super) fn decide_joint(
        &mut self,
        plans: &PlanSet,
        checks: &[Check<String>],
    ) -> (Vec<Told>, bool) {
        let plan = |check: &Check<String>| plans.get(&check.plan).unwrap().clone();
        let mut copy = self.clone();
        let mut told = Vec::new();
        let mut all_pass = true;
        let mut by_plan = false;
        let (is_known, charges) = known_outcomes(plans, checks);
        // Units of those before, by who is counted.
        let mut before: HashMap<(String, Key), u64> = HashMap::new();
        for (check, known) in checks.iter().zip(&is_known) {
            let plan = plan(check);
            let cost = check.cost.units();
            let name = (plan.counts_as.to_string(), check.key.clone());
            let units = before.entry(name).or_default();
            let sum = Cost::new(*units + cost).unwrap();
            let tested = match *known {
                Some(outcome) => Told {
                    outcome,
                    limits: Vec::new(),
                },
                None => self.test(&plan, check, sum),
            };
            let passes = tested.outcome == Outcome::Allowed;
            by_plan |= !passes && !plan.shadow && tested.limits.is_empty();
            // A peek among charges takes nothing from those behind it.
            if !plan.limits().is_empty() && (check.mode == Mode::Charge || !charges) {
                *units += if passes || !plan.shadow { cost } else { 0 };
            }
            all_pass &= passes || plan.shadow;
            told.push(tested);
        }
        if !all_pass {
            for (each, is_known) in told.iter_mut().zip(is_known) {
                let denies = matches!(each.outcome, Outcome::Denied | Outcome::NeverFits);
                if !denies || by_plan && is_known.is_none() {
                    each.outcome = Outcome::OtherDenied;
                    // Also where a plan in shadow mode would deny.
                    each.limits
                        .iter_mut()
                        .for_each(|limit| limit.retry_after_us = None);
                }
                if by_plan {
                    // Nobody asked the store.
                    each.limits.clear();
                }
            }
            return (told, false);
        }
        if charges {
            for (check, each) in checks.iter().zip(&mut told) {
                let plan = plan(check);
                if each.outcome == Outcome::Allowed && check.mode == Mode::Charge {
                    *each = copy.decide(&plan, check, check.cost, Mode::Charge);
                } else if !each.limits.is_empty() {
                    // In shadow mode, or a peek: what it would have been told alone, after those before it.
                    each.limits = copy.test(&plan, check, check.cost).limits;
                }
            }
            *self = copy;
        }
        (told, true)
    }

    /// What a request is told that asks for so many units, if nothing is charged.
    pub(super) fn test(&self, plan: &Plan, check: &Check<String>, sum: Cost) -> Told {
        let capacity = plan.limits().iter().map(Limit::capacity).min().unwrap();
        let cost = Cost::new(sum.units().min(capacity)).unwrap();
        let mut told = self.clone().decide(plan, check, cost, check.mode);
        if check.mode == Mode::Charge && told.outcome == Outcome::Allowed {
            // The numbers before the charge, as a charge reads them.
            let states = self.states(plan, check);
            let verdict = test(plan.limits(), &states, now_us(), cost.units(), Mode::Charge);
            told.limits = verdict.statuses(plan.limits(), cost).to_vec();
        }
        if cost != sum {
            told.outcome = without_state(plan, sum).unwrap();
            told.limits
                .iter_mut()
                .for_each(|limit| limit.retry_after_us = None);
        }
        told
    }
}
