//! Holds of a key for which another plan decides from then on: they are settled, prolonged and ended where they are.

use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tollgate::grpc::pb::delete_override_request::Subject as DeletedSubject;
use tollgate::grpc::pb::hold_service_client::HoldServiceClient;
use tollgate::grpc::pb::plan_override::{Effect, Subject};
use tollgate::grpc::pb::{self, HoldState, SettleOutcome, hold_request, hold_response};
use tonic::Code;
use tonic::transport::Channel;

use super::holds::{reserve, settle};
use crate::support::admin::AdminFixture;
use crate::support::redis::Redis;
use crate::support::server::channel_to;

const PLANS: &str = "
plans:
  trial: { counts_as: seats, limits: [ { quota: 10, window: 1h } ] }
  paid: { counts_as: seats, limits: [ { quota: 100, window: 1h } ] }
  jobs: { limits: [ { quota: 2, algorithm: concurrency } ], holds: { ttl: 1h, max_ttl: 1h } }
  free: { unlimited: true }
  one: { counts_as: slots, limits: [ { quota: 1, algorithm: concurrency } ], holds: { max_ttl: 1h } }
  other: { counts_as: slots, limits: [ { quota: 1, algorithm: concurrency } ] }
";

/// The key `acme`, its operator and its client.
struct Acme {
    fixture: AdminFixture,
    holds: HoldServiceClient<Channel>,
    _redis: Option<Redis>,
}

impl Acme {
    async fn start(with_redis: bool) -> Self {
        let redis = with_redis.then(Redis::start);
        let url = redis.as_ref().map(Redis::url).unwrap_or_default();
        let flags = ["--store", &url, "--set", "store.deadline=10s"];
        let flags = if with_redis { &flags[..] } else { &[] };
        let fixture = AdminFixture::start(PLANS, flags).await;
        let channel = channel_to(&fixture.server.address).await;
        Self {
            fixture,
            holds: HoldServiceClient::new(channel),
            _redis: redis,
        }
    }

    async fn lead(&mut self, plan: &str, to: &str) {
        let entry = pb::PlanOverride {
            plan: plan.to_owned(),
            subject: Some(Subject::Key("acme".to_owned())),
            effect: Some(Effect::UsePlan(to.to_owned())),
            ..Default::default()
        };
        let request = pb::SetOverrideRequest {
            entry: Some(entry),
            ..Default::default()
        };
        self.fixture.admin.set_override(request).await.unwrap();
    }

    async fn lead_back(&mut self, plan: &str) {
        let request = pb::DeleteOverrideRequest {
            plan: plan.to_owned(),
            subject: Some(DeletedSubject::Key("acme".to_owned())),
            if_version: None,
        };
        self.fixture.admin.delete_override(request).await.unwrap();
    }

    async fn reserve(&mut self, id: &str, cost: u64) -> Result<pb::ReserveResponse, tonic::Status> {
        let reserved = self.holds.reserve(reserve("trial", id, cost)).await?;
        Ok(reserved.into_inner())
    }

    async fn settle(&mut self, id: &str, actual: u64) -> pb::SettleResponse {
        let request = settle("trial", id, Some(actual));
        self.holds.settle(request).await.unwrap().into_inner()
    }

    async fn reload(&mut self, config: &str) {
        self.fixture.server.write_config(config);
        let request = pb::ReloadConfigRequest::default();
        self.fixture.admin.reload_config(request).await.unwrap();
    }

    async fn remaining(&mut self, plan: &str) -> Option<u64> {
        let request = pb::PeekRequest {
            key: "acme".to_owned(),
            plan: plan.to_owned(),
            ..Default::default()
        };
        let peeked = self.fixture.client.peek(request).await.unwrap();
        peeked.into_inner().answer.unwrap().remaining
    }
}

fn extend(plan: &str, id: &str) -> pb::ExtendRequest {
    pb::ExtendRequest {
        key: "acme".to_owned(),
        plan: plan.to_owned(),
        request_id: id.to_owned(),
        ..Default::default()
    }
}

