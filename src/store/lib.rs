//! `trait Store` decides a batch of checks, each one atomically. [`StoreError`] says why it could not.

#![cfg_attr(
    not(test),
    deny(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a number that is encoded is converted by a check, so that it is never taken for another one"
    )
)]

mod error;
mod joint;
mod memory;
mod overrides;
pub mod redis;
mod registry;
mod replicas;
mod shared;
mod state;

pub mod clock;
mod configured;
pub mod platform;
pub mod random;
pub mod small_file;

#[cfg(test)]
#[path = "../fuzz.rs"]
mod fuzz;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub use configured::{ConfiguredStore, StoreTarget};
pub use error::StoreError;
pub use joint::{Charged, JointFailure, JointUndos, Settled};
pub use memory::{CAPACITY_DEFAULT, CAPACITY_MIN, MemoryOverrides, MemoryStore, MemoryTarget};
pub use overrides::{
    Expiry, OverrideChange, OverrideChanged, OverrideNews, OverrideRecord, OverrideSet,
    OverrideStore, OverrideVersion,
};
pub use redis::{BreakerState, RedisStatus, RedisStore, RedisTarget, RedisTls, SCRIPT_NAMES_MAX};
pub use registry::{NodeHealth, StoreRegistry};
pub use replicas::{ANNOUNCED_EVERY, REPLICA_LIFETIME, REPLICAS_MAX, ReplicaCount, ReplicaId};
pub use shared::{SharedStore, TopLists};
pub use state::{ConnectionHealth, Outage, StoreState};
use tollgate_core::algorithm::holds::{
    HoldCall, HoldVerdict, LeaseCall, LeaseVerdict, NoteFigures,
};
pub use tollgate_core::algorithm::{GivenBack, Mode, Verdict};
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::Plan;

/// One request: charge a key by a plan, or ask whether it could be. `P` is the plan. A caller names it, as in `Check<String>`, and the
/// limiter replaces the name by the plan before it asks a store.
#[derive(Debug, Clone)]
pub struct Check<P = Arc<Plan>> {
    /// The subject to count.
    pub key: Key,
    /// The plan of the key. For a store it has at least one limit, and the cost fits the capacity of each.
    pub plan: P,
    /// Units to charge.
    pub cost: Cost,
    /// Whether the cost is charged, or only tried.
    pub mode: Mode,
}

/// Units to give back to a key.
#[derive(Debug, Clone)]
pub struct Refund {
    /// The subject that was counted.
    pub key: Key,
    /// The plan of the key.
    pub plan: Arc<Plan>,
    /// How many; at most [`tollgate_core::plan::QUOTA_MAX`], and so maybe more than a limit's capacity.
    pub units: Cost,
}

/// A call with an id, or one about holds.
#[derive(Debug, Clone)]
pub struct HoldCheck {
    /// The subject to count.
    pub key: Key,
    /// The plan of the key. It has a limit or a concurrency limit.
    pub plan: Arc<Plan>,
    /// The id; empty for none, of a record or a look only.
    pub id: Box<str>,
    /// What is asked. What may be denied fits the capacity of each limit.
    pub call: HoldCall,
}

/// A call of a stream about one of its holds.
#[derive(Debug, Clone)]
pub struct LeaseCheck {
    /// The subject that was counted.
    pub key: Key,
    /// The plan of the key. It has a limit or a concurrency limit.
    pub plan: Arc<Plan>,
    /// The id of the hold.
    pub id: Box<str>,
    /// What is asked.
    pub call: LeaseCall,
}

/// The subject of a reset: all its counters are to be deleted.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The subject that was counted.
    pub key: Key,
    /// The group of plans that it was counted under, see [`Plan::counts_as`].
    pub counts_as: Arc<str>,
    /// Windows of the logs of those plans that are in force, in microseconds; may repeat. Redis keeps each log of an uncommon
    /// window under a name of its own. So it finds these also if its list of them is lost.
    pub log_windows_us: Vec<u64>,
}

/// The longest that a store may take for an answer. A store that takes longer has failed, and the plan's policy answers.
/// It is a type of its own so that it cannot be confused with the deadline of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreDeadline(pub Duration);

