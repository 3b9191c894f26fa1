//! Requests with an id, and those about holds. They have calls of their own, of another script.

use super::{Call, Group, ScriptRequest};
use crate::redis::{name, script_codec};
use crate::{Check, HoldCheck, LeaseCheck, Refund, StoreError};
use std::sync::Arc;
use std::time::Instant;
use tollgate_core::algorithm::holds::{
    EndedHolds, HoldCall, HoldVerdict, LeaseCall, LeaseVerdict, NoteFigures,
};
use tollgate_core::algorithm::{GivenBack, Mode, Verdict};
use tollgate_core::key::Key;
use tollgate_core::plan::Plan;

/// Work of a call with an id, besides that of deciding. A key may have a thousand holds, and to parse each takes more than a microsecond.
/// So the script counts itself what it does, and leaves requests to the next call; see `script/holds.lua`.
const HOLD_WORK: usize = 28;

/// What a request asks with an id, or of holds.
#[derive(Debug)]
pub(in crate::redis) struct HoldRequest {
    /// Empty for none.
    pub(in crate::redis) id: Box<str>,
    pub(in crate::redis) ask: HoldAsk,
}

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub(in crate::redis) enum HoldAsk {
    Call(HoldCall),
    /// A request without an id, where holds may have to end first.
    Beside(Mode),
    /// A refund, which is noted for them.
    Refund,
    Figures,
    /// A call of a stream about its hold.
    Lease(LeaseCall),
}

/// The answer to that.
#[derive(Debug, Clone)]
pub(in crate::redis) enum HoldAnswer {
    Hold(Box<HoldVerdict>),
    Verdict(Verdict),
    GivenBack(Box<GivenBack>),
    Figures(NoteFigures),
    Lease(LeaseVerdict),
    /// It is to be asked again, since the call had much to do. Nothing was decided, but some holds may have ended.
    Later(EndedHolds),
}

impl HoldAnswer {
    /// The same, where so many holds had ended for it before.
    pub(in crate::redis) fn with_ended(mut self, ended: EndedHolds) -> Self {
        match &mut self {
            Self::Hold(verdict) => verdict.ended += ended,
            Self::Lease(verdict) => verdict.ended += ended,
            Self::Later(_) | Self::Verdict(_) | Self::GivenBack(_) | Self::Figures(_) => {}
        }
        self
    }
}

impl ScriptRequest {
    /// The request for a call with an id, under a name that begins with `prefix`.
    pub(in crate::redis) fn for_hold(check: &HoldCheck, prefix: &str, until: Instant) -> Self {
        let (cost, mode) = match check.call {
            HoldCall::Reserve { cost, .. }
            | HoldCall::Charge { cost }
            | HoldCall::Record { cost } => (cost, Mode::Charge),
            HoldCall::Peek { cost } => (cost, Mode::Peek),
            HoldCall::Settle { .. } | HoldCall::Extend { .. } => (1, Mode::Charge),
        };
        let name = name::state_name(prefix, &check.plan.counts_as, &check.key);
        let request = Self::named(name, check.plan.clone(), cost, mode, until);
        request.asking(check.id.clone(), HoldAsk::Call(check.call))
    }

    /// The request for a call of a stream about its hold.
    pub(in crate::redis) fn for_lease(check: &LeaseCheck, prefix: &str, until: Instant) -> Self {
        let name = name::state_name(prefix, &check.plan.counts_as, &check.key);
        let request = Self::named(name, check.plan.clone(), 1, Mode::Charge, until);
        request.asking(check.id.clone(), HoldAsk::Lease(check.call))
    }

    /// A request without an id, decided beside the holds of its key.
    pub(in crate::redis) fn beside_holds(check: &Check, prefix: &str, until: Instant) -> Self {
        Self::new(check, prefix, until).asking(Box::default(), HoldAsk::Beside(check.mode))
    }

    /// The request for a refund.
    pub(in crate::redis) fn for_refund(refund: &Refund, prefix: &str, until: Instant) -> Self {
        let name = name::state_name(prefix, &refund.plan.counts_as, &refund.key);
        let units = refund.units.units();
        let request = Self::named(name, refund.plan.clone(), units, Mode::Charge, until);
        request.asking(Box::default(), HoldAsk::Refund)
    }

    /// The request for the figures of a key.
    pub(in crate::redis) fn for_figures(
        (key, plan): (&Key, &Arc<Plan>),
        prefix: &str,
        until: Instant,
    ) -> Self {
        let name = name::state_name(prefix, &plan.counts_as, key);
        let request = Self::named(name, plan.clone(), 1, Mode::Peek, until);
        request.asking(Box::default(), HoldAsk::Figures)
    }

    fn asking(self, id: Box<str>, ask: HoldAsk) -> Self {
        Self {
            hold: Some(Box::new(HoldRequest { id, ask })),
            ..self
        }
    }

    /// Work beside that of deciding: the holds of the key are read.
    #[inline]
    pub(super) fn hold_work(&self) -> usize {
        match self.hold {
            None => 0,
            Some(_) => HOLD_WORK,
        }
    }
}

impl Group {
    /// Whether its requests have ids, or are about holds.
    pub(in crate::redis) fn is_of_holds(&self) -> bool {
        self.requests
            .first()
            .is_some_and(|request| request.hold.is_some())
    }
}

impl Call {
    /// Whether its requests have ids, or are about holds.
    pub(in crate::redis) fn is_of_holds(&self) -> bool {
        self.groups.first().is_some_and(Group::is_of_holds)
    }

    /// Names of the holds of its groups; none if its requests have no ids.
    pub(super) fn holds_names(&self) -> impl Iterator<Item = String> {
        let of_holds = self.groups.iter().filter(|group| group.is_of_holds());
        of_holds.map(|group| name::holds(group.name()))
    }

    /// The answers to such requests, in the order of [`Self::requests`], from the script's reply.
    pub(in crate::redis) fn hold_answers(
        &self,
        reply: &[u8],
    ) -> Vec<Result<HoldAnswer, StoreError>> {
        script_codec::holds::parse_reply(reply, self).unwrap_or_else(|| {
            (0..self.len())
                .map(|_| Err(script_codec::unknown_form()))
                .collect()
        })
    }

    pub(super) fn answer_holds(self, reply: Result<&[u8], &StoreError>) {
        let answers = match reply {
            Ok(bytes) => self.hold_answers(bytes),
            Err(error) => (0..self.len()).map(|_| Err(error.clone())).collect(),
        };
        let requests = self.groups.into_iter().flat_map(|group| group.requests);
        for (request, answer) in requests.zip(answers) {
            if let Some(caller) = request.caller {
                caller.answer_hold(answer);
            }
        }
    }
}
