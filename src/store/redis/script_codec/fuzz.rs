//! Fuzzes the parser of replies. It refuses a reply, or returns verdicts from which an answer can be computed.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::Check;
use crate::clock::monotonic;
use crate::fuzz::fuzz;
use crate::redis::batcher::call::{ScriptRequest, WORK_MAX};
use tollgate_core::decision::{DecidedBy, Decision, Outcome};
use tollgate_core::key::{Cost, Key};
use tollgate_core::plan::{Anchor, Calendar, CalendarUnit, Plan, Rule, Zone};

fn plan(algorithms: &[Algorithm]) -> Arc<Plan> {
    let limit = |algorithm: &Algorithm| {
        Limit::new("limit", 1_000, Duration::from_secs(60), *algorithm).unwrap()
    };
    plan_of(algorithms.iter().map(limit).collect())
}

fn plan_of(limits: Vec<Limit>) -> Arc<Plan> {
    Arc::new(Plan::new("plan", Rule::limits(limits)))
}

/// A call of requests for every kind of state, alone and together.
fn call() -> (AssertUnwindSafe<Call>, Vec<Arc<Plan>>) {
    let bucket = Algorithm::TokenBucket { burst: 7 };
    let fixed = Algorithm::FixedWindow {
        anchor: Anchor::Clock,
    };
    let window = Algorithm::SlidingWindow { precision: 64 };
    let plans = [
        plan(&[bucket]),
        plan(&[fixed, Algorithm::SlidingCounter]),
        plan(&[window, Algorithm::SlidingLog, bucket]),
    ];
    let month = Calendar::new(CalendarUnit::Month { starts: 1 }, Zone::UTC);
    let month = Limit::by_calendar("month", 1_000, month).unwrap();
    let plans = plans.into_iter().chain([plan_of(vec![month])]);
    let plans: Vec<Arc<Plan>> = plans.collect();
    let mut call = Call::new(0, WORK_MAX);
    for (index, plan) in plans.iter().enumerate() {
        let key = Key::new(format!("k{index}")).unwrap();
        let cost = Cost::new(3).unwrap();
        let check = Check {
            key,
            plan: plan.clone(),
            cost,
            mode: Mode::Charge,
        };
        assert!(
            call.add(ScriptRequest::new(&check, "", monotonic()))
                .is_none()
        );
    }
    // A reply is only read beside it, so a panic leaves it valid.
    (AssertUnwindSafe(call), plans)
}

#[test]
fn fuzz_replies() {
    let (call, plans) = call();
    fuzz!("replies", Vec<u8>, |bytes: &Vec<u8>| {
        understood(bytes, &call, &plans);
    });
}

/// Replies of the right form with any numbers. Of random bytes, hardly one reply in a thousand has the right form.
#[test]
fn fuzz_numbers_of_replies() {
    let (call, plans) = call();
    let mut most = 0;
    bolero::check!()
        .with_type::<([u64; 16], [bool; 4], [u8; 16])>()
        .for_each(|(numbers, fits, bits)| {
            let mut bytes = Vec::new();
            // Numbers of all sizes: random 64 bits alone are nearly always huge.
            let mut numbers = numbers
                .iter()
                .zip(bits)
                .map(|(number, bits)| number >> (bits % 64));
            for (count, fits) in [1, 5, 7, 3].into_iter().zip(fits) {
                bytes.push(if *fits { b'1' } else { b'0' });
                numbers
                    .by_ref()
                    .take(count)
                    .for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()[..NUMBER]));
            }
            most = most.max(usize::from(understood(&bytes, &call, &plans)));
        });
    assert_eq!(most, 1, "no reply was understood");
}

fn understood(bytes: &[u8], call: &Call, plans: &[Arc<Plan>]) -> bool {
    let Some(answers) = parse_reply(bytes, call) else {
        return false;
    };
    assert_eq!(answers.len(), plans.len());
    for (verdict, plan) in answers
        .iter()
        .zip(plans)
        .filter_map(|(answer, plan)| Some((answer.as_ref().ok()?, plan)))
    {
        let statuses = verdict.statuses(plan.limits(), Cost::new(3).unwrap());
        assert!(
            statuses
                .iter()
                .all(|status| status.remaining <= status.capacity),
            "{statuses:?}"
        );
        let decision = Decision::counted(Outcome::Denied, DecidedBy::Store, statuses);
        assert_eq!(decision.limits().len(), plan.limits().len());
    }
    true
}
