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
}

/// One request. Requests of one batch have the same `life`, `batch` and times. They are decided in the order of `index`.
#[derive(Debug, Clone)]
pub struct Call {
    pub key: String,
    pub plan: String,
    pub cost: u64,
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
    /// One for each limit of the plan, in its order; empty if no state was read.
    pub limits: Vec<Status>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    pub remaining: u64,
    pub retry_us: Option<u64>,
    pub reset_us: u64,
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
}

impl Violation {
    pub fn new(rule: Rule, call: &Call, why: impl std::fmt::Display) -> Self {
        Self {
            rule,
            what: format!("{why}: {call:?}"),
        }
    }
}
