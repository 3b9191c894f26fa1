//! The checker: three replicas on one Redis go through every fault, in an order that a seed decides. Every decision that a caller
//! received is then compared with what it must have been.
//!
//! `deployment` and `load` make a history, and `judge` finds its violations. Where the order of the store's decisions is known,
//! `serial` compares each with `model`. Elsewhere `interval` checks what the times of calls prove. `joint` checks that the requests
//! of a joint decision were decided as one, and `overrides` which plan decided. `cases` are histories made by hand; they show that
//! violations are found. CONTRIBUTING.md tells how to run more seeds, and a soak.

mod cases;
mod deployment;
mod history;
mod interval;
mod joint;
mod judge;
mod load;
mod model;
mod overrides;
mod serial;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tollgate::decision::{DecidedBy, Outcome};

use history::{Call, History, Violation};

/// Violations that a failure prints; there are often many of one cause.
const PRINTED: usize = 5;

#[test]
fn seed_1_breaks_no_promise() {
    run(1);
}

#[test]
fn seed_2_breaks_no_promise() {
    run(2);
}

#[test]
#[ignore = "minutes: TOLLGATE_CHECKER_SEED=7 runs one seed, …_SEEDS=20 those up to it (the default), …_MINUTES=30 ever new ones"]
fn more_seeds_break_no_promise() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().unwrap())
    };
    if let Some(seed) = number("TOLLGATE_CHECKER_SEED") {
        return run(seed);
    }
    if let Some(minutes) = number("TOLLGATE_CHECKER_MINUTES") {
        let began = Instant::now();
        let first = load::now_us() / 1_000_000;
        return (first..)
            .take_while(|_| began.elapsed() < Duration::from_secs(60 * minutes))
            .for_each(run);
    }
    (1..=number("TOLLGATE_CHECKER_SEEDS").unwrap_or(20)).for_each(run);
}

fn run(seed: u64) {
    // The same seed repeats the schedule, but not the interleaving of processes. A rare violation may need several runs.
    println!(
        "seed {seed}; again: TOLLGATE_CHECKER_SEED={seed} cargo test --locked checker::more -- --ignored --nocapture"
    );
    let (history, schedule) = deployment::run(seed);
    let violations = judge::check(&history);
    println!("seed {seed}: {}", summary(&history));
    for (by, denied) in [
        (DecidedBy::Store, false),
        (DecidedBy::Store, true),
        (DecidedBy::DenyCache, true),
    ] {
        let seen = |call: &&Call| {
            if denied {
                call.denied_by(by)
            } else {
                call.granted_by(by)
            }
        };
        assert!(
            history.calls.iter().any(|call| seen(&call)),
            "nothing was seen of {by:?}, denied: {denied}"
        );
    }
    assert_joint_and_overridden(&history);
    if !violations.is_empty() {
        let kept = keep(seed, &history, &schedule, &violations);
        let mut by_rule: BTreeMap<_, usize> = BTreeMap::new();
        violations
            .iter()
            .for_each(|found| *by_rule.entry(found.rule).or_default() += 1);
        let first: Vec<String> = violations
            .iter()
            .take(PRINTED)
            .map(|found| format!("{:?}: {}", found.rule, found.what))
            .collect();
        panic!(
            "seed {seed}: violations {by_rule:?}; all of them and the history are in {kept}\n{}",
            first.join("\n")
        );
    }
}

/// Asserts that the history has joint decisions of each kind, and calls decided by each state of the override.
fn assert_joint_and_overridden(history: &History) {
    let answered = || history.calls.iter().filter(|call| call.stored().is_some());
    for outcome in [Outcome::Allowed, Outcome::Denied, Outcome::OtherDenied] {
        let is_one = |call: &Call| {
            call.stored()
                .is_some_and(|answer| answer.outcome == outcome)
        };
        let number = answered()
            .filter(|call| call.joint.is_some() && is_one(call))
            .count();
        assert!(
            number > 20,
            "{number} requests of joint decisions are {outcome:?}"
        );
        let twice = answered()
            .filter(|call| call.tested > call.cost && is_one(call))
            .count();
        assert!(
            twice > 0,
            "no count stood twice in a joint decision that is {outcome:?}"
        );
    }
    for name in history
        .changes
        .iter()
        .map(|change| change.use_plan.as_deref())
    {
        let name = name.unwrap_or(deployment::OVERRIDDEN_PLAN);
        let is_one = |call: &&Call| {
            call.plan == deployment::OVERRIDDEN_PLAN && call.decided_by_plan() == Some(name)
        };
        assert!(
            answered().any(|call| is_one(&call)),
            "no call was decided by {name}"
        );
    }
}

fn summary(history: &History) -> String {
    let count =
        |keep: &dyn Fn(&Call) -> bool| history.calls.iter().filter(|call| keep(call)).count();
    let by = DecidedBy::ALL.map(|by| {
        let granted = count(&|call| call.granted_by(by));
        format!(
            "{} {granted} + {}",
            by.as_str(),
            count(&|call| call.denied_by(by))
        )
    });
    let failed = count(&|call| call.fate.is_err());
    format!(
        "{} calls, {failed} lost, {} of joint decisions; {} changes of overrides; granted + denied by {}",
        history.calls.len(),
        count(&|call| call.joint.is_some()),
        history.changes.len(),
        by.join(", ")
    )
}

/// Writes the history, the schedule and the violations to a file. Returns its path.
fn keep(seed: u64, history: &History, schedule: &[String], violations: &[Violation]) -> String {
    let path = format!("{}/checker-seed-{seed}.txt", env!("CARGO_TARGET_TMPDIR"));
    let mut calls = history.calls.clone();
    calls.sort_by(|a, b| (&a.plan, &a.key, a.sent_us).cmp(&(&b.plan, &b.key, b.sent_us)));
    let head = format!(
        "{schedule:#?}\n{:#?}\n{:#?}\n{:#?}\n{violations:#?}\n",
        history.losses, history.ends_us, history.changes
    );
    let lines: Vec<String> = calls.iter().map(|call| format!("{call:?}")).collect();
    std::fs::write(&path, head + &lines.join("\n")).unwrap();
    path
}
