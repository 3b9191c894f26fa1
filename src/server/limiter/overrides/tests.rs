//! Overrides without a network: what they change, whoever asks and however, and that replicas agree.

mod config;
mod decisions;
mod pages;
mod size;

use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_core::plan::OVERRIDE_PREFIXES_MAX;
use tollgate_core::plan::PlanSet;

use super::super::tests::{SETTINGS, broken, plan, request};
use super::*;
use crate::limiter::{AdminError, Descriptor, Limiter, LimiterCounter};
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::{DecidedBy, Decision, Outcome};
use tollgate_core::key::Cost;
use tollgate_core::plan::envoy::{
    DenialBody, DescriptorRule, Domain, Entry, EntryPattern, EnvoyRules, KeyTemplate,
    LimitOverride, RateUnit, Unmatched,
};
use tollgate_core::plan::{LimitQuota, Plan, Rule};
use tollgate_store::clock::{Clock, monotonic};
use tollgate_store::{
    CAPACITY_DEFAULT, Check, ConfiguredStore, MemoryStore, OverrideRecord, OverrideVersion,
};

/// A clock that a test sets, in microseconds since 1970.
#[derive(Clone, Default)]
struct SetClock(Arc<AtomicU64>);

const START_US: u64 = 1_000_000_000_000_000;

