//! Hashes of keys: the same everywhere, and no key in clear where hashes are shown.

use tollgate::grpc::pb::{self, TopBy};

use super::PLANS;
use crate::support::admin::AdminFixture;
use crate::support::http::{get, post};
use crate::support::redis::Redis;
use crate::support::server::{decide, field, tollgate};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_told_by_no_metric_no_log_and_hashed_by_no_answer() {
    let redis = Redis::start();
    let flags = [
        "--store",
        &redis.url(),
        "--set",
        "listen.http=127.0.0.1:0",
        "--log-level",
        "debug",
    ];
    let mut one = AdminFixture::start(PLANS, &flags).await;
    let mut other = AdminFixture::start(PLANS, &flags).await;
    one.top_when("", TopBy::Denials, 1, |answer| answer.replicas == 2)
        .await;
    for plan in ["one", "two", "one"] {
        for replica in [&mut one, &mut other] {
            decide(&mut replica.client, "canary", plan).await;
        }
    }
    let denials = other
        .top_when("", TopBy::Denials, 0, |answer| answer.total == 3)
        .await;
    let cost = one
        .top_when("", TopBy::Cost, 0, |answer| answer.total == 3)
        .await;
    let rows: Vec<_> = cost
        .keys
        .iter()
        .map(|key| (key.plan.as_str(), key.count, key.error))
        .collect();
    assert_eq!(rows, [("two", 2, 0), ("one", 1, 0)], "{cost:?}");
    // The same key has the same hash under each plan and on each replica.
    assert!(
        denials.keys.len() == 1
            && cost
                .keys
                .iter()
                .all(|key| key.key_hash == denials.keys[0].key_hash)
    );
    for text in [
        format!("{denials:?}{cost:?}"),
        get(&one.server.http(), "/metrics").body,
        one.server.end_and_log(),
    ] {
        assert!(!text.to_lowercase().contains("canary"), "{text}");
    }
}

async fn hash_by_explain(replica: &mut AdminFixture) -> String {
    let request = pb::ExplainRequest {
        key: "alice".to_owned(),
        plan: "one".to_owned(),
        ..Default::default()
    };
    let explained = replica.admin.explain(request).await.unwrap();
    explained.into_inner().key_hash
}

/// A refund and a reset, and a reset that is refused: each is logged with the hash of the key.
async fn make_admin_calls(replica: &mut AdminFixture) {
    let reset = |plan: &str| pb::ResetRequest {
        key: "alice".to_owned(),
        plan: plan.to_owned(),
        ..Default::default()
    };
    let refund = pb::RefundRequest {
        key: "alice".to_owned(),
        plan: "one".to_owned(),
        cost: None,
        ..Default::default()
    };
    replica.admin.refund(refund).await.unwrap();
    replica.admin.reset(reset("one")).await.unwrap();
    replica.admin.reset(reset("internal")).await.unwrap_err();
}

/// The hashes of the key that log, page and command show.
async fn hashes_shown(replica: &AdminFixture) -> Vec<String> {
    let http = replica.server.http();
    let body = r#"{"key":"alice","plan":"one"}"#;
    let page: serde_json::Value =
        serde_json::from_str(&post(&http, "/status/explain", "application/json", body).body)
            .unwrap();
    let command = tollgate()
        .args([
            "explain",
            "--admin",
            &replica.address(),
            "--key",
            "alice",
            "--plan",
            "one",
        ])
        .output();
    let printed = String::from_utf8(command.unwrap().stdout).unwrap();
    let of_command = printed
        .lines()
        .find_map(|line| line.strip_prefix("hash of the key: "))
        .unwrap()
        .to_owned();
    replica.server.wait_for_line("\"plan\":\"internal\"").await;
    let log = replica.server.log();
    let of_log = log
        .lines()
        .filter(|line| line.contains("\"admin call\"") && !line.contains("Top"))
        .map(|line| field(line, "key_hash"));
    of_log
        .chain([page["key_hash"].as_str().unwrap().to_owned(), of_command])
        .collect()
}

/// By the secret of the other replica, and whether keys are counted or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_top_log_and_page_show_the_same_hash_of_a_key() {
    let redis = Redis::start();
    let page = [
        "--set",
        "listen.http=127.0.0.1:0",
        "--set",
        "status.page=true",
    ];
    let url = redis.url();
    let on = [&["--store", &url], &page[..]].concat();
    let mut one = AdminFixture::start(PLANS, &on).await;
    let mut other = AdminFixture::start(PLANS, &on).await;
    for replica in [&mut one, &mut other] {
        replica
            .top_when("", TopBy::Denials, 1, |answer| answer.replicas == 2)
            .await;
        decide(&mut replica.client, "alice", "one").await;
    }
    let top = one
        .top_when("one", TopBy::Denials, 1, |answer| answer.total == 1)
        .await
        .keys[0]
        .key_hash
        .clone();
    let mut off =
        AdminFixture::start(PLANS, &[&["--set", "status.keys=off"], &page[..]].concat()).await;
    let mut told = Vec::new();
    let mut shown = Vec::new();
    for replica in [&mut one, &mut other, &mut off] {
        told.push(hash_by_explain(replica).await);
        make_admin_calls(replica).await;
        let hashes = hashes_shown(replica).await;
        shown.extend(hashes.into_iter().map(|hash| (hash, told.len() - 1)));
    }
    assert_eq!((&told[0], &told[1]), (&top, &top));
    assert!(
        shown.len() >= 3 * 5 && shown.iter().all(|(hash, replica)| *hash == told[*replica]),
        "{told:?}: {shown:?}"
    );
    let data: serde_json::Value =
        serde_json::from_str(&get(&other.server.http(), "/status/data").body).unwrap();
    assert_eq!(
        data["top"]["denials"][0]["hash"].as_str(),
        Some(top.as_str()),
        "{data}"
    );
    // Nobody who does not know a secret of the server can try out keys.
    let unkeyed = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(b"alice"));
    assert!(told[2] != top && !told.contains(&unkeyed), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_shows_hashes_shows_no_key_that_another_one_shows_in_clear() {
    let redis = Redis::start();
    let mut clear = AdminFixture::start(
        PLANS,
        &["--store", &redis.url(), "--set", "status.keys=clear"],
    )
    .await;
    let mut hashes = AdminFixture::start(PLANS, &["--store", &redis.url()]).await;
    for replica in [&mut clear, &mut hashes] {
        replica
            .top_when("", TopBy::Cost, 1, |answer| answer.replicas == 2)
            .await;
    }
    decide(&mut clear.client, "alice", "two").await;
    let answer = hashes
        .top_when("two", TopBy::Cost, 1, |answer| answer.total == 1)
        .await;
    assert_eq!(
        (answer.keys[0].key.as_str(), answer.keys[0].count),
        ("", 1),
        "{answer:?}"
    );
    // The other way round there is no key in clear to be shown.
    assert_eq!(clear.top("two", TopBy::Cost, 1).await.keys[0].key, "alice");
}
