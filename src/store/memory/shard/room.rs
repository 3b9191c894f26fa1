//! Room for a charge: the bytes that it could add, and the fresh entries that are dropped for them.

use super::sweep::TABLE_KEPT;
use super::{HEADROOM_DIVISOR, HEADROOM_MIN, NamedCheck, Shard};
use crate::StoreError;
use crate::memory::arena::Handle;
use crate::memory::checked_out::{CheckedOut, StateLocation};
use crate::memory::entry::{INDEX_RECORD_BYTES, record_bytes};
use tollgate_core::algorithm::{self, Mode, State};

impl Shard {
    /// Makes room for the bytes that charging the check could add. A check that will be denied needs none. Errors:
    /// [`StoreError::Full`].
    pub(super) fn reserve(
        &mut self,
        call: NamedCheck<'_>,
        found: &mut Option<Handle>,
        checked_out: &mut CheckedOut,
    ) -> Result<(), StoreError> {
        match found {
            None => self.sweep(call.now_us),
            Some(_) if checked_out.is_known() && checked_out.is_steady() => return Ok(()),
            Some(_) => {}
        }
        let usual = self.capacity - (self.capacity / HEADROOM_DIVISOR).max(HEADROOM_MIN);
        if self.has_room(call, *found, checked_out, usual) {
            return Ok(());
        }
        let check = call.check;
        if !algorithm::decide(
            check.plan.limits(),
            &mut checked_out.states,
            call.now_us,
            check.cost,
            Mode::Peek,
        )
        .fits
        {
            return Ok(());
        }
        match self.make_room(call, found, checked_out, usual) {
            // A key that is held is still decided: its log loses precision instead of growing.
            Err(_) if found.is_some() => {
                checked_out
                    .states
                    .iter_mut()
                    .filter(|state| state.growth_bytes() > 0)
                    .for_each(State::merge_nearest);
                self.make_room(call, found, checked_out, self.capacity)
            }
            made => made,
        }
    }

    /// Drops fresh entries, but not `found`, until the shard has at most `most` bytes after the charge. Errors:
    /// [`StoreError::Full`] when no fresh entry is left.
    fn make_room(
        &mut self,
        call: NamedCheck<'_>,
        found: &mut Option<Handle>,
        checked_out: &CheckedOut,
        most: usize,
    ) -> Result<(), StoreError> {
        while !self.has_room(call, *found, checked_out, most) {
            if !self.drop_one_fresh(found, call.now_us) {
                return Err(StoreError::Full);
            }
        }
        Ok(())
    }

    fn has_room(
        &self,
        call: NamedCheck<'_>,
        found: Option<Handle>,
        checked_out: &CheckedOut,
        most: usize,
    ) -> bool {
        let growth = self.growth(call, found, checked_out);
        growth == 0 || self.bytes() + growth <= most
    }

    /// Bytes that charging the check could add.
    pub(super) fn growth(
        &self,
        call: NamedCheck<'_>,
        found: Option<Handle>,
        checked_out: &CheckedOut,
    ) -> usize {
        let new = || {
            checked_out
                .states
                .iter()
                .zip(&checked_out.locations)
                .filter(|(_, location)| **location == StateLocation::New)
                .map(|(state, _)| state)
        };
        let new_logs = new()
            .filter(|state| matches!(state, State::Runs(_)))
            .count();
        let runs = checked_out
            .states
            .iter()
            .map(State::growth_bytes)
            .sum::<usize>()
            + new().map(State::heap_bytes).sum::<usize>();
        let places = if new_logs > 0 {
            self.logs.growth_bytes(new_logs)
        } else {
            0
        };
        let of_notes = checked_out
            .new_notes
            .as_ref()
            .map_or(0, |_| INDEX_RECORD_BYTES);
        let new_bytes: usize = new().map(record_bytes).sum::<usize>() + of_notes;
        let entry = match found {
            None => {
                self.arena.growth_bytes(call.name.head_bytes() + new_bytes)
                    + self.table_growth_bytes()
            }
            Some(_) if new_bytes == 0 => 0,
            Some(handle) => {
                self.amended_growth_bytes(handle, self.kept_bytes(handle, call) + new_bytes)
            }
        };
        runs + places + entry
    }

    fn table_growth_bytes(&self) -> usize {
        let table = &self.by_name;
        // A table takes entries up to seven eighths of its buckets. When full with fewer than half of these in use, it is
        // rehashed in place instead of doubled.
        let crowded = table.len() >= table.num_buckets() / 16 * 7;
        if table.len() == table.capacity() && crowded {
            table.allocation_size().max(TABLE_KEPT)
        } else {
            0
        }
    }

    /// Bytes that replacing the contents of an entry by `bytes` bytes would add.
    pub(super) fn amended_growth_bytes(&self, handle: Handle, bytes: usize) -> usize {
        if self.arena.suits(handle, bytes) {
            0
        } else {
            self.arena.growth_bytes(bytes)
        }
    }
}
