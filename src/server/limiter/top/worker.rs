//! What one worker counts: denials and cost by key, for the last minute in slots of ten seconds.
//!
//! Each worker has its own, under a lock that only the task which reads it contends for. It copies what was counted, a hundred
//! kilobytes at most, and does all else without the lock. No clock is read on the way of a decision: that task also begins slots.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::names::KeyNames;
use super::slot::{SealedSlot, Slot};
use super::{Secret, TopBy, TopSettings};
use tollgate_core::decision::{Decision, Outcome};
use tollgate_core::key::{Cost, Key};

/// Slots of a minute, with the one that is counted in.
pub(super) const SLOTS: usize = 6;

/// The counts of one worker.
#[derive(Debug)]
pub(in crate::limiter) struct WorkerTop(Mutex<WorkerCounts>);

#[derive(Debug)]
struct WorkerCounts {
    secret: Secret,
    denials: SlotWindow,
    cost: SlotWindow,
    /// Keys in clear, if operators asked for them.
    names: Option<KeyNames>,
}

/// The slots of the last minute.
#[derive(Debug)]
struct SlotWindow {
    keys_max: usize,
    live: Slot,
    /// The oldest first.
    finished: VecDeque<Arc<SealedSlot>>,
}

impl WorkerTop {
    /// Counts nothing yet. Keys are known by their hash with `secret`.
    pub(super) fn new(settings: TopSettings, secret: Secret) -> Self {
        Self(Mutex::new(WorkerCounts::new(settings, secret)))
    }

    /// Counts a decision: a denial as one, and of others the cost. `plan` is the plan's id.
    pub(in crate::limiter) fn record(&self, plan: u64, key: &Key, cost: Cost, decision: &Decision) {
        match decision.outcome {
            // What was charged before is not charged again.
            Outcome::Allowed if decision.is_repeated => {}
            Outcome::Allowed => self.count((TopBy::Cost, cost.units()), plan, key),
            Outcome::Denied | Outcome::NeverFits | Outcome::ShadowDenied => {
                self.count((TopBy::Denials, 1), plan, key);
            }
            // Another key denied it, and it took nothing.
            Outcome::OtherDenied => {}
        }
    }

    /// Counts a cost that was charged whatever the limits say.
    pub(in crate::limiter) fn record_cost(&self, plan: u64, key: &Key, cost: Cost) {
        self.count((TopBy::Cost, cost.units()), plan, key);
    }

    fn count(&self, (by, count): (TopBy, u64), plan: u64, key: &Key) {
        let counts = &mut *self.counts();
        let hash = counts.secret.hash(key, plan);
        let window = match by {
            TopBy::Denials => &mut counts.denials,
            TopBy::Cost => &mut counts.cost,
        };
        let known = window.live.count(plan, hash, count);
        if let Some(names) = &mut counts.names {
            names.note(by, hash, key.as_str(), known);
        }
    }

    /// Forgets all counts, and counts from now on with another secret, under which all keys have other numbers.
    pub(super) fn start_over(&self, settings: TopSettings, secret: Secret) {
        *self.counts() = WorkerCounts::new(settings, secret);
    }

    /// Adds the keys in clear to these.
    pub(super) fn add_names(&self, names: &mut HashMap<u64, String>) {
        let counts = self.counts();
        let known = counts.names.iter().flat_map(KeyNames::iter);
        for (hash, key) in known {
            names.entry(hash).or_insert_with(|| key.to_owned());
        }
    }

    /// Begins the next slot.
    pub(super) fn begin_slot(&self) {
        let mut counts = self.counts();
        counts.denials.begin_slot();
        counts.cost.begin_slot();
        if let Some(names) = &mut counts.names {
            names.begin_slot();
        }
    }

    /// What was counted in the last minute, a list for each slot.
    pub(super) fn slots(&self, by: TopBy) -> Vec<Arc<SealedSlot>> {
        let counts = self.counts();
        match by {
            TopBy::Denials => counts.denials.slots(),
            TopBy::Cost => counts.cost.slots(),
        }
    }

    fn counts(&self) -> MutexGuard<'_, WorkerCounts> {
        // After a panic, at worst a count is wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerCounts {
    fn new(settings: TopSettings, secret: Secret) -> Self {
        let window = || SlotWindow::new(settings.keys_max);
        Self {
            secret,
            denials: window(),
            cost: window(),
            names: settings.in_clear.then(KeyNames::default),
        }
    }
}

impl SlotWindow {
    fn new(keys_max: usize) -> Self {
        Self {
            keys_max,
            live: Slot::new(keys_max),
            finished: VecDeque::with_capacity(SLOTS - 1),
        }
    }

    fn begin_slot(&mut self) {
        let finished = std::mem::replace(&mut self.live, Slot::new(self.keys_max));
        if self.finished.len() == SLOTS - 1 {
            self.finished.pop_front();
        }
        self.finished.push_back(Arc::new(finished.sealed()));
    }

    fn slots(&self) -> Vec<Arc<SealedSlot>> {
        self.finished
            .iter()
            .cloned()
            .chain([Arc::new(self.live.sealed())])
            .collect()
    }
}
