//! One script call: requests by the name that they count under, so that each name's state is read and written once.
//!
//! Pure. What is merged here is decided by the script one request after another, name by name; since requests for
//! different names touch nothing in common, every answer is the one that serial execution in the order of [`Call::offer`]
//! gives. `T` is whoever waits for an answer.

use std::sync::Arc;
use std::time::Instant;

use fred::bytes::Bytes;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use super::{SCRIPT_NAMES_MAX, name, wire};
use crate::algorithm::{Algorithm, Mode, Verdict};
use crate::plan::{Anchor, Limit, OnStoreFailure, Plan, Rule, WINDOW_MIN};
use crate::store::{Ask, StoreError};

/// Most requests in one call, of [`SCRIPT_NAMES_MAX`] names or fewer: one more for a name that is in the call already costs
/// Redis a tenth of one more name.
pub(super) const REQUESTS_MAX: usize = 256;
/// Most plans in one call: their number is a byte of the packed call.
pub(super) const PLANS_MAX: usize = 255;
/// Most searches of logs in one call: each looks at some thirty elements at worst, which holds Redis for up to 0.1 ms. A request
/// searches each log of its plan, unless it is like the one before it of its name. Bounds the names of logs, too, of which one
/// name's are counted in a byte of the packed call.
pub(super) const SEARCHES_MAX: usize = 64;

/// An ask as it goes to the script: its key and group have become a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub name: String,
    pub plan: Arc<Plan>,
    pub cost: u64,
    pub mode: Mode,
}

impl Request {
    pub(super) fn of(ask: &Ask, prefix: &str) -> Self {
        let name = name::hash_tag(prefix, &ask.plan.counts_as, ask.key.as_str());
        Self { name, plan: ask.plan.clone(), cost: ask.cost.units(), mode: ask.mode }
    }
}

/// Requests that go in one script call, and who waits for their answers.
pub(super) struct Call<T> {
    pub(super) plans: Vec<CallPlan>,
    pub(super) groups: Vec<Group<T>>,
    /// Of each group's name, to find it by.
    hashes: Vec<u64>,
    requests: usize,
    /// Of logs; at most [`SEARCHES_MAX`], or as many as one request has.
    searches: usize,
}

/// A plan of a call.
#[derive(Clone)]
pub(super) struct CallPlan {
    pub(super) plan: Arc<Plan>,
    /// Places of its limits in the order that the script has them in: by the bytes of their shapes. So it is the same however a
    /// plan is written, and plans that count as one find each other's records where they look first.
    pub(super) order: SmallVec<[usize; 2]>,
}

/// The requests of a call for one name, in their order; at least one.
pub(super) struct Group<T> {
    pub(super) name: String,
    pub(super) members: SmallVec<[Member<T>; 1]>,
    /// Windows of the logs that their plans have, in microseconds, each once.
    pub(super) logs: SmallVec<[u64; 1]>,
    /// Whether one of those is in the index of logs, whose name goes with theirs.
    pub(super) is_indexed: bool,
    /// Whether some of their limits keep their state under the name itself.
    pub(super) has_packed: bool,
}

pub(super) struct Member<T> {
    /// Index in the call's plans.
    pub(super) plan: usize,
    pub(super) mode: Mode,
    pub(super) cost: u64,
    /// When the waiter stops waiting.
    until: Instant,
    /// `None` once it has its answer.
    waiter: Option<T>,
}

impl<T> Call<T> {
    /// With no requests yet, and place for so many.
    pub(super) fn new(expected: usize) -> Self {
        let names = expected.min(SCRIPT_NAMES_MAX);
        Self { plans: Vec::new(), groups: Vec::with_capacity(names), hashes: Vec::with_capacity(names), requests: 0, searches: 0 }
    }

    /// Whether a request has room. Any has in an empty call.
    pub(super) fn has_room_for(&self, request: &Request) -> bool {
        let (name, plan) = (&request.name, &request.plan);
        self.requests == 0
            || (self.requests < REQUESTS_MAX
                && self.searches + logs_of(plan) <= SEARCHES_MAX
                && (self.plans.len() < PLANS_MAX || self.plan_of(plan).is_some())
                && (self.groups.len() < SCRIPT_NAMES_MAX || self.find(name, xxh3_64(name.as_bytes())).is_some()))
    }

