//! Holds and concurrency limits: what they mean, and what a wrong one is told.

use super::*;

fn with(plan: &str) -> String {
    format!("plans: {{ p: {{ {plan} }} }}")
}

const RATE: &str = "limits: [ { quota: 5, window: 1m } ]";
const SLOTS: &str = "limits: [ { quota: 5, algorithm: concurrency } ]";

#[test]
fn a_plan_has_the_terms_that_it_says_and_defaults_else() {
    let load_plan = |text: &str| load(&with(text)).unwrap().plans.get("p").unwrap().clone();
    let plan = load_plan(RATE);
    assert_eq!(plan.holds.ttl, Duration::from_secs(60));
    assert!(plan.concurrency().is_none() && !plan.releases_holds());
    let own = "holds: { ttl: 20m, on_expiry: release, remember: 1h, max_ids: 7 }";
    let plan = load_plan(&format!("{RATE}, {own}"));
    assert_eq!(plan.holds.max_ttl, Duration::from_secs(1_200));
    assert_eq!((plan.holds.max_open, plan.holds.max_ids), (256, 7));
    assert!(plan.releases_holds());
    let many = "limits: [ { quota: 9, window: 1m }, { quota: 300, algorithm: concurrency } ]";
    let plan = load_plan(many);
    let slots = plan.concurrency().unwrap();
    assert_eq!(
        (&**slots.name(), slots.quota(), slots.place()),
        ("concurrency", 300, 1)
    );
    assert_eq!((plan.holds.max_open, plan.limits().len()), (300, 1));
}

/// Each plan is refused for the field at its path alone, with what is told.
fn assert_refused(rows: &[(String, &str, &str)]) {
    for (plan, path, told) in rows {
        let errors = load(&with(plan)).unwrap_err().errors;
        let found = errors.iter().map(|error| (&*error.path, &*error.message));
        let expected = format!("plans.p.{path}");
        assert_eq!(found.collect::<Vec<_>>(), [(&*expected, *told)], "{plan}");
    }
}

#[test]
fn wrong_terms_are_told_with_their_path() {
    let holds = |text: &str| format!("{RATE}, holds: {{ {text} }}");
    assert_refused(&[
        (holds("ttl: 500ms"), "holds.ttl", "is 500ms; write 1s to 1d"),
        (
            holds("ttl: 1m, max_ttl: 30s"),
            "holds.max_ttl",
            "is 30s; write 1m to 1d",
        ),
        (
            holds("remember: 2d"),
            "holds.remember",
            "is 2d; write 1s to 1d",
        ),
        (
            holds("max_open: 1001"),
            "holds.max_open",
            "is 1001; write 1 to 1000",
        ),
        (
            holds("max_ids: 0"),
            "holds.max_ids",
            "is 0; write 1 to 100000",
        ),
        (
            format!("{SLOTS}, holds: {{ max_open: 4 }}"),
            "holds.max_open",
            "is 4; the concurrency limit alone lets 5 be open",
        ),
        (
            "unlimited: true, holds: { ttl: 1m }".to_owned(),
            "holds",
            "belongs to plans with limits; remove it, or write limits",
        ),
    ]);
}

#[test]
fn a_wrong_concurrency_limit_is_told_with_its_path() {
    const ALONE: &str = "belongs to limits of units; a concurrency limit has quota and name alone";
    let limits = |text: &str| format!("limits: [ {text} ]");
    let with = |own: &str| limits(&format!("{{ quota: 5, algorithm: concurrency, {own} }}"));
    let two = "{ quota: 5, algorithm: concurrency }, { quota: 6, algorithm: concurrency, name: b }";
    assert_refused(&[
        (
            limits(two),
            "limits[1]",
            "is a second concurrency limit; a plan has one",
        ),
        (
            limits("{ quota: 1001, algorithm: concurrency }"),
            "limits[0].quota",
            "is 1001; a concurrency limit has 1 to 1000",
        ),
        (with("window: 1m"), "limits[0].window", ALONE),
        (with("burst: 5"), "limits[0].burst", ALONE),
        (with("anchor: clock"), "limits[0].anchor", ALONE),
        (with("precision: 8"), "limits[0].precision", ALONE),
    ]);
}

#[test]
fn a_plan_with_a_concurrency_limit_stands_nowhere_where_nobody_reserves() {
    let jobs = format!("jobs: {{ {SLOTS} }}");
    let told = "is \"jobs\": plan jobs has a concurrency limit, which needs Reserve";
    for (text, path, told) in [
        (
            format!("plans: {{ {jobs} }}\ndefault_plan: jobs"),
            "default_plan",
            told,
        ),
        (
            format!("plans: {{ {jobs}, p: {{ {RATE}, candidate: jobs }} }}"),
            "plans.p.candidate",
            told,
        ),
        (
            format!("plans: {{ jobs: {{ {SLOTS}, candidate: p }}, p: {{ {RATE} }} }}"),
            "plans.jobs.candidate",
            "cannot be: plan jobs has a concurrency limit, which needs Reserve",
        ),
        (
            format!("plans: {{ {jobs} }}\nenvoy: {{ domains: {{ d: {{ unmatched: jobs }} }} }}"),
            "envoy.domains.d.unmatched",
            told,
        ),
        (
            format!(
                "plans: {{ {jobs} }}\nenvoy: {{ domains: {{ d: {{ rules: [ {{ descriptor: [a], plan: jobs }} ] }} }} }}"
            ),
            "envoy.domains.d.rules[0].plan",
            told,
        ),
    ] {
        let errors = load(&text).unwrap_err().errors;
        let found = errors.iter().map(|error| (&*error.path, &*error.message));
        assert_eq!(found.collect::<Vec<_>>(), [(path, told)], "{text}");
    }
}

#[test]
fn redis_keeps_holds_as_the_embedded_store_does() {
    let redis = "store: { url: \"redis://127.0.0.1\" }";
    for plan in [format!("{RATE}, holds: {{ ttl: 1m }}"), SLOTS.to_owned()] {
        assert!(load(&format!("{}\n{redis}", with(&plan))).is_ok());
    }
}
