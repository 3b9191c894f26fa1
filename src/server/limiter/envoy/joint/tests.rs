//! Descriptors that are decided together, over the embedded store and over one that is late.

use std::time::Duration;

use super::super::tests::{
    Answers, Recorder, Told, allowed, ask_in, described, limiter_of, refund, with_limit, with_rules,
};
use super::*;
use crate::limiter::tests::plans;
use crate::limiter::{CallerDeadline, Descriptor, EnvoyDecisions, LimiterCounter};
use tollgate_core::decision::DecidedBy;
use tollgate_core::plan::envoy::{EnvoyRules, RateUnit};

fn limiter_that(answers: Answers) -> Limiter<Recorder> {
    let plans = with_rules(plans());
    let rules = EnvoyRules::clone(plans.envoy()).with_joint(true);
    limiter_of(plans.with_envoy(rules), answers)
}

fn limiter() -> Limiter<Recorder> {
    limiter_that(Answers::All)
}

const fn denied(remaining: u64) -> Told {
    (Outcome::Denied, DecidedBy::Store, Some(remaining))
}

const fn other_denied(remaining: u64) -> Told {
    (Outcome::OtherDenied, DecidedBy::Store, Some(remaining))
}

const fn by_plan(outcome: Outcome) -> Told {
    (outcome, DecidedBy::Plan, None)
}

async fn decide(limiter: &Limiter<Recorder>, descriptors: Vec<Descriptor>) -> EnvoyDecisions {
    let decided = limiter.decide_descriptors("allow", descriptors, None);
    decided.await.unwrap()
}

#[tokio::test]
async fn a_denied_descriptor_leaves_the_others_uncharged() {
    let limiter = limiter();
    let pair = || {
        vec![
            described("ten", "al", 8),
            described("shadow", "al", 1),
            described("ten", "bo", 1),
        ]
    };
    assert_eq!(
        ask_in(&limiter, "allow", pair()).await,
        [allowed(2), allowed(9), allowed(9)]
    );
    let decided = decide(&limiter, pair()).await;
    let told: Vec<_> = decided
        .decisions
        .iter()
        .map(|it| it.decision.outcome)
        .collect();
    assert_eq!(
        told,
        [Outcome::Denied, Outcome::OtherDenied, Outcome::OtherDenied]
    );
    // What could pass does not bind, although no wait is known for it.
    let binding = decided.binding().unwrap();
    assert!(!decided.allowed() && std::ptr::eq(binding, &raw const decided.decisions[0]));
    assert_eq!(
        ask_in(
            &limiter,
            "allow",
            vec![described("ten", "al", 2), described("ten", "bo", 1)]
        )
        .await,
        [allowed(0), allowed(8)]
    );
    assert_eq!(*limiter.store.calls.lock().unwrap(), [3, 3, 2]);
    assert_eq!(limiter.totals().counts(LimiterCounter::Joint), [2, 1, 0]);
}

#[tokio::test]
async fn the_same_count_twice_adds_up_and_a_plan_in_shadow_mode_denies_nothing() {
    let limiter = limiter();
    assert_eq!(
        ask_in(
            &limiter,
            "allow",
            vec![described("ten", "al", 6), described("ten", "al", 5)]
        )
        .await,
        [by_plan(Outcome::OtherDenied), by_plan(Outcome::NeverFits)]
    );
    assert_eq!(
        ask_in(
            &limiter,
            "allow",
            vec![described("shadow", "al", 10), described("ten", "al", 1)]
        )
        .await,
        [allowed(0), allowed(9)]
    );
    assert_eq!(
        ask_in(
            &limiter,
            "allow",
            vec![described("shadow", "al", 1), described("ten", "al", 1)]
        )
        .await,
        [
            (Outcome::ShadowDenied, DecidedBy::Store, Some(0)),
            allowed(8)
        ]
    );
    assert_eq!(
        ask_in(
            &limiter,
            "allow",
            vec![described("unlimited", "al", 9), described("ten", "al", 9)]
        )
        .await,
        [by_plan(Outcome::OtherDenied), denied(8)]
    );
}

