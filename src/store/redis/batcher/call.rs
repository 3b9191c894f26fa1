//! One script call. Its requests are grouped by the name that they count under, so that each name's state is read and
//! written once.
//!
//! Pure. The script decides the requests one after another, name by name. Requests for different names share no state. So
//! every answer is the same as if the requests were decided in the order of [`Call::take`]. `T` is the type of the waiter for
//! an answer.

use std::sync::Arc;
use std::time::Instant;

use fred::bytes::Bytes;
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use crate::algorithm::{Algorithm, Mode, Verdict};
use crate::plan::{Anchor, Limit, OnStoreFailure, Plan, Rule, WINDOW_MIN};
use crate::store::redis::{SCRIPT_NAMES_MAX, name, wire};
use crate::store::{Check, StoreError};

/// Most requests in one call, of at most [`SCRIPT_NAMES_MAX`] names. A further request for a name that is in the call
/// already costs Redis a tenth of a further name.
pub(in crate::store::redis) const REQUESTS_MAX: usize = 256;
/// Most plans in one call. Their number is one byte in the packed call.
pub(in crate::store::redis) const PLANS_MAX: usize = 255;
/// Most searches of logs in one call. Each reads some thirty elements at worst, which occupies Redis for up to 0.1
/// ms. A request searches each log of its plan, unless it equals the request before it of the same name. It also bounds the
/// logs of a name, whose number is one byte in the packed call.
pub(in crate::store::redis) const SEARCHES_MAX: usize = 64;

/// A check as it goes to the script, with its key and group joined to a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct ScriptRequest {
    pub name: String,
    pub plan: Arc<Plan>,
    pub cost: u64,
    pub mode: Mode,
}

impl ScriptRequest {
    pub(in crate::store::redis) fn of(check: &Check, prefix: &str) -> Self {
        let name = name::hash_tag(prefix, &check.plan.counts_as, check.key.as_str());
        Self { name, plan: check.plan.clone(), cost: check.cost.units(), mode: check.mode }
    }
}

/// The requests of one script call, and the waiters for their answers.
pub(in crate::store::redis) struct Call<T> {
    pub(in crate::store::redis) plans: Vec<CallPlan>,
    pub(in crate::store::redis) groups: Vec<Group<T>>,
    /// The hash of each group's name, to find a group by name.
    hashes: Vec<u64>,
    requests: usize,
    /// Searches of logs. At most [`SEARCHES_MAX`], unless a single request has more.
    searches: usize,
}

/// A plan of a call, with the order of its limits.
#[derive(Clone)]
pub(in crate::store::redis) struct CallPlan {
    pub(in crate::store::redis) plan: Arc<Plan>,
    /// Indices of its limits in the script's order, which is by the bytes of their fingerprints. The order does not depend on how
    /// the plan is written. So plans of one group find each other's records where they look first.
    pub(in crate::store::redis) order: SmallVec<[usize; 2]>,
}

/// The requests of a call for one name, in their order; at least one.
pub(in crate::store::redis) struct Group<T> {
    pub(in crate::store::redis) name: String,
    pub(in crate::store::redis) members: SmallVec<[GroupedRequest<T>; 1]>,
    /// The distinct windows of their plans' logs, in microseconds.
    pub(in crate::store::redis) logs: SmallVec<[u64; 1]>,
    /// Whether one of these logs is listed in the index of logs. The name of the index is then a key of the call.
    pub(in crate::store::redis) is_indexed: bool,
    /// Whether some of their limits keep their state in the key of the name itself.
    pub(in crate::store::redis) has_packed: bool,
}

/// One request of a [`Group`].
pub(in crate::store::redis) struct GroupedRequest<T> {
    /// Index in the call's plans.
    pub(in crate::store::redis) plan: usize,
    pub(in crate::store::redis) mode: Mode,
    pub(in crate::store::redis) cost: u64,
    /// When the waiter stops waiting.
    until: Instant,
    /// `None` once it has its answer.
    waiter: Option<T>,
}

impl<T> Call<T> {
    /// A call without requests, with capacity for `expected` ones.
    pub(in crate::store::redis) fn new(expected: usize) -> Self {
        let names = expected.min(SCRIPT_NAMES_MAX);
        Self { plans: Vec::new(), groups: Vec::with_capacity(names), hashes: Vec::with_capacity(names), requests: 0, searches: 0 }
    }

    /// Whether the call has room for a request. An empty call has room for any.
    pub(in crate::store::redis) fn has_room_for(&self, request: &ScriptRequest) -> bool {
        let (name, plan) = (&request.name, &request.plan);
        self.requests == 0
            || (self.requests < REQUESTS_MAX
                && self.searches + logs_of(plan) <= SEARCHES_MAX
                && (self.plans.len() < PLANS_MAX || self.plan_of(plan).is_some())
                && (self.groups.len() < SCRIPT_NAMES_MAX || self.find(name, xxh3_64(name.as_bytes())).is_some()))
    }

    /// Adds a request, for which there must be room, and its waiter, which waits until `until`.
    pub(in crate::store::redis) fn take(&mut self, request: ScriptRequest, waiter: T, until: Instant) {
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
        // All requests of one plan have the same keys.
        if group.members.iter().all(|member| member.plan != plan) {
            group.add_keys_of(self.plans[plan].plan.limits());
        }
        // The script uses the result of a search again for an equal request, but not after a refund.
        let look = (plan, request.mode, request.cost);
        let alike = request.mode != Mode::Refund && group.members.last().is_some_and(|last| last.look() == look);
        self.searches += if alike { 0 } else { logs_of(&self.plans[plan].plan) };
        group.members.push(GroupedRequest { plan, mode: request.mode, cost: request.cost, until, waiter: Some(waiter) });
        self.requests += 1;
    }

