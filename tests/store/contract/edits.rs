//! What stays of the usage when a plan is edited.

use super::*;

/// A bucket of ten units, at this quota a minute.
fn of_ten(quota: u64) -> Arc<Plan> {
    plan(vec![limit(
        quota,
        MINUTE,
        Algorithm::TokenBucket { burst: 10 },
    )])
}

pub(super) async fn edits_keep_the_usage(fixture: Fixture) {
    for algorithm in every_but_the_bucket() {
        let of = |quota| plan(vec![limit(quota, MINUTE, algorithm)]);
        assert!(fixture.fits(&of(100), "edited", 80).await);
        assert_eq!(
            fixture.remaining(&of(50), "edited").await,
            [0],
            "{algorithm:?}"
        );
        assert!(!fixture.fits(&of(50), "edited", 1).await);
        assert_eq!(
            fixture.remaining(&of(200), "edited").await,
            [120],
            "{algorithm:?}"
        );
    }
    let bucket = |quota| {
        plan(vec![limit(
            quota,
            MINUTE,
            Algorithm::TokenBucket { burst: quota },
        )])
    };
    assert!(fixture.fits(&bucket(100), "edited", 80).await);
    assert_eq!(
        fixture.remaining(&bucket(50), "edited").await,
        [0],
        "units that are used stay used"
    );
    assert_eq!(fixture.remaining(&bucket(90), "edited").await, [10]);
    assert_eq!(fixture.remaining(&bucket(200), "edited").await, [120]);
}

pub(super) async fn an_empty_bucket_stays_empty_after_a_change_of_its_rate(fixture: Fixture) {
    for (to, wait_us) in [
        (10, 600_000),
        (99, 600_000),
        (101, 594_060),
        (1_000, 60_000),
        (1, 600_000),
    ] {
        let key = format!("from 100 to {to}");
        assert!(fixture.fits(&of_ten(100), &key, 10).await);
        assert_eq!(fixture.remaining(&of_ten(to), &key).await, [0], "{key}");
        let denied = fixture.decide(ask(&of_ten(to), &key, 1)).await;
        assert_eq!(
            (denied.fits, denied.wait_us(of_ten(to).limits(), 1)),
            (false, wait_us),
            "{key}"
        );
        fixture.clock.advance(wait_us - 1);
        assert!(
            !fixture.fits(&of_ten(to), &key, 1).await,
            "{key}: a microsecond early"
        );
        fixture.clock.advance(1);
        assert!(fixture.fits(&of_ten(to), &key, 1).await, "{key}");
        // What is left is of the new rate.
        let next_us = MINUTE.as_micros() as u64 / to;
        let denied = fixture.decide(ask(&of_ten(to), &key, 1)).await;
        let wait_us = denied.wait_us(of_ten(to).limits(), 1);
        assert!(
            !denied.fits && wait_us.abs_diff(next_us) <= 9,
            "{key}: {wait_us} of {next_us}"
        );
    }
}

pub(super) async fn buckets_of_one_count_grant_one_burst_at_one_instant(fixture: Fixture) {
    for quotas in [[100, 10], [10, 100], [7, 1_000]] {
        let plans = quotas.map(of_ten);
        let key = format!("{quotas:?}");
        let mut granted = 0;
        for turn in 0..40 {
            granted += usize::from(fixture.fits(&plans[turn % 2], &key, 1).await);
        }
        assert_eq!(granted, 10, "{key}");
        // And so in one batch.
        let asks: Vec<Check> = (0..40)
            .map(|turn| ask(&plans[turn % 2], &format!("{key} at once"), 1))
            .collect();
        let verdicts = fixture.store.decide_batch(&asks, PATIENCE).await;
        assert_eq!(
            verdicts
                .iter()
                .filter(|verdict| verdict.as_ref().unwrap().fits)
                .count(),
            10,
            "{key}"
        );
    }
}

pub(super) async fn a_refund_to_a_bucket_is_in_units_after_a_change_of_its_rate(fixture: Fixture) {
    for to in [10, 1_000] {
        let key = format!("refunded at {to}");
        assert!(fixture.fits(&of_ten(100), &key, 10).await);
        assert_eq!(fixture.refund(&of_ten(to), &key, 4).await, [4], "{key}");
        assert_eq!(fixture.remaining(&of_ten(to), &key).await, [4], "{key}");
    }
}

pub(super) async fn other_limits_of_a_plan_come_and_go_without_a_reset(fixture: Fixture) {
    let minute = limit(10, MINUTE, FIXED);
    let hour = limit(20, HOUR, WINDOW);
    let log = limit(30, HOUR, LOG);
    let both = plan(vec![minute.clone(), hour.clone(), log.clone()]);
    assert!(fixture.fits(&both, "shaped", 4).await);
    assert_eq!(
        fixture
            .remaining(&plan(vec![log, hour.clone(), minute.clone()]), "shaped")
            .await,
        [26, 16, 6]
    );
    let alone = plan(vec![hour]);
    assert!(fixture.fits(&alone, "shaped", 1).await);
    assert_eq!(fixture.remaining(&both, "shaped").await, [6, 15, 26]);
    // Another window is another fingerprint: it starts fresh and leaves the first alone.
    let changed = plan(vec![limit(10, MINUTE * 2, FIXED), minute]);
    assert_eq!(fixture.remaining(&changed, "shaped").await, [10, 6]);
}
