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
        let problem = match (plans.get(self.live.as_str())?, plans.get(self.name.as_str())?) {
            (live, _) if live.concurrency().is_some() => {
                format!("cannot be: plan {} has a concurrency limit, which needs Reserve", self.live)
            }
            (_, plan) if plan.concurrency().is_some() => needs_reserve(&self.name),
            (live, _) if live.limits().is_empty() => {
                "needs a plan with limits; to try out limits where there are none, write limits and shadow: true".to_owned()
            }
            (_, plan) if plan.limits().is_empty() => format!("is {}, which has no limits to try out", Quoted(&self.name)),
            _ if others.iter().any(|other| other.live == self.name) => {
                format!(
                    "is {}, which has a candidate of its own; a candidate is tried out beside a live plan only",
                    Quoted(&self.name)
                )
            }
            (_, plan) => return Some(plan.clone()),
        };
        report(errors, &self.path, problem);
        None
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
