//! Descriptors decided without a network, over the embedded store and over stores that fail on purpose.

mod failures;
mod own_limits;
mod refunds;

use std::sync::Mutex;

use super::super::tests::{Clock0, SETTINGS, plan, plans};
use super::*;
use crate::limiter::{LimiterCounter, LimiterSettings};
use tollgate_core::plan::PlanSet;
use tollgate_core::plan::envoy::{
    DenialBody, DescriptorRule, Entry, EntryPattern, EnvoyRules, KeyTemplate, RateUnit,
};
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
