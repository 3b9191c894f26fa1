//! The holds of a stream: whose leases are renewed while it lasts, and ended with it. It knows no wire, and no task of its own.
//!
//! A hold is renewed when a third of its lease has passed. A stream owns a hold as long as its lease ends at the time that this
//! stream set last. The store's clock tells that time. So nothing is ended that another stream has taken over since.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::metrics::HoldStreamCount;
use super::{Limiter, Refusal, RequestId};
use tollgate_core::algorithm::holds::{LeaseCall, LeaseEvent, LostReason};
use tollgate_core::key::Key;
use tollgate_core::plan::Plan;
use tollgate_store::{LeaseCheck, Store, StoreError};

/// Maximum number of leases that one call to a store renews or ends, so that no stream occupies it for long.
pub const RENEWED_TOGETHER: usize = 64;
/// Leases that are due so soon are renewed with one that is due. The shortest is due after a third of a second.
const DUE_TOGETHER: Duration = Duration::from_millis(50);
/// Within some time, the clocks of a replica and of its store go apart by less than one part in this many of it.
const CLOCKS_DIFFER_DIVISOR: u32 = 1_000;
/// By so much a lease may seem longer than it is, beside.
const CLOCKS_DIFFER: Duration = Duration::from_millis(1);
/// Shortest time until a renewal that failed is tried again.
const RETRY_MIN: Duration = Duration::from_millis(100);

/// A hold, among all of one store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeaseName {
    /// The group of the plan that decided. Its plans share a key's ids.
    pub counts_as: Arc<str>,
    /// The subject.
    pub key: Key,
    /// The id.
    pub id: RequestId,
}

/// A call about a hold, as it is asked of the limiter.
#[derive(Debug)]
pub struct Ask {
    /// The subject.
    pub key: Key,
    /// The plan that decided the reserve.
    pub decided_by: Arc<Plan>,
    /// The id.
    pub id: RequestId,
    /// What is asked.
    pub call: LeaseCall,
}

impl<S> Limiter<S> {
    /// Counts a stream of holds that begins.
    pub fn hold_stream(&self) -> HoldStreamCount {
        self.common.holds.stream()
    }

    /// The time by which leases are renewed.
    pub fn lease_time(&self) -> Instant {
        self.common.clock.monotonic()
    }

    /// Counts a hold of this plan that is no longer its stream's.
    pub fn count_lost(&self, plan: &Arc<str>) {
        self.common.holds.record_lost(plan);
    }
}

impl<S: Store> Limiter<S> {
    /// Asks about leases, all by one call to the store. Returns one result for each, in the same order. Errors: the store did not confirm.
    pub async fn lease(&self, asked: Vec<Ask>) -> Vec<Result<LeaseEvent, StoreError>> {
        let checks: Vec<LeaseCheck> = asked.into_iter().map(|ask| self.lease_check(ask)).collect();
        let started_at = self.call_start();
        let waiting = self.count_waiting(started_at, checks.len());
        let verdicts = self
            .store
            .decide_leases(&checks, self.store_deadline())
            .await;
        drop(waiting);
        self.record_call_time(started_at);
        let unanswered = || Err(StoreError::InvalidReply("an answer is missing".to_owned()));
        let verdicts = verdicts
            .into_iter()
            .chain(std::iter::repeat_with(unanswered));
        let events = checks.iter().zip(verdicts).map(|(check, verdict)| {
            let subject = Some((&check.key, &*check.plan));
            let verdict = verdict.inspect_err(|error| self.count_failure(subject, error))?;
            self.common
                .holds
                .record_ended(&check.plan.name, verdict.ended);
            if verdict.ended.units > 0 {
                self.forget_denials(&check.plan.counts_as, &check.key);
            }
            Ok(verdict.event)
        });
        events.collect()
    }