/// Keeps the counters and decides by them.
///
/// Contract, kept by every store and held to it by `tests/store/contract.rs`:
/// - Each check is decided atomically over all limits of its plan: it is charged to all of them or to none.
/// - The checks of one batch are decided one after another in their order, so a key may occur in it several times. The batch
///   as a whole is not atomic.
/// - Time is the store's own clock. It is read inside the store, once per check or batch.
/// - A denial is a [`Verdict`]. An `Err` means that the check was not decided, or that the result is unknown: a charge may
///   still take effect after [`StoreError::Deadline`]. The store never retries it.
/// - The store answers within `deadline`, or fails with [`StoreError::Deadline`] once the deadline has passed, never earlier.
///   A caller that wants to wait for less drops the future.
/// - A caller that drops the future loses only its own answers: what was sent stays charged, and other callers' checks go on.
pub trait Store: Send + Sync + 'static {
    /// Decides one check, as a batch of one. A store overrides it where one check can be decided at less cost.
    fn decide_one(
        &self,
        check: &Check,
        deadline: StoreDeadline,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        async move {
            let answer = self
                .decide_batch(std::slice::from_ref(check), deadline)
                .await
                .pop();
            answer.unwrap_or_else(|| {
                Err(StoreError::InvalidReply(
                    "the store gave no answer to a check".to_owned(),
                ))
            })
        }
    }

    /// Decides the checks in their order. Returns one result for each, in the same order.
    fn decide_batch(
        &self,
        checks: &[Check],
        deadline: StoreDeadline,
    ) -> impl Future<Output = Vec<Result<Verdict, StoreError>>> + Send;

    /// Decides checks together, at one instant: if all fit, all are charged, else none. Each is tested with its cost and the costs of
    /// those before it of the same `counts_as` and key. A check by a plan in shadow mode denies no others: where it does not fit, it
    /// is not charged and not added. Where there are charges, neither is a peek: it is tested, and may deny. Else all are peeks, and
    /// are tested as charges are.
    ///
    /// Returns a verdict for each, in the same order. Whether all were charged, [`all_fit`] tells. If not, the verdicts tell how each
    /// was tested, and the readings are those without a charge. Errors: not all were decided; see [`JointFailure`].
    ///
    /// A Redis Cluster whose checks lie in several slots charges them one after another, and undoes what it charged before one that
    /// is denied. That may take until twice the deadline. It is also done when the future is dropped before its end.
    fn decide_joint(
        &self,
        _checks: &[Check],
        _deadline: StoreDeadline,
    ) -> impl Future<Output = Result<Vec<Verdict>, JointFailure>> + Send {
        async {
            let why = "this store does not decide requests together".to_owned();
            Err(StoreError::Refused(why).into())
        }
    }

    /// Carries out a call with an id, or one about holds, atomically: it ends what has expired, looks for the id, and only then decides.
    /// Errors: as for [`Self::decide_one`].
    fn decide_hold(
        &self,
        _check: &HoldCheck,
        _deadline: StoreDeadline,
    ) -> impl Future<Output = Result<HoldVerdict, StoreError>> + Send {
        async {
            let why = "this store keeps no holds".to_owned();
            Err(StoreError::Refused(why))
        }
    }

    /// Carries out calls of streams about their holds, each atomically, in their order. Returns one result for each, in the same order.
    /// Errors: as for [`Self::decide_one`].
    fn decide_leases(
        &self,
        checks: &[LeaseCheck],
        _deadline: StoreDeadline,
    ) -> impl Future<Output = Vec<Result<LeaseVerdict, StoreError>>> + Send {
        let why = "this store keeps no holds".to_owned();
        std::future::ready(vec![Err(StoreError::Refused(why)); checks.len()])
    }

    /// Open holds and known ids of a key, for operators. Errors: as for [`Self::decide_one`].
    fn hold_figures(
        &self,
        _key: &Key,
        _plan: &Arc<Plan>,
        _deadline: StoreDeadline,
    ) -> impl Future<Output = Result<NoteFigures, StoreError>> + Send {
        async { Ok(NoteFigures::default()) }
    }

    /// Makes refunds, in any order. Each gives units back to every limit of its plan, the newest first and at most as many as that limit
    /// has counted, atomically. A key without units stays as it is. Returns one result for each, in the order of `refunds`. Errors: as
    /// for [`Self::decide_one`]; the units may or may not have been given back. A store that does not support refunds answers
    /// [`StoreError::Refused`].
    fn refund_batch(
        &self,
        refunds: &[Refund],
        _deadline: StoreDeadline,
    ) -> impl Future<Output = Vec<Result<GivenBack, StoreError>>> + Send {
        let why = "this store does not support refunds".to_owned();
        std::future::ready(vec![Err(StoreError::Refused(why)); refunds.len()])
    }

    /// Deletes all counters of a subject, under every plan and limit of its group, so that later decisions begin fresh. Returns
    /// whether there were any, expired or not. Errors: the counters may or may not have been deleted. A store that does not
    /// support resets answers [`StoreError::Refused`].
    fn reset(
        &self,
        _subject: &Subject,
        _deadline: StoreDeadline,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        async {
            Err(StoreError::Refused(
                "this store does not support resets".to_owned(),
            ))
        }
    }

    /// Whether the store is this process's own memory, so that a decision costs no more than a look into a cache.
    fn is_embedded(&self) -> bool {
        false
    }

    /// Names of the keys in Redis that hold the state of this key under this plan, for operators. Empty for an embedded store.
    fn names(&self, _key: &Key, _plan: &Plan) -> Vec<String> {
        Vec::new()
    }

    /// The same of those that hold its holds and ids, where it has some.
    fn hold_names(&self, _key: &Key, _plan: &Plan) -> Vec<String> {
        Vec::new()
    }
}

/// Whether checks that were decided together all passed: one by a plan in shadow mode does not count.
pub fn all_fit(checks: &[Check], verdicts: &[Verdict]) -> bool {
    let mut pairs = checks.iter().zip(verdicts);
    pairs.all(|(check, verdict)| verdict.fits || check.plan.shadow)
}

/// Whether a check adds to those behind it that are decided with it: where some are charges, a peek takes nothing from them.
pub fn adds_up(check: &Check, checks: &[Check]) -> bool {
    check.mode == Mode::Charge || !has_charges(checks)
}

/// Whether some of the checks are charges.
pub fn has_charges(checks: &[Check]) -> bool {
    checks.iter().any(|check| check.mode == Mode::Charge)
}
