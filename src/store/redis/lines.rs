//! What waits for a node of a Cluster: a line for each slot, since a call may name keys of one slot only.
//!
//! Pure. A slot has one call under way at a time: what comes for it meanwhile goes with the next, and so requests of a name
//! keep their order whatever a call goes through on its way, be it sent on to another node. Slots whose line was begun by a
//! request that came alone and those begun by a batch take turns, so that a large batch does not stand before others.

use std::collections::hash_map::Entry as Place;
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::call::Call;
use super::name;
use super::queue::{Entry, Waiter, Waiting};

pub(super) struct Lines<T> {
    /// By slot. Each is in its turn, or has a call under way.
    lines: HashMap<u16, VecDeque<Entry<T>>>,
    singles: VecDeque<u16>,
    batches: VecDeque<u16>,
    /// Whose turn it is.
    batch_next: bool,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Self { lines: HashMap::new(), singles: VecDeque::new(), batches: VecDeque::new(), batch_next: false }
    }
}

impl<T: Waiter> Waiting<T> for Lines<T> {
    fn push(&mut self, entry: Entry<T>) {
        if let Some(slot) = self.line_up(entry) {
            self.singles.push_back(slot);
        }
    }

    fn push_batch(&mut self, entries: VecDeque<Entry<T>>) {
        for entry in entries {
            if let Some(slot) = self.line_up(entry) {
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
            let line = self.lines.entry(slot).or_default();
            while line.front().is_some_and(|entry| call.has_room_for(&entry.request)) {
                let Some(Entry { request, until, waiter }) = line.pop_front() else { break };
                if !waiter.is_gone() {
                    call.take(request, waiter, until);
                }
            }
            if call.latest().is_some() {
                break;
            }
            // All of them had gone.
            self.lines.remove(&slot);
        }
        call
    }

    fn returned(&mut self, call: &Call<T>) {
        let Some(group) = call.groups.first() else { return };
        if let Place::Occupied(line) = self.lines.entry(name::slot(&group.name)) {
            if line.get().is_empty() {
                line.remove();
            } else {
                self.singles.push_back(*line.key());
            }
        }
    }

    fn expire(&mut self, now: Instant) -> Vec<T> {
        let (mut expired, mut kept) = (Vec::new(), VecDeque::new());
        for line in self.lines.values_mut() {
            kept.extend(line.drain(..));
            for entry in kept.drain(..) {
                if entry.until <= now { expired.push(entry.waiter) } else { line.push_back(entry) }
            }
        }
        expired
    }

    fn earliest(&self) -> Option<Instant> {
        self.lines.values().flatten().map(|entry| entry.until).min()
    }
}

impl<T: Waiter> Lines<T> {
    /// Puts it at the end of its line; its slot if that line begins with it.
    fn line_up(&mut self, entry: Entry<T>) -> Option<u16> {
        match self.lines.entry(name::slot(&entry.request.name)) {
            Place::Occupied(mut line) => {
                line.get_mut().push_back(entry);
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
