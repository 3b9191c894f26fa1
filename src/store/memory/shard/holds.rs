//! Holds and ids beside the states of an entry. A request without an id comes here only under a plan that releases holds, and a refund
//! only where there are holds; else keys without holds pay nothing.

use smallvec::SmallVec;

use super::{HashedName, NamedCheck, Shard};
use crate::memory::arena::Handle;
use crate::memory::checked_out::{CheckedOut, STATES};
use crate::{Check, HoldCheck, LeaseCheck, StoreError};
use tollgate_core::algorithm::holds::{
    self, EndedHolds, HoldCall, HoldKey, HoldVerdict, LeaseEvent, LeaseVerdict, LostReason,
    NoteFigures, Notes, end_holds, lease,
};
use tollgate_core::algorithm::{self, Block, BlockReading, Mode, State, Verdict};
use tollgate_core::key::Cost;
use tollgate_core::plan::Limit;

/// States of limits as they were.
pub(super) type FormerStates = SmallVec<[State; STATES]>;

impl Shard {
    /// Carries out a call with an id, or one about holds. Errors: [`StoreError::Full`]; the entries are then as before.
    pub(in crate::memory) fn hold(
        &mut self,
        name: HashedName<'_>,
        check: &HoldCheck,
        now_us: u64,
    ) -> Result<HoldVerdict, StoreError> {
        let charge = Check {
            key: check.key.clone(),
            plan: check.plan.clone(),
            cost: Cost::ONE,
            mode: Mode::Charge,
        };
        let call = NamedCheck {
            name: name.name,
            check: &charge,
            now_us,
        };
        let mut found = self.find(name.name, name.hash);
        let mut checked_out = self.check_out(found, check.plan.limits());
        let is_peek = matches!(check.call, HoldCall::Peek { .. });
        if !is_peek && let Err(full) = self.room_for(call, &mut found, &mut checked_out, &check.id)
        {
            if let Some(handle) = found {
                self.check_in(handle, &mut checked_out);
            }
            return Err(full);
        }
        let index = found.and_then(|handle| self.entry(handle).holds());
        let mut notes = self.take_notes(index);
        let mut blocks = self.blocks_of(found, check.plan.limits());
        let before: SmallVec<[Block; STATES]> = blocks.clone();
        let key = HoldKey {
            states: &mut checked_out.states,
            blocks: &mut blocks,
            notes: &mut notes,
        };
        let verdict = if is_peek && !key.notes.is_empty() {
            peek(check, key, now_us)
        } else {
            holds::call(&check.plan, key, now_us, (&check.id, check.call))
        };
        self.keep(call, name.hash, (found, index), (checked_out, notes));
        self.keep_blocks(call, name, (&before, &blocks));
        Ok(verdict)
    }

    /// Carries out a call of a stream about one of its holds. A hold that ends becomes an id, which is larger. Where there is no room for
    /// it, it ends all the same.
    pub(in crate::memory) fn lease(
        &mut self,
        name: HashedName<'_>,
        check: &LeaseCheck,
        now_us: u64,
    ) -> LeaseVerdict {
        let charge = Check {
            key: check.key.clone(),
            plan: check.plan.clone(),
            cost: Cost::ONE,
            mode: Mode::Charge,
        };
        let call = NamedCheck {
            name: name.name,
            check: &charge,
            now_us,
        };
        let mut found = self.find(name.name, name.hash);
        let Some(index) = found.and_then(|handle| self.entry(handle).holds()) else {
            return LeaseVerdict {
                event: LeaseEvent::Lost(LostReason::Forgotten),
                ended: EndedHolds::default(),
            };
        };
        let mut checked_out = self.check_out(found, check.plan.limits());
        let _ = self.room_for(call, &mut found, &mut checked_out, &check.id);
        let mut notes = self.take_notes(Some(index));
        let key = HoldKey {
            states: &mut checked_out.states,
            blocks: &mut self.blocks_of(found, check.plan.limits()),
            notes: &mut notes,
        };
        let verdict = lease(&check.plan, key, now_us, (&check.id, check.call));
        self.keep(call, name.hash, (found, Some(index)), (checked_out, notes));
        verdict
    }

    /// Open holds and known ids of a key.
    pub(in crate::memory) fn hold_figures(
        &self,
        HashedName { name, hash }: HashedName<'_>,
        now_us: u64,
    ) -> NoteFigures {
        let notes = self
            .find(name, hash)
            .and_then(|handle| self.notes_of(handle));
        notes.map_or_else(NoteFigures::default, |notes| notes.figures(now_us))
    }

    fn notes_of(&self, handle: Handle) -> Option<&Notes> {
        self.notes.get(self.entry(handle).holds()?)
    }

    fn take_notes(&mut self, index: Option<u32>) -> Box<Notes> {
        let notes = index.and_then(|index| self.notes.check_out(index));
        notes.unwrap_or_default()
    }

