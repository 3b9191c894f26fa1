//! Decisions of a Cluster: which node has the names of a request.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hashbrown::HashMap;

use super::{Cluster, RedirectFollower};
use crate::StoreError;
use crate::clock::monotonic;
use crate::redis::batcher::Answer;
use crate::redis::batcher::call::{HoldAnswer, ScriptRequest};
use crate::redis::lost_call;

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
        let count = requests.len();
        let map = match self.state.map(deadline).await {
            Ok(map) => map,
            Err(error) => return vec![Err(error); count],
        };
        let mut answers: Vec<Option<Answer>> = vec![None; count];
        let mut parts: HashMap<u16, (Vec<usize>, Vec<ScriptRequest>)> = HashMap::new();
        for (place, request) in requests.into_iter().enumerate() {
            let part = parts.entry(map.owner(&request.name)).or_default();
            part.0.push(place);
            part.1.push(request);
        }
        let decided = parts.into_iter().map(|(owner, (places, requests))| {
            let node = map.node_at(owner);
            let left = until.saturating_duration_since(monotonic());
            async move {
                let answers = match node {
                    Ok(node) => node.decide_all(requests, left).await,
                    Err(error) => vec![Err(error); places.len()],
                };
                (places, answers)
            }
        });
        for (places, part) in join_all(decided).await {
            places
                .into_iter()
                .zip(part)
                .for_each(|(place, answer)| answers[place] = Some(answer));
        }
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(lost_call())))
            .collect()
    }

    /// Asks a request with an id, or about holds, on the node that has its name.
    pub(in crate::redis) async fn ask_beside_holds(
        &self,
        request: ScriptRequest,
        deadline: Duration,
    ) -> Result<HoldAnswer, StoreError> {
        let map = self.state.map(deadline).await?;
        let node = map.node(&request.name)?;
        let follower = || Some(RedirectFollower::new(node.manager.clone(), &self.state));
        let left = request.until.saturating_duration_since(monotonic());
        node.ask(request, left, follower).await
    }
}
