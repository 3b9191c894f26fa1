//! The bounds of a limit, each at its edge, and the shares of replicas.

use proptest::prelude::*;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const FIXED: Algorithm = Algorithm::FixedWindow {
    anchor: Anchor::Clock,
};

fn refused(quota: u64, window: Duration, algorithm: Algorithm) -> Vec<LimitError> {
    Limit::new("l", quota, window, algorithm).unwrap_err()
}

#[test]
fn bounds_are_refused_one_past_the_edge() {
    for (quota, window, algorithm) in [
        (0, MINUTE, FIXED),
        (QUOTA_MAX + 1, MINUTE, FIXED),
        (1, WINDOW_MIN - Duration::from_nanos(1), FIXED),
        (1, WINDOW_MAX + Duration::from_millis(1), FIXED),
        (1, Duration::from_micros(1_500), FIXED),
        (1, Duration::from_millis(25 * 24 * 3_600_000 + 1), FIXED),
        (SLIDING_LOG_QUOTA_MAX + 1, MINUTE, Algorithm::SlidingLog),
        (1, MINUTE, Algorithm::SlidingWindow { precision: 1 }),
        (1, MINUTE, Algorithm::SlidingWindow { precision: 65 }),
        (1, MINUTE, Algorithm::TokenBucket { burst: 0 }),
        (1, WINDOW_MAX, Algorithm::TokenBucket { burst: 11 }),
        (
            700_000,
            Duration::from_secs(1),
            Algorithm::TokenBucket { burst: 1 },
        ),
        (
            LUA_INTEGER_MAX / 60_000_000 + 1,
            MINUTE,
            Algorithm::SlidingCounter,
        ),
    ] {
        assert_eq!(
            refused(quota, window, algorithm).len(),
            1,
            "{quota} {window:?} {algorithm:?}"
        );
    }
}

#[test]
fn bounds_are_accepted_at_the_edge() {
    for (quota, window, algorithm) in [
        (QUOTA_MAX, WINDOW_MAX, FIXED),
        (1, WINDOW_MIN, FIXED),
        (SLIDING_LOG_QUOTA_MAX, MINUTE, Algorithm::SlidingLog),
        (
            QUOTA_MAX,
            WINDOW_MAX,
            Algorithm::SlidingWindow { precision: 2 },
        ),
        (
            LUA_INTEGER_MAX / 60_000_000,
            MINUTE,
            Algorithm::SlidingCounter,
        ),
        (
            1_000_000,
            Duration::from_secs(1),
            Algorithm::TokenBucket { burst: 1 },
        ),
    ] {
        assert!(
            Limit::new("l", quota, window, algorithm).is_ok(),
            "{quota} {window:?} {algorithm:?}"
        );
    }
}

#[test]
fn every_wrong_field_is_reported() {
    assert_eq!(
        refused(0, Duration::ZERO, Algorithm::SlidingWindow { precision: 0 }).len(),
        3
    );
}

#[test]
fn a_share_is_rounded_up() {
    let limit = Limit::new("l", 100, MINUTE, Algorithm::TokenBucket { burst: 10 })
        .unwrap()
        .share(3);
    assert_eq!((limit.quota(), limit.capacity()), (34, 4));
    assert_eq!(limit.share(0), limit);
}

proptest! {
    /// All shares together are at least the quota, and exceed it by less than one unit per replica.
    #[test]
    fn shares_add_up_to_the_quota_plus_less_than_one_unit_per_replica(
        quota in 1..=QUOTA_MAX, burst in 1..=10_u64, replicas in 1..=10_000_u64,
    ) {
        let windows = [FIXED, Algorithm::SlidingWindow { precision: 64 }];
        let limits = windows.map(|algorithm| Limit::new("l", quota, WINDOW_MAX, algorithm).unwrap());
        let bucket = Limit::new("l", quota.min(1_000_000), MINUTE, Algorithm::TokenBucket { burst }).unwrap();
        for limit in limits.into_iter().chain([bucket]) {
            let share = limit.share(replicas);
            let fewer = limit.share(replicas + 1);
            for (whole, part) in [(limit.quota(), share.quota()), (limit.capacity(), share.capacity())] {
                prop_assert!(part >= 1 && part * replicas >= whole && part * replicas < whole + replicas);
            }
            prop_assert!(fewer.quota() <= share.quota() && fewer.capacity() <= share.capacity());
            prop_assert_eq!((share.fingerprint(), limit.share(1)), (limit.fingerprint(), limit));
        }
    }
}
