//! Blocks of keys, by the fingerprint of the limit, as in a store. Few keys have one at a time.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::shared::SharedKey;
use tollgate_core::algorithm::Block;
use tollgate_core::plan::{Limit, LimitFingerprint};

/// The blocks of one variant: of keys of a group of plans, or of a plan's own keys.
#[derive(Debug, Default)]
pub(super) struct Blocks(HashMap<(SharedKey, LimitFingerprint), Block>);

impl Blocks {
    /// The block of each limit; one that never began where there is none.
    pub(super) fn take(&mut self, key: SharedKey, limits: &[Limit]) -> SmallVec<[Block; 1]> {
        let mut take = |limit: &Limit| self.0.remove(&(key, limit.fingerprint()));
        limits
            .iter()
            .map(|limit| take(limit).unwrap_or_default())
            .collect()
    }

    /// Puts the blocks back that are to be kept: those that may run.
    pub(super) fn put(&mut self, key: SharedKey, limits: &[Limit], blocks: &[Block]) {
        for (limit, block) in limits.iter().zip(blocks) {
            if block.end_us > 0 {
                self.0.insert((key, limit.fingerprint()), *block);
            }
        }
    }

    /// Drops the blocks that have ended.
    pub(super) fn sweep(&mut self, now_us: u64) {
        self.0.retain(|_, block| block.end_us > now_us);
    }

    /// Memory of the blocks.
    pub(super) fn bytes(&self) -> usize {
        self.0.len() * size_of::<((SharedKey, LimitFingerprint), Block)>()
    }
}
