//! What is set at runtime, as a replica knows it, and what becomes of it by a change.

use std::sync::Arc;

use super::codec;
use tollgate_core::plan::{OverrideSubject, PlanOverride};
use tollgate_store::{OverrideNews, OverrideRecord, OverrideVersion};

/// Maximum number of expired overrides that one change removes from the store.
const EXPIRED_REMOVED_MAX: usize = 64;

/// What is set at runtime, as this replica knows it.
#[derive(Debug, Default)]
pub(in crate::limiter) struct RuntimeOverrides {
    /// Those that can be read, in the order of [`order`].
    pub(in crate::limiter) entries: Vec<Arc<PlanOverride>>,
    /// Those that cannot be read, such as those of a later release. They have no effect and stay as they are.
    pub(super) unreadable: Vec<Arc<Unreadable>>,
    pub(super) version: OverrideVersion,
}

/// A record that is not an override for this release.
#[derive(Debug)]
pub(super) struct Unreadable {
    pub(super) record: OverrideRecord,
    pub(super) problem: String,
}

/// What overrides are sorted by: their plan, keys before prefixes, and bytes.
pub(super) fn sort_key<'a>(
    plan: &'a str,
    subject: &'a OverrideSubject,
) -> (&'a str, bool, &'a [u8]) {
    let is_prefix = matches!(subject, OverrideSubject::Prefix(_));
    (plan, is_prefix, subject.text().as_bytes())
}

impl RuntimeOverrides {
    pub(super) fn place_of(&self, plan: &str, subject: &OverrideSubject) -> Result<usize, usize> {
        let of = |entry: &Arc<PlanOverride>| {
            sort_key(&entry.plan, &entry.subject).cmp(&sort_key(plan, subject))
        };
        self.entries.binary_search_by(of)
    }

    /// The override of this subject, unless it is expired.
    pub(super) fn present(&self, entry: &PlanOverride, now_us: u64) -> Option<&Arc<PlanOverride>> {
        let place = self.place_of(&entry.plan, &entry.subject).ok()?;
        let present = self.entries.get(place);
        present.filter(|present| !present.is_expired(now_us))
    }

    /// Whether there is something of this subject that cannot be read.
    pub(super) fn has_unreadable(&self, entry: &PlanOverride) -> bool {
        let name = codec::name(&entry.plan, &entry.subject);
        self.unreadable
            .iter()
            .any(|unreadable| unreadable.record.name == name)
    }

    /// Names of what a change of this override removes: itself if it is not written, and some that are expired.
    pub(super) fn removed_with(
        &self,
        entry: &PlanOverride,
        itself: bool,
        now_us: u64,
    ) -> Vec<Vec<u8>> {
        let name = |entry: &PlanOverride| codec::name(&entry.plan, &entry.subject);
        let is_same =
            |other: &PlanOverride| (&other.plan, &other.subject) == (&entry.plan, &entry.subject);
        let others = self.entries.iter().map(|other| &**other);
        let expired = others.filter(|other| other.is_expired(now_us) && !is_same(other));
        let removed = expired.take(EXPIRED_REMOVED_MAX).map(name);
        removed.chain(itself.then(|| name(entry))).collect()
    }

    /// What is set by the news, at the version that they are of.
    pub(super) fn after_news(
        self: Arc<Self>,
        news: OverrideNews,
        version: OverrideVersion,
    ) -> Arc<Self> {
        match news {
            OverrideNews::None => self,
            OverrideNews::All(records) => Arc::new(codec::read(records, version)),
            OverrideNews::Changes(changes) => {
                let (names, records): (Vec<_>, Vec<_>) = changes.into_iter().unzip();
                let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
                let written = codec::read(records.into_iter().flatten().collect(), version);
                Arc::new(self.after_change(&names, written))
            }
        }
    }

    /// What is set after a change: nothing under these names but what was `written`, which has the version after it.
    pub(super) fn after_change(&self, names: &[&[u8]], written: Self) -> Self {
        let mut after = Self {
            entries: self.entries.clone(),
            unreadable: self.unreadable.clone(),
            version: written.version,
        };
        let is_named = |other: &Arc<Unreadable>| names.contains(&other.record.name.as_slice());
        after.unreadable.retain(|other| !is_named(other));
        for (plan, subject) in names.iter().filter_map(|name| codec::parts_of(name)) {
            if let Ok(place) = after.place_of(plan, &subject) {
                after.entries.remove(place);
            }
        }
        for entry in written.entries {
            let (Ok(place) | Err(place)) = after.place_of(&entry.plan, &entry.subject);
            after.entries.insert(place, entry);
        }
        after.unreadable.extend(written.unreadable);
        after
    }
}
