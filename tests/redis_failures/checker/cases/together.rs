//! Histories of joint decisions, and of a plan with an override.

use super::*;
use crate::redis_failures::checker::history::{Change, Whole};

impl Case {
    /// The last call, of another key.
    fn of_key(mut self, key: &str) -> Self {
        self.history.calls.last_mut().unwrap().key = key.to_owned();
        self
    }

    /// The last two calls, in one joint decision.
    fn jointly(mut self) -> Self {
        let first = self.history.calls.len() - 2;
        let batch = self.history.calls[first].batch;
        let pair = &mut self.history.calls[first..];
        let answers: Vec<Answer> = pair.iter().map(|call| call.fate.clone().unwrap()).collect();
        let allowed = answers.iter().any(|answer| answer.allowed);
        let outcome = if allowed {
            Outcome::Allowed
        } else {
            Outcome::Denied
        };
        let whole = Whole {
            allowed,
            outcome,
            retry_us: answers.iter().filter_map(|answer| answer.retry_us).max(),
        };
        if pair[0].key == pair[1].key {
            pair[1].tested += pair[0].cost;
        }
        for (index, call) in pair.iter_mut().enumerate() {
            (call.batch, call.index, call.joint) = (batch, index, Some(Some(whole)));
        }
        self
    }

    /// The whole of the last joint decision says this instead.
    fn whole(mut self, whole: Whole) -> Self {
        let calls = self.history.calls.iter_mut().rev().take(2);
        calls.for_each(|call| call.joint = Some(Some(whole)));
        self
    }

    fn other_denied(self, at_ms: u64, cost: u64, readings: &[(u64, u64, u64)]) -> Self {
        self.call(
            at_ms,
            cost,
            Ok(answer(Outcome::OtherDenied, DecidedBy::Store, readings)),
        )
    }

    /// The last call was decided by this plan.
    fn by_plan(mut self, plan: &str) -> Self {
        let last = self.history.calls.last_mut().unwrap();
        last.fate.as_mut().unwrap().plan = Some(plan.to_owned());
        self
    }

    /// By another replica than those of calls.
    fn changed(self, sent_ms: u64, answered_ms: Option<u64>, use_plan: Option<&str>) -> Self {
        self.changed_by(2, sent_ms, answered_ms, use_plan)
    }

    fn changed_by(
        mut self,
        life: usize,
        sent_ms: u64,
        answered_ms: Option<u64>,
        use_plan: Option<&str>,
    ) -> Self {
        self.history.changes.push(Change {
            plan: self.plan.to_owned(),
            use_plan: use_plan.map(str::to_owned),
            life,
            sent_us: T + sent_ms * MS,
            answered_us: answered_ms.map(|at_ms| T + at_ms * MS),
        });
        self
    }

    fn fault(mut self, from_ms: u64, to_ms: u64) -> Self {
        self.history.faults.push((T + from_ms * MS, T + to_ms * MS));
        self
    }
}

/// 9 units in 400 ms each: 6 of one key and 3 of another are charged together.
fn both_charged() -> Case {
    Case::of("seen/log")
        .allowed(10, 6, &[(3, 0, 400), witnessed(10, 6)])
        .allowed(10, 3, &[(6, 0, 400), witnessed(10, 3)])
        .of_key("other")
        .jointly()
}

/// The first is denied, so the other is, too.
fn both_denied() -> Case {
    both_charged()
        .denied(20, 4, &[(3, 390, 390), witnessed(20, 6)])
        .other_denied(20, 1, &[(6, 0, 390), witnessed(20, 3)])
        .of_key("other")
        .jointly()
}