async fn are_settled_by_the_plan_that_reserved(mut acme: Acme) {
    acme.reserve("before", 4).await.unwrap();
    acme.lead("trial", "paid").await;
    let again = acme.reserve("before", 4).await.unwrap();
    assert!(again.is_repeated && again.held);
    // A mistake is one as before.
    let other = acme.reserve("before", 5).await.unwrap_err();
    assert_eq!(other.code(), Code::InvalidArgument);
    let extended = acme
        .holds
        .extend(extend("trial", "before"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(extended.state(), HoldState::Open);
    let settled = acme.settle("before", 1).await;
    assert_eq!(
        (settled.outcome(), settled.returned),
        (SettleOutcome::Settled, 3)
    );
    let answer = settled.answer.unwrap();
    assert_eq!((&*answer.plan, answer.overridden), ("trial", false));
    assert_eq!(
        acme.settle("before", 1).await.outcome(),
        SettleOutcome::Repeated
    );
    // The other way: what the override's plan reserved, once it is gone.
    acme.reserve("under", 50).await.unwrap();
    acme.lead_back("trial").await;
    let settled = acme.settle("under", 20).await;
    assert_eq!(
        (settled.outcome(), settled.returned),
        (SettleOutcome::Settled, 30)
    );
    assert_eq!(settled.answer.unwrap().plan, "paid");
}

async fn end_with_their_stream(mut acme: Acme) {
    let (asking, asked) = mpsc::channel(1);
    let held = acme.holds.hold(ReceiverStream::new(asked)).await;
    let mut answers = held.unwrap().into_inner();
    for id in ["a", "b"] {
        let call = Some(hold_request::Call::Reserve(reserve("jobs", id, 1)));
        asking.send(pb::HoldRequest { id: 1, call }).await.unwrap();
        answers.next().await.unwrap().unwrap();
    }
    assert_eq!(acme.remaining("jobs").await, Some(0));
    acme.lead("jobs", "free").await;
    assert_eq!(acme.remaining("jobs").await, None);
    let call = Some(hold_request::Call::Settle(settle("jobs", "a", None)));
    asking.send(pb::HoldRequest { id: 2, call }).await.unwrap();
    let answer = answers.next().await.unwrap().unwrap();
    let Some(hold_response::Result::Settle(settled)) = answer.result else {
        panic!("{answer:?}")
    };
    assert_eq!(settled.outcome(), SettleOutcome::Settled);
    drop(asking);
    assert!(answers.next().await.is_none());
    acme.lead_back("jobs").await;
    assert_eq!(acme.remaining("jobs").await, Some(2));
}

async fn are_reset_under_the_plan_that_decides(mut acme: Acme) {
    acme.lead("free", "trial").await;
    acme.reserve("a", 4).await.unwrap();
    assert_eq!(acme.remaining("free").await, Some(6));
    let key = "acme".to_owned();
    let plan = "free".to_owned();
    let refund = pb::RefundRequest {
        key: key.clone(),
        plan: plan.clone(),
        cost: Some(1),
        ..Default::default()
    };
    let refunded = acme.fixture.admin.refund(refund).await.unwrap();
    assert_eq!(refunded.into_inner().refunded, 1);
    let reset = pb::ResetRequest {
        key,
        plan,
        ..Default::default()
    };
    let reset = acme.fixture.admin.reset(reset).await.unwrap();
    assert!(reset.into_inner().existed);
    assert_eq!(acme.remaining("free").await, Some(10));
}

async fn whose_plan_is_gone_are_settled_by_another_plan_of_its_count(mut acme: Acme) {
    let line = line_of("one");
    let renamed = line.replace("one:", "uno:");
    for (edit, becomes, by) in [
        ("renamed", &*renamed, "uno"),
        ("removed", "", "other"),
        ("unlimited", "  one: { unlimited: true }\n", "other"),
        ("elsewhere", &line.replace("slots", "seats"), "other"),
    ] {
        acme.holds.reserve(reserve("one", edit, 1)).await.unwrap();
        acme.reload(&PLANS.replace(line, becomes)).await;
        let status = acme.holds.reserve(reserve(by, edit, 1)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{edit}");
        assert!(
            !acme
                .holds
                .reserve(reserve(by, "b", 1))
                .await
                .unwrap()
                .into_inner()
                .held
        );
        let extended = acme
            .holds
            .extend(extend(by, edit))
            .await
            .unwrap()
            .into_inner();
        assert_eq!(extended.state(), HoldState::Open, "{edit}");
        for outcome in [SettleOutcome::Settled, SettleOutcome::Repeated] {
            let settled = acme
                .holds
                .settle(settle(by, edit, None))
                .await
                .unwrap()
                .into_inner();
            assert_eq!(settled.outcome(), outcome, "{edit}");
            let answer = settled.answer.unwrap();
            assert_eq!((&*answer.plan, answer.remaining), ("", Some(1)), "{edit}");
        }
        assert_eq!(acme.remaining(by).await, Some(1), "{edit}");
        acme.reload(PLANS).await;
    }
}

/// Units come back where the limits are the same but for their quotas.
async fn whose_plan_is_gone_give_back_to_the_same_limits(mut acme: Acme) {
    let trial = line_of("trial");
    for (limits, returned) in [("quota: 20, window: 1h", 3), ("quota: 20, window: 2h", 0)] {
        let id = format!("units {returned}");
        acme.reserve(&id, 4).await.unwrap();
        let now = format!("  new: {{ counts_as: seats, limits: [ {{ {limits} }} ] }}\n");
        acme.reload(&PLANS.replace(trial, &now)).await;
        let settled = acme
            .holds
            .settle(settle("new", &id, Some(1)))
            .await
            .unwrap();
        assert_eq!(settled.into_inner().returned, returned, "{limits}");
        acme.reload(PLANS).await;
    }
}

async fn are_not_found_in_ids_of_requests_whose_plan_is_gone(mut acme: Acme) {
    let trial = line_of("trial");
    let mut charge = crate::support::server::request("acme", "trial", None);
    charge.request_id = "charged".to_owned();
    acme.fixture.client.should_allow(charge).await.unwrap();
    acme.reload(&PLANS.replace(trial, "")).await;
    let status = acme
        .holds
        .settle(settle("paid", "charged", None))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}

/// The line of a plan in the config.
fn line_of(plan: &str) -> &'static str {
    let name = format!("  {plan}:");
    let mut lines = PLANS.split_inclusive('\n');
    lines.find(|line| line.starts_with(&name)).unwrap()
}

macro_rules! with_both_stores {
    ($($claim:ident),* $(,)?) => {
        mod embedded { $(#[tokio::test] async fn $claim() { super::$claim(super::Acme::start(false).await).await; })* }
        mod redis { $(#[tokio::test] async fn $claim() { super::$claim(super::Acme::start(true).await).await; })* }
    };
}

with_both_stores!(
    are_settled_by_the_plan_that_reserved,
    end_with_their_stream,
    are_reset_under_the_plan_that_decides,
    whose_plan_is_gone_are_settled_by_another_plan_of_its_count,
    whose_plan_is_gone_give_back_to_the_same_limits,
    are_not_found_in_ids_of_requests_whose_plan_is_gone,
);
