//! What answers take of a worker's memory at most.

use std::time::Duration;

use super::*;
use crate::limiter::LimiterSettings;
use crate::transport::account::{KEPT_MAX, WorkerAccount};
use tollgate_core::plan::{Algorithm, Limit, Plan, Rule};
use tollgate_store::clock::SystemClock;

/// As many streams as peers may open could ask for ten times what a worker keeps.
#[test]
fn answers_of_streams_and_batches_take_no_more_than_a_worker_keeps() {
    let limit = |seconds| {
        let window = Duration::from_secs(seconds);
        Limit::new(seconds.to_string(), 1, window, Algorithm::SlidingLog).unwrap()
    };
    let plan = Plan::new("p", Rule::limits((1..=8).map(limit)));
    let settings = LimiterSettings {
        deadline: Duration::from_secs(1),
        expected_replicas: 1,
        deny_cache_entries: 0,
    };
    let clock = Arc::new(SystemClock);
    let limiter = Limiter::without_store([plan].into_iter().collect(), settings, clock);
    let request = pb::ShouldAllowRequest {
        key: "k".to_owned(),
        plan: "p".to_owned(),
        detailed: true,
        http_headers: true,
        ..Default::default()
    };
    let worker = WorkerAccount::default();
    let requests = vec![request; 64];
    let accounts: Vec<_> = (0..100).map(|_| worker.open()).collect();
    let rooms = accounts.iter().cycle().take(1_000);
    let (granted, refused): (Vec<_>, Vec<_>) = rooms
        .map(|account| room_for_answers(&limiter, &requests, Some(account)))
        .partition(Result::is_ok);
    assert!(worker.kept() <= KEPT_MAX, "{} bytes", worker.kept());
    assert!(
        granted.len() > 20 && !refused.is_empty(),
        "{} granted",
        granted.len()
    );
}
