//! What calls about holds ask, and what they are answered.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{RELEASES_MAX, Verdict};

/// What a call asks for. Costs fit the capacity of every limit, but for those of what has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldCall {
    /// Charge if all limits allow it, and hold that for so long.
    Reserve {
        /// Units.
        cost: u64,
        /// The lease.
        ttl_us: u64,
    },
    /// Charge if all limits allow it, and remember the id.
    Charge {
        /// Units.
        cost: u64,
    },
    /// Charge what has happened, whatever the limits say.
    Record {
        /// Units.
        cost: u64,
    },
    /// End a hold with what was used; unset: as many units as were held, of an unknown id none.
    Settle {
        /// Units that were used.
        actual: Option<u64>,
        /// What to do where no hold is open.
        if_unknown: IfUnknown,
    },
    /// Prolong a lease to so long from now.
    Extend {
        /// The lease, from now.
        ttl_us: u64,
    },
    /// Answer what a request of this cost would meet; changes nothing.
    Peek {
        /// Units.
        cost: u64,
    },
}

/// What a settle does where no hold of its id is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IfUnknown {
    /// Charge what was used and is not charged.
    #[default]
    Charge,
    /// Change nothing.
    Ignore,
}

/// The call by which an id is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownCall {
    /// A reserve, or a settle that came before it.
    Reserve,
    /// A ShouldAllow.
    ShouldAllow,
    /// A record.
    Record,
}

/// What an id is known for, where a call with it is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownId {
    /// The call that it came with.
    pub call: KnownCall,
    /// The plan that decided.
    pub plan: Arc<str>,
    /// The cost; `None` if it was settled and never reserved.
    pub cost: Option<u64>,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldVerdict {
    /// What became of the call.
    pub event: HoldEvent,
    /// Where the key stands after it.
    pub view: KeyView,
    /// What ended before the call was looked at.
    pub ended: EndedHolds,
}

/// What became of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoldEvent {
    /// It was decided: whether it was charged, the standing tells. A hold lasts so long.
    Decided {
        /// Time to the end of the lease.
        expires_in_us: Option<u64>,
    },
    /// The id was known, and nothing changed. The hold, if it is open, lasts so long.
    Repeated {
        /// Time to the end of the lease.
        expires_in_us: Option<u64>,
    },
    /// It was charged, though a limit may be passed.
    Recorded,
    /// The end of a hold.
    Settled(Settlement),
    /// The hold is open for so long, or is not open.
    Extended {
        /// Whether it is open.
        state: HoldState,
        /// Time to the end of the lease.
        expires_in_us: Option<u64>,
    },
    /// Nothing was asked but where the key stands.
    Peeked,
    /// The id is known for another call. Nothing changed.
    Refused(KnownId),
}

/// What is known of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldState {
    /// Its lease runs.
    Open,
    /// It was settled.
    Settled,
    /// Its lease ended.
    Expired,
    /// No such id is known.
    Unknown,
}

/// How a settle ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettleOutcome {
    /// An open hold was settled.
    Settled,
    /// It was settled before.
    Repeated,
    /// Its lease had ended.
    Expired,
    /// No such id is known.
    Unknown,
}

/// The result of a settle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// How it ended.
    pub outcome: SettleOutcome,
    /// Units that the hold had.
    pub held: u64,
    /// Units that count as used of this id now.
    pub actual: u64,
    /// Units that each rate limit gave back, in their order.
    pub returned: SmallVec<[u64; 2]>,
    /// Units charged by this call beyond what was held.
    pub excess: u64,
}

/// What ended because its time had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EndedHolds {
    /// Holds.
    pub expired: u64,
    /// How many of them gave units back.
    pub released: u64,
    /// Units that they gave back, of each hold those of the limit that gave the most.
    pub units: u64,
}

impl std::ops::AddAssign for EndedHolds {
    fn add_assign(&mut self, more: Self) {
        self.expired = self.expired.saturating_add(more.expired);
        self.released = self.released.saturating_add(more.released);
        self.units = self.units.saturating_add(more.units);
    }
}

/// Where a key stands by all limits of its plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyView {
    /// By the rate limits. `fits` tells of all limits.
    pub verdict: Verdict,
    /// By the concurrency limit, if the plan has one.
    pub slots: Option<Slots>,
    /// Where nothing denies but that too many holds are open: time until the first lease ends.
    pub full_for_us: Option<u64>,
}

/// The slots of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// Open holds that take one.
    pub open: u32,
    /// Time until a slot is free if nobody renews or settles; 0 when one is.
    pub wait_us: u64,
    /// Time until the first and the last lease of a slot end; 0 without one.
    pub first_end_us: u64,
    /// The last.
    pub last_end_us: u64,
}

/// What is kept of a key's ids, in figures.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NoteFigures {
    /// Open holds.
    pub open: usize,
    /// Units that they hold.
    pub units: u64,
    /// Time until the first of their leases ends; `None` without one.
    pub first_end_us: Option<u64>,
    /// Ids that are known and not open.
    pub known_ids: usize,
    /// Time until each lease ends of a hold that takes a slot, the first ones in their order.
    pub slot_ends_us: SmallVec<[u64; RELEASES_MAX]>,
}