    /// Takes a request in, for which there is room, and who waits for its answer until then.
    pub(super) fn take(&mut self, request: Request, waiter: T, until: Instant) {
        let hash = xxh3_64(request.name.as_bytes());
        let group = self.find(&request.name, hash).unwrap_or_else(|| {
            self.hashes.push(hash);
            self.groups.push(Group {
                name: request.name,
                members: SmallVec::new(),
                logs: SmallVec::new(),
                is_indexed: false,
                has_packed: false,
            });
            self.groups.len() - 1
        });
        let plan = self.plan_index(request.plan);
        let group = &mut self.groups[group];
        // Members of one plan have the keys of the first of them.
        if group.members.iter().all(|member| member.plan != plan) {
            group.add_keys_of(self.plans[plan].plan.limits());
        }
        // What one of them finds, the next that asks for the same finds again, unless the first gave units back.
        let look = (plan, request.mode, request.cost);
        let alike = request.mode != Mode::Refund && group.members.last().is_some_and(|last| last.look() == look);
        self.searches += if alike { 0 } else { logs_of(&self.plans[plan].plan) };
        group.members.push(Member { plan, mode: request.mode, cost: request.cost, until, waiter: Some(waiter) });
        self.requests += 1;
    }

    /// Brings groups that look alike together, which the script is quick about; no request is taken in after this.
    pub(super) fn arrange(&mut self) {
        self.groups.sort_unstable_by_key(Group::look);
        self.hashes.clear();
    }

    fn find(&self, name: &str, hash: u64) -> Option<usize> {
        debug_assert_eq!(self.hashes.len(), self.groups.len(), "a call takes requests in until it is arranged");
        let mut candidates = self.hashes.iter().enumerate().filter(|(_, other)| **other == hash).map(|(index, _)| index);
        candidates.find(|index| self.groups[*index].name == name)
    }

    fn plan_of(&self, plan: &Arc<Plan>) -> Option<usize> {
        self.plans.iter().position(|other| Arc::ptr_eq(&other.plan, plan))
    }

    fn plan_index(&mut self, plan: Arc<Plan>) -> usize {
        self.plan_of(&plan).unwrap_or_else(|| {
            self.plans.push(CallPlan::new(plan));
            self.plans.len() - 1
        })
    }

    /// Names of the keys in the order that the script takes them: packed states, then logs. They are parts of one text, so
    /// that to send them again copies none.
    pub(super) fn keys(&self) -> Vec<Bytes> {
        let packed = || self.groups.iter().filter(|group| group.has_packed).map(|group| group.name.as_str());
        let logs = self.groups.iter().flat_map(Group::log_names);
        let mut text = String::with_capacity(packed().map(str::len).sum());
        let mut ends = Vec::with_capacity(self.groups.len());
        packed().for_each(|name| {
            text.push_str(name);
            ends.push(text.len());
        });
        logs.for_each(|name| {
            text.push_str(&name);
            ends.push(text.len());
        });
        let (text, mut begin) = (Bytes::from(text), 0);
        ends.into_iter().map(|end| text.slice(std::mem::replace(&mut begin, end)..end)).collect()
    }

    /// Each waiter that has none yet with its answer, from the script's reply.
    pub(super) fn answers(self, reply: Result<&[u8], &StoreError>) -> impl Iterator<Item = (T, Result<Verdict, StoreError>)> {
        let nonsense = || StoreError::Nonsense("the script's reply has another shape".to_owned());
        let verdicts = match reply.map(|bytes| wire::parse_reply(bytes, &self)) {
            Ok(Some(verdicts)) => verdicts,
            Ok(None) => vec![Err(nonsense()); self.requests],
            Err(error) => vec![Err(error.clone()); self.requests],
        };
        let members = self.groups.into_iter().flat_map(|group| group.members);
        members.zip(verdicts).filter_map(|(member, verdict)| Some((member.waiter?, verdict)))
    }

