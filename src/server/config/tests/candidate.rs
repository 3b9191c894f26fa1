//! The field `candidate` of a plan.

use super::*;

#[test]
fn a_candidate_is_another_plan_with_limits_and_counts_apart() {
    let limits = |quota: u64| format!("limits: [ {{ quota: {quota}, window: 1m }} ]");
    let plans = |of_free: &str, of_strict: &str| {
        format!(
            "plans: {{ free: {{ counts_as: g, {of_free} }}, strict: {{ {of_strict} }}, open: {{ unlimited: true }} }}"
        )
    };
    let with = |name: &str| format!("{}, candidate: {name}", limits(9));
    let config = load(&plans(
        &with("strict"),
        &format!("{}, counts_as: g", limits(5)),
    ))
    .unwrap();
    let plan = |name| config.plans.get(name).unwrap().clone();
    let candidate = plan("free").candidate.clone().unwrap();
    assert_eq!(
        (&*candidate.name, &*candidate.counts_as, candidate.limits()),
        ("strict", "g:strict", plan("strict").limits())
    );
    assert!(candidate.candidate.is_none() && plan("strict").candidate.is_none());
    for (of_free, of_strict, problem) in [
        (with("free"), limits(5), "is the plan itself"),
        (
            with("open"),
            limits(5),
            "is \"open\", which has no limits to try out",
        ),
        (
            with("strikt"),
            limits(5),
            "is \"strikt\", which is not a plan of this config",
        ),
        (
            with("strict"),
            with("other"),
            "is \"strict\", which has a candidate of its own",
        ),
        (
            "unlimited: true, candidate: strict".to_owned(),
            limits(5),
            "needs a plan with limits",
        ),
    ] {
        let found = errors(&plans(&of_free, &of_strict));
        let expected = format!("plans.free.candidate {problem}");
        assert!(
            found.iter().any(|error| error.starts_with(&expected)),
            "{expected}: {found:#?}"
        );
    }
    // A plan that has an error itself is not called unknown as well.
    let found = errors(&plans(
        &with("strict"),
        "limits: [ { quota: 0, window: 1m } ]",
    ));
    assert!(
        found.len() == 1 && found[0].starts_with("plans.strict.limits[0].quota"),
        "{found:#?}"
    );
}
