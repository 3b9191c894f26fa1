//! One script call. Its requests are grouped by the name that they count under, so that each name's state is read and
//! written once.
//!
//! Pure. The script decides the requests one after another, name by name. Requests for different names share no state. So
//! every answer is the same as if the requests were decided in the order of [`Call::add`].

mod holds;
mod joint;
mod order;
mod split;
mod work;

use std::sync::Arc;
use std::time::Instant;

use fred::bytes::Bytes;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use super::Answer;
use super::caller::{Caller, JointNote};
use crate::redis::{SCRIPT_NAMES_MAX, name, script_codec};
use crate::{Check, StoreError};
pub(in crate::redis) use holds::{HoldAnswer, HoldAsk, HoldRequest};
pub(in crate::redis) use joint::{JointPlace, Purpose};
use tollgate_core::algorithm::{Algorithm, Mode};
use tollgate_core::plan::{Anchor, Limit, OnStoreFailure, Plan, Rule, SharedLimits, WINDOW_MIN};
pub(in crate::redis) use work::WORK_MAX;
use work::records_work;
pub(super) use work::work_in_flight_max;
#[cfg(test)]
pub(in crate::redis) use work::{LIMIT_WORK, SEARCH_STEP_WORK, SEARCH_STEPS_MIN};

/// Maximum number of requests in one call, of at most [`SCRIPT_NAMES_MAX`] names. A further request for a name that is in the
/// call already costs Redis a tenth of a further name.
pub(in crate::redis) const REQUESTS_MAX: usize = 256;
/// Maximum number of plans in one call. Their number is one byte in the packed call.
pub(in crate::redis) const PLANS_MAX: usize = 255;
/// A request to the script. It keeps this form in the queue and in its call, until it is answered.
pub(in crate::redis) struct ScriptRequest {
    /// The key and the plan's group, joined by [`name::state_name`].
    pub(in crate::redis) name: String,
    pub(in crate::redis) plan: Arc<Plan>,
    /// The limits of `plan` alone.
    pub(super) own_limits: SharedLimits,
    pub(in crate::redis) cost: u64,
    pub(in crate::redis) mode: Mode,
    /// When its caller stops waiting.
    pub(in crate::redis) until: Instant,
    /// The caller that the batcher answers; `None` once it has its answer.
    pub(super) caller: Option<Caller>,
    /// Whether a request before it in its batch is for its name.
    pub(super) repeats_name: bool,
    /// Index of `plan` in the plans of its call; set by [`Call::add`].
    pub(in crate::redis) plan_index: usize,
    /// While it waits: the other requests of its joint decision, in their order. Empty for one that is decided alone.
    pub(super) others: Box<[Self]>,
    /// Its place in a joint decision, if it is one of one.
    pub(in crate::redis) joint: Option<JointPlace>,
    /// What it asks with an id or of holds, if it does. All requests of a call do, or none.
    pub(in crate::redis) hold: Option<Box<HoldRequest>>,
}

impl ScriptRequest {
    /// The request for a check, under a name that begins with `prefix`.
    pub(in crate::redis) fn new(check: &Check, prefix: &str, until: Instant) -> Self {
        let name = name::state_name(prefix, &check.plan.counts_as, &check.key);
        Self::named(
            name,
            check.plan.clone(),
            check.cost.units(),
            check.mode,
            until,
        )
    }

    pub(in crate::redis) fn named(
        name: String,
        plan: Arc<Plan>,
        cost: u64,
        mode: Mode,
        until: Instant,
    ) -> Self {
        Self {
            name,
            own_limits: SharedLimits::count(plan.limits()),
            plan,
            cost,
            mode,
            until,
            caller: None,
            repeats_name: false,
            plan_index: 0,
            others: Box::default(),
            joint: None,
            hold: None,
        }
    }

    /// The callers of the request, and of those that are decided with it.
    pub(super) fn into_callers(self) -> impl Iterator<Item = Caller> {
        let others = self.others.into_iter().filter_map(|other| other.caller);
        self.caller.into_iter().chain(others)
    }

    /// Whether its caller no longer waits. It is then not sent.
    pub(super) fn is_abandoned(&self) -> bool {
        self.caller.as_ref().is_some_and(Caller::is_gone)
    }

    /// What it asks for, except the name. The script decides equal requests alike.
    fn charge_terms(&self) -> (usize, Mode, u64) {
        (self.plan_index, self.mode, self.cost)
    }
}

