//! What waits to be sent, and which of it goes with the next call.
//!
//! Pure: knows no clock, no task and no Redis. Requests that came alone and those that came in batches take turns, and so
//! do the batches, so that a large batch does not stand before others; of one batch, requests go in their order.

use std::collections::VecDeque;
use std::time::Instant;

use super::SCRIPT_NAMES_MAX;
use super::call::{Call, Request};

/// One request, who waits for its answer, and until when.
pub(super) struct Entry<T> {
    pub request: Request,
    pub until: Instant,
    pub waiter: T,
}

/// What waits to be sent, in some order.
pub(super) trait Waiting<T: Waiter>: Default {
    fn push(&mut self, entry: Entry<T>);

    fn push_batch(&mut self, entries: VecDeque<Entry<T>>);

    /// Whether there is a call to make. `small_is_fine` when one that is not full is worth it.
    fn is_ready(&self, small_is_fine: bool) -> bool;

    /// The next call; empty when nobody waits. Whoever has gone is dropped on the way, and charged nothing.
    fn compose(&mut self) -> Call<T>;

    /// A call has returned.
    fn returned(&mut self, call: &Call<T>);

    /// Takes out those who wait no longer at `now`: they are never sent.
    fn expire(&mut self, now: Instant) -> Vec<T>;

    /// When the first of those who wait stops waiting.
    fn earliest(&self) -> Option<Instant>;
}

/// Whoever waits may have gone.
pub(super) trait Waiter {
    /// Whether nobody waits any more; such a request is not sent.
    fn is_gone(&self) -> bool;
}

/// For one Redis that has all keys.
pub(super) struct Queue<T> {
    singles: VecDeque<Entry<T>>,
    batches: VecDeque<VecDeque<Entry<T>>>,
    len: usize,
    /// Whose turn it is.
    batch_next: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { singles: VecDeque::new(), batches: VecDeque::new(), len: 0, batch_next: false }
    }
}

impl<T: Waiter> Waiting<T> for Queue<T> {
    fn push(&mut self, entry: Entry<T>) {
        self.len += 1;
        self.singles.push_back(entry);
    }

    fn push_batch(&mut self, entries: VecDeque<Entry<T>>) {
        self.len += entries.len();
        self.batches.push_back(entries);
    }

    fn is_ready(&self, small_is_fine: bool) -> bool {
        self.len >= if small_is_fine { 1 } else { SCRIPT_NAMES_MAX }
    }

    fn compose(&mut self) -> Call<T> {
        let mut call = Call::new(self.len);
        while let Some(Entry { request, until, waiter }) = self.next_for(&call) {
            if !waiter.is_gone() {
                call.take(request, waiter, until);
            }
        }
        call
    }

    fn returned(&mut self, _call: &Call<T>) {}

    fn expire(&mut self, now: Instant) -> Vec<T> {
        let (mut expired, mut kept) = (Vec::new(), VecDeque::new());
        for entries in self.batches.iter_mut().chain([&mut self.singles]) {
            kept.extend(std::mem::take(entries));
            for entry in kept.drain(..) {
                if entry.until <= now { expired.push(entry.waiter) } else { entries.push_back(entry) }
            }
        }
        self.batches.retain(|batch| !batch.is_empty());
        self.len -= expired.len();
        expired
    }

    fn earliest(&self) -> Option<Instant> {
        self.batches.iter().chain([&self.singles]).flatten().map(|entry| entry.until).min()
    }
}

impl<T: Waiter> Queue<T> {
    /// The next entry that has room in the call; `None` when there is none, or the one whose turn it is has no room.
    fn next_for(&mut self, call: &Call<T>) -> Option<Entry<T>> {
        let from_batch = !self.batches.is_empty() && (self.batch_next || self.singles.is_empty());
        let first = if from_batch { self.batches.front()?.front() } else { self.singles.front() };
        if !call.has_room_for(&first?.request) {
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