    /// Sorts groups with equal requests together, which the script decides faster. No request may be added after this.
    pub(in crate::store::redis) fn arrange(&mut self) {
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

    /// Names of the keys in the script's order: packed states, then logs. They are slices of one buffer, so that sending them
    /// again copies nothing.
    pub(in crate::store::redis) fn keys(&self) -> Vec<Bytes> {
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

    /// Pairs each waiter that has no answer yet with its answer from the script's reply.
    pub(in crate::store::redis) fn answers(
        self,
        reply: Result<&[u8], &StoreError>,
    ) -> impl Iterator<Item = (T, Result<Verdict, StoreError>)> {
        let nonsense = || StoreError::Nonsense("the script's reply has an unknown form".to_owned());
        let verdicts = match reply.map(|bytes| wire::parse_reply(bytes, &self)) {
            Ok(Some(verdicts)) => verdicts,
            Ok(None) => vec![Err(nonsense()); self.requests],
            Err(error) => vec![Err(error.clone()); self.requests],
        };
        let members = self.groups.into_iter().flat_map(|group| group.members);
        members.zip(verdicts).filter_map(|(member, verdict)| Some((member.waiter?, verdict)))
    }

    /// Takes out the waiters whose deadline is not after `now`. Answers that come later are dropped.
    pub(in crate::store::redis) fn expire(&mut self, now: Instant) -> Vec<T> {
        self.members().filter(|member| member.until <= now).filter_map(|member| member.waiter.take()).collect()
    }

    /// The earliest deadline of the waiters that have no answer yet.
    pub(in crate::store::redis) fn earliest(&self) -> Option<Instant> {
        let members = self.groups.iter().flat_map(|group| &group.members);
        members.filter(|member| member.waiter.is_some()).map(|member| member.until).min()
    }

    /// The latest deadline of all its requests; `None` for an empty call.
    pub(in crate::store::redis) fn latest(&self) -> Option<Instant> {
        self.groups.iter().flat_map(|group| &group.members).map(|member| member.until).max()
    }

    /// Splits it into one call for each name.
    pub(in crate::store::redis) fn split(self) -> Vec<Self> {
        // No request is added to a part, so its count of searches may stay too high.
        let (plans, searches) = (self.plans, self.searches);
        let part = |group: Group<T>| {
            let requests = group.members.len();
            Self { plans: plans.clone(), groups: vec![group], hashes: Vec::new(), requests, searches }
        };
        self.groups.into_iter().map(part).collect()
    }

    fn members(&mut self) -> impl Iterator<Item = &mut GroupedRequest<T>> {
        self.groups.iter_mut().flat_map(|group| &mut group.members)
    }
}

impl Call<()> {
    /// A call of one request, with the deadline `until`.
    pub(in crate::store::redis) fn of_one(request: ScriptRequest, until: Instant) -> Self {
        let mut call = Self::new(1);
        call.take(request, (), until);
        call
    }

    /// A call that charges one unit to `name`, which no other request uses. Its deadline is `until`.
    pub(in crate::store::redis) fn probe_call(name: String, until: Instant) -> Self {
        // The shortest window, so that its state expires at once.
        let limit = Limit::new("trial", 1, WINDOW_MIN, Algorithm::FixedWindow { anchor: Anchor::Clock });
        let rule = Rule::Limits(limit.into_iter().collect());
        let (of, shadow, on_store_failure) = (Arc::from("trial"), false, OnStoreFailure::Allow);
        let plan = Arc::new(Plan { counts_as: Arc::clone(&of), name: of, rule, shadow, on_store_failure });
        Self::of_one(ScriptRequest { name, plan, cost: 1, mode: Mode::Charge }, until)
    }
}

impl CallPlan {
    fn new(plan: Arc<Plan>) -> Self {
        let limits = plan.limits();
        let mut order: SmallVec<[usize; 2]> = (0..limits.len()).collect();
        if limits.len() > 1 {
            order.sort_by_cached_key(|place| limits[*place].fingerprint().bytes());
        }
        Self { plan, order }
    }

    /// Its limits in the script's order.
    pub(in crate::store::redis) fn ordered(&self) -> impl Iterator<Item = &Limit> {
        self.order.iter().map(|place| &self.plan.limits()[*place])
    }
}

/// Number of logs that a request of this plan has.
fn logs_of(plan: &Plan) -> usize {
    plan.limits().iter().filter(|limit| limit.algorithm() == Algorithm::SlidingLog).count()
}

impl<T> GroupedRequest<T> {
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

    /// Names of its logs, followed by the name of their index if one of them is listed there.
    fn log_names(&self) -> impl Iterator<Item = String> {
        let logs = self.logs.iter().map(|window_us| name::log(&self.name, *window_us));
        logs.chain(self.is_indexed.then(|| name::log_index(&self.name)))
    }

    /// Number of names that [`Self::log_names`] gives.
    pub(in crate::store::redis) fn log_name_count(&self) -> usize {
        self.logs.len() + usize::from(self.is_indexed)
    }

    /// The plan, mode and cost of its request; `None` if it has several. Groups with equal values differ only in their names.
    pub(in crate::store::redis) fn look(&self) -> Option<(usize, Mode, u64)> {
        match &*self.members {
            [single] => Some(single.look()),
            _ => None,
        }
    }

    /// Whether no member is a refund, and all have one plan that has one limit or no log. The script decides such groups faster.
    pub(in crate::store::redis) fn is_alike(&self, plans: &[CallPlan]) -> bool {
        let plan = self.members[0].plan;
        let short = plans[plan].plan.limits().len() == 1 || self.logs.is_empty();
        short && self.members.iter().all(|member| member.plan == plan && member.mode != Mode::Refund)
    }
}

#[cfg(test)]
mod tests;
