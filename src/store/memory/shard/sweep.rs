//! Drops entries that are fresh again, a few with each insertion, or as many as room is needed for.

use super::{Shard, hash_of, short, spread};
use crate::memory::arena::Handle;
use crate::memory::entry::{EntryView, Stored};

/// Entries examined for each new one. One entry passes through at most seven lists of the wheel, for the longest debt. With
/// more than that, fresh entries are dropped faster than new ones come.
const EXAMINED_PER_INSERT: usize = 8;
/// How long a fresh entry is kept while no room is needed. Dropping it and making it again for the next call of its key
/// costs more than keeping it this long.
const LINGER_US: u64 = 1_000_000;
/// A table with capacity for this many times its entries is shrunk. It at least halves, so it is not shrunk again soon.
const TABLE_SLACK: usize = 8;
/// A table with capacity for up to this many entries is not shrunk, as that would save little.
pub(super) const TABLE_KEPT: usize = 64;

/// What a sweep did with the entry that was due.
enum SweepOutcome {
    Dropped,
    /// It was kept: its states are not all fresh, or it is the entry being decided on.
    Kept,
    /// There was no due entry.
    NoneDue,
}

impl Shard {
    /// Drops a few entries that have been fresh for a while. Memory thus shrinks again after a rush, and no single call pays for
    /// all of it.
    pub(super) fn sweep(&mut self, now_us: u64) {
        for _ in 0..EXAMINED_PER_INSERT {
            if matches!(
                self.sweep_next(&mut None, now_us, LINGER_US),
                SweepOutcome::NoneDue
            ) {
                return;
            }
        }
    }

    /// Drops one fresh entry, but not `kept`. Returns false when none is fresh.
    pub(super) fn drop_one_fresh(&mut self, kept: &mut Option<Handle>, now_us: u64) -> bool {
        loop {
            match self.sweep_next(kept, now_us, 0) {
                SweepOutcome::Dropped => return true,
                SweepOutcome::Kept => {}
                SweepOutcome::NoneDue => return false,
            }
        }
    }

    /// Examines the next entry that has been due for at least `ago_us`. Drops it if it is fresh, otherwise queues it again for
    /// the time at which it may be.
    fn sweep_next(&mut self, kept: &mut Option<Handle>, now_us: u64, ago_us: u64) -> SweepOutcome {
        let Some(handle) = self.wheel.pop(&mut self.arena, now_us, ago_us) else {
            return SweepOutcome::NoneDue;
        };
        let fresh_at_us = self.fresh_at_us(handle);
        if fresh_at_us > now_us || Some(handle) == *kept {
            self.wheel
                .push(&mut self.arena, handle, fresh_at_us, now_us);
            return SweepOutcome::Kept;
        }
        self.forget(handle, kept);
        SweepOutcome::Dropped
    }

    /// Drops an entry that was already taken out of the wheel.
    pub(super) fn forget(&mut self, handle: Handle, kept: &mut Option<Handle>) {
        let entry = EntryView(self.arena.get(handle));
        let hash = short(hash_of(&self.hasher, entry.name()));
        if let Ok(place) = self
            .by_name
            .find_entry(spread(hash), |place| place.handle == handle)
        {
            place.remove();
        }
        for record in entry.records() {
            match record.stored {
                Stored::Log(index) => self.logs.remove(index),
                Stored::Holds(index) => self.notes.remove(index),
                Stored::State(_) | Stored::Block(_) => {}
            }
        }
        self.free_slot(handle, kept);
        let table = &mut self.by_name;
        if table.capacity() > TABLE_KEPT && table.len() < table.capacity() / TABLE_SLACK {
            table.shrink_to(2 * table.len(), |place| spread(place.hash));
        }
    }
}
