//! All plans of one config, looked up by name.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::envoy::EnvoyRules;
use super::{Plan, PlanOverride};
use crate::nearest::nearest;

/// Every plan of one config.
#[derive(Debug, Clone, Default)]
pub struct PlanSet {
    /// Plans by name, each with its index in the order of the names.
    plans: BTreeMap<Arc<str>, (usize, Arc<Plan>)>,
    /// Name of the plan that decides requests for an unknown plan.
    default: Option<Arc<str>>,
    /// The rules for Envoy's descriptors, whose plans are in this set.
    envoy: Arc<EnvoyRules>,
    /// The overrides of the config; their names may be wrong.
    overrides: Arc<[Arc<PlanOverride>]>,
}

impl PlanSet {
    /// The plan of this name. Errors: [`UnknownPlan`].
    #[inline]
    pub fn get(&self, name: &str) -> Result<&Arc<Plan>, UnknownPlan> {
        self.find(name).map(|(_, plan)| plan)
    }

    /// The plan of this name and its index in [`Self::iter`], 0 to `len() - 1`, for tables kept by plan. Errors:
    /// [`UnknownPlan`].
    ///
    /// The error has no suggestion, since 1,000 unknown names in a batch would occupy the thread too long. See
    /// [`Self::suggest`].
    #[inline]
    pub fn find(&self, name: &str) -> Result<(usize, &Arc<Plan>), UnknownPlan> {
        self.find_if_any(name).ok_or_else(|| UnknownPlan {
            name: name.to_owned(),
            nearest: None,
        })
    }

    /// Like [`Self::find`], but `None` in place of an error, which would copy the name. For names from another config, which a
    /// caller did not send.
    #[inline]
    pub fn find_if_any(&self, name: &str) -> Option<(usize, &Arc<Plan>)> {
        self.plans.get(name).map(|(index, plan)| (*index, plan))
    }

    /// The same set with another default plan, or with none. Errors: [`UnknownPlan`] when there is no plan of this name.
    pub fn with_default(self, name: Option<&str>) -> Result<Self, UnknownPlan> {
        let default = name
            .map(|name| self.get(name).map(|plan| plan.name.clone()))
            .transpose()?;
        Ok(Self { default, ..self })
    }

    /// The same set with other rules for Envoy's descriptors. Their plans must be in this set.
    pub fn with_envoy(self, envoy: impl Into<Arc<EnvoyRules>>) -> Self {
        Self {
            envoy: envoy.into(),
            ..self
        }
    }

    /// The rules for Envoy's descriptors.
    #[inline]
    pub fn envoy(&self) -> &Arc<EnvoyRules> {
        &self.envoy
    }

    /// The same set with other overrides.
    pub fn with_overrides(self, overrides: Arc<[Arc<PlanOverride>]>) -> Self {
        Self { overrides, ..self }
    }

    /// The overrides of the config. A name in one of them may be wrong, which then has no effect.
    #[inline]
    pub fn overrides(&self) -> &Arc<[Arc<PlanOverride>]> {
        &self.overrides
    }

    /// The plan that decides requests for an unknown plan, and its index. `None`: such requests are errors.
    #[inline]
    pub fn default_plan(&self) -> Option<(usize, &Arc<Plan>)> {
        self.find_if_any(self.default.as_deref()?)
    }

    /// The plan that decides requests that name this plan: the plan itself, or else the default plan.
    #[inline]
    pub fn find_or_default(&self, name: &str) -> Option<(usize, &Arc<Plan>)> {
        self.find_if_any(name).or_else(|| self.default_plan())
    }

    /// All plans in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Plan>> {
        self.plans.values().map(|(_, plan)| plan)
    }

    /// Number of plans.
    #[inline]
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether there are no plans.
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// The set with every plan reduced to one replica's share; see [`Plan::share`].
    pub fn share(&self, replicas: u64) -> Self {
        self.iter().map(|plan| plan.share(replicas)).collect()
    }

    /// A text that is equal for equal sets, in any order of their file. The config hash is computed from it.
    pub fn canonical(&self) -> String {
        let mut text = String::new();
        for plan in self.iter() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{plan:?}");
        }
        if let Some(default) = &self.default {
            let _ = writeln!(text, "default {default:?}");
        }
        if !self.envoy.is_empty() {
            let _ = writeln!(text, "{:?}", self.envoy);
        }
        for entry in self.overrides.iter() {
            // The subject's Debug hides it.
            let _ = writeln!(text, "{} {entry:?}", entry.subject.text());
        }
        text
    }

    /// Finds the present windows of calendar limits by a clock that may be wrong: where a store begins to look for its own.
    pub fn find_present_windows(&self, now_us: u64) {
        let plans = self.iter().map(|plan| &**plan);
        let candidates = self.iter().filter_map(|plan| plan.candidate.as_deref());
        for limit in plans.chain(candidates).flat_map(Plan::limits) {
            if let Some(calendar) = limit.calendar() {
                calendar.edges_at(now_us);
            }
        }
    }

    /// Adds the plan name nearest to the unknown one, if one is close and finding it takes less than 100 us. For single requests
    /// only: it runs on the thread that decides, and a batch may name 1,000 unknown plans.
    pub fn suggest(&self, unknown: UnknownPlan) -> UnknownPlan {
        let nearest = nearest(&unknown.name, self.plans.keys().map(|name| &**name)).map(Arc::from);
        UnknownPlan { nearest, ..unknown }
    }
}

