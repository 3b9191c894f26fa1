//! An explanation in words.

use std::time::Duration;

use super::Explanation;
use tollgate_core::algorithm::holds::NoteFigures;
use tollgate_core::decision::{DecidedBy, LimitStatus, Outcome};
use tollgate_core::duration::Shown;
use tollgate_core::plan::{Algorithm, Limit, PolicyAnswer, Rule};

impl Explanation {
    /// One sentence for people.
    pub fn sentence(&self) -> String {
        let decided = self.decided();
        let shadow = match (self.plan.shadow, self.next.outcome) {
            (true, Outcome::ShadowDenied) => {
                "; it passes all the same, because the plan is in shadow mode"
            }
            _ => "",
        };
        let denying = self.denying();
        let open = self.open_holds();
        let mut sentence = format!("{decided}{shadow}{denying}{open}.");
        // The first letter is ASCII in every form above.
        if let Some(first) = sentence.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        sentence
    }

    fn decided(&self) -> String {
        match (&self.store_error, &self.plan.rule) {
            (_, Rule::Unlimited) => {
                format!(
                    "plan {} is unlimited, so every request is allowed and nothing is counted",
                    self.plan.name
                )
            }
            (_, Rule::Blocked) => {
                format!(
                    "plan {} is blocked, so every request is denied and nothing is counted",
                    self.plan.name
                )
            }
            (Some(error), Rule::Limits(_)) => {
                format!("the store did not decide ({error}), so {}", self.policy())
            }
            (None, Rule::Limits(_)) => format!("the next request of cost 1 {}", self.outcome()),
        }
    }

    fn open_holds(&self) -> String {
        let Some(NoteFigures {
            open,
            units,
            first_end_us: Some(first_us),
            ..
        }) = self.holds
        else {
            return String::new();
        };
        let first = Shown(Duration::from_micros(first_us));
        let are = if open == 1 { "hold is" } else { "holds are" };
        format!("; {open} {are} open, of {units} units, and the first lease ends in {first}")
    }

    fn denying(&self) -> String {
        match self.workers_denying {
            0 => String::new(),
            1 => "; 1 worker of this replica remembers a denial, and denies without asking the store for a second at most"
                .to_owned(),
            workers => {
                format!(
                    "; {workers} workers of this replica remember a denial, and deny without asking the store for a second at most"
                )
            }
        }
    }

    /// What the plan's policy does without the store.
    fn policy(&self) -> String {
        let policy = self.plan.on_store_failure;
        let because = format!(
            "because the plan says on_store_failure: {}",
            policy.as_str()
        );
        match policy.answer() {
            PolicyAnswer::Counted if self.next.decided_by == DecidedBy::LocalFallback => {
                format!(
                    "this replica counts in its own memory against its share of the quota: the next request of cost 1 {}",
                    self.outcome()
                )
            }
            PolicyAnswer::Counted if self.plan.limits().is_empty() => {
                "the next request is allowed, because a replica counts no slots in its own memory"
                    .to_owned()
            }
            PolicyAnswer::Counted => {
                "the next request is allowed, because this replica's own memory is full".to_owned()
            }
            PolicyAnswer::Always(outcome, _) => {
                format!("the next request is {}, {because}", outcome.as_str())
            }
        }
    }

    /// What the binding limit does.
    fn outcome(&self) -> String {
        let Some(binding) = self.next.binding() else {
            return "is decided by no limit".to_owned();
        };
        let LimitStatus {
            name,
            remaining,
            capacity,
            retry_after_us,
            blocked_for_us,
            ..
        } = binding;
        if *blocked_for_us > 0 {
            let left = shown(*blocked_for_us);
            return format!("is denied: limit {name} has blocked this key for {left} more");
        }
        let mut limits = self.plan.limits().iter();
        let limit = limits.find(|limit| limit.name() == name);
        let mut explained = self.limits.iter();
        let explained = explained.find(|explained| explained.status.name == *name);
        let used = explained.map_or(0, |explained| explained.used);
        let what = match limit.map(Limit::algorithm) {
            Some(Algorithm::TokenBucket { .. }) => {
                format!("{remaining} of {capacity} tokens are there")
            }
            None if binding.is_of_slots() => {
                format!("{used} of {} slots are taken", binding.limit)
            }
            _ => format!("{used} of {} units are used", binding.limit),
        };
        match (self.next.outcome, retry_after_us) {
            (Outcome::Allowed, _) => format!(
                "is allowed: in limit {name}, which binds, {what} and {remaining} can be taken now"
            ),
            (_, Some(wait_us)) => format!(
                "is denied by limit {name}: {what}, and it could pass in {}",
                shown(*wait_us)
            ),
            _ => format!("is denied by limit {name}: {what}, and no wait helps"),
        }
    }
}

/// A wait for people, rounded up to a millisecond.
fn shown(us: u64) -> Shown {
    Shown(Duration::from_millis(us.div_ceil(1_000)))
}
