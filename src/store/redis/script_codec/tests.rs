//! Packed calls hold the requests that the call was filled with. The tests read them by a decoder that knows only the layout.

mod joint;

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock::monotonic;
use crate::redis::SCRIPT_NAMES_MAX;
use crate::redis::batcher::call::{
    LIMIT_WORK, PLANS_MAX, REQUESTS_MAX, SEARCH_STEP_WORK, SEARCH_STEPS_MIN, ScriptRequest,
    WORK_MAX,
};
use tollgate_core::plan::{Anchor, Calendar, CalendarUnit, Plan, Rule, Zone};

/// One group as read from a packed call: number of logs, whether it has a packed state, and its requests as plan, mode and cost.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    logs: usize,
    has_packed: bool,
    requests: Vec<(usize, u8, u64)>,
}

/// One limit as read from a packed call: kind, precision, prefix; window, quota, capacity, and the starts of a calendar's windows.
type SaidLimit = (u64, u64, Vec<u8>, Vec<u64>);

struct Decoder<'a>(&'a [u8]);

impl Decoder<'_> {
    fn number(&mut self, bytes: usize) -> u64 {
        let mut padded = [0; 8];
        padded[..bytes].copy_from_slice(
            self.0
                .split_off(..bytes)
                .expect("the packed call ends too early"),
        );
        u64::from_le_bytes(padded)
    }

    fn count(&mut self) -> usize {
        usize::try_from(self.number(1)).unwrap()
    }

    fn plans(&mut self) -> Vec<Vec<SaidLimit>> {
        let limit = |decoder: &mut Self| {
            let kind = decoder.number(1);
            let precision = decoder.number(1);
            let prefix = decoder.count();
            let prefix = (0..prefix)
                .map(|_| u8::try_from(decoder.number(1)).unwrap())
                .collect();
            let numbers = if (kind, precision) == (0, 1) { 6 } else { 3 };
            let numbers = (0..numbers).map(|_| decoder.number(7)).collect();
            (kind, precision, prefix, numbers)
        };
        (0..self.count())
            .map(|_| (0..self.count()).map(|_| limit(self)).collect())
            .collect()
    }

    fn groups(&mut self) -> Vec<Said> {
        let groups = self.count();
        let packed = self.count();
        let mut said = Vec::new();
        while said.len() < groups {
            let requests = usize::try_from(self.number(2)).unwrap();
            let has_packed = self.number(1) == 1;
            let logs = self.count();
            let _uniform = self.count();
            let repeats = self.count();
            let requests: Vec<_> = (0..requests)
                .map(|_| (self.count(), self.number(1) as u8, self.number(5)))
                .collect();
            assert!(!requests.is_empty() && repeats > 0, "a group of nothing");
            said.extend((0..repeats).map(|_| Said {
                logs,
                has_packed,
                requests: requests.clone(),
            }));
        }
        assert_eq!(said.iter().filter(|group| group.has_packed).count(), packed);
        said
    }
}

fn mode_byte(mode: Mode) -> u8 {
    match mode {
        Mode::Peek => 0,
        Mode::Charge => 1,
    }
}

fn any_limit() -> impl Strategy<Value = Limit> {
    let every = proptest::sample::select(&Algorithm::EVERY[..]);
    let parameters = (2..65_u8, 1..10_000_u64);
    let algorithm =
        (every, parameters).prop_map(|(algorithm, (precision, burst))| match algorithm {
            Algorithm::SlidingWindow { .. } => Algorithm::SlidingWindow { precision },
            Algorithm::TokenBucket { .. } => Algorithm::TokenBucket { burst },
            other => other,
        });
    // Windows that are common, and many more that are not, so that a name has many logs.
    let window_ms = prop_oneof![Just(1_000), Just(60_000), 1_000..2_000_u64];
    let of_fixed_length =
        (1..1_000_u64, window_ms, algorithm).prop_map(|(quota, ms, algorithm)| {
            Limit::new("limit", quota, Duration::from_millis(ms), algorithm).unwrap()
        });
    prop_oneof![9 => of_fixed_length, 1 => (1..29_u8).prop_map(month)]
}

