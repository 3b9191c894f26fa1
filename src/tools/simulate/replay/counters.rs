//! The counters of all keys of a plan in one variant. Those that grow are packed while their key is idle.
//!
//! A decision unpacks the logs of its key. They stay so while the key is used: of the unpacked logs, the one that was not used for
//! longest is packed, as far as a clock with one hand tells.

use std::collections::VecDeque;

use smallvec::SmallVec;

use super::packed::{pack, unpack};
use tollgate_core::algorithm::{Runs, State};
use tollgate_core::plan::Limit;

pub(super) type States = SmallVec<[State; 1]>;

/// Maximum number of bytes of unpacked logs of a limit, unless packing them takes too long.
const UNPACKED_BYTES: usize = 3 << 20;
/// Bytes to pack for each decision, on average at most. So decisions stay cheap where the keys in use have long logs.
const BYTES_PER_DECISION: usize = 4 << 10;

/// Counters by key, of each limit.
#[derive(Debug)]
pub(super) struct Counters {
    limits: Vec<LimitCounters>,
}

#[derive(Debug)]
enum LimitCounters {
    /// Of a limit whose counters do not grow; `None` for a fresh one.
    Small(Vec<Option<State>>),
    Logs(KeyLogs),
}

#[derive(Debug, Default)]
struct KeyLogs {
    logs: Vec<KeyLog>,
    /// Keys whose logs are unpacked, in the order in which they are looked at for packing.
    unpacked: VecDeque<usize>,
    /// By key, whether the log was used since it was unpacked or looked at.
    is_used: Vec<bool>,
    unpacked_bytes: usize,
    packed_bytes: usize,
    /// Bytes that may be packed now.
    may_pack: usize,
    /// Empty between calls; their memory is used again.
    runs: Vec<(u64, u64)>,
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum KeyLog {
    /// A fresh one is empty.
    Packed(Box<[u8]>),
    Unpacked(Box<Runs>),
}

impl Counters {
    pub(super) fn new(limits: &[Limit]) -> Self {
        let of = |limit: &Limit| {
            if limit.algorithm().keeps_instants() {
                LimitCounters::Logs(KeyLogs::default())
            } else {
                LimitCounters::Small(Vec::new())
            }
        };
        Self {
            limits: limits.iter().map(of).collect(),
        }
    }

    pub(super) fn add_key(&mut self) {
        for counters in &mut self.limits {
            match counters {
                LimitCounters::Small(states) => states.push(None),
                LimitCounters::Logs(logs) => logs.add_key(),
            }
        }
    }

    /// Takes the state of each limit out, or a fresh one.
    pub(super) fn take(&mut self, index: usize, limits: &[Limit]) -> States {
        let take = |(counters, limit): (&mut LimitCounters, &Limit)| match counters {
            LimitCounters::Small(states) => {
                states[index].take().unwrap_or_else(|| State::fresh(limit))
            }
            LimitCounters::Logs(logs) => State::Runs(logs.take(index)),
        };
        self.limits.iter_mut().zip(limits).map(take).collect()
    }

    /// Puts the states back that were taken last.
    pub(super) fn put(&mut self, index: usize, states: States) {
        for (counters, state) in self.limits.iter_mut().zip(states) {
            match (counters, state) {
                (LimitCounters::Small(states), state) => states[index] = Some(state),
                (LimitCounters::Logs(logs), State::Runs(runs)) => logs.put(index, runs),
                (LimitCounters::Logs(_), _) => {}
            }
        }
    }

    /// Whether the key's counters count nothing. Those that no longer do count as such after a sweep.
    pub(super) fn are_fresh(&self, index: usize) -> bool {
        self.limits.iter().all(|counters| match counters {
            LimitCounters::Small(states) => states[index].is_none(),
            LimitCounters::Logs(logs) => {
                matches!(&logs.logs[index], KeyLog::Packed(packed) if packed.is_empty())
            }
        })
    }

    /// Drops the counters that count nothing any more.
    pub(super) fn sweep(&mut self, now_us: u64, limits: &[Limit]) {
        for (counters, limit) in self.limits.iter_mut().zip(limits) {
            let window_us = limit.window_us();
            match counters {
                LimitCounters::Small(states) => {
                    let fresh = states.iter_mut().filter(|state| {
                        state
                            .as_ref()
                            .is_some_and(|s| s.fresh_at_us(window_us) <= now_us)
                    });
                    fresh.for_each(|state| *state = None);
                }
                LimitCounters::Logs(logs) => logs.sweep(now_us, window_us),
            }
        }
    }

    /// Heap memory of the states.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |counters: &LimitCounters| match counters {
            LimitCounters::Small(_) => 0,
            LimitCounters::Logs(logs) => logs.unpacked_bytes + logs.packed_bytes,
        };
        self.limits.iter().map(bytes).sum()
    }
}

impl Default for KeyLog {
    fn default() -> Self {
        Self::Packed(Box::default())
    }
}

impl KeyLogs {
    fn add_key(&mut self) {
        self.logs.push(KeyLog::default());
        self.is_used.push(false);
    }

    fn take(&mut self, index: usize) -> Box<Runs> {
        match std::mem::take(&mut self.logs[index]) {
            KeyLog::Unpacked(runs) => {
                self.unpacked_bytes -= runs.heap_bytes();
                self.is_used[index] = true;
                runs
            }
            KeyLog::Packed(packed) => {
                self.unpacked.push_back(index);
                self.packed_bytes -= packed.len();
                // A buffer that is used again takes them first. So their number is known, and the box has no spare capacity.
                self.runs.extend(unpack(&packed));
                Box::new(self.runs.drain(..).collect())
            }
        }
    }

    fn put(&mut self, index: usize, runs: Box<Runs>) {
        self.unpacked_bytes += runs.heap_bytes();
        self.logs[index] = KeyLog::Unpacked(runs);
        self.may_pack = (self.may_pack + BYTES_PER_DECISION).min(UNPACKED_BYTES);
        while self.unpacked_bytes > UNPACKED_BYTES && self.may_pack > 0 {
            let Some(index) = self.unpacked.pop_front() else {
                break;
            };
            if std::mem::take(&mut self.is_used[index]) {
                self.unpacked.push_back(index);
            } else {
                self.pack(index);
            }
        }
    }

    /// Packs a log, unless a sweep has dropped it.
    fn pack(&mut self, index: usize) {
        let log = &mut self.logs[index];
        let KeyLog::Unpacked(runs) = log else { return };
        self.unpacked_bytes -= runs.heap_bytes();
        self.may_pack = self.may_pack.saturating_sub(runs.heap_bytes());
        pack(runs, &mut self.bytes);
        self.packed_bytes += self.bytes.len();
        *log = KeyLog::Packed(self.bytes.as_slice().into());
        self.bytes.clear();
    }

    fn sweep(&mut self, now_us: u64, window_us: u64) {
        for log in &mut self.logs {
            let newest_us = match log {
                KeyLog::Packed(packed) => unpack(packed).last().map_or(0, |(at_us, _)| at_us),
                KeyLog::Unpacked(runs) => runs.fresh_at_us(0),
            };
            if newest_us + window_us > now_us {
                continue;
            }
            match std::mem::take(log) {
                KeyLog::Packed(packed) => self.packed_bytes -= packed.len(),
                KeyLog::Unpacked(runs) => self.unpacked_bytes -= runs.heap_bytes(),
            }
        }
    }
}
