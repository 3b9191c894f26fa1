//! Leases that a stream renews. A hold is its stream's as long as its lease ends when that stream said last: so a stream that died
//! unnoticed ends nothing that another one has taken over since.
//!
//! A renewal whose answer was lost may have been carried out. So it says itself when the lease is to end, and is sent again as it was.

use std::sync::Arc;

use super::ended::End;
use super::notes::Known;
use super::{EndedHolds, HoldKey, KeyCall, KnownCall};
use crate::plan::Plan;

/// What a stream asks about a hold. Ends of leases are by the store's clock, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseCall {
    /// Make the hold this stream's.
    Take {
        /// The lease.
        ttl_us: u64,
        /// Whether this stream's own reserve has just opened it. Else it is taken from whoever had it, and its lease begins anew.
        is_new: bool,
    },
    /// Prolong the lease.
    Renew {
        /// The end that this stream was told last.
        expires_us: u64,
        /// The end that it is to have, as far as the plan's longest lease allows.
        until_us: u64,
    },
    /// End the lease now.
    End {
        /// The end that this stream was told last.
        expires_us: u64,
        /// The end that a renewal without an answer asked for; 0 without one.
        until_us: u64,
    },
}

/// The result of such a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseVerdict {
    /// What became of it.
    pub event: LeaseEvent,
    /// What ended with it.
    pub ended: EndedHolds,
}

/// What became of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseEvent {
    /// It is the stream's, and runs.
    Open {
        /// When it ends.
        expires_us: u64,
        /// Time until then.
        expires_in_us: u64,
    },
    /// It has ended, by this call.
    Ended,
    /// It is no longer the stream's.
    Lost(LostReason),
}

/// Why a hold is no longer its stream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LostReason {
    /// Its lease had ended.
    Expired,
    /// It was settled.
    Settled,
    /// Another stream or an extend took it over.
    Moved,
    /// The store does not know it.
    Forgotten,
}

/// Carries out a call at `now_us`.
pub fn lease(
    plan: &Arc<Plan>,
    key: HoldKey<'_>,
    now_us: u64,
    (id, call): (&str, LeaseCall),
) -> LeaseVerdict {
    let mut key_call = KeyCall::new(plan, key, now_us);
    let of_plan = |known: &Known<'_>| {
        let known = key_call.key.notes.known_id(known);
        known.call == KnownCall::Reserve && *known.plan == *plan.name
    };
    if !key_call.find(id).is_some_and(|known| of_plan(&known)) {
        return LeaseVerdict {
            event: LeaseEvent::Lost(LostReason::Forgotten),
            ended: EndedHolds::default(),
        };
    }
    let mut ended = key_call.end_due();
    let event = key_call.lease(id, call);
    if event == LeaseEvent::Ended {
        let more = key_call.end_due();
        ended.expired += more.expired;
        ended.released += more.released;
        ended.units += more.units;
    }
    LeaseVerdict { event, ended }
}

impl KeyCall<'_> {
    fn lease(&mut self, id: &str, call: LeaseCall) -> LeaseEvent {
        let place = match self.find(id) {
            Some(Known::Open(place)) => place,
            Some(Known::Ended(_, End::Expired { .. })) => {
                return LeaseEvent::Lost(LostReason::Expired);
            }
            Some(Known::Ended(_, End::Settled { .. })) => {
                return LeaseEvent::Lost(LostReason::Settled);
            }
            None | Some(Known::Ended(_, End::Charged { .. })) => {
                return LeaseEvent::Lost(LostReason::Forgotten);
            }
        };
        let now_us = self.now_us;
        let hold = self.key.notes.hold_at(place);
        let present_us = hold.expires_us;
        let last_us = now_us + hold.plan.holds.max_ttl_us();
        // A lease that ends later than the longest from now was given by a clock that stepped back since, and may have been shortened.
        let was_mine = |expires_us: u64| expires_us > last_us && present_us < expires_us;
        let is_mine = |expires_us: u64, until_us: u64| {
            present_us == expires_us || present_us == until_us || was_mine(expires_us)
        };
        let until_us = match call {
            LeaseCall::Take { is_new: true, .. } => present_us,
            // One microsecond more tells the stream that had it, also where the clock stands.
            LeaseCall::Take { ttl_us, .. } => (now_us + ttl_us).max(present_us + 1),
            LeaseCall::Renew {
                expires_us,
                until_us,
            } if is_mine(expires_us, until_us) => until_us.min(last_us),
            LeaseCall::End {
                expires_us,
                until_us,
            } if is_mine(expires_us, until_us) => {
                self.key.notes.set_end(place, now_us);
                return LeaseEvent::Ended;
            }
            LeaseCall::Renew { .. } | LeaseCall::End { .. } => {
                return LeaseEvent::Lost(LostReason::Moved);
            }
        };
        let expires_us = self.key.notes.extend(place, until_us);
        LeaseEvent::Open {
            expires_us,
            expires_in_us: expires_us - now_us,
        }
    }
}

#[cfg(test)]
mod tests;
