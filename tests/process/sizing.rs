//! The model of larger fleets: what it says is what the documents say, and is possible.

#[path = "../../benches/model.rs"]
mod model;

use model::{Fleet, KEYS, Keys, LOAD, MEASURED, ROUND_TRIP_US, table};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/operations/sizing.md");

#[test]
fn the_documents_have_the_model_s_tables() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let sizes = table(&MEASURED, &[], ROUND_TRIP_US, &Keys::zipf(KEYS, 0.0), LOAD);
    let shares = [0.0, 0.8, 1.0, 1.2].map(|exponent| Keys::zipf(KEYS, exponent).row(exponent));
    for row in sizes.iter().chain(&shares) {
        assert!(
            page.lines().any(|line| line == row),
            "docs/operations/sizing.md has no row {row}"
        );
    }
}

#[test]
fn every_prediction_is_possible() {
    let keys = Keys::zipf(KEYS, 1.0);
    for workers in [1, 3, 20, 100] {
        for shards in [1, 2, 10, 100] {
            let fleet = Fleet { workers, shards };
            for rate in [1.0, 1e4, 1e6, 1e7] {
                let predicted = MEASURED.open(fleet, rate, ROUND_TRIP_US, &keys);
                assert!((1.0..=32.0).contains(&predicted.names), "{predicted:?}");
                assert!((0.0..=1.0).contains(&predicted.shard_load), "{predicted:?}");
                assert!(
                    predicted
                        .latency_us
                        .iter()
                        .all(|us| us.is_finite() && *us > ROUND_TRIP_US),
                    "{predicted:?}"
                );
            }
            let closed = MEASURED.closed(fleet, 8.0, 6.0, 2.0);
            assert!(
                closed.worker_load * workers as f64 + closed.shard_load * shards as f64 <= 2.0,
                "{closed:?}"
            );
        }
    }
}

#[test]
fn a_share_of_the_busiest_shard_is_at_least_an_even_one_and_at_least_the_hottest_key_s() {
    for exponent in [0.0, 0.5, 1.0, 1.5] {
        let keys = Keys::zipf(1_000, exponent);
        let hottest = keys.hottest_share(100_000);
        for shards in 1..50 {
            let share = keys.hottest_share(shards);
            assert!(
                share <= 1.0 + 1e-9 && share >= hottest.max(1.0 / shards as f64) - 1e-9,
                "{shards} shards: {share}"
            );
        }
        assert!((keys.hottest_share(1) - 1.0).abs() < 1e-9);
    }
}

#[test]
fn a_twice_as_large_rate_needs_no_smaller_fleet() {
    let keys = Keys::zipf(KEYS, 0.0);
    let sizes: Vec<_> = (0..12)
        .map(|step| {
            MEASURED
                .size(1e3 * f64::from(1 << step), ROUND_TRIP_US, &keys, LOAD)
                .unwrap()
        })
        .collect();
    for pair in sizes.windows(2) {
        assert!(
            pair[0].0.workers <= pair[1].0.workers && pair[0].0.shards <= pair[1].0.shards,
            "{pair:?}"
        );
    }
}
