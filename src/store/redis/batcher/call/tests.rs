//! Merging requests into a call changes no answer. Random histories are decided as one call and one by one.

use std::collections::HashMap;
use std::time::Duration;

use super::*;
use crate::clock::monotonic;
use tollgate_core::algorithm::{Reading, State, Verdict, decide};
use tollgate_core::key::Cost;
use tollgate_core::plan::{
    Anchor, Calendar, CalendarUnit, LimitFingerprint, Rule, SharedLimits, Zone,
};

/// Number of histories with a few requests for few names, and of those that fill a call to its bounds.
const HISTORIES: u64 = 1_000_000;
const LARGE_HISTORIES: u64 = 500;
const NOW_US: u64 = 1_700_000_000_000_000;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

/// The states of a store, by name and fingerprint.
type Memory = HashMap<(String, LimitFingerprint), State>;

fn execute(memory: &mut Memory, name: &str, plan: &Plan, cost: u64, mode: Mode) -> Verdict {
    let limits = plan.limits();
    let key = |limit: &Limit| (name.to_owned(), limit.fingerprint());
    let mut states: Vec<State> = limits
        .iter()
        .map(|limit| {
            memory
                .remove(&key(limit))
                .unwrap_or_else(|| State::fresh(limit))
        })
        .collect();
    let verdict = decide(limits, &mut states, NOW_US, Cost::new(cost).unwrap(), mode);
    memory.extend(limits.iter().map(key).zip(states));
    verdict
}

/// The script's reply to a call, computed by the Rust twins of its algorithms.
fn reply(memory: &mut Memory, call: &Call) -> Vec<u8> {
    let mut bytes = Vec::new();
    for group in &call.groups {
        for request in &group.requests {
            let CallPlan { plan, order } = &call.plans[request.plan_index];
            let verdict = execute(memory, group.name(), plan, request.cost, request.mode);
            bytes.push(if verdict.fits { b'1' } else { b'0' });
            let limits = order.iter().map(|index| &plan.limits()[*index]).cycle();
            let readings = verdict
                .readings
                .chunks(order.len())
                .flat_map(|all| order.iter().map(|index| all[*index]));
            for (reading, limit) in readings.zip(limits) {
                let numbers = match reading {
                    Reading::Window { count, ends_in_us } => vec![count, ends_in_us],
                    Reading::Calendar {
                        count,
                        ends_in_us,
                        window_us,
                    } => vec![count, ends_in_us, window_us],
                    Reading::Bucket {
                        backlog_us,
                        emission_us,
                    } if emission_us == limit.emission_us() => vec![backlog_us],
                    Reading::Bucket {
                        backlog_us,
                        emission_us,
                    } => vec![backlog_us | 1 << 55, emission_us],
                    Reading::Counter {
                        current,
                        previous,
                        elapsed_us,
                    } => vec![current, previous, elapsed_us],
                    Reading::Log {
                        used,
                        frees_in_us,
                        fresh_in_us,
                    } => vec![used, frees_in_us, fresh_in_us],
                };
                numbers
                    .iter()
                    .for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()[..7]));
            }
        }
    }
    bytes
}

/// Plans of one group, with different quotas and fingerprints, and with one or two limits.
fn plans() -> Vec<Arc<Plan>> {
    let limit = |quota, seconds, algorithm| {
        Limit::new("l", quota, Duration::from_secs(seconds), algorithm).unwrap()
    };
    let fixed = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };
    let month = |quota| {
        let unit = CalendarUnit::Month { starts: 1 };
        Limit::by_calendar("m", quota, Calendar::new(unit, Zone::UTC)).unwrap()
    };
    let of = |limits| {
        Arc::new(Plan {
            counts_as: "group".into(),
            ..Plan::new("plan", Rule::limits(limits))
        })
    };
    vec![
        of(vec![limit(5, 60, Algorithm::TokenBucket { burst: 4 })]),
        of(vec![limit(3, 60, Algorithm::TokenBucket { burst: 7 })]),
        of(vec![limit(4, 60, fixed), limit(6, 3600, fixed)]),
        of(vec![limit(5, 60, fixed)]),
        of(vec![month(5), limit(4, 60, fixed)]),
        of(vec![
            limit(4, 60, Algorithm::SlidingLog),
            limit(5, 60, Algorithm::TokenBucket { burst: 4 }),
        ]),
    ]
}