#[test]
fn joint_decisions_that_keep_their_promise_are_fine() {
    both_charged().assert_fine();
    both_denied().assert_fine();
    let next = both_denied().allowed(30, 1, &[(5, 0, 400), witnessed(30, 4)]);
    next.of_key("other").assert_fine();
    // A count that stands twice adds up.
    clock_twice(10, 4, 2).assert_fine();
    let over = Case::of("seen/log")
        .allowed(10, 6, &[(3, 0, 400), witnessed(10, 6)])
        .other_denied(20, 2, &[(3, 0, 390), witnessed(20, 6)])
        .denied(20, 2, &[(3, 390, 390), witnessed(20, 6)]);
    over.jointly().assert_fine();
}

/// Two requests of one key: 3 units, and so many that this remains of 9 after each.
fn clock_twice(at_ms: u64, cost: u64, left: u64) -> Case {
    Case::of("clock")
        .allowed(at_ms, 3, &[(6, 0, 400 - at_ms)])
        .allowed(at_ms, cost, &[(left, 0, 400 - at_ms)])
        .jointly()
}

#[test]
fn one_charged_of_two_is_caught() {
    // The other's units were not charged.
    let next = both_charged().allowed(30, 1, &[(8, 0, 400), witnessed(30, 1)]);
    next.of_key("other").assert_breaks(Rule::Order);
    // Those of a denied whole were.
    let next = both_denied().allowed(30, 1, &[(4, 0, 400), witnessed(30, 5)]);
    next.of_key("other").assert_breaks(Rule::Order);
    // One was told yes, the other no.
    let half = both_charged()
        .denied(20, 4, &[(3, 390, 390), witnessed(20, 6)])
        .allowed(20, 1, &[(5, 0, 400), witnessed(20, 4)])
        .of_key("other")
        .jointly();
    half.assert_breaks(Rule::Joint);
}

#[test]
fn a_sum_that_was_forgotten_is_caught() {
    // Both were told what one of them alone would be.
    clock_twice(10, 3, 6).assert_breaks(Rule::Order);
    // Beside 3 units, 3 and 4 of 9 fit each, but not together.
    let both = Case::of("seen/log")
        .allowed(10, 3, &[(6, 0, 400), witnessed(10, 3)])
        .allowed(20, 3, &[(3, 0, 400), witnessed(20, 6)])
        .allowed(20, 4, &[(0, 0, 400), witnessed(20, 10)]);
    both.jointly().assert_breaks(Rule::OverLimit);
    let denied = |wait| {
        Case::of("seen/log")
            .allowed(10, 3, &[(6, 0, 400), witnessed(10, 3)])
            .allowed(20, 3, &[(3, 0, 400), witnessed(20, 6)])
            .other_denied(30, 3, &[(3, 0, 390), witnessed(30, 6)])
            .denied(30, 4, &[(3, wait, 390), witnessed(30, 6)])
            .jointly()
    };
    // The wait for 4 units, where 7 are asked for.
    denied(380).assert_breaks(Rule::Reading);
    denied(390).assert_fine();
}

#[test]
fn requests_that_were_not_decided_as_one_are_caught() {
    let instants = Case::of("seen/log")
        .allowed(10, 6, &[(3, 0, 400), witnessed(10, 6)])
        .allowed(11, 3, &[(6, 0, 400), witnessed(11, 3)])
        .of_key("other");
    instants.jointly().assert_breaks(Rule::Joint);
    let no_reason = both_charged()
        .other_denied(20, 3, &[(3, 0, 390), witnessed(20, 6)])
        .other_denied(20, 1, &[(6, 0, 390), witnessed(20, 3)])
        .of_key("other");
    no_reason.jointly().assert_breaks(Rule::Joint);
    // It is denied itself, and was told that only the other one is.
    let could_not = both_charged()
        .denied(20, 4, &[(3, 390, 390), witnessed(20, 6)])
        .other_denied(20, 7, &[(6, 0, 390), witnessed(20, 3)])
        .of_key("other");
    could_not.jointly().assert_breaks_also(Rule::Joint);
    let said = |outcome, wait_ms: u64| Whole {
        allowed: false,
        outcome,
        retry_us: Some(wait_ms * MS),
    };
    both_denied()
        .whole(said(Outcome::Denied, 390))
        .assert_fine();
    both_denied()
        .whole(said(Outcome::Denied, 389))
        .assert_breaks(Rule::Joint);
    both_denied()
        .whole(said(Outcome::NeverFits, 390))
        .assert_breaks(Rule::Joint);
    // Nothing but a joint decision has others.
    clock()
        .other_denied(30, 1, &[(3, 0, 370)])
        .assert_breaks(Rule::Policy);
}

