//! The overrides in force among the plans of one config, looked up by plan and key.

use std::collections::HashMap;
use std::sync::Arc;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64;

use super::{OverrideEffect, OverrideError, OverrideSource, OverrideSubject, PlanOverride};
use crate::plan::{OVERRIDE_KEYS_MAX, Plan, PlanSet};

/// The overrides in force. It never changes: another set of plans or of overrides makes another table.
#[derive(Debug, Default)]
pub struct OverrideTable {
    /// Those of each plan, in the order of the plans. Empty if there are none at all.
    of_plans: Box<[Option<Box<OfPlan>>]>,
    /// Those that are not expired, of keys and of prefixes, by [`OverrideSource::ALL`].
    pub counts: [[u64; 2]; OverrideSource::ALL.len()],
    /// Of these, those without effect.
    pub without_effect: u64,
    /// When the first of those in force ends, by the store's clock, in microseconds since 1970.
    pub next_expiry_us: Option<u64>,
}

/// An override in force, and what it means.
#[derive(Debug, Clone)]
pub struct AppliedOverride {
    /// The override.
    pub entry: Arc<PlanOverride>,
    /// Index of the plan that decides in its set, for tables kept by plan.
    pub plan_index: usize,
    /// The plan that decides.
    pub plan: Arc<Plan>,
}

#[derive(Debug, Default)]
struct OfPlan {
    keys: OverridesByKey,
    /// Sorted by their texts as bytes.
    prefixes: Vec<Prefix>,
}

/// Overrides of keys, found by the hash of the key, which each has itself. A table of places takes less room than one of overrides,
/// of which up to half of the places are free.
#[derive(Debug, Default)]
struct OverridesByKey {
    all: Vec<AppliedOverride>,
    places: HashTable<OverrideIndex>,
}

/// An index among the overrides of one plan. A short number, since a table has free places for up to as many more.
type OverrideIndex = u16;

const _: () = assert!(OverrideSource::ALL.len() * OVERRIDE_KEYS_MAX <= OverrideIndex::MAX as usize);

#[derive(Debug)]
struct Prefix {
    applied: AppliedOverride,
    /// Index of the longest other prefix that this one begins with.
    parent: Option<OverrideIndex>,
}

impl OverrideTable {
    /// The table of overrides that are set at runtime and of those of the file, which `plans` has. What is expired at this time of
    /// the store's clock is passed over. `runtime` has one override for each subject of a plan, and so has the file.
    pub fn new(plans: &PlanSet, runtime: &[Arc<PlanOverride>], now_us: u64) -> Self {
        let mut table = Self::default();
        let mut builder = Builder::default();
        // Of the same subject, the first holds.
        for entry in runtime.iter().chain(plans.overrides().iter()) {
            if entry.is_expired(now_us) {
                continue;
            }
            let is_prefix = matches!(entry.subject, OverrideSubject::Prefix(_));
            table.counts[entry.source as usize][usize::from(is_prefix)] += 1;
            match builder.add(entry, plans) {
                Ok(()) => {
                    let next = [table.next_expiry_us, entry.expires_at_us];
                    table.next_expiry_us = next.into_iter().flatten().min();
                }
                Err(_) => table.without_effect += 1,
            }
        }
        table.of_plans = builder.finish(plans.len());
        table
    }

    /// The override that holds for this key in place of the plan at this index: that of the key, else that of its longest prefix.
    #[inline]
    pub fn find(&self, plan_index: usize, key: &str) -> Option<&AppliedOverride> {
        if self.of_plans.is_empty() {
            return None;
        }
        self.of_plans.get(plan_index)?.as_deref()?.find(key)
    }

    /// Whether no override is in force.
    pub fn is_empty(&self) -> bool {
        self.of_plans.is_empty()
    }
}

impl AppliedOverride {
    fn text(&self) -> &str {
        self.entry.subject.text()
    }

    /// Who can set overrides needs no equal hashes to do harm, so it needs no secret.
    fn hash(&self) -> u64 {
        xxh3_64(self.text().as_bytes())
    }
}

impl OverridesByKey {
    fn get(&self, key: &str) -> Option<&AppliedOverride> {
        let is_same = |place: &OverrideIndex| self.by_index(*place).text() == key;
        let place = self.places.find(xxh3_64(key.as_bytes()), is_same)?;
        Some(self.by_index(*place))
    }

    fn by_index(&self, place: OverrideIndex) -> &AppliedOverride {
        &self.all[usize::from(place)]
    }

