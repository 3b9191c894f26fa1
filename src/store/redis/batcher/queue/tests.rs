//! The queue as a state machine under random arrivals, departures and calls. No request is lost, sent twice or starved.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tokio::sync::oneshot;

use super::*;
use crate::clock::monotonic;
use crate::redis::batcher::Answer;
use crate::redis::batcher::call::{REQUESTS_MAX, SEARCH_STEP_WORK, WORK_MAX};
use crate::redis::batcher::caller::Caller;
use tollgate_core::algorithm::Mode;
use tollgate_core::plan::{Algorithm, Limit, Plan, Rule, SLIDING_LOG_QUOTA_MAX, SharedLimits};

/// Identifies a request: the job that it came with, and its place in the job. It is the request's cost, which a queue ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Tag {
    job: u64,
    place: u64,
}

const PLACES: u64 = 1 << 20;
/// Work of a search of the longest log.
const SEARCH_WORK: usize = 17 * SEARCH_STEP_WORK;

fn tag(request: &ScriptRequest) -> Tag {
    Tag {
        job: request.cost / PLACES,
        place: request.cost % PLACES,
    }
}

fn request(tag: Tag, name: String, until: Instant) -> ScriptRequest {
    ScriptRequest::named(
        name,
        plan(Vec::new()),
        tag.job * PLACES + tag.place,
        Mode::Charge,
        until,
    )
}

/// The same request, which searches so many logs.
fn searching(request: ScriptRequest, logs: usize) -> ScriptRequest {
    let limit = |window: u64| {
        Limit::new(
            "log",
            SLIDING_LOG_QUOTA_MAX,
            Duration::from_secs(1 + window),
            Algorithm::SlidingLog,
        )
        .unwrap()
    };
    let plan = plan((0_u64..).take(logs).map(limit).collect());
    ScriptRequest {
        own_limits: SharedLimits::count(plan.limits()),
        plan,
        ..request
    }
}

/// Gives the request a caller, which waits as long as the receiver is kept.
fn with_caller(mut request: ScriptRequest) -> (ScriptRequest, oneshot::Receiver<Answer>) {
    let (caller, answered) = Caller::for_test();
    request.caller = Some(caller);
    (request, answered)
}

#[derive(Debug, Clone)]
enum Step {
    /// A job of `requests` requests for `names` names arrives. Some callers have gone, and some requests have expired.
    Arrive { requests: u64, names: u64 },
    /// A call with so much work left to heavy requests.
    Compose(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..8_u64, 1..60_u64).prop_map(|(requests, names)| Step::Arrive { requests, names }),
        1 => (200..400_u64, 1..60_u64).prop_map(|(requests, names)| Step::Arrive { requests, names }),
        3 => Just(Step::Compose(WORK_MAX)),
        2 => (0..WORK_MAX).prop_map(Step::Compose),
    ]
}

fn plan(limits: Vec<Limit>) -> Arc<Plan> {
    Arc::new(Plan {
        counts_as: "g".into(),
        ..Plan::new("p", Rule::limits(limits))
    })
}

