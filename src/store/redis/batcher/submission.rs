//! The way into the batcher: each request takes its place in the bounded queue, or is refused.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::call::{HoldAnswer, ScriptRequest};
use super::caller::{Answers, BatchReply, Caller, QueuePermit};
use super::{Answer, REQUESTS_WAITING_MAX, run};
use crate::StoreError;
use crate::redis::StoreSettings;
use crate::redis::command::CommandSender;

/// Submits requests to the batcher's task. The task ends when all clones of this are dropped.
#[derive(Clone)]
pub(in crate::redis) struct Batcher {
    queue: mpsc::UnboundedSender<Job>,
    /// Number of requests that wait or are in flight. It bounds the queue.
    pub(super) waiting: Arc<AtomicUsize>,
    /// Whether the last call was answered. When the queue is full, this tells an overload from a Redis that does not answer.
    answering: Arc<AtomicBool>,
}

/// What a caller submits to the task.
pub(super) enum Job {
    Single(ScriptRequest),
    Batch(VecDeque<ScriptRequest>),
}

impl Batcher {
    /// Starts the task. Until `commands` is ready, requests keep their order, and are answered at their deadlines.
    pub(in crate::redis) fn start(
        settings: StoreSettings,
        commands: Arc<impl CommandSender>,
    ) -> Self {
        let (queue, received) = mpsc::unbounded_channel();
        let answering = Arc::new(AtomicBool::new(false));
        tokio::spawn(run(settings, commands, received, answering.clone()));
        Self {
            queue,
            waiting: Arc::default(),
            answering,
        }
    }

    /// Submits a request, which is answered within `deadline`. Errors: the queue is full, or the batcher has ended. Nothing is
    /// sent then.
    pub(in crate::redis) fn take(
        &self,
        mut request: ScriptRequest,
        deadline: Duration,
    ) -> Result<oneshot::Receiver<Answer>, StoreError> {
        let (caller, answered) = Caller::alone(self.reserve(1)?, deadline);
        request.caller = Some(caller);
        self.queue.send(Job::Single(request)).map_err(|_| ended())?;
        Ok(answered)
    }

    /// Submits a request with an id, or about holds. Errors: see [`Self::take`].
    pub(in crate::redis) fn take_hold(
        &self,
        mut request: ScriptRequest,
        deadline: Duration,
    ) -> Result<oneshot::Receiver<Result<HoldAnswer, StoreError>>, StoreError> {
        let (caller, answered) = Caller::for_hold(self.reserve(1)?, deadline);
        request.caller = Some(caller);
        self.queue.send(Job::Single(request)).map_err(|_| ended())?;
        Ok(answered)
    }

    /// Submits several such requests, all or none. Errors: see [`Self::take`].
    pub(in crate::redis) fn take_holds(
        &self,
        mut requests: Vec<ScriptRequest>,
        deadline: Duration,
    ) -> Result<Vec<oneshot::Receiver<Result<HoldAnswer, StoreError>>>, StoreError> {
        let mut permit = self.reserve(requests.len())?;
        let answered = requests.iter_mut().map(|request| {
            let (caller, answered) = Caller::for_hold(permit.split_one(), deadline);
            request.caller = Some(caller);
            answered
        });
        let answered = answered.collect();
        self.queue
            .send(Job::Batch(requests.into()))
            .map_err(|_| ended())?;
        Ok(answered)
    }

    /// Submits several requests, all or none, which are decided in their order. Errors: see [`Self::take`].
    pub(in crate::redis) fn take_batch(
        &self,
        mut requests: Vec<ScriptRequest>,
        deadline: Duration,
    ) -> Result<oneshot::Receiver<Answers>, StoreError> {
        let permit = self.reserve(requests.len())?;
        let answered = await_all(&mut requests, permit, deadline);
        ScriptRequest::mark_repeated_names(&mut requests);
        self.queue
            .send(Job::Batch(requests.into()))
            .map_err(|_| ended())?;
        Ok(answered)
    }

    /// Submits the requests of one joint decision. Errors: see [`Self::take`]. An undo is taken however many requests wait: what it
    /// undoes was taken before, and is bounded where it comes from.
    pub(in crate::redis) fn take_joint(
        &self,
        mut requests: Vec<ScriptRequest>,
        deadline: Duration,
    ) -> Result<oneshot::Receiver<Answers>, StoreError> {
        let permit = if requests.iter().any(ScriptRequest::is_undo) {
            self.take_places(requests.len()).0
        } else {
            self.reserve(requests.len())?
        };
        let answered = await_all(&mut requests, permit, deadline);
        if let Some(joined) = ScriptRequest::joined(requests) {
            self.queue.send(Job::Single(joined)).map_err(|_| ended())?;
        }
        Ok(answered)
    }

    /// Takes so many places of the queue, although it may have fewer. Returns also how many are taken now.
    fn take_places(&self, places: usize) -> (QueuePermit, usize) {
        let permit = QueuePermit {
            waiting: self.waiting.clone(),
            places,
        };
        let before = self.waiting.fetch_add(places, Ordering::Relaxed);
        (permit, before + places)
    }

    fn reserve(&self, places: usize) -> Result<QueuePermit, StoreError> {
        let (permit, taken) = self.take_places(places);
        if taken <= REQUESTS_WAITING_MAX {
            return Ok(permit);
        }
        Err(if self.answering.load(Ordering::Relaxed) {
            StoreError::Overloaded(REQUESTS_WAITING_MAX)
        } else {
            StoreError::NotSent(format!(
                "{REQUESTS_WAITING_MAX} requests wait for it already"
            ))
        })
    }
}

/// Gives each request its caller. Returns where all answers come together.
fn await_all(
    requests: &mut [ScriptRequest],
    permit: QueuePermit,
    deadline: Duration,
) -> oneshot::Receiver<Answers> {
    let (batch, answered) = BatchReply::new(permit, requests.len());
    for (index, request) in requests.iter_mut().enumerate() {
        request.caller = Some(Caller::in_batch(batch.clone(), index, deadline));
    }
    answered
}

fn ended() -> StoreError {
    StoreError::Unreachable("its batcher has ended".to_owned())
}
