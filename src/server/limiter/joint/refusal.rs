//! Why requests are not decided together.

use std::fmt;

use crate::limiter::Refusal;
use tollgate_core::plan::UnknownPlan;

/// Why a joint decision was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JointRefusal {
    /// The request that is at fault, if it is one.
    pub request: Option<usize>,
    /// What is wrong with it, or with the whole.
    pub refusal: Refusal,
}

impl fmt::Display for JointRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.sentence(|index| format!("requests[{index}]")))
    }
}

impl JointRefusal {
    /// What is wrong, and what would be right, where requests have these names.
    pub fn sentence(&self, name: impl Fn(usize) -> String) -> String {
        let Some(index) = self.request else {
            return self.refusal.to_string();
        };
        let Refusal::UnknownPlan(UnknownPlan {
            name: plan,
            nearest,
        }) = &self.refusal
        else {
            return format!("{}: {}", name(index), self.refusal);
        };
        let right = match nearest {
            Some(nearest) => format!("did you mean {nearest:?}?"),
            None => "`tollgate plans` lists all plans".to_owned(),
        };
        format!(
            "{}.plan is {plan:?}, which is not a plan; {right}",
            name(index)
        )
    }
}

impl From<Refusal> for JointRefusal {
    fn from(refusal: Refusal) -> Self {
        Self {
            request: None,
            refusal,
        }
    }
}