fn month(starts: u8) -> Limit {
    let unit = CalendarUnit::Month { starts };
    Limit::by_calendar("limit", 5, Calendar::new(unit, Zone::UTC)).unwrap()
}

fn any_plan() -> impl Strategy<Value = Arc<Plan>> {
    proptest::collection::vec(any_limit(), 1..9)
        .prop_map(|limits| Arc::new(Plan::new("plan", Rule::limits(limits))))
}

fn any_request() -> impl Strategy<Value = (prop::sample::Index, u64, u64, Mode)> {
    let mode = prop_oneof![Just(Mode::Charge), Just(Mode::Peek)];
    (
        any::<prop::sample::Index>(),
        any::<u64>(),
        1..tollgate_core::plan::QUOTA_MAX,
        mode,
    )
}

/// A plan's limits as a packed call has them.
fn meant_limits(plan: &Plan) -> Vec<SaidLimit> {
    let mut limits: Vec<&Limit> = plan.limits().iter().collect();
    limits.sort_by_key(|limit| limit.fingerprint().bytes());
    let meant = |limit: &Limit| {
        let precision = match limit.algorithm() {
            Algorithm::SlidingWindow { precision } => precision,
            _ => u8::from(limit.calendar().is_some()),
        };
        // No edge of a calendar was looked at yet.
        let numbers = match limit.calendar() {
            Some(_) => vec![0, limit.quota(), limit.capacity(), 0, 0, 0],
            None => vec![limit.window_us(), limit.quota(), limit.capacity()],
        };
        let mut prefix = limit.fingerprint().bytes().to_vec();
        if let Algorithm::TokenBucket { .. } = limit.algorithm() {
            // Quotas here are below 2^16.
            let [low, high, ..] = limit.quota().to_le_bytes();
            prefix.extend(match high {
                0 => vec![1, low],
                _ => vec![2, low, high],
            });
        }
        (
            u64::from(limit.record_kind().number()),
            u64::from(precision),
            prefix,
            numbers,
        )
    };
    limits.into_iter().map(meant).collect()
}

/// Fills a call with as many requests as it takes, packs it, and compares the packed bytes with it. Returns how many
/// requests it took.
fn check(
    plans: &[Arc<Plan>],
    requests: &[(prop::sample::Index, u64, u64, Mode)],
    names: u64,
) -> usize {
    let mut call = Call::new(requests.len(), WORK_MAX);
    for (plan, name, cost, mode) in requests {
        let plan = plan.get(plans).clone();
        let name = format!("{{plan:{}}}", name % names);
        let request = ScriptRequest::named(name, plan, *cost, *mode, monotonic());
        drop(call.add(request));
    }
    call.arrange();
    let packed = pack_call(&call).expect("what a call has room for can be packed");
    let mut decoder = Decoder(&packed);
    let plans_end = usize::try_from(decoder.number(4)).unwrap();
    let plans = decoder.plans();
    assert_eq!(packed.len() - decoder.0.len(), plans_end);
    assert_eq!(plans.len(), call.plans.len());
    for (said, plan) in plans.iter().zip(&call.plans) {
        assert!(said.iter().eq(&meant_limits(&plan.plan)));
    }
    let said = decoder.groups();
    assert!(
        decoder.0.is_empty(),
        "{} bytes more than are said",
        decoder.0.len()
    );
    let meant = call.groups.iter().map(|group| Said {
        logs: group.log_name_count(),
        has_packed: group.has_packed,
        requests: group
            .requests
            .iter()
            .map(|request| (request.plan_index, mode_byte(request.mode), request.cost))
            .collect(),
    });
    assert!(said.iter().eq(&meant.collect::<Vec<_>>()));
    let keys: usize = said
        .iter()
        .map(|group| group.logs + usize::from(group.has_packed))
        .sum();
    assert_eq!(call.keys().len(), keys, "every key belongs to a group");
    said.iter().map(|group| group.requests.len()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_mixture_of_requests_is_packed_as_it_is(
        plans in proptest::collection::vec(any_plan(), 1..400),
        requests in proptest::collection::vec(any_request(), 1..600),
        names in prop_oneof![Just(1_u64), 2..5_u64, 5..80_u64],
    ) {
        check(&plans, &requests, names);
    }
}

fn plan_of(algorithm: Algorithm, window_ms: u64) -> Arc<Plan> {
    let limit = Limit::new("limit", 5, Duration::from_millis(window_ms), algorithm).unwrap();
    Arc::new(Plan::new("plan", Rule::limits([limit])))
}

fn filled(plans: &[Arc<Plan>], name: impl Fn(usize) -> usize) -> usize {
    let mut call = Call::new(plans.len(), WORK_MAX);
    for (index, plan) in plans.iter().enumerate() {
        let request = ScriptRequest::named(
            name(index).to_string(),
            plan.clone(),
            1,
            Mode::Charge,
            monotonic(),
        );
        drop(call.add(request));
    }
    assert!(pack_call(&call).is_ok());
    call.requests().count()
}

/// A call has no room for a further request before one of its counts would exceed the bytes that hold it.
#[test]
fn a_call_is_full_before_a_count_has_no_byte() {
    let fixed = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };
    let other_plans: Vec<_> = (0..300).map(|_| plan_of(fixed, 1_000)).collect();
    assert_eq!(filled(&other_plans, |_| 0), WORK_MAX / LIMIT_WORK);
    const { assert!(WORK_MAX / LIMIT_WORK <= PLANS_MAX) };
    let other_logs: Vec<_> = (0..300)
        .map(|index| plan_of(Algorithm::SlidingLog, 1_000 + index))
        .collect();
    let search_work = usize::from(SEARCH_STEPS_MIN) * SEARCH_STEP_WORK;
    assert_eq!(filled(&other_logs, |_| 0), WORK_MAX / search_work);
    let same_log = vec![plan_of(Algorithm::SlidingLog, 1_000); 300];
    assert_eq!(
        filled(&same_log, |_| 0),
        REQUESTS_MAX,
        "equal requests share one search"
    );
    let same_plan = vec![plan_of(fixed, 1_000); 300];
    assert_eq!(filled(&same_plan, |_| 0), WORK_MAX / LIMIT_WORK);
    assert_eq!(filled(&same_plan, |index| index), SCRIPT_NAMES_MAX);
}

