//! Blocks: from a denial on, a limit with `block` denies every cost for so long, also where units are free.
//!
//! A block begins with a request that the limit denies while none runs, and runs to its end: later denials do not prolong it. A peek,
//! a refund, and a denial by another limit begin none. Clamp: a block that ends later than its length from `now` was begun by a clock
//! that stepped back since. It is read as if it had begun at `now`, and a charging call writes that. Lua twin: `block.lua`.

use smallvec::SmallVec;

use super::{Mode, Reading, State, Verdict, apply_charge, read_all};
use crate::key::Cost;
use crate::plan::Limit;

/// The stored block of one key by one limit. The default never began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Block {
    /// When it ends, in microseconds since 1970.
    pub end_us: u64,
    /// How long it lasts, in microseconds; whole milliseconds. It is kept, so that an edit of the limit changes no block that runs.
    pub length_us: u64,
}

/// What an answer tells of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockReading {
    /// Time to its end, in microseconds; 0 when none runs.
    pub left_us: u64,
    /// Whether this request began it.
    pub begins: bool,
}

impl Block {
    /// The block of a limit that denied a request at `now_us`.
    #[inline]
    pub fn begun(limit: &Limit, now_us: u64) -> Self {
        Self {
            end_us: now_us + limit.block_us(),
            length_us: limit.block_us(),
        }
    }

    /// Time to its end in microseconds, at most its length; 0 when it does not run.
    #[inline]
    pub fn left_us(&self, now_us: u64) -> u64 {
        self.end_us.saturating_sub(now_us).min(self.length_us)
    }

    fn clamp(&mut self, now_us: u64) {
        self.end_us = self.end_us.min(now_us + self.length_us);
    }
}

/// Whether a limit that has no block running begins one, if it reads this state for a request that is denied.
#[inline]
pub fn begins_block(limit: &Limit, reading: &Reading, left_us: u64, cost: u64) -> bool {
    limit.block_us() > 0 && left_us == 0 && reading.wait_us(limit, cost) > 0
}

/// Decides as [`super::decide`] does, beside the blocks of the limits, of which there is one for each. Blocks of limits without
/// `block` are not looked at. A charge may begin some.
pub fn decide_with_blocks(
    limits: &[Limit],
    (states, blocks): (&mut [State], &mut [Block]),
    now_us: u64,
    cost: Cost,
    mode: Mode,
) -> Verdict {
    decide_beside(limits, (states, blocks), now_us, (cost.units(), mode), true)
}

/// The same where something beside these limits decides, too: nothing is charged unless that lets the request pass.
pub(super) fn decide_beside(
    limits: &[Limit],
    (states, blocks): (&mut [State], &mut [Block]),
    now_us: u64,
    (units, mode): (u64, Mode),
    others_fit: bool,
) -> Verdict {
    let mut verdict = read_all(limits, states, now_us, units, mode);
    let mut told = blocks_at(limits, blocks, now_us);
    verdict.fits &= others_fit && told.iter().all(|block| block.left_us == 0);
    if mode == Mode::Charge {
        apply_charge(limits, states, now_us, units, &mut verdict);
        for (index, limit) in limits.iter().enumerate() {
            blocks[index].clamp(now_us);
            let left_us = told[index].left_us;
            // Where it does not fit, the readings are still those that deny.
            if !verdict.fits && begins_block(limit, &verdict.readings[index], left_us, units) {
                blocks[index] = Block::begun(limit, now_us);
                told[index] = BlockReading {
                    left_us: limit.block_us(),
                    begins: true,
                };
            }
        }
    }
    verdict.tell_blocks(told);
    verdict
}

/// What these blocks tell at `now_us`; nothing of limits without `block`.
pub fn blocks_at(limits: &[Limit], blocks: &[Block], now_us: u64) -> SmallVec<[BlockReading; 2]> {
    let reading = |(limit, block): (&Limit, &Block)| BlockReading {
        left_us: if limit.block_us() > 0 {
            block.left_us(now_us)
        } else {
            0
        },
        begins: false,
    };
    limits.iter().zip(blocks).map(reading).collect()
}

impl Verdict {
    /// Sets what it tells of blocks, in the order of the limits: nothing, if none runs.
    pub fn tell_blocks(&mut self, blocks: impl IntoIterator<Item = BlockReading>) {
        let blocks: Box<[BlockReading]> = blocks.into_iter().collect();
        let runs = blocks.iter().any(|block| block.left_us > 0);
        self.blocks = runs.then_some(blocks);
    }

    /// What it tells of the block of the limit at this index.
    #[inline]
    pub fn block(&self, index: usize) -> BlockReading {
        let blocks = self.blocks.as_deref();
        blocks.map_or_else(BlockReading::default, |blocks| blocks[index])
    }

    /// The limits, by their indices, of which this request began a block.
    pub fn begun_blocks(&self) -> impl Iterator<Item = usize> {
        let blocks = self.blocks.as_deref().unwrap_or_default().iter();
        let begun = blocks.enumerate().filter(|(_, block)| block.begins);
        begun.map(|(index, _)| index)
    }
}
