//! Holds, records, and requests with an id: which plan decides, what the store answers, and what is told where it does not.
//!
//! They neither use nor fill the remembered denials. Where units come back, denials of the key are forgotten.

mod in_turn;
mod plan_of_hold;
mod results;

use std::sync::Arc;
use std::time::Duration;

use super::caller_deadline::{CallerDeadlinePassed, within_deadline};
use super::store_call::StoreAnswer;
use super::{
    CallerDeadline, CountedPlan, Found, FoundBy, Limiter, LimiterCounter, Refusal, WorkerPlans,
};
pub use results::{Extended, Recorded, Reserved, SettledHold};
use tollgate_core::algorithm::Mode;
use tollgate_core::algorithm::holds::{
    HoldCall, HoldEvent, HoldState, HoldVerdict, IfUnknown, SettleOutcome, Settlement,
};
use tollgate_core::decision::Decision;
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::{Plan, QUOTA_MAX, Rule};
use tollgate_store::{Check, HoldCheck, Store, StoreDeadline, StoreError};

/// Longest id of a request, in bytes. A UUID takes 36, and two of them with a name fit.
pub const REQUEST_ID_BYTES_MAX: usize = 64;

/// The id by which a call may be sent again: 1 to [`REQUEST_ID_BYTES_MAX`] bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RequestId(Box<str>);

impl RequestId {
    /// Checks an id. Errors: a sentence for the caller.
    pub fn new(id: &str) -> Result<Self, String> {
        match id.len() {
            0 => Err(format!(
                "request_id is empty: send 1 to {REQUEST_ID_BYTES_MAX} bytes that name this call"
            )),
            1..=REQUEST_ID_BYTES_MAX => Ok(Self(id.into())),
            bytes => Err(format!(
                "request_id has {bytes} bytes: it has at most {REQUEST_ID_BYTES_MAX}"
            )),
        }
    }

    /// An id that a call may leave out; empty is none. Errors: as for [`Self::new`].
    pub fn optional(id: &str) -> Result<Option<Self>, String> {
        if id.is_empty() {
            return Ok(None);
        }
        Self::new(id).map(Some)
    }

    /// The id, for answers that tell it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<S: Store> Limiter<S> {
    /// Charges units, holds them under an id and takes a slot, if all limits of the plan allow it. A lease that is not stated is the
    /// plan's. Where the store cannot decide, the plan's policy answers, and nothing is held.
    pub async fn reserve(
        &self,
        check: Check<String>,
        (id, ttl): (RequestId, Option<Duration>),
        caller: Option<CallerDeadline>,
    ) -> Result<Reserved, Refusal> {
        let (worker_plans, found) = self.find_for_holds(check)?;
        let plan = &found.check.plan;
        let ttl_us = plan.holds.lease_us(ttl);
        // A plan without limits holds nothing, so that it may be switched while calls run.
        let ttl_us = if counts(plan) { ttl_us? } else { 0 };
        // No limit of units lets more pass, and one of slots does not look at it.
        let cost = found.check.cost.units().min(QUOTA_MAX);
        let call = HoldCall::Reserve { cost, ttl_us };
        self.decide_by_id((&worker_plans, found), (id, call), caller)
            .await
    }

    /// Decides a check that may be sent again under this id.
    pub async fn decide_with_id(
        &self,
        check: Check<String>,
        id: RequestId,
        caller: Option<CallerDeadline>,
    ) -> Result<(Decision, Arc<Plan>), Refusal> {
        let (worker_plans, found) = self.find_for_holds(check)?;
        needs_no_reserve(&found.check.plan)?;
        let call = HoldCall::Charge {
            cost: found.check.cost.units(),
        };
        let decided = self.decide_by_id((&worker_plans, found), (id, call), caller);
        let Reserved { decision, plan, .. } = decided.await?;
        Ok((decision, plan))
    }

    /// Ends a hold with what was used; unset: as many units as were held.
    pub async fn settle(
        &self,
        subject: (Key, String),
        how: (RequestId, Option<u64>, IfUnknown),
        caller: Option<CallerDeadline>,
    ) -> Result<SettledHold, Refusal> {
        let (key, plan) = subject;
        let found_in = self.find_for_holds(peek_check(key, plan))?;
        self.settle_found(found_in, how, caller).await
    }

