//! Where the overrides that are set at runtime are kept: records under names, and the version of the whole set.
//!
//! What a record means is not known here. A store changes the set only for a writer who knows its present version, so that rules
//! about the set as a whole are the writer's.

use std::time::Instant;

use futures_util::future::BoxFuture;

use super::StoreError;

/// One state of the set. Each change has the next number. Two states may have the same number after a failover lost one; then their
/// marks differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OverrideVersion {
    /// Number of changes so far; 0 for a set that never was.
    pub number: u64,
    /// The store's time at that change, in microseconds since 1970.
    pub mark: u64,
}

/// A record of the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideRecord {
    /// Its name, unique in the set.
    pub name: Vec<u8>,
    /// The version of the set that wrote it.
    pub version: u64,
    /// When it was written, by the store's clock, in microseconds since 1970.
    pub set_at_us: u64,
    /// When it expires. It stays in the set: readers pass it over.
    pub expires_at_us: Option<u64>,
    /// What it says.
    pub payload: Vec<u8>,
}

/// When a record expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    Never,
    /// At this time of the store's clock, in microseconds since 1970.
    At(u64),
    /// So many microseconds after it is written.
    After(u64),
}

/// A change of the set.
#[derive(Debug, Clone)]
pub struct OverrideChange<'a> {
    /// The version that is changed.
    pub known: OverrideVersion,
    /// The record to write: its name, when it expires, and what it says.
    pub put: Option<(&'a [u8], Expiry, &'a [u8])>,
    /// Names of records to remove.
    pub removed: Vec<&'a [u8]>,
}

/// The answer to a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideChanged {
    /// The store's time, in microseconds since 1970.
    pub now_us: u64,
    /// The version after the change. `None`: the set has another version than the writer knows, and nothing was changed.
    pub version: Option<OverrideVersion>,
    /// When the record expires.
    pub expires_at_us: Option<u64>,
}

/// What a reader learns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideSet {
    /// The store's time, in microseconds since 1970.
    pub now_us: u64,
    /// The present version.
    pub version: OverrideVersion,
    /// The records of that version.
    pub news: OverrideNews,
}

/// What a reader learns of the records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OverrideNews {
    /// The version is the one that the reader knows, or an older one.
    None,
    /// All records, in any order.
    All(Vec<OverrideRecord>),
    /// Names that were written or removed since the version that the reader knows, with the record of each that is there.
    Changes(Vec<(Vec<u8>, Option<OverrideRecord>)>),
}

/// Keeps the overrides. Errors of all three: no answer came by `until`, or the store refused. What was sent may have been done all the
/// same, but for a read.
pub trait OverrideStore: Send + Sync + 'static {
    /// Reads the version, and the news if it is not below the known one and not the same.
    fn read_overrides(
        &self,
        known: OverrideVersion,
        until: Instant,
    ) -> BoxFuture<'_, Result<OverrideSet, StoreError>>;

    /// Changes the set, if it has the version that the writer knows.
    fn change_overrides<'a>(
        &'a self,
        change: &'a OverrideChange<'a>,
        until: Instant,
    ) -> BoxFuture<'a, Result<OverrideChanged, StoreError>>;

    /// Puts these records of this version in the place of the set, if that has a lower version.
    fn restore_overrides<'a>(
        &'a self,
        version: OverrideVersion,
        records: &'a [OverrideRecord],
        until: Instant,
    ) -> BoxFuture<'a, Result<(), StoreError>>;
}
