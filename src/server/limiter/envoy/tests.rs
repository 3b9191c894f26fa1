//! Descriptors decided without a network, over the embedded store and over stores that fail on purpose.

mod own_limits;

use std::sync::Mutex;

use super::super::tests::{Clock0, SETTINGS, plan, plans};
use super::*;
use crate::limiter::{LimiterCounter, LimiterSettings};
use tollgate_core::plan::PlanSet;
use tollgate_core::plan::envoy::{DescriptorRule, EntryPattern, EnvoyRules, KeyTemplate, RateUnit};
use tollgate_store::{
    CAPACITY_DEFAULT, GivenBack, MemoryStore, StoreDeadline, StoreError, Verdict,
};

/// Exact counters, as if they were far away. Records the sizes of its calls, and may answer nothing or with an error.
pub(super) struct Recorder {
    counters: MemoryStore,
    pub(super) calls: Mutex<Vec<usize>>,
    answers: Answers,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Answers {
    All,
    Never,
    Overloaded,
}

impl Store for Recorder {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        self.calls.lock().unwrap().push(checks.len());
        match self.answers {
            Answers::All => checks
                .iter()
                .map(|check| self.counters.decide(check))
                .collect(),
            Answers::Never => std::future::pending().await,
            Answers::Overloaded => vec![Err(StoreError::Overloaded(1)); checks.len()],
        }
    }

    async fn refund_batch(
        &self,
        refunds: &[Refund],
        deadline: StoreDeadline,
    ) -> Vec<Result<GivenBack, StoreError>> {
        self.calls.lock().unwrap().push(refunds.len());
        match self.answers {
            Answers::All => self.counters.refund_batch(refunds, deadline).await,
            Answers::Never => std::future::pending().await,
            Answers::Overloaded => vec![Err(StoreError::Overloaded(1)); refunds.len()],
        }
    }

    async fn decide_joint(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Result<Vec<Verdict>, tollgate_store::JointFailure> {
        self.calls.lock().unwrap().push(checks.len());
        match self.answers {
            Answers::All => Ok(self.counters.decide_joint(checks)?),
            Answers::Never => std::future::pending().await,
            Answers::Overloaded => Err(StoreError::Overloaded(1).into()),
        }
    }
}

fn rule(patterns: &[&str], plan: &str) -> DescriptorRule {
    let patterns: Vec<EntryPattern> = patterns
        .iter()
        .map(|text| EntryPattern::parse(text).unwrap())
        .collect();
    DescriptorRule {
        key: KeyTemplate::for_open_values(&patterns),
        patterns,
        plan: plan.into(),
        shard: None,
    }
}

/// Domains whose names say what they do with a descriptor without a rule.
pub(super) fn with_rules(plans: PlanSet) -> PlanSet {
    let names = ["ten", "shadow", "unlimited", "blocked", "allow", "deny"];
    let rules: Vec<DescriptorRule> = names
        .iter()
        .map(|plan| rule(&[&format!("plan={plan}"), "user"], plan))
        .collect();
    let domain = |unmatched| Domain::new(unmatched, rules.clone()).unwrap();
    let domains = [
        ("allow", Unmatched::Allow),
        ("deny", Unmatched::Deny),
        ("plan", Unmatched::Plan("ten".into())),
    ];
    let domains = domains.map(|(name, unmatched)| (name.to_owned(), domain(unmatched)));
    plans.with_envoy(EnvoyRules::new(DenialBody::None, domains))
}

fn limiter_that(answers: Answers) -> Limiter<Recorder> {
    limiter_of(with_rules(plans()), answers)
}

pub(super) fn limiter_of(plans: PlanSet, answers: Answers) -> Limiter<Recorder> {
    let counters = MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0));
    let store = Recorder {
        counters,
        calls: Mutex::default(),
        answers,
    };
    Limiter::new(plans, store, SETTINGS, Arc::new(Clock0))
}

fn limiter() -> Limiter<Recorder> {
    limiter_that(Answers::All)
}

