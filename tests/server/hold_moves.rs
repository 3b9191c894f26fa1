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

use crate::support::admin::AdminFixture;
use crate::support::redis::Redis;
use crate::support::server::channel_to;

const PLANS: &str = "
plans:
  trial: { counts_as: seats, limits: [ { quota: 10, window: 1h } ] }
  paid: { counts_as: seats, limits: [ { quota: 100, window: 1h } ] }
  jobs: { limits: [ { quota: 2, algorithm: concurrency } ], holds: { ttl: 1h, max_ttl: 1h } }
  free: { unlimited: true }
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
        let request = pb::SettleRequest {
            key: "acme".to_owned(),
            plan: "trial".to_owned(),
            request_id: id.to_owned(),
            actual: Some(actual),
            ..Default::default()
        };
        self.holds.settle(request).await.unwrap().into_inner()
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

fn reserve(plan: &str, id: &str, cost: u64) -> pb::ReserveRequest {
    pb::ReserveRequest {
        key: "acme".to_owned(),
        plan: plan.to_owned(),
        cost: Some(cost),
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
    let extend = pb::ExtendRequest {
        key: "acme".to_owned(),
        plan: "trial".to_owned(),
        request_id: "before".to_owned(),
        ..Default::default()
    };
    let extended = acme.holds.extend(extend).await.unwrap().into_inner();
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
    let settle = pb::SettleRequest {
        key: "acme".to_owned(),
        plan: "jobs".to_owned(),
        request_id: "a".to_owned(),
        ..Default::default()
    };
    let call = Some(hold_request::Call::Settle(settle));
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
    let (key, plan) = ("acme".to_owned(), "free".to_owned());
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
);