/// The requests of one script call.
pub(in crate::redis) struct Call {
    pub(in crate::redis) plans: Vec<CallPlan>,
    pub(in crate::redis) groups: Vec<Group>,
    /// Number of its joint decisions. Their requests are in groups of their own.
    pub(in crate::redis) joint_decisions: u16,
    /// Whether a joint decision has no other requests beside it: where one name of a call is refused, the call is.
    joint_alone: bool,
    /// The hash of each group's name, to find a group by name.
    hashes: Vec<u64>,
    requests: usize,
    /// Whether its names may be of several slots. They are then no keys of the script call; see `script/request.lua`.
    pub(in crate::redis) by_names: bool,
    /// The store's time, in microseconds, as its reply told that decided nothing; see [`script_codec::parse_store_time`].
    pub(in crate::redis) store_time_us: Option<u64>,
    /// Whether it is sent by slot because the node refused its names in a call by names.
    pub(in crate::redis) was_refused: bool,
    /// Work of its requests.
    pub(super) work: usize,
    /// Maximum work of heavy requests: [`WORK_MAX`], or less while other calls are in flight.
    work_left: usize,
}

/// A plan of a call, with the order of its limits.
#[derive(Clone)]
pub(in crate::redis) struct CallPlan {
    pub(in crate::redis) plan: Arc<Plan>,
    /// Indices of its limits in the script's order, which is by the bytes of their fingerprints. The order does not depend on how
    /// the plan is written. So plans of one group find each other's records where they look first.
    pub(in crate::redis) order: SmallVec<[usize; 2]>,
}

/// The requests of a call for one name, in their order; at least one.
#[derive(Default)]
pub(in crate::redis) struct Group {
    pub(in crate::redis) requests: SmallVec<[ScriptRequest; 1]>,
    /// The distinct windows of their plans' logs, in microseconds.
    logs: SmallVec<[u64; 1]>,
    /// Whether one of these logs is listed in the index of logs. The name of the index is then a key of the call.
    is_indexed: bool,
    /// Whether some of their limits keep their state in the key of the name itself.
    pub(in crate::redis) has_packed: bool,
    /// Whether all requests have one plan, which has one limit or no log. The script decides such groups faster.
    pub(in crate::redis) is_uniform: bool,
}

impl Call {
    /// A call without requests, with capacity for `expected` ones. It has room for as much work as is left to it.
    pub(in crate::redis) fn new(expected: usize, work_left: usize) -> Self {
        let names = expected.min(SCRIPT_NAMES_MAX);
        Self {
            plans: Vec::new(),
            groups: Vec::with_capacity(names),
            joint_decisions: 0,
            joint_alone: false,
            hashes: Vec::with_capacity(names),
            requests: 0,
            by_names: false,
            store_time_us: None,
            was_refused: false,
            work: 0,
            work_left: work_left.min(WORK_MAX),
        }
    }

    /// The same, but a joint decision has a call of its own.
    pub(super) fn with_joint_decisions_alone(self) -> Self {
        Self {
            joint_alone: true,
            ..self
        }
    }

    /// A call of one request.
    pub(in crate::redis) fn for_request(request: ScriptRequest) -> Self {
        let mut call = Self::new(1, WORK_MAX);
        // An empty call has room for any request.
        let left = call.add(request);
        debug_assert!(
            left.is_none(),
            "a request is never more than the work of a call"
        );
        call
    }

    /// A call that charges one unit to `name`, which no other request uses.
    pub(in crate::redis) fn probe_call(name: String, until: Instant) -> Self {
        // The shortest window, so that its state expires at once.
        let limit = Limit::new(
            "probe",
            1,
            WINDOW_MIN,
            Algorithm::FixedWindow {
                anchor: Anchor::Clock,
            },
        );
        let rule = Rule::limits(limit);
        let plan = Arc::new(Plan {
            on_store_failure: OnStoreFailure::Allow,
            ..Plan::new("probe", rule)
        });
        Self::for_request(ScriptRequest::named(name, plan, 1, Mode::Charge, until))
    }

    /// Whether a request can be added without too much work.
    #[inline]
    pub(super) fn may_take_on(&self, request: &ScriptRequest) -> bool {
        let work = request.work();
        if !request.is_heavy() || request.joint.is_some() {
            return self.work + work <= WORK_MAX;
        }
        // The records of a name that is in the call already are read anyway.
        let is_in = || self.group_named(&request.name).0.is_some();
        let read = if request.plan.shared.logs == 0 && is_in() {
            records_work(&request.plan)
        } else {
            0
        };
        self.work + work.saturating_sub(read) <= self.work_left
    }

