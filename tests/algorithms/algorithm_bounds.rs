//! What each algorithm promises, over long random runs in time order: bounds that hold in any interval, how late a merged
//! unit is freed, and how far the approximate one errs.

use std::time::Duration;

use tollgate::algorithm::{State, decide};
use tollgate::key::Cost;
use tollgate::plan::{Algorithm, Limit};
use tollgate::store::Mode;

use crate::support::history::Random;
use crate::support::plans::{ANCHORED, COUNTER, FIXED, LOG};

const WINDOW_US: u64 = 1_000_000;
const QUOTA: u64 = 50;
const REQUESTS: usize = 20_000;

/// Requests as traffic comes: steady, in bursts, idle for a while.
fn traffic(random: &mut Random) -> Vec<u64> {
    let mut now_us = 1_000 * WINDOW_US;
    (0..REQUESTS)
        .map(|_| {
            now_us += match random.below(200) {
                0 => random.below(2 * WINDOW_US),
                1..=9 => random.below(WINDOW_US / 4),
                10..=60 => 0,
                _ => random.below(WINDOW_US / QUOTA / 2),
            };
            now_us
        })
        .collect()
}

/// When units were granted.
fn grants(algorithm: Algorithm, traffic: &[u64]) -> Vec<u64> {
    let limit = Limit::new("limit", QUOTA, Duration::from_micros(WINDOW_US), algorithm).unwrap();
    let mut states = [State::fresh(&limit)];
    let limits = std::slice::from_ref(&limit);
    traffic
        .iter()
        .copied()
        .filter(|now_us| decide(limits, &mut states, *now_us, Cost::ONE, Mode::Charge).fits)
        .collect()
}

/// The most units granted within any half-open interval of one window.
fn most_in_a_window(grants: &[u64]) -> u64 {
    let within = |(index, at_us): (usize, &u64)| {
        grants[..=index]
            .iter()
            .rev()
            .take_while(|other| *other + WINDOW_US > *at_us)
            .count()
    };
    grants.iter().enumerate().map(within).max().unwrap() as u64
}

#[test]
fn sliding_log_and_sliding_window_never_pass_the_quota_in_any_window() {
    for seed in 0..20 {
        let traffic = traffic(&mut Random(seed));
        for algorithm in [
            LOG,
            Algorithm::SlidingWindow { precision: 64 },
            Algorithm::SlidingWindow { precision: 4 },
        ] {
            assert_eq!(
                most_in_a_window(&grants(algorithm, &traffic)),
                QUOTA,
                "{algorithm:?}, seed {seed}"
            );
        }
    }
}

#[test]
fn a_fixed_window_passes_at_most_the_quota_in_each_window_and_twice_that_around_an_edge() {
    let mut most = 0;
    for seed in 0..20 {
        let traffic = traffic(&mut Random(seed));
        let clock = grants(FIXED, &traffic);
        for window in clock.chunk_by(|a, b| a / WINDOW_US == b / WINDOW_US) {
            assert!(window.len() as u64 <= QUOTA);
        }
        most = most
            .max(most_in_a_window(&clock))
            .max(most_in_a_window(&grants(ANCHORED, &traffic)));
    }
    assert!(most > QUOTA && most <= 2 * QUOTA, "{most}");
}

#[test]
fn a_token_bucket_passes_at_most_burst_and_rate_in_any_interval() {
    for seed in 0..5 {
        let burst = 20;
        let granted = grants(
            Algorithm::TokenBucket { burst },
            &traffic(&mut Random(seed)),
        );
        for (last, last_us) in granted.iter().enumerate() {
            for (first, first_us) in granted[..=last].iter().enumerate().rev().take(500) {
                let units = (last - first + 1) as u64;
                assert!(
                    units <= burst + (last_us - first_us) * QUOTA / WINDOW_US,
                    "{units} units in {} us",
                    last_us - first_us
                );
            }
        }
    }
}

