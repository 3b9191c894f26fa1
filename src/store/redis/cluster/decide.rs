//! Decisions of a Cluster: which node has the names of a request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hashbrown::HashMap;

use super::{Cluster, RedirectFollower};
use crate::StoreError;
use crate::clock::monotonic;
use crate::redis::batcher::Answer;
use crate::redis::batcher::call::{HoldAnswer, ScriptRequest};
use crate::redis::{RedisNode, lost_call};

impl Cluster {
    /// Decides one request on the node that has its name. Waiting for the map counts towards the deadline.
    pub(in crate::redis) async fn decide_one(
        &self,
        request: ScriptRequest,
        deadline: Duration,
    ) -> Answer {
        let map = self.state.map(deadline).await?;
        let node = map.node(&request.name)?;
        let left = request.until.saturating_duration_since(monotonic());
        node.count_undecided(1, node.decide(|| request, left).await)
    }

    /// Decides the requests, which all wait until `until`, for `deadline` in total. Those of one name keep their order, since
    /// they go to the same node.
    pub(in crate::redis) async fn decide_batch(
        &self,
        requests: Vec<ScriptRequest>,
        until: Instant,
        deadline: Duration,
    ) -> Vec<Answer> {
        let ask =
            async |node: Arc<RedisNode>, requests, left| node.decide_all(requests, left).await;
        self.ask_by_node(requests, (until, deadline), ask).await
    }

    /// Makes refunds, which all wait until `until`, for `deadline` in total.
    pub(in crate::redis) async fn refund_all(
        &self,
        requests: Vec<ScriptRequest>,
        until: Instant,
        deadline: Duration,
    ) -> Vec<Result<HoldAnswer, StoreError>> {
        let ask = async |node: Arc<RedisNode>, requests, left| {
            let follower = || Some(RedirectFollower::new(node.manager.clone(), &self.state));
            node.refund_all(requests, left, follower).await
        };
        self.ask_by_node(requests, (until, deadline), ask).await
    }

    /// Asks each node about the requests whose names it has, all at the same time. Returns the answers in the order of the requests.
    async fn ask_by_node<T, F>(
        &self,
        requests: Vec<ScriptRequest>,
        (until, deadline): (Instant, Duration),
        ask: impl Fn(Arc<RedisNode>, Vec<ScriptRequest>, Duration) -> F,
    ) -> Vec<Result<T, StoreError>>
    where
        F: Future<Output = Vec<Result<T, StoreError>>>,
    {
        let mut answers: Vec<_> = requests.iter().map(|_| Err(lost_call())).collect();
        let map = match self.state.map(deadline).await {
            Ok(map) => map,
            Err(error) => return requests.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut parts: HashMap<u16, (Vec<usize>, Vec<ScriptRequest>)> = HashMap::new();
        for (place, request) in requests.into_iter().enumerate() {
            let part = parts.entry(map.owner(&request.name)).or_default();
            part.0.push(place);
            part.1.push(request);
        }
        let left = until.saturating_duration_since(monotonic());
        let asked = parts.into_iter().map(async |(owner, (places, requests))| {
            let answers = match map.node_at(owner) {
                Ok(node) => ask(node.clone(), requests, left).await,
                Err(error) => places.iter().map(|_| Err(error.clone())).collect(),
            };
            (places, answers)
        });
        for (places, part) in join_all(asked).await {
            for (place, answer) in places.into_iter().zip(part) {
                answers[place] = answer;
            }
        }
        answers
    }

    /// Asks a request with an id, or about holds, on the node that has its name.
    pub(in crate::redis) async fn ask_beside_holds(
        &self,
        request: ScriptRequest,
        deadline: Duration,
    ) -> Result<HoldAnswer, StoreError> {
        let map = self.state.map(deadline).await?;
        let node = map.node(&request.name)?;
        let left = request.until.saturating_duration_since(monotonic());
        node.ask(request, left).await
    }
}