    /// Ends a hold of a stream, which this plan decided, whichever decides for the key now.
    pub async fn settle_held(
        &self,
        (key, asked, held_by): (Key, String, &Arc<Plan>),
        how: (RequestId, Option<u64>, IfUnknown),
    ) -> Result<SettledHold, Refusal> {
        let worker_plans = self.worker.worker_plans();
        let plan = worker_plans.plan_of_hold(&key, held_by);
        let check = Check {
            key,
            plan,
            cost: Cost::ONE,
            mode: Mode::Peek,
        };
        let found = Found {
            check,
            // A settle counts for no plan.
            plan_index: 0,
            found_by: FoundBy {
                is_other: *asked != *held_by.name,
                overridden: None,
            },
        };
        self.settle_found((worker_plans, found), how, None).await
    }

    async fn settle_found(
        &self,
        (worker_plans, mut found): (Arc<WorkerPlans>, Found),
        (id, actual, if_unknown): (RequestId, Option<u64>, IfUnknown),
        caller: Option<CallerDeadline>,
    ) -> Result<SettledHold, Refusal> {
        if !counts(&found.check.plan) {
            return Ok(nothing_settled(
                self.without_limits(&found),
                found.check.plan,
            ));
        }
        let call = HoldCall::Settle { actual, if_unknown };
        let found_in = (&*worker_plans, &mut found);
        let verdict = self.confirm(found_in, (Some(id), call), caller).await?;
        let HoldEvent::Settled(settlement) = verdict.event else {
            return Err(Refusal::not_understood());
        };
        let plan = found.check.plan.clone();
        let decision = self.decision(&found, &verdict.view, Cost::ONE);
        let mut returned = settlement.returned.to_vec();
        if let Some(slots) = plan.concurrency() {
            returned.insert(slots.place().min(returned.len()), 0);
        }
        Ok(SettledHold {
            settlement,
            decision,
            plan,
            returned,
        })
    }

    /// Prolongs the lease of an open hold.
    pub async fn extend(
        &self,
        (key, plan): (Key, String),
        (id, ttl): (RequestId, Option<Duration>),
        caller: Option<CallerDeadline>,
    ) -> Result<Extended, Refusal> {
        let (worker_plans, mut found) = self.find_for_holds(peek_check(key, plan))?;
        if !counts(&found.check.plan) {
            return Ok(Extended {
                state: HoldState::Unknown,
                expires_in_us: None,
            });
        }
        let ttl_us = found.check.plan.holds.lease_us(ttl)?;
        let call = HoldCall::Extend { ttl_us };
        let found_in = (&*worker_plans, &mut found);
        let verdict = self.confirm(found_in, (Some(id), call), caller).await?;
        match verdict.event {
            HoldEvent::Extended {
                state,
                expires_in_us,
            } => Ok(Extended {
                state,
                expires_in_us,
            }),
            _ => Err(Refusal::not_understood()),
        }
    }

    /// Charges what has happened, whatever the limits say.
    pub async fn record(
        &self,
        check: Check<String>,
        id: Option<RequestId>,
        caller: Option<CallerDeadline>,
    ) -> Result<Recorded, Refusal> {
        let (worker_plans, mut found) = self.find_for_holds(check)?;
        let plan = found.check.plan.clone();
        if !counts(&plan) {
            let decision = self.without_limits(&found);
            return Ok(Recorded { decision, plan });
        }
        if plan.limits().is_empty() {
            return Err(Refusal::NothingToRecord(plan.name.clone()));
        }
        let cost = found.check.cost.units();
        let found_in = (&*worker_plans, &mut found);
        let verdict = self.confirm(found_in, (id, HoldCall::Record { cost }), caller);
        let verdict = verdict.await?;
        let plan = found.check.plan.clone();
        let mut decision = self.decision(&found, &verdict.view, Cost::ONE);
        decision.is_repeated = matches!(verdict.event, HoldEvent::Repeated { .. });
        self.common.blocks.record(&plan, &decision);
        if !decision.is_repeated {
            self.worker
                .count_recorded(&worker_plans, found.plan_index, &found.check);
        }
        Ok(Recorded { decision, plan })
    }