pub(super) fn described(plan: &str, user: &str, units: u64) -> Descriptor {
    let entry = |name: &str, value: &str| Entry {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    Descriptor {
        entries: vec![entry("plan", plan), entry("user", user)],
        units,
        refunds: false,
        limit_override: None,
    }
}

pub(super) fn refund(plan: &str, units: u64) -> Descriptor {
    Descriptor {
        refunds: true,
        ..described(plan, "al", units)
    }
}

pub(super) fn with_limit(descriptor: Descriptor, quota: u32, unit: RateUnit) -> Descriptor {
    Descriptor {
        limit_override: Some(LimitOverride { quota, unit }),
        ..descriptor
    }
}

/// For each descriptor: what it got, by whom, and what remains.
pub(super) type Told = (Outcome, DecidedBy, Option<u64>);

pub(super) async fn ask_in<S: Store>(
    limiter: &Limiter<S>,
    domain: &str,
    descriptors: Vec<Descriptor>,
) -> Vec<Told> {
    let decided = limiter
        .decide_descriptors(domain, descriptors, None)
        .await
        .unwrap();
    decided
        .decisions
        .iter()
        .map(|DescriptorDecision { decision: it, .. }| {
            (it.outcome, it.decided_by, it.key_status().remaining)
        })
        .collect()
}

pub(super) async fn ask<S: Store>(limiter: &Limiter<S>, descriptor: Descriptor) -> Told {
    ask_in(limiter, "allow", vec![descriptor]).await[0]
}

pub(super) const fn allowed(remaining: u64) -> Told {
    (Outcome::Allowed, DecidedBy::Store, Some(remaining))
}

#[tokio::test]
async fn descriptors_are_decided_each_by_itself_and_all_in_one_store_call() {
    let limiter = limiter();
    let call = vec![
        described("ten", "al", 4),
        described("ten", "al", 5),
        described("unlimited", "al", 9),
        described("ten", "al", 3),
        described("ten", "bo", 1),
    ];
    let told = ask_in(&limiter, "allow", call).await;
    let unlimited = (Outcome::Allowed, DecidedBy::Plan, None);
    // The fourth is denied, and the one after it is charged nevertheless.
    assert_eq!(
        told,
        [
            allowed(6),
            allowed(1),
            unlimited,
            (Outcome::Denied, DecidedBy::Store, Some(1)),
            allowed(9)
        ]
    );
    assert_eq!(*limiter.store.calls.lock().unwrap(), [4]);
    let decided = limiter
        .decide_descriptors(
            "allow",
            vec![described("ten", "bo", 1), described("blocked", "al", 1)],
            None,
        )
        .await
        .unwrap();
    assert!(!decided.allowed());
    assert_eq!(
        decided
            .binding()
            .unwrap()
            .plan
            .as_ref()
            .unwrap()
            .name
            .as_ref(),
        "blocked"
    );
    let ten = limiter.snapshot().plans().find("ten").unwrap().0;
    let counted = |outcome, by| limiter.totals().decisions(ten, outcome, by);
    assert_eq!(
        (
            counted(Outcome::Allowed, DecidedBy::Store),
            counted(Outcome::Denied, DecidedBy::Store)
        ),
        (4, 1)
    );
}

#[tokio::test]
async fn no_units_ask_without_taking_and_units_are_given_back() {
    let limiter = limiter();
    assert_eq!(ask(&limiter, described("ten", "al", 0)).await, allowed(10));
    assert_eq!(ask(&limiter, described("ten", "al", 9)).await, allowed(1));
    assert_eq!(ask(&limiter, refund("ten", 4)).await, allowed(5));
    assert_eq!(ask(&limiter, described("ten", "al", 5)).await, allowed(0));
    assert_eq!(
        ask(&limiter, described("ten", "al", 0)).await,
        (Outcome::Denied, DecidedBy::Store, Some(0))
    );
    assert_eq!(
        ask(&limiter, refund("ten", u64::MAX)).await,
        allowed(10),
        "never above full"
    );
    assert_eq!(ask(&limiter, refund("ten", 0)).await.0, Outcome::Allowed);
    for plan in ["unlimited", "blocked", "no such plan"] {
        assert_eq!(
            ask(&limiter, refund(plan, 1)).await.0,
            Outcome::Allowed,
            "{plan}"
        );
    }
    let decided = limiter
        .decide_descriptors("allow", vec![refund("blocked", 1)], None)
        .await
        .unwrap();
    assert!(decided.allowed() && decided.binding().is_none());
    assert_eq!(limiter.totals().count(LimiterCounter::Peeks), 2 + 1);
}

#[tokio::test]
async fn a_denial_that_is_remembered_is_forgotten_when_units_are_given_back() {
    let limiter = limiter();
    assert_eq!(ask(&limiter, described("ten", "al", 10)).await, allowed(0));
    assert_eq!(
        ask(&limiter, described("ten", "al", 1)).await.1,
        DecidedBy::Store
    );
    assert_eq!(
        ask(&limiter, described("ten", "al", 1)).await.1,
        DecidedBy::DenyCache
    );
    assert_eq!(ask(&limiter, refund("ten", 2)).await, allowed(2));
    assert_eq!(ask(&limiter, described("ten", "al", 2)).await, allowed(0));
}

#[tokio::test]
async fn a_descriptor_without_a_rule_gets_what_its_domain_says() {
    let limiter = limiter();
    for (domain, told) in [
        ("allow", (Outcome::Allowed, DecidedBy::Plan, None)),
        ("deny", (Outcome::Denied, DecidedBy::Plan, None)),
        ("plan", allowed(9)),
    ] {
        assert_eq!(
            ask_in(&limiter, domain, vec![described("none", "al", 1)]).await,
            [told],
            "{domain}"
        );
    }
    assert_eq!(
        ask_in(&limiter, "plan", vec![described("other", "al", 1)]).await,
        [allowed(9)],
        "another key"
    );
    assert_eq!(limiter.totals().counts(LimiterCounter::Unmatched), [3, 1]);
    let unknown = limiter
        .decide_descriptors("alow", vec![described("ten", "al", 1)], None)
        .await
        .unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "domain \"alow\" is not in the config; did you mean \"allow\"?"
    );
}

