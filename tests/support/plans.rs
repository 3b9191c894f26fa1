//! Plans and requests in few words.

use std::sync::Arc;
use std::time::Duration;

use tollgate::key::{Cost, Key};
use tollgate::plan::{Algorithm, Anchor, Limit, Plan, Rule};
use tollgate::store::{Check, Mode, Refund};

use super::asks::refund_of;

pub const FIXED: Algorithm = Algorithm::FixedWindow {
    anchor: Anchor::Clock,
};
pub const ANCHORED: Algorithm = Algorithm::FixedWindow {
    anchor: Anchor::FirstRequest,
};
pub const LOG: Algorithm = Algorithm::SlidingLog;
pub const WINDOW: Algorithm = Algorithm::SlidingWindow { precision: 64 };
/// Its runs are merged as soon as there are three. So units may leave late, and an undo may find them merged with others.
pub const COARSE: Algorithm = Algorithm::SlidingWindow { precision: 2 };
pub const COUNTER: Algorithm = Algorithm::SlidingCounter;
pub const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 5 };

/// Gives a macro of rows, each a name and an algorithm, a row for every algorithm in each form whose states are stored apart. So each
/// has a test of its own.
macro_rules! with_every_algorithm {
    ($rows:ident) => {
        $rows! {
            fixed_window_on_the_clock: $crate::support::plans::FIXED,
            fixed_window_from_the_first_request: $crate::support::plans::ANCHORED,
            sliding_log: $crate::support::plans::LOG,
            sliding_window: $crate::support::plans::WINDOW,
            sliding_window_of_precision_2: $crate::support::plans::COARSE,
            sliding_counter: $crate::support::plans::COUNTER,
            token_bucket: $crate::support::plans::BUCKET,
        }
    };
}
pub(crate) use with_every_algorithm;

macro_rules! algorithms_of_rows {
    ($($name:ident: $algorithm:expr,)*) => { [$((stringify!($name), $algorithm)),*] };
}

/// Every algorithm, with the name of its row.
pub fn named_algorithms() -> [(&'static str, Algorithm); Algorithm::EVERY.len()] {
    with_every_algorithm!(algorithms_of_rows)
}

#[test]
fn every_algorithm_has_a_row() {
    let rows = named_algorithms();
    for algorithm in Algorithm::EVERY {
        let row = rows.iter().find(|(_, other)| *other == algorithm);
        let (name, _) = row.unwrap_or_else(|| panic!("{algorithm:?} has no row"));
        assert!(name.starts_with(algorithm.name()), "{name}");
    }
}

/// Every algorithm that counts whole units.
pub fn every_but_the_bucket() -> impl Iterator<Item = Algorithm> {
    let is_bucket = |algorithm: &Algorithm| matches!(algorithm, Algorithm::TokenBucket { .. });
    Algorithm::EVERY
        .into_iter()
        .filter(move |algorithm| !is_bucket(algorithm))
}

/// How an algorithm counts, as far as models differ by it. One that counts as another one needs no rule of its own in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// Units of one window of the clock at a time, which come back when it ends. [`window_start_us`] says when it began.
    ClockWindow,
    /// The same, of a window that begins with a request.
    OwnWindow,
    /// Each unit from its own instant, for the length of a window.
    Instants,
    /// An estimate from two windows of the clock.
    TwoWindows,
    /// A debt, which drains.
    Debt,
}

pub fn counting(limit: &Limit) -> Counting {
    match limit.algorithm() {
        FIXED => Counting::ClockWindow,
        ANCHORED => Counting::OwnWindow,
        Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => Counting::Instants,
        Algorithm::SlidingCounter => Counting::TwoWindows,
        Algorithm::TokenBucket { .. } => Counting::Debt,
    }
}

/// When the window begins in which a fresh key is charged at this time.
pub fn window_start_us(limit: &Limit, now_us: u64) -> u64 {
    match counting(limit) {
        Counting::OwnWindow => now_us,
        _ => now_us - now_us % limit.window_us(),
    }
}

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

pub fn refund(plan: &Arc<Plan>, key: &str, units: u64) -> Refund {
    refund_of(&ask(plan, key, units))
}
