//! What the notes of a key say of its holds, and what an operator gave back to them.

use super::packed::NotedHold;
use super::{NoteFigures, Notes, gives_back_to};
use crate::algorithm::{RELEASES_MAX, State};
use crate::plan::{Limit, Plan};

impl Notes {
    /// Whether a hold of this plan has expired that gives its units back, and no call looked at it yet.
    pub fn has_units_due(&self, plan: &Plan, now_us: u64) -> bool {
        self.holds()
            .any(|hold| !hold.is_open(now_us) && gives_back_to(hold.plan, plan))
    }

    /// Time until the first lease of an open hold of this plan ends that then gives its units back.
    pub fn first_release_us(&self, plan: &Plan, now_us: u64) -> Option<u64> {
        let open = self.holds().filter(|hold| hold.is_open(now_us));
        let releasing = open.filter(|hold| gives_back_to(hold.plan, plan));
        let ends = releasing.map(|hold| hold.expires_us.min(now_us + hold.plan.holds.max_ttl_us()));
        ends.min().map(|end_us| end_us - now_us)
    }

    /// Adds what an operator gave back to the buckets of these limits, whose states were others before.
    pub fn note_refund(
        &mut self,
        limits: &[Limit],
        (before, after): (&[State], &[State]),
        now_us: u64,
    ) {
        for (limit, pair) in limits.iter().zip(before.iter().zip(after)) {
            if let (State::Bucket(before), State::Bucket(after)) = pair {
                let given_us = before.tat_us.saturating_sub(after.tat_us.max(now_us));
                if given_us > 0 {
                    self.gave(limit.fingerprint(), given_us);
                }
            }
        }
    }

    /// Open holds, their units, the time until the first of their leases ends, and ids that are known.
    pub fn figures(&self, now_us: u64) -> NoteFigures {
        let open = || self.holds().filter(|hold| hold.is_open(now_us));
        let slots = open().filter(NotedHold::takes_slot);
        let mut ends: Vec<u64> = slots.map(|hold| hold.expires_us - now_us).collect();
        ends.sort_unstable();
        NoteFigures {
            slot_ends_us: ends.into_iter().take(RELEASES_MAX).collect(),
            open: open().count(),
            units: open().map(|hold| hold.cost()).sum(),
            first_end_us: open().map(|hold| hold.expires_us - now_us).min(),
            known_ids: self.known_ids(now_us),
        }
    }
}
