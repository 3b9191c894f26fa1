//! Lines as a state machine: random arrivals, calls and returns; nothing is lost, doubled, overtaken or of two slots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Mode;
use crate::clock::monotonic;
use crate::plan::{OnStoreFailure, Plan, Rule};
use crate::store::StoreError;
use crate::store::redis::call::Request;

/// Its place among all that came, and whether it has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark(usize, bool);

impl Waiter for Mark {
    fn is_gone(&self) -> bool {
        self.1
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// So many requests, alone or as a batch, for names of a few slots.
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

fn entry(mark: Mark, name: &str, until: Instant) -> Entry<Mark> {
    let (rule, on_store_failure) = (Rule::Limits(Vec::new()), OnStoreFailure::Allow);
    let plan = Arc::new(Plan { name: "p".into(), counts_as: "g".into(), rule, shadow: false, on_store_failure });
    Entry { request: Request { name: name.to_owned(), plan, cost: 1, mode: Mode::Charge }, until, waiter: mark }
}

/// Names of which some share a slot: it is made of what stands in braces.
fn name(number: usize) -> String {
    format!("{{{}}}{}", number % 5, number % 3)
}

/// What a call holds, by name in the order that it is decided in; and its one slot.
fn contents(call: Call<Mark>) -> (u16, Vec<(String, Mark)>) {
    let slots: BTreeSet<u16> = call.groups.iter().map(|group| name::slot(&group.name)).collect();
    assert_eq!(slots.len(), 1, "keys of several slots");
    let names = call.groups.iter().flat_map(|group| vec![group.name.clone(); group.members.len()]).collect::<Vec<_>>();
    let answers = call.answers(Err(&StoreError::Full));
    (slots.into_iter().next().unwrap(), names.into_iter().zip(answers).map(|(name, (mark, _))| (name, mark)).collect())
}

proptest! {
    #[test]
    fn every_request_goes_out_once_in_its_name_s_order_one_call_a_slot(steps in prop::collection::vec(step(), 1..80)) {
        let (now, mut lines, mut came) = (monotonic(), Lines::default(), 0);
        let mut under_way: VecDeque<Call<Mark>> = VecDeque::new();
        let (mut sent, mut last) = (BTreeSet::new(), BTreeMap::new());
        // As many turns as there can be calls.
        let drain = (0..400).flat_map(|_| [Step::Compose, Step::Return]);
        for step in steps.into_iter().chain(drain) {
            match step {
                Step::Arrive { requests, alone } => {
                    let entries = (came..came + requests).map(|mark| entry(Mark(mark, mark % 7 == 0), &name(mark), now));
                    if alone { entries.for_each(|entry| lines.push(entry)) } else { lines.push_batch(entries.collect()) }
                    came += requests;
                }
                Step::Compose => {
                    let call = lines.compose();
                    if call.latest().is_none() {
                        continue;
                    }
                    let slot = name::slot(&call.groups[0].name);
                    prop_assert!(under_way.iter().all(|other| name::slot(&other.groups[0].name) != slot), "two calls of a slot");
                    under_way.push_back(call);
                }
                Step::Return => {
                    let Some(call) = under_way.pop_front() else { continue };
                    lines.returned(&call);
                    for (name, mark) in contents(call).1 {
                        prop_assert!(!mark.1, "sent for one who had gone");
                        prop_assert!(sent.insert(mark.0), "sent twice");
                        prop_assert!(last.insert(name, mark.0).is_none_or(|before| before < mark.0), "overtaken");
                    }
                }
            }
        }
        let stayed: BTreeSet<usize> = (0..came).filter(|mark| mark % 7 != 0).collect();
        prop_assert_eq!(sent, stayed);
        prop_assert!(lines.lines.is_empty());
    }
}

#[test]
fn a_batch_of_many_slots_does_not_stand_before_others() {
    let (now, mut lines) = (monotonic(), Lines::default());
    lines.push_batch((0..1_000).map(|mark| entry(Mark(mark, false), &format!("{{{mark}}}"), now)).collect());
    lines.push(entry(Mark(1_000, false), "{alone}", now));
    let firsts: Vec<usize> = (0..2).flat_map(|_| contents(lines.compose()).1).map(|(_, mark)| mark.0).collect();
    assert!(firsts.contains(&1_000), "{firsts:?}");
}

#[test]
fn those_whose_time_is_over_are_taken_out_and_their_slot_goes_on() {
    let (now, mut lines) = (monotonic(), Lines::default());
    let later = now + Duration::from_secs(1);
    lines.push(entry(Mark(0, false), "{a}", now));
    lines.push(entry(Mark(1, false), "{b}", now));
    lines.push(entry(Mark(2, false), "{b}", later));
    assert_eq!(lines.earliest(), Some(now));
    let mut expired = lines.expire(now);
    expired.sort_by_key(|mark| mark.0);
    assert_eq!(expired, [Mark(0, false), Mark(1, false)]);
    assert_eq!(lines.earliest(), Some(later));
    lines.push(entry(Mark(3, false), "{a}", later));
    let mut sent: Vec<usize> = (0..2).flat_map(|_| contents(lines.compose()).1).map(|(_, mark)| mark.0).collect();
    sent.sort();
    assert_eq!(sent, [2, 3]);
    assert!(lines.compose().latest().is_none());
}
