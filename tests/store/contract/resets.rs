//! What a reset forgets, also of logs that began under other plans.

use super::*;

pub(super) async fn a_reset_key_is_as_fresh_and_no_other_is(fixture: Fixture) {
    for algorithm in ALL {
        let plan = plan(vec![limit(5, MINUTE, algorithm)]);
        for key in ["reset", "kept"] {
            assert!(fixture.fits(&plan, key, 5).await);
        }
        assert!(fixture.reset("group", "reset").await, "{algorithm:?}");
        assert!(
            !fixture.reset("group", "reset").await && !fixture.reset("other group", "kept").await
        );
        assert!(!fixture.fits(&plan, "kept", 1).await, "{algorithm:?}");
        assert!(
            fixture.fits(&plan, "reset", 5).await && !fixture.fits(&plan, "reset", 1).await,
            "{algorithm:?}"
        );
        assert!(fixture.reset("group", "reset").await && fixture.reset("group", "kept").await);
        assert_eq!(fixture.kept(), "", "{algorithm:?}");
    }
}

pub(super) async fn a_reset_forgets_every_fingerprint_that_the_key_had(fixture: Fixture) {
    let four = plan(vec![
        limit(5, MINUTE, FIXED),
        limit(5, HOUR, LOG),
        limit(5, ODD, LOG),
        limit(5, HOUR, BUCKET),
    ]);
    assert!(fixture.fits(&four, "shapes", 4).await);
    assert!(fixture.reset("group", "shapes").await);
    assert_eq!(fixture.remaining(&four, "shapes").await, [5, 5, 5, 5]);
    assert_eq!(fixture.kept(), "");
}

/// By plans that are edited, whose logs begin, run out, are given back and begin again at other times.
pub(super) async fn a_reset_forgets_every_log_whenever_it_began(fixture: Fixture) {
    let plans = [
        vec![ODD],
        vec![ODD_TOO, HOUR],
        vec![ODD_TOO, ODD],
        vec![HOUR, Duration::from_millis(7)],
        vec![ODD_TOO],
    ];
    let plans = plans.map(|windows| {
        plan(
            windows
                .into_iter()
                .map(|window| limit(50, window, LOG))
                .collect(),
        )
    });
    let mut random = crate::support::history::Random(11);
    let mut forgotten = 0;
    for round in 0..300 {
        let plan = random.pick(&plans);
        fixture.clock.advance(random.below(40_000_000));
        let cost = 1 + random.below(3);
        if random.below(5) == 0 {
            fixture.refund(plan, "logs", 3 * cost).await;
        } else {
            fixture.decide(ask(plan, "logs", cost)).await;
        }
        if round % 10 == 9 {
            forgotten += usize::from(fixture.reset("group", "logs").await);
            for plan in &plans {
                assert!(
                    fixture
                        .remaining(plan, "logs")
                        .await
                        .iter()
                        .all(|left| *left == 50),
                    "round {round}, {plan:?}"
                );
            }
        }
    }
    assert!(forgotten > 10, "{forgotten}");
}

/// The list by which a reset finds logs in Redis must be there for as long as they are.
pub(super) async fn the_index_of_logs_is_there_for_as_long_as_its_logs(fixture: Fixture) {
    let Some(redis) = fixture.redis.as_ref() else {
        return;
    };
    let plans = [
        vec![ODD],
        vec![ODD_TOO, HOUR],
        vec![ODD_TOO, ODD],
        vec![Duration::from_millis(1_234), MINUTE],
    ];
    let plans = plans.map(|windows| {
        plan(
            windows
                .into_iter()
                .map(|window| limit(50, window, LOG))
                .collect(),
        )
    });
    let mut random = crate::support::history::Random(12);
    let expires = |name: &str| redis.cli(&["PEXPIRETIME", name]).parse::<i64>().unwrap();
    let mut seen = 0;
    for round in 0..300 {
        fixture.clock.advance(random.below(30_000_000));
        let plan = random.pick(&plans);
        let cost = 1 + random.below(3);
        if random.below(6) == 0 {
            fixture.refund(plan, "i", 9).await;
        } else {
            fixture.decide(ask(plan, "i", cost)).await;
        }
        let now_ms = tollgate::clock::Clock::now_us(&fixture.clock) as i64 / 1_000;
        let logs = [97_000_000, 4_321_000_000, 1_234_000_u64]
            .map(|window_us| expires(&format!("{{group:i}}log:{window_us}")));
        let last = logs
            .into_iter()
            .filter(|expires_ms| *expires_ms > now_ms)
            .max();
        seen += usize::from(last.is_some());
        assert!(
            last.is_none_or(|last| expires("{group:i}logs") >= last),
            "round {round}: {logs:?}"
        );
    }
    assert!(seen > 200, "{seen}");
}
