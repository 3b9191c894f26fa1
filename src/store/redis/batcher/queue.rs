//! The requests that wait to be sent, and the choice of those that go with the next call.
//!
//! Pure: it uses no clock, no task and no Redis. Single requests and batches take turns, and so do the batches, so that a
//! large batch does not delay others. Requests of one batch go in their order, and none while one before it for its name is in flight:
//! that may be sent again, as when Redis has lost the script. Heavy requests wait while enough work is in flight, and delay no
//! others. Joint decisions do not wait: their work adds up requests, each evaluated twice, so many cheap ones would be heavy.

use std::collections::VecDeque;
use std::time::Instant;

use super::call::{Call, ScriptRequest};
use super::slot_queues::{NameRefusals, SlotQueues};
use crate::redis::SCRIPT_NAMES_MAX;

/// The requests that wait to be sent to one server.
pub(super) enum PendingQueue {
    /// The server has all keys.
    Whole(Queue),
    /// The server is a node of a Cluster.
    BySlot(SlotQueues),
}

impl PendingQueue {
    pub(super) fn new(is_clustered: bool) -> Self {
        if is_clustered {
            Self::BySlot(SlotQueues::default())
        } else {
            Self::Whole(Queue::default())
        }
    }

    /// What a node of a Cluster has refused; `None` where the server has all keys.
    pub(super) fn refusals(&mut self) -> Option<&mut NameRefusals> {
        match self {
            Self::Whole(_) => None,
            Self::BySlot(queues) => Some(&mut queues.refusals),
        }
    }

    pub(super) fn push(&mut self, request: ScriptRequest) {
        match self {
            Self::Whole(queue) => queue.push(request),
            Self::BySlot(queues) => queues.push(request),
        }
    }

    pub(super) fn push_batch(&mut self, requests: VecDeque<ScriptRequest>) {
        match self {
            Self::Whole(queue) => queue.push_batch(requests),
            Self::BySlot(queues) => queues.push_batch(requests),
        }
    }

    /// Whether there is a call to send beside those in flight. With `small_is_fine`, one request is enough; otherwise
    /// [`SCRIPT_NAMES_MAX`] requests must wait. In a Cluster, slots with waiting requests count in their place.
    pub(super) fn is_ready(&self, in_flight: usize, small_is_fine: bool) -> bool {
        match self {
            Self::Whole(queue) => queue.len >= if small_is_fine { 1 } else { SCRIPT_NAMES_MAX },
            Self::BySlot(queues) => queues.is_ready(in_flight, small_is_fine),
        }
    }

    /// Takes out the next call, with at most so much work of heavy requests; empty when no request may be sent. Requests whose caller is
    /// gone are dropped and not charged. `in_flight` are the calls that have not returned.
    pub(super) fn compose<'a>(
        &mut self,
        work_left: usize,
        in_flight: impl Iterator<Item = &'a Call> + Clone,
    ) -> Call {
        match self {
            Self::Whole(queue) => queue.compose(work_left, in_flight),
            Self::BySlot(queues) => queues.compose(work_left),
        }
    }

    /// Reports that a call has returned, so that requests that had to wait for it may be sent.
    pub(super) fn returned(&mut self, call: &Call) {
        match self {
            Self::Whole(_) => {}
            Self::BySlot(queues) => queues.returned(call),
        }
    }

    /// Takes out the requests whose deadline is not after `now`. They are never sent.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<ScriptRequest> {
        match self {
            Self::Whole(queue) => queue.expire(now),
            Self::BySlot(queues) => queues.expire(now),
        }
    }

    /// The earliest deadline of all waiting requests.
    pub(super) fn earliest(&self) -> Option<Instant> {
        match self {
            Self::Whole(queue) => queue.earliest(),
            Self::BySlot(queues) => queues.earliest(),
        }
    }
}

/// Requests that wait together: all of one Redis that has all keys, or those of one slot of a Cluster.
#[derive(Default)]
pub(super) struct Queue {
    /// Single requests that are not heavy.
    singles: VecDeque<ScriptRequest>,
    /// Batches, and single requests that are heavy, each as a batch of one: a batch may have to wait, and then is passed by.
    batches: VecDeque<VecDeque<ScriptRequest>>,
    len: usize,
    /// Whether a batch is served next.
    batch_next: bool,
}

impl Queue {
    pub(super) fn push(&mut self, request: ScriptRequest) {
        if request.is_heavy() {
            return self.push_batch([request].into());
        }
        self.len += 1;
        self.singles.push_back(request);
    }

    pub(super) fn push_batch(&mut self, requests: VecDeque<ScriptRequest>) {
        self.len += requests.len();
        self.batches.push_back(requests);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn compose<'a>(
        &mut self,
        work_left: usize,
        in_flight: impl Iterator<Item = &'a Call> + Clone,
    ) -> Call {
        let mut call = Call::new(self.len, work_left);
        self.fill(&mut call, |request| {
            in_flight.clone().any(|call| call.has_one_before(request))
        });
        call
    }

    /// Moves requests to the call, until none is left that it may take on. Returns whether the call refused one for its size: it is then
    /// full. A request that has to wait for one in flight is passed by.
    pub(super) fn fill(
        &mut self,
        call: &mut Call,
        has_to_wait: impl Fn(&ScriptRequest) -> bool,
    ) -> bool {
        let mut held = VecDeque::new();
        let mut is_full = false;
        loop {
            let from_batch =
                !self.batches.is_empty() && (self.batch_next || self.singles.is_empty());
            let queue = if from_batch {
                self.batches.front_mut()
            } else {
                Some(&mut self.singles)
            };
            let Some(first) = queue.as_ref().and_then(|queue| queue.front()) else {
                break;
            };
            if from_batch && (!call.may_take_on(first) || has_to_wait(first)) {
                held.extend(self.batches.pop_front());
                continue;
            }
            let Some((queue, request)) =
                queue.and_then(|queue| queue.pop_front().map(|request| (queue, request)))
            else {
                break;
            };
            if !request.is_abandoned()
                && let Some(request) = call.add(request)
            {
                queue.push_front(request);
                is_full = true;
                break;
            }
            self.len -= 1;
            self.batch_next = !from_batch;
            // The batches take turns.
            if from_batch
                && let Some(batch) = self.batches.pop_front().filter(|batch| !batch.is_empty())
            {
                self.batches.push_back(batch);
            }
        }
        // They keep their turns.
        held.append(&mut self.batches);
        self.batches = held;
        is_full
    }

    pub(super) fn expire(&mut self, now: Instant) -> Vec<ScriptRequest> {
        let mut expired = Vec::new();
        let mut kept = VecDeque::new();
        for requests in self.batches.iter_mut().chain([&mut self.singles]) {
            kept.extend(std::mem::take(requests));
            for request in kept.drain(..) {
                if request.until <= now {
                    expired.push(request)
                } else {
                    requests.push_back(request)
                }
            }
        }
        self.batches.retain(|batch| !batch.is_empty());
        self.len -= expired.len();
        expired
    }

    pub(super) fn earliest(&self) -> Option<Instant> {
        self.batches
            .iter()
            .chain([&self.singles])
            .flatten()
            .map(|request| request.until)
            .min()
    }
}

#[cfg(test)]
mod tests;
