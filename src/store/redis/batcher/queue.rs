//! The requests that wait to be sent, and the choice of those that go with the next call.
//!
//! Pure: it uses no clock, no task and no Redis. Single requests and batches take turns, and so do the batches, so that a
//! large batch does not delay others. Requests of one batch go in their order.

use std::collections::VecDeque;
use std::time::Instant;

use super::call::{Call, ScriptRequest};
use crate::store::redis::SCRIPT_NAMES_MAX;

/// A request that waits to be sent, with its deadline and its waiter.
pub(in crate::store::redis) struct QueuedRequest<T> {
    pub request: ScriptRequest,
    pub until: Instant,
    pub waiter: T,
}

/// A queue of requests that wait to be sent. Implementations differ in the order, and in which requests may share a call.
pub(in crate::store::redis) trait PendingQueue<T: Waiter>: Default {
    fn push(&mut self, entry: QueuedRequest<T>);

    fn push_batch(&mut self, entries: VecDeque<QueuedRequest<T>>);

    /// Whether there is a call to send. With `small_is_fine`, one request is enough; otherwise the call must be full.
    fn is_ready(&self, small_is_fine: bool) -> bool;

    /// Takes out the next call; empty when no request waits. Requests whose waiter is gone are dropped and not charged.
    fn compose(&mut self) -> Call<T>;

    /// Reports that a call has returned, so that requests that had to wait for it may be sent.
    fn returned(&mut self, call: &Call<T>);

    /// Takes out the requests whose deadline is not after `now`. They are never sent. Returns their waiters.
    fn expire(&mut self, now: Instant) -> Vec<T>;

    /// The earliest deadline of all waiting requests.
    fn earliest(&self) -> Option<Instant>;
}

/// The receiver of an answer.
pub(in crate::store::redis) trait Waiter {
    /// Whether the caller has stopped waiting. Its request is then not sent.
    fn is_gone(&self) -> bool;
}

/// The queue for one Redis that has all keys.
pub(in crate::store::redis) struct Queue<T> {
    singles: VecDeque<QueuedRequest<T>>,
    batches: VecDeque<VecDeque<QueuedRequest<T>>>,
    len: usize,
    /// Whether a batch is served next.
    batch_next: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { singles: VecDeque::new(), batches: VecDeque::new(), len: 0, batch_next: false }
    }
}

impl<T: Waiter> PendingQueue<T> for Queue<T> {
    fn push(&mut self, entry: QueuedRequest<T>) {
        self.len += 1;
        self.singles.push_back(entry);
    }

    fn push_batch(&mut self, entries: VecDeque<QueuedRequest<T>>) {
        self.len += entries.len();
        self.batches.push_back(entries);
    }

    fn is_ready(&self, small_is_fine: bool) -> bool {
        self.len >= if small_is_fine { 1 } else { SCRIPT_NAMES_MAX }
    }

    fn compose(&mut self) -> Call<T> {
        let mut call = Call::new(self.len);
        while let Some(QueuedRequest { request, until, waiter }) = self.next_for(&call) {
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
    /// Takes out the next request; `None` when there is none, or the call has no room for it.
    fn next_for(&mut self, call: &Call<T>) -> Option<QueuedRequest<T>> {
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
