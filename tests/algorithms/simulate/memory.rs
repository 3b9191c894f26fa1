//! Logs of many keys, packed: they decide as brute force does, within bounded memory.

use super::*;

/// Random requests of many keys, in the order of their times.
fn requests_of_many_keys() -> Vec<Request> {
    const MANY: u64 = 20_000;
    let mut random = Random(7);
    let mut at_us = START_US;
    let mut next = |_| {
        // Every second request comes at a whole second.
        at_us += 2_500 + random.below(12_500);
        let at_us = if random.below(2) == 0 {
            at_us.next_multiple_of(1_000_000)
        } else {
            at_us
        };
        (
            at_us,
            random.below(MANY).min(random.below(MANY)),
            1 + random.below(4) / 3,
        )
    };
    let mut requests: Vec<Request> = (0..240_000).map(&mut next).collect();
    requests.sort_by_key(|request| request.0);
    requests
}

/// Logs of idle keys are packed. Of so many keys, nearly each is between two of its requests.
#[test]
fn packed_logs_decide_as_brute_force() {
    let requests = requests_of_many_keys();
    for algorithm in [LOG, Algorithm::SlidingWindow { precision: 4 }] {
        let limit = Limit::new("limit", 9, Duration::from_secs(1_200), algorithm).unwrap();
        let variants = [vec![(plan(vec![limit.clone()]), RequestSpacing::AsStamped)]];
        let mut replay = Replay::new(&variants, 1_000_000, usize::MAX);
        for (at_us, hash, cost) in &requests {
            replay
                .record(
                    &Event {
                        hash: *hash,
                        at_us: *at_us,
                        even_us: 0,
                        cost: *cost,
                        plan: 0,
                    },
                    b"key",
                )
                .unwrap();
        }
        let variant = VariantName {
            config: "plans.yaml".to_owned(),
            spacing: None,
        };
        let report = Report::new(
            LogSummary::default(),
            vec![variant],
            &["plan".to_owned()],
            &[replay],
        );
        let expected = denied_by_model(std::slice::from_ref(&limit), &requests);
        let told = (report.denied[0], report.keys_denied[0]);
        assert_eq!(
            told,
            (expected.values().sum(), keys_denied(&expected)),
            "{algorithm:?}"
        );
        let smallest = report.plans[0].variants[0][0].smallest.unwrap();
        let denied_at =
            |quota| keys_denied(&denied_by_model(&[with(&limit, quota).unwrap()], &requests));
        let allowed = report.keys / 1_000;
        assert!(
            denied_at(smallest) <= allowed && denied_at(smallest - 1) > allowed,
            "{algorithm:?}: {smallest}"
        );
    }
}

#[test]
fn memory_is_bounded_and_a_log_that_needs_more_is_refused() {
    const MANY: u64 = 100_000;
    let limit = Limit::new("limit", 100_000, Duration::from_secs(1_000), LOG).unwrap();
    let variants = [vec![(plan(vec![limit]), RequestSpacing::AsStamped)]];
    let mut replay = Replay::new(&variants, MANY as usize, 4 << 20);
    // Each request unpacks its log, so many short logs fill the memory in less time than a few long ones. Gaps and costs take
    // several bytes. All twenty requests of a key fit, so nothing takes memory but logs.
    let result = (0..20 * MANY).try_for_each(|index| {
        replay.record(
            &Event {
                hash: index % MANY,
                at_us: START_US + 449 * index,
                even_us: 0,
                cost: 5_000,
                plan: 0,
            },
            b"key",
        )
    });
    assert!(result.is_err());
    // Keys beyond the bound are counted and left out.
    let variants: [Vec<(Arc<Plan>, RequestSpacing)>; 1] = [vec![(
        plan(vec![Limit::new("l", 1, WINDOW, FIXED).unwrap()]),
        RequestSpacing::AsStamped,
    )]];
    let mut replay = Replay::new(&variants, 10, 4 << 20);
    for index in 0..30 {
        replay
            .record(
                &Event {
                    hash: index % 15,
                    at_us: START_US,
                    even_us: 0,
                    cost: 1,
                    plan: 0,
                },
                b"key",
            )
            .unwrap();
    }
    let variant = VariantName {
        config: "plans.yaml".to_owned(),
        spacing: None,
    };
    let report = Report::new(
        LogSummary::default(),
        vec![variant],
        &["plan".to_owned()],
        &[replay],
    );
    assert_eq!(
        (
            report.keys,
            report.requests,
            report.beyond,
            report.denied[0]
        ),
        (10, 20, 10, 10)
    );
}
