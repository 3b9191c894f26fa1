//! The record of a run: every call with its times, the replica that was asked, and the answer; and the faults of the store.
//!
//! All times are microseconds since 1970 on one clock, which is also Redis's, as everything runs on one machine.

use std::collections::BTreeMap;

use tollgate::decision::{DecidedBy, Outcome};
use tollgate::plan::Plan;

#[derive(Debug, Clone, Default)]
pub struct History {
    /// The plans that were enforced, by name.
    pub plans: BTreeMap<String, Plan>,
    /// Number of replicas by which local shares are computed.
    pub replicas: u64,
    pub calls: Vec<Call>,
    /// When Redis lost its data.
    pub losses: Vec<Loss>,
    /// When replicas were killed, by their `life`.
    pub ends_us: BTreeMap<usize, u64>,
    /// Changes of the overrides, in their order.
    pub changes: Vec<Change>,
    /// When replicas may not have learned of changes: from when to when a fault lasted, in order.
    pub faults: Vec<(u64, u64)>,
}

/// One request. Requests of one batch have the same `life`, `batch` and times. They are decided in the order of `index`.
#[derive(Debug, Clone)]
pub struct Call {
    pub key: String,
    /// The plan that was asked for.
    pub plan: String,
    pub cost: u64,
    /// Its cost and the costs of those before it that count for the same subject in its joint decision.
    pub tested: u64,
    /// What its joint decision said as a whole, if it was a request of one.
    pub joint: Option<Joint>,
    /// Number of the server process that was asked. A replica that is started again has another, and no memory of the one before.
    pub life: usize,
    pub batch: usize,
    pub index: usize,
    pub sent_us: u64,
    pub answered_us: u64,
    /// The answer; `Err` has the client's error if there was none.
    pub fate: Result<Answer, String>,
}

#[derive(Debug, Clone)]
pub struct Answer {
    pub allowed: bool,
    pub outcome: Outcome,
    pub by: DecidedBy,
    /// The plan that decided, if it is another one than the plan that was asked for.
    pub plan: Option<String>,
    /// Time until the call could pass by all limits of the plan.
    pub retry_us: Option<u64>,
    /// One for each limit of the plan that decided, in its order; empty if no state was read.
    pub limits: Vec<Status>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub remaining: u64,
    pub retry_us: Option<u64>,
    pub reset_us: u64,
}

/// The answer to a joint decision as a whole; `None` if there was none.
pub type Joint = Option<Whole>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole {
    pub allowed: bool,
    pub outcome: Outcome,
    pub retry_us: Option<u64>,
}

/// A change of the one override that a plan has, which all keys of the plan fall under.
#[derive(Debug, Clone)]
pub struct Change {
    pub plan: String,
    /// What decides from then on; `None` if the override is deleted.
    pub use_plan: Option<String>,
    /// The server process that was asked.
    pub life: usize,
    pub sent_us: u64,
    /// When it was confirmed; `None` if it may have been made or not.
    pub answered_us: Option<u64>,
}

/// Redis was killed between these times and lost its data. After `to_us` it begins empty.
#[derive(Debug, Clone, Copy)]
pub struct Loss {
    pub from_us: u64,
    pub to_us: u64,
}

impl Call {
    /// The answer, if the store gave it.
    pub fn stored(&self) -> Option<&Answer> {
        self.fate
            .as_ref()
            .ok()
            .filter(|answer| answer.by == DecidedBy::Store)
    }

    pub fn granted_by(&self, by: DecidedBy) -> bool {
        self.fate
            .as_ref()
            .is_ok_and(|answer| answer.by == by && answer.outcome == Outcome::Allowed)
    }

    pub fn denied_by(&self, by: DecidedBy) -> bool {
        self.fate
            .as_ref()
            .is_ok_and(|answer| answer.by == by && answer.outcome == Outcome::Denied)
    }

    /// Whether the store may have charged the call although the caller got another answer. The request may have reached the
    /// store, and only the store's answer may be lost.
    pub fn may_be_charged(&self) -> bool {
        self.fate.as_ref().map_or(true, |answer| {
            matches!(
                answer.by,
                DecidedBy::FailOpen | DecidedBy::FailClosed | DecidedBy::LocalFallback
            )
        })
    }
}

impl Call {
    /// The plan that decided, if there was an answer.
    pub fn decided_by_plan(&self) -> Option<&str> {
        let answer = self.fate.as_ref().ok()?;
        Some(answer.plan.as_deref().unwrap_or(&self.plan))
    }

    /// The plans by which it may have been charged.
    pub fn plans<'a>(&'a self, history: &'a History) -> Vec<&'a str> {
        if let Some(plan) = self.decided_by_plan() {
            return vec![plan];
        }
        let changes = history
            .changes
            .iter()
            .filter(|change| change.plan == self.plan);
        let mut plans: Vec<&str> = changes
            .filter_map(|change| change.use_plan.as_deref())
            .collect();
        plans.push(&self.plan);
        plans.sort_unstable();
        plans.dedup();
        plans
    }
}

impl History {
    /// Whether Redis may have lost its data between these times.
    pub fn lost_within(&self, from_us: u64, to_us: u64) -> bool {
        self.losses
            .iter()
            .any(|loss| loss.from_us <= to_us && loss.to_us >= from_us)
    }
}

/// A rule that a history violates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    pub what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// More was granted than the limit allows.
    OverLimit,
    /// A call was denied although its cost fitted.
    NoCause,
    /// Two decisions whose places in the order contradict each other, or units charged that no call asked for.
    Order,
    /// A decision made before its question was sent, or after its answer came.
    Time,
    /// The numbers of an answer do not agree with what was charged.
    Reading,
    /// A decider that may not answer in this case, or an answer that contradicts the policy.
    Policy,
    /// A call failed although its replica was not killed.
    Failed,
    /// Requests of a joint decision were not decided as one.
    Joint,
    /// Another plan decided than the overrides say.
    Override,
}

impl Violation {
    pub fn new(rule: Rule, call: &Call, why: impl std::fmt::Display) -> Self {
        Self {
            rule,
            what: format!("{why}: {call:?}"),
        }
    }
}
