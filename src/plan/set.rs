//! All plans of one config, looked up by name.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::Plan;

/// Names further away than this many edits are no help to offer.
const SUGGESTION_EDITS_MAX: usize = 3;

/// Every plan that this replica enforces.
#[derive(Debug, Clone, Default)]
pub struct PlanSet {
    /// Each with its place in the order of the names.
    plans: BTreeMap<Arc<str>, (usize, Arc<Plan>)>,
}

impl PlanSet {
    /// The plan of this name. Errors: [`UnknownPlan`], with the nearest name when one is close.
    pub fn get(&self, name: &str) -> Result<&Arc<Plan>, UnknownPlan> {
        self.find(name).map(|(_, plan)| plan)
    }

    /// The plan of this name and its place in [`Self::iter`], 0 to `len() - 1`, for tables kept by plan. Errors: as [`Self::get`].
    pub fn find(&self, name: &str) -> Result<(usize, &Arc<Plan>), UnknownPlan> {
        self.find_if_any(name).ok_or_else(|| UnknownPlan { name: name.to_owned(), nearest: self.nearest(name) })
    }

    /// As [`Self::find`], where nobody needs to be told the nearest name, which takes a look at each.
    pub fn find_if_any(&self, name: &str) -> Option<(usize, &Arc<Plan>)> {
        self.plans.get(name).map(|(place, plan)| (*place, plan))
    }

    /// All plans in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Plan>> {
        self.plans.values().map(|(_, plan)| plan)
    }

    /// Number of plans.
    pub fn len(&self) -> usize {
        self.plans.len()
    }

    /// Whether there are no plans.
    pub fn is_empty(&self) -> bool {
        self.plans.is_empty()
    }

    /// The set with every plan cut to one replica's share; see [`Plan::share`].
    pub fn share(&self, replicas: u64) -> Self {
        self.iter().map(|plan| plan.share(replicas)).collect()
    }

    /// A text that is equal for equal sets, whatever order their file had; what a config hash is taken of.
    pub fn canonical(&self) -> String {
        let mut text = String::new();
        for plan in self.iter() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{plan:?}");
        }
        text
    }

    fn nearest(&self, name: &str) -> Option<Arc<str>> {
        let distance = |other: &Arc<str>| strsim::damerau_levenshtein(name, other);
        let (edits, nearest) = self.plans.keys().map(|other| (distance(other), other)).min()?;
        (edits <= SUGGESTION_EDITS_MAX && edits < name.len()).then(|| nearest.clone())
    }
}

impl FromIterator<Plan> for PlanSet {
    fn from_iter<I: IntoIterator<Item = Plan>>(plans: I) -> Self {
        plans.into_iter().map(Arc::new).collect()
    }
}

impl FromIterator<Arc<Plan>> for PlanSet {
    fn from_iter<I: IntoIterator<Item = Arc<Plan>>>(plans: I) -> Self {
        // In the order of their names, and of one name the last.
        let by_name: BTreeMap<_, _> = plans.into_iter().map(|plan| (plan.name.clone(), plan)).collect();
        let place = |(place, (name, plan))| (name, (place, plan));
        Self { plans: by_name.into_iter().enumerate().map(place).collect() }
    }
}

/// A request named a plan that the config does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPlan {
    /// The name that was asked for.
    pub name: String,
    /// The plan whose name is nearest, when it is near enough to be a slip.
    pub nearest: Option<Arc<str>>,
}

impl std::error::Error for UnknownPlan {}

impl std::fmt::Display for UnknownPlan {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "plan {:?} is not in the config", self.name)?;
        match &self.nearest {
            Some(nearest) => write!(out, "; did you mean {nearest:?}?"),
            None => write!(out, "; ListPlans tells which are"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{OnStoreFailure, Rule};

    fn plans(names: &[&str]) -> PlanSet {
        let plan = |name: &&str| Plan {
            name: (*name).into(),
            counts_as: (*name).into(),
            rule: Rule::Unlimited,
            shadow: false,
            on_store_failure: OnStoreFailure::Local,
        };
        names.iter().map(plan).collect()
    }

    #[test]
    fn an_unknown_plan_names_the_nearest() {
        let set = plans(&["free", "starter", "business"]);
        assert_eq!(set.get("startr").unwrap_err().nearest.as_deref(), Some("starter"));
        assert_eq!(set.get("enterprise").unwrap_err().nearest, None);
        assert_eq!(set.get("x").unwrap_err().nearest, None);
        assert!(set.get("free").is_ok());
    }

    #[test]
    fn a_plan_is_found_at_its_place_in_the_order_of_names() {
        let set = plans(&["free", "starter", "business", "free"]);
        let places: Vec<usize> = set.iter().map(|plan| set.find(&plan.name).unwrap().0).collect();
        assert_eq!(places, [0, 1, 2]);
        assert_eq!(set.find("business").unwrap().0, 0);
    }

    #[test]
    fn the_canonical_text_does_not_depend_on_order() {
        assert_eq!(plans(&["a", "b"]).canonical(), plans(&["b", "a"]).canonical());
        assert_ne!(plans(&["a", "b"]).canonical(), plans(&["a", "c"]).canonical());
    }
}
