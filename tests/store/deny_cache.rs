//! The deny cache over a real Redis. Its log of script calls shows whether the store or the cache answered.

use std::time::{Duration, Instant};

use tollgate::grpc::pb::{self, DecidedBy, Outcome};

use crate::support::redis::Redis;
use crate::support::server::{Client, Server, decide, request};

/// `slow` gives its one unit back after a day, `quick` after 400 ms, `mixed` a unit a day of three.
const PLANS: &str = "
store: { deadline: 10s, expected_replicas: 1 }   # with a number, replicas tell Redis nothing, which would be counted here
plans:
  slow: { limits: [ { quota: 1, window: 1d } ] }
  quick: { limits: [ { quota: 5, window: 2s, algorithm: token_bucket, burst: 1 } ] }
  mixed: { limits: [ { quota: 3, window: 3d, algorithm: token_bucket } ] }
  shadow: { limits: [ { quota: 1, window: 1d } ], shadow: true }
";

/// Longest time that a denial is remembered.
const HELD: Duration = Duration::from_secs(1);

async fn start() -> (Redis, Server, Client) {
    start_with(&[]).await
}

async fn start_with(flags: &[&str]) -> (Redis, Server, Client) {
    let redis = Redis::start();
    let url = redis.url();
    let server = Server::start(PLANS, &[&["--store", url.as_str()], flags].concat());
    let mut client = server.client().await;
    // The script is loaded by this, so that no test counts the call that finds it missing.
    decide(&mut client, "first", "slow").await;
    (redis, server, client)
}

async fn outcome_and_decider(
    client: &mut Client,
    key: &str,
    plan: &str,
    cost: u64,
) -> (Outcome, DecidedBy) {
    let answer = client
        .should_allow(request(key, plan, Some(cost)))
        .await
        .unwrap()
        .into_inner();
    (answer.outcome(), answer.decided_by())
}

#[tokio::test]
async fn fault_31_a_thousand_requests_of_a_denied_key_cost_redis_a_call_a_second() {
    let (redis, _server, mut client) = start().await;
    decide(&mut client, "k", "slow").await;
    redis.log_calls();
    let started = Instant::now();
    assert_eq!(
        outcome_and_decider(&mut client, "k", "slow", 1).await,
        (Outcome::Denied, DecidedBy::Store)
    );
    assert_eq!(redis.decision_calls(), 1);
    for _ in 0..1_000 {
        assert_eq!(
            decide(&mut client, "k", "slow").await.outcome(),
            Outcome::Denied
        );
    }
    let calls = redis.decision_calls() - 1;
    let took = started.elapsed();
    println!("{calls} script calls for 1,000 denials in {took:?}");
    // Each denial asked for anew is asked for a second after the one before it.
    assert!(calls as u64 <= took.as_secs(), "{calls} calls in {took:?}");
}

#[tokio::test]
async fn off_it_asks_redis_every_time() {
    let (redis, _server, mut client) = start_with(&["--set", "deny_cache.entries=0"]).await;
    decide(&mut client, "k", "slow").await;
    redis.log_calls();
    for _ in 0..20 {
        assert_eq!(
            outcome_and_decider(&mut client, "k", "slow", 1).await,
            (Outcome::Denied, DecidedBy::Store)
        );
    }
    assert_eq!(redis.decision_calls(), 20);
}

/// Asked all the time around it. A request that is sent after the release, by any account, must be allowed.
#[tokio::test]
async fn a_denied_key_is_allowed_at_its_release() {
    let (_redis, _server, mut client) = start().await;
    let mut recalled = 0;
    for round in 0..5 {
        let key = format!("k {round}");
        let before = Instant::now();
        assert_eq!(
            outcome_and_decider(&mut client, &key, "quick", 1).await,
            (Outcome::Allowed, DecidedBy::Store)
        );
        let released_by = Instant::now() + Duration::from_millis(400);
        loop {
            let sent = Instant::now();
            let (outcome, decided_by) = outcome_and_decider(&mut client, &key, "quick", 1).await;
            if outcome == Outcome::Allowed {
                assert!(
                    before.elapsed() >= Duration::from_millis(400),
                    "early: {:?}",
                    before.elapsed()
                );
                break;
            }
            assert!(
                sent < released_by,
                "denied by {decided_by:?} {:?} after its release",
                sent - released_by
            );
            recalled += u32::from(decided_by == DecidedBy::DenyCache);
        }
    }
    assert!(recalled > 0, "the cache took no part");
}

#[tokio::test]
async fn a_cost_that_fits_reaches_redis_while_a_larger_one_is_denied() {
    let (_redis, _server, mut client) = start().await;
    assert_eq!(
        outcome_and_decider(&mut client, "k", "mixed", 1).await,
        (Outcome::Allowed, DecidedBy::Store)
    );
    assert_eq!(
        outcome_and_decider(&mut client, "k", "mixed", 3).await,
        (Outcome::Denied, DecidedBy::Store)
    );
    assert_eq!(
        outcome_and_decider(&mut client, "k", "mixed", 3).await,
        (Outcome::Denied, DecidedBy::DenyCache)
    );
    assert_eq!(
        outcome_and_decider(&mut client, "k", "mixed", 2).await,
        (Outcome::Allowed, DecidedBy::Store)
    );
    let peek = pb::PeekRequest {
        key: "k".to_owned(),
        plan: "mixed".to_owned(),
        cost: None,
        ..Default::default()
    };
    let peeked = client
        .peek(peek)
        .await
        .unwrap()
        .into_inner()
        .answer
        .unwrap();
    assert_eq!(
        (peeked.outcome(), peeked.decided_by()),
        (Outcome::Denied, DecidedBy::Store)
    );
}

/// What docs/concepts.md says of a Redis that lost its data: its denials are held on to, for a second at most.
#[tokio::test]
async fn a_denial_that_redis_forgot_is_held_for_a_second_at_most() {
    let (redis, _server, mut client) = start().await;
    decide(&mut client, "k", "slow").await;
    let before = Instant::now();
    assert_eq!(
        outcome_and_decider(&mut client, "k", "slow", 1).await,
        (Outcome::Denied, DecidedBy::Store)
    );
    let held_until = Instant::now() + HELD;
    redis.cli(&["FLUSHALL"]);
    loop {
        let sent = Instant::now();
        let (outcome, decided_by) = outcome_and_decider(&mut client, "k", "slow", 1).await;
        if outcome == Outcome::Allowed {
            assert_eq!(decided_by, DecidedBy::Store);
            assert!(before.elapsed() >= HELD, "it was not held at all");
            break;
        }
        assert_eq!(decided_by, DecidedBy::DenyCache);
        assert!(
            sent < held_until,
            "held for {:?} too long",
            sent - held_until
        );
    }
}

#[tokio::test]
async fn a_shadow_plan_s_denial_is_recalled_and_lets_pass() {
    let (_redis, _server, mut client) = start().await;
    assert_eq!(
        outcome_and_decider(&mut client, "k", "shadow", 1).await,
        (Outcome::Allowed, DecidedBy::Store)
    );
    assert_eq!(
        outcome_and_decider(&mut client, "k", "shadow", 1).await,
        (Outcome::ShadowDenied, DecidedBy::Store)
    );
    let recalled = decide(&mut client, "k", "shadow").await;
    assert!(recalled.allowed && recalled.retry_after.is_none());
    assert_eq!(
        (recalled.outcome(), recalled.decided_by()),
        (Outcome::ShadowDenied, DecidedBy::DenyCache)
    );
}
