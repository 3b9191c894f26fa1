//! Blocks where callers and operators see them, with both stores, and while the store cannot decide.

use tollgate::grpc::pb::{self, DecidedBy, Outcome};

use crate::support::admin::AdminFixture;
use crate::support::http::{Scrape, get};
use crate::support::redis::{Redis, free_port};
use crate::support::server::{Server, decide, request, tollgate};

const PLANS: &str = "listen: { http: '127.0.0.1:0' }\nplans:\n  \
    p: { limits: [ { name: minute, quota: 2, window: 1m, algorithm: fixed_window, anchor: first_request, block: 15m } ] }\n  \
    free: { limits: [ { name: minute, quota: 9, window: 1m, algorithm: fixed_window, anchor: first_request } ], counts_as: p }\n  \
    tried: { limits: [ { name: minute, quota: 2, window: 1m, block: 15m } ], shadow: true }\n";

fn seconds(time: Option<prost_types::Duration>) -> i64 {
    time.map_or(0, |time| time.seconds)
}

async fn detailed(world: &mut AdminFixture, plan: &str, cost: u64) -> pb::ShouldAllowResponse {
    let request = pb::ShouldAllowRequest {
        detailed: true,
        ..request("k", plan, Some(cost))
    };
    world
        .client
        .should_allow(request)
        .await
        .unwrap()
        .into_inner()
}

#[expect(
    clippy::too_many_lines,
    reason = "one history, told from its beginning to its end"
)]
async fn blocks_are_told(flags: &[&str]) {
    let mut world = AdminFixture::start(PLANS, flags).await;
    assert!(detailed(&mut world, "p", 2).await.allowed);
    // A cost that never fits begins none, and neither does a peek.
    assert_eq!(
        detailed(&mut world, "p", 3).await.outcome(),
        Outcome::NeverFits
    );
    let peek = pb::PeekRequest {
        key: "k".to_owned(),
        plan: "p".to_owned(),
        ..pb::PeekRequest::default()
    };
    let peeked = world
        .client
        .peek(peek)
        .await
        .unwrap()
        .into_inner()
        .answer
        .unwrap();
    assert!(!peeked.allowed);
    assert!(seconds(peeked.retry_after) < 60);
    for _ in 0..3 {
        let denied = detailed(&mut world, "p", 1).await;
        assert_eq!(
            (denied.outcome(), denied.remaining),
            (Outcome::Denied, Some(0))
        );
        for told in [
            denied.retry_after,
            denied.reset_after,
            denied.limits[0].blocked_for,
        ] {
            assert!((870..=900).contains(&seconds(told)), "{denied:?}");
        }
    }
    let http = world.server.http();
    let reply = get(&http, "/v1/check?key=k&plan=p");
    let json: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
    let blocked_us = json["limits"][0]["blocked_for_us"].as_u64().unwrap();
    assert!((870_000_000..=900_000_000).contains(&blocked_us), "{json}");
    let retry: u64 = reply.header("retry-after").unwrap().parse().unwrap();
    assert!(reply.status == 429 && (870..=900).contains(&retry));
    // A plan of the same count without `block` does not look.
    assert!(
        detailed(&mut world, "free", 1).await.limits[0]
            .blocked_for
            .is_none()
    );
    let explain = pb::ExplainRequest {
        key: "k".to_owned(),
        plan: "p".to_owned(),
        ..Default::default()
    };
    let told = world.admin.explain(explain).await.unwrap().into_inner();
    assert!(
        told.sentence.starts_with(
            "The next request of cost 1 is denied: limit minute has blocked this key for 1"
        ),
        "{}",
        told.sentence
    );
    assert!(seconds(told.limits[0].status.clone().unwrap().blocked_for) >= 870);
    let first = &told.limits[0].releases[0];
    assert!(
        seconds(first.after) >= 870,
        "no unit comes back before: {first:?}"
    );
    assert_eq!(
        Scrape::of(&http).value("tollgate_blocks_total{plan=\"p\",limit=\"minute\"}"),
        1.0
    );
    let refund = pb::RefundRequest {
        key: "k".to_owned(),
        plan: "p".to_owned(),
        cost: Some(2),
        ..Default::default()
    };
    world.admin.refund(refund).await.unwrap();
    assert_eq!(
        decide(&mut world.client, "k", "p").await.outcome(),
        Outcome::Denied
    );
    let reset = pb::ResetRequest {
        key: "k".to_owned(),
        plan: "p".to_owned(),
        ..Default::default()
    };
    world.admin.reset(reset).await.unwrap();
    assert!(decide(&mut world.client, "k", "p").await.allowed);
}

