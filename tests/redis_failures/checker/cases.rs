//! Histories made by hand: one for each way to break a promise, which the checker must catch, beside one that keeps it.

mod together;

use tollgate::decision::{DecidedBy, Outcome};
use tollgate::plan::{Algorithm, Plan};

use super::deployment;
use super::history::{Answer, Call, History, Loss, Rule, Status};
use super::judge;
use crate::support::plans::FIXED;

/// At the begin of a window of every length that is used here.
const T: u64 = 1_800_000_000_000_000;
const MS: u64 = 1_000;
/// How long each call takes, around its decision.
const AROUND_US: u64 = 200;

/// A history of one key of one plan, call by call.
struct Case {
    history: History,
    plan: &'static str,
}

impl Case {
    fn of(plan: &'static str) -> Self {
        Self {
            history: History {
                plans: deployment::plans(),
                replicas: 3,
                ..History::default()
            },
            plan,
        }
    }

    fn call(mut self, at_ms: u64, cost: u64, fate: Result<Answer, String>) -> Self {
        let at_us = T + at_ms * MS;
        let batch = self.history.calls.len();
        let sent_us = at_us - AROUND_US;
        let answered_us = at_us + AROUND_US;
        let key = "key".to_owned();
        let plan = self.plan.to_owned();
        self.history.calls.push(Call {
            key,
            plan,
            cost,
            tested: cost,
            joint: None,
            life: 1,
            batch,
            index: 0,
            sent_us,
            answered_us,
            fate,
        });
        self
    }

    /// By the store, whose readings are these: what remains, milliseconds to wait and until the key is as fresh.
    fn allowed(self, at_ms: u64, cost: u64, readings: &[(u64, u64, u64)]) -> Self {
        self.call(
            at_ms,
            cost,
            Ok(answer(Outcome::Allowed, DecidedBy::Store, readings)),
        )
    }

    fn denied(self, at_ms: u64, cost: u64, readings: &[(u64, u64, u64)]) -> Self {
        self.call(
            at_ms,
            cost,
            Ok(answer(Outcome::Denied, DecidedBy::Store, readings)),
        )
    }

    fn decided(self, by: DecidedBy, outcome: Outcome, at_ms: u64, cost: u64) -> Self {
        self.call(at_ms, cost, Ok(answer(outcome, by, &[])))
    }

    fn lost(self, at_ms: u64, cost: u64) -> Self {
        let mut lost = self.call(at_ms, cost, Err("Unavailable".to_owned()));
        lost.history.ends_us.insert(1, T + at_ms * MS);
        lost
    }

    /// The last call, in the batch of the one before it.
    fn in_one_batch(mut self) -> Self {
        let last = self.history.calls.len() - 1;
        self.history.calls[last].batch = self.history.calls[last - 1].batch;
        self.history.calls[last].index = self.history.calls[last - 1].index + 1;
        self
    }

    /// The last call, with another begin and end.
    fn between(mut self, sent_ms: u64, answered_ms: u64) -> Self {
        let last = self.history.calls.last_mut().unwrap();
        (last.sent_us, last.answered_us) = (T + sent_ms * MS, T + answered_ms * MS);
        self
    }

    fn redis_lost_all(mut self, from_ms: u64, to_ms: u64) -> Self {
        self.history.losses.push(Loss {
            from_us: T + from_ms * MS,
            to_us: T + to_ms * MS,
        });
        self
    }

    fn assert_fine(&self) {
        assert_eq!(judge::check(&self.history), []);
    }

    fn assert_breaks(self, rule: Rule) {
        let mut broken: Vec<Rule> = judge::check(&self.history)
            .into_iter()
            .map(|found| found.rule)
            .collect();
        broken.sort();
        broken.dedup();
        assert_eq!(broken, [rule], "{:?}", judge::check(&self.history));
    }
}

fn answer(outcome: Outcome, by: DecidedBy, readings: &[(u64, u64, u64)]) -> Answer {
    let status = |(remaining, retry_ms, reset_ms): &(u64, u64, u64)| Status {
        remaining: *remaining,
        retry_us: (*retry_ms > 0).then_some(retry_ms * MS),
        reset_us: reset_ms * MS,
    };
    Answer {
        allowed: outcome == Outcome::Allowed,
        outcome,
        by,
        plan: None,
        retry_us: readings
            .iter()
            .map(|(_, retry_ms, _)| retry_ms * MS)
            .max()
            .filter(|wait_us| *wait_us > 0),
        limits: readings.iter().map(status).collect(),
    }
}