    /// Adds a request. Returns it if the call has no room for it.
    #[must_use = "a request without room must wait for another call"]
    pub(in crate::redis) fn add(&mut self, mut request: ScriptRequest) -> Option<ScriptRequest> {
        let is_joint = request.joint.is_some();
        if self.joint_alone && !self.groups.is_empty() && (is_joint || self.joint_decisions > 0) {
            return Some(request);
        }
        if is_joint {
            return self.add_joint(request);
        }
        let plan = self.plan_of(&request.plan);
        let (group, hash) = self.group_named(&request.name);
        let has_room = self.may_take_on(&request)
            && self.requests < REQUESTS_MAX
            && (self.plans.len() < PLANS_MAX || plan.is_some())
            && group.map_or(self.groups.len() < SCRIPT_NAMES_MAX, |group| {
                !self.groups[group].is_joint()
            });
        if !has_room {
            return Some(request);
        }
        request.plan_index = plan.unwrap_or_else(|| self.push_plan(&request.plan));
        let group = group.unwrap_or_else(|| self.push_group(hash));
        self.work += self.groups[group].add(request);
        self.requests += 1;
        None
    }

    /// The group of this name, if the call has one, and the hash of the name.
    fn group_named(&self, name: &str) -> (Option<usize>, u64) {
        let hash = xxh3_64(name.as_bytes());
        (self.group_of(name, hash), hash)
    }

    /// The index of the group of this name, whose hash is given.
    fn group_of(&self, name: &str, hash: u64) -> Option<usize> {
        debug_assert_eq!(
            self.hashes.len(),
            self.groups.len(),
            "a call takes requests in until it is arranged"
        );
        let hashes = self.hashes.iter().enumerate();
        let mut alike = hashes.filter(|(_, other)| **other == hash);
        alike
            .find(|(index, _)| self.groups[*index].name() == name)
            .map(|(index, _)| index)
    }

    fn push_plan(&mut self, plan: &Arc<Plan>) -> usize {
        self.plans.push(CallPlan::new(plan.clone()));
        self.plans.len() - 1
    }

    fn push_group(&mut self, hash: u64) -> usize {
        self.hashes.push(hash);
        self.groups.push(Group::default());
        self.groups.len() - 1
    }

    /// Sorts groups with equal requests together, which the script decides faster, and those of joint decisions behind them; of these
    /// the ones without a packed state last. No request may be added after this.
    pub(in crate::redis) fn arrange(&mut self) {
        self.groups.sort_unstable_by_key(|group| {
            let is_joint = group.is_joint();
            (
                is_joint,
                is_joint && !group.has_packed,
                group.single_terms(),
            )
        });
        self.hashes.clear();
    }

    fn plan_of(&self, plan: &Arc<Plan>) -> Option<usize> {
        self.plans
            .iter()
            .position(|other| Arc::ptr_eq(&other.plan, plan))
    }

    /// Names of the keys in the script's order: packed states, of requests with ids also holds, then ids and logs. They are slices of
    /// one buffer, so that sending them again copies nothing.
    pub(in crate::redis) fn keys(&self) -> Vec<Bytes> {
        let packed = || {
            self.groups
                .iter()
                .filter(|group| group.has_packed)
                .map(Group::name)
        };
        let mut text = String::with_capacity(packed().map(str::len).sum());
        let mut ends = Vec::with_capacity(self.groups.len());
        packed().for_each(|name| {
            text.push_str(name);
            ends.push(text.len());
        });
        self.holds_names().for_each(|name| {
            text.push_str(&name);
            ends.push(text.len());
        });
        for group in &self.groups {
            let ids = group.is_of_holds().then(|| name::ids(group.name()));
            let logs = group
                .logs
                .iter()
                .map(|window_us| name::log(group.name(), *window_us));
            let names = ids.into_iter().chain(logs);
            for name in names.chain(group.is_indexed.then(|| name::log_index(group.name()))) {
                text.push_str(&name);
                ends.push(text.len());
            }
        }
        let text = Bytes::from(text);
        let mut begin = 0;
        ends.into_iter()
            .map(|end| text.slice(std::mem::replace(&mut begin, end)..end))
            .collect()
    }

    /// Number of its requests.
    pub(in crate::redis) fn len(&self) -> usize {
        self.requests
    }

    /// Its requests in the script's order.
    pub(in crate::redis) fn requests(&self) -> impl Iterator<Item = &ScriptRequest> {
        self.groups.iter().flat_map(|group| &group.requests)
    }