impl FromIterator<Plan> for PlanSet {
    fn from_iter<I: IntoIterator<Item = Plan>>(plans: I) -> Self {
        plans.into_iter().map(Arc::new).collect()
    }
}

impl FromIterator<Arc<Plan>> for PlanSet {
    fn from_iter<I: IntoIterator<Item = Arc<Plan>>>(plans: I) -> Self {
        // In the order of their names; of plans with the same name the last is kept.
        let by_name: BTreeMap<_, _> = plans
            .into_iter()
            .map(|plan| (plan.name.clone(), plan))
            .collect();
        let indexed = |(index, (name, plan))| (name, (index, plan));
        Self {
            plans: by_name.into_iter().enumerate().map(indexed).collect(),
            default: None,
            envoy: Arc::default(),
            overrides: Arc::default(),
        }
    }
}

/// A request named a plan that the config does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPlan {
    /// The name in the request.
    pub name: String,
    /// The plan with the nearest name, if it is near enough to be a typing error.
    pub nearest: Option<Arc<str>>,
}

impl std::error::Error for UnknownPlan {}

impl std::fmt::Display for UnknownPlan {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "plan {:?} is not in the config", self.name)?;
        match &self.nearest {
            Some(nearest) => write!(out, "; did you mean {nearest:?}?"),
            None => write!(out, "; `tollgate plans` lists all plans"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Rule;

    fn plans(names: &[&str]) -> PlanSet {
        let plan = |name: &&str| Plan::new(*name, Rule::Unlimited);
        names.iter().map(plan).collect()
    }

    #[test]
    fn an_unknown_plan_names_the_nearest() {
        let set = plans(&["free", "starter", "business"]);
        let nearest = |name| set.suggest(set.get(name).unwrap_err()).nearest;
        assert_eq!(nearest("startr").as_deref(), Some("starter"));
        assert_eq!(nearest("sartter").as_deref(), Some("starter"));
        assert_eq!(nearest("enterprise"), None);
        assert_eq!(nearest("x"), None);
        assert!(set.get("free").is_ok());
    }

    #[test]
    fn a_default_plan_is_one_of_the_set_and_part_of_its_canonical_text() {
        let set = plans(&["a", "b"]);
        assert!(set.default_plan().is_none());
        let with = set.clone().with_default(Some("b")).unwrap();
        assert_eq!(
            with.default_plan()
                .map(|(index, plan)| (index, plan.name.to_string())),
            Some((1, "b".to_owned()))
        );
        assert_ne!(with.canonical(), set.canonical());
        assert_eq!(
            with.with_default(None).unwrap().canonical(),
            set.canonical()
        );
        assert_eq!(set.with_default(Some("c")).unwrap_err().name, "c");
    }

    #[test]
    fn find_compares_no_names_for_an_unknown_plan() {
        assert_eq!(plans(&["free"]).find("fre").unwrap_err().nearest, None);
    }

    #[test]
    fn a_plan_is_found_at_its_index_in_the_order_of_names() {
        let set = plans(&["free", "starter", "business", "free"]);
        let indexes: Vec<usize> = set
            .iter()
            .map(|plan| set.find(&plan.name).unwrap().0)
            .collect();
        assert_eq!(indexes, [0, 1, 2]);
        assert_eq!(set.find("business").unwrap().0, 0);
    }

    #[test]
    fn the_canonical_text_does_not_depend_on_order() {
        assert_eq!(
            plans(&["a", "b"]).canonical(),
            plans(&["b", "a"]).canonical()
        );
        assert_ne!(
            plans(&["a", "b"]).canonical(),
            plans(&["a", "c"]).canonical()
        );
    }
}
