//! What calls about holds answer.

use std::sync::Arc;

use tollgate_core::algorithm::holds::{HoldState, Settlement};
use tollgate_core::decision::{Decision, LimitStatus};
use tollgate_core::plan::Plan;

/// The answer to a reserve, or to a request with an id.
#[derive(Debug)]
pub struct Reserved {
    /// The decision, which tells whether the id was known.
    pub decision: Decision,
    /// The plan that decided.
    pub plan: Arc<Plan>,
    /// Time to the end of the lease, if a hold is open.
    pub expires_in_us: Option<u64>,
}

/// The answer to a settle.
#[derive(Debug)]
pub struct SettledHold {
    /// What was settled.
    pub settlement: Settlement,
    /// Where the key stands now: as a peek of cost 1.
    pub decision: Decision,
    /// The plan that decided.
    pub plan: Arc<Plan>,
    /// Units given back by each limit of the plan, in its order; a concurrency limit gives none.
    pub returned: Vec<u64>,
}

/// The answer to a record.
#[derive(Debug)]
pub struct Recorded {
    /// Where the key stands now, as a peek of cost 1. It tells whether the id was known.
    pub decision: Decision,
    /// The plan that decided.
    pub plan: Arc<Plan>,
}

/// The answer to an extend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extended {
    /// Whether the hold is open.
    pub state: HoldState,
    /// Time to the end of the lease, if it is.
    pub expires_in_us: Option<u64>,
}

impl SettledHold {
    /// Every limit of the plan: where the key stands in it, and the units that it gave back.
    pub fn limits(&self) -> impl Iterator<Item = (&LimitStatus, u64)> {
        let returned = self.returned.iter().copied().chain(std::iter::repeat(0));
        self.decision.limits().iter().zip(returned)
    }
}
