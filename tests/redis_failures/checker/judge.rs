//! Finds the violations of a history. Pure: no process, no clock.

use std::collections::BTreeMap;

use tollgate::decision::{DecidedBy, Outcome};
use tollgate::plan::{OnStoreFailure, Plan};

use super::history::{Answer, Call, History, Rule, Violation};
use super::interval::{self, Charge};
use super::{joint, overrides, serial};

pub fn check(history: &History) -> Vec<Violation> {
    let mut by_key: BTreeMap<(&str, &str), Vec<&Call>> = BTreeMap::new();
    for call in &history.calls {
        for plan in call.plans(history) {
            by_key.entry((plan, &call.key)).or_default().push(call);
        }
    }
    let decided = |call: &Call| &history.plans[call.decided_by_plan().unwrap_or(&call.plan)];
    let mut violations: Vec<Violation> = history
        .calls
        .iter()
        .filter_map(|call| policy(history, decided(call), call))
        .collect();
    violations.extend(joint::check(history));
    violations.extend(overrides::check(history));
    for ((name, _), mut calls) in by_key {
        let plan = &history.plans[name];
        calls.sort_by_key(|call| call.sent_us);
        match serial::witness(plan) {
            Some(witness) => violations.extend(serial::check(history, plan, witness, &calls)),
            None => violations.extend(stored(history, plan, &calls)),
        }
        if promised(plan.on_store_failure) == Promise::Share {
            violations.extend(local(&plan.share(history.replicas), &calls));
        }
    }
    violations
}

/// Checks who answered a call, and by what outcome, without the counts.
fn policy(history: &History, plan: &Plan, call: &Call) -> Option<Violation> {
    let answer = match &call.fate {
        Ok(answer) => answer,
        // The call was lost with its replica.
        Err(_)
            if history
                .ends_us
                .get(&call.life)
                .is_some_and(|end_us| *end_us <= call.answered_us) =>
        {
            return None;
        }
        Err(_) => return Some(Violation::new(Rule::Failed, call, "its replica lived on")),
    };
    let never_fits = plan
        .limits()
        .iter()
        .any(|limit| call.tested > limit.capacity());
    let fine = answer.allowed == (answer.outcome == Outcome::Allowed)
        && (answer.outcome == Outcome::NeverFits) == never_fits
        && (answer.outcome != Outcome::OtherDenied || call.joint.is_some())
        && may_answer(plan.on_store_failure, answer);
    (!fine).then(|| {
        Violation::new(
            Rule::Policy,
            call,
            format!("not by a plan that says {:?}", plan.on_store_failure),
        )
    })
}

fn may_answer(on_store_failure: OnStoreFailure, answer: &Answer) -> bool {
    let passes = matches!(answer.outcome, Outcome::Allowed | Outcome::OtherDenied);
    match answer.by {
        // Without the store, requests beside one that never fits have no numbers.
        DecidedBy::Plan => matches!(answer.outcome, Outcome::NeverFits | Outcome::OtherDenied),
        DecidedBy::Store => answer.outcome != Outcome::NeverFits,
        DecidedBy::DenyCache => matches!(answer.outcome, Outcome::Denied | Outcome::OtherDenied),
        by @ (DecidedBy::LocalFallback | DecidedBy::FailOpen | DecidedBy::FailClosed) => {
            match promised(on_store_failure) {
                Promise::Share => by == DecidedBy::LocalFallback,
                Promise::Everything => by == DecidedBy::FailOpen && passes,
                Promise::Nothing => by == DecidedBy::FailClosed && !answer.allowed,
            }
        }
    }
}

/// What a policy grants while the store cannot decide.
#[derive(PartialEq, Eq)]
enum Promise {
    /// This replica's share of the quota.
    Share,
    Everything,
    Nothing,
}

/// What docs/failures.md promises of each policy. What the policies state of themselves is judged here, so it is not asked.
fn promised(policy: OnStoreFailure) -> Promise {
    match policy {
        OnStoreFailure::Local => Promise::Share,
        OnStoreFailure::Allow => Promise::Everything,
        OnStoreFailure::Deny => Promise::Nothing,
    }
}

/// Checks the store's decisions on a key of a plan without a witness, and the remembered denials of that key.
fn stored(history: &History, plan: &Plan, calls: &[&Call]) -> Vec<Violation> {
    let sure = |call: &Call| call.granted_by(DecidedBy::Store);
    let charges: Vec<Charge<'_>> = calls
        .iter()
        .filter(|call| sure(call) || call.may_be_charged())
        .map(|call| Charge {
            call,
            sure: sure(call),
        })
        .collect();
    let denied =
        |call: &Call| call.denied_by(DecidedBy::Store) || call.denied_by(DecidedBy::DenyCache);
    let mut violations = bounds(history, plan, &charges, calls, denied);
    // Readings are checked so only for plans of one limit.
    if let [limit] = plan.limits() {
        violations.extend(calls.iter().filter_map(|call| {
            let why = interval::forgotten(history, limit, &charges, call)?;
            Some(Violation::new(Rule::Reading, call, why))
        }));
    }
    violations
}

/// Checks the decisions that replicas made on their own. From its start to its end, each grants at most its share, and denies
/// only once that is used up.
fn local(share: &Plan, calls: &[&Call]) -> Vec<Violation> {
    let mut by_life: BTreeMap<usize, Vec<&Call>> = BTreeMap::new();
    for call in calls {
        by_life.entry(call.life).or_default().push(call);
    }
    let of_life = |calls: Vec<&Call>| {
        let sure = |call: &Call| call.granted_by(DecidedBy::LocalFallback);
        let charges: Vec<Charge<'_>> = calls
            .iter()
            .filter(|call| sure(call) || call.fate.is_err())
            .map(|call| Charge {
                call,
                sure: sure(call),
            })
            .collect();
        // A replica's own counts are not lost when Redis loses its data.
        let alone = History::default();
        let fits = |call: &Call| {
            share
                .limits()
                .iter()
                .all(|limit| call.tested <= limit.capacity())
        };
        bounds(&alone, share, &charges, &calls, |call| {
            call.denied_by(DecidedBy::LocalFallback) && fits(call)
        })
    };
    by_life.into_values().flat_map(of_life).collect()
}

fn bounds(
    history: &History,
    plan: &Plan,
    charges: &[Charge<'_>],
    calls: &[&Call],
    denied: impl Fn(&Call) -> bool,
) -> Vec<Violation> {
    let over = plan.limits().iter().filter_map(|limit| {
        let why = interval::over(history, limit, charges)?;
        Some(Violation::new(
            Rule::OverLimit,
            charges[0].call,
            format!("{} from this on: {why}", limit.name()),
        ))
    });
    let fits = |call: &Call| {
        !plan
            .limits()
            .iter()
            .any(|limit| interval::may_deny(limit, charges, call))
    };
    let causeless = calls.iter().filter(|call| denied(call) && fits(call));
    over.chain(
        causeless.map(|call| Violation::new(Rule::NoCause, call, "it fits, however the order was")),
    )
    .collect()
}
