//! When units come back, as a few points: how long until so many units can be taken at once.
//!
//! A point is the wait of a cost. So it is exact, and the same code gives it for every algorithm. Readings of a window, a bucket
//! and a counter tell the wait of every cost. A log must be read again for each cost.

use smallvec::SmallVec;

use super::Reading;
use crate::plan::Limit;

/// Maximum number of points of one limit: the next unit, three quarters in between, and everything.
pub const RELEASES_MAX: usize = 5;
/// With so few missing units, each has a point of its own.
const ONE_BY_ONE_MAX: u64 = 5;

/// A point in the future at which more units can be taken at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// Units that one request could take then.
    pub units: u64,
    /// Time until then if nothing else happens, at least 1.
    pub after_us: u64,
}

/// The costs whose waits show when units come back, in ascending order. None when everything can be taken now.
pub fn release_costs(limit: &Limit, reading: &Reading) -> SmallVec<[u64; RELEASES_MAX]> {
    let capacity = limit.capacity();
    let free = reading.remaining(limit).min(capacity);
    let missing = capacity - free;
    if missing <= ONE_BY_ONE_MAX {
        return (1..=missing).map(|part| free + part).collect();
    }
    let mut parts: SmallVec<[u64; RELEASES_MAX]> =
        SmallVec::from([1, missing / 4, missing / 2, missing - missing / 4, missing]);
    // The first quarter of few units is the next unit.
    parts.dedup();
    parts.into_iter().map(|part| free + part).collect()
}

/// The points of these costs and their waits, in ascending order of costs. Costs that pass at the same time are one point.
pub fn releases(waits: impl IntoIterator<Item = (u64, u64)>) -> SmallVec<[Release; RELEASES_MAX]> {
    let mut points = SmallVec::<[Release; RELEASES_MAX]>::new();
    for (units, after_us) in waits.into_iter().filter(|(_, after_us)| *after_us > 0) {
        match points.last_mut() {
            Some(last) if last.after_us == after_us => last.units = units,
            _ => points.push(Release { units, after_us }),
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::cases::limit;
    use crate::algorithm::{Mode, State, decide};
    use crate::key::Cost;
    use crate::plan::{Algorithm, Anchor};

    const S: u64 = 1_000_000;

    /// Points after these charges, each a time and a cost, as read at `now_us`. Each cost is peeked at by itself.
    fn points(limit: &Limit, charges: &[(u64, u64)], now_us: u64) -> Vec<(u64, u64)> {
        let limits = std::slice::from_ref(limit);
        let mut states = [State::fresh(limit)];
        for (at_us, cost) in charges {
            assert!(
                decide(
                    limits,
                    &mut states,
                    *at_us,
                    Cost::new(*cost).unwrap(),
                    Mode::Charge
                )
                .fits
            );
        }
        let mut peek = |cost| {
            decide(
                limits,
                &mut states,
                now_us,
                Cost::new(cost).unwrap(),
                Mode::Peek,
            )
            .readings[0]
        };
        let waits = release_costs(limit, &peek(1))
            .into_iter()
            .map(|cost| (cost, peek(cost).wait_us(limit, cost)));
        let points = releases(waits.collect::<Vec<_>>());
        for point in &points {
            let before = |us| {
                decide(
                    limits,
                    &mut states.clone(),
                    us,
                    Cost::new(point.units).unwrap(),
                    Mode::Peek,
                )
                .fits
            };
            assert!(
                before(now_us + point.after_us) && !before(now_us + point.after_us - 1),
                "{point:?}"
            );
        }
        points
            .into_iter()
            .map(|Release { units, after_us }| (units, after_us))
            .collect()
    }

    const FIXED: Algorithm = Algorithm::FixedWindow {
        anchor: Anchor::FirstRequest,
    };
    const PRECISE: Algorithm = Algorithm::SlidingWindow { precision: 64 };

    /// What is shown, the algorithm, its quota, the charges (time and cost), the time of the reading, and the points.
    type Row = (
        &'static str,
        Algorithm,
        u64,
        &'static [(u64, u64)],
        u64,
        &'static [(u64, u64)],
    );

    const ROWS: [Row; 9] = [
        ("nothing is used", PRECISE, 10, &[], 5 * S, &[]),
        (
            "all come at the end",
            FIXED,
            10,
            &[(5 * S, 8)],
            5 * S + 400_000,
            &[(10, 600_000)],
        ),
        (
            "one after the other",
            Algorithm::TokenBucket { burst: 4 },
            10,
            &[(5 * S, 4)],
            5 * S,
            &[(1, 100_000), (2, 200_000), (3, 300_000), (4, 400_000)],
        ),
        (
            "in quarters",
            Algorithm::TokenBucket { burst: 8 },
            10,
            &[(5 * S, 8)],
            5 * S,
            &[
                (1, 100_000),
                (2, 200_000),
                (4, 400_000),
                (6, 600_000),
                (8, 800_000),
            ],
        ),
        (
            "the next unit is on its way",
            Algorithm::TokenBucket { burst: 1 },
            10,
            &[(5 * S, 1)],
            5 * S + 30_000,
            &[(1, 70_000)],
        ),
        (
            "each at its own time",
            Algorithm::SlidingLog,
            3,
            &[(5 * S, 1), (5 * S + 300_000, 2)],
            5 * S + 400_000,
            &[(1, 600_000), (3, 900_000)],
        ),
        (
            "so does a window",
            PRECISE,
            8,
            &[(5 * S, 4), (5 * S + 500_000, 4)],
            5 * S + 500_000,
            &[(4, 500_000), (8, 1_000_000)],
        ),
        (
            "by the estimate",
            Algorithm::SlidingCounter,
            10,
            &[(5 * S, 10)],
            6 * S + 50_000,
            &[
                (1, 50_000),
                (2, 150_000),
                (5, 450_000),
                (8, 750_000),
                (10, 950_000),
            ],
        ),
        (
            "some are free",
            Algorithm::SlidingLog,
            10,
            &[(5 * S, 4)],
            5 * S,
            &[(10, S)],
        ),
    ];

    #[test]
    fn each_algorithm_gives_its_points() {
        for (what, algorithm, quota, charges, now_us, expected) in ROWS {
            assert_eq!(
                points(&limit(quota, algorithm), charges, now_us),
                expected,
                "{what}"
            );
        }
    }

    #[test]
    fn there_are_at_most_five_points_of_any_quota() {
        for quota in [1, 2, 3, 7, 1_000_000] {
            let limit = limit(quota, Algorithm::SlidingWindow { precision: 64 });
            for used in [0, 1, quota / 2, quota, quota + 5] {
                let costs = release_costs(
                    &limit,
                    &Reading::Log {
                        used,
                        frees_in_us: 0,
                        fresh_in_us: 1,
                    },
                );
                assert!(
                    costs.len() <= RELEASES_MAX
                        && costs.iter().all(|cost| (1..=quota).contains(cost)),
                    "{costs:?}"
                );
                assert_eq!(costs.last().copied(), (used > 0).then_some(quota));
                assert!(costs.windows(2).all(|pair| pair[0] < pair[1]));
            }
        }
    }
}