#[tokio::test]
async fn a_store_that_is_late_for_the_caller_is_replaced_by_policy_and_not_blamed() {
    let limiter = limiter_that(Answers::Never);
    let caller = Some(CallerDeadline::new(Duration::from_millis(20)));
    let descriptors = vec![
        described("ten", "al", 1),
        described("allow", "al", 1),
        described("deny", "al", 1),
        refund("ten", 1),
    ];
    let decided = limiter
        .decide_descriptors("allow", descriptors, caller)
        .await
        .unwrap();
    let told: Vec<_> = decided
        .decisions
        .iter()
        .map(|decided| (decided.decision.outcome, decided.decision.decided_by))
        .collect();
    let expected = [
        (Outcome::Allowed, DecidedBy::LocalFallback),
        (Outcome::Allowed, DecidedBy::FailOpen),
        (Outcome::Denied, DecidedBy::FailClosed),
        (Outcome::Allowed, DecidedBy::FailOpen),
    ];
    assert_eq!(told, expected);
    let totals = limiter.totals();
    assert_eq!(
        (
            totals.count(LimiterCounter::CallerDeadlines),
            totals.count(LimiterCounter::StoreErrors)
        ),
        (4, 0)
    );
    let none = Some(CallerDeadline::new(Duration::ZERO));
    let late = limiter
        .decide_descriptors("allow", vec![described("ten", "al", 1)], none)
        .await
        .unwrap_err();
    assert_eq!(late, EnvoyRefusal::Refused(Refusal::CallerDeadline));
}

#[tokio::test]
async fn an_overloaded_server_refuses_the_call_and_no_policy_answers() {
    let limiter = limiter_that(Answers::Overloaded);
    let refused = limiter
        .decide_descriptors("allow", vec![described("allow", "al", 1)], None)
        .await
        .unwrap_err();
    assert_eq!(refused, EnvoyRefusal::Refused(Refusal::Overloaded));
}

