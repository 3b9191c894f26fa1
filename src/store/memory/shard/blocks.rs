//! Blocks beside the states of an entry. A plan without `block` never comes here.

use smallvec::SmallVec;

use super::{HashedName, NamedCheck, Shard};
use crate::Check;
use crate::memory::arena::Handle;
use crate::memory::checked_out::STATES;
use crate::memory::entry::{Stored, overwrite_block};
use tollgate_core::algorithm::{
    Block, BlockReading, State, Verdict, blocks_at, decide_with_blocks,
};
use tollgate_core::plan::Limit;

impl Shard {
    /// Decides a check by its states and the blocks of the entry. [`Self::write_blocks`] then writes those that it begins.
    pub(super) fn decide_with_blocks(
        &self,
        found: Option<Handle>,
        call: NamedCheck<'_>,
        states: &mut [State],
    ) -> Verdict {
        let NamedCheck { check, now_us, .. } = call;
        let limits = check.plan.limits();
        let mut blocks = self.blocks_of(found, limits);
        decide_with_blocks(
            limits,
            (states, &mut blocks),
            now_us,
            check.cost,
            check.mode,
        )
    }

    /// Has a verdict that was tested without blocks tell those of the entry. One that runs denies.
    pub(super) fn deny_by_blocks(
        &self,
        found: Option<Handle>,
        check: &Check,
        now_us: u64,
        verdict: &mut Verdict,
    ) {
        let limits = check.plan.limits();
        let told = blocks_at(limits, &self.blocks_of(found, limits), now_us);
        verdict.fits &= told.iter().all(|block| block.left_us == 0);
        verdict.tell_blocks(told);
    }

    pub(super) fn blocks_of(
        &self,
        found: Option<Handle>,
        limits: &[Limit],
    ) -> SmallVec<[Block; STATES]> {
        let stored = |limit: &Limit| {
            let entry = self.entry(found.filter(|_| limit.block_us() > 0)?);
            entry.block(limit.fingerprint()).map(|(_, block)| block)
        };
        let blocks = limits.iter().map(|limit| stored(limit).unwrap_or_default());
        blocks.collect()
    }

    /// Writes the blocks that the verdict on a charge tells, where the entry has others. Where there is no room for one that begins,
    /// none does: the request is denied alone.
    pub(super) fn write_blocks(
        &mut self,
        call: NamedCheck<'_>,
        hash: u64,
        mut verdict: Verdict,
    ) -> Verdict {
        let Some(told) = verdict.blocks.take() else {
            return verdict;
        };
        let name = HashedName {
            name: call.name,
            hash,
        };
        let limits = call.check.plan.limits();
        let written = limits.iter().zip(told).map(|(limit, told)| {
            let is_written = told.left_us == 0 || self.write_block(name, limit, told, call.now_us);
            if is_written {
                told
            } else {
                BlockReading::default()
            }
        });
        let written: SmallVec<[BlockReading; STATES]> = written.collect();
        verdict.tell_blocks(written);
        verdict
    }

    /// Writes a block that was told at `now_us`. Returns whether it was written.
    pub(in crate::memory) fn write_block(
        &mut self,
        name: HashedName<'_>,
        limit: &Limit,
        told: BlockReading,
        now_us: u64,
    ) -> bool {
        let Some(handle) = self.find(name.name, name.hash) else {
            // Cannot happen: a limit that denies has a state.
            return false;
        };
        let stored = self.entry(handle).block(limit.fingerprint());
        let length_us = match stored {
            Some((_, block)) if !told.begins => block.length_us,
            _ => limit.block_us(),
        };
        let block = Block {
            end_us: now_us + told.left_us,
            length_us,
        };
        match stored {
            Some((_, stored)) if stored == block => true,
            Some((at, _)) => {
                overwrite_block(self.arena.get_mut(handle), at, block);
                true
            }
            None => self.add_block(handle, limit, block, now_us),
        }
    }

    fn add_block(&mut self, handle: Handle, limit: &Limit, block: Block, now_us: u64) -> bool {
        let mut draft = std::mem::take(&mut self.draft);
        draft.clear();
        let entry = self.entry(handle);
        draft.extend(entry.head());
        entry
            .records()
            .for_each(|record| draft.extend(entry.record_bytes(&record)));
        Stored::Block(block).write(limit.fingerprint(), &mut draft);
        let mut kept = Some(handle);
        let has_room = loop {
            let Some(handle) = kept else { break false };
            let growth = self.amended_growth_bytes(handle, draft.len());
            if growth == 0 || self.bytes() + growth <= self.capacity {
                self.rewrite(handle, &draft);
                break true;
            }
            if !self.drop_one_fresh(&mut kept, now_us) {
                break false;
            }
        };
        self.draft = draft;
        has_room
    }
}