    /// Adds an override, unless there is one of its key. There are never more than places.
    fn add(&mut self, applied: AppliedOverride) {
        let Ok(place) = OverrideIndex::try_from(self.all.len()) else {
            return;
        };
        if self.get(applied.text()).is_none() {
            let hash = applied.hash();
            self.all.push(applied);
            let rehash = |place: &OverrideIndex| self.all[usize::from(*place)].hash();
            self.places.insert_unique(hash, place, rehash);
        }
    }

    fn shrink_to_fit(&mut self) {
        self.all.shrink_to_fit();
        self.places
            .shrink_to_fit(|place| self.all[usize::from(*place)].hash());
    }
}

impl OfPlan {
    fn find(&self, key: &str) -> Option<&AppliedOverride> {
        self.keys.get(key).or_else(|| self.longest_prefix(key))
    }

    /// Every prefix of the key is a beginning of the last prefix that sorts before the key or is equal to it, or is that prefix. So the
    /// search begins there, and goes on to shorter ones.
    fn longest_prefix(&self, key: &str) -> Option<&AppliedOverride> {
        let after = self
            .prefixes
            .partition_point(|prefix| prefix.text().as_bytes() <= key.as_bytes());
        let mut index = after.checked_sub(1)?;
        let common = common_bytes(self.prefixes[index].text(), key);
        loop {
            let prefix = &self.prefixes[index];
            if prefix.text().len() <= common {
                return Some(&prefix.applied);
            }
            index = usize::from(prefix.parent?);
        }
    }
}

impl Prefix {
    fn text(&self) -> &str {
        self.applied.text()
    }
}

fn common_bytes(a: &str, b: &str) -> usize {
    let pairs = a.bytes().zip(b.bytes());
    pairs.take_while(|(a, b)| a == b).count()
}

#[derive(Default)]
struct Builder<'a> {
    of_plans: HashMap<usize, OfPlan>,
    /// The plan of each effect that was seen, so that customers with the same numbers share one.
    plans: HashMap<(&'a str, &'a OverrideEffect), (usize, usize, Arc<Plan>)>,
}

impl<'a> Builder<'a> {
    fn add(&mut self, entry: &'a Arc<PlanOverride>, plans: &PlanSet) -> Result<(), OverrideError> {
        let name_and_effect = (&*entry.plan, &entry.effect);
        let (asked_index, plan_index, plan) = match self.plans.get(&name_and_effect) {
            Some(known) => known.clone(),
            None => {
                let found = entry.plan_in(plans)?;
                self.plans.insert(name_and_effect, found.clone());
                found
            }
        };
        let of_plan = self.of_plans.entry(asked_index).or_default();
        let applied = AppliedOverride {
            entry: entry.clone(),
            plan_index,
            plan,
        };
        match &entry.subject {
            OverrideSubject::Key(_) => of_plan.keys.add(applied),
            OverrideSubject::Prefix(_) => of_plan.prefixes.push(Prefix {
                applied,
                parent: None,
            }),
        }
        Ok(())
    }

    fn finish(mut self, plans: usize) -> Box<[Option<Box<OfPlan>>]> {
        if self.of_plans.is_empty() {
            return Box::default();
        }
        let mut of_plan = |plan_index| {
            let mut of_plan = self.of_plans.remove(&plan_index)?;
            of_plan.keys.shrink_to_fit();
            of_plan.prefixes.shrink_to_fit();
            link(&mut of_plan.prefixes);
            Some(Box::new(of_plan))
        };
        (0..plans).map(&mut of_plan).collect()
    }
}

