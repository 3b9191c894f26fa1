//! Calendar windows where callers, operators and gateways see them.

use tollgate::grpc::pb;
use tollgate::grpc::pb::{DecidedBy, Outcome};
use tollgate::plan::ZONE_DATABASE;

use crate::support::admin::AdminFixture;
use crate::support::http::{Scrape, get};
use crate::support::redis::{Redis, free_port};
use crate::support::server::{Server, decide, request};

const PLANS: &str = "listen: { http: '127.0.0.1:0' }\nplans:\n  \
    p: { limits: [ { quota: 5, window: day }, { quota: 50, window: week, starts: sunday, zone: asia/tokyo }, \
    { quota: 500, window: month, starts: 15, zone: Asia/Tokyo } ] }\n  \
    tried: { limits: [ { quota: 9, window: 1m } ], candidate: p }\n";
const DAY_US: u64 = 86_400_000_000;

fn us(time: Option<prost_types::Duration>) -> u64 {
    let time = time.unwrap();
    u64::try_from(time.seconds).unwrap() * 1_000_000 + u64::try_from(time.nanos).unwrap() / 1_000
}

#[tokio::test]
async fn callers_over_http_see_the_present_window_and_scrapers_the_usual_one() {
    let server = Server::start(PLANS, &[]);
    let reply = get(&server.http(), "/v1/check?key=k&plan=p&cost=2");
    let policy = reply.header("ratelimit-policy").unwrap().to_owned();
    let windows: Vec<&str> = policy
        .split(", ")
        .map(|item| item.split(";w=").nth(1).unwrap())
        .collect();
    // Neither UTC nor Tokyo sets its clocks, so only months differ.
    assert_eq!(windows[..2], ["86400", "604800"], "{policy}");
    let month: u64 = windows[2].parse().unwrap();
    assert!((28..=31).contains(&(month / 86_400)) && month.is_multiple_of(86_400));
    assert!(policy.starts_with("\"fixed_window/day\";q=5;w=86400, \"fixed_window/week\";q=50"));
    let denied = get(&server.http(), "/v1/check?key=k&plan=p&cost=4");
    let json: serde_json::Value = serde_json::from_str(&denied.body).unwrap();
    assert_eq!((denied.status, &json["window_us"]), (429, &DAY_US.into()));
    assert_eq!(json["limits"][2]["window_us"], month * 1_000_000);
    assert!(json["reset_after_us"].as_u64().unwrap() <= DAY_US);
    // What never fits is known without a store, and so is the window.
    let never = get(&server.http(), "/v1/check?key=k&plan=p&cost=6");
    assert_eq!(never.header("ratelimit-policy").unwrap(), policy);
    let scrape = Scrape::of(&server.http());
    for (limit, seconds) in [
        ("day", 86_400.0),
        ("week", 604_800.0),
        ("month", 2_592_000.0),
    ] {
        let labels = format!("{{plan=\"p\",limit=\"fixed_window/{limit}\"}}");
        let sample = format!("tollgate_plan_limit_window_seconds{labels}");
        assert_eq!(scrape.value(&sample), seconds);
    }
    assert!(
        scrape
            .text
            .contains(&format!(",tzdb=\"{ZONE_DATABASE}\"}}"))
    );
}

#[tokio::test]
async fn every_call_of_both_services_counts_calendar_windows_in_both_stores() {
    let redis = Redis::start();
    for flags in [vec![], vec!["--store".to_owned(), redis.url()]] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut world = AdminFixture::start(PLANS, &flags).await;
        let key = "k".to_owned();
        let peek = pb::PeekRequest {
            key: key.clone(),
            plan: "p".to_owned(),
            ..pb::PeekRequest::default()
        };
        let peeked = world.client.peek(peek).await.unwrap().into_inner();
        let peeked = peeked.answer.unwrap();
        assert_eq!((peeked.remaining, us(peeked.window)), (Some(5), DAY_US));
        let batch = pb::ShouldAllowBatchRequest {
            requests: vec![request("k", "p", Some(2)), request("k", "tried", Some(1))],
        };
        world.client.should_allow_batch(batch).await.unwrap();
        let joint = pb::ShouldAllowJointRequest {
            requests: vec![request("k", "p", Some(3)), request("other", "p", Some(1))],
            ..pb::ShouldAllowJointRequest::default()
        };
        let joint = world
            .client
            .should_allow_joint(joint)
            .await
            .unwrap()
            .into_inner();
        assert!(joint.allowed && joint.binding == 0, "{joint:?}");
        let denied = decide(&mut world.client, "k", "p").await;
        assert_eq!(denied.outcome(), Outcome::Denied);
        assert_eq!(us(denied.retry_after), us(denied.more_after));
        let explain = pb::ExplainRequest {
            key: key.clone(),
            plan: "p".to_owned(),
            ..pb::ExplainRequest::default()
        };
        let told = world.admin.explain(explain).await.unwrap().into_inner();
        let day = &told.limits[0];
        assert_eq!((day.used, day.releases.len()), (5, 1));
        let limit = day.limit.clone().unwrap();
        assert_eq!(limit.calendar.unwrap().unit(), pb::CalendarUnit::Day);
        assert_eq!(us(day.status.clone().unwrap().window), DAY_US);
        let refund = pb::RefundRequest {
            key,
            plan: "p".to_owned(),
            cost: Some(4),
            ..pb::RefundRequest::default()
        };
        let refunded = world.admin.refund(refund).await.unwrap().into_inner();
        let given_back: Vec<u64> = refunded.limits.iter().map(|limit| limit.refunded).collect();
        assert_eq!(given_back, [4, 4, 4], "{refunded:?}");
        assert!(decide(&mut world.client, "k", "p").await.allowed);
        let tried = decide(&mut world.client, "k", "tried").await;
        assert!(tried.allowed);
    }
}

#[tokio::test]
async fn a_replica_alone_counts_calendar_windows_by_its_own_clock() {
    let plans = PLANS.to_owned() + "  alone: { limits: [ { quota: 3, window: month } ] }\n";
    let nowhere = format!("redis://127.0.0.1:{}", free_port());
    let server = Server::start(&plans, &["--store", &nowhere]);
    let mut client = server.client().await;
    let mut granted = 0;
    for _ in 0..6 {
        let answer = decide(&mut client, "k", "alone").await;
        assert_eq!(answer.decided_by(), DecidedBy::LocalFallback);
        granted += u32::from(answer.allowed);
        assert!((28..=31).contains(&(us(answer.window) / DAY_US)));
    }
    assert_eq!(granted, 3);
}
