//! Counters of keys that several plans count together, because their `counts_as` is the same. A limit finds its counter by its
//! fingerprint, as in a store.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::blocks::Blocks;
use tollgate_core::algorithm::State;
use tollgate_core::plan::{Limit, LimitFingerprint};

/// A key in a group of plans: the index of the group, and the hash of the key.
pub(super) type SharedKey = (usize, u64);

/// The counters of one variant.
#[derive(Debug, Default)]
pub(super) struct SharedCounters {
    counters: HashMap<SharedKey, SmallVec<[SharedCounter; 1]>>,
    pub(super) blocks: Blocks,
    /// Heap memory of the states.
    state_bytes: usize,
}

#[derive(Debug)]
struct SharedCounter {
    fingerprint: LimitFingerprint,
    window_us: u64,
    state: State,
}

impl SharedCounters {
    /// Takes the state of each limit out, or a fresh one.
    pub(super) fn take<S: FromIterator<State>>(&mut self, key: SharedKey, limits: &[Limit]) -> S {
        let counters = self.counters.entry(key).or_default();
        let bytes = &mut self.state_bytes;
        let take = |limit: &Limit| {
            let index = counters
                .iter()
                .position(|counter| counter.fingerprint == limit.fingerprint());
            index.map_or_else(
                || State::fresh(limit),
                |index| {
                    let state = counters.swap_remove(index).state;
                    *bytes = bytes.saturating_sub(state.heap_bytes());
                    state
                },
            )
        };
        limits.iter().map(take).collect()
    }

    /// Puts the state of each limit back.
    pub(super) fn put(
        &mut self,
        key: SharedKey,
        limits: &[Limit],
        states: impl IntoIterator<Item = State>,
    ) {
        let counters = self.counters.entry(key).or_default();
        for (limit, state) in limits.iter().zip(states) {
            self.state_bytes += state.heap_bytes();
            counters.push(SharedCounter {
                fingerprint: limit.fingerprint(),
                window_us: limit.window_us(),
                state,
            });
        }
    }

    /// Drops the counters that count nothing any more. Returns the heap memory of the others.
    pub(super) fn sweep(&mut self, now_us: u64) -> usize {
        self.counters.retain(|_, counters| {
            counters.retain(|counter| counter.state.fresh_at_us(counter.window_us) > now_us);
            !counters.is_empty()
        });
        self.blocks.sweep(now_us);
        self.state_bytes = self
            .counters
            .values()
            .flatten()
            .map(|counter| counter.state.heap_bytes())
            .sum();
        self.bytes()
    }

    /// Memory of states and blocks.
    pub(super) fn bytes(&self) -> usize {
        self.state_bytes + self.blocks.bytes()
    }
}