    /// Makes room for what the call may add. Errors: there is none.
    fn room_for(
        &mut self,
        call: NamedCheck<'_>,
        found: &mut Option<Handle>,
        checked_out: &mut CheckedOut,
        id: &str,
    ) -> Result<(), StoreError> {
        let plan = &call.check.plan;
        if found.is_none() {
            self.sweep(call.now_us);
        }
        let stored = found.and_then(|handle| self.notes_of(handle));
        let of_notes = match stored {
            Some(notes) => notes.growth_bytes(id, plan),
            None => {
                // For the record that the entry needs.
                checked_out.new_notes = Some(Box::default());
                let notes = Notes::default();
                notes.heap_bytes() + notes.growth_bytes(id, plan) + self.notes.growth_bytes(1)
            }
        };
        let room = loop {
            let growth = self.growth(call, *found, checked_out) + of_notes;
            if self.bytes() + growth <= self.capacity {
                break Ok(());
            }
            if !self.drop_one_fresh(found, call.now_us) {
                break Err(StoreError::Full);
            }
        };
        checked_out.new_notes = None;
        room
    }

    /// Stores states and notes after a call. A key of which nothing is kept yet gets an entry only if there is something to keep.
    fn keep(
        &mut self,
        call: NamedCheck<'_>,
        hash: u64,
        (found, index): (Option<Handle>, Option<u32>),
        (mut checked_out, notes): (CheckedOut, Box<Notes>),
    ) {
        if let Some(handle) = found {
            self.check_in(handle, &mut checked_out);
        }
        match index {
            Some(index) => self.notes.check_in(index, notes),
            None if notes.is_empty() => {}
            None => checked_out.new_notes = Some(notes),
        }
        let limits = call.check.plan.limits();
        let is_charged = limits
            .iter()
            .zip(&checked_out.states)
            .any(|(limit, state)| *state != State::fresh(limit));
        match found {
            None if is_charged || checked_out.new_notes.is_some() => {
                self.insert(call, hash, checked_out);
            }
            None => {}
            Some(handle) if checked_out.has_other_records || !checked_out.is_known() => {
                self.amend(handle, call, checked_out);
            }
            Some(_) => {}
        }
    }

    fn keep_blocks(
        &mut self,
        call: NamedCheck<'_>,
        name: HashedName<'_>,
        (before, after): (&[Block], &[Block]),
    ) {
        let limits = call.check.plan.limits().iter();
        for (limit, (before, after)) in limits.zip(before.iter().zip(after)) {
            if before != after {
                let told = BlockReading {
                    left_us: after.left_us(call.now_us),
                    begins: after.end_us > before.end_us,
                };
                // Where there is no room for it, none begins.
                self.write_block(name, limit, told, call.now_us);
            }
        }
    }

    /// Before a request without an id that is tested with so many units: ends the holds of its plan that have expired, if it would be
    /// denied else. Returns the states to put back where it is a peek.
    #[cold]
    pub(super) fn before_beside_holds(
        &mut self,
        found: Option<Handle>,
        (call, tested): (NamedCheck<'_>, u64),
        states: &mut FormerStates,
    ) -> Option<FormerStates> {
        let NamedCheck { check, now_us, .. } = call;
        let index = found.and_then(|handle| self.entry(handle).holds())?;
        let limits = check.plan.limits();
        let notes = self.notes.get(index)?;
        let is_due = notes.has_units_due(&check.plan, now_us);
        if !is_due || algorithm::test(limits, states, now_us, tested, check.mode).fits {
            return None;
        }
        let is_peek = check.mode == Mode::Peek;
        let kept = is_peek.then(|| states.clone());
        let mut notes = self.notes.check_out(index)?;
        let unended = is_peek.then(|| notes.clone());
        let key = HoldKey {
            states,
            blocks: &mut [],
            notes: &mut notes,
        };
        end_holds(&check.plan, key, now_us);
        self.notes.check_in(index, unended.unwrap_or(notes));
        kept
    }

    /// After it: puts the states of a peek back, and tells when units come back.
    #[cold]
    pub(super) fn after_beside_holds(
        &mut self,
        found: Option<Handle>,
        call: NamedCheck<'_>,
        (states, before): (&mut FormerStates, Option<FormerStates>),
        verdict: Option<&mut Verdict>,
    ) {
        let NamedCheck { check, now_us, .. } = call;
        let index = found.and_then(|handle| self.entry(handle).holds());
        if let (Some(verdict), Some(index)) = (verdict, index)
            && !verdict.fits
        {
            let notes = self.notes.get(index);
            let release = notes.and_then(|notes| notes.first_release_us(&check.plan, now_us));
            verdict.release_in_us = release.unwrap_or(0);
        }
        if let Some(before) = before {
            *states = before;
        }
    }

    /// Notes what a refund gave back to buckets.
    pub(super) fn note_refund(
        &mut self,
        index: u32,
        limits: &[Limit],
        states: (&[State], &[State]),
        now_us: u64,
    ) {
        if let Some(mut notes) = self.notes.check_out(index) {
            notes.note_refund(limits, states, now_us);
            self.notes.check_in(index, notes);
        }
    }
}

/// Looks where there are notes: on copies, since a look writes nothing.
fn peek(check: &HoldCheck, key: HoldKey<'_>, now_us: u64) -> HoldVerdict {
    let mut states = FormerStates::from(&*key.states);
    let mut notes = key.notes.clone();
    let key = HoldKey {
        states: &mut states,
        notes: &mut notes,
        ..key
    };
    holds::call(&check.plan, key, now_us, (&check.id, check.call))
}
