//! The requests that wait for a node of a Cluster: one queue per slot, since a call may name keys of one slot only.
//!
//! Pure. A slot has one call in flight at a time, and requests that arrive meanwhile go with the next one. So requests of a
//! name keep their order even when a call is redirected to another node. Slots whose queue began with a single request take
//! turns with slots whose queue began with a batch. So a large batch does not delay others.

use std::collections::hash_map::Entry as Place;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::store::redis::batcher::call::Call;
use crate::store::redis::batcher::queue::{PendingQueue, QueuedRequest, Waiter};
use crate::store::redis::name;

/// Holds the waiting requests by slot, and the order in which the slots are served.
pub(in crate::store::redis) struct SlotQueues<T> {
    /// By slot. Each slot here is in `singles` or `batches`, or has a call in flight.
    queues: HashMap<u16, VecDeque<QueuedRequest<T>>>,
    singles: VecDeque<u16>,
    batches: VecDeque<u16>,
    /// Whether `batches` is served next.
    batch_next: bool,
}

impl<T> Default for SlotQueues<T> {
    fn default() -> Self {
        Self { queues: HashMap::new(), singles: VecDeque::new(), batches: VecDeque::new(), batch_next: false }
    }
}

impl<T: Waiter> PendingQueue<T> for SlotQueues<T> {
    fn push(&mut self, entry: QueuedRequest<T>) {
        if let Some(slot) = self.enqueue(entry) {
            self.singles.push_back(slot);
        }
    }

    fn push_batch(&mut self, entries: VecDeque<QueuedRequest<T>>) {
        for entry in entries {
            if let Some(slot) = self.enqueue(entry) {
                self.batches.push_back(slot);
            }
        }
    }

    fn is_ready(&self, _small_is_fine: bool) -> bool {
        !(self.singles.is_empty() && self.batches.is_empty())
    }

    fn compose(&mut self) -> Call<T> {
        let mut call = Call::new(1);
        while let Some(slot) = self.next_slot() {
            let queue = self.queues.entry(slot).or_default();
            while queue.front().is_some_and(|entry| call.has_room_for(&entry.request)) {
                let Some(QueuedRequest { request, until, waiter }) = queue.pop_front() else { break };
                if !waiter.is_gone() {
                    call.take(request, waiter, until);
                }
            }
            if call.latest().is_some() {
                break;
            }
            // All callers of this slot have gone.
            self.queues.remove(&slot);
        }
        call
    }

    fn returned(&mut self, call: &Call<T>) {
        let Some(group) = call.groups.first() else { return };
        if let Place::Occupied(queue) = self.queues.entry(name::slot(&group.name)) {
            if queue.get().is_empty() {
                queue.remove();
            } else {
                self.singles.push_back(*queue.key());
            }
        }
    }

    fn expire(&mut self, now: Instant) -> Vec<T> {
        let (mut expired, mut kept) = (Vec::new(), VecDeque::new());
        for queue in self.queues.values_mut() {
            kept.extend(queue.drain(..));
            for entry in kept.drain(..) {
                if entry.until <= now { expired.push(entry.waiter) } else { queue.push_back(entry) }
            }
        }
        expired
    }

    fn earliest(&self) -> Option<Instant> {
        self.queues.values().flatten().map(|entry| entry.until).min()
    }
}

impl<T: Waiter> SlotQueues<T> {
    /// Appends the request to the queue of its slot. Returns the slot if it had no queue before.
    fn enqueue(&mut self, entry: QueuedRequest<T>) -> Option<u16> {
        match self.queues.entry(name::slot(&entry.request.name)) {
            Place::Occupied(mut queue) => {
                queue.get_mut().push_back(entry);
                None
            }
            Place::Vacant(place) => {
                let slot = *place.key();
                place.insert(VecDeque::from([entry]));
                Some(slot)
            }
        }
    }

    fn next_slot(&mut self) -> Option<u16> {
        let from_batch = !self.batches.is_empty() && (self.batch_next || self.singles.is_empty());
        self.batch_next = !from_batch;
        if from_batch { self.batches.pop_front() } else { self.singles.pop_front() }
    }
}

#[cfg(test)]
mod tests;