/// The name and the tag of each request of a call, in the script's order. Of one job and one name this is the job's order.
fn tags(call: &Call) -> Vec<(String, Tag)> {
    call.requests()
        .map(|request| (request.name.clone(), tag(request)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_sent_once_in_its_jobs_order_unless_its_caller_is_gone(steps in prop::collection::vec(step(), 1..40)) {
        let mut queue = Queue::default();
        let now = monotonic();
        let mut expected: Vec<Tag> = Vec::new();
        let mut sent: Vec<Tag> = Vec::new();
        let mut waiting: Vec<_> = Vec::new();
        let mut drained = steps.clone();
        drained.extend(std::iter::repeat_n(Step::Compose(WORK_MAX), 40_000 / SCRIPT_NAMES_MAX));
        for (job, step) in (0..).zip(drained) {
            match step {
                Step::Arrive { requests, names } => {
                    let arriving: VecDeque<ScriptRequest> = (0..requests).map(|place| {
                        let tag = Tag { job, place };
                        let is_gone = place % 11 == 10;
                        let until = if place % 13 == 12 { now } else { now + Duration::from_secs(1) };
                        if !is_gone && until > now {
                            expected.push(tag);
                        }
                        let (request, answered) = with_caller(request(tag, (place * 7 % names).to_string(), until));
                        let request = if job % 3 == 0 { searching(request, (place % 3) as usize) } else { request };
                        waiting.extend((!is_gone).then_some(answered));
                        request
                    }).collect();
                    if requests == 1 {
                        arriving.into_iter().for_each(|request| queue.push(request));
                    } else {
                        queue.push_batch(arriving);
                    }
                }
                Step::Compose(work_left) => {
                    let expired = queue.expire(now);
                    prop_assert!(expired.iter().all(|request| tag(request).place % 13 == 12));
                    let before = queue.len;
                    let call = queue.compose(work_left, std::iter::empty());
                    prop_assert!(call.work <= work_left.min(WORK_MAX));
                    prop_assert!(call.groups.len() <= SCRIPT_NAMES_MAX);
                    let tags = tags(&call);
                    prop_assert!(tags.len() <= REQUESTS_MAX);
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
    let mut queue = Queue::default();
    let now = monotonic();
    let request = |job, place| {
        request(
            Tag { job, place },
            format!("{job}.{place}"),
            now + Duration::from_secs(1),
        )
    };
    queue.push_batch((0..1000).map(|place| request(0, place)).collect());
    queue.push_batch((0..1000).map(|place| request(1, place)).collect());
    (2..30).for_each(|job| queue.push(request(job, 0)));
    let mut shares = [0; 3];
    tags(&queue.compose(WORK_MAX, std::iter::empty()))
        .iter()
        .for_each(|(_, tag)| shares[usize::try_from(tag.job.min(2)).unwrap()] += 1);
    assert_eq!(shares, [8, 8, 16]);
}

#[test]
fn requests_that_may_not_search_logs_yet_are_passed_and_keep_their_order() {
    let mut queue = Queue::default();
    let now = monotonic();
    let request = |job, place| {
        request(
            Tag { job, place },
            format!("{job}.{place}"),
            now + Duration::from_secs(1),
        )
    };
    queue.push_batch(
        (0..100)
            .map(|place| searching(request(0, place), 1))
            .collect(),
    );
    queue.push(searching(request(1, 0), 1));
    queue.push_batch([request(2, 0), searching(request(2, 1), 1), request(2, 2)].into());
    queue.push(request(3, 0));
    let mut next = |work_left| {
        let mut sent: Vec<Tag> = tags(&queue.compose(work_left, std::iter::empty()))
            .into_iter()
            .map(|(_, tag)| tag)
            .collect();
        sent.sort();
        sent.iter()
            .map(|tag| (tag.job, tag.place))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        next(0),
        [(2, 0), (3, 0)],
        "the rest of the batch waits, since its requests keep their order"
    );
    assert_eq!(next(0), []);
    assert_eq!(next(3 * SEARCH_WORK), [(0, 0), (1, 0), (2, 1), (2, 2)]);
    let searches = u64::try_from(WORK_MAX / SEARCH_WORK).unwrap();
    assert_eq!(
        next(WORK_MAX),
        (1..=searches).map(|place| (0, place)).collect::<Vec<_>>()
    );
}

#[test]
fn expired_requests_are_taken_out_of_queue_and_call_once() {
    let mut queue = Queue::default();
    let now = monotonic();
    let after = |ms| now + Duration::from_millis(ms);
    let mut waiting = Vec::new();
    let mut request = |place: u64, ms| {
        let (request, answered) =
            with_caller(request(Tag { job: 0, place }, place.to_string(), after(ms)));
        waiting.push(answered);
        request
    };
    queue.push(request(0, 2));
    queue.push(request(1, 5));
    let mut call = queue.compose(WORK_MAX, std::iter::empty());
    queue.push(request(2, 3));
    queue.push_batch([request(3, 1), request(4, 9)].into());
    assert_eq!(
        (call.earliest(), queue.earliest()),
        (Some(after(2)), Some(after(1)))
    );
    assert!(call.expire(after(1)).is_empty());
    assert_eq!(
        queue
            .expire(after(3))
            .iter()
            .map(|request| tag(request).place)
            .collect::<Vec<_>>(),
        [3, 2]
    );
    assert_eq!((queue.len, queue.earliest()), (1, Some(after(9))));
    assert_eq!(call.expire(after(2)).len(), 1);
    let still_waiting = |call: &Call| {
        let requests = call.requests().filter(|request| request.caller.is_some());
        requests
            .map(|request| tag(request).place)
            .collect::<Vec<_>>()
    };
    assert_eq!(call.earliest(), Some(after(5)));
    assert_eq!(still_waiting(&call), [1]);
    assert!(call.expire(after(2)).is_empty(), "it was taken out before");
}
