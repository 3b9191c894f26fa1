//! Plans and requests in few words.

use std::sync::Arc;
use std::time::Duration;

use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Anchor, Limit, Plan, Rule};
use tollgate::store::{Check, Mode};

pub const FIXED: Algorithm = Algorithm::FixedWindow {
    anchor: Anchor::Clock,
};
pub const ANCHORED: Algorithm = Algorithm::FixedWindow {
    anchor: Anchor::FirstRequest,
};
pub const LOG: Algorithm = Algorithm::SlidingLog;
pub const WINDOW: Algorithm = Algorithm::SlidingWindow { precision: 64 };
pub const COUNTER: Algorithm = Algorithm::SlidingCounter;
pub const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 5 };

/// The fields of a limit in a config that choose this algorithm.
pub fn algorithm_fields(algorithm: Algorithm) -> String {
    let name = algorithm.name();
    match algorithm {
        ANCHORED => format!("algorithm: {name}, anchor: first_request"),
        Algorithm::SlidingWindow { precision } => {
            format!("algorithm: {name}, precision: {precision}")
        }
        _ => format!("algorithm: {name}"),
    }
}

pub fn limit(quota: u64, window: Duration, algorithm: Algorithm) -> Limit {
    Limit::new(format!("{algorithm:?}"), quota, window, algorithm).unwrap()
}

/// A plan with these limits. All plans made here have one `counts_as`.
pub fn plan(limits: Vec<Limit>) -> Arc<Plan> {
    Arc::new(Plan {
        counts_as: "group".into(),
        ..Plan::new("plan", Rule::limits(limits))
    })
}

pub fn ask(plan: &Arc<Plan>, key: &str, cost: u64) -> Check {
    Check {
        key: Key::new(key).unwrap(),
        plan: plan.clone(),
        cost: Cost::new(cost).unwrap(),
        mode: Mode::Charge,
    }
}

pub fn peek(plan: &Arc<Plan>, key: &str, cost: u64) -> Check {
    Check {
        mode: Mode::Peek,
        ..ask(plan, key, cost)
    }
}

pub fn refund(plan: &Arc<Plan>, key: &str, cost: u64) -> Check {
    Check {
        mode: Mode::Refund,
        ..ask(plan, key, cost)
    }
}
