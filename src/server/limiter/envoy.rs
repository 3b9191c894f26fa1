//! Decides the descriptors of Envoy's Rate Limit Service: finds each one's plan and key by the rules, and asks the store for all
//! of them together.
//!
//! Unlike other callers, a proxy gets an answer in any case, by each plan's policy where the store is late for the proxy's
//! deadline. A proxy that gets none lets the request pass. It chooses its deadline once and for all requests, so no request
//! can choose the policy's answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

mod descriptor;
mod joint;
mod refund;

use futures_util::future::join;

use super::holds::needs_no_reserve;
use super::joint::TOO_LATE;
use super::metrics::WorkerPlans;
use super::{CallerDeadline, CountedPlan, FoundBy, Limiter, Refusal, note};
pub use descriptor::{Descriptor, DescriptorDecision, EnvoyDecisions, EnvoyRefusal};
use tollgate_core::algorithm::Mode;
use tollgate_core::decision::{DecidedBy, Decision, Outcome};
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::envoy::{Domain, LimitOverride, Unmatched, key_of_all};
use tollgate_core::plan::{Plan, QUOTA_MAX};
use tollgate_store::{Check, Refund, Store};

/// A descriptor with its rule found.
struct FoundDescriptor {
    /// The plan that decides; none where no rule matched.
    plan: Option<Arc<Plan>>,
    /// The index of that plan, if it is one of the config.
    plan_index: Option<usize>,
    found_by: FoundBy,
    limit_override: Option<LimitOverride>,
    refunds: bool,
    is_unmatched: bool,
    state: DescriptorState,
}

/// How far a descriptor is decided.
enum DescriptorState {
    /// The plan is to be asked this.
    Check(Check),
    /// Units are to be given back to the plan.
    Refund(Refund),
    /// No plan decides it.
    Unmatched,
    /// The store has to decide the check at this index.
    Pending(usize),
    Decided(Decision),
}

/// Where descriptors are decided: the plans, and the domain.
#[derive(Clone, Copy)]
struct DecidingDomain<'a> {
    worker_plans: &'a WorkerPlans,
    name: &'a str,
    domain: &'a Domain,
    /// How long to wait for the store, if not for its whole deadline.
    limit: Option<Duration>,
}

impl<S: Store> Limiter<S> {
    /// Decides descriptors by the rules of a domain: each by itself, all in one store call; or together, by `envoy.joint`. The
    /// answer comes before the caller's deadline; see [`CallerDeadline::answered_before`].
    ///
    /// Errors: [`EnvoyRefusal`] for all of them together.
    pub async fn decide_descriptors(
        &self,
        domain: &str,
        descriptors: Vec<Descriptor>,
        caller: Option<CallerDeadline>,
    ) -> Result<EnvoyDecisions, EnvoyRefusal> {
        let worker_plans = self.worker.worker_plans();
        let rules = worker_plans.snapshot.plans().envoy();
        if rules.is_empty() {
            return Err(EnvoyRefusal::NotConfigured);
        }
        if caller.is_some_and(|caller| caller.left().is_zero()) {
            return Err(Refusal::CallerDeadline.into());
        }
        let place = DecidingDomain {
            worker_plans: &worker_plans,
            name: domain,
            domain: rules.domain(domain)?,
            limit: caller
                .filter(|_| !self.store.is_embedded())
                .and_then(|caller| caller.answered_before(self.store_deadline())),
        };
        let found = descriptors
            .into_iter()
            .map(|descriptor| place.find(descriptor));
        let found: Vec<FoundDescriptor> = found.collect();
        // The config names no such plan for Envoy, but an override may put one in its place.
        for plan in found.iter().filter_map(|found| found.plan.as_deref()) {
            needs_no_reserve(plan)?;
        }
        let decisions = if rules.joint {
            Box::pin(self.decide_jointly(place, found)).await?
        } else {
            self.decide_each(place, found).await?
        };
        Ok(EnvoyDecisions {
            decisions,
            body: rules.body,
        })
    }

