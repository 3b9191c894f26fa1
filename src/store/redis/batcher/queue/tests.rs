//! The queue as a state machine under random arrivals, departures and calls. No request is lost, sent twice or starved.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Mode;
use crate::clock::monotonic;
use crate::plan::{OnStoreFailure, Plan, Rule};
use crate::store::redis::batcher::call::REQUESTS_MAX;

/// A waiter: the job that it came with, its place in the job, and whether it has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Tag {
    job: usize,
    place: usize,
    gone: bool,
}

impl Waiter for Tag {
    fn is_gone(&self) -> bool {
        self.gone
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// A job of `requests` requests for `names` names arrives. Some waiters have gone, and some requests have expired.
    Arrive {
        requests: usize,
        names: usize,
    },
    Compose,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..8_usize, 1..60_usize).prop_map(|(requests, names)| Step::Arrive { requests, names }),
        1 => (200..400_usize, 1..60_usize).prop_map(|(requests, names)| Step::Arrive { requests, names }),
        4 => Just(Step::Compose),
    ]
}

fn plan() -> Arc<Plan> {
    let rule = Rule::Limits(Vec::new());
    Arc::new(Plan { name: "p".into(), counts_as: "g".into(), rule, shadow: false, on_store_failure: OnStoreFailure::Allow })
}

/// The tags of a call in the order that its requests were taken: by the name's first, then each name's order. Of one job
/// and one name this is the job's order.
fn tags(call: Call<Tag>) -> Vec<(String, Tag)> {
    let names: Vec<String> =
        call.groups.iter().flat_map(|group| group.members.iter().map(|_| group.name.clone()).collect::<Vec<_>>()).collect();
    let error = crate::store::StoreError::Full;
    names.into_iter().zip(call.answers(Err(&error)).map(|(tag, _)| tag)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_sent_once_in_its_jobs_order_unless_its_waiter_is_gone(steps in prop::collection::vec(step(), 1..40)) {
        let (mut queue, now) = (Queue::default(), monotonic());
        let (mut expected, mut sent): (Vec<Tag>, Vec<Tag>) = (Vec::new(), Vec::new());
        let mut drained = steps.clone();
        drained.extend(std::iter::repeat_n(Step::Compose, 10_000 / SCRIPT_NAMES_MAX));
        for (job, step) in drained.into_iter().enumerate() {
            match step {
                Step::Arrive { requests, names } => {
                    let entries: VecDeque<QueuedRequest<Tag>> = (0..requests).map(|place| {
                        let tag = Tag { job, place, gone: place % 11 == 10 };
                        let until = if place % 13 == 12 { now } else { now + Duration::from_secs(1) };
                        if !tag.gone && until > now {
                            expected.push(tag);
                        }
                        let request = ScriptRequest { name: (place * 7 % names).to_string(), plan: plan(), cost: 1, mode: Mode::Charge };
                        QueuedRequest { request, until, waiter: tag }
                    }).collect();
                    if requests == 1 {
                        entries.into_iter().for_each(|entry| queue.push(entry));
                    } else {
                        queue.push_batch(entries);
                    }
                }
                Step::Compose => {
                    let expired = queue.expire(now);
                    prop_assert!(expired.iter().all(|tag| tag.place % 13 == 12));
                    let before = queue.len;
                    let call = queue.compose();
                    let until = call.latest();
                    prop_assert!(call.groups.len() <= SCRIPT_NAMES_MAX);
                    let tags = tags(call);
                    prop_assert!(tags.len() <= REQUESTS_MAX);
                    prop_assert_eq!(until.is_none(), tags.is_empty());
                    prop_assert!(queue.len + tags.len() <= before);
                    for (a, b) in tags.iter().zip(tags.iter().skip(1)) {
                        let in_order = a.0 != b.0 || a.1.job != b.1.job || a.1.place < b.1.place;
                        prop_assert!(in_order, "{:?} before {:?}", a, b);
                    }
                    sent.extend(tags.into_iter().map(|(_, tag)| tag));
                }
            }
        }
        prop_assert_eq!(queue.len, 0);
        sent.sort();
        prop_assert_eq!(sent, expected);
    }
}

#[test]
fn a_large_batch_does_not_delay_others() {
    let (mut queue, now) = (Queue::default(), monotonic());
    let entry = |job: usize, place: usize| {
        let request = ScriptRequest { name: format!("{job}.{place}"), plan: plan(), cost: 1, mode: Mode::Charge };
        QueuedRequest { request, until: now + Duration::from_secs(1), waiter: Tag { job, place, gone: false } }
    };
    queue.push_batch((0..1000).map(|place| entry(0, place)).collect());
    queue.push_batch((0..1000).map(|place| entry(1, place)).collect());
    (2..30).for_each(|job| queue.push(entry(job, 0)));
    let call = queue.compose();
    let mut shares = [0; 3];
    tags(call).iter().for_each(|(_, tag)| shares[tag.job.min(2)] += 1);
    assert_eq!(shares, [8, 8, 16]);
}

#[test]
fn expired_requests_are_taken_out_of_queue_and_call_once() {
    let (mut queue, now) = (Queue::default(), monotonic());
    let after = |ms| now + Duration::from_millis(ms);
    let entry = |place: usize, ms| {
        let request = ScriptRequest { name: place.to_string(), plan: plan(), cost: 1, mode: Mode::Charge };
        QueuedRequest { request, until: after(ms), waiter: Tag { job: 0, place, gone: false } }
    };
    queue.push(entry(0, 2));
    queue.push(entry(1, 5));
    let mut call = queue.compose();
    queue.push(entry(2, 3));
    queue.push_batch([entry(3, 1), entry(4, 9)].into());
    assert_eq!((call.earliest(), call.latest(), queue.earliest()), (Some(after(2)), Some(after(5)), Some(after(1))));
    assert!(call.expire(after(1)).is_empty());
    let places = |tags: Vec<Tag>| tags.into_iter().map(|tag| tag.place).collect::<Vec<_>>();
    assert_eq!(places(queue.expire(after(3))), [3, 2]);
    assert_eq!((queue.len, queue.earliest()), (1, Some(after(9))));
    assert_eq!(places(call.expire(after(2))), [0]);
    assert_eq!(call.earliest(), Some(after(5)));
    assert_eq!(tags(call).into_iter().map(|(_, tag)| tag.place).collect::<Vec<_>>(), [1]);
}
