//! Limits that a caller brings along, in place of those of a plan.

use super::*;

#[tokio::test]
async fn a_limit_of_the_callers_own_is_counted_apart_for_each_unit_and_keeps_no_quota() {
    let limiter = limiter();
    let minute = |quota, units| with_limit(described("ten", "al", units), quota, RateUnit::Minute);
    assert_eq!(ask(&limiter, minute(5, 3)).await, allowed(2));
    assert_eq!(
        ask(&limiter, minute(7, 3)).await,
        allowed(1),
        "the usage is that of the unit, whatever the quota"
    );
    assert_eq!(
        ask(
            &limiter,
            with_limit(described("ten", "al", 3), 5, RateUnit::Week)
        )
        .await,
        allowed(2)
    );
    assert_eq!(
        ask(&limiter, described("ten", "al", 1)).await,
        allowed(9),
        "the plan counts for itself"
    );
    assert_eq!(
        ask(&limiter, minute(0, 1)).await,
        (Outcome::Denied, DecidedBy::Plan, None)
    );
    assert_eq!(ask(&limiter, minute(5, 6)).await.0, Outcome::NeverFits);
    assert_eq!(
        ask(
            &limiter,
            Descriptor {
                refunds: true,
                ..minute(9, 2)
            }
        )
        .await,
        allowed(5)
    );
    assert_eq!(
        ask(
            &limiter,
            with_limit(described("shadow", "al", 6), 5, RateUnit::Day)
        )
        .await
        .0,
        Outcome::ShadowDenied
    );
}

#[tokio::test]
async fn a_limit_of_the_callers_own_needs_no_rule_and_leaves_nothing_behind() {
    let limiter = limiter();
    // In a domain that denies, too: counted by domain.
    for domain in ["deny", "allow"] {
        let own = with_limit(described("no such plan", "al", 1), 1, RateUnit::Hour);
        let told = ask_in(&limiter, domain, vec![own.clone(), own]).await;
        assert_eq!(
            told,
            [allowed(0), (Outcome::Denied, DecidedBy::Store, Some(0))]
        );
    }
    // A thousand quotas leave nothing behind: no plan, no denial.
    let before = limiter.totals().deny_cache_entries;
    for quota in 1..1_000 {
        assert_ne!(
            ask(
                &limiter,
                with_limit(
                    described("ten", "bo", u64::from(quota)),
                    quota,
                    RateUnit::Year
                )
            )
            .await
            .0,
            Outcome::NeverFits
        );
    }
    assert_eq!(
        (
            limiter.totals().deny_cache_entries,
            limiter.snapshot().plans().len()
        ),
        (before, plans().len())
    );
}

#[tokio::test]
async fn without_a_store_a_limit_of_the_callers_own_is_shared_among_the_replicas() {
    let limiter = limiter_that(Answers::Never);
    let caller = || Some(CallerDeadline::new(Duration::from_millis(1)));
    let mut granted = 0;
    // A third of 20, rounded up; the plan's own share is four.
    for _ in 0..9 {
        let own = with_limit(described("ten", "al", 1), 20, RateUnit::Hour);
        granted += u32::from(
            limiter
                .decide_descriptors("allow", vec![own], caller())
                .await
                .unwrap()
                .allowed(),
        );
    }
    assert_eq!(granted, 7);
}