    /// Decides each descriptor by itself: all that ask in one store call, and at the same time those that give units back.
    async fn decide_each(
        &self,
        place: DecidingDomain<'_>,
        mut found: Vec<FoundDescriptor>,
    ) -> Result<Vec<DescriptorDecision>, Refusal> {
        let started_at = self.call_start();
        let mut checks = Vec::with_capacity(found.len());
        let mut refunds = Vec::new();
        let mut refunds_at = Vec::new();
        for (index, found) in found.iter_mut().enumerate() {
            let check = match std::mem::replace(&mut found.state, DescriptorState::Unmatched) {
                DescriptorState::Check(check) => check,
                DescriptorState::Refund(refund) if refund.plan.limits().is_empty() => {
                    found.decide(Decision::uncounted(Outcome::Allowed, DecidedBy::Plan, None));
                    continue;
                }
                DescriptorState::Refund(refund) => {
                    refunds_at.push(index);
                    refunds.push(refund);
                    continue;
                }
                _ => continue,
            };
            let plans = found.counted_in(place);
            found.state = match self.decide_without_store(plans, &check, started_at) {
                Some(decision) => DescriptorState::Decided(decision),
                None => {
                    checks.push(check);
                    DescriptorState::Pending(checks.len() - 1)
                }
            };
        }
        let (given_back, decided) = join(
            self.refund_all(place, &refunds),
            self.decide_pending(place, &mut found, (&checks, started_at)),
        )
        .await;
        decided?;
        for (index, decision) in refunds_at.into_iter().zip(given_back?) {
            found[index].decide(decision);
        }
        let decided = found.into_iter().map(|found| self.finish(place, found));
        Ok(decided.collect())
    }

    /// Asks the store about all checks, and sets the decisions on them. Where the answers would come too late for the caller, each
    /// plan's policy decides. That is not a fault of the store.
    async fn decide_pending(
        &self,
        place: DecidingDomain<'_>,
        found: &mut [FoundDescriptor],
        (checks, started_at): (&[Check], Option<Instant>),
    ) -> Result<(), Refusal> {
        if checks.is_empty() {
            return Ok(());
        }
        let waiting = self.count_waiting(started_at, checks.len());
        let mut answers = Box::pin(self.ask(checks, place.limit)).await;
        let took = self.record_call_time(started_at);
        drop(waiting);
        for found in found {
            let DescriptorState::Pending(check_index) = found.state else {
                continue;
            };
            let plans = found.counted_in(place);
            let check = &checks[check_index];
            // The deny cache knows a plan by its address, and that of an override is made for one call.
            let remembered_at = started_at.filter(|_| found.limit_override.is_none());
            let decision = match &mut answers {
                Ok(answers) => {
                    let answer = answers.take(check);
                    self.decide_by_answer(plans, check, &answer, (remembered_at, took))?
                }
                Err(_) => {
                    let snapshot = &place.worker_plans.snapshot;
                    let mut decision = self.answer_without_store(snapshot, check, &TOO_LATE);
                    self.count(plans, check, &mut decision, took);
                    decision
                }
            };
            found.state = DescriptorState::Decided(decision);
        }
        Ok(())
    }

    /// The decision on a descriptor. One that no rule matches is counted.
    fn finish(&self, place: DecidingDomain<'_>, found: FoundDescriptor) -> DescriptorDecision {
        let mut decision = match found.state {
            DescriptorState::Decided(decision) => decision,
            // Nothing else is left of those that no plan decides.
            DescriptorState::Unmatched
            | DescriptorState::Check(_)
            | DescriptorState::Refund(_)
            | DescriptorState::Pending(_) => place.unmatched(),
        };
        if found.refunds {
            decision.outcome = Outcome::Allowed;
        }
        if found.is_unmatched {
            self.worker.metrics.count_unmatched(decision.allowed());
        }
        DescriptorDecision {
            decision,
            plan: found.plan,
            limit_override: found.limit_override,
            refunds: found.refunds,
        }
    }
}

