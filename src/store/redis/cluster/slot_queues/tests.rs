//! The queues as a state machine under random arrivals, calls and returns. No request is lost, sent twice or overtaken, and
//! no call has two slots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Mode;
use crate::clock::monotonic;
use crate::plan::{OnStoreFailure, Plan, Rule};
use crate::store::StoreError;
use crate::store::redis::batcher::call::ScriptRequest;

/// A waiter: the number of its request in the order of arrival, and whether it has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tag(usize, bool);

impl Waiter for Tag {
    fn is_gone(&self) -> bool {
        self.1
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// `requests` requests arrive, alone or as a batch, for names of a few slots.
    Arrive {
        requests: usize,
        alone: bool,
    },
    Compose,
    Return,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..20_usize, any::<bool>()).prop_map(|(requests, alone)| Step::Arrive { requests, alone }),
        1 => (300..600_usize).prop_map(|requests| Step::Arrive { requests, alone: false }),
        6 => Just(Step::Compose),
        6 => Just(Step::Return),
    ]
}

fn entry(tag: Tag, name: &str, until: Instant) -> QueuedRequest<Tag> {
    let (rule, on_store_failure) = (Rule::Limits(Vec::new()), OnStoreFailure::Allow);
    let plan = Arc::new(Plan { name: "p".into(), counts_as: "g".into(), rule, shadow: false, on_store_failure });
    QueuedRequest { request: ScriptRequest { name: name.to_owned(), plan, cost: 1, mode: Mode::Charge }, until, waiter: tag }
}

/// A name of which some share a slot. The slot depends on the text in braces.
fn name(number: usize) -> String {
    format!("{{{}}}{}", number % 5, number % 3)
}

/// The slot of a call, and its requests by name in the order of decision.
fn contents(call: Call<Tag>) -> (u16, Vec<(String, Tag)>) {
    let slots: BTreeSet<u16> = call.groups.iter().map(|group| name::slot(&group.name)).collect();
    assert_eq!(slots.len(), 1, "keys of several slots");
    let names = call.groups.iter().flat_map(|group| vec![group.name.clone(); group.members.len()]).collect::<Vec<_>>();
    let answers = call.answers(Err(&StoreError::Full));
    (slots.into_iter().next().unwrap(), names.into_iter().zip(answers).map(|(name, (tag, _))| (name, tag)).collect())
}

proptest! {
    #[test]
    fn every_request_goes_out_once_in_its_name_s_order_one_call_a_slot(steps in prop::collection::vec(step(), 1..80)) {
        let (now, mut queues, mut came) = (monotonic(), SlotQueues::default(), 0);
        let mut in_flight: VecDeque<Call<Tag>> = VecDeque::new();
        let (mut sent, mut last) = (BTreeSet::new(), BTreeMap::new());
        // As many rounds as there can be calls.
        let drain = (0..400).flat_map(|_| [Step::Compose, Step::Return]);
        for step in steps.into_iter().chain(drain) {
            match step {
                Step::Arrive { requests, alone } => {
                    let entries = (came..came + requests).map(|tag| entry(Tag(tag, tag % 7 == 0), &name(tag), now));
                    if alone { entries.for_each(|entry| queues.push(entry)) } else { queues.push_batch(entries.collect()) }
                    came += requests;
                }
                Step::Compose => {
                    let call = queues.compose();
                    if call.latest().is_none() {
                        continue;
                    }
                    let slot = name::slot(&call.groups[0].name);
                    prop_assert!(in_flight.iter().all(|other| name::slot(&other.groups[0].name) != slot), "two calls of a slot");
                    in_flight.push_back(call);
                }
                Step::Return => {
                    let Some(call) = in_flight.pop_front() else { continue };
                    queues.returned(&call);
                    for (name, tag) in contents(call).1 {
                        prop_assert!(!tag.1, "sent although its waiter had gone");
                        prop_assert!(sent.insert(tag.0), "sent twice");
                        prop_assert!(last.insert(name, tag.0).is_none_or(|before| before < tag.0), "overtaken");
                    }
                }
            }
        }
        let stayed: BTreeSet<usize> = (0..came).filter(|tag| tag % 7 != 0).collect();
        prop_assert_eq!(sent, stayed);
        prop_assert!(queues.queues.is_empty());
    }
}

#[test]
fn a_batch_of_many_slots_does_not_delay_others() {
    let (now, mut queues) = (monotonic(), SlotQueues::default());
    queues.push_batch((0..1_000).map(|tag| entry(Tag(tag, false), &format!("{{{tag}}}"), now)).collect());
    queues.push(entry(Tag(1_000, false), "{alone}", now));
    let firsts: Vec<usize> = (0..2).flat_map(|_| contents(queues.compose()).1).map(|(_, tag)| tag.0).collect();
    assert!(firsts.contains(&1_000), "{firsts:?}");
}

#[test]
fn expired_requests_are_taken_out_and_their_slot_goes_on() {
    let (now, mut queues) = (monotonic(), SlotQueues::default());
    let later = now + Duration::from_secs(1);
    queues.push(entry(Tag(0, false), "{a}", now));
    queues.push(entry(Tag(1, false), "{b}", now));
    queues.push(entry(Tag(2, false), "{b}", later));
    assert_eq!(queues.earliest(), Some(now));
    let mut expired = queues.expire(now);
    expired.sort_by_key(|tag| tag.0);
    assert_eq!(expired, [Tag(0, false), Tag(1, false)]);
    assert_eq!(queues.earliest(), Some(later));
    queues.push(entry(Tag(3, false), "{a}", later));
    let mut sent: Vec<usize> = (0..2).flat_map(|_| contents(queues.compose()).1).map(|(_, tag)| tag.0).collect();
    sent.sort();
    assert_eq!(sent, [2, 3]);
    assert!(queues.compose().latest().is_none());
}
