//! All plans of one config, looked up by name.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::Plan;

/// Names further away than this many edits are no help to offer.
const SUGGESTION_EDITS_MAX: usize = 3;
/// With more plans than this no name is suggested: to look at the length of each takes some 10 ns, so 3 us at most.
const SUGGESTION_PLANS_MAX: usize = 256;
/// To compare two names takes some 1.5 ns for each pair of their letters, so all of a suggestion take 50 us at most. That is
/// 8 plans with names of 64 letters, or all of them with names of 11.
const SUGGESTION_PAIRS_MAX: usize = 32_768;

/// Every plan that this replica enforces.
#[derive(Debug, Clone, Default)]
pub struct PlanSet {
    /// Each with its place in the order of the names.
    plans: BTreeMap<Arc<str>, (usize, Arc<Plan>)>,
    /// The name of the plan that questions about an unknown one are decided by.
    default: Option<Arc<str>>,
}

impl PlanSet {
    /// The plan of this name. Errors: [`UnknownPlan`].
    pub fn get(&self, name: &str) -> Result<&Arc<Plan>, UnknownPlan> {
        self.find(name).map(|(_, plan)| plan)
    }

    /// The plan of this name and its place in [`Self::iter`], 0 to `len() - 1`, for tables kept by plan. Errors: as [`Self::get`].
    ///
    /// The error suggests no name: a batch of 1,000 unknown names would keep its thread for that long. See [`Self::suggest`].
    pub fn find(&self, name: &str) -> Result<(usize, &Arc<Plan>), UnknownPlan> {
        self.find_if_any(name).ok_or_else(|| UnknownPlan { name: name.to_owned(), nearest: None })
    }

    /// As [`Self::find`], where the name is no caller's.
    pub fn find_if_any(&self, name: &str) -> Option<(usize, &Arc<Plan>)> {
        self.plans.get(name).map(|(place, plan)| (*place, plan))
    }

    /// The set with another default plan, or none. Errors: [`UnknownPlan`], when there is no plan of this name.
    pub fn with_default(self, name: Option<&str>) -> Result<Self, UnknownPlan> {
        let default = name.map(|name| self.get(name).map(|plan| plan.name.clone())).transpose()?;
        Ok(Self { default, ..self })
    }

    /// The plan that questions about an unknown one are decided by, and its place; `None`: those are errors.
    pub fn default_plan(&self) -> Option<(usize, &Arc<Plan>)> {
        self.find_if_any(self.default.as_deref()?)
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
        if let Some(default) = &self.default {
            let _ = writeln!(text, "default {default:?}");
        }
        text
    }

    /// Adds the nearest name, where one is close and to find it takes less than 100 us. For an answer to one question only:
    /// this is done on the thread that decides.
    pub fn suggest(&self, unknown: UnknownPlan) -> UnknownPlan {
        let nearest = self.nearest(&unknown.name, strsim::osa_distance);
        UnknownPlan { nearest, ..unknown }
    }

    fn nearest(&self, name: &str, mut distance: impl FnMut(&str, &str) -> usize) -> Option<Arc<str>> {
        if self.len() > SUGGESTION_PLANS_MAX {
            return None;
        }
        // Names of other lengths are further away for sure.
        let candidates = || self.plans.keys().filter(|other| other.len().abs_diff(name.len()) <= SUGGESTION_EDITS_MAX);
        let pairs: usize = candidates().map(|other| other.len() * name.len()).sum();
        if pairs > SUGGESTION_PAIRS_MAX {
            return None;
        }
        let (edits, nearest) = candidates().map(|other| (distance(name, other), other)).min()?;
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
        Self { plans: by_name.into_iter().enumerate().map(place).collect(), default: None }
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
        let nearest = |name| set.suggest(set.get(name).unwrap_err()).nearest;
        assert_eq!(nearest("startr").as_deref(), Some("starter"));
        assert_eq!(nearest("sartter").as_deref(), Some("starter"));
        assert_eq!(nearest("enterprise"), None);
        assert_eq!(nearest("x"), None);
        assert!(set.get("free").is_ok());
    }

    /// Pairs of letters that a suggestion compares, and whether it found a name.
    fn work(set: &PlanSet, name: &str) -> (usize, bool) {
        let mut pairs = 0;
        let nearest = set.nearest(name, |a, b| {
            pairs += a.len() * b.len();
            strsim::osa_distance(a, b)
        });
        (pairs, nearest.is_some())
    }

    #[test]
    fn a_suggestion_compares_a_bounded_number_of_letters_whatever_the_plans_and_the_name() {
        for (count, letters) in [(1, 64), (8, 64), (9, 64), (100, 20), (256, 11), (256, 64), (257, 4), (10_000, 8), (10_000, 64)]
        {
            let names: Vec<String> = (0..count).map(|index| format!("{index:0>letters$}")).collect();
            let set = plans(&names.iter().map(String::as_str).collect::<Vec<_>>());
            for name in ["x".repeat(letters), format!("{:x>letters$}", 0), "é".repeat(letters / 2), String::new()] {
                let (pairs, _) = work(&set, &name);
                assert!(pairs <= SUGGESTION_PAIRS_MAX, "{count} plans of {letters} letters, {name:?}: {pairs}");
            }
            // One letter is another.
            let (pairs, found) = work(&set, &format!("x{}", &names[0][1..]));
            let cheap = count <= SUGGESTION_PLANS_MAX && count * letters * letters <= SUGGESTION_PAIRS_MAX;
            assert_eq!((found, pairs > 0), (cheap, cheap), "{count} plans of {letters} letters");
        }
    }

    #[test]
    fn a_default_plan_is_one_of_the_set_and_part_of_what_it_says() {
        let set = plans(&["a", "b"]);
        assert!(set.default_plan().is_none());
        let with = set.clone().with_default(Some("b")).unwrap();
        assert_eq!(with.default_plan().map(|(place, plan)| (place, plan.name.to_string())), Some((1, "b".to_owned())));
        assert_ne!(with.canonical(), set.canonical());
        assert_eq!(with.with_default(None).unwrap().canonical(), set.canonical());
        assert_eq!(set.with_default(Some("c")).unwrap_err().name, "c");
    }

    #[test]
    fn to_find_no_plan_compares_no_names() {
        assert_eq!(plans(&["free"]).find("fre").unwrap_err().nearest, None);
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