impl DecidingDomain<'_> {
    /// Finds what decides a descriptor.
    fn find(&self, descriptor: Descriptor) -> FoundDescriptor {
        let Descriptor {
            entries,
            units,
            refunds,
            limit_override,
        } = descriptor;
        let rule = self.domain.find(&entries).map(|(_, rule)| rule);
        let plan = match (rule, self.domain.unmatched()) {
            (Some(rule), _) => Some(&rule.plan),
            (None, Unmatched::Plan(plan)) => Some(plan),
            (None, Unmatched::Allow | Unmatched::Deny) => None,
        };
        let of_config = plan.and_then(|plan| self.worker_plans.snapshot.plans().find_if_any(plan));
        let key = match (rule, of_config) {
            (Some(rule), _) => rule.counted_key(&entries),
            (None, Some(_)) => key_of_all("", &entries),
            // Counted by no plan of the config, in a group that all domains share.
            (None, None) => key_of_all(self.name, &entries),
        };
        let (plan_index, plan, found_by) =
            plan_for(self.worker_plans, of_config, (&key, limit_override));
        let state = match &plan {
            None => DescriptorState::Unmatched,
            Some(plan) => asked_of(plan.clone(), key, units, refunds),
        };
        FoundDescriptor {
            plan,
            plan_index,
            found_by,
            limit_override,
            refunds,
            is_unmatched: rule.is_none(),
            state,
        }
    }

    /// The decision on a descriptor that no plan decides.
    fn unmatched(&self) -> Decision {
        let outcome = if *self.domain.unmatched() == Unmatched::Deny {
            Outcome::Denied
        } else {
            Outcome::Allowed
        };
        Decision::uncounted(outcome, DecidedBy::Plan, None)
    }
}

impl<S> Limiter<S> {
    /// Whether the config in force has domains.
    pub fn serves_envoy(&self) -> bool {
        !self
            .worker
            .worker_plans()
            .snapshot
            .plans()
            .envoy()
            .is_empty()
    }
}

impl FoundDescriptor {
    /// Takes the decision on what was given back.
    fn decide(&mut self, mut decision: Decision) {
        if let (Some(plan), Some(_)) = (&self.plan, self.plan_index) {
            note(self.found_by, plan, &mut decision);
        }
        self.state = DescriptorState::Decided(decision);
    }

    fn counted_in<'a>(&self, place: DecidingDomain<'a>) -> CountedPlan<'a> {
        CountedPlan {
            worker_plans: place.worker_plans,
            index: self.plan_index,
            found_by: self.found_by,
        }
    }
}

/// The plan that decides a descriptor: that of its own limit, or what the config has for the key.
fn plan_for(
    worker_plans: &WorkerPlans,
    of_config: Option<(usize, &Arc<Plan>)>,
    (key, limit_override): (&Key, Option<LimitOverride>),
) -> (Option<usize>, Option<Arc<Plan>>, FoundBy) {
    let mut found_by = FoundBy::default();
    if let Some(limit) = limit_override {
        let (index, plan) = of_config.unzip();
        let plan = limit.plan(plan.map(AsRef::as_ref));
        return (index, Some(Arc::new(plan)), found_by);
    }
    let decides = |asked| worker_plans.decides(asked, key, &mut found_by);
    let (index, plan) = of_config.map(decides).unzip();
    (index, plan.cloned(), found_by)
}

/// What a plan is asked for so many units. To ask without taking is to ask whether one could be taken.
fn asked_of(plan: Arc<Plan>, key: Key, units: u64, refunds: bool) -> DescriptorState {
    // No limit counts more than this, so no more can be given back.
    let most = if refunds { QUOTA_MAX } else { u64::MAX };
    match Cost::new(units.min(most)) {
        Ok(units) if refunds => DescriptorState::Refund(Refund { key, plan, units }),
        cost => DescriptorState::Check(Check {
            key,
            plan,
            cost: cost.unwrap_or(Cost::ONE),
            mode: if units == 0 { Mode::Peek } else { Mode::Charge },
        }),
    }
}

#[cfg(test)]
mod tests;