/// What the witness says at that time when so many units were charged, those of the decision included.
fn witnessed(at_ms: u64, charged: u64) -> (u64, u64, u64) {
    let window_us = 366 * 24 * 3600 * 1_000_000;
    (
        1_000_000_000_000 - charged,
        0,
        (window_us - (T + at_ms * MS) % window_us) / MS,
    )
}

/// `clock`, 9 units in 400 ms, is its own witness.
fn clock() -> Case {
    Case::of("clock")
        .allowed(10, 3, &[(6, 0, 390)])
        .allowed(20, 3, &[(3, 0, 380)])
}

/// `seen/log`, 9 units in 400 ms, beside a witness.
fn seen() -> Case {
    Case::of("seen/log")
        .allowed(10, 6, &[(3, 0, 400), witnessed(10, 6)])
        .denied(20, 4, &[(3, 390, 390), witnessed(20, 6)])
        .allowed(30, 3, &[(0, 0, 400), witnessed(30, 9)])
}

#[test]
fn histories_that_keep_every_promise_are_fine() {
    clock()
        .allowed(30, 3, &[(0, 0, 370)])
        .denied(40, 1, &[(0, 360, 360)])
        .allowed(400, 9, &[(0, 0, 400)])
        .assert_fine();
    seen()
        .denied(409, 1, &[(0, 1, 21), witnessed(409, 9)])
        .allowed(410, 6, &[(0, 0, 400), witnessed(410, 15)])
        .assert_fine();
    Case::of("seen/bucket")
        .allowed(0, 7, &[(0, 0, 350), witnessed(0, 7)])
        .denied(49, 1, &[(0, 1, 301), witnessed(49, 7)])
        .allowed(50, 1, &[(0, 0, 350), witnessed(50, 8)])
        .assert_fine();
    Case::of("seen/anchored")
        .allowed(10, 9, &[(0, 0, 400), witnessed(10, 9)])
        .denied(409, 1, &[(0, 1, 1), witnessed(409, 9)])
        .allowed(410, 1, &[(8, 0, 400), witnessed(410, 10)])
        .assert_fine();
    Case::of("window")
        .allowed(10, 9, &[(0, 0, 400)])
        .denied(20, 1, &[(0, 390, 390)])
        .allowed(410, 9, &[(0, 0, 400)])
        .assert_fine();
}

#[test]
fn a_grant_above_the_limit_is_caught_where_the_order_is_known() {
    clock()
        .allowed(30, 4, &[(0, 0, 370)])
        .assert_breaks(Rule::Order);
    let over = Case::of("seen/log").allowed(10, 6, &[(3, 0, 400), witnessed(10, 6)]);
    over.allowed(20, 4, &[(0, 0, 400), witnessed(20, 10)])
        .assert_breaks(Rule::OverLimit);
    let early = Case::of("seen/bucket").allowed(0, 7, &[(0, 0, 350), witnessed(0, 7)]);
    early
        .allowed(49, 1, &[(0, 0, 351), witnessed(49, 8)])
        .assert_breaks(Rule::OverLimit);
}

#[test]
fn a_grant_above_the_limit_is_caught_by_question_and_answer_times() {
    let over = |at_ms| {
        Case::of("window")
            .allowed(10, 9, &[(0, 0, 400)])
            .allowed(at_ms, 9, &[(0, 0, 400)])
    };
    over(409).assert_breaks_also(Rule::OverLimit);
    over(410).assert_fine();
    // It may have been decided late enough.
    over(409).between(408, 420).assert_fine();
    let bucket = |at_ms| {
        Case::of("bucket")
            .allowed(10, 7, &[(0, 0, 350)])
            .allowed(at_ms, 1, &[(0, 0, 350)])
    };
    bucket(59).assert_breaks(Rule::OverLimit);
    bucket(60).assert_fine();
}

impl Case {
    /// Several rules may be broken at once.
    fn assert_breaks_also(self, rule: Rule) {
        let broken = judge::check(&self.history);
        assert!(broken.iter().any(|found| found.rule == rule), "{broken:?}");
    }
}

