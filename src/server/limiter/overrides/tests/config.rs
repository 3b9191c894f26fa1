//! Overrides of the file beside those of the service, and what a reload makes of them.

use super::*;

#[tokio::test]
async fn a_reload_decides_what_an_override_means() {
    let one = replica(&SetClock::default(), None);
    set(&one, key("alice"), use_plan("starter")).await;
    set(&one, prefix("a"), quota(50)).await;
    assert_eq!(
        ask(&one, "free", 1).await.other_plan.as_deref(),
        Some("starter")
    );
    let without = plans()
        .iter()
        .filter(|plan| &*plan.name != "starter")
        .cloned()
        .collect();
    one.common.reload(without);
    // The next one holds, and the list says why.
    assert_eq!(
        told(&ask(&one, "free", 1).await),
        (Outcome::Allowed, Some(48), None, true)
    );
    let listed = one.overrides.list(&OverrideQuery::default()).unwrap();
    let problems: Vec<&str> = listed
        .entries
        .iter()
        .map(|listed| &*listed.problem)
        .collect();
    assert_eq!(
        problems,
        [
            "use_plan is \"starter\", which is not a plan of this config",
            ""
        ]
    );
    assert_eq!(one.common.totals().overrides.without_effect, 1);
    one.common.reload(plans());
    assert_eq!(
        ask(&one, "free", 1).await.other_plan.as_deref(),
        Some("starter")
    );
}

#[tokio::test]
async fn those_of_the_file_come_and_go_with_it_and_those_of_the_service_hold_first() {
    let one = replica(&SetClock::default(), None);
    set(&one, key("alice"), use_plan("starter")).await;
    set(&one, prefix("a"), quota(50)).await;
    let entry = |subject| {
        Arc::new(PlanOverride {
            effect: quota(70),
            source: OverrideSource::File,
            ..unset("free", subject)
        })
    };
    let file = plans().with_overrides([entry(prefix("a")), entry(key("bob"))].into());
    assert_eq!(one.common.reload(file).edited, 0);
    let bob = Check {
        key: Key::new("bob").unwrap(),
        ..request("free", 1)
    };
    let decided = one.limiter.decide(bob, None).await.unwrap();
    assert_eq!(told(&decided), (Outcome::Allowed, Some(69), None, true));
    let refused = one.overrides.delete("free", key("bob"), None).await;
    assert_eq!(refused, Err(OverrideRefusal::OfFile));
    let query = OverrideQuery {
        plan: "free".to_owned(),
        matching_key: Some("alice".to_owned()),
        ..OverrideQuery::default()
    };
    let listed = one.overrides.list(&query).unwrap().entries;
    let listed: Vec<_> = listed
        .iter()
        .map(|listed| listed.entry.as_ref().unwrap())
        .collect();
    let listed: Vec<_> = listed
        .iter()
        .map(|entry| (&entry.subject, entry.source))
        .collect();
    assert_eq!(
        listed,
        [
            (&key("alice"), OverrideSource::Runtime),
            (&prefix("a"), OverrideSource::Runtime),
            (&prefix("a"), OverrideSource::File)
        ]
    );
}