    /// The answers to its requests, in the order of [`Self::requests`], from the script's reply.
    pub(in crate::redis) fn answers(&self, reply: &[u8]) -> Vec<Answer> {
        script_codec::parse_reply(reply, self)
            .unwrap_or_else(|| vec![Err(script_codec::unknown_form()); self.requests])
    }

    /// Gives each caller that has no answer yet its answer from the script's reply, or the error in its place.
    pub(super) fn answer(self, reply: Result<&[u8], &StoreError>) {
        if self.is_of_holds() {
            return self.answer_holds(reply);
        }
        let answers = match reply {
            Ok(bytes) if self.tells_instant() => {
                let (bytes, instant_us) = script_codec::split_instant(bytes);
                instant_us
                    .into_iter()
                    .for_each(|instant_us| self.note(JointNote::ChargedAt(instant_us)));
                self.answers(bytes)
            }
            Ok(bytes) => self.answers(bytes),
            Err(error) => vec![Err(error.clone()); self.requests],
        };
        let requests = self.groups.into_iter().flat_map(|group| group.requests);
        for (request, answer) in requests.zip(answers) {
            if let Some(caller) = request.caller {
                caller.answer(answer);
            }
        }
    }

    /// Whether it is to be sent once more: the reply tells that the store's time lies outside of the windows that were sent, and
    /// somebody waits for an answer. The call then has the windows of that time.
    pub(in crate::redis) fn is_to_be_sent_again(&mut self, reply: &[u8]) -> bool {
        let told_us = script_codec::parse_store_time(reply);
        self.store_time_us = told_us.or(self.store_time_us);
        told_us.is_some() && self.requests().any(|request| request.caller.is_some())
    }

    /// Takes out the callers whose deadline is not after `now`. Answers that come later are dropped.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Caller> {
        let requests = self.groups.iter_mut().flat_map(|group| &mut group.requests);
        requests
            .filter(|request| request.until <= now)
            .filter_map(|request| request.caller.take())
            .collect()
    }

    /// The earliest deadline of the callers that have no answer yet.
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.requests()
            .filter(|request| request.caller.is_some())
            .map(|request| request.until)
            .min()
    }
}

impl CallPlan {
    fn new(plan: Arc<Plan>) -> Self {
        let limits = plan.limits();
        let mut order: SmallVec<[usize; 2]> = (0..limits.len()).collect();
        if limits.len() > 1 {
            order.sort_by_cached_key(|index| limits[*index].fingerprint().bytes());
        }
        Self { plan, order }
    }

    /// Its limits in the script's order.
    pub(in crate::redis) fn ordered(&self) -> impl Iterator<Item = &Limit> {
        self.order.iter().map(|index| &self.plan.limits()[*index])
    }
}

impl Group {
    /// The name that its requests count under.
    #[inline]
    pub(in crate::redis) fn name(&self) -> &str {
        &self.requests[0].name
    }

    /// Whether its requests are of joint decisions.
    pub(in crate::redis) fn is_joint(&self) -> bool {
        self.requests
            .first()
            .is_some_and(|request| request.joint.is_some())
    }

    /// Adds a request. Returns the work that it adds.
    fn add(&mut self, request: ScriptRequest) -> usize {
        // All requests of one plan have the same keys.
        if self
            .requests
            .iter()
            .all(|other| other.plan_index != request.plan_index)
        {
            self.is_uniform = self.requests.is_empty();
            self.add_keys_of(request.plan.limits());
        }
        self.is_uniform &= request.plan.limits().len() == 1 || self.logs.is_empty();
        let work = request.work_after(self.requests.last());
        self.requests.push(request);
        work
    }

    fn add_keys_of(&mut self, limits: &[Limit]) {
        for limit in limits {
            // A block of a log is beside other records.
            self.has_packed |= limit.algorithm() != Algorithm::SlidingLog || limit.block_us() > 0;
            if limit.algorithm() != Algorithm::SlidingLog {
                continue;
            }
            if !self.logs.contains(&limit.window_us()) {
                self.logs.push(limit.window_us());
                self.is_indexed |= name::is_indexed(limit.window_us());
            }
        }
    }

    /// Number of its logs, and of their index if one of them is listed there.
    pub(in crate::redis) fn log_name_count(&self) -> usize {
        self.logs.len() + usize::from(self.is_indexed)
    }

    /// The terms of its request; `None` if it has several. Groups with equal terms differ only in their names.
    pub(in crate::redis) fn single_terms(&self) -> Option<(usize, Mode, u64)> {
        match &*self.requests {
            [single] if single.joint.is_none() => Some(single.charge_terms()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
