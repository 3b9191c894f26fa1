//! What is counted in one slot of time: a sketch for each plan while there is room, and one that the other plans share.
//!
//! A plan gets a sketch of its own, of up to `k` keys, while the slot has room. A slot has room for [`SLOT_KEYS_MAX`] keys in all,
//! of which `k` belong to the shared sketch. A key that finds no room in the sketch of its plan is counted in the shared one. So a
//! key is in one of the two, and memory is bounded whatever the number of plans.
//!
//! A slot that is over is kept as [`CountedKey`] keys, each with what it was counted above the least count.

use super::sketch::Sketch;

/// Maximum number of keys of one slot. Twelve slots of a worker, six of denials and six of cost, of which two are counted in,
/// take 0.8 MiB.
pub(super) const SLOT_KEYS_MAX: usize = 2_200;
/// Maximum number of plans with a sketch of their own in one slot, each of which takes 200 bytes beside its keys.
const OWN_PLANS_MAX: usize = 32;

/// A slot that is counted in.
#[derive(Debug)]
pub(super) struct Slot {
    /// Maximum number of keys of one sketch.
    k: usize,
    total: u64,
    /// Ids of the plans with a sketch of their own, in the order of `own`.
    own_ids: Vec<u64>,
    own: Vec<OwnSketch>,
    /// Keys in all sketches of `own`.
    own_keys: usize,
    shared: Sketch,
    /// Ids of the plans of the keys in `shared`.
    shared_ids: Vec<u64>,
}

#[derive(Debug, Default)]
struct OwnSketch {
    total: u64,
    sketch: Sketch,
}

/// A key and what it was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CountedKey {
    /// The key.
    pub(super) hash: u64,
    /// The count is at most this and the `too_high` of its list together.
    pub(super) estimate: u64,
    /// The count is at least this.
    pub(super) at_least: u64,
}

/// The keys of a plan with a sketch of its own.
#[derive(Debug, Clone)]
pub(super) struct PlanKeys {
    /// The plan.
    pub(super) id: u64,
    /// What was counted for all keys of the plan.
    pub(super) total: u64,
    /// Maximum that may have been counted for a key without an entry.
    pub(super) too_high: u64,
    /// Keys whose count may be above `too_high`.
    pub(super) keys: Box<[CountedKey]>,
}

/// A slot as it was at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct SealedSlot {
    /// What was counted for all plans.
    pub(super) total: u64,
    /// Plans with a sketch of their own.
    pub(super) own: Vec<PlanKeys>,
    /// Keys that were counted in the shared sketch, each with its plan.
    pub(super) shared: Box<[(u64, CountedKey)]>,
    /// As [`PlanKeys::too_high`], for the shared sketch.
    pub(super) shared_too_high: u64,
}

impl Slot {
    /// An empty slot whose sketches have at most `k` keys.
    pub(super) fn new(k: usize) -> Self {
        let own_ids = Vec::new();
        let own = Vec::new();
        let shared = Sketch::default();
        let shared_ids = Vec::new();
        Self {
            k,
            total: 0,
            own_ids,
            own,
            own_keys: 0,
            shared,
            shared_ids,
        }
    }

    /// Counts a key. `hash` stands for the plan and the key together. Returns what the key is known to have been counted in
    /// this slot.
    pub(super) fn count(&mut self, plan: u64, hash: u64, weight: u64) -> u64 {
        self.total = self.total.saturating_add(weight);
        let room = self.own_keys < SLOT_KEYS_MAX - self.k;
        let own = match self.own_ids.iter().position(|id| *id == plan) {
            Some(index) => Some(&mut self.own[index]),
            None if room && self.own.len() < OWN_PLANS_MAX => {
                self.own_ids.push(plan);
                self.own.push(OwnSketch::default());
                self.own.last_mut()
            }
            None => None,
        };
        if let Some(OwnSketch { total, sketch }) = own {
            *total = total.saturating_add(weight);
            if let Some(known) = sketch.add(hash, weight) {
                return known;
            }
            if sketch.len() == self.k {
                sketch.take_over(hash, weight);
                return weight;
            }
            if room {
                sketch.insert(hash, weight);
                self.own_keys += 1;
                return weight;
            }
        }
        self.count_shared(plan, hash, weight)
    }

    fn count_shared(&mut self, plan: u64, hash: u64, weight: u64) -> u64 {
        if let Some(known) = self.shared.add(hash, weight) {
            return known;
        }
        if self.shared.len() < self.k {
            self.shared.insert(hash, weight);
            self.shared_ids.push(plan);
        } else {
            let index = self.shared.take_over(hash, weight);
            self.shared_ids[index] = plan;
        }
        weight
    }

    /// The slot as it is now.
    pub(super) fn sealed(&self) -> SealedSlot {
        let shared_too_high = too_high(&self.shared, self.k);
        let own = self
            .own_ids
            .iter()
            .zip(&self.own)
            .map(|(id, OwnSketch { total, sketch })| {
                let full = too_high(sketch, self.k);
                // A plan whose sketch is not full may have keys in the shared one.
                let too_high = if sketch.len() == self.k {
                    full
                } else {
                    shared_too_high
                };
                let keys = sketch.entries().iter().map(|entry| CountedKey {
                    hash: entry.hash,
                    estimate: entry.count.saturating_sub(too_high),
                    at_least: entry.count - entry.error,
                });
                PlanKeys {
                    id: *id,
                    total: *total,
                    too_high,
                    keys: keys.filter(|key| key.estimate > 0).collect(),
                }
            });
        let shared = self
            .shared_ids
            .iter()
            .zip(self.shared.entries())
            .map(|(id, entry)| {
                let estimate = entry.count.saturating_sub(shared_too_high);
                (
                    *id,
                    CountedKey {
                        hash: entry.hash,
                        estimate,
                        at_least: entry.count - entry.error,
                    },
                )
            });
        let shared = shared.filter(|(_, key)| key.estimate > 0).collect();
        SealedSlot {
            total: self.total,
            own: own.collect(),
            shared,
            shared_too_high,
        }
    }
}

/// Maximum that may have been counted for a key without an entry.
fn too_high(sketch: &Sketch, k: usize) -> u64 {
    if sketch.len() == k { sketch.least() } else { 0 }
}