#[tokio::test]
async fn a_reload_takes_up_rules_with_the_plans_that_they_name() {
    let limiter = Limiter::new(
        plans(),
        MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)),
        SETTINGS,
        Arc::new(Clock0),
    );
    let unserved = limiter
        .decide_descriptors("allow", vec![described("ten", "al", 1)], None)
        .await
        .unwrap_err();
    assert_eq!(
        (unserved, limiter.serves_envoy()),
        (EnvoyRefusal::NotConfigured, false)
    );
    let hash = limiter.snapshot().config_hash().to_owned();
    limiter.reload(with_rules(plans()));
    assert!(limiter.serves_envoy() && limiter.snapshot().config_hash() != hash);
    assert_eq!(ask(&limiter, described("ten", "al", 1)).await, allowed(9));
    // Only the rules change, then only a plan: both are taken up.
    let other = Domain::new(
        Unmatched::Allow,
        vec![rule(&["plan=ten", "user"], "blocked")],
    )
    .unwrap();
    limiter.reload(plans().with_envoy(EnvoyRules::new(
        DenialBody::None,
        [("allow".to_owned(), other)],
    )));
    assert_eq!(
        ask(&limiter, described("ten", "al", 1)).await.0,
        Outcome::Denied
    );
    let edited: PlanSet = plans()
        .iter()
        .map(|of| {
            if &*of.name == "ten" {
                plan("ten", 5)
            } else {
                of.as_ref().clone()
            }
        })
        .collect();
    limiter.reload(with_rules(edited));
    assert_eq!(ask(&limiter, described("ten", "al", 1)).await, allowed(3));
}

#[tokio::test]
async fn the_decision_for_the_client_is_the_denial_with_the_longest_wait_or_the_smallest_share() {
    let limiter = Limiter::new(
        with_rules(plans()),
        MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)),
        LimiterSettings {
            deny_cache_entries: 0,
            ..SETTINGS
        },
        Arc::new(Clock0),
    );
    for (descriptors, binds) in [
        (
            vec![described("unlimited", "a", 1), described("ten", "a", 1)],
            Some("ten"),
        ),
        (vec![described("none", "a", 1)], None),
        (
            vec![described("ten", "b", 1), described("allow", "b", 2)],
            Some("allow"),
        ),
        (
            vec![described("ten", "c", 2), described("allow", "c", 2)],
            Some("ten"),
        ),
        (
            vec![
                described("ten", "d", 11),
                described("allow", "d", 2),
                described("blocked", "d", 1),
            ],
            Some("ten"),
        ),
        (
            vec![
                described("allow", "e", 10),
                described("allow", "e", 1),
                described("shadow", "e", 11),
            ],
            Some("allow"),
        ),
    ] {
        let decided = limiter
            .decide_descriptors("allow", descriptors, None)
            .await
            .unwrap();
        let plan = decided
            .binding()
            .unwrap()
            .plan
            .as_ref()
            .map(|plan| plan.name.to_string());
        assert_eq!(plan.as_deref(), binds);
    }
}

/// Whatever their quotas were, and whether the plan has counted the key or not.
#[tokio::test]
async fn a_reset_forgets_what_limits_that_envoy_brought_along_have_counted() {
    let counters = MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0));
    let limiter = Limiter::new(with_rules(plans()), counters, SETTINGS, Arc::new(Clock0));
    let key = tollgate_core::key::Key::new("al").unwrap();
    let denied = (Outcome::Denied, DecidedBy::Store, Some(0));
    for unit in RateUnit::ALL {
        let brought = |user, units| with_limit(described("ten", user, units), 5, unit);
        assert_eq!(
            (
                ask(&limiter, brought("al", 5)).await,
                ask(&limiter, brought("bo", 5)).await
            ),
            (allowed(0), allowed(0))
        );
        assert_eq!(ask(&limiter, brought("al", 1)).await, denied, "{unit:?}");
        assert_eq!(
            limiter.reset(key.clone(), "ten", None).await,
            Ok(true),
            "{unit:?}"
        );
        assert_eq!(
            ask(&limiter, brought("al", 4)).await,
            allowed(1),
            "{unit:?}"
        );
        assert_eq!(ask(&limiter, brought("bo", 1)).await, denied, "{unit:?}");
    }
}
