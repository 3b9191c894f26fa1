//! Units that are given back.

use smallvec::SmallVec;

use super::{Reading, State, Verdict};
use crate::key::Cost;
use crate::plan::Limit;

/// What a refund or an undo did to all limits of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenBack {
    /// One reading per limit from before it.
    pub before: SmallVec<[Reading; 2]>,
    /// The key after it, as a peek reads it.
    pub after: Verdict,
}

/// Gives units back to every limit, at most as many as that limit has counted. `states` belong to the key, in the order of `limits`.
#[cold]
pub fn refund(limits: &[Limit], states: &mut [State], now_us: u64, units: Cost) -> GivenBack {
    give_back(limits, states, now_us, |limit, state| {
        state.refund(limit, now_us, units.units());
    })
}

/// Has something given back to each limit.
pub(super) fn give_back(
    limits: &[Limit],
    states: &mut [State],
    now_us: u64,
    mut give: impl FnMut(&Limit, &mut State),
) -> GivenBack {
    let before = limits
        .iter()
        .zip(&*states)
        .map(|(limit, state)| state.read(limit, now_us, 0))
        .collect();
    let after = limits.iter().zip(states).map(|(limit, state)| {
        give(limit, state);
        state.read(limit, now_us, 0)
    });
    let readings = after.collect();
    let after = Verdict {
        readings,
        ..Verdict::passing_no_limit()
    };
    GivenBack { before, after }
}