    fn lease_check(&self, ask: Ask) -> LeaseCheck {
        let worker_plans = self.worker.worker_plans();
        LeaseCheck {
            plan: worker_plans.plan_of_hold(&ask.key, &ask.decided_by),
            key: ask.key,
            id: ask.id.as_str().into(),
            call: ask.call,
        }
    }

    /// Makes a hold that was just reserved this stream's. Errors: as for [`Self::lease`].
    pub async fn take_lease(&self, ask: Ask) -> Result<LeaseEvent, Refusal> {
        let taken = self.lease(vec![ask]).await.pop();
        let taken = taken.ok_or_else(Refusal::not_understood)?;
        taken.map_err(Refusal::Unconfirmed)
    }
}

/// A hold of a stream.
struct Lease<T> {
    name: LeaseName,
    /// The plan that decided.
    decided_by: Arc<Plan>,
    ttl_us: u64,
    /// The end that this stream was told last. `None` where the store did not tell yet.
    expires_us: Option<u64>,
    /// The end that a renewal asked for which has no answer yet, or got none; 0 without one.
    until_us: u64,
    /// Whether this stream has opened it. Else it took it over.
    is_new: bool,
    /// When it ends if it is not renewed, or shortly after.
    ends_at: Instant,
    /// When the store was asked last.
    asked_at: Instant,
    renew_at: Instant,
    tag: T,
}

/// The holds of one stream, each with what the stream keeps beside it.
pub struct Leases<T> {
    leases: HashMap<u64, Lease<T>>,
    numbers: HashMap<LeaseName, u64>,
    /// When each is to be renewed, but for those that are being renewed.
    due: BTreeSet<(Instant, u64)>,
    next_number: u64,
    /// Settles under way, by key and id: what they are told is enough.
    settling: HashMap<(Key, RequestId), usize>,
}

/// A hold that a stream gets.
pub struct NewLease<T> {
    /// The hold.
    pub name: LeaseName,
    /// The plan that decided.
    pub decided_by: Arc<Plan>,
    /// The lease, which is renewed to as much.
    pub ttl_us: u64,
    /// Whether this stream has opened it. Else it took it over.
    pub is_new: bool,
    /// When it ends by the store's clock, if the store told, and the time until then.
    pub ends: (Option<u64>, u64),
    /// When the store had told that time.
    pub told_at: Instant,
    /// What the stream keeps beside it.
    pub tag: T,
}

/// A hold that is no longer its stream's.
pub struct Lost<T> {
    /// Its id.
    pub id: RequestId,
    /// The plan that decided.
    pub plan: Arc<str>,
    /// Why.
    pub reason: LostReason,
    /// What the stream kept beside it.
    pub tag: T,
}

impl<T> Default for Leases<T> {
    fn default() -> Self {
        Self {
            leases: HashMap::new(),
            numbers: HashMap::new(),
            due: BTreeSet::new(),
            next_number: 0,
            settling: HashMap::new(),
        }
    }
}

impl<T> Leases<T> {
    /// Number of holds.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// Whether a hold of this key has this id, under some plan.
    pub fn has(&self, key: &Key, id: &RequestId) -> bool {
        let mut names = self.numbers.keys();
        names.any(|name| name.key == *key && name.id == *id)
    }

    /// The plan that decided the hold of this key and id, if there is one.
    pub fn decided_by(&self, key: &Key, id: &RequestId) -> Option<Arc<Plan>> {
        let mut numbers = self.numbers.iter();
        let (_, number) = numbers.find(|(name, _)| name.key == *key && name.id == *id)?;
        let lease = self.leases.get(number)?;
        Some(lease.decided_by.clone())
    }