    /// Takes out those who wait no longer at `now`; their answers, if any come, are nobody's.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<T> {
        self.members().filter(|member| member.until <= now).filter_map(|member| member.waiter.take()).collect()
    }

    /// When the first of those who still wait stops waiting.
    pub(super) fn earliest(&self) -> Option<Instant> {
        let members = self.groups.iter().flat_map(|group| &group.members);
        members.filter(|member| member.waiter.is_some()).map(|member| member.until).min()
    }

    /// When the last of all its requests is waited for.
    pub(super) fn latest(&self) -> Option<Instant> {
        self.groups.iter().flat_map(|group| &group.members).map(|member| member.until).max()
    }

    /// A call for each of its names.
    pub(super) fn split(self) -> Vec<Self> {
        // No part takes a request in, so what bounds that may stay too high.
        let (plans, searches) = (self.plans, self.searches);
        let alone = |group: Group<T>| {
            let requests = group.members.len();
            Self { plans: plans.clone(), groups: vec![group], hashes: Vec::new(), requests, searches }
        };
        self.groups.into_iter().map(alone).collect()
    }

    fn members(&mut self) -> impl Iterator<Item = &mut Member<T>> {
        self.groups.iter_mut().flat_map(|group| &mut group.members)
    }
}

impl Call<()> {
    /// A call of one request, waited for until then.
    pub(super) fn alone(request: Request, until: Instant) -> Self {
        let mut call = Self::new(1);
        call.take(request, (), until);
        call
    }

    /// A call of one request, waited for until then, that charges what stands under a name of nobody's.
    pub(super) fn trial(name: String, until: Instant) -> Self {
        // The shortest window, so that what it leaves behind is gone at once.
        let limit = Limit::new("trial", 1, WINDOW_MIN, Algorithm::FixedWindow { anchor: Anchor::Clock });
        let rule = Rule::Limits(limit.into_iter().collect());
        let (of, shadow, on_store_failure) = (Arc::from("trial"), false, OnStoreFailure::Allow);
        let plan = Arc::new(Plan { counts_as: Arc::clone(&of), name: of, rule, shadow, on_store_failure });
        Self::alone(Request { name, plan, cost: 1, mode: Mode::Charge }, until)
    }
}

impl CallPlan {
    fn new(plan: Arc<Plan>) -> Self {
        let limits = plan.limits();
        let mut order: SmallVec<[usize; 2]> = (0..limits.len()).collect();
        if limits.len() > 1 {
            order.sort_by_cached_key(|place| limits[*place].shape().bytes());
        }
        Self { plan, order }
    }

    /// Its limits in the script's order.
    pub(super) fn ordered(&self) -> impl Iterator<Item = &Limit> {
        self.order.iter().map(|place| &self.plan.limits()[*place])
    }
}

/// Logs that a request of this plan has.
fn logs_of(plan: &Plan) -> usize {
    plan.limits().iter().filter(|limit| limit.algorithm() == Algorithm::SlidingLog).count()
}

impl<T> Member<T> {
    fn look(&self) -> (usize, Mode, u64) {
        (self.plan, self.mode, self.cost)
    }
}

impl<T> Group<T> {
    fn add_keys_of(&mut self, limits: &[Limit]) {
        for limit in limits {
            if limit.algorithm() != Algorithm::SlidingLog {
                self.has_packed = true;
            } else if !self.logs.contains(&limit.window_us()) {
                self.logs.push(limit.window_us());
                self.is_indexed |= name::is_indexed(limit.window_us());
            }
        }
    }

    /// Names of its logs, and of their index after them.
    fn log_names(&self) -> impl Iterator<Item = String> {
        let logs = self.logs.iter().map(|window_us| name::log(&self.name, *window_us));
        logs.chain(self.is_indexed.then(|| name::log_index(&self.name)))
    }

    /// How many names [`Self::log_names`] has.
    pub(super) fn log_name_count(&self) -> usize {
        self.logs.len() + usize::from(self.is_indexed)
    }

    /// What distinguishes one request from another but for its name: plan, mode and cost; `None` where it is not one alone.
    pub(super) fn look(&self) -> Option<(usize, Mode, u64)> {
        match &*self.members {
            [alone] => Some(alone.look()),
            _ => None,
        }
    }

    /// Whether all members charge or peek by one plan that has one limit or no log: the script is quick about those.
    pub(super) fn is_alike(&self, plans: &[CallPlan]) -> bool {
        let plan = self.members[0].plan;
        let quick = plans[plan].plan.limits().len() == 1 || self.logs.is_empty();
        quick && self.members.iter().all(|member| member.plan == plan && member.mode != Mode::Refund)
    }
}

#[cfg(test)]
mod tests;
