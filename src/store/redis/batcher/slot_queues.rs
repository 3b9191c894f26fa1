//! The requests that wait for a node of a Cluster, by slot. A call is for names of many slots, unless the node wants names to be
//! keys, which may be of one slot only.
//!
//! Pure. A slot has one call in flight at a time, and requests that arrive meanwhile go with the next one. So what was sent for a
//! name keeps its order even when a call is redirected to another node. Slots whose queue began with a single request take
//! turns with slots whose queue began with a batch, and so do single requests and batches within a slot ([`Queue`]). So a large
//! batch does not delay others. A slot whose requests are all heavy is passed by while enough work is in flight.

use std::collections::VecDeque;
use std::time::Instant;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry as Place;

use super::CALLS_MAX;
use super::call::{Call, ScriptRequest};
use super::queue::Queue;
use crate::redis::{SCRIPT_NAMES_MAX, name};

/// Names that a node refused in a row, although it has their slots, after which its calls are by slot.
const REFUSALS_MAX: usize = 3;
/// Calls by slot after which names are tried once more. A node that was about to take over may have refused them for a moment.
const BY_SLOT_MAX: usize = 10_000;

/// Whether a node takes names that are not keys of a call, as its answers tell.
#[derive(Default)]
pub(super) struct NameRefusals {
    in_a_row: usize,
    accepted: bool,
    /// Calls by slot since the node was found to refuse names.
    by_slot: usize,
}

impl NameRefusals {
    /// Notes that a call was answered, by the node itself or by another one.
    pub(super) fn answered(&mut self, call: &Call, was_redirected: bool) {
        if call.by_names {
            self.accepted();
        } else if call.was_refused && !was_redirected {
            self.refused();
        }
    }

    /// The node took names of a call.
    fn accepted(&mut self) {
        self.accepted = true;
        self.in_a_row = 0;
    }

    /// The node refused a name, and then took it as a key.
    fn refused(&mut self) {
        self.in_a_row += 1;
    }

    /// The node refused a whole call. Returns whether it may be sent again by slot: only if nothing can have been written. So the
    /// script must not have run, as far as the error tells. And the node must never have taken a call: where it did, it may have
    /// refused this one for another reason.
    pub(super) fn refused_call(&mut self, may_have_run: bool) -> bool {
        let takes_none = !self.accepted;
        if takes_none {
            self.in_a_row = REFUSALS_MAX;
        } else {
            // The server at this address may have changed.
            self.refused();
        }
        takes_none && !may_have_run
    }

    fn takes_names(&self) -> bool {
        self.in_a_row < REFUSALS_MAX
    }

    /// Counts a call by slot to a node that refuses names.
    fn count_by_slot(&mut self) {
        self.by_slot += 1;
        if self.by_slot >= BY_SLOT_MAX {
            self.by_slot = 0;
            // One more refusal is enough.
            self.in_a_row = REFUSALS_MAX - 1;
        }
    }
}

/// Holds the waiting requests by slot, and the order in which the slots are served.
#[derive(Default)]
pub(super) struct SlotQueues {
    /// By slot. Each slot here is in `singles` or `batches`, or has a call in flight.
    queues: HashMap<u16, SlotQueue>,
    singles: VecDeque<u16>,
    batches: VecDeque<u16>,
    /// Whether `batches` is served next.
    batch_next: bool,
    pub(super) refusals: NameRefusals,
}

/// The requests that wait for one slot.
#[derive(Default)]
struct SlotQueue {
    waiting: Queue,
    in_flight: bool,
}

impl SlotQueues {
    pub(super) fn push(&mut self, request: ScriptRequest) {
        let slot = name::slot(&request.name);
        let queue = self.queues.entry(slot);
        if let Place::Vacant(_) = queue {
            self.singles.push_back(slot);
        }
        queue.or_default().waiting.push(request);
    }

    pub(super) fn push_batch(&mut self, requests: VecDeque<ScriptRequest>) {
        let mut of_slots = HashMap::<u16, VecDeque<ScriptRequest>>::new();
        for request in requests {
            let slot = name::slot(&request.name);
            of_slots.entry(slot).or_default().push_back(request);
        }
        for (slot, requests) in of_slots {
            let queue = self.queues.entry(slot);
            if let Place::Vacant(_) = queue {
                self.batches.push_back(slot);
            }
            queue.or_default().waiting.push_batch(requests);
        }
    }

    /// See [`super::queue::PendingQueue::is_ready`]. Calls for one slot each are small and may be many.
    pub(super) fn is_ready(&self, in_flight: usize, small_is_fine: bool) -> bool {
        let slots = self.singles.len() + self.batches.len();
        if !self.refusals.takes_names() {
            return slots >= 1;
        }
        in_flight < CALLS_MAX && slots >= if small_is_fine { 1 } else { SCRIPT_NAMES_MAX }
    }

    pub(super) fn compose(&mut self, work_left: usize) -> Call {
        let slots_max = if self.refusals.takes_names() {
            SCRIPT_NAMES_MAX
        } else {
            self.refusals.count_by_slot();
            1
        };
        let expected = slots_max.min(self.singles.len() + self.batches.len());
        let mut held = VecDeque::new();
        let mut slots = 0;
        let mut call = Call::new(expected, work_left).with_joint_decisions_alone();
        while slots < slots_max
            && let Some((slot, of_batch)) = self.next_slot()
        {
            let queue = self.queues.entry(slot).or_default();
            let before = call.len();
            let is_full = queue.waiting.fill(&mut call, |_| false);
            queue.in_flight = call.len() > before;
            if queue.in_flight {
                slots += 1;
            } else if queue.waiting.is_empty() {
                // All callers of this slot have gone.
                self.queues.remove(&slot);
            } else if !is_full {
                held.push_back(slot);
            } else if of_batch {
                self.batches.push_front(slot);
            } else {
                self.singles.push_front(slot);
            }
            if is_full {
                break;
            }
        }
        // They keep their turns, as batches.
        held.append(&mut self.batches);
        self.batches = held;
        call.by_names = slots > 1;
        call
    }

    pub(super) fn returned(&mut self, call: &Call) {
        for group in &call.groups {
            let Place::Occupied(mut queue) = self.queues.entry(name::slot(group.name())) else {
                continue;
            };
            if !std::mem::take(&mut queue.get_mut().in_flight) {
                // Another name of the call has this slot, too.
            } else if queue.get().waiting.is_empty() {
                queue.remove();
            } else {
                self.singles.push_back(*queue.key());
            }
        }
    }

    pub(super) fn expire(&mut self, now: Instant) -> Vec<ScriptRequest> {
        self.queues
            .values_mut()
            .flat_map(|queue| queue.waiting.expire(now))
            .collect()
    }

    pub(super) fn earliest(&self) -> Option<Instant> {
        self.queues
            .values()
            .filter_map(|queue| queue.waiting.earliest())
            .min()
    }

    /// The slot whose turn it is, and whether it is one of `batches`.
    fn next_slot(&mut self) -> Option<(u16, bool)> {
        let from_batch = !self.batches.is_empty() && (self.batch_next || self.singles.is_empty());
        self.batch_next = !from_batch;
        let slot = if from_batch {
            self.batches.pop_front()
        } else {
            self.singles.pop_front()
        };
        slot.map(|slot| (slot, from_batch))
    }
}

#[cfg(test)]
mod tests;
