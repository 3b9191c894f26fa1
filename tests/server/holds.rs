//! Holds, records and requests with an id, through gRPC and the real program.

mod operators;
mod world;

use tollgate::grpc::pb::hold_service_client::HoldServiceClient;
use tollgate::grpc::pb::{self, DecidedBy, HoldState, Outcome, SettleOutcome};
use tonic::Code;
use tonic::transport::Channel;

use crate::support::admin::AdminFixture;
use crate::support::http::Scrape;
use crate::support::server::{Client, channel_to, request};
use operators::*;
use world::World;

const PLANS: &str = "
listen: { http: '127.0.0.1:0' }
plans:
  tokens: { limits: [ { quota: 100000, window: 1m } ] }
  jobs: { limits: [ { quota: 5, algorithm: concurrency } ], holds: { ttl: 30s } }
  mixed: { limits: [ { quota: 10, window: 1m }, { quota: 2, algorithm: concurrency } ] }
  login: { limits: [ { quota: 5, window: 15m, block: 1h } ] }
  shadow: { limits: [ { quota: 5, window: 1m } ], shadow: true }
  estimate: { limits: [ { quota: 10, window: 1h, algorithm: sliding_counter } ] }
  free: { unlimited: true }
";

pub(super) fn reserve(plan: &str, id: &str, cost: u64) -> pb::ReserveRequest {
    pb::ReserveRequest {
        key: "acme".to_owned(),
        plan: plan.to_owned(),
        cost: Some(cost),
        request_id: id.to_owned(),
        ..Default::default()
    }
}

pub(super) fn settle(plan: &str, id: &str, actual: Option<u64>) -> pb::SettleRequest {
    pb::SettleRequest {
        key: "acme".to_owned(),
        plan: plan.to_owned(),
        request_id: id.to_owned(),
        actual,
        ..Default::default()
    }
}

fn record(plan: &str, id: &str, cost: u64) -> pb::RecordRequest {
    pb::RecordRequest {
        key: "acme".to_owned(),
        plan: plan.to_owned(),
        cost: Some(cost),
        request_id: id.to_owned(),
        ..Default::default()
    }
}

fn seconds(duration: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration {
        seconds: duration,
        nanos: 0,
    })
}

fn of_answer(answer: Option<&pb::ShouldAllowResponse>) -> (bool, Option<u64>) {
    let answer = answer.unwrap();
    (answer.allowed, answer.remaining)
}