#[test]
fn what_does_not_fit_its_bytes_is_refused() {
    let plan = plan_of(
        Algorithm::FixedWindow {
            anchor: Anchor::Clock,
        },
        1_000,
    );
    let packed = |plan: &Arc<Plan>, cost| {
        pack_call(&Call::for_request(ScriptRequest::named(
            "n".to_owned(),
            plan.clone(),
            cost,
            Mode::Charge,
            monotonic(),
        )))
    };
    assert!(packed(&plan, (1 << 40) - 1).is_ok());
    assert!(matches!(
        packed(&plan, 1 << 40),
        Err(StoreError::Refused(_))
    ));
    let limits = vec![plan.limits()[0].clone(); 256];
    let plan = Arc::new(Plan {
        rule: Rule::limits(limits),
        ..(*plan).clone()
    });
    assert!(matches!(packed(&plan, 1), Err(StoreError::Refused(_))));
}

/// 2026-11-25T00:00:00Z, in microseconds.
const NOVEMBER_US: u64 = 1_795_564_800_000_000;
const DAY_US: u64 = 86_400_000_000;

#[test]
fn a_calendar_limit_is_packed_with_the_windows_around_the_store_s_time_or_those_seen_last() {
    let plan = Arc::new(Plan::new("plan", Rule::limits([month(1)])));
    let mut call = Call::for_request(ScriptRequest::named(
        "n".to_owned(),
        plan.clone(),
        1,
        Mode::Charge,
        monotonic(),
    ));
    let numbers = |call: &Call| {
        let packed = pack_call(call).unwrap();
        let mut decoder = Decoder(&packed);
        decoder.number(4);
        decoder.plans()[0][0].3.clone()
    };
    assert_eq!(numbers(&call), [0, 5, 5, 0, 0, 0]);
    let november = NOVEMBER_US - 24 * DAY_US;
    let around = [
        30 * DAY_US,
        5,
        5,
        november,
        november - 31 * DAY_US,
        november - 61 * DAY_US,
    ];
    call.store_time_us = Some(NOVEMBER_US);
    assert_eq!(numbers(&call), around);
    call.store_time_us = None;
    assert_eq!(numbers(&call), around);
}
