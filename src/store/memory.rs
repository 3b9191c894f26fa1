//! The embedded store. It counts exactly, its size is bounded in bytes, and its counters are lost with the process.
//!
//! An entry is dropped only when all its states are fresh again. Dropping a live entry would give its key a new quota: a
//! denied client could free its key by flooding the store with other keys.
//!
//! When the store is full of live entries, keys that it holds are still decided. A log that would have to grow merges its
//! nearest units instead, which then expire late, never early. A key that it does not hold is answered
//! [`StoreError::Full`], which the plan's policy turns into an answer. A held key gets that answer only after its plan was
//! edited. Room for the records of further limits is kept free for about one key in twelve.
//!
//! The entry of a key is a string of bytes ([`entry`]) in a slot among others of the same size ([`arena`]). Its log, if it
//! has one, is kept apart ([`places`]). A timing wheel ([`timing_wheel`]) links the slots by the time at which they may be
//! fresh, and a table finds them by name ([`shard`]). A decision on a held key allocates nothing.

mod arena;
mod checked_out;
mod entry;
mod joint;
mod overrides;
mod places;
mod shard;
mod target;
mod timing_wheel;

use std::borrow::Cow;
use std::hash::RandomState;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    Check, HoldCheck, JointFailure, LeaseCheck, Refund, Store, StoreDeadline, StoreError, Subject,
};
use crate::clock::Clock;
use entry::Name;
pub use overrides::MemoryOverrides;
use shard::{HashedName, Shard};
pub use target::MemoryTarget;
use tollgate_core::algorithm::holds::{HoldVerdict, LeaseVerdict, NoteFigures};
use tollgate_core::algorithm::{GivenBack, Verdict};
use tollgate_core::key::Key;
use tollgate_core::plan::Plan;

/// Default capacity in bytes: about 750,000 keys of one constant-size limit.
pub const CAPACITY_DEFAULT: u64 = 64 << 20;
/// Smallest capacity in bytes: room for a few thousand keys.
pub const CAPACITY_MIN: u64 = 1 << 20;

/// Number of shards, each with a lock that is held for well under a microsecond. With this many, a dozen cores rarely
/// contend for one lock.
const SHARDS: usize = 16;

/// Counters in this process's memory, on an injected clock.
pub struct MemoryStore {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    clock: Arc<dyn Clock>,
}

impl MemoryStore {
    /// A store of at most `capacity` bytes, at least [`CAPACITY_MIN`].
    pub fn new(capacity: u64, clock: Arc<dyn Clock>) -> Self {
        let bytes = usize::try_from(capacity.max(CAPACITY_MIN)).unwrap_or(usize::MAX) / SHARDS;
        let hasher = RandomState::new();
        let shards = (0..SHARDS)
            .map(|_| Mutex::new(Shard::new(bytes, hasher.clone())))
            .collect();
        Self {
            shards,
            hasher,
            clock,
        }
    }

    /// Decides one check without waiting.
    #[inline]
    pub fn decide(&self, check: &Check) -> Result<Verdict, StoreError> {
        self.in_shard(&check.plan, &check.key, |shard, name, now_us| {
            shard.decide(name, check, now_us)
        })?
    }

    /// Carries out a call with an id, or one about holds, without waiting.
    pub fn hold(&self, check: &HoldCheck) -> Result<HoldVerdict, StoreError> {
        self.in_shard(&check.plan, &check.key, |shard, name, now_us| {
            shard.hold(name, check, now_us)
        })?
    }

    /// Carries out a call of a stream about one of its holds, without waiting.
    pub fn lease(&self, check: &LeaseCheck) -> Result<LeaseVerdict, StoreError> {
        self.in_shard(&check.plan, &check.key, |shard, name, now_us| {
            shard.lease(name, check, now_us)
        })
    }

    /// Gives units back without waiting.
    pub fn give_back(&self, refund: &Refund) -> Result<GivenBack, StoreError> {
        self.in_shard(&refund.plan, &refund.key, |shard, name, now_us| {
            shard.refund(name, refund, now_us)
        })
    }

