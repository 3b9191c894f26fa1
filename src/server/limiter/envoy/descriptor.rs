//! Descriptors and the decisions on them, as a proxy's service sees them.

use std::sync::Arc;

use crate::limiter::Refusal;
use tollgate_core::decision::Decision;
use tollgate_core::joint::REQUESTS_MAX;
use tollgate_core::plan::Plan;
use tollgate_core::plan::envoy::{DenialBody, Entry, LimitOverride, UnknownDomain};

/// One descriptor to decide.
#[derive(Debug, Clone)]
pub struct Descriptor {
    /// Names and values that describe the request.
    pub entries: Vec<Entry>,
    /// Units to take; 0 asks without taking any.
    pub units: u64,
    /// Whether the units are given back instead. Never denied.
    pub refunds: bool,
    /// A limit to decide by in place of the plan.
    pub limit_override: Option<LimitOverride>,
}

/// The decision on one descriptor.
#[derive(Debug, Clone)]
pub struct DescriptorDecision {
    /// The decision.
    pub decision: Decision,
    /// The plan that decided; `None` where no rule matched and nothing was counted.
    pub plan: Option<Arc<Plan>>,
    /// The limit that the descriptor brought along.
    pub limit_override: Option<LimitOverride>,
    /// Whether units were given back, so that the decision says nothing of the request.
    pub refunds: bool,
}

/// The decisions on all descriptors of a call.
#[derive(Debug, Clone)]
pub struct EnvoyDecisions {
    /// One for each descriptor, in their order.
    pub decisions: Vec<DescriptorDecision>,
    /// The body for a client that is denied.
    pub body: DenialBody,
}

impl EnvoyDecisions {
    /// Whether the request may pass.
    pub fn allowed(&self) -> bool {
        self.decisions
            .iter()
            .all(|decided| decided.decision.allowed())
    }

    /// The decision to tell the client: a denial before others, of denials the one with the longest wait, of others the one
    /// with the smallest remaining share, of equals the first. `None` if nothing but refunds was asked for.
    pub fn binding(&self) -> Option<&DescriptorDecision> {
        let asked = self.decisions.iter().filter(|decided| !decided.refunds);
        asked.reduce(|binding, other| {
            if other.binds_more_than(binding) {
                other
            } else {
                binding
            }
        })
    }
}

impl DescriptorDecision {
    fn binds_more_than(&self, other: &Self) -> bool {
        // A denial without a known wait is the longest.
        let wait_us = |decision: &Decision| {
            decision
                .denies()
                .then(|| decision.key_status().retry_after_us.unwrap_or(u64::MAX))
        };
        match (wait_us(&self.decision), wait_us(&other.decision)) {
            (None, None) => match (self.decision.binding(), other.decision.binding()) {
                (Some(mine), Some(others)) => mine.binds_more_than(others),
                (mine, others) => mine.is_some() && others.is_none(),
            },
            (mine, others) => mine > others,
        }
    }
}

/// Why descriptors got no decisions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvoyRefusal {
    /// The config has no domains.
    #[error(
        "the config of this server has no envoy.domains, so it does not serve Envoy's rate limit service"
    )]
    NotConfigured,
    /// The domain is not in the config.
    #[error(transparent)]
    UnknownDomain(#[from] UnknownDomain),
    /// More descriptors than a joint decision has requests.
    #[error(
        "{0} descriptors would be decided together, by a rule, a plan of unmatched or a limit of their own: send {REQUESTS_MAX} at most"
    )]
    TooManyTogether(usize),
    /// As for all requests.
    #[error(transparent)]
    Refused(#[from] Refusal),
}
