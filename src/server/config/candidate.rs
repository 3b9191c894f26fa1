//! The field `candidate` of a plan: whose limits are tried out beside its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::plan_names::{PlanNames, needs_reserve};
use super::tree::{ErrorList, Node, Quoted, report};
use tollgate_core::plan::Plan;

/// A field `candidate`, whose plan is looked up when all plans are known.
pub(super) struct Candidate {
    /// Name of the plan that has the field.
    pub(super) live: String,
    path: String,
    name: String,
}

impl Candidate {
    /// The plan to try out. Plans with errors are not among `plans`.
    pub(super) fn plan(
        &self,
        plans: &BTreeMap<Arc<str>, Plan>,
        (names, others): (&PlanNames, &[Self]),
        errors: &mut ErrorList,
    ) -> Option<Plan> {
        if self.name == self.live {
            report(
                errors,
                &self.path,
                "is the plan itself; name another plan, whose limits are tried out",
            );
            return None;
        }
        if !names.check(&self.name, (&self.path, "is", ""), errors) {
            return None;
        }
        let live = plans.get(self.live.as_str())?;
        let plan = plans.get(self.name.as_str())?;
        if let Some(problem) = self.problem(live, plan, others) {
            report(errors, &self.path, problem);
            return None;
        }
        Some(plan.clone())
    }

    /// Why `plan` cannot be tried out beside `live`.
    fn problem(&self, live: &Plan, plan: &Plan, others: &[Self]) -> Option<String> {
        let name = Quoted(&self.name);
        let has_candidate = || others.iter().any(|other| other.live == self.name);
        if live.concurrency().is_some() {
            Some(format!(
                "cannot be: plan {} has a concurrency limit, which needs Reserve",
                self.live
            ))
        } else if plan.concurrency().is_some() {
            Some(needs_reserve(&self.name))
        } else if live.limits().is_empty() {
            Some("needs a plan with limits; to try out limits where there are none, write limits and shadow: true".to_owned())
        } else if plan.limits().is_empty() {
            Some(format!("is {name}, which has no limits to try out"))
        } else if has_candidate() {
            Some(format!(
                "is {name}, which has a candidate of its own; a candidate is tried out beside a live plan only"
            ))
        } else {
            None
        }
    }
}

/// Reads the field.
pub(super) fn candidate(live: &str, node: Node, errors: &mut ErrorList) -> Option<Candidate> {
    let path = node.path.clone();
    Some(Candidate {
        live: live.to_owned(),
        path,
        name: node.text(errors)?,
    })
}
