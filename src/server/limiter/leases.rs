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
        let (mut numbers, mut asked) = (Vec::new(), Vec::new());
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
mod tests {
    use super::*;
    use tollgate_core::plan::Rule;

    const TTL_US: u64 = 30_000_000;
    /// When leases end of which the store told at first.
    const TOLD_US: u64 = 1_000_000_000;
    const OPEN: LeaseEvent = LeaseEvent::Open {
        expires_us: 2,
        expires_in_us: TTL_US,
    };

    fn name(id: &str) -> LeaseName {
        LeaseName {
            counts_as: "p".into(),
            key: Key::new("k".to_owned()).unwrap(),
            id: RequestId::new(id).unwrap(),
        }
    }

    fn new(id: &str, expires_us: Option<u64>, began: Instant) -> NewLease<()> {
        NewLease {
            name: name(id),
            decided_by: Arc::new(Plan::new("p", Rule::Unlimited)),
            ttl_us: TTL_US,
            is_new: true,
            ends: (expires_us, TTL_US),
            told_at: began,
            tag: (),
        }
    }

    fn after(began: Instant, seconds: u64) -> Instant {
        began + Duration::from_secs(seconds)
    }

    /// The reason with which one hold is lost by this answer after so many seconds.
    fn lost_by(answer: Result<LeaseEvent, StoreError>, seconds: u64) -> Option<LostReason> {
        let (mut leases, began) = (Leases::default(), tollgate_store::clock::monotonic());
        leases.add(new("a", Some(TOLD_US), began), began);
        let (numbers, _) = leases.take_due(after(began, 10));
        let lost = leases.note(numbers[0], answer, after(began, seconds));
        assert_eq!(leases.is_empty(), lost.is_some());
        lost.map(|lost| lost.reason)
    }

    #[test]
    fn a_lease_is_renewed_when_a_third_of_it_has_passed_and_with_it_those_that_are_due_soon() {
        let (mut leases, began) = (Leases::default(), tollgate_store::clock::monotonic());
        leases.add(new("a", Some(TOLD_US), began), began);
        leases.add(
            new("b", Some(TOLD_US), began + DUE_TOGETHER),
            began + DUE_TOGETHER,
        );
        leases.add(new("c", Some(TOLD_US), after(began, 1)), after(began, 1));
        assert_eq!(leases.next_due(), Some(after(began, 10)));
        assert!(leases.take_due(after(began, 9)).0.is_empty());
        let (numbers, asked) = leases.take_due(after(began, 10));
        let ids: Vec<&str> = asked.iter().map(|ask| ask.id.as_str()).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(asked[0].call, renewed_after(10));
        assert_eq!(leases.next_due(), Some(after(began, 11)));
        for number in numbers {
            assert!(leases.note(number, Ok(OPEN), after(began, 10)).is_none());
        }
        let (_, asked) = leases.take_due(after(began, 12));
        assert_eq!(asked.len(), 1, "c alone is due");
        assert_eq!(leases.next_due(), Some(after(began, 20)));
    }

    #[test]
    fn a_renewal_that_fails_is_tried_again_until_the_lease_ends() {
        let failed = || Err(StoreError::Unreachable("gone".to_owned()));
        assert_eq!(lost_by(failed(), 11), None);
        assert_eq!(lost_by(failed(), 29), None);
        assert_eq!(lost_by(failed(), 30), Some(LostReason::Expired));
        assert_eq!(lost_by(Ok(OPEN), 31), None);
        for reason in [
            LostReason::Settled,
            LostReason::Moved,
            LostReason::Forgotten,
        ] {
            assert_eq!(lost_by(Ok(LeaseEvent::Lost(reason)), 10), Some(reason));
        }
    }

    #[test]
    fn what_a_settle_tells_is_not_told_twice() {
        let (mut leases, began) = (Leases::default(), tollgate_store::clock::monotonic());
        leases.add(new("a", Some(TOLD_US), began), began);
        let (numbers, _) = leases.take_due(after(began, 10));
        leases.settle_begins(&name("a").key, &name("a").id);
        let settled = || Ok(LeaseEvent::Lost(LostReason::Settled));
        assert!(leases.note(numbers[0], settled(), began).is_none());
        assert!(leases.is_empty());
        leases.settle_ends(name("a").key, name("a").id);
        leases.add(new("a", Some(TOLD_US), began), began);
        let (numbers, _) = leases.take_due(after(began, 10));
        assert!(leases.note(numbers[0], settled(), began).is_some());
    }

    /// The renewal that is asked for so many seconds after the store told.
    fn renewed_after(seconds: u64) -> LeaseCall {
        LeaseCall::Renew {
            expires_us: TOLD_US,
            until_us: TOLD_US + seconds * 999_000,
        }
    }

