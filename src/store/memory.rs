//! The embedded store: exact, bounded, gone with the process.
//!
//! Bounded in bytes. An entry leaves when it has nothing to tell any more (all its states are fresh again), and for no
//! other reason: dropping a live one would hand its key a new quota, and a denied key could be freed by flooding the
//! store with others. When it is full of live entries, keys that it holds are decided as ever, but a log that would have to
//! grow merges its nearest units instead, which then leave late, never early. A key that it does not hold is answered
//! [`StoreError::Full`], which the plan's policy turns into an answer. Only where a plan was edited can that befall a key
//! that is held: one in twelve or so of them finds room for the records of further limits, which is kept free for them.
//!
//! A key's entry is bytes ([`entry`]) in a slot among others of its size ([`arena`]), with a log, if it has one, beside it
//! ([`logs`]); the slots of what may be fresh are linked by time ([`queue`]); a table finds them by name ([`shard`]). On a
//! key that is held, a decision allocates nothing.

mod arena;
mod entry;
mod logs;
mod queue;
mod shard;

use std::hash::RandomState;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Ask, Store, StoreDeadline, StoreError, Subject};
use crate::algorithm::Verdict;
use crate::clock::Clock;
use crate::key::Key;
use entry::Name;
use shard::Shard;

/// Bytes that a store holds at most unless told otherwise: about 750,000 keys of one constant-size limit.
pub const CAPACITY_DEFAULT: u64 = 64 << 20;
/// Fewest bytes that a store may be given: room for a few thousand keys.
pub const CAPACITY_MIN: u64 = 1 << 20;

/// Locks are held for well under a microsecond; this many keep a dozen cores from meeting at one.
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
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::new(bytes, hasher.clone()))).collect();
        Self { shards, hasher, clock }
    }

    /// Decides one ask at once.
    pub fn decide(&self, ask: &Ask) -> Result<Verdict, StoreError> {
        let now_us = self.clock.now_us();
        let name = Name::new(ask.plan.counts_as.as_bytes(), ask.key.as_str().as_bytes());
        let name = name.ok_or_else(|| StoreError::Refused("the key and what its plan counts as are too long".to_owned()))?;
        let hash = shard::hash_of(&self.hasher, name);
        self.shard(hash).decide(name, hash, ask, now_us)
    }

    /// Forgets a key among the plans that count as this, at once; whether it was held.
    pub fn forget(&self, counts_as: &str, key: &Key) -> bool {
        let Some(name) = Name::new(counts_as.as_bytes(), key.as_str().as_bytes()) else { return false };
        let hash = shard::hash_of(&self.hasher, name);
        self.shard(hash).remove(name, hash)
    }

    /// Keys held, live or not yet swept.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether no key is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held, by the store's own account; never above its capacity.
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).bytes()).sum()
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        // Bits that the table inside a shard does not go by.
        lock(&self.shards[(hash >> 32) as usize % SHARDS])
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // Arithmetic on checked numbers does not panic; if it ever did, the other keys of the shard are whole.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for MemoryStore {
    async fn decide_one(&self, ask: &Ask, _deadline: StoreDeadline) -> Result<Verdict, StoreError> {
        self.decide(ask)
    }

    async fn decide_batch(&self, asks: &[Ask], _deadline: StoreDeadline) -> Vec<Result<Verdict, StoreError>> {
        asks.iter().map(|ask| self.decide(ask)).collect()
    }

    async fn reset(&self, subject: &Subject, _deadline: StoreDeadline) -> Result<bool, StoreError> {
        Ok(self.forget(&subject.counts_as, &subject.key))
    }

    fn is_embedded(&self) -> bool {
        true
    }
}
