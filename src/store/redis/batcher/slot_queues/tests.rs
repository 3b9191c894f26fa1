//! The queues as a state machine under random arrivals, calls and returns. No request is lost, sent twice or overtaken by one of
//! its own batch, and no slot has two calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;
use crate::clock::monotonic;
use crate::redis::batcher::Answer;
use crate::redis::batcher::call::WORK_MAX;
use crate::redis::batcher::caller::Caller;
use tollgate_core::algorithm::Mode;
use tollgate_core::plan::{Algorithm, Limit, Plan, Rule, SLIDING_LOG_QUOTA_MAX};

#[derive(Debug, Clone)]
enum Step {
    /// `requests` requests arrive, alone or as a batch, for names of a few slots.
    Arrive {
        requests: u64,
        alone: bool,
    },
    /// A call with so much work left to heavy requests.
    Compose(usize),
    Return,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..20_u64, any::<bool>()).prop_map(|(requests, alone)| Step::Arrive { requests, alone }),
        1 => (300..600_u64).prop_map(|requests| Step::Arrive { requests, alone: false }),
        4 => Just(Step::Compose(WORK_MAX)),
        2 => (0..3_usize).prop_map(Step::Compose),
        6 => Just(Step::Return),
    ]
}

/// The request of this number in the order of arrival. The number is its cost, which a queue ignores.
fn request(number: u64, name: &str, until: Instant) -> ScriptRequest {
    // Every third searches a log.
    let limits = number.is_multiple_of(3).then(|| {
        Limit::new(
            "log",
            SLIDING_LOG_QUOTA_MAX,
            Duration::from_secs(1),
            Algorithm::SlidingLog,
        )
        .unwrap()
    });
    let plan = Arc::new(Plan {
        counts_as: "g".into(),
        ..Plan::new("p", Rule::limits(limits))
    });
    ScriptRequest::named(name.to_owned(), plan, number, Mode::Charge, until)
}

/// Gives the request a caller, which waits as long as the receiver is kept.
fn with_caller(mut request: ScriptRequest) -> (ScriptRequest, oneshot::Receiver<Answer>) {
    let (caller, answered) = Caller::for_test();
    request.caller = Some(caller);
    (request, answered)
}

/// A name of which some share a slot. The slot depends on the text in braces.
fn name(number: u64) -> String {
    format!("{{{}}}{}", number % 5, number % 3)
}

/// The queues of a node that wants names to be keys.
fn by_slot() -> SlotQueues {
    let mut queues = SlotQueues::default();
    queues.refusals.refused_call(false);
    queues
}

fn slots(call: &Call) -> BTreeSet<u16> {
    call.requests()
        .map(|request| name::slot(&request.name))
        .collect()
}

/// The name and the number of each request of a call, in the order of decision. Names of several slots must not be keys.
fn contents(call: &Call) -> Vec<(String, u64)> {
    assert_eq!(slots(call).len() > 1, call.by_names);
    call.requests()
        .map(|request| (request.name.clone(), request.cost))
        .collect()
}

proptest! {
    #[test]
    fn every_request_goes_out_once_in_the_order_of_its_batch_one_call_a_slot(
        steps in prop::collection::vec(step(), 1..80),
        takes_names in any::<bool>(),
    ) {
        let now = monotonic();
        let mut queues = if takes_names { SlotQueues::default() } else { by_slot() };
        let mut came = 0;
        let mut in_flight: VecDeque<Call> = VecDeque::new();
        let mut waiting: Vec<_> = Vec::new();
        let mut sent = BTreeSet::new();
        let mut last = BTreeMap::new();
        // By number: the first number of its batch. Single requests count as one batch, but for those that search a log: they are heavy.
        let mut batch_of = Vec::new();
        // As many rounds as there can be calls.
        let drain = (0..2_000).flat_map(|_| [Step::Compose(WORK_MAX), Step::Return]);
        for step in steps.into_iter().chain(drain) {
            match step {
                Step::Arrive { requests, alone } => {
                    let arriving: VecDeque<ScriptRequest> = (came..came + requests).map(|number| {
                        let (request, answered) = with_caller(request(number, &name(number), now));
                        waiting.extend((number % 7 != 0).then_some(answered));
                        request
                    }).collect();
                    if alone { arriving.into_iter().for_each(|request| queues.push(request)) } else { queues.push_batch(arriving) }
                    batch_of.extend((came..came + requests).map(|number| match alone {
                        true if number.is_multiple_of(3) => number,
                        true => u64::MAX,
                        false => came,
                    }));
                    came += requests;
                }
                Step::Compose(work_left) => {
                    let call = queues.compose(work_left);
                    prop_assert!(call.work <= work_left);
                    if call.groups.is_empty() {
                        continue;
                    }
                    prop_assert!(takes_names || !call.by_names);
                    prop_assert!(in_flight.iter().all(|other| slots(other).is_disjoint(&slots(&call))), "two calls of a slot");
                    in_flight.push_back(call);
                }
                Step::Return => {
                    let Some(call) = in_flight.pop_front() else { continue };
                    queues.returned(&call);
                    for (name, number) in contents(&call) {
                        prop_assert!(number % 7 != 0, "sent although its caller had gone");
                        prop_assert!(sent.insert(number), "sent twice");
                        let batch = batch_of[usize::try_from(number).unwrap()];
                        prop_assert!(last.insert((name, batch), number).is_none_or(|before| before < number), "overtaken");
                    }
                }
            }
        }
        let stayed: BTreeSet<u64> = (0..came).filter(|number| number % 7 != 0).collect();
        prop_assert_eq!(sent, stayed);
        prop_assert!(queues.queues.is_empty());
    }
}

