//! One server: what is asked of it, through the batcher or beside it.

use std::sync::Arc;
use std::time::Duration;

use fred::types::Value;
use tokio::time::timeout_at;

use super::batcher::call::{Call, ScriptRequest};
use super::batcher::{Answer, Answers, Batcher, JointNote};
use super::cluster::RedirectFollower;
use super::command::CommandSender;
use super::connection::CallError;
use super::connection::manager::ConnectionManager;
use super::script_codec;
use crate::StoreError;
use tollgate_core::algorithm::Verdict;

/// One server: the manager of its connection, and the batcher of the requests that go over it.
#[derive(Clone)]
pub(super) struct RedisNode {
    pub(super) manager: Arc<ConnectionManager>,
    pub(super) batcher: Batcher,
    /// That of requests with an id, and of those about holds: they have calls of their own.
    pub(super) holds: Batcher,
}

impl RedisNode {
    /// Adds `decisions` to the undecided ones if Redis did not answer. Passes the answer on.
    pub(super) fn count_undecided<T>(
        &self,
        decisions: usize,
        answer: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if let Err(StoreError::Deadline(_) | StoreError::Unreachable(_) | StoreError::NotSent(_)) =
            answer
        {
            self.manager.add_undecided(decisions);
        }
        answer
    }

    pub(super) async fn decide(
        &self,
        request: impl FnOnce() -> ScriptRequest,
        deadline: Duration,
    ) -> Answer {
        self.manager.refusal().map_or(Ok(()), Err)?;
        self.batcher
            .take(request(), deadline)?
            .await
            .unwrap_or_else(|_| Err(lost_call()))
    }

    /// Makes a call of one request without the batcher, by its own deadline; `deadline` is how long that is. Returns the call and its
    /// reply.
    pub(super) async fn call_unbatched(
        &self,
        request: ScriptRequest,
        deadline: Duration,
        follower: Option<RedirectFollower>,
    ) -> Result<(Call, Value), StoreError> {
        self.manager.refusal().map_or(Ok(()), Err)?;
        let until = request.until;
        let ready = timeout_at(until.into(), self.manager.ready()).await;
        ready.map_err(|_| StoreError::Deadline(deadline))?;
        let mut call = Call::for_request(request);
        loop {
            let command = self.manager.script_command(&call, until)?;
            let reply = match &follower {
                Some(follower) => follower.send(command).await,
                None => self.manager.send(command).await,
            };
            let reply = reply.map_err(CallError::into_store_error)?.value;
            // The loop ends, since each round takes time.
            call.store_time_us =
                script_codec::parse_store_time(reply.as_bytes().unwrap_or_default());
            if call.store_time_us.is_none() {
                return Ok((call, reply));
            }
        }
    }

    pub(super) async fn decide_all(
        &self,
        requests: Vec<ScriptRequest>,
        deadline: Duration,
    ) -> Vec<Answer> {
        let count = requests.len();
        match self.decide_all_now(requests, deadline).await {
            Ok(answers) => answers
                .into_iter()
                .map(|answer| self.count_undecided(1, answer))
                .collect(),
            Err(error) => vec![self.count_undecided(count, Err(error)); count],
        }
    }

    /// Decides the requests of a joint decision together.
    pub(super) async fn decide_joint(
        &self,
        requests: Vec<ScriptRequest>,
        deadline: Duration,
    ) -> Result<Vec<Verdict>, StoreError> {
        let answers = self.ask_joint(requests, deadline).await?;
        answers.each.into_iter().collect()
    }

    /// As [`Self::decide_joint`]; returns also what the answers do not say.
    pub(super) async fn ask_joint(
        &self,
        requests: Vec<ScriptRequest>,
        deadline: Duration,
    ) -> Result<Answers, StoreError> {
        let count = requests.len();
        let asked = async {
            self.manager.refusal().map_or(Ok(()), Err)?;
            let answered = self.batcher.take_joint(requests, deadline)?;
            let answers = answered.await.map_err(|_| lost_call())?;
            match answers.each.iter().find_map(|each| each.as_ref().err()) {
                Some(error) if answers.note != Some(JointNote::Apart) => Err(error.clone()),
                _ => Ok(answers),
            }
        };
        self.count_undecided(count, asked.await)
    }

    pub(super) async fn decide_all_now(
        &self,
        requests: Vec<ScriptRequest>,
        deadline: Duration,
    ) -> Result<Vec<Answer>, StoreError> {
        self.manager.refusal().map_or(Ok(()), Err)?;
        self.batcher
            .take_batch(requests, deadline)?
            .await
            .map(|answers| answers.each)
            .map_err(|_| lost_call())
    }
}

/// The error for a request whose reply channel was dropped. The batcher answers every request in time, unless it panics.
pub(super) fn lost_call() -> StoreError {
    StoreError::Unreachable("the call was lost by a panic in this process".to_owned())
}