/// Against an exact log with the same history, a merged unit is freed at most a cell late, and never early.
#[test]
fn a_sliding_window_frees_a_unit_at_most_a_cell_late() {
    let mut latest_us = 0;
    for (seed, precision) in (0..20).flat_map(|seed| [(seed, 2_u8), (seed, 8), (seed, 16)]) {
        let limit = |algorithm| {
            Limit::new("limit", QUOTA, Duration::from_micros(WINDOW_US), algorithm).unwrap()
        };
        let merged = limit(Algorithm::SlidingWindow { precision });
        let exact = limit(LOG);
        let mut merged_states = [State::fresh(&merged)];
        let mut exact_states = [State::fresh(&exact)];
        for now_us in traffic(&mut Random(seed)) {
            let verdict = decide(
                std::slice::from_ref(&merged),
                &mut merged_states,
                now_us,
                Cost::ONE,
                Mode::Charge,
            );
            if verdict.fits {
                let exact_fits = decide(
                    std::slice::from_ref(&exact),
                    &mut exact_states,
                    now_us,
                    Cost::ONE,
                    Mode::Charge,
                )
                .fits;
                assert!(exact_fits, "freed early at {now_us}");
            } else {
                let waits = |limit: &Limit, states: &mut [State]| {
                    let verdict = decide(
                        std::slice::from_ref(limit),
                        states,
                        now_us,
                        Cost::ONE,
                        Mode::Peek,
                    );
                    verdict.readings[0].wait_us(limit, 1)
                };
                let late_us = waits(&merged, &mut merged_states) - waits(&exact, &mut exact_states);
                assert!(
                    late_us < WINDOW_US.div_ceil(u64::from(precision)),
                    "{late_us} us late at precision {precision}"
                );
                latest_us = latest_us.max(late_us * u64::from(precision));
            }
        }
    }
    println!("latest: {} % of a cell", latest_us * 100 / WINDOW_US);
    assert!(
        latest_us > 0,
        "nothing was ever merged, so nothing was shown"
    );
}

/// Grants of a `sliding_counter` that came when the true window held the quota already, all grants, and the fullest window.
fn errors_of_the_counter(traffic: &[u64]) -> (u64, u64, u64) {
    let granted = grants(COUNTER, traffic);
    let held = |(index, at_us): (usize, &u64)| {
        granted[..=index]
            .iter()
            .rev()
            .take_while(|other| *other + WINDOW_US > *at_us)
            .count()
    };
    let wrong = granted
        .iter()
        .enumerate()
        .filter(|grant| held(*grant) as u64 > QUOTA)
        .count();
    (
        wrong as u64,
        granted.len() as u64,
        most_in_a_window(&granted),
    )
}

/// docs/algorithms.md quotes what this prints.
#[test]
fn a_sliding_counter_errs_as_the_documents_say() {
    let start_us = 2_000 * WINDOW_US;
    let mut random = Random(1);
    let even: Vec<u64> = (0..REQUESTS as u64)
        .map(|index| start_us + index * WINDOW_US / QUOTA / 3 + random.below(1_000))
        .collect();
    let mut burst = vec![start_us - 1; QUOTA as usize];
    burst.extend((0..WINDOW_US).step_by(1_000).map(|us| start_us + us));
    let (wrong, all, fullest) = errors_of_the_counter(&even);
    println!(
        "sliding_counter, even traffic of 3 x the quota: {wrong} of {all} grants over, fullest window {fullest} of {QUOTA}"
    );
    assert!(fullest <= QUOTA + 1, "{fullest}");
    let (wrong, all, fullest) = errors_of_the_counter(&traffic(&mut random));
    println!(
        "sliding_counter, bursts and pauses: {wrong} of {all} grants over, fullest window {fullest} of {QUOTA}"
    );
    assert!(
        wrong > 0 && wrong * 4 <= all && fullest < 2 * QUOTA,
        "{wrong} of {all}, {fullest}"
    );
    let (_, _, fullest) = errors_of_the_counter(&burst);
    println!(
        "sliding_counter, a full burst at a window's end and more after it: fullest window {fullest} of {QUOTA}"
    );
    assert!((QUOTA + 1..2 * QUOTA).contains(&fullest), "{fullest}");
}
