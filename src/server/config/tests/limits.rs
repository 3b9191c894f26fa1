//! Limits of plans: what is wrong with one, and which plans may share a count.

use super::*;

/// Wrong limits, each with a part of its error.
const LIMIT_ERRORS: &[(&str, &str)] = &[
    (
        "{ quota: 0, window: 1m }",
        "plans.p.limits[0].quota is 0; a quota is at least 1",
    ),
    (
        "{ quota: -1, window: 1m }",
        "plans.p.limits[0].quota is -1; it must be a whole number",
    ),
    (
        "{ quota: 1.5, window: 1m }",
        "quota is 1.5; it must be a whole number",
    ),
    (
        "{ quota: many, window: 1m }",
        "quota is \"many\"; it must be a whole number",
    ),
    ("{ quota: 1e30, window: 1m }", "it must be a whole number"),
    ("{ quota: 1 }", "plans.p.limits[0] has no window"),
    ("{ window: 1m }", "plans.p.limits[0] has no quota"),
    (
        "{ quota: 1, window: 60 }",
        "window is 60; it must be a duration: it has a number without a unit",
    ),
    ("{ quota: 1, window: 1 fortnight }", "must be a duration"),
    (
        "{ quota: 1, window: 1M }",
        "window is \"1M\"; it must be a duration: it has the unit M, which could be minutes or months",
    ),
    (
        "{ quota: 1, window: 1month }",
        "whose length is not always the same; write days",
    ),
    (
        "{ quota: 1, window: 1H }",
        "has a unit that is written h, such as 1h",
    ),
    ("{ quota: 1, window: 400d }", "a window is 1ms to 366d"),
    (
        "{ quota: 1, window: 1us }",
        "has a unit below a millisecond; the shortest is ms",
    ),
    (
        "{ quota: 1, window: 1m, algorithm: leaky }",
        "one of sliding_window, sliding_log, fixed_window",
    ),
    (
        "{ quota: 1, window: 1m, burst: 5 }",
        "burst belongs to token_bucket only",
    ),
    (
        "{ quota: 1, window: 1m, algorithm: token_bucket, burst: 0 }",
        "burst is 0; a burst is 1 to",
    ),
    (
        "{ quota: 1, window: 1m, anchor: clock }",
        "anchor belongs to fixed_window only",
    ),
    (
        "{ quota: 1, window: 1m, algorithm: fixed_window, anchor: noon }",
        "one of clock, first_request",
    ),
    (
        "{ quota: 1, window: 1m, precision: 1000 }",
        "a precision is 2 to 64",
    ),
    (
        "{ quota: 100001, window: 1m, algorithm: sliding_log }",
        "use sliding_window",
    ),
    (
        "{ quota: 1, window: 1m, qouta: 1 }",
        "plans.p.limits[0].qouta is not a field; did you mean quota?",
    ),
    (
        "{ quota: 1, window: 1m, zzz: 1 }",
        "zzz is not a field; there are algorithm, quota, window",
    ),
    ("5", "plans.p.limits[0] is 5; it must be a table"),
    (
        "{ quota: 1, window: 1m }, { quota: 2, window: 1m, name: b }",
        "plans.p.limits[1] has the algorithm and window of one before",
    ),
    (
        "{ quota: 1, window: 1m, name: a }, { quota: 1, window: 1h, name: a }",
        "limits[1] is named \"a\" like one before it",
    ),
    ("", "plans.p.limits has 0 limits; a plan has 1 to 8"),
];

#[test]
fn errors_of_a_limit_give_the_right_form() {
    for (limit, part) in LIMIT_ERRORS.iter().copied() {
        let found = error_of(limit);
        assert!(found.contains(part), "{limit}: {found}");
    }
}

#[test]
fn a_plan_has_limits_or_is_unlimited_or_blocked() {
    for plan in [
        "{}",
        "{ unlimited: true, blocked: true }",
        "{ unlimited: true, limits: [ { quota: 1, window: 1s } ] }",
        "5",
    ] {
        assert_eq!(
            errors(&format!("plans: {{ p: {plan} }}")).len(),
            1,
            "{plan}"
        );
    }
}

#[test]
fn nine_limits_and_ten_thousand_and_one_plans_are_too_many() {
    let nine: Vec<String> = (1..10)
        .map(|hours| format!("{{ quota: 1, window: {hours}h }}"))
        .collect();
    assert!(error_of(&nine.join(", ")).contains("has 9 limits; a plan has 1 to 8"));
    let plans = |count: u32| {
        (0..count)
            .map(|index| format!("  p{index}: {{ blocked: true }}\n"))
            .collect::<String>()
    };
    assert!(load(&format!("plans:\n{}", plans(10_000))).is_ok());
    assert!(errors(&format!("plans:\n{}", plans(10_001)))[0].contains("has 10001 plans"));
}

#[test]
fn plans_of_one_count_have_limits_that_redis_can_read_at_once() {
    let plans = |count: usize, algorithm: &str| -> String {
        let plan = |of| {
            format!(
                "p{of}: {{ counts_as: g, limits: [ {{ quota: 5, window: {of}m, algorithm: {algorithm} }} ] }}"
            )
        };
        format!(
            "plans: {{ {} }}",
            (1..=count).map(plan).collect::<Vec<_>>().join(", ")
        )
    };
    for (most, algorithm, words) in [
        (1_024, "fixed_window", "limits in all"),
        (80, "sliding_window", "sliding_window in all"),
    ] {
        assert!(load(&plans(most, algorithm)).is_ok());
        let found = errors(&plans(most + 1, algorithm));
        assert!(
            found.len() == 1
                && found[0].contains(words)
                && found[0].contains(&format!("at most {most}")),
            "{found:?}"
        );
    }
}
