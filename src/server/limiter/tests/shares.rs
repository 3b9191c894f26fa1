//! Shares of the quotas while stores cannot decide: what one replica grants, and what all grant together.

use std::sync::atomic::{AtomicBool, Ordering};
use tollgate_store::StoreDeadline;

use super::*;

#[tokio::test]
async fn local_counts_a_share_rounded_up() {
    let limiter = broken();
    for _ in 0..4 {
        assert_eq!(
            check(&limiter, "ten", 1).await,
            (Outcome::Allowed, DecidedBy::LocalFallback)
        );
    }
    assert_eq!(
        check(&limiter, "ten", 1).await,
        (Outcome::Denied, DecidedBy::LocalFallback)
    );
    assert_eq!(
        check(&limiter, "ten", 5).await,
        (Outcome::Denied, DecidedBy::LocalFallback)
    );
}

/// With more replicas the share is smaller, with fewer it is larger. Units granted before count against either.
#[tokio::test]
async fn local_counts_stay_when_the_number_of_replicas_changes() {
    let limiter = broken();
    let take_all = async || {
        let mut granted = 0;
        while check(&limiter, "ten", 1).await == (Outcome::Allowed, DecidedBy::LocalFallback) {
            granted += 1;
        }
        granted
    };
    assert_eq!(take_all().await, 4, "a third of ten, rounded up");
    limiter.share_among(5);
    assert_eq!((take_all().await, limiter.totals().replicas), (0, 5));
    limiter.share_among(2);
    assert_eq!(take_all().await, 1);
    limiter.share_among(1);
    assert_eq!(take_all().await, 5);
}

#[tokio::test]
async fn plans_that_come_later_are_shared_among_the_same_number_of_replicas() {
    let limiter = broken();
    limiter.share_among(10);
    limiter.reload(plans());
    assert_eq!(
        check(&limiter, "ten", 1).await,
        (Outcome::Allowed, DecidedBy::LocalFallback)
    );
    assert_eq!(
        check(&limiter, "ten", 1).await,
        (Outcome::Denied, DecidedBy::LocalFallback)
    );
}

#[tokio::test]
async fn limiters_beside_each_other_count_one_share_when_their_stores_fail() {
    let one = broken();
    let other = one.with_store(Broken(StoreError::Deadline(Duration::from_millis(25))));
    // A third of ten, rounded up.
    for limiter in [&one, &other, &one, &other] {
        assert_eq!(
            check(limiter, "ten", 1).await,
            (Outcome::Allowed, DecidedBy::LocalFallback)
        );
    }
    for limiter in [&one, &other] {
        assert_eq!(
            check(limiter, "ten", 1).await,
            (Outcome::Denied, DecidedBy::LocalFallback)
        );
    }
    assert_eq!(one.snapshot().config_hash(), other.snapshot().config_hash());
}

/// Exact counters that the test can make unreachable.
struct Remembers {
    counters: Arc<MemoryStore>,
    up: Arc<AtomicBool>,
}

impl Store for Remembers {
    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        let lost = || Err(StoreError::Unreachable("gone".to_owned()));
        let up = self.up.load(Ordering::SeqCst);
        checks
            .iter()
            .map(|check| {
                if up {
                    self.counters.decide(check)
                } else {
                    lost()
                }
            })
            .collect()
    }
}

/// Some of three replicas lose the store and find it again, repeatedly within one window. The bound of docs/failures.md is
/// reached and not exceeded.
#[tokio::test]
async fn a_store_that_goes_and_comes_grants_a_quota_and_a_share_for_each_replica_cut_off() {
    for cut_off in 0..=3_u64 {
        let counters = Arc::new(MemoryStore::new(CAPACITY_DEFAULT, Arc::new(Clock0)));
        let ups: Vec<_> = (0..3).map(|_| Arc::new(AtomicBool::new(true))).collect();
        // A remembered denial holds through an outage, so with a deny cache the bound would not be reached.
        let settings = LimiterSettings {
            deny_cache_entries: 0,
            ..SETTINGS
        };
        let replica = |up: &Arc<AtomicBool>| {
            let store = Remembers {
                counters: counters.clone(),
                up: up.clone(),
            };
            Limiter::new(plans(), store, settings, Arc::new(Clock0))
        };
        let replicas: Vec<_> = ups.iter().map(replica).collect();
        let mut granted = 0;
        for round in 0..20 {
            ups.iter()
                .take(cut_off as usize)
                .for_each(|up| up.store(round % 2 == 0, Ordering::SeqCst));
            for replica in replicas.iter().cycle().take(9) {
                granted += u64::from(check(replica, "ten", 1).await.0 == Outcome::Allowed);
            }
        }
        // A share is a third of ten, rounded up.
        assert_eq!(granted, 10 + cut_off * 4, "{cut_off} cut off");
    }
}