    /// Deletes the entry of a key in the group `counts_as`. Returns whether there was one.
    pub fn forget(&self, counts_as: &str, key: &Key) -> bool {
        let group = group_of(counts_as, key);
        let Some(name) = Name::new(&group, key.as_str().as_bytes()) else {
            return false;
        };
        let name = HashedName::new(&self.hasher, name);
        self.shard(name).remove(name)
    }

    /// Number of keys held: live ones, and fresh ones that were not swept yet.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether no key is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held, by the store's own accounting; never more than its capacity.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).bytes()).sum()
    }

    /// Open holds and known ids of a key.
    pub fn figures(&self, key: &Key, plan: &Plan) -> NoteFigures {
        let group = group_of(&plan.counts_as, key);
        let Some(name) = Name::new(&group, key.as_str().as_bytes()) else {
            return NoteFigures::default();
        };
        let name = HashedName::new(&self.hasher, name);
        self.shard(name).hold_figures(name, self.clock.now_us())
    }

    /// Asks the shard that has this key under this plan. Errors: the group and the key are too long for an entry.
    #[inline]
    fn in_shard<T>(
        &self,
        plan: &Plan,
        key: &Key,
        ask: impl FnOnce(&mut Shard, HashedName<'_>, u64) -> T,
    ) -> Result<T, StoreError> {
        let now_us = self.clock.now_us();
        let group = group_of(&plan.counts_as, key);
        let name = Name::new(&group, key.as_str().as_bytes()).ok_or_else(too_long)?;
        let name = HashedName::new(&self.hasher, name);
        Ok(ask(&mut self.shard(name), name, now_us))
    }

    fn shard(&self, name: HashedName<'_>) -> MutexGuard<'_, Shard> {
        lock(&self.shards[Self::shard_index(name)])
    }

    /// The table inside a shard uses other bits of the hash.
    fn shard_index(name: HashedName<'_>) -> usize {
        (name.hash >> 32) as usize % SHARDS
    }
}

/// The group in the name of an entry: the `counts_as` of a plan, which has no NUL, and behind one the shard of the key.
#[inline]
fn group_of<'a>(counts_as: &'a str, key: &Key) -> Cow<'a, [u8]> {
    if key.has_shard() {
        Cow::Owned([counts_as, "\0", key.shard()].concat().into_bytes())
    } else {
        Cow::Borrowed(counts_as.as_bytes())
    }
}

#[cold]
fn too_long() -> StoreError {
    StoreError::Refused("the key and the counts_as of its plan are too long".to_owned())
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // Arithmetic on checked numbers does not panic. If it ever did, the other keys of the shard would still be consistent.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for MemoryStore {
    async fn decide_one(
        &self,
        check: &Check,
        _deadline: StoreDeadline,
    ) -> Result<Verdict, StoreError> {
        self.decide(check)
    }

    async fn decide_batch(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Vec<Result<Verdict, StoreError>> {
        checks.iter().map(|check| self.decide(check)).collect()
    }

    async fn decide_joint(
        &self,
        checks: &[Check],
        _deadline: StoreDeadline,
    ) -> Result<Vec<Verdict>, JointFailure> {
        Ok(self.decide_joint(checks)?)
    }

    async fn decide_hold(
        &self,
        check: &HoldCheck,
        _deadline: StoreDeadline,
    ) -> Result<HoldVerdict, StoreError> {
        self.hold(check)
    }

    async fn decide_leases(
        &self,
        checks: &[LeaseCheck],
        _deadline: StoreDeadline,
    ) -> Vec<Result<LeaseVerdict, StoreError>> {
        checks.iter().map(|check| self.lease(check)).collect()
    }

    async fn hold_figures(
        &self,
        key: &Key,
        plan: &Arc<Plan>,
        _deadline: StoreDeadline,
    ) -> Result<NoteFigures, StoreError> {
        Ok(self.figures(key, plan))
    }

    async fn refund_batch(
        &self,
        refunds: &[Refund],
        _deadline: StoreDeadline,
    ) -> Vec<Result<GivenBack, StoreError>> {
        let given_back = refunds.iter().map(|refund| self.give_back(refund));
        given_back.collect()
    }

    async fn reset(&self, subject: &Subject, _deadline: StoreDeadline) -> Result<bool, StoreError> {
        Ok(self.forget(&subject.counts_as, &subject.key))
    }

    fn is_embedded(&self) -> bool {
        true
    }
}
