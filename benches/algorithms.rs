//! The pure maths: one decision of each algorithm, allowed and denied, on a state that has settled.
//!
//!     cargo bench --bench algorithms
//!
//! Nanoseconds here depend on the machine and on what else it does; compare rows of one run.

use std::time::Duration;

use divan::{Bencher, black_box};
use tollgate::algorithm::{Algorithm, Mode, State, Verdict, decide};
use tollgate::key::Cost;
use tollgate::plan::Limit;

const QUOTA: u64 = 1_000;
const WINDOW: Duration = Duration::from_secs(1);
/// Between two allowed decisions: half the quota, so that windows slide and logs stay half full.
const STEP_US: u64 = 2_000;
/// A whole second of the year 2023, so that a window of the clock begins here.
const START_US: u64 = 1_700_000_000_000_000;

fn main() {
    divan::main();
}

/// A key's state under one limit.
struct KeyState {
    limit: Limit,
    state: State,
    now_us: u64,
}

impl KeyState {
    fn new(algorithm: Algorithm) -> Self {
        let algorithm = match algorithm {
            Algorithm::TokenBucket { .. } => Algorithm::TokenBucket { burst: QUOTA },
            other => other,
        };
        let limit = Limit::new("limit", QUOTA, WINDOW, algorithm)
            .expect("these numbers are within their bounds");
        Self {
            state: State::fresh(&limit),
            limit,
            now_us: START_US,
        }
    }

    /// One decision, so much later than the one before.
    fn decide(&mut self, step_us: u64) -> Verdict {
        self.now_us += step_us;
        let limits = std::slice::from_ref(&self.limit);
        let states = std::slice::from_mut(&mut self.state);
        decide(
            limits,
            states,
            black_box(self.now_us),
            Cost::ONE,
            Mode::Charge,
        )
    }
}

#[divan::bench(args = Algorithm::EVERY)]
fn allowed(bencher: Bencher<'_, '_>, algorithm: Algorithm) {
    let mut key = KeyState::new(algorithm);
    for _ in 0..QUOTA {
        key.decide(STEP_US);
    }
    bencher.bench_local(|| {
        assert!(
            key.decide(STEP_US).fits,
            "{algorithm:?} denied what it must allow"
        )
    });
}

#[divan::bench(args = Algorithm::EVERY)]
fn denied(bencher: Bencher<'_, '_>, algorithm: Algorithm) {
    let mut key = KeyState::new(algorithm);
    // The whole quota, and what a bucket makes meanwhile; then time stands still.
    while key.decide(1).fits {}
    bencher.bench_local(|| {
        assert!(
            !key.decide(0).fits,
            "{algorithm:?} allowed what it must deny"
        )
    });
}

/// The numbers of an answer, derived from the readings of a decision.
#[divan::bench(args = Algorithm::EVERY)]
fn answered(bencher: Bencher<'_, '_>, algorithm: Algorithm) {
    let mut key = KeyState::new(algorithm);
    let verdict = key.decide(0);
    let limits = std::slice::from_ref(&key.limit);
    bencher.bench_local(|| black_box(&verdict).statuses(limits, Cost::ONE));
}
