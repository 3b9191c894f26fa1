//! The overrides of a config's file, as they hold at a time of the log.
//!
//! A key that an override is for, whether it holds or has expired, is counted by `counts_as` wherever it is asked for. So it keeps its
//! usage when another plan decides, and when an override expires.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::plan::{OverrideSubject, OverrideTable, Plan, PlanOverride, PlanSet};

/// The plans of one config, with their overrides.
#[derive(Debug)]
pub(super) struct FileOverrides {
    plans: PlanSet,
    /// Those in force.
    table: OverrideTable,
    /// Names of the plans of which an override is for these keys, and keys that begin so.
    keys: HashMap<Box<str>, Vec<Arc<str>>>,
    prefixes: Vec<(Box<str>, Arc<str>)>,
    /// A number for each `counts_as` by which such a key may be counted.
    groups: HashMap<Arc<str>, usize>,
}

/// What decides a request for a key that an override is for.
pub(super) struct Decider {
    /// The plan with its numbers.
    pub(super) plan: Arc<Plan>,
    /// The group of plans that count the key.
    pub(super) group: usize,
    /// Whether an override is in force.
    pub(super) is_overridden: bool,
}

impl FileOverrides {
    /// Those of `plans`; `None` if there are none. `groups` has the number of each `counts_as` of the plans that are asked for, and
    /// `next` is above all of them.
    pub(super) fn new(
        plans: &PlanSet,
        mut groups: HashMap<Arc<str>, usize>,
        mut next: usize,
    ) -> Option<Self> {
        let entries = plans.overrides();
        if entries.is_empty() {
            return None;
        }
        for (_, plan) in targets(plans) {
            groups.entry(plan.counts_as.clone()).or_insert_with(|| {
                next += 1;
                next
            });
        }
        let mut overrides = Self {
            table: OverrideTable::new(plans, &[], 0),
            plans: plans.clone(),
            keys: HashMap::new(),
            prefixes: Vec::new(),
            groups,
        };
        for entry in entries.iter() {
            overrides.add_subject(entry);
        }
        Some(overrides)
    }

    fn add_subject(&mut self, entry: &PlanOverride) {
        let plan = entry.plan.clone();
        match &entry.subject {
            OverrideSubject::Key(key) => self.keys.entry(key.clone()).or_default().push(plan),
            OverrideSubject::Prefix(prefix) => self.prefixes.push((prefix.clone(), plan)),
        }
    }

    /// The index of a plan among those of the config.
    pub(super) fn plan_index(&self, plan: &Plan) -> Option<usize> {
        self.plans.find_if_any(&plan.name).map(|(index, _)| index)
    }

    /// Whether one of the overrides that are for this key, at any time, is of this plan. `None` if none is for it.
    pub(super) fn are_for(&self, key: &[u8], plan: &str) -> Option<bool> {
        let key = std::str::from_utf8(key).ok()?;
        let of_key = self.keys.get(key).into_iter().flatten();
        let prefixes = self.prefixes.iter();
        let of_prefix = prefixes.filter(|(prefix, _)| key.starts_with(&**prefix));
        let plans = of_key.chain(of_prefix.map(|(_, plan)| plan));
        plans
            .map(|of| **of == *plan)
            .reduce(|one, other| one || other)
    }

    /// Passes over those that have expired. Times must not step back.
    pub(super) fn expire(&mut self, now_us: u64) {
        if self
            .table
            .next_expiry_us
            .is_some_and(|expiry_us| expiry_us <= now_us)
        {
            self.table = OverrideTable::new(&self.plans, &[], now_us);
        }
    }

    /// What decides for a key in place of this plan, which has that index: an override, or the plan itself.
    pub(super) fn decider(
        &self,
        plan_index: Option<usize>,
        plan: &Arc<Plan>,
        key: &[u8],
    ) -> Decider {
        let found = std::str::from_utf8(key).ok().zip(plan_index);
        let applied = found.and_then(|(key, plan_index)| self.table.find(plan_index, key));
        let is_overridden = applied.is_some();
        let plan = applied.map_or(plan, |applied| &applied.plan);
        Decider {
            group: self
                .groups
                .get(&plan.counts_as)
                .copied()
                .unwrap_or_default(),
            plan: plan.clone(),
            is_overridden,
        }
    }
}

/// For each override with an effect, the name of the plan that it is for, and the plan that decides.
pub(super) fn targets(plans: &PlanSet) -> Vec<(Arc<str>, Arc<Plan>)> {
    let target = |entry: &Arc<PlanOverride>| {
        let (_, _, plan) = entry.plan_in(plans).ok()?;
        Some((entry.plan.clone(), plan))
    };
    plans.overrides().iter().filter_map(target).collect()
}