#[tokio::test]
async fn a_block_is_told_by_every_answer_and_ends_by_a_reset_in_the_embedded_store() {
    blocks_are_told(&[]).await;
}

#[tokio::test]
async fn a_block_is_told_by_every_answer_and_ends_by_a_reset_in_redis() {
    let redis = Redis::start();
    blocks_are_told(&["--store", &redis.url()]).await;
}

#[tokio::test]
async fn in_a_shadow_plan_blocks_run_and_deny_nothing() {
    let mut world = AdminFixture::start(PLANS, &[]).await;
    detailed(&mut world, "tried", 2).await;
    for _ in 0..3 {
        let told = detailed(&mut world, "tried", 1).await;
        assert_eq!(
            (told.allowed, told.outcome(), told.retry_after),
            (true, Outcome::ShadowDenied, None)
        );
        assert!(seconds(told.limits[0].blocked_for) >= 870);
    }
    let scrape = Scrape::of(&world.server.http());
    assert_eq!(
        scrape.value("tollgate_blocks_total{plan=\"tried\",limit=\"minute\"}"),
        1.0
    );
    // One that has none yet is there, so that its first is seen.
    assert_eq!(
        scrape.value("tollgate_blocks_total{plan=\"p\",limit=\"minute\"}"),
        0.0
    );
}

#[tokio::test]
async fn a_replica_alone_keeps_blocks_in_its_memory() {
    let nowhere = format!("redis://127.0.0.1:{}", free_port());
    let server = Server::start(PLANS, &["--store", &nowhere]);
    let mut client = server.client().await;
    for allowed in [true, true, false, false] {
        let answer = decide(&mut client, "k", "p").await;
        assert_eq!(
            (answer.allowed, answer.decided_by()),
            (allowed, DecidedBy::LocalFallback)
        );
        assert!(allowed || seconds(answer.retry_after) >= 870, "{answer:?}");
    }
}

#[tokio::test]
async fn the_command_line_tells_blocks() {
    let world = AdminFixture::start(PLANS, &[]).await;
    let run = |arguments: &[&str]| {
        let output = tollgate().args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let plans = run(&["plans", "--address", &world.server.address]);
    assert!(
        plans.contains("limit minute: 2 in 1m (fixed_window, anchor first_request, block 15m)"),
        "{plans}"
    );
    let ask = [
        "try",
        "--address",
        &world.server.address,
        "--key",
        "k",
        "--plan",
        "p",
    ];
    run(&[&ask[..], &["--cost", "2"]].concat());
    let told = run(&ask);
    assert!(
        told.contains("limit minute: 0 of 2 remaining, blocked for 9")
            || told.contains("blocked for 8"),
        "{told}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&run(&[&ask[..], &["--output", "json"]].concat())).unwrap();
    assert!(
        json["limits"][0]["blocked_for_us"].as_u64().unwrap() > 870_000_000,
        "{json}"
    );
    let explained = run(&[
        "explain",
        "--admin",
        &world.address(),
        "--key",
        "k",
        "--plan",
        "p",
    ]);
    assert!(
        explained.contains("has blocked this key for 1") && explained.contains("  blocked for 1"),
        "{explained}"
    );
}
