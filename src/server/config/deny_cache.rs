//! Checks the `deny_cache` table.

use super::paths_of;
use super::tree::{ErrorList, Table, report};
use crate::limiter::{DENY_CACHE_DEFAULT, DENY_CACHE_MAX};

/// The checked section.
#[derive(Debug)]
pub struct DenyCacheSection {
    /// Denials that a replica remembers, 0 (none) to 10,000,000. Default: 65,536; see [`DENY_CACHE_DEFAULT`].
    pub entries: usize,
}

impl DenyCacheSection {
    /// Paths of the settings that differ.
    pub(super) fn changed_settings(&self, other: &Self) -> Vec<&'static str> {
        let Self { entries } = self;
        paths_of([("deny_cache.entries", *entries != other.entries)])
    }
}

pub(super) fn check(root: &mut Table, errors: &mut ErrorList) -> Option<DenyCacheSection> {
    let Some(deny_cache) = root.take("deny_cache") else {
        return Some(DenyCacheSection {
            entries: DENY_CACHE_DEFAULT,
        });
    };
    let mut deny_cache = deny_cache.table(errors)?;
    let entries = deny_cache
        .take("entries")
        .map_or(Some(DENY_CACHE_DEFAULT), |node| {
            let path = node.path.clone();
            let entries = node.number(errors)?;
            let within = usize::try_from(entries)
                .ok()
                .filter(|entries| *entries <= DENY_CACHE_MAX);
            if within.is_none() {
                report(
                    errors,
                    &path,
                    format!("is {entries}; it is 0 (off) to {DENY_CACHE_MAX}"),
                );
            }
            within
        });
    deny_cache.finish(errors);
    entries.map(|entries| DenyCacheSection { entries })
}