#[test]
fn a_batch_of_many_slots_does_not_delay_others() {
    let now = monotonic();
    let mut queues = by_slot();
    queues.push_batch(
        (0..1_000)
            .map(|number| request(number, &format!("{{{number}}}"), now))
            .collect(),
    );
    queues.push(request(1_000, "{alone}", now));
    let firsts: Vec<u64> = (0..2)
        .flat_map(|_| contents(&queues.compose(WORK_MAX)))
        .map(|(_, number)| number)
        .collect();
    assert!(firsts.contains(&1_000), "{firsts:?}");
}

/// Customers' keys of one shard are all of one slot.
#[test]
fn a_batch_of_one_slot_does_not_delay_others_of_the_slot() {
    let now = monotonic();
    let mut queues = SlotQueues::default();
    // Every third is heavy, and no heavy one may be sent.
    queues.push_batch(
        (0..1_000)
            .map(|number| request(number, "{a}", now))
            .collect(),
    );
    queues.push(request(1_000, "{a}alone", now));
    let sent: Vec<u64> = contents(&queues.compose(0))
        .into_iter()
        .map(|(_, number)| number)
        .collect();
    assert_eq!(sent, [1_000]);
}

#[test]
fn expired_requests_are_taken_out_and_their_slot_goes_on() {
    let now = monotonic();
    let mut queues = SlotQueues::default();
    let later = now + Duration::from_secs(1);
    queues.push(request(0, "{a}", now));
    queues.push(request(1, "{b}", now));
    queues.push(request(2, "{b}", later));
    assert_eq!(queues.earliest(), Some(now));
    let mut expired: Vec<u64> = queues
        .expire(now)
        .iter()
        .map(|request| request.cost)
        .collect();
    expired.sort_unstable();
    assert_eq!(expired, [0, 1]);
    assert_eq!(queues.earliest(), Some(later));
    queues.push(request(3, "{a}", later));
    let mut sent: Vec<u64> = (0..2)
        .flat_map(|_| contents(&queues.compose(WORK_MAX)))
        .map(|(_, number)| number)
        .collect();
    sent.sort_unstable();
    assert_eq!(sent, [2, 3]);
    assert!(queues.compose(WORK_MAX).groups.is_empty());
}

#[test]
fn a_call_takes_names_of_many_slots_until_the_node_refuses_them_in_a_row() {
    let now = monotonic();
    let mut queues = SlotQueues::default();
    let batch = || {
        (0..1_000)
            .map(|number| request(number, &format!("{{{number}}}"), now))
            .collect()
    };
    queues.push_batch(batch());
    assert!(queues.is_ready(CALLS_MAX - 1, false) && !queues.is_ready(CALLS_MAX, true));
    assert_eq!(queues.compose(WORK_MAX).groups.len(), SCRIPT_NAMES_MAX);
    (1..REFUSALS_MAX).for_each(|_| queues.refusals.refused());
    queues.refusals.accepted();
    queues.refusals.refused();
    assert_eq!(queues.compose(WORK_MAX).groups.len(), SCRIPT_NAMES_MAX);
    (1..REFUSALS_MAX).for_each(|_| queues.refusals.refused());
    assert_eq!(queues.compose(WORK_MAX).groups.len(), 1);
    assert!(queues.is_ready(CALLS_MAX, false));
    // A node that took names once may fail a call for another reason.
    queues.refusals.accepted();
    assert!(!queues.refusals.refused_call(false));
    assert!(!queues.is_ready(CALLS_MAX, false));
    // Unless it does so again and again.
    assert!((1..REFUSALS_MAX).all(|_| !queues.refusals.refused_call(false)));
    assert!(queues.is_ready(CALLS_MAX, false));
    assert!(NameRefusals::default().refused_call(false));
}

/// What ran may have written for some names: to send them again would charge them twice.
#[test]
fn a_call_that_may_have_run_is_not_sent_again_and_the_next_ones_go_by_slot() {
    let now = monotonic();
    let mut queues = SlotQueues::default();
    assert!(!queues.refusals.refused_call(true));
    queues.push_batch(
        (0..9)
            .map(|number| request(number, &format!("{{{number}}}"), now))
            .collect(),
    );
    assert_eq!(queues.compose(WORK_MAX).groups.len(), 1);
}

#[test]
fn names_are_tried_again_after_many_calls_by_slot() {
    let now = monotonic();
    let mut queues = SlotQueues::default();
    (0..REFUSALS_MAX).for_each(|_| queues.refusals.refused());
    for round in 0..2 {
        for number in 0..BY_SLOT_MAX as u64 {
            queues.push(request(number, "{0}", now));
            let call = queues.compose(WORK_MAX);
            queues.returned(&call);
        }
        queues.push_batch(
            (0..9)
                .map(|number| request(number, &format!("{{{number}}}"), now))
                .collect(),
        );
        let call = queues.compose(WORK_MAX);
        assert!(call.by_names && call.groups.len() == 9, "round {round}");
        queues.returned(&call);
        queues.refusals.refused();
    }
    assert!(!queues.refusals.takes_names());
}
