//! Why a request got no decision.

use std::sync::Arc;

use tollgate_core::algorithm::holds::{KnownCall, KnownId};
use tollgate_core::plan::{LeaseError, UnknownPlan};
use tollgate_store::StoreError;

/// Why a request got no decision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The plan is not in the config, and the config has no default plan. The caller must correct the name.
    #[error(transparent)]
    UnknownPlan(#[from] UnknownPlan),
    /// The callers ask for more than the healthy store decides in time. Retry in a moment, or add replicas.
    #[error("the store of this server cannot keep up with the requests; retry in a moment")]
    Overloaded,
    /// The caller's deadline is shorter than the store's and passed before the store answered. The charge may still take
    /// effect. The store may be healthy, so the policy for its failure does not apply.
    #[error(
        "the caller's deadline passed before a decision; a charge that was sent may still count"
    )]
    CallerDeadline,
    /// The plan has a concurrency limit, and the request is not a reserve.
    #[error("plan {0} has a concurrency limit: call HoldService.Reserve")]
    NeedsReserve(Arc<str>),
    /// The plan has no limit that counts units, so there is nothing to record.
    #[error(
        "plan {0} has a concurrency limit alone, which counts no units: there is nothing to record"
    )]
    NothingToRecord(Arc<str>),
    /// The lease is out of range.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The id is known for another call, plan or cost. Nothing was changed.
    #[error("request_id is known for {}: send the same again, or another request_id", known_for(.0))]
    KnownId(Box<KnownId>),
    /// The store did not confirm what no policy can answer for.
    #[error("{how}: {0}", how = unconfirmed(.0))]
    Unconfirmed(StoreError),
}

impl Refusal {
    /// A store that answers something else than was asked.
    pub(super) fn not_understood() -> Self {
        let why = "the answer is of another call".to_owned();
        Self::Unconfirmed(StoreError::InvalidReply(why))
    }
}

fn known_for(known: &KnownId) -> String {
    let (call, plan) = match known.call {
        KnownCall::Reserve => ("a Reserve", &known.plan),
        KnownCall::ShouldAllow => ("a ShouldAllow", &known.plan),
        KnownCall::Record => ("a Record", &known.plan),
    };
    match known.cost {
        Some(cost) => format!("{call} of cost {cost} under plan {plan}"),
        None => format!("{call} under plan {plan}"),
    }
}

/// Whether a call that a store did not confirm may have been carried out.
fn unconfirmed(error: &StoreError) -> &'static str {
    match error {
        StoreError::Deadline(_) | StoreError::Unreachable(_) | StoreError::InvalidReply(_) => {
            "it is not known whether it was done; send it again"
        }
        StoreError::NotSent(_) => {
            "it was not sent to the store, so nothing was done; send it again"
        }
        StoreError::Refused(_) | StoreError::Overloaded(_) | StoreError::Full => "nothing was done",
    }
}
