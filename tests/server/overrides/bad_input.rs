//! Wrong requests about overrides, and what they are told.

use tollgate::grpc::pb::plan_override::Effect;
use tollgate::grpc::pb::{self, PlanOverride};
use tonic::Code;

use super::{CONFIG, entry, quota_of, set};
use crate::support::admin::AdminFixture;

/// A sound override with one thing changed.
fn with(edit: impl FnOnce(&mut PlanOverride)) -> PlanOverride {
    let mut entry = entry("k", 300);
    edit(&mut entry);
    entry
}

fn at(seconds: i64) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds, nanos: 0 })
}

fn using(plan: &str) -> Option<Effect> {
    Some(Effect::UsePlan(plan.to_owned()))
}

#[tokio::test]
async fn a_wrong_override_is_refused_with_what_is_right() {
    use Code::{FailedPrecondition, InvalidArgument, NotFound};
    let jobs = "  jobs: { limits: [ { quota: 5, algorithm: concurrency } ] }\noverrides:";
    let mut server = AdminFixture::start(&CONFIG.replace("overrides:", jobs), &[]).await;
    let cases = [
        (
            with(|it| it.subject = None),
            InvalidArgument,
            "no key and no key_prefix",
        ),
        (with(|it| it.effect = None), InvalidArgument, "no effect"),
        (with(|it| it.plan.clear()), InvalidArgument, "plan is empty"),
        (
            with(|it| it.plan = "fre".to_owned()),
            NotFound,
            "did you mean \"free\"?",
        ),
        (
            with(|it| it.reason = "x".repeat(201)),
            InvalidArgument,
            "reason has 201 bytes; at most 200",
        ),
        (
            with(|it| it.effect = using("free")),
            FailedPrecondition,
            "is the plan itself",
        ),
        (
            with(|it| it.effect = using("jobs")),
            InvalidArgument,
            "use_plan is \"jobs\", which has a concurrency limit and needs Reserve",
        ),
        (
            with(|it| it.effect = using("")),
            InvalidArgument,
            "use_plan: plan is empty",
        ),
        (
            with(|it| it.expires_at = at(1)),
            InvalidArgument,
            "in the past",
        ),
        (
            with(|it| it.expires_at = at(i64::MAX)),
            InvalidArgument,
            "out of range",
        ),
        (entry("", 3), InvalidArgument, "key is empty"),
        (
            entry(&"x".repeat(513), 3),
            InvalidArgument,
            "key has 513 bytes; at most 512",
        ),
        (entry("k", u64::MAX), InvalidArgument, "a quota is at most"),
    ];
    for (entry, code, text) in cases {
        let refused = set(&mut server, entry).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(text), "{refused}");
    }
}

#[tokio::test]
async fn two_expiries_are_one_too_many() {
    let mut server = AdminFixture::start(CONFIG, &[]).await;
    let both = pb::SetOverrideRequest {
        entry: Some(with(|it| it.expires_at = at(1 << 40))),
        expires_after: Some(prost_types::Duration {
            seconds: 1,
            nanos: 0,
        }),
        if_version: None,
    };
    let refused = server.admin.set_override(both).await.unwrap_err();
    assert!(refused.message().contains("send one"), "{refused}");
}

#[tokio::test]
async fn wrong_deletions_and_lists_are_refused() {
    let mut server = AdminFixture::start(CONFIG, &[]).await;
    let of_file = pb::DeleteOverrideRequest {
        plan: "free".to_owned(),
        subject: Some(pb::delete_override_request::Subject::Key(
            "of-file".to_owned(),
        )),
        if_version: None,
    };
    let refused = server.admin.delete_override(of_file).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let without_plan = pb::ListOverridesRequest {
        matching_key: "k".to_owned(),
        ..pb::ListOverridesRequest::default()
    };
    let refused = server.admin.list_overrides(without_plan).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
}

/// With an embedded store they are this process's own, and end with it.
#[tokio::test]
async fn an_embedded_store_says_that_nobody_shares_them() {
    let mut server = AdminFixture::start(CONFIG, &[]).await;
    let request = pb::SetOverrideRequest {
        entry: Some(entry("k", 300)),
        ..pb::SetOverrideRequest::default()
    };
    let set = server.admin.set_override(request).await.unwrap();
    assert!(!set.into_inner().shared);
    assert_eq!(quota_of(&mut server, "k").await, 300);
}
