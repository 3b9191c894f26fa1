//! Checks that the requests of each joint decision were decided as one: all of them or none, at one instant.
//!
//! What each of them was told, and that none was charged where one was denied, the checks of its key find out.

use std::collections::BTreeMap;

use tollgate::decision::Outcome;

use super::history::{Answer, Call, History, Rule, Violation, Whole};
use super::serial;

pub fn check(history: &History) -> Vec<Violation> {
    let mut by_batch: BTreeMap<usize, Vec<&Call>> = BTreeMap::new();
    for call in history.calls.iter().filter(|call| call.joint.is_some()) {
        by_batch.entry(call.batch).or_default().push(call);
    }
    let broken = |calls: Vec<&Call>| {
        let why = broken(history, &calls)?;
        Some(Violation::new(Rule::Joint, calls[0], why))
    };
    by_batch.into_values().filter_map(broken).collect()
}

/// Why these requests were not decided as one; `None` if they were.
fn broken(history: &History, calls: &[&Call]) -> Option<&'static str> {
    let answers: Vec<&Answer> = calls
        .iter()
        .filter_map(|call| call.fate.as_ref().ok())
        .collect();
    let whole = calls[0].joint.flatten();
    if answers.len() != if whole.is_some() { calls.len() } else { 0 } {
        return Some("some of its requests have no answer");
    }
    let whole = whole?;
    let allowed = answers.iter().filter(|answer| answer.allowed).count();
    if allowed != if whole.allowed { calls.len() } else { 0 } {
        return Some("some of its requests may pass, others may not");
    }
    if outcome(&answers) != Some(whole.outcome) {
        return Some("the outcome of the whole is not that of its requests");
    }
    if whole.retry_us != retry_us(&whole, &answers) {
        return Some("the wait of the whole is not the longest of its requests");
    }
    let mut instants = calls
        .iter()
        .filter_map(|call| serial::decided_at_us(history, call));
    let first = instants.next();
    instants
        .any(|instant| Some(instant) != first)
        .then_some("its requests were decided at several instants")
}

/// What the whole must say; `None` if no request has a reason of its own to be denied.
fn outcome(answers: &[&Answer]) -> Option<Outcome> {
    let some = |outcome| answers.iter().any(|answer| answer.outcome == outcome);
    if some(Outcome::NeverFits) {
        Some(Outcome::NeverFits)
    } else if some(Outcome::Denied) {
        Some(Outcome::Denied)
    } else {
        (!some(Outcome::OtherDenied)).then_some(Outcome::Allowed)
    }
}

/// The longest wait of the requests that are denied themselves; none if one of them has none. Of a request, that of all its limits.
fn retry_us(whole: &Whole, answers: &[&Answer]) -> Option<u64> {
    if whole.outcome != Outcome::Denied {
        return None;
    }
    let denied = answers
        .iter()
        .filter(|answer| answer.outcome == Outcome::Denied);
    let waits: Option<Vec<u64>> = denied.map(|answer| answer.retry_us).collect();
    waits?.into_iter().max()
}