    /// Adds a hold, in place of one of the same name whose end was told before.
    pub fn add(&mut self, new: NewLease<T>, now: Instant) {
        let present = self.numbers.get(&new.name);
        let present = present.and_then(|number| self.leases.get(number));
        let is_older = |present: &Lease<T>| match new.ends.0 {
            Some(_) => present.expires_us > new.ends.0,
            None => new.is_new,
        };
        if present.is_some_and(is_older) {
            return;
        }
        self.remove(&new.name);
        let number = self.next_number;
        self.next_number += 1;
        let (expires_us, expires_in_us) = new.ends;
        // Where the store did not tell, it is asked again soon.
        let renew_in = if expires_us.is_some() {
            Duration::from_micros(new.ttl_us / 3)
        } else {
            RETRY_MIN
        };
        let lease = Lease {
            name: new.name.clone(),
            decided_by: new.decided_by,
            ttl_us: new.ttl_us,
            expires_us,
            until_us: 0,
            is_new: new.is_new,
            ends_at: new.told_at + Duration::from_micros(expires_in_us),
            asked_at: now,
            renew_at: now + renew_in,
            tag: new.tag,
        };
        self.due.insert((lease.renew_at, number));
        self.numbers.insert(new.name, number);
        self.leases.insert(number, lease);
    }

    /// Notes that a settle of this key and id begins.
    pub fn settle_begins(&mut self, key: &Key, id: &RequestId) {
        let name = (key.clone(), id.clone());
        *self.settling.entry(name).or_default() += 1;
    }

    /// Notes that one has ended, whatever it was told.
    pub fn settle_ends(&mut self, key: Key, id: RequestId) {
        if let Entry::Occupied(mut settles) = self.settling.entry((key, id)) {
            *settles.get_mut() -= 1;
            if *settles.get() == 0 {
                settles.remove();
            }
        }
    }

    /// Removes a hold that is not open any more.
    pub fn remove(&mut self, name: &LeaseName) {
        if let Some(number) = self.numbers.remove(name)
            && let Some(lease) = self.leases.remove(&number)
        {
            self.due.remove(&(lease.renew_at, number));
        }
    }

    /// When the next one is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes those that are due, at most [`RENEWED_TOGETHER`], with what to ask. [`Self::note`] gets the answers.
    pub fn take_due(&mut self, now: Instant) -> (Vec<u64>, Vec<Ask>) {
        let mut numbers = Vec::new();
        let mut asked = Vec::new();
        while asked.len() < RENEWED_TOGETHER
            && let Some((at, number)) = self.due.first().copied()
            && at
                <= now
                    + if numbers.is_empty() {
                        Duration::ZERO
                    } else {
                        DUE_TOGETHER
                    }
        {
            self.due.remove(&(at, number));
            let Some(lease) = self.leases.get_mut(&number) else {
                continue;
            };
            let call = lease.renewal(now);
            numbers.push(number);
            asked.push(lease.ask(call));
        }
        (numbers, asked)
    }

    /// Notes what became of a renewal. Returns the hold if it is lost, and the stream has to be told.
    pub fn note(
        &mut self,
        number: u64,
        answer: Result<LeaseEvent, StoreError>,
        now: Instant,
    ) -> Option<Lost<T>> {
        let lease = self.leases.get_mut(&number)?;
        let reason = match answer {
            Ok(LeaseEvent::Open { expires_in_us, .. }) if lease.was_taken(expires_in_us) => {
                LostReason::Moved
            }
            Ok(LeaseEvent::Open {
                expires_us,
                expires_in_us,
            }) => {
                (lease.expires_us, lease.until_us) = (Some(expires_us), 0);
                lease.ends_at = now + Duration::from_micros(expires_in_us);
                // One that was tried for long has less left than a whole lease.
                lease.renew_at = now + Duration::from_micros(lease.ttl_us.min(expires_in_us) / 3);
                self.due.insert((lease.renew_at, number));
                return None;
            }
            Err(_) if now < lease.ends_at => {
                let pause = Duration::from_micros(lease.ttl_us / 12).max(RETRY_MIN);
                lease.renew_at = (now + pause).min(lease.ends_at);
                self.due.insert((lease.renew_at, number));
                return None;
            }
            // Not renewed in time.
            Err(_) | Ok(LeaseEvent::Ended) => LostReason::Expired,
            Ok(LeaseEvent::Lost(reason)) => reason,
        };
        let lease = self.leases.remove(&number)?;
        self.numbers.remove(&lease.name);
        let name = (lease.name.key, lease.name.id);
        (!self.settling.contains_key(&name)).then_some(Lost {
            id: name.1,
            plan: lease.decided_by.name.clone(),
            reason,
            tag: lease.tag,
        })
    }

