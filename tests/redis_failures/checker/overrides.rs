//! Checks which plan decided each call of a plan that has an override: that of the last change, or of one before it for a second.

use std::collections::BTreeMap;

use super::history::{Call, Change, History, Rule, Violation};

/// Longest after its answer that a change is not in force on a replica that has no fault.
const IN_FORCE_US: u64 = 1_000_000;
/// Longest after a fault: a reading that waits on a connection which the fault has killed first takes the second that it has.
const AFTER_FAULT_US: u64 = 2_000_000;
/// How much later a busy machine may be: this, or a replica, was not given a processor.
const BUSY_US: u64 = 300_000;

pub fn check(history: &History) -> Vec<Violation> {
    let mut by_life: BTreeMap<(&str, usize), Vec<&Call>> = BTreeMap::new();
    for call in &history.calls {
        by_life
            .entry((&call.plan, call.life))
            .or_default()
            .push(call);
    }
    let of_life = |((plan, _), calls): ((&str, usize), Vec<&Call>)| {
        let changes = history.changes.iter().filter(|change| change.plan == plan);
        of_life(history, &changes.collect::<Vec<_>>(), calls)
    };
    by_life.into_iter().flat_map(of_life).collect()
}

/// Checks the calls that one replica answered. The state of the override has a number: how many changes were made.
fn of_life(history: &History, changes: &[&Change], mut calls: Vec<&Call>) -> Vec<Violation> {
    calls.retain(|call| call.fate.is_ok());
    calls.sort_by_key(|call| call.sent_us);
    // Calls so far, by their answer, with the least state that each shows.
    let mut shown: Vec<(u64, usize)> = Vec::new();
    let mut violations = Vec::new();
    for call in calls {
        let before = shown
            .iter()
            .filter(|(answered_us, _)| *answered_us < call.sent_us);
        let least = before.map(|(_, state)| *state).max().unwrap_or(0);
        let due = |index: &usize| is_due(history, changes[*index], call);
        let due = (0..changes.len())
            .rev()
            .find(due)
            .map_or(0, |index| index + 1);
        let made = changes
            .iter()
            .filter(|change| change.sent_us <= call.answered_us)
            .count();
        let plan = |state: usize| match state {
            0 => call.plan.as_str(),
            state => changes[state - 1].use_plan.as_deref().unwrap_or(&call.plan),
        };
        let shows = |state: &usize| Some(plan(*state)) == call.decided_by_plan();
        match (least.max(due)..=made).find(shows) {
            Some(state) => shown.push((call.answered_us, state)),
            None => {
                let why = format!("of {made} changes it knew {least}, and {due} were due");
                violations.push(Violation::new(Rule::Override, call, why));
            }
        }
    }
    violations
}

/// Whether the change must be in force where this call was decided.
fn is_due(history: &History, change: &Change, call: &Call) -> bool {
    let Some(answered_us) = change.answered_us else {
        return false;
    };
    if change.life == call.life {
        return answered_us < call.sent_us;
    }
    // Redis may lose what it confirmed in the last second.
    if history.lost_within(change.sent_us, answered_us + IN_FORCE_US) {
        return false;
    }
    let mut due_us = answered_us + IN_FORCE_US + BUSY_US;
    for (from_us, to_us) in &history.faults {
        let well_us = to_us + AFTER_FAULT_US + BUSY_US;
        if *from_us < due_us && well_us > due_us {
            due_us = well_us;
        }
    }
    due_us < call.sent_us
}
