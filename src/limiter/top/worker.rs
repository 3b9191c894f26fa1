//! What one worker counts: denials and cost by key, for the last minute in slots of ten seconds.
//!
//! Each worker has its own, under a lock that only the task which reads it contends for. It copies what was counted, a hundred
//! kilobytes at most, and does all else without the lock. No clock is read on the way of a decision: that task also begins slots.

use std::collections::VecDeque;
use std::hash::Hasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use siphasher::sip::SipHasher13;

use super::slot::{SealedSlot, Slot};
use super::{Secret, TopBy};
use crate::decision::{Decision, Outcome};
use crate::key::{Cost, Key};

/// Slots of a minute, with the one that is counted in.
pub(super) const SLOTS: usize = 6;

/// The counts of one worker.
#[derive(Debug)]
pub(in crate::limiter) struct WorkerTop(Mutex<Counts>);

#[derive(Debug)]
struct Counts {
    secret: Secret,
    denials: Window,
    cost: Window,
}

/// The slots of the last minute.
#[derive(Debug)]
struct Window {
    k: usize,
    live: Slot,
    /// Slots that are over, the oldest first.
    over: VecDeque<Arc<SealedSlot>>,
}

impl WorkerTop {
    /// Counts up to `k` keys in a list. Keys are known by their hash with `secret`.
    pub(super) fn new(k: usize, secret: Secret) -> Self {
        Self(Mutex::new(Counts { secret, denials: Window::new(k), cost: Window::new(k) }))
    }

    /// Counts a decision: a denial as one, and of others the cost. `plan` is the plan's id.
    pub(in crate::limiter) fn record(&self, plan: u64, key: &Key, cost: Cost, decision: &Decision) {
        let mut counts = self.counts();
        let hash = counts.secret.hash(key.as_str()) ^ plan;
        match decision.outcome {
            Outcome::Allowed => counts.cost.live.count(plan, hash, cost.units()),
            Outcome::Denied | Outcome::NeverFits | Outcome::ShadowDenied => counts.denials.live.count(plan, hash, 1),
        };
    }

    /// Begins the next slot.
    pub(super) fn begin_slot(&self) {
        let mut counts = self.counts();
        counts.denials.begin_slot();
        counts.cost.begin_slot();
    }

    /// What was counted in the last minute, a list for each slot.
    pub(super) fn slots(&self, by: TopBy) -> Vec<Arc<SealedSlot>> {
        let counts = self.counts();
        match by {
            TopBy::Denials => counts.denials.slots(),
            TopBy::Cost => counts.cost.slots(),
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // After a panic, at worst a count is wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Window {
    fn new(k: usize) -> Self {
        Self { k, live: Slot::new(k), over: VecDeque::with_capacity(SLOTS - 1) }
    }

    fn begin_slot(&mut self) {
        let over = std::mem::replace(&mut self.live, Slot::new(self.k));
        if self.over.len() == SLOTS - 1 {
            self.over.pop_front();
        }
        self.over.push_back(Arc::new(over.sealed()));
    }

    fn slots(&self) -> Vec<Arc<SealedSlot>> {
        self.over.iter().cloned().chain([Arc::new(self.live.sealed())]).collect()
    }
}

impl Secret {
    /// The hash of a key.
    fn hash(&self, key: &str) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.0, self.1);
        hasher.write(key.as_bytes());
        hasher.finish()
    }
}