    /// What is to be asked to end them, in the order in which they came, at most [`RENEWED_TOGETHER`] after the one of the number `after`.
    /// [`Self::note_end`] gets the answers. One that the store did not tell of ends by itself, since another stream may have it by now.
    pub fn ends(&self, after: Option<u64>) -> (Vec<u64>, Vec<Ask>) {
        let told = |(_, lease): &(&u64, &Lease<T>)| lease.expires_us.is_some();
        let mut numbers: Vec<u64> = self
            .leases
            .iter()
            .filter(told)
            .map(|(number, _)| *number)
            .filter(|number| after.is_none_or(|after| *number > after))
            .collect();
        numbers.sort_unstable();
        numbers.truncate(RENEWED_TOGETHER);
        let leases = numbers.iter().filter_map(|number| self.leases.get(number));
        let asked = leases.filter_map(|lease| Some(lease.ask(lease.end()?)));
        let asked = asked.collect();
        (numbers, asked)
    }

    /// Notes what became of one. Where the store did not confirm it, it is to be asked for again.
    pub fn note_end(&mut self, number: u64, answer: &Result<LeaseEvent, StoreError>) {
        if answer.is_ok()
            && let Some(ended) = self.leases.remove(&number)
        {
            self.numbers.remove(&ended.name);
        }
    }
}

impl<T> Lease<T> {
    /// What is to be asked to end it, if the store told when it does.
    fn end(&self) -> Option<LeaseCall> {
        Some(LeaseCall::End {
            expires_us: self.expires_us?,
            until_us: self.until_us,
        })
    }

    /// Whether a lease that this stream has opened, and of which it was not told yet, lasts for longer than it did then: another one has
    /// taken it over since.
    fn was_taken(&self, expires_in_us: u64) -> bool {
        let left = self.ends_at.saturating_duration_since(self.asked_at);
        let since = Duration::from_micros(self.ttl_us).saturating_sub(left);
        let longest = left + CLOCKS_DIFFER + since / CLOCKS_DIFFER_DIVISOR;
        self.is_new && self.expires_us.is_none() && Duration::from_micros(expires_in_us) > longest
    }

    /// What is to be asked to prolong it. A renewal without an answer is sent again as it was, since it may have been carried out.
    fn renewal(&mut self, now: Instant) -> LeaseCall {
        self.asked_at = now;
        let Some(expires_us) = self.expires_us else {
            return LeaseCall::Take {
                ttl_us: self.ttl_us,
                is_new: self.is_new,
            };
        };
        if self.until_us == 0 {
            let left = self.ends_at.saturating_duration_since(now).as_micros();
            let left_us = u64::try_from(left).unwrap_or(u64::MAX);
            // By the store's time, or a little before it: above the longest lease, the store would set another end.
            let since_us = self.ttl_us.saturating_sub(left_us);
            let now_us =
                expires_us.saturating_sub(left_us + since_us / u64::from(CLOCKS_DIFFER_DIVISOR));
            self.until_us = now_us.saturating_add(self.ttl_us);
        }
        LeaseCall::Renew {
            expires_us,
            until_us: self.until_us,
        }
    }

    fn ask(&self, call: LeaseCall) -> Ask {
        Ask {
            key: self.name.key.clone(),
            decided_by: self.decided_by.clone(),
            id: self.name.id.clone(),
            call,
        }
    }
}

#[cfg(test)]
mod tests;