fn check(history: u64, requests: u64, names: u64, plans: &[Arc<Plan>]) {
    let mut random = Random(history);
    let mut call = Call::new(0, WORK_MAX);
    let mut serial = Memory::new();
    let mut expected = Vec::new();
    let begun = monotonic();
    for number in 0..requests {
        let plan = plans[random.below(plans.len() as u64) as usize].clone();
        let mode = match random.below(8) {
            0 => Mode::Peek,
            _ => Mode::Charge,
        };
        // Its deadline tells the request from others; a call does not order by it.
        let until = begun + Duration::from_nanos(number);
        let request = ScriptRequest::named(
            random.below(names).to_string(),
            plan,
            1 + random.below(3),
            mode,
            until,
        );
        let name = request.name.clone();
        let plan = request.plan.clone();
        let cost = request.cost;
        if let Some(request) = call.add(request) {
            let bound = call.groups.len() == SCRIPT_NAMES_MAX || call.len() == REQUESTS_MAX;
            assert!(
                bound || call.work + request.work() > WORK_MAX,
                "history {history}: a request was turned away from a call that is not full"
            );
            continue;
        }
        expected.push((until, execute(&mut serial, &name, &plan, cost, mode)));
    }
    call.arrange();
    let mut merged = Memory::new();
    let reply = reply(&mut merged, &call);
    let answers = call.answers(&reply).into_iter().map(Result::unwrap);
    let mut answers: Vec<(Instant, Verdict)> = call
        .requests()
        .zip(answers)
        .map(|(request, verdict)| (request.until, verdict))
        .collect();
    answers.sort_by_key(|(until, _)| *until);
    assert_eq!(answers, expected, "history {history}");
    assert_eq!(merged, serial, "history {history}");
}

#[test]
fn a_merged_call_gives_the_same_answers_as_single_requests() {
    let plans = plans();
    for history in 0..HISTORIES {
        check(history, 2 + history % 5, 1 + history % 3, &plans);
    }
    for history in 0..LARGE_HISTORIES {
        check(history, 400, 1 + history % 50, &plans);
    }
}

#[test]
fn a_call_names_each_key_once_and_packed_states_first() {
    let plans = plans();
    let mut call = Call::new(0, WORK_MAX);
    let mut add = |name: &str, plan: usize, mode| {
        assert!(
            call.add(ScriptRequest::named(
                name.to_owned(),
                plans[plan].clone(),
                1,
                mode,
                monotonic()
            ))
            .is_none()
        );
        call.groups
            .iter()
            .map(|group| group.is_uniform)
            .collect::<Vec<bool>>()
    };
    for (name, plan) in [("{group:a}", 5), ("{group:b}", 0), ("{group:a}", 0)] {
        add(name, plan, Mode::Charge);
    }
    assert_eq!(add("{group:a}", 5, Mode::Charge), [false, true]);
    assert_eq!(add("{group:b}", 1, Mode::Charge), [false, false]);
    assert_eq!(
        call.keys(),
        ["{group:a}", "{group:b}", "{group:a}log:60000000"]
    );
}

#[test]
fn a_reply_of_an_unknown_form_is_an_error() {
    let call = Call::for_request(ScriptRequest::named(
        "n".to_owned(),
        plans()[0].clone(),
        1,
        Mode::Charge,
        monotonic(),
    ));
    let answers = call.answers(b"1");
    assert!(
        matches!(answers[..], [Err(StoreError::InvalidReply(_))]),
        "{answers:?}"
    );
}

#[test]
fn a_reply_that_tells_the_time_has_the_call_sent_again_while_somebody_waits() {
    let (caller, _waits) = Caller::for_test();
    let mut request = ScriptRequest::named(
        "n".to_owned(),
        plans()[4].clone(),
        1,
        Mode::Charge,
        monotonic() + Duration::from_secs(60),
    );
    request.caller = Some(caller);
    let mut call = Call::for_request(request);
    for reply in [&b"1"[..], b"", b"T", b"T123456", b"T12345678", b"R\0\0"] {
        assert!(!call.is_to_be_sent_again(reply), "{reply:?}");
        assert_eq!(call.store_time_us, None);
    }
    assert!(call.is_to_be_sent_again(b"T\x01\x02\0\0\0\0\0"));
    assert_eq!(call.store_time_us, Some(513));
    assert_eq!(call.expire(monotonic() + Duration::from_secs(61)).len(), 1);
    assert!(!call.is_to_be_sent_again(b"T\x01\x02\0\0\0\0\0"));
}

/// A log that a plan of a greater quota has charged is as long as that quota.
#[test]
fn a_search_counts_for_the_halvings_of_the_greatest_quota() {
    let request = |quota, shared: &[Limit]| {
        let window = Duration::from_secs(60);
        let limit = Limit::new("log", quota, window, Algorithm::SlidingLog).unwrap();
        let plan = Plan {
            shared: SharedLimits::count(shared.iter().chain([&limit])),
            ..Plan::new("plan", Rule::limits([limit]))
        };
        ScriptRequest::named("n".to_owned(), Arc::new(plan), 1, Mode::Charge, monotonic())
    };
    let work = |quota| request(quota, &[]).work();
    assert_eq!(work(1), work(1_000));
    assert_eq!(
        (work(1_000), work(100_000)),
        (13 * SEARCH_STEP_WORK, 17 * SEARCH_STEP_WORK)
    );
    let longer = Limit::new("l", 100_000, Duration::from_secs(1), Algorithm::SlidingLog).unwrap();
    assert!(request(1_000, &[longer]).work() >= work(100_000));
    let joint = |purpose| request(1_000, &[]).jointly(purpose).work();
    assert_eq!(
        (joint(Purpose::Whole), joint(Purpose::Undo([0].into()))),
        (work(1_000).div_ceil(2), work(1_000) * 2)
    );
}