/// Sorts prefixes, keeps the first of equal ones, and finds the parent of each.
fn link(prefixes: &mut Vec<Prefix>) {
    // A stable sort, so that the first of equal ones stays first.
    prefixes.sort_by(|a, b| a.text().as_bytes().cmp(b.text().as_bytes()));
    prefixes.dedup_by(|later, first| later.text() == first.text());
    for (index, before) in (1..prefixes.len()).zip(0..) {
        let mut parent = Some(before);
        while let Some(other) = parent.map(usize::from) {
            if prefixes[index].text().starts_with(prefixes[other].text()) {
                break;
            }
            parent = prefixes[other].parent;
        }
        prefixes[index].parent = parent;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::Rule;

    fn entry(plan: &str, subject: OverrideSubject, use_plan: &str) -> PlanOverride {
        PlanOverride {
            plan: plan.into(),
            subject,
            effect: OverrideEffect::UsePlan(use_plan.into()),
            expires_at_us: None,
            reason: "".into(),
            source: OverrideSource::Runtime,
            version: 1,
            set_at_us: 1,
        }
    }

    fn plans(file: Vec<PlanOverride>) -> PlanSet {
        let names = ["a", "b", "c", "d"];
        let set: PlanSet = names
            .iter()
            .map(|name| Plan::new(*name, Rule::Unlimited))
            .collect();
        set.with_overrides(file.into_iter().map(Arc::new).collect())
    }

    /// What holds for a key, looked for in all overrides one by one.
    fn by_search<'a>(
        entries: &'a [PlanOverride],
        key: &str,
        now_us: u64,
    ) -> Option<&'a PlanOverride> {
        let of_key = |entry: &&PlanOverride| {
            *entry.plan == *"a" && entry.subject.matches(key) && !entry.is_expired(now_us)
        };
        let has_effect = |entry: &&PlanOverride| matches!(&entry.effect, OverrideEffect::UsePlan(name) if ["b", "c", "d"].contains(&&**name));
        let rank = |entry: &&PlanOverride| {
            let exact = matches!(entry.subject, OverrideSubject::Key(_));
            (
                !exact,
                std::cmp::Reverse(entry.subject.text().len()),
                entry.source,
            )
        };
        entries
            .iter()
            .filter(of_key)
            .filter(has_effect)
            .min_by_key(rank)
    }

    fn any_entry() -> impl Strategy<Value = PlanOverride> {
        let text = "[xyé]{1,4}";
        let plan = prop::sample::select(vec!["a", "a", "a", "b"]);
        let use_plan = prop::sample::select(vec!["b", "c", "d", "gone", "a"]);
        let expiry = prop::option::of(0_u64..4);
        (plan, text, any::<bool>(), use_plan, expiry, any::<bool>()).prop_map(
            |(plan, text, exact, use_plan, expires_at_us, in_file)| {
                let subject = if exact {
                    OverrideSubject::Key(text.into())
                } else {
                    OverrideSubject::Prefix(text.into())
                };
                PlanOverride {
                    expires_at_us,
                    source: if in_file {
                        OverrideSource::File
                    } else {
                        OverrideSource::Runtime
                    },
                    ..entry(plan, subject, use_plan)
                }
            },
        )
    }

    proptest! {
        #[test]
        fn the_table_finds_what_a_search_finds(
            entries in prop::collection::vec(any_entry(), 0..24),
            keys in prop::collection::vec("[xyé]{1,6}", 1..12),
            now_us in 0_u64..4,
        ) {
            let mut known = std::collections::HashSet::new();
            let entries: Vec<PlanOverride> = entries
                .into_iter()
                .filter(|entry| known.insert((entry.plan.clone(), entry.subject.clone(), entry.source)))
                .collect();
            let of = |source| entries.iter().filter(move |entry| entry.source == source).cloned();
            let set = plans(of(OverrideSource::File).collect());
            let runtime: Vec<_> = of(OverrideSource::Runtime).map(Arc::new).collect();
            let table = OverrideTable::new(&set, &runtime, now_us);
            for key in keys {
                let found = table.find(0, &key).map(|applied| &*applied.entry);
                prop_assert_eq!(found, by_search(&entries, &key, now_us), "{}", key);
            }
        }
    }

    #[test]
    fn nested_prefixes_are_found_from_the_longest_down() {
        let nested = (1..=200)
            .map(|length| entry("a", OverrideSubject::Prefix("x".repeat(length).into()), "b"));
        let table = OverrideTable::new(&plans(nested.collect()), &[], 0);
        for length in [1, 2, 199, 200, 300] {
            let key = format!("{}y", "x".repeat(length));
            let found = &table.find(0, &key).unwrap().entry.subject;
            assert_eq!(found.text().len(), length.min(200));
        }
        assert!(table.find(0, "yx").is_none() && table.find(1, "x").is_none());
    }

    #[test]
    fn what_is_without_effect_is_counted_and_the_next_expiry_known() {
        let key = |text: &str| OverrideSubject::Key(text.into());
        let mut entries = vec![
            entry("a", key("1"), "gone"),
            entry("gone", key("1"), "a"),
            entry("a", key("2"), "b"),
            entry("a", key("3"), "b"),
            entry("a", key("4"), "gone"),
        ];
        for (index, expires_at_us) in [(2, 9), (3, 7), (4, 5)] {
            entries[index].expires_at_us = Some(expires_at_us);
        }
        let table = OverrideTable::new(&plans(entries), &[], 5);
        assert_eq!((table.without_effect, table.next_expiry_us), (2, Some(7)));
        assert_eq!(table.counts, [[4, 0], [0, 0]]);
    }
}
