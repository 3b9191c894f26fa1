//! A server whose clients call about one key.

use super::*;

pub(super) struct World {
    pub(super) fixture: AdminFixture,
    pub(super) decide: Client,
    pub(super) hold: HoldServiceClient<Channel>,
}

impl World {
    pub(super) async fn start(arguments: &[&str]) -> Self {
        let fixture = AdminFixture::start(PLANS, arguments).await;
        let channel = channel_to(&fixture.server.address).await;
        Self {
            decide: fixture.client.clone(),
            fixture,
            hold: HoldServiceClient::new(channel),
        }
    }

    pub(super) async fn reserve(&mut self, plan: &str, id: &str, cost: u64) -> pb::ReserveResponse {
        let reserved = self.hold.reserve(reserve(plan, id, cost)).await;
        reserved.unwrap().into_inner()
    }

    pub(super) async fn settle(
        &mut self,
        plan: &str,
        id: &str,
        actual: Option<u64>,
    ) -> pb::SettleResponse {
        let settled = self.hold.settle(settle(plan, id, actual)).await;
        settled.unwrap().into_inner()
    }

    pub(super) async fn record(&mut self, plan: &str, id: &str, cost: u64) -> pb::RecordResponse {
        let recorded = self.decide.record(record(plan, id, cost)).await;
        recorded.unwrap().into_inner()
    }

    pub(super) async fn peek(&mut self, plan: &str) -> pb::ShouldAllowResponse {
        let peek = pb::PeekRequest {
            key: "acme".to_owned(),
            plan: plan.to_owned(),
            ..Default::default()
        };
        let peeked = self.decide.peek(peek).await.unwrap().into_inner();
        peeked.answer.unwrap()
    }
}
