//! What overrides do to decisions, at every replica and without the store.

use super::*;

#[tokio::test]
async fn usage_carries_over_and_the_answer_tells_what_decided() {
    let one = replica(&SetClock::default(), None);
    assert_eq!(
        told(&ask(&one, "free", 3).await),
        (Outcome::Allowed, Some(0), None, false)
    );
    assert_eq!(ask(&one, "free", 1).await.outcome, Outcome::Denied);
    set(&one, key("alice"), use_plan("starter")).await;
    let starter = Some("starter");
    assert_eq!(
        told(&ask(&one, "free", 4).await),
        (Outcome::Allowed, Some(3), starter, true)
    );
    // It is for `free`. A plan that is not in the config is decided by `free`, too.
    assert_eq!(
        told(&ask(&one, "starter", 1).await),
        (Outcome::Allowed, Some(2), None, false)
    );
    assert_eq!(
        told(&ask(&one, "fre", 1).await),
        (Outcome::Allowed, Some(1), starter, true)
    );
    set(&one, key("alice"), quota(20)).await;
    assert_eq!(
        told(&ask(&one, "free", 1).await),
        (Outcome::Allowed, Some(10), None, true)
    );
    assert_eq!(
        told(&ask(&one, "fre", 1).await),
        (Outcome::Allowed, Some(9), Some("free"), true)
    );
    assert_eq!(
        one.overrides.delete("free", key("alice"), None).await,
        Ok((true, 3))
    );
    assert_eq!(
        told(&ask(&one, "free", 1).await),
        (Outcome::Denied, Some(0), None, false)
    );
    let totals = one.common.totals();
    assert_eq!(totals.counts(LimiterCounter::Overridden), [4, 0]);
    let free = totals.snapshot().plans().find("free").unwrap().0;
    let starter = totals.snapshot().plans().find("starter").unwrap().0;
    let by_store = |plan| totals.decisions(plan, Outcome::Allowed, DecidedBy::Store);
    assert_eq!((by_store(free), by_store(starter)), (3, 3));
}

#[tokio::test]
async fn every_way_to_a_decision_honours_an_override() {
    let one = replica(&SetClock::default(), None);
    set(&one, prefix("al"), quota(100)).await;
    let peek = Check {
        mode: Mode::Peek,
        ..request("free", 1)
    };
    let (decision, plan) = one.limiter.decide_with_plan(peek, None).await.unwrap();
    assert_eq!(told(&decision), (Outcome::Allowed, Some(100), None, true));
    assert_eq!(plan.limits()[0].quota(), 100);
    let batch = vec![
        request("free", 4),
        request("starter", 1),
        request("none", 1),
    ];
    let batch = one.limiter.decide_batch(batch, None).await.unwrap();
    let batch: Vec<_> = batch
        .iter()
        .map(|decided| told(decided.as_ref().unwrap()))
        .collect();
    assert_eq!(
        batch,
        [
            (Outcome::Allowed, Some(96), None, true),
            (Outcome::Allowed, Some(5), None, false),
            (Outcome::Allowed, None, None, false)
        ]
    );
    let joint = vec![request("free", 10), request("apart", 1)];
    let (joint, _) = one.limiter.decide_joint(joint, None).await.unwrap();
    assert_eq!(
        told(&joint.decisions[0]),
        (Outcome::Allowed, Some(85), None, true)
    );
    assert_eq!(
        told(&joint.decisions[1]),
        (Outcome::Allowed, Some(4), None, false)
    );
    let never = ask(&one, "free", 101).await;
    assert_eq!(
        (never.outcome, never.overridden),
        (Outcome::NeverFits, true)
    );
    let alice = Key::new("alice").unwrap();
    let explained = one
        .limiter
        .explain(alice.clone(), "free", None)
        .await
        .unwrap();
    assert_eq!(explained.applied_override.unwrap().subject, prefix("al"));
    assert!(explained.next.overridden && explained.limits[0].used == 15);
    assert_eq!(one.limiter.limit_counter()("free", "alice"), 1);
    // A shard is not a part of it, and neither is the key in another one.
    let sharded = Check {
        key: alice.in_shard("x").unwrap(),
        ..request("free", 4)
    };
    assert!(one.limiter.decide(sharded, None).await.unwrap().overridden);
}

#[tokio::test]
async fn while_the_store_is_away_the_last_set_holds_at_this_replica_s_share() {
    let limiter = broken();
    let common = Arc::new(Limiter::without_store(
        plans(),
        SETTINGS,
        limiter.common.clock.clone(),
    ));
    let overrides = Overrides::new(common.clone(), StoreRegistry::default());
    overrides
        .set(new("free", key("alice"), quota(30)))
        .await
        .unwrap();
    let limiter = common.with_store(limiter.store);
    // 30 for three replicas are ten for this one.
    for (cost, outcome) in [(10, Outcome::Allowed), (1, Outcome::Denied)] {
        let decided = limiter.decide(request("free", cost), None).await.unwrap();
        let by = DecidedBy::LocalFallback;
        assert_eq!(
            (decided.outcome, decided.decided_by, decided.overridden),
            (outcome, by, true)
        );
    }
}

