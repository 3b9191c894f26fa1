//! What operators see of holds, and the greatest numbers.

use super::*;

pub(super) async fn the_greatest_numbers_are_counted_and_drag_no_other_request_along(
    mut world: World,
) {
    // Units times microseconds are more than 2^64.
    let recorded = world.record("estimate", "r", 1_000_000_000_000).await;
    assert_eq!(of_answer(recorded.answer.as_ref()), (false, Some(0)));
    let peeked = world.peek("estimate").await;
    assert_eq!(peeked.decided_by(), DecidedBy::Store);
    // One of slots does not look at the cost.
    for repeated in [false, true] {
        let reserved = world.reserve("jobs", "a", u64::MAX).await;
        assert_eq!((reserved.held, reserved.is_repeated), (true, repeated));
    }
    for id in ["b", "c", "d", "e"] {
        assert!(world.reserve("jobs", id, u64::MAX).await.held);
    }
    let full = world.reserve("jobs", "f", u64::MAX).await.answer.unwrap();
    assert_eq!((full.allowed, full.decided_by()), (false, DecidedBy::Store));
}

pub(super) async fn operators_see_the_slots_of_a_plan_that_counts_nothing_else(mut world: World) {
    world.reserve("jobs", "a", 1).await;
    let key = "acme".to_owned();
    let plan = "jobs".to_owned();
    let explain = pb::ExplainRequest {
        key: key.clone(),
        plan: plan.clone(),
        ..Default::default()
    };
    let admin = &mut world.fixture.admin;
    let explained = admin.explain(explain).await.unwrap().into_inner();
    assert_eq!((explained.limits.len(), explained.limits[0].used), (1, 1));
    let told = "is allowed: in limit concurrency, which binds, 1 of 5 slots are taken and 4 can be taken now";
    assert!(explained.sentence.contains(told), "{}", explained.sentence);
    let refund = pb::RefundRequest {
        key,
        plan,
        cost: Some(1),
        ..Default::default()
    };
    let refunded = admin.refund(refund).await.unwrap().into_inner();
    assert_eq!(refunded.refunded, 0);
}

pub(super) async fn operators_see_open_holds_and_known_ids(mut world: World) {
    world.reserve("mixed", "a", 2).await;
    world.reserve("mixed", "b", 3).await;
    world.record("mixed", "c", 1).await;
    let explain = pb::ExplainRequest {
        key: "acme".to_owned(),
        plan: "mixed".to_owned(),
        ..Default::default()
    };
    let explained = world
        .fixture
        .admin
        .explain(explain)
        .await
        .unwrap()
        .into_inner();
    let holds = explained.holds.unwrap();
    assert_eq!((holds.open, holds.units, holds.known_ids), (2, 5, 1));
    let slots = &explained.limits[1];
    assert_eq!((slots.used, slots.releases.len()), (2, 2));
    assert_eq!(explained.limits[0].used, 6);
    let told = "is denied by limit concurrency: 2 of 2 slots are taken";
    let sentence = &explained.sentence;
    assert!(
        sentence.contains(told) && sentence.contains("2 holds are open"),
        "{sentence}"
    );
}