/// Decided by the plan itself at this time.
fn plain(case: Case, at_ms: u64) -> Case {
    case.allowed(at_ms, 1, &[(8, 0, 400), witnessed(at_ms, 1)])
        .of_key(&format!("o{at_ms}"))
}

/// Decided by another plan of 6 units.
fn overridden(case: Case, at_ms: u64) -> Case {
    case.allowed(at_ms, 1, &[(5, 0, 400), witnessed(at_ms, 1)])
        .of_key(&format!("o{at_ms}"))
        .by_plan("override/1")
}

fn set_at_10() -> Case {
    Case::of("overridden").changed(10, Some(12), Some("override/1"))
}

#[test]
fn an_override_is_in_force_within_its_second() {
    plain(set_at_10(), 5).assert_fine();
    plain(set_at_10(), 1_300).assert_fine();
    overridden(set_at_10(), 11).assert_fine();
    overridden(set_at_10(), 2_000).assert_fine();
    plain(set_at_10(), 1_320).assert_breaks(Rule::Override);
    overridden(set_at_10(), 5).assert_breaks(Rule::Override);
    // It is in force at once where it was set.
    let here = || Case::of("overridden").changed_by(1, 10, Some(12), Some("override/1"));
    plain(here(), 20).assert_breaks(Rule::Override);
    overridden(here(), 20).assert_fine();
    // A deletion, too.
    let deleted = || set_at_10().changed(2_000, Some(2_002), None);
    overridden(deleted(), 3_000).assert_fine();
    overridden(deleted(), 3_320).assert_breaks(Rule::Override);
    plain(deleted(), 3_320).assert_fine();
}

#[test]
fn an_override_that_goes_back_is_caught() {
    plain(overridden(set_at_10(), 20), 30).assert_breaks(Rule::Override);
    // Another plan than any that was set.
    overridden(Case::of("overridden"), 20).assert_breaks(Rule::Override);
    // Another replica may be later.
    let mut other = plain(overridden(set_at_10(), 20), 30);
    other.history.calls[0].life = 3;
    other.assert_fine();
}

#[test]
fn an_override_that_was_not_confirmed_or_is_kept_off_by_a_fault_may_be_in_force_later() {
    let unconfirmed = || Case::of("overridden").changed(10, None, Some("override/1"));
    plain(unconfirmed(), 5_000).assert_fine();
    overridden(unconfirmed(), 5_000).assert_fine();
    let fault = || set_at_10().fault(500, 900);
    plain(fault(), 3_150).assert_fine();
    plain(fault(), 3_250).assert_breaks(Rule::Override);
    // Redis may lose what it confirmed in the last second, but what it lost earlier is given back.
    let lost = |from_ms, to_ms| {
        set_at_10()
            .redis_lost_all(from_ms, to_ms)
            .fault(from_ms, to_ms)
    };
    plain(lost(500, 900), 5_000).assert_fine();
    plain(lost(1_500, 1_600), 5_000).assert_breaks(Rule::Override);
}

#[test]
fn a_call_without_an_answer_may_be_charged_by_any_plan_of_its_override() {
    let lost = set_at_10().lost(20, 2).of_key("o30");
    let next = lost.allowed(30, 1, &[(3, 0, 400), witnessed(30, 3)]);
    next.of_key("o30").by_plan("override/1").assert_fine();
}
