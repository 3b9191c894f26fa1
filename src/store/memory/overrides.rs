//! Overrides of a process that shares its store with none. They end with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::future::{BoxFuture, FutureExt, ready};

use crate::StoreError;
use crate::clock::Clock;
use crate::overrides::{
    Expiry, OverrideChange, OverrideChanged, OverrideNews, OverrideRecord, OverrideSet,
    OverrideStore, OverrideVersion,
};

/// Keeps overrides in this process's memory.
pub struct MemoryOverrides {
    clock: Arc<dyn Clock>,
    set: Mutex<Records>,
}

#[derive(Default)]
struct Records {
    version: OverrideVersion,
    by_name: BTreeMap<Vec<u8>, OverrideRecord>,
}

impl MemoryOverrides {
    /// An empty set. `clock` is the store's clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            set: Mutex::default(),
        }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        // A panic cannot leave it half-written, since nothing below panics between two writes.
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OverrideStore for MemoryOverrides {
    fn read_overrides(
        &self,
        known: OverrideVersion,
        _until: Instant,
    ) -> BoxFuture<'_, Result<OverrideSet, StoreError>> {
        let set = self.records();
        let is_news = set.version != known && set.version.number >= known.number;
        let read = OverrideSet {
            now_us: self.clock.now_us(),
            version: set.version,
            news: match is_news {
                true => OverrideNews::All(set.by_name.values().cloned().collect()),
                false => OverrideNews::None,
            },
        };
        ready(Ok(read)).boxed()
    }

    fn change_overrides<'a>(
        &'a self,
        change: &'a OverrideChange<'a>,
        _until: Instant,
    ) -> BoxFuture<'a, Result<OverrideChanged, StoreError>> {
        let mut set = self.records();
        let now_us = self.clock.now_us();
        let mut changed = OverrideChanged {
            now_us,
            version: None,
            expires_at_us: None,
        };
        if set.version == change.known {
            let version = OverrideVersion {
                number: set.version.number + 1,
                mark: now_us,
            };
            set.version = version;
            changed.version = Some(version);
            if let Some((name, expiry, payload)) = change.put {
                changed.expires_at_us = expires_at_us(expiry, now_us);
                let record = OverrideRecord {
                    name: name.to_vec(),
                    version: version.number,
                    set_at_us: now_us,
                    expires_at_us: changed.expires_at_us,
                    payload: payload.to_vec(),
                };
                set.by_name.insert(name.to_vec(), record);
            }
            for name in &change.removed {
                set.by_name.remove(*name);
            }
        }
        ready(Ok(changed)).boxed()
    }

    fn restore_overrides<'a>(
        &'a self,
        _version: OverrideVersion,
        _records: &'a [OverrideRecord],
        _until: Instant,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        // Its version never falls.
        ready(Ok(())).boxed()
    }
}

fn expires_at_us(expiry: Expiry, now_us: u64) -> Option<u64> {
    match expiry {
        Expiry::Never => None,
        Expiry::At(at_us) => Some(at_us),
        Expiry::After(after_us) => Some(now_us.saturating_add(after_us)),
    }
}
