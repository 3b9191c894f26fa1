//! The states that belong to one check, taken out of the shard while a decision is made on them.

use smallvec::SmallVec;

use tollgate_core::algorithm::State;
use tollgate_core::algorithm::holds::Notes;

/// Maximum number of states that a decision holds without an allocation. Few plans have more limits.
pub(super) const STATES: usize = 4;

/// The states of one check, and where each is stored.
pub(super) struct CheckedOut {
    /// One state for each limit, in the order of the limits.
    pub(super) states: SmallVec<[State; STATES]>,
    /// Where each of `states` is stored.
    pub(super) locations: SmallVec<[StateLocation; STATES]>,
    /// Whether the entry also has records of other limits.
    pub(super) has_other_records: bool,
    /// Notes of holds that have no record yet.
    pub(super) new_notes: Option<Box<Notes>>,
}

/// Where a state is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StateLocation {
    /// Not stored yet: the state is fresh.
    New,
    /// In the record at this offset of the entry.
    Record(usize),
    /// In the log of this index.
    Log(u32),
}

impl CheckedOut {
    /// Whether every state has its place in the store already, and no notes of holds are new.
    pub(super) fn is_known(&self) -> bool {
        self.new_notes.is_none() && !self.locations.contains(&StateLocation::New)
    }

    /// Whether a charge would need no more memory for any state.
    pub(super) fn is_steady(&self) -> bool {
        self.states.iter().all(|state| state.growth_bytes() == 0)
    }

    /// The states that have no record yet, each with the index of its limit.
    pub(super) fn into_new(self) -> impl Iterator<Item = (usize, State)> {
        let states = self.states.into_iter().zip(self.locations).enumerate();
        states
            .filter(|(_, (_, location))| *location == StateLocation::New)
            .map(|(index, (state, _))| (index, state))
    }
}
