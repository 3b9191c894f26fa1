//! What a refund gives back, and what it leaves.

use super::*;

pub(super) async fn a_refund_gives_back_what_was_taken_and_no_more(fixture: Fixture) {
    for algorithm in ALL {
        let plan = plan(vec![limit(5, MINUTE, algorithm)]);
        assert!(fixture.fits(&plan, "refunded", 3).await);
        assert_eq!(
            fixture.refund(&plan, "refunded", 2).await,
            [2],
            "{algorithm:?}"
        );
        assert_eq!(
            fixture.remaining(&plan, "refunded").await,
            [4],
            "{algorithm:?}"
        );
        for (given, cost) in [(1, 9), (0, 1), (0, 1_000_000_000_000)] {
            assert_eq!(
                fixture.refund(&plan, "refunded", cost).await,
                [given],
                "{algorithm:?}"
            );
            assert_eq!(
                fixture.remaining(&plan, "refunded").await,
                [5],
                "{algorithm:?}"
            );
        }
        // What came back can be taken once.
        assert!(
            fixture.fits(&plan, "refunded", 5).await && !fixture.fits(&plan, "refunded", 1).await,
            "{algorithm:?}"
        );
        assert_eq!(
            fixture.refund(&plan, "refunded", 2).await,
            [2],
            "{algorithm:?}"
        );
        assert!(
            fixture.fits(&plan, "refunded", 2).await && !fixture.fits(&plan, "refunded", 1).await,
            "{algorithm:?}"
        );
    }
}

pub(super) async fn a_refund_of_nothing_leaves_nothing_and_changes_nothing(fixture: Fixture) {
    let several = plan(vec![
        limit(5, MINUTE, FIXED),
        limit(5, HOUR, LOG),
        limit(5, HOUR, BUCKET),
    ]);
    let mut plans: Vec<Arc<Plan>> = ALL
        .iter()
        .map(|algorithm| plan(vec![limit(5, MINUTE, *algorithm)]))
        .collect();
    plans.push(several);
    for plan in &plans {
        assert!(
            fixture
                .refund(plan, "never seen", 3)
                .await
                .iter()
                .all(|given| *given == 0)
        );
        assert_eq!(fixture.kept(), "");
    }
    for plan in &plans {
        fixture.decide(ask(plan, "was used", 3)).await;
    }
    let before = fixture.kept();
    fixture.clock.advance(3 * 3_600_000_000);
    for plan in &plans {
        assert!(
            fixture
                .refund(plan, "was used", 3)
                .await
                .iter()
                .all(|given| *given == 0),
            "{plan:?}"
        );
    }
    assert_eq!(fixture.kept(), before);
}

pub(super) async fn a_full_refund_leaves_no_key_in_redis(fixture: Fixture) {
    if fixture.ports.is_empty() {
        return;
    }
    let several = plan(vec![
        limit(5, MINUTE, FIXED),
        limit(5, HOUR, LOG),
        limit(5, HOUR, BUCKET),
    ]);
    let mut plans: Vec<Arc<Plan>> = ALL
        .iter()
        .map(|algorithm| plan(vec![limit(5, MINUTE, *algorithm)]))
        .collect();
    plans.extend([
        several,
        plan(vec![limit(5, ODD, LOG)]),
        plan(vec![
            limit(5, ODD, LOG),
            limit(5, HOUR, LOG),
            limit(5, ODD_TOO, LOG),
        ]),
    ]);
    for plan in &plans {
        fixture.decide(ask(plan, "used", 3)).await;
        assert_ne!(fixture.kept(), "");
        fixture.refund(plan, "used", 3).await;
        assert_eq!(fixture.kept(), "", "{plan:?}");
    }
}

pub(super) async fn a_refund_reaches_each_limit_by_what_it_counted(fixture: Fixture) {
    let three = plan(vec![
        limit(10, MINUTE, FIXED),
        limit(20, HOUR, FIXED),
        limit(30, HOUR, LOG),
    ]);
    let hour_us = crate::support::clock::START_US.next_multiple_of(3_600_000_000);
    fixture.clock.set(hour_us + 59_900_000);
    assert!(fixture.fits(&three, "each", 4).await);
    fixture.clock.advance(200_000);
    assert!(fixture.fits(&three, "each", 1).await);
    assert_eq!(fixture.refund(&three, "each", 3).await, [1, 3, 3]);
    assert_eq!(fixture.remaining(&three, "each").await, [10, 18, 28]);
    // Of a limit that this plan does not have, nothing is taken.
    assert_eq!(
        fixture
            .refund(&plan(vec![limit(20, HOUR, FIXED)]), "each", 9)
            .await,
        [2]
    );
    assert_eq!(fixture.remaining(&three, "each").await, [10, 20, 28]);
}

pub(super) async fn refunds_among_charges_are_done_in_order(fixture: Fixture) {
    for algorithm in ALL {
        let plan = plan(vec![limit(5, MINUTE, algorithm)]);
        let asks = [
            (5, false),
            (1, false),
            (2, true),
            (2, false),
            (1, false),
            (1, true),
            (1, false),
        ];
        let asks = asks.map(|(cost, back)| {
            if back {
                Ask::Refund(refund(&plan, "ordered", cost))
            } else {
                Ask::Decide(ask(&plan, "ordered", cost))
            }
        });
        let answers = ask_in_order(&fixture.store, &asks, PATIENCE).await;
        let answers = answers.into_iter();
        let fits: Vec<bool> = answers.map(|answer| answer.unwrap().fits()).collect();
        assert_eq!(
            fits,
            [true, false, true, true, false, true, true],
            "{algorithm:?}"
        );
    }
}

pub(super) async fn a_lowered_quota_is_refunded_from_where_it_stands(fixture: Fixture) {
    for algorithm in every_but_the_bucket() {
        let of = |quota| plan(vec![limit(quota, MINUTE, algorithm)]);
        assert!(fixture.fits(&of(100), "lowered", 80).await);
        assert_eq!(
            fixture.refund(&of(10), "lowered", 60).await,
            [60],
            "{algorithm:?}"
        );
        assert_eq!(
            fixture.remaining(&of(10), "lowered").await,
            [0],
            "{algorithm:?}"
        );
        assert_eq!(
            fixture.refund(&of(10), "lowered", 15).await,
            [15],
            "{algorithm:?}"
        );
        assert_eq!(
            fixture.remaining(&of(10), "lowered").await,
            [5],
            "{algorithm:?}"
        );
        fixture.refund(&of(10), "lowered", 100).await;
    }
}