/// Runs a claim with the embedded store, and with Redis.
macro_rules! with_both_stores {
    ($($claim:ident),* $(,)?) => {
        mod embedded { $(#[tokio::test] async fn $claim() { super::$claim(super::World::start(&[]).await).await; })* }
        mod redis {
            $(#[tokio::test] async fn $claim() {
                let redis = crate::support::redis::Redis::start();
                super::$claim(super::World::start(&["--store", &redis.url(), "--set", "store.deadline=10s"]).await).await;
            })*
        }
    };
}

with_both_stores!(
    tokens_are_reserved_and_settled_as_the_example_says,
    five_jobs_run_at_once_as_the_example_says,
    only_failed_logins_count_as_the_example_says,
    bad_calls_say_what_is_wrong_and_change_nothing,
    a_lease_that_is_hardly_too_long_is_told_exactly,
    an_unknown_number_of_if_unknown_charges_nothing,
    a_plan_with_a_concurrency_limit_needs_reserve_and_is_told_so_by_name,
    a_request_with_an_id_is_charged_once_in_every_call,
    plans_without_limits_and_in_shadow_mode_hold_nothing_that_they_deny,
    plans_tell_their_holds_and_metrics_count_them,
    operators_see_open_holds_and_known_ids,
    the_greatest_numbers_are_counted_and_drag_no_other_request_along,
    operators_see_the_slots_of_a_plan_that_counts_nothing_else,
);

async fn tokens_are_reserved_and_settled_as_the_example_says(mut world: World) {
    let reserved = world.reserve("tokens", "r1", 2_000).await;
    assert_eq!(of_answer(reserved.answer.as_ref()), (true, Some(98_000)));
    assert!(reserved.held && !reserved.is_repeated);
    assert_eq!(reserved.expires_after, seconds(60));
    let again = world.reserve("tokens", "r1", 2_000).await;
    assert_eq!(of_answer(again.answer.as_ref()), (true, Some(98_000)));
    assert!(again.held && again.is_repeated && again.answer.unwrap().is_repeated);
    let settled = world.settle("tokens", "r1", Some(740)).await;
    assert_eq!(settled.outcome(), SettleOutcome::Settled);
    assert_eq!(
        (settled.held, settled.actual, settled.returned),
        (2_000, 740, 1_260)
    );
    assert_eq!(of_answer(settled.answer.as_ref()), (true, Some(99_260)));
    // The reply was lost.
    let again = world.settle("tokens", "r1", Some(740)).await;
    assert_eq!(again.outcome(), SettleOutcome::Repeated);
    assert_eq!((again.actual, again.returned, again.excess), (740, 0, 0));
    assert_eq!(of_answer(again.answer.as_ref()), (true, Some(99_260)));
    let late = world.reserve("tokens", "r1", 2_000).await;
    assert!(late.is_repeated && !late.held);
    world.reserve("tokens", "r2", 2_000).await;
    let settled = world.settle("tokens", "r2", Some(2_300)).await;
    assert_eq!((settled.returned, settled.excess), (0, 300));
    assert_eq!(world.peek("tokens").await.remaining, Some(96_960));
}

async fn five_jobs_run_at_once_as_the_example_says(mut world: World) {
    for job in 1..=5 {
        let reserved = world.reserve("jobs", &format!("job {job}"), 1).await;
        let left = Some(5 - job);
        assert_eq!(
            (reserved.held, of_answer(reserved.answer.as_ref())),
            (true, (true, left))
        );
    }
    let denied = world.reserve("jobs", "job 6", 1).await;
    let answer = denied.answer.unwrap();
    assert_eq!((denied.held, answer.outcome()), (false, Outcome::Denied));
    assert_eq!(
        (&*answer.limit_name, answer.limit),
        ("concurrency", Some(5))
    );
    let wait = answer.retry_after.unwrap().seconds;
    assert!((28..=30).contains(&wait), "{wait}");
    assert!(answer.window.is_none());
    let peeked = world.peek("jobs").await;
    assert_eq!((peeked.allowed, peeked.remaining), (false, Some(0)));
    // A denial is not remembered, and a slot is free with a settle.
    world.settle("jobs", "job 1", None).await;
    let reserved = world.reserve("jobs", "job 6", 1).await;
    assert!(reserved.held && !reserved.is_repeated);
    let extend = pb::ExtendRequest {
        key: "acme".to_owned(),
        plan: "jobs".to_owned(),
        request_id: "job 6".to_owned(),
        ttl: seconds(600),
        ..Default::default()
    };
    let extended = world
        .hold
        .extend(extend.clone())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(extended.state(), HoldState::Open);
    assert_eq!(extended.expires_after, seconds(600));
    for (id, state) in [
        ("job 1", HoldState::Settled),
        ("no job", HoldState::Unknown),
    ] {
        let extend = pb::ExtendRequest {
            request_id: id.to_owned(),
            ..extend.clone()
        };
        let extended = world.hold.extend(extend).await.unwrap().into_inner();
        assert_eq!((extended.state(), extended.expires_after), (state, None));
    }
}

async fn only_failed_logins_count_as_the_example_says(mut world: World) {
    for attempt in 1..=5 {
        assert!(world.peek("login").await.allowed, "{attempt}");
        let id = format!("attempt {attempt}");
        let recorded = world.record("login", &id, 1).await;
        assert!(!recorded.is_repeated);
        let again = world.record("login", &id, 1).await;
        assert!(again.is_repeated);
        let left = Some(5 - attempt);
        assert_eq!(of_answer(again.answer.as_ref()), (attempt < 5, left));
    }
    // The fifth failure locks for an hour.
    let wait = world.peek("login").await.retry_after.unwrap().seconds;
    assert!((3_590..=3_600).contains(&wait), "{wait}");
    let twenty = world.record("tokens", "", 120_000).await;
    assert_eq!(of_answer(twenty.answer.as_ref()), (false, Some(0)));
}

async fn bad_calls_say_what_is_wrong_and_change_nothing(mut world: World) {
    world.reserve("tokens", "known", 5).await;
    world.record("tokens", "recorded", 5).await;
    let long = "x".repeat(65);
    let lease = |seconds| pb::ReserveRequest {
        ttl: Some(prost_types::Duration { seconds, nanos: 0 }),
        ..reserve("tokens", "new", 1)
    };
    for (request, told) in [
        (reserve("tokens", "", 1), "request_id is empty"),
        (reserve("tokens", &long, 1), "request_id has 65 bytes"),
        (reserve("tokens", "new", 0), "cost is 0"),
        (lease(0), "ttl is 0s: send 1s to 10m"),
        (lease(601), "ttl is 10m1s: send 1s to 10m"),
        (lease(-1), "ttl is negative"),
        (
            reserve("tokens", "known", 6),
            "known for a Reserve of cost 5 under plan tokens",
        ),
        (
            reserve("tokens", "recorded", 5),
            "known for a Record of cost 5 under plan tokens",
        ),
    ] {
        let status = world.hold.reserve(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(told), "{}", status.message());
    }
    for (request, told) in [
        (settle("tokens", "", None), "request_id is empty"),
        (settle("tokens", &long, None), "request_id has 65 bytes"),
        (
            settle("tokens", "new", Some(1_000_000_000_001)),
            "actual is 1000000000001",
        ),
        (settle("tokens", "recorded", Some(1)), "known for a Record"),
    ] {
        let status = world.hold.settle(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(told), "{}", status.message());
    }
    for (request, told) in [
        (record("tokens", "", 0), "cost is 0"),
        (
            record("tokens", "", 1_000_000_000_001),
            "cost is 1000000000001",
        ),
        (record("tokens", "known", 5), "known for a Reserve"),
    ] {
        let status = world.decide.record(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(told), "{}", status.message());
    }
    assert_eq!(world.peek("tokens").await.remaining, Some(99_990));
}

async fn a_lease_that_is_hardly_too_long_is_told_exactly(mut world: World) {
    let ttl = prost_types::Duration {
        seconds: 600,
        nanos: 1_000,
    };
    let request = pb::ReserveRequest {
        ttl: Some(ttl),
        ..reserve("tokens", "new", 1)
    };
    let status = world.hold.reserve(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let told = status.message();
    assert!(
        told.starts_with("ttl is 600.000001s: send 1s to 10m"),
        "{told}"
    );
}

async fn an_unknown_number_of_if_unknown_charges_nothing(mut world: World) {
    let request = pb::SettleRequest {
        if_unknown: 9,
        ..settle("tokens", "new", Some(5))
    };
    let status = world.hold.settle(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let right =
        "if_unknown is 9: send IF_UNKNOWN_CHARGE (1), IF_UNKNOWN_IGNORE (2), or leave it out";
    assert_eq!(status.message(), right);
    assert_eq!(world.peek("tokens").await.remaining, Some(100_000));
}

async fn a_plan_with_a_concurrency_limit_needs_reserve_and_is_told_so_by_name(mut world: World) {
    let told = "plan jobs has a concurrency limit: call HoldService.Reserve";
    let status = world
        .decide
        .should_allow(request("acme", "jobs", None))
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::FailedPrecondition, told)
    );
    let batch = pb::ShouldAllowBatchRequest {
        requests: vec![
            request("acme", "jobs", None),
            request("acme", "tokens", None),
        ],
    };
    let results = world
        .decide
        .should_allow_batch(batch)
        .await
        .unwrap()
        .into_inner()
        .results;
    match (&results[0].result, &results[1].result) {
        (
            Some(pb::should_allow_result::Result::Error(error)),
            Some(pb::should_allow_result::Result::Response(response)),
        ) => assert_eq!((&*error.message, response.allowed), (told, true)),
        other => panic!("{other:?}"),
    }
    let joint = pb::ShouldAllowJointRequest {
        requests: vec![
            request("acme", "tokens", None),
            request("acme", "jobs", None),
        ],
        ..Default::default()
    };
    let status = world.decide.should_allow_joint(joint).await.unwrap_err();
    let told = format!("requests[1]: {told}");
    assert_eq!(
        (status.code(), status.message()),
        (Code::FailedPrecondition, &*told)
    );
    let status = world
        .decide
        .record(record("jobs", "", 1))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    // In a mixed plan it charges the rate limits alone, and what remains are units.
    world.record("mixed", "", 3).await;
    let reserved = world.reserve("mixed", "a", 2).await;
    assert_eq!(of_answer(reserved.answer.as_ref()), (true, Some(5)));
    world.reserve("mixed", "b", 2).await;
    let denied = world.reserve("mixed", "c", 1).await;
    assert_eq!(of_answer(denied.answer.as_ref()), (false, Some(0)));
}

async fn a_request_with_an_id_is_charged_once_in_every_call(mut world: World) {
    let with_id = |id: &str| pb::ShouldAllowRequest {
        request_id: id.to_owned(),
        ..request("acme", "tokens", Some(10))
    };
    for repeated in [false, true, true] {
        let answer = world
            .decide
            .should_allow(with_id("one"))
            .await
            .unwrap()
            .into_inner();
        assert_eq!((answer.allowed, answer.is_repeated), (true, repeated));
        assert_eq!(answer.remaining, Some(99_990));
    }
    let batch = pb::ShouldAllowBatchRequest {
        requests: vec![
            with_id("one"),
            with_id("two"),
            with_id("two"),
            request("acme", "tokens", Some(5)),
        ],
    };
    let results = world
        .decide
        .should_allow_batch(batch)
        .await
        .unwrap()
        .into_inner()
        .results;
    let answers = results.into_iter().map(|result| match result.result {
        Some(pb::should_allow_result::Result::Response(answer)) => {
            (answer.is_repeated, answer.remaining.unwrap())
        }
        other => panic!("{other:?}"),
    });
    let expected = [
        (true, 99_990),
        (false, 99_980),
        (true, 99_980),
        (false, 99_975),
    ];
    assert_eq!(answers.collect::<Vec<_>>(), expected);
    let joint = pb::ShouldAllowJointRequest {
        requests: vec![with_id("one")],
        ..Default::default()
    };
    let status = world.decide.should_allow_joint(joint).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(
        status.message().starts_with("requests[0].request_id"),
        "{}",
        status.message()
    );
}

async fn plans_without_limits_and_in_shadow_mode_hold_nothing_that_they_deny(mut world: World) {
    let free = world.reserve("free", "a", 7).await;
    assert!(!free.held && free.answer.unwrap().allowed);
    let settled = world.settle("free", "a", Some(7)).await;
    assert_eq!(
        (settled.outcome(), settled.excess),
        (SettleOutcome::Unknown, 0)
    );
    assert!(world.record("free", "", 7).await.answer.unwrap().allowed);
    assert!(world.reserve("shadow", "a", 4).await.held);
    let denied = world.reserve("shadow", "b", 4).await;
    let outcome = denied.answer.unwrap().outcome();
    assert_eq!((denied.held, outcome), (false, Outcome::ShadowDenied));
    let settled = world.settle("shadow", "b", Some(4)).await;
    assert_eq!(
        (settled.outcome(), settled.excess),
        (SettleOutcome::Unknown, 0)
    );
}

async fn plans_tell_their_holds_and_metrics_count_them(mut world: World) {
    let listed = world
        .decide
        .list_plans(pb::ListPlansRequest {})
        .await
        .unwrap();
    let plans = listed.into_inner().plans;
    let plan = |name: &str| plans.iter().find(|plan| plan.name == name).unwrap();
    assert_eq!(plan("jobs").holds.as_ref().unwrap().ttl, seconds(30));
    assert!(plan("free").holds.is_none());
    let slots = &plan("mixed").limits[1];
    assert_eq!(slots.algorithm(), pb::Algorithm::Concurrency);
    assert_eq!((slots.quota, slots.window), (2, None));
    world.reserve("tokens", "a", 30).await;
    world.reserve("tokens", "a", 30).await;
    world.settle("tokens", "a", Some(10)).await;
    world.reserve("tokens", "b", 30).await;
    world.settle("tokens", "b", Some(35)).await;
    world.settle("tokens", "c", None).await;
    world.record("tokens", "", 7).await;
    let scrape = Scrape::of(&world.fixture.server.http());
    for (event, count) in [
        ("reserved", 2.0),
        ("settled", 2.0),
        ("repeated", 1.0),
        ("unknown", 1.0),
    ] {
        let name = format!("tollgate_holds_total{{plan=\"tokens\",event=\"{event}\"}}");
        assert_eq!(scrape.value(&name), count, "{event}");
    }
    for (kind, units) in [("returned", 20.0), ("excess", 5.0), ("recorded", 7.0)] {
        let name = format!("tollgate_hold_units_total{{plan=\"tokens\",kind=\"{kind}\"}}");
        assert_eq!(scrape.value(&name), units, "{kind}");
    }
}
