//! What waits to be sent, and which of it goes with the next call.
//!
//! Pure: knows no clock, no task and no Redis. Requests that came alone and those that came in batches take turns, and so
//! do the batches, so that a large batch does not stand before others; of one batch, requests go in their order.

use std::collections::VecDeque;
use std::time::Instant;

use super::call::{Call, Request};

/// One request, who waits for its answer, and until when.
pub(super) struct Entry<T> {
    pub request: Request,
    pub until: Instant,
    pub waiter: T,
}

/// Whoever waits may have gone.
pub(super) trait Waiter {
    /// Whether nobody waits any more; such a request is not sent.
    fn is_gone(&self) -> bool;
}

pub(super) struct Queue<T> {
    singles: VecDeque<Entry<T>>,
    batches: VecDeque<VecDeque<Entry<T>>>,
    len: usize,
    /// Whose turn it is.
    batch_next: bool,
}

impl<T: Waiter> Queue<T> {
    pub(super) fn new() -> Self {
        Self { singles: VecDeque::new(), batches: VecDeque::new(), len: 0, batch_next: false }
    }

    /// Requests that wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, entry: Entry<T>) {
        self.len += 1;
        self.singles.push_back(entry);
    }

    pub(super) fn push_batch(&mut self, entries: VecDeque<Entry<T>>) {
        self.len += entries.len();
        self.batches.push_back(entries);
    }

    /// The next call, and until when the last of its callers waits; empty, and no time, when nobody waits. Whoever is gone
    /// or has no time left at `now` is dropped on the way, and charged nothing.
    pub(super) fn compose(&mut self, now: Instant) -> (Call<T>, Option<Instant>) {
        let (mut call, mut latest) = (Call::new(), None);
        // A turn of either kind ends when the other's does: the one that stands first keeps its place.
        while let Some(entry) = self.next_for(&call) {
            if entry.until <= now || entry.waiter.is_gone() {
                continue;
            }
            latest = latest.max(Some(entry.until));
            call.take(entry.request, entry.waiter);
        }
        (call, latest)
    }

    /// The next entry that has room in the call; `None` when there is none, or the one whose turn it is has no room.
    fn next_for(&mut self, call: &Call<T>) -> Option<Entry<T>> {
        let from_batch = !self.batches.is_empty() && (self.batch_next || self.singles.is_empty());
        let first = if from_batch { self.batches.front()?.front() } else { self.singles.front() };
        if !call.has_room_for(&first?.request.name) {
            return None;
        }
        self.len -= 1;
        self.batch_next = !from_batch;
        if !from_batch {
            return self.singles.pop_front();
        }
        let mut batch = self.batches.pop_front()?;
        let entry = batch.pop_front();
        if !batch.is_empty() {
            self.batches.push_back(batch);
        }
        entry
    }
}

#[cfg(test)]
mod tests;
