//! Joint decisions of a call: what they are for, and how their requests are added, all or none.

use smallvec::SmallVec;

use super::{Call, PLANS_MAX, REQUESTS_MAX, ScriptRequest, WORK_MAX};
use crate::redis::batcher::caller::JointNote;
use tollgate_core::algorithm::Mode;
use tollgate_core::joint;

/// Maximum number of names in a call with joint decisions, twice as many as in others. A decision has two or three names as a
/// rule, so a call then has about as many decisions as others have.
pub(in crate::redis) const JOINT_NAMES_MAX: usize = 64;

/// The place of a request in the joint decisions of its call.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::redis) struct JointPlace {
    /// Which joint decision, by the order in which they were added to the call.
    pub(in crate::redis) decision: u16,
    /// Which of its requests.
    pub(in crate::redis) request: u16,
    pub(in crate::redis) purpose: Purpose,
    /// Whether it is a peek among charges: then it takes nothing from those behind it.
    pub(in crate::redis) takes_nothing: bool,
}

/// What a joint decision is for; the same for all its requests.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::redis) enum Purpose {
    /// It is decided by one call.
    Whole,
    /// It is a part of one whose keys lie in several slots. A charge may be undone later, so the reply has its instant.
    Part,
    /// It undoes such a charge: the instants of [`tollgate_core::algorithm::undo_instants`], in the order of the plan's limits.
    Undo(Box<[u64]>),
}

impl ScriptRequest {
    /// The request as one of a joint decision.
    pub(in crate::redis) fn jointly(self, purpose: Purpose) -> Self {
        Self {
            joint: Some(JointPlace {
                decision: 0,
                request: 0,
                purpose,
                takes_nothing: false,
            }),
            ..self
        }
    }

    /// The request of a joint decision as one that takes nothing from those behind it, or not.
    pub(in crate::redis) fn taking_nothing(mut self, takes_nothing: bool) -> Self {
        if let Some(place) = &mut self.joint {
            place.takes_nothing = takes_nothing;
        }
        self
    }

    /// Requests of one joint decision, at least one; as one that waits and is sent as a whole. All have the same deadline.
    pub(in crate::redis::batcher) fn joined(requests: Vec<Self>) -> Option<Self> {
        let mut requests = requests.into_iter();
        let first = requests.next()?;
        Some(Self {
            others: requests.collect(),
            ..first
        })
    }

    /// Whether it undoes a charge.
    pub(in crate::redis::batcher) fn is_undo(&self) -> bool {
        let place = self.joint.as_ref();
        place.is_some_and(|place| matches!(place.purpose, Purpose::Undo(_)))
    }

    /// Whether the reply is to have the instant of its charge.
    fn tells_instant(&self) -> bool {
        let place = self.joint.as_ref();
        self.mode == Mode::Charge && place.is_some_and(|place| place.purpose == Purpose::Part)
    }
}

impl Call {
    /// Adds all requests of a joint decision, or none. The script decides joint decisions after all other requests, so a name has
    /// requests of one sort.
    pub(super) fn add_joint(&mut self, mut request: ScriptRequest) -> Option<ScriptRequest> {
        let count = 1 + request.others.len();
        let names = std::iter::once(&request).chain(&request.others);
        let groups: SmallVec<[(Option<usize>, u64); joint::REQUESTS_MAX]> = names
            .map(|request| self.group_named(&request.name))
            .collect();
        let is_mixed = |(group, _): &(Option<usize>, u64)| {
            group.is_some_and(|group| !self.groups[group].is_joint())
        };
        let is_any_mixed = groups.iter().any(is_mixed);
        let work = request.work();
        let has_room = self.work + work <= WORK_MAX
            && self.requests + count <= REQUESTS_MAX
            && self.plans.len() + count <= PLANS_MAX
            && self.groups.len() + count <= JOINT_NAMES_MAX
            && !is_any_mixed;
        if !has_room {
            return Some(request);
        }
        let decision = self.joint_decisions;
        self.joint_decisions += 1;
        self.work += work;
        let others = std::mem::take(&mut request.others);
        let requests = std::iter::once(request).chain(others);
        for ((index, mut request), (group, hash)) in (0..).zip(requests).zip(groups) {
            if let Some(place) = &mut request.joint {
                (place.decision, place.request) = (decision, index);
            }
            let plan = self.plan_of(&request.plan);
            request.plan_index = plan.unwrap_or_else(|| self.push_plan(&request.plan));
            // A name may stand in the decision twice.
            let group = group.or_else(|| self.group_of(&request.name, hash));
            let group = group.unwrap_or_else(|| self.push_group(hash));
            self.groups[group].add(request);
            self.requests += 1;
        }
        None
    }

    /// Whether the reply is to have the call's instant, behind the answers.
    pub(in crate::redis) fn tells_instant(&self) -> bool {
        self.joint_decisions > 0 && self.requests().any(ScriptRequest::tells_instant)
    }

    /// Tells the callers of its joint decisions what there is to say beside the answers.
    pub(in crate::redis::batcher) fn note(&self, note: JointNote) {
        let callers = self
            .requests()
            .filter_map(|request| request.caller.as_ref());
        callers.for_each(|caller| caller.note(note));
    }
}
