//! `trait Store`: decide a batch, each request atomically; and why a store could not.

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

mod memory;
pub mod redis;
mod replicas;
mod roster;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub use crate::algorithm::{Mode, Verdict};
use crate::key::{Cost, Key};
use crate::plan::Plan;
pub use memory::{CAPACITY_DEFAULT, CAPACITY_MIN, MemoryStore};
pub use redis::{BreakerState, RedisStore, RedisTarget, SCRIPT_NAMES_MAX, Status, Tls};
pub use replicas::{ANNOUNCED_EVERY, REPLICA_LIFETIME, REPLICAS_MAX, ReplicaCount, ReplicaId};
pub use roster::{NodeHealth, Roster};

/// One request to a store.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The subject to count.
    pub key: Key,
    /// Its plan, which has limits and whose every capacity the cost fits.
    pub plan: Arc<Plan>,
    /// What is asked for. Of a refund, at most [`crate::plan::QUOTA_MAX`] instead.
    pub cost: Cost,
    /// Whether it is charged, or given back.
    pub mode: Mode,
}

/// Of whom everything is to be forgotten.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The subject that was counted.
    pub key: Key,
    /// Among the plans that count as this.
    pub counts_as: Arc<str>,
}

/// The longest that a store may take for an answer. One that takes longer has failed, and the plan's policy answers. A type
/// apart, so that the time that a caller happens to have is never taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreDeadline(pub Duration);

/// Keeps the counters and decides by them.
///
/// Contract, kept by every store and held to it by `tests/contract.rs`:
/// - Each ask is decided atomically over all limits of its plan: charged to all or to none. The asks of one batch are
///   decided one after another in their order, so a key may stand in it several times; the batch as a whole is not atomic.
/// - Time is the store's own clock, read once per ask or batch, inside the store.
/// - A refusal is a [`Verdict`]. An `Err` means that this ask was not decided, or that nobody knows whether it was
///   (a charge may still take effect after [`StoreError::Deadline`]); it is never retried by the store.
/// - The answer comes within `deadline`, or is an error: [`StoreError::Deadline`], and never before the deadline has passed. How
///   long a caller waits is no business of the store's; one that waits for less drops the future.
/// - A caller that drops the future loses its answers, nothing else: what was sent stays charged, other callers' asks go on.
pub trait Store: Send + Sync + 'static {
    /// Decides one ask, as a batch of one would be; for stores that can do so with less.
    fn decide_one(&self, ask: &Ask, deadline: StoreDeadline) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        async move {
            let answer = self.decide_batch(std::slice::from_ref(ask), deadline).await.pop();
            answer.unwrap_or_else(|| Err(StoreError::Nonsense("the store left a question out".to_owned())))
        }
    }

    /// Decides the asks in their order; one result each, same order.
    fn decide_batch(
        &self,
        asks: &[Ask],
        deadline: StoreDeadline,
    ) -> impl Future<Output = Vec<Result<Verdict, StoreError>>> + Send;

    /// Forgets everything that is kept of a subject, by whatever plan and limit it was counted, so that what is decided on it
    /// from then on begins fresh; whether anything was kept, be it run out or not. Errors: nobody knows whether it was forgotten. A store that has no such
    /// thing refuses.
    fn reset(&self, _subject: &Subject, _deadline: StoreDeadline) -> impl Future<Output = Result<bool, StoreError>> + Send {
        async { Err(StoreError::Refused("this store cannot be told to forget".to_owned())) }
    }

    /// Whether the store is this process's own memory, so that asking it costs no more than remembering what it said.
    fn is_embedded(&self) -> bool {
        false
    }
}

/// A store that several share decides for each of them.
impl<S: Store> Store for Arc<S> {
    async fn decide_one(&self, ask: &Ask, deadline: StoreDeadline) -> Result<Verdict, StoreError> {
        self.as_ref().decide_one(ask, deadline).await
    }

    async fn decide_batch(&self, asks: &[Ask], deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        self.as_ref().decide_batch(asks, deadline).await
    }

    async fn reset(&self, subject: &Subject, deadline: StoreDeadline) -> Result<bool, StoreError> {
        self.as_ref().reset(subject, deadline).await
    }

    fn is_embedded(&self) -> bool {
        self.as_ref().is_embedded()
    }
}

/// Why a store could not decide. The limiter answers by the plan's policy then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer within the deadline: the store is slow, stopped or out of reach. The charge may still take effect.
    #[error("no answer from the store within {0:?}")]
    Deadline(Duration),
    /// The store cannot be reached: look at its address and its health.
    #[error("the store is out of reach: {0}")]
    Unreachable(String),
    /// The store answered with an error: it is read-only, out of memory, loading, or lacks a permission.
    #[error("the store refused: {0}")]
    Refused(String),
    /// The store's answer makes no sense: look at what listens at its address.
    #[error("the store's answer makes no sense: {0}")]
    Nonsense(String),
    /// Too many requests wait for the store already; nothing was sent.
    #[error("{0} requests wait for the store already")]
    Overloaded(usize),
    /// The embedded store is full of live keys and has no room for one more; keys that it holds are still decided.
    #[error("the embedded store is full of live keys")]
    Full,
}

impl StoreError {
    /// Every word that [`Self::kind`] says.
    pub const KINDS: [&str; 6] = ["deadline", "unreachable", "refused", "nonsense", "overloaded", "full"];

    /// A word for logs and metrics.
    pub fn kind(&self) -> &'static str {
        Self::KINDS[self.kind_index()]
    }

    /// The word's place in [`Self::KINDS`].
    pub fn kind_index(&self) -> usize {
        match self {
            Self::Deadline(_) => 0,
            Self::Unreachable(_) => 1,
            Self::Refused(_) => 2,
            Self::Nonsense(_) => 3,
            Self::Overloaded(_) => 4,
            Self::Full => 5,
        }
    }
}

/// The store that a config names.
pub enum ConfiguredStore {
    /// `memory:`
    Memory(MemoryStore),
    /// `redis://…` and all that are like it.
    Redis(RedisStore),
}

impl Store for ConfiguredStore {
    async fn decide_one(&self, ask: &Ask, deadline: StoreDeadline) -> Result<Verdict, StoreError> {
        match self {
            Self::Memory(store) => store.decide_one(ask, deadline).await,
            Self::Redis(store) => store.decide_one(ask, deadline).await,
        }
    }

    async fn decide_batch(&self, asks: &[Ask], deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        match self {
            Self::Memory(store) => store.decide_batch(asks, deadline).await,
            Self::Redis(store) => store.decide_batch(asks, deadline).await,
        }
    }

    async fn reset(&self, subject: &Subject, deadline: StoreDeadline) -> Result<bool, StoreError> {
        match self {
            Self::Memory(store) => store.reset(subject, deadline).await,
            Self::Redis(store) => store.reset(subject, deadline).await,
        }
    }

    fn is_embedded(&self) -> bool {
        match self {
            Self::Memory(store) => store.is_embedded(),
            Self::Redis(store) => store.is_embedded(),
        }
    }
}
