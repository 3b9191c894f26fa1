//! The requests that wait for a node of a Cluster: one queue per slot, since a call may name keys of one slot only.
//!
//! Pure. A slot has one call in flight at a time, and requests that arrive meanwhile go with the next one. So requests of a
//! name keep their order even when a call is redirected to another node. Slots whose queue began with a single request take
//! turns with slots whose queue began with a batch. So a large batch does not delay others. A slot whose first request searches
//! logs is passed by while enough searches are in flight.

use std::collections::hash_map::Entry as Place;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::call::{Call, ScriptRequest};
use crate::store::redis::name;

/// Holds the waiting requests by slot, and the order in which the slots are served.
#[derive(Default)]
pub(in crate::store::redis) struct SlotQueues {
    /// By slot. Each slot here is in `singles` or `batches`, or has a call in flight.
    queues: HashMap<u16, VecDeque<ScriptRequest>>,
    singles: VecDeque<u16>,
    batches: VecDeque<u16>,
    /// Whether `batches` is served next.
    batch_next: bool,
}

impl SlotQueues {
    pub(super) fn push(&mut self, request: ScriptRequest) {
        if let Some(slot) = self.enqueue(request) {
            self.singles.push_back(slot);
        }
    }

    pub(super) fn push_batch(&mut self, requests: VecDeque<ScriptRequest>) {
        for request in requests {
            if let Some(slot) = self.enqueue(request) {
                self.batches.push_back(slot);
            }
        }
    }

    pub(super) fn is_ready(&self) -> bool {
        !(self.singles.is_empty() && self.batches.is_empty())
    }

    pub(super) fn compose(&mut self, searches_left: usize) -> Call {
        let (mut call, mut held) = (Call::new(1, searches_left), VecDeque::new());
        while let Some(slot) = self.next_slot() {
            let queue = self.queues.entry(slot).or_default();
            while let Some(request) = queue.pop_front() {
                if !request.is_abandoned()
                    && let Some(request) = call.add(request)
                {
                    queue.push_front(request);
                    break;
                }
            }
            if !call.groups.is_empty() {
                break;
            }
            if queue.is_empty() {
                // All callers of this slot have gone.
                self.queues.remove(&slot);
            } else {
                held.push_back(slot);
            }
        }
        // They keep their turns, as batches.
        held.append(&mut self.batches);
        self.batches = held;
        call
    }

    pub(super) fn returned(&mut self, call: &Call) {
        let Some(group) = call.groups.first() else { return };
        if let Place::Occupied(queue) = self.queues.entry(name::slot(group.name())) {
            if queue.get().is_empty() {
                queue.remove();
            } else {
                self.singles.push_back(*queue.key());
            }
        }
    }

    pub(super) fn expire(&mut self, now: Instant) -> Vec<ScriptRequest> {
        let (mut expired, mut kept) = (Vec::new(), VecDeque::new());
        for queue in self.queues.values_mut() {
            kept.extend(queue.drain(..));
            for request in kept.drain(..) {
                if request.until <= now { expired.push(request) } else { queue.push_back(request) }
            }
        }
        expired
    }

    pub(super) fn earliest(&self) -> Option<Instant> {
        self.queues.values().flatten().map(|request| request.until).min()
    }

    /// Appends the request to the queue of its slot. Returns the slot if it had no queue before.
    fn enqueue(&mut self, request: ScriptRequest) -> Option<u16> {
        match self.queues.entry(name::slot(&request.name)) {
            Place::Occupied(mut queue) => {
                queue.get_mut().push_back(request);
                None
            }
            Place::Vacant(place) => {
                let slot = *place.key();
                place.insert(VecDeque::from([request]));
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