impl Clock for SetClock {
    fn now_us(&self) -> u64 {
        START_US + self.0.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Instant {
        // One origin for all readings of a test.
        static ORIGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *ORIGIN.get_or_init(monotonic) + Duration::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// A replica: who decides, and its overrides.
struct Replica {
    limiter: Limiter<ConfiguredStore>,
    common: Arc<Limiter<()>>,
    overrides: Overrides,
}

fn plans() -> PlanSet {
    let customer = |name: &str, quota| Plan {
        counts_as: "customer".into(),
        ..plan(name, quota)
    };
    let set: PlanSet = [
        customer("free", 3),
        customer("starter", 10),
        plan("apart", 5),
        Plan::new("none", Rule::Unlimited),
        Plan::new("closed", Rule::Blocked),
    ]
    .into_iter()
    .collect();
    set.with_default(Some("free")).unwrap()
}

fn replica(clock: &SetClock, beside: Option<&Replica>) -> Replica {
    let common = Arc::new(Limiter::without_store(
        plans(),
        SETTINGS,
        Arc::new(clock.clone()),
    ));
    let store = match beside {
        Some(other) => other.limiter.store().clone(),
        None => ConfiguredStore::Memory(Arc::new(MemoryStore::new(
            CAPACITY_DEFAULT,
            Arc::new(clock.clone()),
        ))),
    };
    let overrides = match beside {
        Some(other) => other.overrides.other_replica(common.clone()),
        None => Overrides::new(common.clone(), StoreRegistry::default()),
    };
    Replica {
        limiter: common.with_store(store),
        common,
        overrides,
    }
}

fn key(text: &str) -> OverrideSubject {
    OverrideSubject::Key(text.into())
}

fn prefix(text: &str) -> OverrideSubject {
    OverrideSubject::Prefix(text.into())
}

fn quota(quota: u64) -> OverrideEffect {
    OverrideEffect::Quotas(vec![LimitQuota {
        name: None,
        quota: Some(quota),
        burst: None,
    }])
}

fn use_plan(name: &str) -> OverrideEffect {
    OverrideEffect::UsePlan(name.into())
}

fn new(plan: &str, subject: OverrideSubject, effect: OverrideEffect) -> NewOverride {
    NewOverride {
        plan: plan.to_owned(),
        subject,
        effect,
        expiry: Expiry::Never,
        reason: String::new(),
        if_version: None,
    }
}

async fn set(replica: &Replica, subject: OverrideSubject, effect: OverrideEffect) -> u64 {
    let set = replica.overrides.set(new("free", subject, effect)).await;
    set.unwrap().version
}

/// The decision on `alice`.
async fn ask(replica: &Replica, plan: &str, cost: u64) -> Decision {
    let decided = replica.limiter.decide(request(plan, cost), None).await;
    decided.unwrap()
}

fn told(decision: &Decision) -> (Outcome, Option<u64>, Option<&str>, bool) {
    let remaining = decision.key_status().remaining;
    let plan = decision.other_plan.as_deref();
    (decision.outcome, remaining, plan, decision.overridden)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_at_once_lose_no_change() {
    let clock = SetClock::default();
    let one = replica(&clock, None);
    let replicas = [
        replica(&clock, Some(&one)),
        replica(&clock, Some(&one)),
        one,
    ];
    let calls = (0..60).map(|call: usize| {
        let overrides = replicas[call % 3].overrides.clone();
        let entry = new("free", key(&format!("k{call}")), quota(9));
        tokio::spawn(async move { overrides.set(entry).await.unwrap().version })
    });
    let mut versions = Vec::new();
    for call in calls.collect::<Vec<_>>() {
        versions.push(call.await.unwrap());
    }
    versions.sort_unstable();
    assert_eq!(versions, (1..=60).collect::<Vec<_>>());
    for replica in &replicas {
        replica.overrides.keep_up_in_time().await.unwrap();
        let listed = replica.overrides.list(&OverrideQuery::default()).unwrap();
        assert_eq!((listed.entries.len(), listed.version), (60, 60));
    }
}

/// Who reads before another one writes must not write by what it read.
#[tokio::test]
async fn a_change_by_an_older_version_changes_nothing() {
    let clock = SetClock::default();
    let one = replica(&clock, None);
    let two = replica(&clock, Some(&one));
    let Backend::Memory(store) = &two.overrides.0.store else {
        panic!("tests have no Redis");
    };
    let stale = two.common.runtime_overrides().version;
    set(&one, key("alice"), quota(100)).await;
    let name = codec::name("free", &key("alice"));
    let change = OverrideChange {
        known: stale,
        put: Some((&name, Expiry::Never, b"{}")),
        removed: Vec::new(),
    };
    let changed = store.change_overrides(&change, monotonic()).await.unwrap();
    assert_eq!(changed.version, None);
    two.overrides.keep_up_in_time().await.unwrap();
    assert_eq!(ask(&two, "free", 1).await.key_status().remaining, Some(99));
}

#[tokio::test]
async fn what_would_have_no_effect_is_refused_with_what_is_right() {
    let one = replica(&SetClock::default(), None);
    let numbers = |name: &str, quota, burst| {
        OverrideEffect::Quotas(vec![LimitQuota {
            name: Some(name).filter(|name| !name.is_empty()).map(Into::into),
            quota,
            burst,
        }])
    };
    let cases = [
        (
            "fre",
            quota(1),
            "plan \"fre\" is not in the config; did you mean \"free\"?",
        ),
        (
            "free",
            use_plan("startr"),
            "use_plan: plan \"startr\" is not in the config; did you mean \"starter\"?",
        ),
        (
            "free",
            use_plan("free"),
            "use_plan is the plan itself; name another plan",
        ),
        (
            "none",
            quota(1),
            "quotas need a plan with limits, which \"none\" is not; write use_plan",
        ),
        (
            "free",
            numbers("minut", Some(1), None),
            "quotas[0].name is \"minut\", which is not a limit of plan \"free\"; it has \"minute\"; did you mean \"minute\"?",
        ),
        (
            "free",
            numbers("", None, None),
            "quotas[0] has neither quota nor burst",
        ),
        (
            "free",
            numbers("", None, Some(1)),
            "quotas[0].burst belongs to token_bucket only",
        ),
        (
            "free",
            quota(0),
            "quotas[0].quota is 0; a quota is at least 1 (to let nothing pass, use `blocked: true`)",
        ),
        (
            "free",
            OverrideEffect::Quotas(Vec::new()),
            "quotas has no entry; write at least one, such as { quota: 300 }",
        ),
    ];
    for (plan, effect, text) in cases {
        let refused = one.overrides.set(new(plan, key("k"), effect)).await;
        assert_eq!(refused.unwrap_err().to_string(), text);
    }
    assert_eq!(one.common.overrides_version(), 0);
}

#[tokio::test]
async fn so_many_are_set_and_no_more() {
    let clock = SetClock::default();
    let one = replica(&clock, None);
    let entries =
        (0..OVERRIDE_PREFIXES_MAX).map(|index| new("free", prefix(&format!("p{index}")), quota(9)));
    for entry in entries {
        one.overrides.set(entry).await.unwrap();
    }
    let full = one.overrides.set(new("free", prefix("q"), quota(9))).await;
    assert!(
        matches!(&full, Err(OverrideRefusal::Full(text)) if text.starts_with("256 overrides of prefixes"))
    );
    // One that is there may be replaced, and keys are counted apart.
    set(&one, prefix("p7"), quota(8)).await;
    set(&one, key("p7"), quota(8)).await;
    one.overrides
        .delete("free", prefix("p8"), None)
        .await
        .unwrap();
    set(&one, prefix("q"), quota(9)).await;
}

#[tokio::test]
async fn refunds_and_resets_go_where_decisions_charge() {
    let one = replica(&SetClock::default(), None);
    ask(&one, "free", 2).await;
    set(&one, key("alice"), use_plan("apart")).await;
    ask(&one, "free", 5).await;
    let alice = || Key::new("alice").unwrap();
    let refunded = one
        .limiter
        .refund(alice(), "free", Cost::ONE, None)
        .await
        .unwrap();
    assert_eq!(refunded.limits[0].0.remaining, 1);
    // Of both: the plan that is asked for, and the one that decides.
    assert_eq!(
        Box::pin(one.limiter.reset(alice(), "free", None)).await,
        Ok(true)
    );
    assert_eq!(ask(&one, "free", 1).await.key_status().remaining, Some(4));
    one.overrides
        .delete("free", key("alice"), None)
        .await
        .unwrap();
    assert_eq!(ask(&one, "free", 1).await.key_status().remaining, Some(2));
    set(&one, key("alice"), use_plan("none")).await;
    let refused = one.limiter.refund(alice(), "free", Cost::ONE, None).await;
    assert_eq!(refused, Err(AdminError::NothingCounted("none".into())));
}

#[test]
fn what_is_kept_is_read_as_it_was_and_the_rest_is_kept_as_it_is() {
    let full = PlanOverride {
        effect: OverrideEffect::Quotas(vec![
            LimitQuota {
                name: Some("a".into()),
                quota: Some(u64::MAX),
                burst: None,
            },
            LimitQuota {
                name: None,
                quota: None,
                burst: Some(3),
            },
        ]),
        expires_at_us: Some(9),
        reason: "a \"reason\" é".into(),
        version: 7,
        set_at_us: 5,
        ..unset("free", key("a:b \u{1f600}"))
    };
    let other = PlanOverride {
        effect: use_plan("starter"),
        ..unset("free", prefix("a:b"))
    };
    let version = OverrideVersion { number: 7, mark: 5 };
    let set = RuntimeOverrides {
        entries: vec![Arc::new(full), Arc::new(other)],
        unreadable: Vec::new(),
        version,
    };
    let mut records = codec::records(&set);
    let strange = |name: &str, payload: &str| OverrideRecord {
        name: name.as_bytes().to_vec(),
        version: 0,
        set_at_us: 0,
        expires_at_us: None,
        payload: payload.as_bytes().to_vec(),
    };
    let strange = [
        strange("kfree:x", "{\"use_plan\":\"a\",\"later\":1}"),
        strange("kfree:y", "garbage"),
        strange("kfree:z", "{}"),
        strange("kfree:", "{\"use_plan\":\"a\"}"),
        strange("zfree:x", "{\"use_plan\":\"a\"}"),
        strange("", ""),
    ];
    records.extend(strange.iter().cloned());
    let read = codec::read(records, version);
    assert_eq!(read.entries, set.entries);
    assert_eq!(read.unreadable.len(), strange.len());
    let again = codec::records(&read);
    assert!(strange.iter().all(|record| again.contains(record)));
}