#[tokio::test]
async fn a_descriptor_without_a_rule_denies_the_whole_or_takes_no_part() {
    let limiter = limiter();
    let pair = || vec![described("none", "al", 1), described("ten", "al", 1)];
    assert_eq!(
        ask_in(&limiter, "deny", pair()).await,
        [by_plan(Outcome::Denied), by_plan(Outcome::OtherDenied)]
    );
    assert_eq!(
        ask_in(&limiter, "deny", vec![described("none", "al", 1)]).await,
        [by_plan(Outcome::Denied)]
    );
    assert_eq!(
        ask_in(&limiter, "allow", pair()).await,
        [by_plan(Outcome::Allowed), allowed(9)],
        "nothing was charged before"
    );
    // In a denied whole, too, it takes no part.
    let denied_whole = vec![
        described("none", "al", 1),
        described("blocked", "al", 1),
        described("ten", "al", 1),
    ];
    assert_eq!(
        ask_in(&limiter, "allow", denied_whole).await,
        [
            by_plan(Outcome::Allowed),
            by_plan(Outcome::Denied),
            by_plan(Outcome::OtherDenied)
        ]
    );
    // A plan of `unmatched` takes part under a key of its own.
    assert_eq!(
        ask_in(
            &limiter,
            "plan",
            vec![described("none", "al", 8), described("ten", "al", 10)]
        )
        .await,
        [other_denied(10), denied(9)]
    );
    assert_eq!(limiter.totals().counts(LimiterCounter::Unmatched), [2, 3]);
}

#[tokio::test]
async fn no_units_take_part_as_a_peek_of_one() {
    let limiter = limiter();
    let pair = |al, bo| vec![described("ten", "al", al), described("ten", "bo", bo)];
    assert_eq!(
        ask_in(&limiter, "allow", pair(0, 3)).await,
        [allowed(10), allowed(7)]
    );
    assert_eq!(
        ask_in(&limiter, "allow", pair(10, 0)).await,
        [allowed(0), allowed(7)]
    );
    // One more could not pass, so nothing is charged.
    assert_eq!(
        ask_in(&limiter, "allow", pair(0, 3)).await,
        [denied(0), other_denied(7)]
    );
    assert_eq!(
        ask_in(&limiter, "allow", pair(0, 0)).await,
        [denied(0), other_denied(7)]
    );
    // It takes nothing from those behind it, and sees those before it.
    let same = |first, second| {
        vec![
            described("ten", "bo", first),
            described("ten", "bo", second),
        ]
    };
    assert_eq!(
        ask_in(&limiter, "allow", same(7, 0)).await,
        [other_denied(7), denied(7)]
    );
    assert_eq!(
        ask_in(&limiter, "allow", same(0, 7)).await,
        [allowed(7), allowed(0)]
    );
    assert_eq!(
        limiter.totals().counts(LimiterCounter::Joint),
        [3, 2, 0],
        "peeks alone decide nothing"
    );
}

#[tokio::test]
async fn units_come_back_whatever_the_whole_says() {
    let limiter = limiter();
    assert_eq!(
        ask_in(&limiter, "allow", vec![described("ten", "al", 10)]).await,
        [allowed(0)]
    );
    let call = vec![
        described("blocked", "al", 1),
        refund("ten", 4),
        described("ten", "bo", 1),
    ];
    assert_eq!(
        ask_in(&limiter, "allow", call).await,
        [
            by_plan(Outcome::Denied),
            allowed(4),
            by_plan(Outcome::OtherDenied)
        ]
    );
    // They are back before the others are decided, wherever they stand.
    let call = vec![
        described("ten", "al", 6),
        refund("ten", 2),
        described("ten", "bo", 1),
    ];
    assert_eq!(
        ask_in(&limiter, "allow", call).await,
        [allowed(0), allowed(6), allowed(9)]
    );
    assert_eq!(
        ask_in(&limiter, "deny", vec![refund("none", 1)]).await,
        [by_plan(Outcome::Allowed)]
    );
}