    /// What a reserve would meet, under a plan with a concurrency limit. Where the store cannot tell, the plan's policy answers.
    pub(super) async fn peek_slots(
        &self,
        (plans, found): (CountedPlan<'_>, &Found),
        caller: Option<CallerDeadline>,
    ) -> Result<Decision, Refusal> {
        if found.check.mode != Mode::Peek {
            needs_no_reserve(&found.check.plan)?;
        }
        if let Some(decision) = self.decide_without_store(plans, &found.check, None) {
            return Ok(decision);
        }
        let cost = found.check.cost;
        let call = HoldCall::Peek {
            cost: cost.units().min(QUOTA_MAX),
        };
        let check = hold_check(found, None, call);
        let asked = self.ask_about_holds(&check, caller, self.store_deadline());
        let (answer, took) = asked.await?;
        match answer {
            Ok(verdict) => {
                let plan = &found.check.plan;
                let mut decision = verdict.view.decision(plan, cost).shadowed_if(plan.shadow);
                self.count(plans, &found.check, &mut decision, took);
                Ok(decision)
            }
            Err(error) => {
                let answer = StoreAnswer::alone(Err(error));
                self.decide_by_answer(plans, &found.check, &answer, (None, took))
            }
        }
    }

    /// Finds the plan that decides, and the plans that it is one of. Errors: there is none.
    pub(super) fn find_for_holds(
        &self,
        check: Check<String>,
    ) -> Result<(Arc<WorkerPlans>, Found), Refusal> {
        let worker_plans = self.worker.worker_plans();
        let found = self.find_or_suggest(&worker_plans, check)?;
        Ok((worker_plans, found))
    }

    /// A reserve, or a charge with an id. A store that fails is answered for by the plan's policy.
    async fn decide_by_id(
        &self,
        (worker_plans, mut found): (&WorkerPlans, Found),
        (id, call): (RequestId, HoldCall),
        caller: Option<CallerDeadline>,
    ) -> Result<Reserved, Refusal> {
        let without_hold = |decision, found: Found| Reserved {
            decision,
            plan: found.check.plan,
            expires_in_us: None,
        };
        let plans = found.counted_in(worker_plans);
        if let Some(decision) = self.decide_without_store(plans, &found.check, None) {
            return Ok(without_hold(decision, found));
        }
        let found_in = (worker_plans, &mut found);
        let asked = self.ask_for_hold(found_in, (Some(id), call), caller);
        let (answer, took) = asked.await?;
        let plans = found.counted_in(worker_plans);
        let verdict = match answer {
            Ok(verdict) => {
                self.common.failures.decided(&*self.common.clock);
                verdict
            }
            Err(error) => {
                let answer = StoreAnswer::alone(Err(error));
                let decided = self.decide_by_answer(plans, &found.check, &answer, (None, took));
                return decided.map(|decision| without_hold(decision, found));
            }
        };
        let (expires_in_us, is_repeated) = match verdict.event {
            HoldEvent::Decided { expires_in_us } => (expires_in_us, false),
            HoldEvent::Repeated { expires_in_us } => (expires_in_us, true),
            _ => return Err(Refusal::not_understood()),
        };
        let plan = found.check.plan.clone();
        let decision = verdict.view.decision(&plan, found.check.cost);
        let mut decision = decision.shadowed_if(plan.shadow);
        decision.is_repeated = is_repeated;
        self.count(plans, &found.check, &mut decision, took);
        Ok(Reserved {
            decision,
            plan,
            expires_in_us,
        })
    }

    /// Carries out a call that no policy answers. Errors: as for [`Self::ask_for_hold`], or the store did not confirm.
    async fn confirm(
        &self,
        (worker_plans, found): (&WorkerPlans, &mut Found),
        call: (Option<RequestId>, HoldCall),
        caller: Option<CallerDeadline>,
    ) -> Result<HoldVerdict, Refusal> {
        let (answer, _) = self
            .ask_for_hold((worker_plans, &mut *found), call, caller)
            .await?;
        answer.map_err(|error| {
            let subject = Some((&found.check.key, &*found.check.plan));
            self.count_failure(subject, &error);
            match error {
                StoreError::Overloaded(_) => Refusal::Overloaded,
                error => Refusal::Unconfirmed(error),
            }
        })
    }

    /// Asks the store, and counts what happened to holds. Returns its answer and how long that took. Where the id is known under another
    /// plan that counts as this one, since an override came or went or the config was edited, it is asked for by that plan. Errors: the id is known for another
    /// call, or the caller's deadline passed.
    async fn ask_for_hold(
        &self,
        (worker_plans, found): (&WorkerPlans, &mut Found),
        (id, call): (Option<RequestId>, HoldCall),
        caller: Option<CallerDeadline>,
    ) -> Result<(Result<HoldVerdict, StoreError>, Duration), Refusal> {
        let mut check = hold_check(found, id, call);
        let deadline = self.store_deadline();
        let (mut answer, mut took) = self.ask_about_holds(&check, caller, deadline).await?;
        if let Ok(verdict) = &answer
            && let HoldEvent::Refused(known) = &verdict.event
            && let Some(plan) = found.known_under(worker_plans, (known, &call))
        {
            check.plan = plan;
            if let HoldCall::Extend { ttl_us } = &mut check.call {
                *ttl_us = check.plan.holds.max_ttl_us().min(*ttl_us);
            }
            let caller = caller.map(|caller| caller.reduced_by(took));
            let left = StoreDeadline(deadline.0.saturating_sub(took));
            let again = self.ask_about_holds(&check, caller, left).await?;
            (answer, took) = (again.0, took + again.1);
        }
        let plan = &found.check.plan;
        if let Ok(verdict) = &answer {
            self.common.holds.record(&plan.name, &call, verdict);
            if gave_back(verdict) {
                self.forget_denials(&plan.counts_as, &check.key);
            }
            if let HoldEvent::Refused(known) = &verdict.event {
                return Err(Refusal::KnownId(Box::new(known.clone())));
            }
        }
        Ok((answer, took))
    }

    /// Makes one call to the store about holds, and counts it. Returns its answer and how long that took.
    async fn ask_about_holds(
        &self,
        check: &HoldCheck,
        caller: Option<CallerDeadline>,
        deadline: StoreDeadline,
    ) -> Result<(Result<HoldVerdict, StoreError>, Duration), CallerDeadlinePassed> {
        let started_at = self.call_start();
        let waiting = self.count_waiting(started_at, 1);
        let asked = self.store.decide_hold(check, deadline);
        let answer = within_deadline(caller, deadline, asked).await;
        let answer = answer.inspect_err(|CallerDeadlinePassed| {
            let deadlines = LimiterCounter::CallerDeadlines;
            self.worker.metrics.count(deadlines, 1);
        })?;
        drop(waiting);
        Ok((answer, self.record_call_time(started_at)))
    }

    /// Where a key stands, as a peek of this cost.
    fn decision(
        &self,
        found: &Found,
        view: &tollgate_core::algorithm::holds::KeyView,
        cost: Cost,
    ) -> Decision {
        let plan = &found.check.plan;
        let mut decision = view.decision(plan, cost).shadowed_if(plan.shadow);
        super::note(found.found_by, plan, &mut decision);
        decision
    }

    /// What a plan without limits answers to a peek.
    fn without_limits(&self, found: &Found) -> Decision {
        let plan = &found.check.plan;
        let by_plan = super::without_state(plan, Cost::ONE);
        let mut decision = by_plan.unwrap_or_else(super::fail_open);
        super::note(found.found_by, plan, &mut decision);
        decision
    }
}

/// Errors: the plan has a concurrency limit, so only a reserve may ask for it.
pub(super) fn needs_no_reserve(plan: &Plan) -> Result<(), Refusal> {
    match plan.concurrency() {
        None => Ok(()),
        Some(_) => Err(Refusal::NeedsReserve(plan.name.clone())),
    }
}

/// Whether units came back, so that a request that was denied may pass.
fn gave_back(verdict: &HoldVerdict) -> bool {
    let settled = match &verdict.event {
        HoldEvent::Settled(settlement) => settlement.returned.iter().any(|units| *units > 0),
        _ => false,
    };
    settled || verdict.ended.units > 0
}

pub(super) fn counts(plan: &Plan) -> bool {
    matches!(plan.rule, Rule::Limits(_))
}

pub(super) fn peek_check(key: Key, plan: String) -> Check<String> {
    Check {
        key,
        plan,
        cost: Cost::ONE,
        mode: Mode::Peek,
    }
}

fn hold_check(found: &Found, id: Option<RequestId>, call: HoldCall) -> HoldCheck {
    HoldCheck {
        key: found.check.key.clone(),
        plan: found.check.plan.clone(),
        id: id.map_or_else(Box::default, |RequestId(id)| id),
        call,
    }
}

fn nothing_settled(decision: Decision, plan: Arc<Plan>) -> SettledHold {
    SettledHold {
        settlement: Settlement {
            outcome: SettleOutcome::Unknown,
            held: 0,
            actual: 0,
            returned: smallvec::SmallVec::new(),
            excess: 0,
        },
        decision,
        plan,
        returned: Vec::new(),
    }
}
