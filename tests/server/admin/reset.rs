//! `Reset`: its effect shows at once, whatever remembers the key.

use tollgate::grpc::pb::{DecidedBy, Outcome};

use super::{Fixture, KEY, reset};
use crate::support::redis::Redis;
use crate::support::server::decide;

async fn assert_reset_is_seen_at_once(flags: &[&str]) {
    let mut fixture = Fixture::start(flags).await;
    for round in 0..3 {
        assert_eq!(
            fixture.ask("trial", 5).await,
            (Outcome::Allowed, DecidedBy::Store),
            "round {round}"
        );
        assert_eq!(fixture.ask("trial", 1).await.0, Outcome::Denied);
        assert_eq!(fixture.ask("trial", 1).await.0, Outcome::Denied);
        // By another plan with the same `counts_as`.
        let answer = fixture
            .admin
            .reset(reset(KEY, "paid"))
            .await
            .unwrap()
            .into_inner();
        assert!(answer.existed);
    }
    let again = fixture
        .admin
        .reset(reset(KEY, "paid"))
        .await
        .unwrap()
        .into_inner();
    assert!(!again.existed);
    for _ in 0..2 {
        assert_eq!(fixture.ask("several", 4).await.0, Outcome::Allowed);
        assert_eq!(fixture.ask("several", 1).await.0, Outcome::Denied);
        assert!(
            fixture
                .admin
                .reset(reset(KEY, "several"))
                .await
                .unwrap()
                .into_inner()
                .existed
        );
    }
}

#[tokio::test]
async fn a_reset_is_seen_at_once_in_memory() {
    assert_reset_is_seen_at_once(&[]).await;
}

/// Also if this replica's workers remember that the key is denied.
#[tokio::test]
async fn a_reset_is_seen_at_once_in_redis() {
    let redis = Redis::start();
    assert_reset_is_seen_at_once(&[
        "--store",
        &redis.url(),
        "--set",
        "store.deadline=10s",
        "--set",
        "workers=3",
    ])
    .await;
    assert!(
        !redis.cli(&["KEYS", "*"]).contains(KEY),
        "{}",
        redis.cli(&["KEYS", "*"])
    );
}

/// Also a log of a limit that this replica never had in its plans, with an uncommon window.
#[tokio::test]
async fn a_reset_forgets_logs_that_only_another_replica_has() {
    let redis = Redis::start();
    let flags = [
        "--store",
        &redis.url(),
        "--set",
        "store.deadline=10s",
        "--set",
        "deny_cache.entries=0",
    ];
    let of =
        |limits: &str| format!("plans:\n  paid: {{ limits: [ {limits} ], counts_as: customer }}\n");
    let log = |window: &str| {
        format!("{{ name: w{window}, quota: 5, window: {window}, algorithm: sliding_log }}")
    };
    let mut other =
        Fixture::start_with(&of(&format!("{}, {}", log("1234s"), log("1h"))), &flags).await;
    let mut here = Fixture::start_with(
        &of("{ quota: 100, window: 1m, algorithm: fixed_window, anchor: first_request }"),
        &flags,
    )
    .await;
    for round in 0..2 {
        assert_eq!(
            other.ask("paid", 5).await,
            (Outcome::Allowed, DecidedBy::Store),
            "round {round}"
        );
        assert_eq!(other.ask("paid", 1).await.0, Outcome::Denied);
        assert!(
            here.admin
                .reset(reset(KEY, "paid"))
                .await
                .unwrap()
                .into_inner()
                .existed
        );
        assert!(
            !here
                .admin
                .reset(reset(KEY, "paid"))
                .await
                .unwrap()
                .into_inner()
                .existed
        );
    }
    assert!(
        !redis.cli(&["KEYS", "*"]).contains(KEY),
        "{}",
        redis.cli(&["KEYS", "*"])
    );
    assert_eq!(here.ask("paid", 1).await.0, Outcome::Allowed);
}

/// In a Cluster too, except while a slot moves: then each key is deleted by itself.
#[tokio::test]
async fn a_reset_is_one_reading_and_one_call_however_many_logs_there_are() {
    let redis = Redis::start();
    let mut fixture =
        Fixture::start(&["--store", &redis.url(), "--set", "store.deadline=10s"]).await;
    fixture.ask("several", 1).await;
    // The first reset loads the script.
    fixture.admin.reset(reset(KEY, "several")).await.unwrap();
    fixture.ask("several", 1).await;
    let sent = || ["get", "unlink"].map(|command| redis.ran(command));
    let before = sent();
    assert!(
        fixture
            .admin
            .reset(reset(KEY, "several"))
            .await
            .unwrap()
            .into_inner()
            .existed
    );
    let after = sent();
    // Two GET: the store reads the index, and the script reads it again. Two UNLINK: of the index, and of all other keys.
    assert_eq!([0, 1].map(|index| after[index] - before[index]), [2, 2]);
}

#[tokio::test]
async fn a_reset_clears_the_deny_cache_of_every_worker_before_it_answers() {
    let redis = Redis::start();
    let mut fixture = Fixture::start(&[
        "--store",
        &redis.url(),
        "--set",
        "store.deadline=10s",
        "--set",
        "workers=4",
    ])
    .await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(fixture.server.client().await);
    }
    for refunds in [false, true, false, true] {
        fixture.ask("trial", 5).await;
        for client in &mut clients {
            decide(client, KEY, "trial").await;
            let recalled = decide(client, KEY, "trial").await;
            // A denial is remembered for a second, which may have passed on a busy machine.
            assert!(
                !recalled.allowed
                    && matches!(
                        recalled.decided_by(),
                        DecidedBy::DenyCache | DecidedBy::Store
                    )
            );
        }
        if refunds {
            assert_eq!(fixture.refund("trial", 4).await.refunded, 4);
        } else {
            fixture.admin.reset(reset(KEY, "trial")).await.unwrap();
        }
        for client in &mut clients {
            let answer = decide(client, KEY, "trial").await;
            assert_eq!(
                (answer.allowed, answer.decided_by()),
                (true, DecidedBy::Store),
                "refunds: {refunds}"
            );
        }
        fixture.admin.reset(reset(KEY, "trial")).await.unwrap();
    }
}