#[test]
fn a_denial_without_a_cause_is_caught() {
    clock()
        .denied(30, 3, &[(3, 370, 370)])
        .assert_breaks_also(Rule::NoCause);
    seen()
        .denied(410, 6, &[(6, 20, 20), witnessed(410, 9)])
        .assert_breaks_also(Rule::NoCause);
    let log = |at_ms| {
        Case::of("window")
            .allowed(10, 9, &[(0, 0, 400)])
            .denied(at_ms, 1, &[(0, 1, 1)])
    };
    log(409).assert_fine();
    // The precision of 64 could free a unit 6.25 ms late.
    log(418).assert_breaks(Rule::NoCause);
    Case::of("bucket")
        .allowed(0, 7, &[(0, 0, 350)])
        .denied(51, 1, &[(0, 1, 1)])
        .assert_breaks(Rule::NoCause);
    Case::of("bucket")
        .allowed(0, 7, &[(0, 0, 350)])
        .denied(49, 1, &[(0, 1, 1)])
        .assert_fine();
}

#[test]
fn a_remembered_denial_is_fine_until_its_release() {
    let denied = |at_ms| seen().decided(DecidedBy::DenyCache, Outcome::Denied, at_ms, 1);
    denied(35).assert_fine();
    denied(409).assert_fine();
    denied(411).assert_breaks(Rule::NoCause);
    denied(25).assert_breaks(Rule::NoCause);
    denied(411).between(409, 500).assert_fine();
}

#[test]
fn a_replica_may_remember_a_denial_for_a_second_after_redis_lost_it() {
    let lost = |at_ms| {
        let full = Case::of("seen/bucket").allowed(0, 7, &[(0, 0, 350), witnessed(0, 7)]);
        full.redis_lost_all(5, 10)
            .decided(DecidedBy::DenyCache, Outcome::Denied, at_ms, 1)
    };
    lost(40).assert_fine();
    lost(51).assert_breaks(Rule::NoCause);
    let log = |at_ms| {
        Case::of("log")
            .allowed(0, 12, &[(0, 0, 500)])
            .redis_lost_all(5, 10)
            .allowed(at_ms, 12, &[(0, 0, 500)])
    };
    log(20).assert_fine();
}

#[test]
fn units_that_are_counted_twice_or_not_at_all_are_caught() {
    // Two that were told the same place.
    clock()
        .allowed(30, 3, &[(3, 0, 370)])
        .assert_breaks(Rule::Order);
    // Three units that were charged and granted to no call.
    clock()
        .allowed(30, 1, &[(0, 0, 370)])
        .assert_breaks(Rule::Order);
    // The second was not charged.
    Case::of("window")
        .allowed(10, 3, &[(6, 0, 400)])
        .allowed(20, 3, &[(6, 0, 400)])
        .assert_breaks(Rule::Reading);
    let anchored =
        Case::of("anchored")
            .allowed(10, 3, &[(6, 0, 400)])
            .allowed(15, 3, &[(3, 0, 395)]);
    anchored
        .allowed(20, 3, &[(7, 0, 390)])
        .assert_breaks(Rule::Reading);
}

#[test]
fn a_call_whose_answer_was_lost_is_counted_both_ways() {
    let with = |cost| clock().lost(25, cost);
    with(2).allowed(30, 1, &[(0, 0, 370)]).assert_fine();
    with(2).allowed(30, 3, &[(0, 0, 370)]).assert_fine();
    with(2)
        .allowed(30, 2, &[(0, 0, 370)])
        .assert_breaks(Rule::Order);
    let timed_out = clock().decided(DecidedBy::LocalFallback, Outcome::Allowed, 25, 2);
    timed_out.allowed(30, 1, &[(0, 0, 370)]).assert_fine();
    let log = Case::of("window").allowed(10, 6, &[(3, 0, 400)]);
    log.lost(20, 3)
        .denied(30, 1, &[(0, 380, 390)])
        .assert_fine();
    // Sent too late to be a cause.
    let log = Case::of("window").allowed(10, 6, &[(3, 0, 400)]);
    log.denied(30, 1, &[(0, 380, 390)])
        .lost(40, 3)
        .assert_breaks(Rule::NoCause);
}

