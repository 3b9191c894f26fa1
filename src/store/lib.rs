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

mod joint;
mod memory;
mod overrides;
pub mod redis;
mod registry;
mod replicas;
mod shared;
mod state;

pub mod clock;
pub mod platform;
pub mod random;
pub mod small_file;

#[cfg(test)]
#[path = "../fuzz.rs"]
mod fuzz;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub use joint::{Charged, JointFailure, JointUndos, Settled};
pub use memory::{CAPACITY_DEFAULT, CAPACITY_MIN, MemoryOverrides, MemoryStore};
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
use tollgate_core::duration::Shown;
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

    /// Gives units back to every limit of the plan, the newest first and at most as many as that limit has counted, atomically. A key
    /// without units stays as it is. Errors: as for [`Self::decide_one`]; the units may or may not have been given back. A store that
    /// does not support refunds answers [`StoreError::Refused`].
    fn refund(
        &self,
        _refund: &Refund,
        _deadline: StoreDeadline,
    ) -> impl Future<Output = Result<GivenBack, StoreError>> + Send {
        async {
            Err(StoreError::Refused(
                "this store does not support refunds".to_owned(),
            ))
        }
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

/// Why a store could not decide. The limiter answers by the plan's policy then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the deadline: the store is slow, stopped or out of reach. The charge may still take effect.
    #[error("no answer from the store within {}", whole_ms(*.0))]
    Deadline(Duration),
    /// The store cannot be reached: check its address and its health.
    #[error("the store is out of reach: {0}")]
    Unreachable(String),
    /// As [`Self::Unreachable`], and that was known before: it was not asked, so nothing was done.
    #[error("the store is out of reach: {0}")]
    NotSent(String),
    /// The store answered with an error: it is read-only, out of memory, loading, or lacks a permission.
    #[error("the store refused: {0}")]
    Refused(String),
    /// The store's answer cannot be understood: check what listens at its address.
    #[error("the store's answer makes no sense: {0}")]
    InvalidReply(String),
    /// Too many requests wait for the store already. This one was not sent.
    #[error("{0} requests wait for the store already")]
    Overloaded(usize),
    /// The embedded store is full of live keys and cannot take a new one. Keys that it holds are still decided.
    #[error("the embedded store is full of live keys")]
    Full,
}

impl StoreError {
    /// Every value that [`Self::kind`] can return. They are values of a metric's label, so they stay as they are; `nonsense` is an
    /// invalid reply.
    pub const KINDS: [&str; 6] = [
        "deadline",
        "unreachable",
        "refused",
        "nonsense",
        "overloaded",
        "full",
    ];

    /// A word for logs and metrics.
    pub fn kind(&self) -> &'static str {
        Self::KINDS[self.kind_index()]
    }

    /// The index of that word in [`Self::KINDS`].
    pub fn kind_index(&self) -> usize {
        match self {
            Self::Deadline(_) => 0,
            Self::Unreachable(_) | Self::NotSent(_) => 1,
            Self::Refused(_) => 2,
            Self::InvalidReply(_) => 3,
            Self::Overloaded(_) => 4,
            Self::Full => 5,
        }
    }
}

/// A duration for people, rounded up to a millisecond: what is left of a deadline is a little less than what was configured.
fn whole_ms(duration: Duration) -> Shown {
    Shown(Duration::from_millis(
        u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
    ))
}

/// The store that a config names. Clones share their counters.
#[derive(Clone)]
pub enum ConfiguredStore {
    /// `memory:`
    Memory(Arc<MemoryStore>),
    /// `redis://…` and the related schemes for TLS, Sentinel, Cluster and Unix sockets.
    Redis(RedisStore),
}

impl ConfiguredStore {
    /// What it offers to replicas, if they share it.
    pub fn shared(&self) -> Option<Arc<dyn SharedStore>> {
        match self {
            Self::Memory(_) => None,
            Self::Redis(store) => Some(Arc::new(store.clone())),
        }
    }
}

/// Calls the store that is configured, whichever it is.
macro_rules! ask {
    ($configured:ident, $store:ident => $call:expr) => {
        match $configured {
            Self::Memory($store) => {
                let $store = &**$store;
                $call
            }
            Self::Redis($store) => $call,
        }
    };
}

impl Store for ConfiguredStore {
    async fn decide_one(
        &self,
        check: &Check,
        deadline: StoreDeadline,
    ) -> Result<Verdict, StoreError> {
        ask!(self, store => Store::decide_one(store, check, deadline).await)
    }

    async fn decide_batch(
        &self,
        checks: &[Check],
        deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        ask!(self, store => Store::decide_batch(store, checks, deadline).await)
    }

    async fn decide_joint(
        &self,
        checks: &[Check],
        deadline: StoreDeadline,
    ) -> Result<Vec<Verdict>, JointFailure> {
        ask!(self, store => Store::decide_joint(store, checks, deadline).await)
    }

    async fn decide_hold(
        &self,
        check: &HoldCheck,
        deadline: StoreDeadline,
    ) -> Result<HoldVerdict, StoreError> {
        ask!(self, store => Store::decide_hold(store, check, deadline).await)
    }

    async fn decide_leases(
        &self,
        checks: &[LeaseCheck],
        deadline: StoreDeadline,
    ) -> Vec<Result<LeaseVerdict, StoreError>> {
        ask!(self, store => Store::decide_leases(store, checks, deadline).await)
    }

    async fn hold_figures(
        &self,
        key: &Key,
        plan: &Arc<Plan>,
        deadline: StoreDeadline,
    ) -> Result<NoteFigures, StoreError> {
        ask!(self, store => Store::hold_figures(store, key, plan, deadline).await)
    }

    async fn refund(
        &self,
        refund: &Refund,
        deadline: StoreDeadline,
    ) -> Result<GivenBack, StoreError> {
        ask!(self, store => Store::refund(store, refund, deadline).await)
    }

    async fn reset(&self, subject: &Subject, deadline: StoreDeadline) -> Result<bool, StoreError> {
        ask!(self, store => Store::reset(store, subject, deadline).await)
    }

    fn is_embedded(&self) -> bool {
        ask!(self, store => Store::is_embedded(store))
    }

    fn names(&self, key: &Key, plan: &Plan) -> Vec<String> {
        ask!(self, store => Store::names(store, key, plan))
    }

    fn hold_names(&self, key: &Key, plan: &Plan) -> Vec<String> {
        ask!(self, store => Store::hold_names(store, key, plan))
    }
}