#[tokio::test]
async fn an_override_ends_when_the_store_s_clock_says_so() {
    let clock = SetClock::default();
    let one = replica(&clock, None);
    let lasting = |expiry| NewOverride {
        expiry,
        ..new("free", key("alice"), quota(100))
    };
    let until = one.overrides.set(lasting(Expiry::At(START_US))).await;
    assert!(matches!(until, Err(OverrideRefusal::Invalid(text)) if text.contains("in the past")));
    let entry = one
        .overrides
        .set(lasting(Expiry::After(5_000_000)))
        .await
        .unwrap();
    assert_eq!(entry.expires_at_us, Some(START_US + 5_000_000));
    assert!(ask(&one, "free", 1).await.overridden);
    clock.0.store(4_999_999, Ordering::SeqCst);
    one.overrides.keep_up_in_time().await.unwrap();
    assert!(ask(&one, "free", 1).await.overridden);
    clock.0.store(5_000_000, Ordering::SeqCst);
    one.overrides.keep_up_in_time().await.unwrap();
    assert!(!ask(&one, "free", 1).await.overridden);
    let all = OverrideQuery::default();
    assert!(one.overrides.list(&all).unwrap().entries.is_empty());
    // It is there for nobody: version 0 may be set, and it is not counted.
    let version = NewOverride {
        if_version: Some(0),
        ..new("free", key("alice"), quota(7))
    };
    assert_eq!(one.overrides.set(version).await.unwrap().version, 2);
}

#[tokio::test]
async fn replicas_agree_and_a_version_protects_a_change() {
    let clock = SetClock::default();
    let one = replica(&clock, None);
    let two = replica(&clock, Some(&one));
    set(&one, key("alice"), quota(100)).await;
    assert!(!ask(&two, "free", 1).await.overridden);
    two.overrides.keep_up_in_time().await.unwrap();
    assert!(ask(&two, "free", 1).await.overridden);
    let expecting = |if_version| NewOverride {
        if_version: Some(if_version),
        ..new("free", key("alice"), quota(50))
    };
    // What the other replica set is known before it is compared.
    let stale = two.overrides.set(expecting(0)).await.unwrap_err();
    assert_eq!(stale.to_string(), "the override has version 1, not 0");
    assert_eq!(two.overrides.set(expecting(1)).await.unwrap().version, 2);
    let stale = one.overrides.delete("free", key("alice"), Some(1)).await;
    assert_eq!(
        stale.unwrap_err().to_string(),
        "the override has version 2, not 1"
    );
    assert_eq!(
        one.overrides.delete("free", key("alice"), Some(2)).await,
        Ok((true, 3))
    );
    assert_eq!(
        one.overrides.delete("free", key("alice"), None).await,
        Ok((false, 3))
    );
    two.overrides.keep_up_in_time().await.unwrap();
    assert!(!ask(&two, "free", 1).await.overridden);
}

#[tokio::test]
async fn a_blocked_customer_stays_blocked_without_the_store() {
    let limiter = broken();
    let common = Arc::new(Limiter::without_store(
        plans(),
        SETTINGS,
        limiter.common.clock.clone(),
    ));
    let overrides = Overrides::new(common.clone(), StoreRegistry::default());
    overrides
        .set(new("free", key("alice"), use_plan("closed")))
        .await
        .unwrap();
    let limiter = common.with_store(limiter.store);
    let decided = limiter.decide(request("free", 1), None).await.unwrap();
    let plan = decided.other_plan.as_deref();
    assert_eq!(
        (decided.outcome, decided.decided_by, plan),
        (Outcome::Denied, DecidedBy::Plan, Some("closed"))
    );
}

#[tokio::test]
async fn envoy_s_descriptors_honour_an_override_and_a_limit_of_their_own_does_not() {
    let patterns = vec![EntryPattern::parse("user").unwrap()];
    let rule = DescriptorRule {
        key: KeyTemplate::for_open_values(&patterns),
        patterns,
        plan: "free".into(),
        shard: None,
    };
    let domain = Domain::new(Unmatched::Allow, vec![rule]).unwrap();
    let rules = EnvoyRules::new(DenialBody::None, [("edge".to_owned(), domain)]);
    let one = replica(&SetClock::default(), None);
    one.common.reload(plans().with_envoy(rules));
    set(&one, key("alice"), use_plan("starter")).await;
    let decide = |limit_override| {
        let descriptor = Descriptor {
            entries: vec![Entry {
                name: "user".to_owned(),
                value: "alice".to_owned(),
            }],
            units: 7,
            refunds: false,
            limit_override,
        };
        one.limiter
            .decide_descriptors("edge", vec![descriptor], None)
    };
    let decided = decide(None).await.unwrap();
    assert_eq!(
        told(&decided.decisions[0].decision),
        (Outcome::Allowed, Some(3), Some("starter"), true)
    );
    assert_eq!(
        decided.decisions[0].plan.as_ref().unwrap().name,
        "starter".into()
    );
    let own = LimitOverride {
        quota: 9,
        unit: RateUnit::Minute,
    };
    let decided = decide(Some(own)).await.unwrap();
    assert_eq!(
        told(&decided.decisions[0].decision),
        (Outcome::Allowed, Some(2), None, false)
    );
}