#[test]
fn numbers_that_are_not_the_keys_are_caught() {
    let denied = |wait, reset| seen().denied(40, 1, &[(0, wait, reset), witnessed(40, 9)]);
    denied(370, 390).assert_fine();
    denied(369, 390).assert_breaks(Rule::Reading);
    denied(371, 390).assert_breaks(Rule::Reading);
    denied(370, 400).assert_breaks(Rule::Reading);
    seen()
        .denied(40, 1, &[(1, 370, 390), witnessed(40, 9)])
        .assert_breaks(Rule::Reading);
    // A window that starts anew with each request.
    let anchored = Case::of("seen/anchored").allowed(10, 3, &[(6, 0, 400), witnessed(10, 3)]);
    anchored
        .allowed(20, 3, &[(3, 0, 400), witnessed(20, 6)])
        .assert_breaks(Rule::Reading);
}

#[test]
fn a_decision_outside_its_call_is_caught() {
    clock()
        .allowed(30, 3, &[(0, 0, 360)])
        .assert_breaks(Rule::Time);
    seen()
        .denied(40, 1, &[(0, 370, 390), witnessed(39, 9)])
        .assert_breaks(Rule::Time);
}

#[test]
fn a_batch_that_is_decided_backwards_is_caught() {
    let batch = |first: u64, second: u64| {
        let one = Case::of("clock").allowed(10, 1, &[(9 - first, 0, 390)]);
        one.allowed(10, 1, &[(9 - second, 0, 390)]).in_one_batch()
    };
    batch(1, 2).assert_fine();
    batch(2, 1).assert_breaks(Rule::Order);
}

#[test]
fn answers_that_the_policy_does_not_give_are_caught() {
    let by = |plan, by, outcome| Case::of(plan).decided(by, outcome, 10, 1);
    by("log", DecidedBy::FailOpen, Outcome::Allowed).assert_fine();
    by("counter", DecidedBy::FailClosed, Outcome::Denied).assert_fine();
    by("window", DecidedBy::LocalFallback, Outcome::Allowed).assert_fine();
    by("counter", DecidedBy::FailOpen, Outcome::Allowed).assert_breaks(Rule::Policy);
    by("window", DecidedBy::FailOpen, Outcome::Allowed).assert_breaks(Rule::Policy);
    by("log", DecidedBy::LocalFallback, Outcome::Allowed).assert_breaks(Rule::Policy);
    by("counter", DecidedBy::FailClosed, Outcome::Allowed).assert_breaks(Rule::Policy);
    Case::of("window")
        .decided(DecidedBy::Plan, Outcome::NeverFits, 10, 99)
        .assert_fine();
    Case::of("window")
        .decided(DecidedBy::Plan, Outcome::NeverFits, 10, 1)
        .assert_breaks(Rule::Policy);
}

#[test]
fn a_replica_that_grants_more_than_its_share_or_less_is_caught() {
    // A third of 9 units in 400 ms.
    let local = |at_ms, outcome| {
        Case::of("window")
            .decided(DecidedBy::LocalFallback, Outcome::Allowed, 10, 3)
            .decided(DecidedBy::LocalFallback, outcome, at_ms, 1)
    };
    local(20, Outcome::Denied).assert_fine();
    local(20, Outcome::Allowed).assert_breaks(Rule::OverLimit);
    local(411, Outcome::Allowed).assert_fine();
    local(420, Outcome::Denied).assert_breaks(Rule::NoCause);
}

#[test]
fn a_call_that_fails_while_its_replica_lives_is_caught() {
    clock().lost(30, 1).assert_fine();
    clock()
        .call(30, 1, Err("Unavailable".to_owned()))
        .assert_breaks(Rule::Failed);
}

#[test]
fn the_plans_that_runs_use_have_each_algorithm_alone_and_beside_a_witness() {
    let plans = deployment::plans();
    for algorithm in Algorithm::EVERY {
        let is_of = |plan: &&Plan| {
            let own = plan.limits()[0].algorithm();
            match algorithm {
                Algorithm::FixedWindow { .. } => own == algorithm,
                _ => own.name() == algorithm.name(),
            }
        };
        let alone = |plan: &Plan| plan.limits().len() == 1;
        let has_witness = |plan: &Plan| super::serial::witness(plan).is_some();
        assert!(plans.values().filter(is_of).any(alone), "{algorithm:?}");
        // It is the witness itself.
        assert!(
            algorithm == FIXED || plans.values().filter(is_of).any(has_witness),
            "{algorithm:?} beside a witness"
        );
    }
}