#[tokio::test]
async fn at_most_eight_are_decided_together() {
    let limiter = limiter();
    let users = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let eight = || users.map(|user| described("ten", user, 1)).to_vec();
    let with = |more: Descriptor| eight().into_iter().chain([more]).collect::<Vec<_>>();
    for not_decided in [described("none", "al", 1), refund("ten", 1)] {
        assert!(decide(&limiter, with(not_decided)).await.allowed());
    }
    let own = with_limit(described("none", "al", 1), 5, RateUnit::Hour);
    for ninth in [described("ten", "i", 1), described("ten", "i", 0), own] {
        let refused = limiter.decide_descriptors("allow", with(ninth), None).await;
        assert_eq!(
            refused.unwrap_err().to_string(),
            "9 descriptors would be decided together, by a rule, a plan of unmatched or a limit of their own: send 8 at most"
        );
    }
    let mut ninth = with(described("none", "al", 1));
    let refused = limiter
        .decide_descriptors("plan", ninth.clone(), None)
        .await;
    assert_eq!(refused.unwrap_err(), EnvoyRefusal::TooManyTogether(9));
    // One that is denied without a plan is none of the eight.
    let denied = limiter
        .decide_descriptors("deny", ninth.clone(), None)
        .await;
    assert!(!denied.unwrap().allowed());
    ninth.truncate(8);
    assert!(decide(&limiter, ninth).await.allowed());
}

#[tokio::test]
async fn a_limit_of_the_callers_own_takes_part() {
    let limiter = limiter();
    let own = |units| with_limit(described("none", "al", units), 5, RateUnit::Hour);
    assert_eq!(
        ask_in(&limiter, "deny", vec![own(5), described("ten", "al", 1)]).await,
        [allowed(0), allowed(9)]
    );
    assert_eq!(
        ask_in(&limiter, "deny", vec![described("ten", "al", 1), own(1)]).await,
        [other_denied(9), denied(0)]
    );
}

#[tokio::test]
async fn one_descriptor_alone_is_decided_as_ever() {
    let limiter = limiter();
    for expected in [allowed(0), denied(0)] {
        let units = if expected == allowed(0) { 10 } else { 1 };
        let call = vec![described("none", "al", 1), described("ten", "al", units)];
        assert_eq!(ask_in(&limiter, "allow", call).await[1], expected);
    }
    let remembered = (Outcome::Denied, DecidedBy::DenyCache, Some(0));
    assert_eq!(
        ask_in(&limiter, "allow", vec![described("ten", "al", 1)]).await,
        [remembered]
    );
    assert_eq!(
        ask_in(&limiter, "allow", vec![described("none", "al", 1)]).await,
        [by_plan(Outcome::Allowed)]
    );
    assert_eq!(limiter.totals().counts(LimiterCounter::Joint), [1, 2, 0]);
}

#[tokio::test]
async fn a_store_that_is_late_for_the_proxy_is_replaced_by_policies_for_all_or_none() {
    let limiter = limiter_that(Answers::Never);
    let caller = || Some(CallerDeadline::new(Duration::from_millis(20)));
    let ask = async |descriptors| {
        let decided = limiter
            .decide_descriptors("allow", descriptors, caller())
            .await;
        let decided = decided.unwrap().decisions;
        let told = decided
            .into_iter()
            .map(|it| (it.decision.outcome, it.decision.decided_by));
        told.collect::<Vec<_>>()
    };
    // Ten for three replicas are four for this one.
    let by_policies = ask(vec![
        described("ten", "al", 4),
        described("allow", "al", 1),
        refund("ten", 1),
    ])
    .await;
    assert_eq!(
        by_policies,
        [
            (Outcome::Allowed, DecidedBy::LocalFallback),
            (Outcome::Allowed, DecidedBy::FailOpen),
            (Outcome::Allowed, DecidedBy::FailOpen)
        ]
    );
    let denied = ask(vec![described("deny", "al", 1), described("ten", "bo", 4)]).await;
    assert_eq!(
        denied,
        [
            (Outcome::Denied, DecidedBy::FailClosed),
            (Outcome::OtherDenied, DecidedBy::LocalFallback)
        ]
    );
    let uncharged = ask(vec![described("ten", "bo", 4), described("allow", "al", 1)]).await;
    assert_eq!(uncharged[0], (Outcome::Allowed, DecidedBy::LocalFallback));
    let totals = limiter.totals();
    assert_eq!(totals.count(LimiterCounter::StoreErrors), 0);
    assert!(totals.count(crate::limiter::LimiterCounter::CallerDeadlines) >= 6);
    let overloaded = limiter_that(Answers::Overloaded);
    let pair = vec![described("allow", "al", 1), described("ten", "al", 1)];
    let refused = overloaded.decide_descriptors("allow", pair, None).await;
    assert_eq!(
        refused.unwrap_err(),
        EnvoyRefusal::Refused(Refusal::Overloaded)
    );
}