    /// The first one may have been carried out, which the second one and the end have to match.
    #[test]
    fn a_renewal_without_an_answer_is_sent_again_as_it_was() {
        let (mut leases, began) = (Leases::default(), tollgate_store::clock::monotonic());
        leases.add(new("a", Some(TOLD_US), began), began);
        for seconds in [10, 13, 16] {
            let (numbers, asked) = leases.take_due(after(began, seconds));
            assert_eq!(asked[0].call, renewed_after(10));
            let late = Err(StoreError::Deadline(Duration::from_millis(25)));
            assert!(
                leases
                    .note(numbers[0], late, after(began, seconds))
                    .is_none()
            );
        }
        let end = LeaseCall::End {
            expires_us: TOLD_US,
            until_us: TOLD_US + 9_990_000,
        };
        assert_eq!(leases.ends(None).1[0].call, end);
        // It has 21 s left, of which a third passes until the next one.
        let (numbers, _) = leases.take_due(after(began, 19));
        let open = LeaseEvent::Open {
            expires_us: TOLD_US + 10_000_000,
            expires_in_us: 21_000_000,
        };
        leases.note(numbers[0], Ok(open), after(began, 19));
        assert_eq!(leases.next_due(), Some(after(began, 26)));
    }

    #[test]
    fn an_end_is_asked_for_until_the_store_confirms_it() {
        let (mut leases, began) = (Leases::default(), tollgate_store::clock::monotonic());
        leases.add(new("a", Some(7), began), began);
        leases.add(new("b", None, began), began);
        leases.add(new("c", Some(8), began), began);
        let end = |expires_us| LeaseCall::End {
            expires_us,
            until_us: 0,
        };
        // Another stream may have the one of which nothing was told.
        let (numbers, asked) = leases.ends(None);
        assert_eq!([asked[0].call, asked[1].call], [end(7), end(8)]);
        assert_eq!(leases.ends(Some(numbers[0])).0, numbers[1..]);
        leases.note_end(numbers[0], &Err(StoreError::Overloaded(1)));
        leases.note_end(numbers[1], &Ok(LeaseEvent::Lost(LostReason::Moved)));
        let (numbers, asked) = leases.ends(None);
        assert_eq!((asked.len(), asked[0].call), (1, end(7)));
        leases.note_end(numbers[0], &Ok(LeaseEvent::Ended));
        assert!(leases.ends(None).0.is_empty());
    }

    /// A reserve whose take had no answer: another stream may have taken it over since, for as long.
    #[test]
    fn a_hold_that_lasts_longer_than_its_reserve_told_is_another_stream_s() {
        for (expires_in_us, lost) in [
            (TTL_US - 1_000_000, None),
            (TTL_US - 900_000, Some(LostReason::Moved)),
        ] {
            let (mut leases, began) = (Leases::default(), tollgate_store::clock::monotonic());
            leases.add(new("a", None, began), began);
            let (numbers, _) = leases.take_due(after(began, 1));
            let open = LeaseEvent::Open {
                expires_us: 5,
                expires_in_us,
            };
            let told = leases.note(numbers[0], Ok(open), after(began, 2));
            assert_eq!(told.map(|told| told.reason), lost);
        }
    }

    /// The take of a repeated reserve may have been carried out without an answer. It is not the end that was told before, then.
    #[test]
    fn a_take_over_without_an_answer_is_sent_again() {
        let (mut leases, began) = (Leases::default(), tollgate_store::clock::monotonic());
        leases.add(new("a", Some(7), began), began);
        let again = |is_new| NewLease {
            is_new,
            ..new("a", None, began)
        };
        leases.add(again(true), began);
        assert_eq!(leases.ends(None).0.len(), 1, "what comes late tells less");
        leases.add(again(false), began);
        assert!(leases.ends(None).0.is_empty());
        let (_, asked) = leases.take_due(began + RETRY_MIN);
        let take = LeaseCall::Take {
            ttl_us: TTL_US,
            is_new: false,
        };
        assert_eq!(asked[0].call, take);
    }

    #[test]
    fn what_the_store_did_not_tell_of_is_asked_for_soon() {
        let (mut leases, began) = (Leases::default(), tollgate_store::clock::monotonic());
        leases.add(new("b", None, began), began);
        leases.add(new("a", Some(7), began), began);
        let (_, asked) = leases.take_due(began + RETRY_MIN);
        let take = LeaseCall::Take {
            ttl_us: TTL_US,
            is_new: true,
        };
        assert_eq!((asked.len(), asked[0].call), (1, take));
        // One of the same name takes its place, and not that of one that was told later.
        for (told, known) in [(9, 9), (8, 9)] {
            leases.add(new("a", Some(told), began), began);
            let end = LeaseCall::End {
                expires_us: known,
                until_us: 0,
            };
            assert_eq!((leases.len(), leases.ends(None).1[0].call), (2, end));
        }
        leases.remove(&name("a"));
        assert_eq!(
            (leases.len(), leases.has(&name("a").key, &name("a").id)),
            (1, false)
        );
    }
}
